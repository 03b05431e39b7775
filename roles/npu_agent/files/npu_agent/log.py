# SPDX-License-Identifier: GPL-3.0-or-later
"""Events as JSON lines on standard output, one object each. Whoever does not read them holds up nobody."""

import json
import os
import stat
import sys
import threading
import time

LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3}
ROOM = 65536  # bytes that wait for a reader
ENCODE = json.JSONEncoder(default=str).encode


class Log:
    """Lines that find no room are left out, and the next one that does says how many they were."""

    def __init__(self, level="info", descriptor=None):
        self.set_level(level)
        self.descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        self.lock, self.waiting, self.lost = threading.Lock(), b"", 0
        self.second, self.stamp = None, ""
        kind = os.fstat(self.descriptor).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            # The journal's socket, a pipe to a collector: one that is full would hold up kubelet's calls. A terminal is left as it is: it
            # is the shell's too.
            os.set_blocking(self.descriptor, False)

    def set_level(self, level):
        self.lowest = LEVELS[level]

    def __call__(self, event, level="info", **fields):
        if LEVELS[level] >= self.lowest and not self.put(event, level, fields):
            with self.lock:
                self.lost += 1

    def record(self, event, **fields):
        """A line that is more than a message: written at any level. Whether there was room for it; the caller counts it if not."""
        return self.put(event, "info", fields)

    def put(self, event, level, fields):
        now = time.time()
        second = int(now)
        with self.lock:
            if second != self.second:
                self.second, self.stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            line = {"time": f"{self.stamp}.{int((now - second) * 1000):03d}Z", "level": level, "event": event, **fields}
            if self.lost:
                line["lines_lost"] = self.lost
            data = ENCODE(line).encode() + b"\n"
            if len(self.waiting) + len(data) > ROOM:
                self.write()
            if self.waiting and len(self.waiting) + len(data) > ROOM:
                return False
            self.waiting, self.lost = self.waiting + data, 0
            return self.write()

    def flush(self):
        """Try again to write what waits; to be called from time to time."""
        with self.lock:
            self.write()

    def write(self):
        """False: nobody reads any more."""
        try:
            while self.waiting:
                self.waiting = self.waiting[os.write(self.descriptor, self.waiting):]
        except BlockingIOError:
            pass
        except OSError:
            self.waiting = b""  # serving devices is worth more than the log
            return False
        return True


class Seldom:
    """A line of each kind at most once in so many seconds; the next one says how many were left out."""

    def __init__(self, log, seconds, clock=time.monotonic):
        self.log, self.seconds, self.clock = log, seconds, clock
        self.said, self.left_out = {}, {}

    def __call__(self, kind, event, level="info", **fields):
        now = self.clock()
        if now - self.said.get(kind, now - self.seconds) < self.seconds:
            self.left_out[kind] = self.left_out.get(kind, 0) + 1
            return
        self.said[kind] = now
        left_out = self.left_out.pop(kind, 0)
        self.log(event, level, **fields, **({"left_out": left_out} if left_out else {}))


class Once:
    """Says a state when it begins, not again while it lasts."""

    def __init__(self, log):
        self.log, self.last = log, None

    def __call__(self, event, level="info", **fields):
        if (event, fields) != self.last:
            self.last = (event, fields)
            self.log(event, level, **fields)

    def event(self, event, level="info", **fields):
        """The same for an event whose fields may change while it lasts."""
        if self.last is None or self.last[0] != event:
            self(event, level, **fields)

    def over(self):
        self.last = None
