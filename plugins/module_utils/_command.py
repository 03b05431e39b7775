# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only place on a node that starts a process. Private to the collection.

``run`` is for short commands that are waited for. ``_detached.run_vendor`` is for package installers, which must survive us.
``run_command``, which Ansible's own check asks for, needs an AnsibleModule; most callers here have none.
"""

import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

Result = namedtuple("Result", "argv rc stdout stderr timed_out seconds")

# After the process itself has ended a child of it may still hold the pipes (a started daemon). Read what is there, then go.
_DRAIN_SECONDS = 0.5
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class _Tail(object):
    """Keeps the last ``limit`` bytes of a stream."""

    def __init__(self, limit):
        self._limit = limit
        self._chunks = []
        self._size = 0

    def add(self, data):
        self._chunks.append(data)
        self._size += len(data)
        if self._size > 2 * self._limit:
            self._chunks = [self.value()]
            self._size = len(self._chunks[0])

    def value(self):
        return b"".join(self._chunks)[-self._limit:]


def strip_escapes(text):
    """Return ``text`` without terminal escape codes and carriage returns (driver package, measured: colours even without a TTY)."""
    return _ESCAPES.sub("", text).replace("\r", "")


def clean_environment(extra=None):
    """Return the environment for a child: ours, in the C locale, plus ``extra``."""
    env = dict(os.environ)
    for name in ("LANGUAGE", "LANG"):
        env.pop(name, None)
    env["LC_ALL"] = "C"
    env.update(extra or {})
    return env


def check_argv(argv, cwd=None):
    """Raise FleetError when ``argv`` or ``cwd`` can not be used to start a process."""
    if not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise FleetError("A command must be a list of words.", "command_invalid", object=repr(argv))
    if cwd is not None and not os.path.isdir(cwd):
        raise FleetError("The folder %s, where %s should run, does not exist." % (cwd, argv[0]), "folder_missing", object=cwd)


def start_error(error, program):
    """Return the FleetError for an OSError of starting ``program``."""
    if isinstance(error, FileNotFoundError):
        message, code = "The command %s was not found." % program, "command_missing"
    else:
        message, code = "The command %s could not be started: %s." % (program, error), "command_not_started"
    return FleetError(message, code, object=program, observed=str(error))


class Held(object):
    """Signals that wait until deliver(), for the main thread. What is started meanwhile does not have them blocked."""

    def __init__(self, numbers):
        self._came = []
        self._before = {number: signal.signal(number, lambda number, _frame: self._came.append(number)) for number in numbers}

    def restore(self):
        """What comes from now on waits no longer."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def deliver(self):
        """The first one that came counts now."""
        self.restore()
        if self._came:
            os.kill(os.getpid(), self._came[0])


def _raising():
    """The signals that end us whose handlers may raise: while a process is being started nobody could end it."""
    if threading.current_thread() is not threading.main_thread():  # handlers are its alone
        return []
    return [number for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT) if callable(signal.getsignal(number))]


def run(argv, timeout, env=None, cwd=None, *, stdin=None, limit=1 << 20):
    """Run ``argv`` to its end, or kill it and all of its process group after ``timeout`` seconds.

    Standard input is closed unless the text ``stdin`` is given. Of each output the last ``limit`` bytes are kept.
    A timeout is a result (``timed_out``), not an exception: the caller knows what it means.
    """
    argv = list(argv)
    check_argv(argv, cwd)
    started, held = time.monotonic(), Held(_raising())
    try:
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        held.deliver()
        raise start_error(error, argv[0]) from error
    outputs = {process.stdout: _Tail(limit), process.stderr: _Tail(limit)}
    try:
        held.deliver()
        timed_out = _pump(process, outputs, (stdin or "").encode("utf-8"), started + timeout)
    finally:
        # Also when an exception or a signal ends us: never leave the group behind.
        if process.poll() is None:
            kill_group(process.pid)
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                _close(stream)
    stdout, stderr = (outputs[stream].value().decode("utf-8", "replace") for stream in (process.stdout, process.stderr))
    return Result(argv, process.returncode, stdout, stderr, timed_out, time.monotonic() - started)


def spawn(argv, env, cwd, stdin, output):
    """Start ``argv`` in a session of its own with these open files, and return it; for a caller that waits by itself."""
    return subprocess.Popen(  # pylint: disable=ansible-bad-function
        argv, stdin=stdin, stdout=output, stderr=output, env=env, cwd=cwd, start_new_session=True,
    )


def kill_group(pgid):
    """Kill a process group that we made; no error when it is gone."""
    try:
        os.killpg(pgid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _close(stream):
    try:
        stream.close()
    except OSError:
        pass


def _pump(process, outputs, pending, deadline):
    """Move bytes until the process has ended; return True when the deadline came first."""
    drain_until = None
    with selectors.DefaultSelector() as selector:
        for stream in outputs:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while True:
            now = time.monotonic()
            if drain_until is None and process.poll() is not None:
                drain_until = now + _DRAIN_SECONDS
            if drain_until is not None and (now >= drain_until or not _readers(selector, outputs)):
                return False
            if now >= deadline:
                return drain_until is None
            if not selector.get_map():
                time.sleep(min(0.01, deadline - now))
                continue
            for key, _events in selector.select(min(0.05, deadline - now)):
                if key.fileobj in outputs:
                    data = _read(key.fileobj)
                    if data:
                        outputs[key.fileobj].add(data)
                    elif data == b"":
                        selector.unregister(key.fileobj)
                else:
                    pending = _write(key.fileobj, pending)
                    if not pending:
                        selector.unregister(key.fileobj)
                        _close(key.fileobj)


def _readers(selector, outputs):
    return any(key.fileobj in outputs for key in selector.get_map().values())


def _read(stream):
    try:
        return os.read(stream.fileno(), 65536)
    except BlockingIOError:
        return None


def _write(stream, pending):
    try:
        return pending[os.write(stream.fileno(), pending[:4096]):] if pending else b""
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        return b""
