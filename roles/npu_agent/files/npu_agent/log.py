# SPDX-License-Identifier: GPL-3.0-or-later
"""Events as JSON lines on standard output, one object each."""

import json
import sys
import time

LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3}


class Log:
    def __init__(self, level="info", stream=None):
        self.lowest, self.stream = LEVELS[level], stream or sys.stdout

    def __call__(self, event, level="info", **fields):
        if LEVELS[level] < self.lowest:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        line = {"time": stamp, "level": level, "event": event}
        line.update(fields)
        try:
            self.stream.write(json.dumps(line, default=str) + "\n")
            self.stream.flush()
        except OSError:
            pass  # nobody reads: serving devices is worth more than the log


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
