# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A look that can be given up. Private to the collection.

Each look of a gate runs in a process of its own: a driver's call that never comes back, a stuck file system or an engine that hangs holds
up that process, never the gates. When its time is over it is asked to end, so that what it has made (containers, commands) is taken away by
the look itself; what is still there after that is killed, with all that it has started. The same happens where we are ended ourselves: by a
signal that `end_in_order` has made an exception of, or by one that nobody can catch, which the kernel tells the look (prctl(2)).
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import time
import traceback
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.module_utils._command import Held, kill_group
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

#: value: what the look returned, as JSON gives it back; None where it was given up.
Looked = namedtuple("Looked", "value seconds timed_out")
#: Seconds in which a look that is given up may clean up.
GRACE = 5.0
#: A process in the kernel's uninterruptible sleep cannot be killed; nobody waits for it longer than that.
_KILLED_SECONDS = 1.0
#: What ends a module: Ansible's own time limit, and a connection that is gone.
ENDING = (signal.SIGTERM, signal.SIGHUP)
#: Seconds in which a look whose parent is gone may clean up.
_ORPHAN_SECONDS = 60
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class GivenUp(BaseException):
    """Its time is over. No Exception, so that nothing on the way takes it for an error of its own."""


def end_in_order():
    """For the main program of a module: let the signals that end it be an exception, so that looks and what they made are taken away."""
    for number in ENDING:
        signal.signal(number, _give_up)


@contextlib.contextmanager
def undisturbed():
    """Nobody gives this up half done: a clean-up that has begun. What is called in it has to have a bound of its own; a signal that came
    meanwhile counts afterwards. Whoever waits for us still kills us when its patience is over."""
    held = Held(ENDING)
    try:
        yield
    finally:
        held.restore()
    held.deliver()


def within(seconds, look, grace=GRACE):
    """Call ``look()`` for at most ``seconds``; return Looked. Its FleetError is raised here; any other error of it is one, too.

    ``look`` runs in a child: it can change nothing here, and what it returns has to be plain values.
    """
    began, data, over = time.monotonic(), b"", False
    reading, writing = os.pipe()
    parent = os.getpid()
    # A signal between the fork and the first line of either side would find nobody who cleans up.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    if pid == 0:
        _child(look, reading, writing, parent)
    try:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        data, over = _read(reading, began + seconds)
    finally:
        # Here, too, when a signal ends us.
        _let_go(pid, reading, over, grace)
    took = time.monotonic() - began
    if not over:
        return Looked(None, took, True)
    return Looked(_value(data), took, False)


def _let_go(pid, reading, over, grace):
    """Have the child end by itself, and see that it does."""
    try:
        if not over:
            _signal(pid, signal.SIGTERM)
            _read(reading, time.monotonic() + grace)
    finally:
        os.close(reading)
        _end(pid)


def _child(look, reading, writing, parent):
    """The child's whole life. It never returns: what waits at the end of the module is its parent's."""
    answer = {}
    try:
        os.close(reading)
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in ENDING:
            signal.signal(number, lambda _number, _frame: _orphan(parent))
        _tell_when_parent_dies()
        # In this thread alone: what a command of the look inherits is not blocked either.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if os.getppid() != parent:
            raise GivenUp()
        answer = {"value": look()}
    except GivenUp:
        pass
    except FleetError as error:
        answer = {"error": error.as_dict()}
    except BaseException:  # noqa: B036  whatever it is, the parent tells of it
        answer = {"crash": traceback.format_exc()}
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        with os.fdopen(writing, "wb") as stream:
            stream.write(json.dumps(answer).encode("utf-8"))
    finally:
        os._exit(0)


def _tell_when_parent_dies():
    """SIGTERM for this process when its parent ends, however that comes. Without it the look only ends by its own limits."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (OSError, AttributeError):
        pass


def _orphan(parent):
    """Give up; where nobody waits any more who would kill us, not for ever."""
    if os.getppid() != parent:
        signal.alarm(_ORPHAN_SECONDS)
    _give_up()


def _give_up(_number=None, _frame=None):
    # Once: the next one would meet the clean-up that the first one has begun.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise GivenUp()


def _read(reading, until):
    """(bytes, whether the other side has closed) by then."""
    chunks = []
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, until - time.monotonic())):
                return b"".join(chunks), False
            data = os.read(reading, 1 << 16)
            if not data:
                return b"".join(chunks), True
            chunks.append(data)


def _value(data):
    try:
        answer = json.loads(data.decode("utf-8"))
    except ValueError:
        answer = {}
    if "error" in answer:
        fields = answer["error"]
        raise FleetError(fields["message"], fields["code"], phase=fields["phase"], object=fields["object"], observed=fields["observed"],
                         hint=fields["hint"])
    if "value" not in answer:
        last = (answer.get("crash") or "it ended without an answer").strip().splitlines()[-1]
        raise FleetError("A look of the gates broke off: %s." % last.rstrip("."), "gate_look_failed", phase="look",
                         observed=answer.get("crash"), hint="Please report this with the text of `observed`.")
    return answer["value"]


def _end(pid):
    """See that the child and everything below it is gone."""
    if _reaped(pid):
        return
    for one in _below(pid):
        # Commands are started in sessions of their own, so that the child's group has not all of them.
        kill_group(one)
        _signal(one, signal.SIGKILL)
    _signal(pid, signal.SIGKILL)
    until = time.monotonic() + _KILLED_SECONDS
    while not _reaped(pid) and time.monotonic() < until:
        time.sleep(0.01)


def _reaped(pid):
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _below(pid):
    """Children, their children and so on."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parents.setdefault(_parent_of(name), []).append(int(name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _parent_of(name):
    """From /proc/PID/stat; a command's name in it may have blanks and brackets."""
    try:
        with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as stream:
            return int(stream.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
