# SPDX-License-Identifier: GPL-3.0-or-later
"""run_vendor() without systemd: survives its caller, attaches, deadline, endless output; and the reading of a unit's state."""

import json
import os
import subprocess
import sys
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _detached
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError


@pytest.fixture(autouse=True)
def _no_systemd(monkeypatch):
    monkeypatch.setattr(_detached, "_systemd_version", lambda: 0)


@pytest.fixture
def place(tmp_path):
    class Place:
        state = str(tmp_path / "state")
        log = str(tmp_path / "logs" / "run.log")
        folder = str(tmp_path)

        def run(self, script, timeout=20, **kwargs):
            words = ["sh", "-c", script, "sh", self.folder]
            return _detached.run_vendor(words, "npu-fleet-test", self.log, timeout, state_dir=self.state, **kwargs)

        def read_log(self):
            with open(self.log, encoding="utf-8") as stream:
                return stream.read()

    return Place()


def gone(pid, seconds=5):
    end = time.monotonic() + seconds
    while _detached._start_time(pid) is not None and time.monotonic() < end:
        time.sleep(0.02)
    return _detached._start_time(pid) is None


def wait_for(path, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.path.exists(path) and os.path.getsize(path):
            with open(path, encoding="utf-8") as stream:
                return stream.read()
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear")


@pytest.mark.parametrize("rc", [0, 1, 2, 15])
def test_code_and_log(place, rc):
    run = place.run(f"echo out; echo err >&2; exit {rc}")
    assert run == ("npu-fleet-test", "exited", rc, place.log, False)
    assert sorted(place.read_log().split()) == ["err", "out"]
    assert os.listdir(place.state) == []


def test_killed_by_itself(place):
    assert place.run("kill -9 $$").rc == -9


def test_input_is_empty_or_the_answer(place):
    assert place.run("cat; echo end").rc == 0
    assert place.read_log() == "end\n"
    place.run("read answer; echo got $answer", stdin="Y\n")
    assert place.read_log().endswith("got Y\n")
    assert os.listdir(place.state) == []


def test_environment_is_small(place, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy")
    place.run('echo "$LC_ALL $TMPDIR $https_proxy"', env={"TMPDIR": "/x"}, cwd=place.folder)
    assert place.read_log() == "C /x \n"


def test_deadline_kills_the_children_too(place):
    run = place.run('sleep 300 & echo $! >"$1/pid"; wait', timeout=0.7)
    assert (run.state, run.rc) == ("killed", -9)
    assert gone(int(wait_for(place.folder + "/pid")))


def test_deadline_kills_other_groups_of_the_session_too(place):
    other = "import os, time; os.setpgid(0, 0); open('$1/pid', 'w').write(str(os.getpid())); time.sleep(300)"
    assert place.run(f'{sys.executable} -c "{other}" & wait', timeout=2).state == "killed"
    assert gone(int(wait_for(place.folder + "/pid")))


def test_orphans_of_a_failure_are_ended_and_of_a_success_live(place):
    place.run('sleep 300 & echo $! >"$1/pid"; exit 1')
    assert gone(int(wait_for(place.folder + "/pid")))
    place.run('sleep 300 & echo $! >"$1/pid2"; exit 2')
    pid = int(wait_for(place.folder + "/pid2"))
    assert not gone(pid, 0.3)
    os.kill(pid, 9)


def test_endless_question(place, monkeypatch):
    monkeypatch.setattr(_detached, "_LOG_LIMIT", 100000)
    assert place.run("yes input error, please input again").state == "flooded"


def test_firmware_is_left_alone_and_the_next_run_attaches(place):
    script = 'echo once >>"$1/starts"; until [ -e "$1/go" ]; do sleep 0.05; done; exit 0'
    first = place.run(script, timeout=0.5, kill_at_deadline=False)
    assert (first.state, first.rc, first.attached) == ("running", None, False)
    assert _detached.vendor_running("npu-fleet-test", place.state)
    with open(place.folder + "/go", "w"):
        pass
    other = _detached.run_vendor(["false"], "npu-fleet-test", "/nonexistent/log", 20, state_dir=place.state)
    assert (other.state, other.rc, other.log, other.attached) == ("exited", 0, place.log, True)
    assert wait_for(place.folder + "/starts") == "once\n"
    assert not _detached.vendor_running("npu-fleet-test", place.state)


def test_a_poll_ends_before_the_package(place):
    script = 'until [ -e "$1/go" ]; do sleep 0.05; done; exit 2'
    first = place.run(script, poll=0.3, owner={"component": "driver"})
    assert (first.state, first.rc) == ("running", None)
    note = _detached.vendor_note("npu-fleet-test", place.state)
    assert (note["log"], note["owner"]) == (place.log, {"component": "driver"})
    assert _detached.follow_vendor("npu-fleet-test", "/x", 20, state_dir=place.state, poll=0.3).state == "running"
    with open(place.folder + "/go", "w"):
        pass
    last = _detached.follow_vendor("npu-fleet-test", "/x", 20, state_dir=place.state, poll=10)
    assert last == ("npu-fleet-test", "exited", 2, place.log, True)
    assert _detached.follow_vendor("npu-fleet-test", "/x", 20, state_dir=place.state) is None
    assert _detached.vendor_note("npu-fleet-test", place.state) == {}


def test_an_end_that_nobody_saw_is_told_to_who_comes_back(place):
    assert place.run("sleep 0.5; exit 7", poll=0.1).state == "running"
    while _detached.vendor_running("npu-fleet-test", place.state):
        time.sleep(0.05)
    assert _detached.follow_vendor("npu-fleet-test", "/x", 20, state_dir=place.state) == ("npu-fleet-test", "exited", 7, place.log, True)


def test_the_time_is_up_while_polling(place):
    assert place.run("sleep 300", poll=0.2).state == "running"
    assert _detached.follow_vendor("npu-fleet-test", "/x", 0.3, state_dir=place.state, poll=60).state == "killed"


def test_it_survives_the_death_of_its_caller(place):
    code = (
        "import sys; sys.path[:0] = sys.argv[1].split(':')\n"
        "from ansible_collections.npu.fleet.plugins.module_utils import _detached\n"
        "_detached._systemd_version = lambda: 0\n"
        "_detached.run_vendor(['sh', '-c', 'until [ -e \"$0/go\" ]; do sleep 0.05; done; echo ok >\"$0/done\"', sys.argv[2]],"
        " 'npu-fleet-test', sys.argv[2] + '/logs/run.log', 60, state_dir=sys.argv[2] + '/state')\n"
    )
    paths = ":".join(path for path in sys.path if path)
    caller = subprocess.Popen([sys.executable, "-c", code, paths, place.folder], start_new_session=True)
    wait_for(place.state + "/npu-fleet-test.json")
    os.killpg(caller.pid, 9)
    caller.wait()
    with open(place.folder + "/go", "w"):
        pass
    assert wait_for(place.folder + "/done") == "ok\n"


def test_a_note_of_a_dead_supervisor_does_not_count(place):
    os.makedirs(place.state)
    with open(place.state + "/npu-fleet-test.json", "w", encoding="utf-8") as stream:
        json.dump({"log": "/x", "pid": os.getpid(), "start": 1, "child": 2**22 + 1}, stream)
    assert not _detached.vendor_running("npu-fleet-test", place.state)
    assert place.run("exit 0").rc == 0


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_broken_note(place, text):
    os.makedirs(place.state)
    with open(place.state + "/npu-fleet-test.json", "w", encoding="utf-8") as stream:
        stream.write(text)
    assert place.run("exit 0") == ("npu-fleet-test", "exited", 0, place.log, False)


def test_what_can_not_start(place):
    with pytest.raises(FleetError) as caught:
        _detached.run_vendor(["/nonexistent.run"], "npu-fleet-test", place.log, 5, state_dir=place.state)
    assert caught.value.code == "command_not_started"
    assert os.listdir(place.state) == []
    with pytest.raises(FleetError):
        _detached.run_vendor(["true"], "../x", place.log, 5, state_dir=place.state)


FAILED_BY_KILL = {"ActiveState": "failed", "SubState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9"}


def properties(**given):
    base = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success", "ExecMainCode": "0"}
    base.update({"ExecMainStatus": "0", "KillMode": "control-group"}, **given)
    return base


@pytest.mark.parametrize(
    ("given", "state", "rc"),
    [
        ({"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}, "absent", None),
        ({}, "running", None),
        ({"ActiveState": "activating", "SubState": "start"}, "running", None),
        ({"ActiveState": "deactivating", "SubState": "stop-sigterm", "ExecMainCode": "1", "ExecMainStatus": "1"}, "running", None),
        ({"SubState": "exited", "ExecMainCode": "1"}, "finished", 0),
        ({"SubState": "exited", "ExecMainCode": "1", "ExecMainStatus": "2"}, "finished", 2),
        ({"ActiveState": "failed", "SubState": "failed", "ExecMainCode": "1", "ExecMainStatus": "1"}, "finished", 1),
        ({"ActiveState": "failed", "SubState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9", "Result": "signal"}, "finished", -9),
        ({"ActiveState": "failed", "SubState": "failed", "ExecMainCode": "2", "ExecMainStatus": "15", "Result": "timeout"}, "timeout", -15),
        ({"ActiveState": "failed", "SubState": "failed", "Result": "resources"}, "lost", None),
        (dict(FAILED_BY_KILL, KillMode="process", members=["1272"]), "running", None),
        ({"SubState": "exited", "ExecMainCode": "1", "KillMode": "process", "members": ["1272"]}, "finished", 0),
        (dict(FAILED_BY_KILL, KillMode="process"), "finished", -9),
        (dict(FAILED_BY_KILL, members=["1272"]), "finished", -9),
    ],
)
def test_unit_status(given, state, rc):
    given = dict(given)
    members = given.pop("members", [])
    assert _detached.unit_status(properties(**given), lambda: members) == (state, rc)
