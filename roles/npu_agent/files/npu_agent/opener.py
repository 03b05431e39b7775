# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether device nodes open, asked of a process of its own: an open() that the driver does not come back from sleeps in the kernel, and
nothing can end it. There it holds up neither the look at the other devices, nor the end of the agent, nor its start anew.

The process tries each node in a thread, one at a time for each. Nothing is read from a device or written to it.
"""

import contextlib
import errno
import os
import select
import subprocess
import sys
import time
from typing import Any

from .oom import expendable

START_SECONDS = 20.0  # for a new process of ours to be there
HANGS = "it does not come back from open()"
ENDS = "the process that tried to open it was killed, twice"
# What says nothing of the device. EBUSY, EAGAIN, EINTR: its driver lives, and has another client, or is waiting for something. EACCES,
# EPERM, EMFILE, ENFILE, ENOMEM: we cannot try. ENOENT: it is gone meanwhile, which the next look tells better.
ALIVE = (errno.EBUSY, errno.EAGAIN, errno.EINTR)
UNTRIED = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT)
# As text: the files of this version may be gone when a process is needed. It says "0 0" when it is there, for each line that it gets
# "NUMBER -1" at once, and "NUMBER ERRNO" when open() has come back. os._exit: its threads may never end.
PROGRAM = """
import os, sys, threading

def attempt(number, path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        code = 0
    except OSError as error:
        code = error.errno
    os.write(1, b"%d %d\\n" % (number, code))

os.write(1, b"0 0\\n")
for line in sys.stdin.buffer:
    number, path = line.split()
    os.write(1, b"%s -1\\n" % number)
    try:
        threading.Thread(target=attempt, args=(int(number), bytes.fromhex(path.decode())), daemon=True).start()
    except RuntimeError:
        os.write(1, b"%s 11\\n" % number)
os._exit(0)
"""
COMMAND = [sys.executable, "-I", "-S", "-c", PROGRAM]


class Opener:
    """Used by the thread that looks, alone. pending: {path: number} of what has not come back."""

    def __init__(self, settings, clock=time.monotonic):
        self.settings, self.clock = settings, clock
        self.child: Any = None
        self.rest, self.count = b"", 0
        self.pending: dict = {}
        self.heard: set = set()  # numbers that the process has taken on
        self.codes: dict = {}  # {path: errno} of what came back

    def refusals(self, paths):
        """{path: why it does not open, "" where it does, or where nobody knows}. Waits for `query_timeout` at most, and no second time for
        what has not come back."""
        self.listen(0.0)
        self.codes, deadly = {}, set()
        left = [path for path in dict.fromkeys(paths) if path not in self.pending]
        if left and not self.attempt(left):
            # Something has ended the process. What is left is tried one by one, so that only that counts as the cause.
            end = self.clock() + self.settings.query_timeout
            left = [path for path in left if path not in self.codes]
            deadly = {path for path in left if self.clock() < end and not self.attempt([path]) and self.heard}
        return {path: ENDS if path in deadly else self.why(path) for path in paths}

    def why(self, path):
        if path in self.pending:
            return HANGS
        code = self.codes.get(path, 0)
        return "" if code == 0 or code in ALIVE or code in UNTRIED else os.strerror(code)

    def attempt(self, paths):
        """Have these tried. False where the process has ended meanwhile, or none could be started."""
        self.heard = set()
        if self.child is None and not self.start():
            return False
        numbers = set()
        for path in paths:
            self.count += 1
            numbers.add(self.count)
            self.pending[path] = self.count
            if not self.send(f"{self.count} {os.fsencode(path).hex()}\n".encode("ascii")):
                return False
        began = self.clock()
        while numbers & set(self.pending.values()):
            deaf = numbers - self.heard
            left = began + (START_SECONDS if deaf else self.settings.query_timeout) - self.clock()
            if left <= 0:
                break
            if not self.listen(left):
                return False
        if numbers - self.heard:
            self.drop()  # it does not even listen: it was stopped, or killed and a thread of it cannot die
        return self.child is not None

    def start(self):
        try:
            self.child = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                                          start_new_session=True, cwd="/")
        except OSError:
            return False
        expendable(self.child.pid)
        os.set_blocking(self.child.stdout.fileno(), False)
        self.rest = b""
        end = self.clock() + START_SECONDS
        while self.child is not None and 0 not in self.heard:
            left = end - self.clock()
            if left <= 0:
                self.drop()
            else:
                self.listen(left)
        self.heard.discard(0)
        return self.child is not None

    def send(self, line):
        try:
            self.child.stdin.write(line)
        except OSError:
            self.drop()
            return False
        return True

    def listen(self, seconds):
        """Take in what the process says within this time, once. False when there is none any more."""
        if self.child is None:
            return False
        poll = select.poll()
        poll.register(self.child.stdout.fileno(), select.POLLIN)
        if not poll.poll(seconds * 1000):
            return True
        try:
            data = os.read(self.child.stdout.fileno(), 65536)
        except BlockingIOError:
            return True
        if not data:
            self.drop()
            return False
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            number, code = map(int, line.split())
            self.heard.add(number)
            path = next((path for path, one in self.pending.items() if one == number), None)
            if code >= 0 and path is not None:
                del self.pending[path]
                self.codes[path] = code
        return True

    def drop(self):
        """Let go of the process. What it has not come back from is tried anew by the next one."""
        child, self.child = self.child, None
        self.pending = {}
        child.kill()
        for stream in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.5)

    def close(self):
        if self.child is not None:
            self.drop()
