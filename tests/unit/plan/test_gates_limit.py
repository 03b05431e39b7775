# SPDX-License-Identifier: GPL-3.0-or-later
"""A look of a gate ends in its time whatever it hangs in, cleans up where it can, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import undisturbed, within


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


#: A module: it looks, and the look has something to take away.
MODULE = """import os, sys, time
from ansible_collections.npu.fleet.plugins.module_utils import _gates_limit as limit
from ansible_collections.npu.fleet.plugins.module_utils._command import run
def look():
    try:
        run(["sh", "-c", "echo $$ >command; echo >ready; sleep 600"], 600)
    finally:
        open("cleaned", "w").close()
if sys.argv[1] == "in order":
    limit.end_in_order()
try:
    limit.within(600, look)
finally:
    open("ended", "w").close()
"""


@pytest.mark.parametrize(("order", "number"), [
    ("in order", signal.SIGTERM), ("in order", signal.SIGHUP), ("none", signal.SIGKILL),
])
def test_a_module_that_is_ended_leaves_no_look_behind(tmp_path, order, number):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    module = subprocess.Popen([sys.executable, "-c", MODULE, order], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    try:
        assert there(tmp_path / "ready")
        module.send_signal(number)
        module.wait(60)
        assert gone(int((tmp_path / "command").read_text()))
        assert there(tmp_path / "cleaned")
        assert (tmp_path / "ended").exists() is (number != signal.SIGKILL)
    finally:
        module.kill()
        module.wait()


def there(path):
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return path.exists()


@pytest.mark.parametrize("late", [False, True])
def test_a_clean_up_that_has_begun_is_not_given_up_half_done(tmp_path, late):
    """Whether the time is over in it or before it."""
    def look():
        try:
            time.sleep(600 if late else 0)
        finally:
            with undisturbed():
                (tmp_path / "begun").touch()
                time.sleep(1.0)
                (tmp_path / "cleaned").touch()
        return "kept"

    looked = within(0.5, look, grace=60)
    assert looked.timed_out
    assert (tmp_path / "cleaned").exists()


def test_a_second_signal_does_not_end_the_clean_up_of_the_first(tmp_path):
    def look():
        try:
            time.sleep(600)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            (tmp_path / "cleaned").touch()

    within(0.3, look)
    assert (tmp_path / "cleaned").exists()
