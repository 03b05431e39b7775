# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that asks the NPU driver, as who waits for it sees it: what it was asked, which chip it is at, what it has said."""

from collections import deque
from typing import Optional

from ._hardware._dcmi_child import DcmiError


class Late(Exception):
    """A call has not come back in time; the worker knows which one."""


class Died(Exception):
    """The process has ended while it was asked; the text says how."""


def place_in(message):
    """Where the process has come to, of what it says with "at"."""
    return message["at"] and tuple(message["at"])


class Worker:
    """A process and what it was asked. `tell` gets its fault events."""

    def __init__(self, child, watch, clock, tell):
        self.child, self.watch, self.clock, self.tell = child, watch, clock, tell
        self.messages = deque()
        self.fault: Optional[DcmiError] = None
        self.command, self.number = "start", 0
        self.place, self.since = None, clock()  # what it is at, and since when
        self.patience = float("inf")  # seconds for a chip, at most query_timeout
        self.dropped = False  # nobody waits for it; it was killed, and perhaps is not gone yet
        watch.add(child.output, self.take)

    def take(self):
        """Called when there is something to read."""
        more = self.child.read()
        try:
            while (message := self.child.line(self.command)) is not None:
                if "event" in message:
                    self.tell(dict(message["event"], at=message.get("time", self.clock())))
                else:
                    self.messages.append(message)
        except DcmiError as error:
            self.fault, more = error, False
        if not more:
            self.watch.remove(self.child.output)

    def ask(self, command, **more):
        self.command, self.number = command, self.number + 1
        self.place, self.since = None, self.clock()
        self.child.send({"id": self.number, "cmd": command, "progress": True, **more})

    def has_left(self, place):
        """Whether its query of this chip is over, to ask of one that nobody waits for: it has answered, or is at another chip by now, as
        one that was not told to end soon enough."""
        while self.messages:
            message = self.messages.popleft()
            if "at" in message:
                before, self.place = self.place, place_in(message)
                if before == place != self.place:
                    return True
            elif "ready" not in message:
                return True
        return False

    def stop(self, seconds):
        """Kill it. True when it is gone: not always, see above."""
        self.child.kill()
        if not self.child.reap(seconds):
            return False
        self.watch.remove(self.child.output)
        self.child.close()
        return True
