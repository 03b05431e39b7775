# SPDX-License-Identifier: GPL-3.0-or-later
"""The operator's own program: how it is run, what it may say, and that it holds up nothing. The programs here are real ones."""

import contextlib
import os
import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_rig import private_folder

LONG = 30  # seconds, for what must not hang


@pytest.fixture(scope="module")
def agent(package):
    import npu_agent.look
    import npu_agent.probe

    return npu_agent


class Rig:
    """A program, a prober that is not started, and what it logged."""

    def __init__(self, agent, folder, **settings):
        self.agent, self.folder, self.path, self.events, self.changes = agent, folder, folder / "probe", [], 0
        values = {"probe": str(self.path), "probe_period": 60.0, "probe_timeout": 5.0, **settings}
        self.prober = agent.probe.Prober(SimpleNamespace(**values), self.log, self.changed)

    def log(self, event, level="info", **fields):
        self.events.append((event, level, fields))

    def changed(self):
        self.changes += 1

    def program(self, body, mode=0o755):
        self.path.write_text(f"#!/bin/sh\n{body}\n")
        self.path.chmod(mode)

    def see(self, *phy_ids, complete=True, **changes):
        sight = self.agent.look.Sight(True, [record(phy_id, **changes) for phy_id in phy_ids], [], complete, ())
        return [chip["probe"] for chip in self.prober.attach(sight).chips]

    def ask(self, phy_id=0):
        """One run, here and now."""
        chip = record(phy_id)
        self.prober.settle(self.agent.probe.key_of(chip), chip)
        return self.prober.results.get(self.agent.probe.key_of(chip))

    def problems(self):
        return [fields["problem"] for event, _level, fields in self.events if event == "probe failed"]


def record(phy_id, **changes):
    return {"phy_id": phy_id, "pci_address": f"0000:{phy_id:02x}:00.0", "family": "a2", "driver_bound": True, "device_node_present": True,
            "dropped": False, "hung": None, **changes}


@pytest.fixture
def folder():
    """Not below /tmp: no program is run from a folder where others may write."""
    with private_folder() as path:
        yield Path(path)


@pytest.fixture
def rig(agent, folder):
    made = []

    def make(**settings):
        made.append(Rig(agent, folder, **settings))
        return made[-1]

    yield make
    for one in made:
        one.prober.stop()


# --- what it may say

@pytest.mark.parametrize(("body", "result"), [
    ("exit 0", {"healthy": True, "text": ""}),
    ("echo all is well; exit 0", {"healthy": True, "text": ""}),
    ("echo 'matmul gave 3'; echo more; exit 1", {"healthy": False, "text": "matmul gave 3"}),
    ("echo 'on the other stream' >&2; exit 1", {"healthy": False, "text": "on the other stream"}),
    ("exit 1", {"healthy": False, "text": ""}),
    ("printf '\\n\\n  a\\tb\\033[31m \\377\\n'; exit 1", {"healthy": False, "text": "a?b?[31m \ufffd"}),
    ("printf '%0500d' 7; exit 1", {"healthy": False, "text": "0" * 200}),
    ("head -c 300000 /dev/zero | tr '\\0' x; exit 1", {"healthy": False, "text": "x" * 200}),
    ("exec >&- 2>&-; exit 1", {"healthy": False, "text": ""}),
])
def test_answers(rig, body, result):
    one = rig()
    one.program(body)
    assert one.ask() == result and one.events == [] and one.changes == 1
    assert one.ask() == result and one.changes == 1


def test_no_more_output_is_kept_than_needed(agent):
    ours, end = os.pipe()
    output = b""
    for _ in range(20):
        os.write(end, b"x" * 1000)
        output = agent.probe.drain(ours, output, 0)
    os.close(end)
    assert output == b"x" * agent.probe.KEPT_BYTES
    assert agent.probe.drain(ours, output, 0) == output
    os.close(ours)


@pytest.mark.parametrize(("body", "words"), [
    ("echo no such chip; exit 2", "it ended with 2: no such chip"),
    ("exit 127", "it ended with 127"),
    ("kill -SEGV $$", "it ended with -11"),
])
def test_anything_else_says_nothing(rig, body, words):
    one = rig()
    one.program(body)
    assert one.ask() is None and one.ask() is None
    assert one.problems() == [words] and one.changes == 0  # logged once
    one.program("exit 0")
    assert one.ask()["healthy"]
    one.program(body)
    assert one.ask() is None and one.problems() == [words, words] and one.changes == 2


def test_a_chip_does_not_get_well_because_the_program_breaks(rig):
    one = rig()
    one.program("echo bad; exit 1")
    assert one.ask() == {"healthy": False, "text": "bad"}
    one.program("exit 3")
    assert one.ask() == {"healthy": False, "text": "bad"} and one.problems() == ["it ended with 3"] and one.changes == 1
    one.program("exit 0")
    assert one.ask()["healthy"] and one.changes == 2


@contextlib.contextmanager
def input_that_never_ends():
    """On this process's own standard input."""
    (ours, end), before = os.pipe(), os.dup(0)
    os.dup2(ours, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        for descriptor in (ours, end, before):
            os.close(descriptor)


def test_how_it_is_run(rig, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    one = rig()
    one.program(f"""cd {tmp_path}
echo "$# $1 $2 $3 $4 $5 $6" > argv; env > env; echo "$OLDPWD" > cwd; cat > input
ls /proc/self/fd > files; cut -d' ' -f5,6 /proc/$$/stat > ids; echo $$ >> ids""")
    with input_that_never_ends():
        assert one.ask(3)["healthy"]
    assert (tmp_path / "argv").read_text().split() == ["6", "--phy-id", "3", "--pci-address", "0000:03:00.0", "--family", "a2"]
    names = {line.split("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names - {"PWD", "_", "SHLVL", "OLDPWD"} == {"PATH", "LC_ALL"} and "LC_ALL=C" in (tmp_path / "env").read_text()
    assert (tmp_path / "cwd").read_text() == "/\n" and (tmp_path / "input").read_text() == ""
    assert set((tmp_path / "files").read_text().split()) <= {"0", "1", "2", "3"}  # 3 is ls reading the folder
    ids = (tmp_path / "ids").read_text().split()
    assert len(set(ids)) == 1 and int(ids[0]) != os.getpgid(0)  # leads a group and a session


def test_an_address_that_is_not_known(agent, rig, tmp_path):
    one = rig()
    one.program(f'echo "<$4>" > {tmp_path}/address')
    chip = record(0, pci_address=None)
    one.prober.settle(agent.probe.key_of(chip), chip)
    assert (tmp_path / "address").read_text() == "<>\n"


# --- what is not run at all

@pytest.mark.parametrize(("mode", "words"), [
    (0o775, "has mode 0775"), (0o757, "has mode 0757"), (0o644, "is no program: `chmod +x"),
])
def test_a_program_that_others_may_change_is_refused(rig, mode, words):
    one = rig()
    one.program("exit 0", mode)
    assert one.ask() is None and words in one.problems()[0]


def test_a_program_that_is_not_there(rig, folder):
    one = rig()
    assert one.ask() is None and "No such file" in one.problems()[0]
    one.path.mkdir()
    assert one.ask() is None and "is no program" in one.problems()[1]
    one.path.rmdir()
    one.path.write_text("no interpreter")
    one.path.chmod(0o755)
    assert one.ask() is None and "cannot be started" in one.problems()[2]
    one.path.unlink()
    (folder / "open").mkdir(mode=0o777)
    (folder / "open").chmod(0o777)
    (folder / "open/real").write_text("#!/bin/sh\n")
    (folder / "open/real").chmod(0o755)
    one.path.symlink_to("open/real")
    assert one.ask() is None and "/open has mode 0777" in one.problems()[3]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_program_of_another_user_is_refused(rig):
    one = rig()
    one.program("exit 0")
    os.chown(one.path, 12345, -1)
    assert one.ask() is None and "belongs to user 12345" in one.problems()[0]


# --- what does not come back

def gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def until(condition, what):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"not within {LONG} s: {what}"
        time.sleep(0.01)


def test_a_run_that_takes_too_long_is_killed_with_what_it_started(rig, tmp_path):
    one = rig(probe_timeout=0.3)
    one.program(f"trap '' TERM INT HUP\nsleep 1000 & echo $! > {tmp_path}/child\necho $$ > {tmp_path}/pid\nwait; wait")
    assert one.ask() is None and one.problems() == ["it took longer than 0.3 s"]
    for name in ("child", "pid"):
        until(lambda name=name: gone((tmp_path / name).read_text().strip()), f"the end of {name}")


def test_what_a_run_leaves_behind_is_killed(rig, tmp_path):
    """It has the output open, too: the end of the program counts, not that of its output."""
    one = rig()
    one.program(f"sleep 1000 & echo $! > {tmp_path}/child; echo why; exit 1")
    assert one.ask() == {"healthy": False, "text": "why"}
    until(lambda: gone((tmp_path / "child").read_text().strip()), "the end of the child")


def test_a_run_that_cannot_be_killed_is_left_and_its_chip_not_asked_again(agent, rig, tmp_path, monkeypatch):
    """A process that sleeps in the kernel cannot be had here; one whose group is not killed comes to the same."""
    one = rig(probe_timeout=0.2)
    one.program(f"echo x >> {tmp_path}/runs\n[ $2 = 0 ] && exec sleep 1000\nexit 0")
    kill = os.killpg
    monkeypatch.setattr(agent.probe.os, "killpg", lambda group, number: None)
    monkeypatch.setattr(agent.probe, "DIE_SECONDS", 0.1)
    assert one.ask(0) is None
    left = one.prober.stuck[agent.probe.key_of(record(0))]
    try:
        assert one.ask(0) is None and one.ask(0) is None
        assert one.problems() == ["it took longer than 0.2 s", f"process {left.pid} of an earlier run cannot be killed"]
        assert one.ask(1)["healthy"] and len(one.prober.stuck) == 1
        assert (tmp_path / "runs").read_text() == "x\nx\n"
    finally:
        kill(left.pid, 9)
        left.wait()
    monkeypatch.setattr(agent.probe.os, "killpg", kill)
    one.program("exit 0")
    assert one.ask(0)["healthy"] and one.prober.stuck == {}


def test_nothing_is_left_open(rig):
    one = rig(probe_timeout=0.1)
    before = len(os.listdir("/proc/self/fd"))
    for body in ("exit 0", "exit 5", "exec sleep 1000"):
        one.program(body)
        one.ask()
    one.path.write_text("no interpreter")
    one.ask()
    assert len(os.listdir("/proc/self/fd")) == before


# --- when, and for which chips

@pytest.mark.parametrize(("chips", "ran", "now", "wanted"), [
    ("", {}, 5, (None, None)),
    ("ab", {}, 5, ("a", 0)),
    ("ab", {"a": 5}, 5, ("b", 0)),
    ("ab", {"a": 5, "b": 6}, 10, (None, 5)),
    ("ab", {"a": 5, "b": 6}, 15, ("a", 0)),
    ("ab", {"a": 6, "b": 5}, 99, ("b", 0)),
    ("a", {"a": 5, "b": 0}, 10, (None, 5)),
])
def test_pick(agent, chips, ran, now, wanted):
    assert agent.probe.pick(dict.fromkeys(chips), ran, now, 10) == wanted


@pytest.mark.parametrize(("changes", "asked"), [
    ({}, True), ({"driver_bound": None, "device_node_present": None}, True), ({"driver_bound": False}, False),
    ({"device_node_present": False}, False), ({"dropped": True}, False), ({"hung": 0.1}, False),
])
def test_which_chips_are_asked(agent, changes, asked):
    assert agent.probe.askable(record(0, **changes)) is asked


def test_records_get_what_was_said(rig):
    one = rig()
    assert one.see(0, 1) == [None, None]
    one.program("echo bad; exit $2")
    one.ask(0)
    one.ask(1)
    bad = {"healthy": False, "text": "bad"}
    assert one.see(0, 1) == [{"healthy": True, "text": ""}, bad]
    assert one.see(1, hung=3) == [bad]  # kept, though it is not asked
    assert one.see(0, 1, complete=False) == [None, bad]  # the first was gone from a complete sight
    assert one.see(0, complete=False) == [None] and one.see(0, 1) == [None, bad]


def test_without_a_program_nothing_happens(rig):
    one = rig(probe="")
    sight = one.agent.look.Sight(True, [record(0)], [], True, ())
    assert one.prober.attach(sight) is sight
    one.prober.start()
    assert one.prober.thread is None


class Calls:
    """Stands for runs: tells which chip is asked, answers when told to."""

    def __init__(self, prober):
        self.asked, self.answers = queue.Queue(), queue.Queue()
        prober.ask = self.ask

    def ask(self, key, _record):
        self.asked.put(key[0])
        return self.answers.get(timeout=LONG)


def test_one_run_at_a_time_and_every_chip_in_turn(rig):
    one = rig(probe_period=0.05)
    calls = Calls(one.prober)
    one.prober.start()
    one.see(0, 1, 2)
    seen = []
    for _ in range(9):
        seen.append(calls.asked.get(timeout=LONG))
        assert calls.asked.empty()
        calls.answers.put({"healthy": True, "text": ""})
    assert seen == [0, 1, 2] * 3
    calls.asked.get(timeout=LONG)
    calls.answers.put(None)


def test_a_new_chip_is_asked_at_once(rig):
    one = rig(probe_period=3600)
    calls = Calls(one.prober)
    for _ in range(4):
        calls.answers.put({"healthy": True, "text": ""})
    one.prober.start()
    one.see(0)
    assert calls.asked.get(timeout=LONG) == 0
    one.see(0, 1)
    assert calls.asked.get(timeout=LONG) == 1
    one.see(0, 1, driver_bound=False)
    one.see(0, driver_bound=True)  # back again
    assert calls.asked.get(timeout=LONG) == 0


def test_looking_does_not_wait_for_a_run(rig):
    one = rig()
    calls = Calls(one.prober)
    one.prober.start()
    one.see(0)
    calls.asked.get(timeout=LONG)
    done = threading.Event()
    looker = threading.Thread(target=lambda: (one.see(0, 1), done.set()), daemon=True)
    looker.start()
    assert done.wait(LONG)
    calls.answers.put({"healthy": False, "text": "bad"})
    calls.answers.put({"healthy": True, "text": ""})
    until(lambda: one.changes == 2, "both answers")
    assert one.see(0, 1) == [{"healthy": False, "text": "bad"}, {"healthy": True, "text": ""}]


def test_a_fault_of_ours_ends_no_thread(rig):
    one = rig(probe_period=0.02)
    one.prober.ask = lambda key, record: 1 / 0
    one.prober.start()
    one.see(0)
    until(one.problems, "the log")
    one.program("exit 0")
    del one.prober.ask
    until(lambda: one.see(0)[0], "an answer")
    assert one.problems() == ["ZeroDivisionError('division by zero')"]


def test_stop_ends_a_run_and_says_nothing(rig, tmp_path):
    one = rig(probe_timeout=600)
    one.program(f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 1000")
    one.prober.start()
    one.see(0)
    until((tmp_path / "pid").exists, "the run")
    one.prober.stop()
    one.prober.thread.join(LONG)
    assert not one.prober.thread.is_alive()
    until(lambda: gone((tmp_path / "pid").read_text().strip()), "the end of the run")
    assert one.events == [] and one.changes == 0
