# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit on a loop of its own, with a kubelet of a few lines: how often that is asked, what is bounded, what faults and stops cost."""

import asyncio
import collections
import threading
import time
from types import SimpleNamespace

from agent_rig import RESOURCE
from audit_rig import leave


def test_kubelet_is_asked_a_few_times_a_second_at_most(audited):
    async def what(audit, _asked):
        for number in range(100):
            leave(audit, f"id-{number}")
            await asyncio.sleep(0.015)

    _made, asked, found = audited(what)
    gaps = [later - earlier for earlier, later in zip(asked, asked[1:-1], strict=False)]
    assert len(asked) >= 2 and min(gaps) > 0.29
    assert sorted(line["ids"][0] for line in found) == sorted(f"id-{number}" for number in range(100))


def test_one_that_is_never_shown_is_asked_for_more_and_more_seldom(audited):
    async def what(audit, _asked):
        leave(audit, "id")
        await asyncio.sleep(4)

    _made, asked, _found = audited(what)
    assert len(asked) <= 6


def test_a_kubelet_that_does_not_tell_is_named(audited, package):
    from npu_agent.holders import NoAnswer

    async def what(audit, asked):
        leave(audit, "id")
        while not asked:
            await asyncio.sleep(0.01)

    _made, _asked, (line,) = audited(what, answer=NoAnswer("/x: rejected by rate limit"))
    assert line["note"] == "kubelet does not tell which pods have chips: /x: rejected by rate limit"


def test_what_waits_is_bounded(audited):
    async def what(audit, _asked):
        for number in range(600):
            leave(audit, f"id-{number}")
            leave(audit, f"no-{number}", reason="no")
        await asyncio.sleep(0.1)
        assert len(audit.pending) <= 256 and len(audit.refused) <= 256

    made, _asked, found = audited(what)
    assert len(found) == 1200 and made.counts == collections.Counter(written=1200, without_pod=600)
    assert {line["note"] for line in found if line["ids"] == ["id-0"]} == {"too many allocations waited for their pods"}


def test_what_is_in_the_way_of_the_file_is_looked_at_again(audited, tmp_path, monkeypatch):
    """Now and then, and at once where another file is set; no allocation is needed for that."""
    from npu_agent import audit as module

    async def troubled(audit):
        leave(audit)
        while not audit.file.trouble:
            await asyncio.sleep(0.01)

    async def gone(audit):
        while audit.file.trouble:
            await asyncio.sleep(0.01)

    async def what(audit, _asked):
        (tmp_path / "audit.jsonl").mkdir()
        monkeypatch.setattr(module, "AGAIN_SECONDS", 0.1)
        await troubled(audit)
        await asyncio.sleep(0.3)
        assert audit.file.trouble
        (tmp_path / "audit.jsonl").rmdir()
        await asyncio.wait_for(gone(audit), 20)
        (tmp_path / "audit.jsonl").unlink()
        (tmp_path / "audit.jsonl").mkdir()
        monkeypatch.setattr(module, "AGAIN_SECONDS", 1000)
        await troubled(audit)
        audit.settings.audit_file = str(tmp_path / "other.jsonl")
        audit.wake.set()  # as a configuration that is read again does
        await asyncio.wait_for(gone(audit), 20)
        assert audit.file.path == str(tmp_path / "other.jsonl")
        (tmp_path / "audit.jsonl").rmdir()

    audited(what)


def test_a_disk_that_hangs_costs_lines_not_memory(audited, monkeypatch, package):
    from npu_agent import audit as module

    monkeypatch.setattr(module, "INBOX", 50)
    release = []

    def put(*_arguments):
        while not release:
            time.sleep(0.01)

    async def what(audit, _asked):
        audit.put, real = put, audit.put
        leave(audit, "first")
        await asyncio.sleep(0.2)
        audit.fresh.clear()
        for number in range(200):
            leave(audit, f"id-{number}", reason="no" if number % 2 else None)
            await asyncio.sleep(0)
        assert len(audit.inbox) + len(audit.fresh) + len(audit.ready) == 50 and audit.counts["dropped"] == 150
        release.append(1)
        audit.put = real

    _made, _asked, found = audited(what)
    assert len(found) == 51


def test_a_stop_while_lines_wait_for_the_thread(audited):
    """The thread is busy, so that what is to be written stands in its queue when the service ends."""
    async def what(audit, _asked):
        leave(audit)
        while not audit.counts["written"]:
            await asyncio.sleep(0.01)
        release, loop = threading.Event(), asyncio.get_running_loop()
        busy = [loop.run_in_executor(None, release.wait, 60) for _unused in range(64)]
        leave(audit)
        while audit.counts["without_pod"] < 2 or audit.ready:
            await asyncio.sleep(0.01)
        assert audit.counts["written"] == 1 and not any(one.done() for one in busy)
        loop.call_later(0.2, release.set)

    _made, _asked, found = audited(what)
    assert len(found) == 2


def test_a_line_that_nothing_was_asked_for(audited):
    async def what(audit, _asked):
        leave(audit)
        await asyncio.sleep(0.2)

    _made, asked, (line,) = audited(what)
    assert line["note"] == "no chips were asked for" and asked == []


def test_a_fault_of_ours_does_not_end_the_audit(audited, monkeypatch):
    async def what(audit, _asked):
        monkeypatch.setattr(audit, "codes_of", lambda _chip: 1 / 0)
        audit.leave(RESOURCE, ["a"], [SimpleNamespace(id="a", pci_address=None, phy_id=0)], answer={}, reason="no", seconds=0)
        await asyncio.sleep(0.1)
        leave(audit, "b")
        await asyncio.sleep(1.3)
        assert len(audit.pending) == 1 and audit.counts["dropped"] == 1

    _made, _asked, found = audited(what)
    assert [line["ids"] for line in found] == [["b"]]


def test_a_fault_at_a_name_leaves_the_line(audited, monkeypatch, package):
    """What cannot be judged would be tried again for ever."""
    from npu_agent import audit as module

    async def what(audit, _asked):
        monkeypatch.setattr(module, "match", lambda *_unused: 1 / 0)
        leave(audit, "a")
        while not audit.ready and not audit.counts["written"]:
            await asyncio.sleep(0.01)

    _made, _asked, (line,) = audited(what)
    assert line["ids"] == ["a"] and line["note"] == "a fault of npu-agent, see its log"


def test_a_name_that_kubelet_has_shown_already_needs_no_wait(audited, package):
    """An answer from after the call may come before the call is looked at; it does not make the pod one that was there before."""
    from npu_agent.holders import Row

    async def what(audit, _asked):
        leave(audit, "a")
        await asyncio.sleep(0)
        audit.saw({(RESOURCE, "a"): "n/p"})
        while not audit.counts["written"]:
            await asyncio.sleep(0.01)

    began = time.monotonic()
    made, _asked, (line,) = audited(what, rows=[Row("n", "p", "c", RESOURCE, frozenset("a"))])
    assert line["pod"] == "p" and time.monotonic() - began < 25 and made.counts["without_pod"] == 0
