# SPDX-License-Identifier: GPL-3.0-or-later
"""A look of a gate ends in its time whatever it hangs in, cleans up where it can, and leaves no process behind."""

import os
import signal
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import within


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid):
    """Whether it goes within a generous time."""
    until = time.monotonic() + 20
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def test_what_it_returns_comes_back():
    looked = within(20, lambda: {"chips": ["x" * 300_000], "n": None})
    assert looked.value == {"chips": ["x" * 300_000], "n": None}
    assert not looked.timed_out


def test_it_can_change_nothing_here():
    seen = []
    within(20, lambda: seen.append(1))
    assert seen == []


def test_its_error_is_raised_with_all_fields():
    def look():
        raise FleetError("No.", "no", phase="ask", object="o", observed=[1], hint="Do it.")

    with pytest.raises(FleetError) as caught:
        within(20, look)
    assert caught.value.as_dict() == {"message": "No.", "code": "no", "phase": "ask", "object": "o", "observed": [1], "hint": "Do it."}


@pytest.mark.parametrize(("look", "words"), [(lambda: 1 / 0, "ZeroDivisionError"), (lambda: os._exit(3), "without an answer")])
def test_a_fault_of_ours_is_an_error_in_words(look, words):
    with pytest.raises(FleetError, match=words) as caught:
        within(20, look)
    assert caught.value.code == "gate_look_failed"


def test_one_that_hangs_is_given_up_and_cleans_up(tmp_path):
    def look():
        try:
            time.sleep(600)
        finally:
            (tmp_path / "cleaned").touch()

    looked = within(0.3, look)
    assert looked.timed_out
    assert looked.value is None
    assert 0.3 <= looked.seconds < 60
    assert (tmp_path / "cleaned").exists()


def test_one_that_does_not_let_go_is_killed_with_all_that_it_started(tmp_path):
    """The command is in a session of its own, as all of ours are."""
    def look():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / "look").write_text(str(os.getpid()))
        # Its parent ends at once, so that it is nobody's child any more; it is still of the command's group.
        run(["sh", "-c", f"cd '{tmp_path}'; (sleep 600 & echo $! >orphan); echo $$ >command; sleep 600"], 600)

    looked = within(3, look, grace=0.2)
    assert looked.timed_out
    for name in ("look", "command", "orphan"):
        assert gone(int((tmp_path / name).read_text()))


def test_a_command_that_it_waits_for_ends_with_it(tmp_path):
    within(1.5, lambda: run(["sh", "-c", f"echo $$ >'{tmp_path}'/command; sleep 600"], 600)._asdict())
    assert gone(int((tmp_path / "command").read_text()))
