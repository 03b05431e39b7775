# SPDX-License-Identifier: GPL-3.0-or-later
"""run(): deadline, process group, closed stdin, bounded output, locale."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _command
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

PY = sys.executable


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_dead(pid, seconds=5):
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_outputs_and_rc():
    result = _command.run([PY, "-c", "import sys; print('a'); sys.stderr.write('b'); sys.exit(3)"], 20)
    assert (result.rc, result.stdout, result.stderr, result.timed_out) == (3, "a\n", "b", False)
    assert result.argv[0] == PY
    assert 0 < result.seconds < 20


def test_locale_and_extra_environment(monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    code = "import os; print(os.environ['LC_ALL'], os.environ.get('LANGUAGE'), os.environ['X1'])"
    assert _command.run([PY, "-c", code], 20, env={"X1": "y"}).stdout == "C None y\n"


def test_stdin_is_closed_by_default():
    result = _command.run([PY, "-c", "import sys; print(repr(sys.stdin.read()))"], 20)
    assert result.stdout == "''\n"


@pytest.mark.parametrize("text", ["Y\n", "x" * 300000])
def test_stdin_text(text):
    result = _command.run([PY, "-c", "import sys; print(len(sys.stdin.read()))"], 20, stdin=text)
    assert result.stdout == f"{len(text)}\n"


def test_child_that_does_not_read_its_stdin():
    assert _command.run(["true"], 20, stdin="x" * 300000).rc == 0


def test_deadline_kills_the_whole_group(tmp_path):
    pidfile = tmp_path / "pid"
    script = 'sleep 300 & echo $! >"$1"; wait'
    started = time.monotonic()
    result = _command.run(["sh", "-c", script, "sh", str(pidfile)], 0.5)
    assert result.timed_out
    assert result.rc == -9
    assert time.monotonic() - started < 5
    assert wait_dead(int(pidfile.read_text()))


def test_a_daemon_that_holds_the_pipe_does_not_hold_us(tmp_path):
    pidfile = tmp_path / "pid"
    started = time.monotonic()
    result = _command.run(["sh", "-c", 'sleep 300 & echo $! >"$1"; echo done', "sh", str(pidfile)], 30)
    assert (result.rc, result.stdout, result.timed_out) == (0, "done\n", False)
    assert time.monotonic() - started < 10
    pid = int(pidfile.read_text())
    assert alive(pid), "a daemon that a good command started must live on"
    os.kill(pid, 9)


def test_output_is_a_tail():
    code = "import sys\nfor i in range(200000): print(i)\nprint('end')"
    result = _command.run([PY, "-c", code], 60, limit=1000)
    assert len(result.stdout) == 1000
    assert result.stdout.endswith("199999\nend\n")


def test_endless_output_stops_at_the_deadline():
    result = _command.run(["yes"], 0.5, limit=100)
    assert result.timed_out
    assert len(result.stdout) == 100


def test_bytes_that_are_not_utf8():
    assert _command.run([PY, "-c", r"import sys; sys.stdout.buffer.write(b'\xff')"], 20).stdout == "\ufffd"


@pytest.mark.parametrize(
    ("argv", "cwd", "code"),
    [
        (["/nonexistent/npu-smi"], None, "command_missing"),
        (["npu-fleet-no-such-command"], None, "command_missing"),
        (["/etc/passwd"], None, "command_not_started"),
        (["true"], "/nonexistent/folder", "folder_missing"),
        ([], None, "command_invalid"),
        (["true", 1], None, "command_invalid"),
        (["true", "a\0b"], None, "command_invalid"),
    ],
)
def test_can_not_start(argv, cwd, code):
    with pytest.raises(FleetError) as caught:
        _command.run(argv, 5, cwd=cwd)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\x1b[31m[ERROR]\x1b[0mno\r\n", "[ERROR]no\n"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b[1;33;40mx\x1b[K", "x"),
        ("plain [Driver] text", "plain [Driver] text"),
    ],
)
def test_strip_escapes(text, clean):
    assert _command.strip_escapes(text) == clean


class Ended(Exception):
    pass


@pytest.mark.parametrize("argv", [["sleep", "600"], ["/nowhere/there"]])
def test_a_signal_while_it_is_being_started_leaves_nothing_behind(monkeypatch, argv):
    """Popen itself would let go of the process, and nobody would know its number."""
    started, usual = [], subprocess.Popen

    class Signalled(usual):
        def _execute_child(self, *arguments):
            try:
                usual._execute_child(self, *arguments)
            finally:
                started.append(self.pid if self._child_created else None)
                os.kill(os.getpid(), signal.SIGTERM)

    def end(_number, _frame):
        raise Ended

    monkeypatch.setattr(_command.subprocess, "Popen", Signalled)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(Ended):
            _command.run(argv, 60)
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(started) == 1
    if started[0]:
        with pytest.raises(ProcessLookupError):
            os.kill(started[0], 0)
