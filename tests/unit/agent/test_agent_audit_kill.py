# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process that is killed leaves to the next one, what the log takes instead of a file, and what a line claims of its pod."""

import asyncio
import json
import os
import signal
import threading
import time

import pytest
from agent_rig import RESOURCE, until
from audit_rig import leave, lines


@pytest.fixture
def audit_file(package):
    import npu_agent.audit_file

    return npu_agent.audit_file


async def never():
    await asyncio.Event().wait()


def ids(found):
    return sorted(line["ids"][0] for line in found)


def some(*numbers):
    return [json.dumps({"allocation": f"{number:x}-0", "resource": "r", "ids": [str(number)], "outcome": "given"}).encode()
            for number in numbers]


def row(package, pod, *names):
    from npu_agent.holders import Row

    return Row("n", pod, "c", RESOURCE, frozenset(names))


# --- a kill

def test_what_comes_while_kubelet_does_not_answer_stands_there_at_once(audited, tmp_path):
    """A kill then costs nothing; neither does a refusal whose lines of the kernel have not been read."""
    async def what(audit, asked):
        audit.settings.kernel_log = "/nowhere"
        audit.read = float("inf")
        leave(audit, "first")
        while not asked:
            await asyncio.sleep(0.01)
        for number in range(60):
            leave(audit, f"id-{number:02d}")
            leave(audit, f"no-{number:02d}", reason="no")
            await asyncio.sleep(0.001)
        end = asyncio.get_running_loop().time() + 20
        while len(lines(tmp_path / "audit.jsonl.pending")) < 121:
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.01)
        assert len(asked) == 1 and lines(tmp_path / "audit.jsonl") == []

    audited(what, answer=never, end=False)
    found = lines(tmp_path / "audit.jsonl.pending")
    assert ids(found) == ["first", *sorted(f"{kind}-{number:02d}" for kind in ("id", "no") for number in range(60))]


def test_calls_without_a_pause_are_kept_too(audited, tmp_path):
    async def what(audit, asked):
        end = asyncio.get_running_loop().time() + 20
        while len(lines(tmp_path / "audit.jsonl.pending")) < 3:
            assert asyncio.get_running_loop().time() < end
            leave(audit, "id")
            await asyncio.sleep(0.0005)

    audited(what, answer=never, end=False)


def test_a_burst_takes_few_turns_of_the_thread(audited, monkeypatch):
    """Each of them holds up a call."""
    turns = []

    async def what(audit, _asked):
        put = audit.put
        monkeypatch.setattr(audit, "put", lambda *arguments: turns.append(len(arguments[1])) or put(*arguments))
        for number in range(200):
            leave(audit, f"id-{number}")
            await asyncio.sleep(0.001)
        while sum(turns) < 200:
            await asyncio.sleep(0.01)

    audited(what, answer=never, end=False)
    assert len([count for count in turns if count]) < 50


def test_it_stands_there_while_the_service_ends(audited, tmp_path):
    """Whose last question to kubelet may take a second."""
    stands = []

    async def what(audit, _asked):
        leave(audit, "id")
        asyncio.get_running_loop().call_later(0.5, lambda: stands.extend(lines(tmp_path / "audit.jsonl.pending")))

    audited(what, answer=never)
    assert ids(stands) == ["id"]


def test_an_end_before_it_was_read_leaves_it(audited, audit_file, tmp_path, monkeypatch):
    pending = tmp_path / "audit.jsonl.pending"
    pending.write_bytes(some(1)[0] + b"\n")
    load = audit_file.Kept.load
    monkeypatch.setattr(audit_file.Kept, "load", lambda kept: time.sleep(0.3) or load(kept))

    async def what(_audit, _asked):
        await asyncio.sleep(0.05)

    audited(what)
    assert ids(lines(pending)) == ["1"]


def test_it_is_made_anew_twice_a_second_at_most(audited, package, tmp_path, monkeypatch):
    """While some of what it has gets its line, and some does not. In the end there is none."""
    anew, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda *names: anew.append(time.monotonic()) or replace(*names))

    there = []

    async def what(audit, _asked):
        for number in range(150):
            leave(audit, f"id-{number}")
            there.extend([row(package, "p", f"id-{number}")] if number % 2 else [])
            await asyncio.sleep(0.01)

    async def answer():
        return list(there)

    audited(what, answer=answer)
    assert len(anew) >= 2 and min(later - earlier for earlier, later in zip(anew, anew[1:], strict=False)) > 0.45
    assert not (tmp_path / "audit.jsonl.pending").exists() and len(lines(tmp_path / "audit.jsonl")) == 150


def test_lines_that_are_added(audit_file, tmp_path):
    kept = audit_file.Kept(str(tmp_path / "audit.jsonl"))
    kept.add(some(1, 2))
    kept.add([])
    kept.add(some(3))
    pending = tmp_path / "audit.jsonl.pending"
    assert ids(lines(pending)) == ["1", "2", "3"] and pending.stat().st_mode & 0o777 == 0o600
    kept.save(some(3))
    kept.add(some(4, 4))
    assert ids(audit_file.Kept(str(tmp_path / "audit.jsonl")).load()) == ["3", "4"]
    kept.save([])
    assert os.listdir(tmp_path) == []


def test_an_addition_that_failed_is_made_up_for(audit_file, tmp_path, monkeypatch):
    """A full disk takes part of a line: what comes then must not be run together with it."""
    kept, write = audit_file.Kept(str(tmp_path / "audit.jsonl")), os.write
    kept.add(some(1))
    monkeypatch.setattr(os, "write", lambda stream, data: write(stream, data[:9]))
    kept.add(some(2))
    monkeypatch.undo()
    kept.save(some(1, 2))
    assert ids(lines(tmp_path / "audit.jsonl.pending")) == ["1", "2"]


def test_a_line_that_was_written_long_before_the_kill_is_not_written_again(audit_file, tmp_path):
    """Within the half second until the file is made anew, many lines may be written."""
    path = tmp_path / "audit.jsonl"
    kept = audit_file.Kept(str(path))
    kept.add(some(1, 2))
    audit_file.AuditFile(str(path), print).write(some(1) + [b"x" * 1000] * 2000)
    assert ids(audit_file.Kept(str(path)).load()) == ["2"]


@pytest.mark.parametrize("link", ["pipe", "link"])
def test_what_stands_in_its_place_is_left_alone(audit_file, tmp_path, link):
    pending, target = tmp_path / "audit.jsonl.pending", tmp_path / "target"
    target.write_text("precious")
    if link == "pipe":
        os.mkfifo(pending)
    else:
        pending.symlink_to(target)
    audit_file.Kept(str(tmp_path / "audit.jsonl")).add(some(1))
    assert target.read_text() == "precious"


def test_a_kill_in_a_burst(pair):
    """Each call that is in the file of what waits, or has a line, is found by the next process; the last ones come within moments."""
    from test_agent_audit_run import call

    rig, agent = pair
    for number in range(40):
        call(rig, f"Ascend910-{number % 8}")
    pending, path = rig.folder / "audit.jsonl.pending", rig.folder / "audit.jsonl"
    until(lambda: len({line["allocation"] for line in (*lines(path), *lines(pending))}) == 40, what="40 in one of the two")
    agent.stop(signal.SIGKILL)
    again = rig.agent(name="again")
    again.await_state("serving")
    assert again.stop() == 0
    found = lines(path)
    assert len(found) == len({line["allocation"] for line in found}) == 40


# --- the log instead of a file

@pytest.fixture
def logged(package):
    """(Log, AuditLog, the end to read from) of a pipe."""
    from npu_agent import audit_file, log

    ends = os.pipe()
    made = log.Log("error", ends[1])
    yield made, audit_file.AuditLog(made), ends[0]
    for end in ends:
        os.close(end)


def test_lines_are_written_at_any_level(logged):
    _log, audit, end = logged
    os.set_blocking(end, False)
    assert audit.write(some(1)) == 0
    line = json.loads(os.read(end, 65536))
    assert (line["event"], line["level"], line["ids"]) == ("allocation", "info", ["1"])


def test_lines_that_find_no_room_are_counted_as_lost(logged, monkeypatch, audit_file):
    log, audit, end = logged
    monkeypatch.setattr(audit_file, "LOG_SECONDS", 0.1)
    lost = audit.write(some(*range(3000)))
    assert lost > 0 and "nobody reads that fast enough" in audit.trouble
    os.set_blocking(end, False)
    text = b""
    while True:
        log.flush()
        try:
            text += os.read(end, 1 << 20)
        except BlockingIOError:
            break
    assert text.count(b"\n") == 3000 - lost and b"lines_lost" not in text
    assert audit.write(some(1)) == 0 and audit.trouble == ""


def test_a_slow_reader_costs_no_line(logged):
    log, audit, end = logged
    got = []

    def read():
        while sum(data.count(b"\n") for data in got) < 3000 and (data := os.read(end, 4096)):
            got.append(data)
            time.sleep(0.0005)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    lost = sum(audit.write(some(*range(start, start + 100))) for start in range(0, 3000, 100))
    assert lost == 0
    until(lambda: log.flush() or not reader.is_alive(), 60, "all of them")


def test_a_log_that_nobody_reads_any_more(package, audit_file, monkeypatch):
    from npu_agent import log

    monkeypatch.setattr(audit_file, "LOG_SECONDS", 0.05)
    read, write = os.pipe()
    made = log.Log("info", write)
    os.close(read)
    assert audit_file.AuditLog(made).write(some(1, 2)) == 2
    os.close(write)


def test_an_agent_that_logs_errors_only_logs_allocations(rig):
    rig.kubelet()
    agent = rig.agent(audit_file="", log_level="error")
    until(lambda: rig.numbers() == (8, 8))
    rig.ask("allocate", count=1, resource=RESOURCE, pod="logged")
    (event,) = until(lambda: agent.events("allocation"))
    assert event["pod"] == "logged" and agent.metric("audit_lines_total") == 1 and agent.metric("audit_lines_lost_total") == 0


def test_any_folder_that_can_be_written_will_do(rig):
    """As in a pod, where it is the one that the agent keeps its names in."""
    path = rig.folder / "state/audit.jsonl"
    rig.kubelet()
    rig.agent(audit_file=path).await_state("serving")
    rig.ask("allocate", count=1, resource=RESOURCE, pod="there")
    assert until(lambda: lines(path))[0]["pod"] == "there"


# --- what a line claims

@pytest.mark.parametrize(("second", "third", "notes"), [
    # The container after the init container: kubelet says that the pod has "a" already.
    ((["a", "b"], (["a", "b"], ["a"])), None, ["INIT", None]),
    # Kubelet did not ask what fits: it may be another pod's, and the line says so.
    ((["a"], None), None, ["LIKELY", None]),
    # "a" was free before, so it is another pod's.
    ((["a", "b"], (["a", "b"], [])), None, ["AGAIN", None]),
    # Another pod's init container got "a", then its container: what kubelet says then is of the second allocation, not of the first.
    ((["a"], None), (["a", "b"], (["a", "b"], ["a"])), ["LIKELY", "INIT", None]),
])
def test_a_pod_is_claimed_only_as_far_as_kubelet_told(audited, package, second, third, notes):
    from npu_agent import audit_match

    async def what(audit, _asked):
        for names, preferred in filter(None, ((["a"], None), second, third)):
            leave(audit, *names, preferred=preferred)
            await asyncio.sleep(0.01)
        while audit.counts["written"] < len(notes):
            await asyncio.sleep(0.01)

    last = (third or second)[0]
    _made, _asked, found = audited(what, rows=[row(package, "b", *last)])
    found.sort(key=lambda line: line["allocation"])
    known = {"INIT": audit_match.INIT, "LIKELY": audit_match.LIKELY, "AGAIN": audit_match.AGAIN.note, None: None}
    assert [line.get("note") for line in found] == [known[note] for note in notes]
    assert [line["pod"] for line in found] == [None if note == "AGAIN" else "b" for note in notes]
    assert "unless" in audit_match.LIKELY
