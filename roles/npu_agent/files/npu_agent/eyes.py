# SPDX-License-Identifier: GPL-3.0-or-later
"""The thread that waits for the driver, so that a query that hangs holds up nothing else. Imports no gRPC: it runs while that loads.

What the backend keeps on this node, such as a CDI specification, it keeps before it tells of a chip: a container may be wanted a moment
later. What the operator's own program says of the chips is added to what is told.
"""

import os
import queue
import threading
import time
import traceback
from typing import Any

from . import backends, captives
from .backends.base import Sight
from .log import Once
from .probe import Prober
from .signals import Bell, Signals, Watch

BLIND_SECONDS = 1.0  # between two looks where the driver tells no fault events
ABSENT_SECONDS = 5.0  # at least, on a node without NPU
FAILED_SECONDS = 1.0  # after a look that failed by a fault of ours
TRACE_LETTERS = 2000
PAUSE_SECONDS = 0.05  # at least: a device node that comes and goes all the time must not keep the driver busy


class Over(Exception):
    """The service ends."""


class Eyes(threading.Thread):
    """Looks at the chips again and again; `inbox` has (Sight, monotonic time), `notify` is called after each."""

    def __init__(self, settings, log):
        super().__init__(name="look", daemon=True)
        self.settings, self.log = settings, log
        self.backend = backends.of(settings)
        self.keeper = self.backend.keeper(settings, log)
        self.inbox = queue.SimpleQueue()
        self.notify = None
        self.over = threading.Event()
        self.watch = Watch()
        self.bell = Bell(self.watch)
        self.prober = Prober(settings, log, changed=self.bell.ring)
        self.say = Once(log)
        self.signals: Any = None
        self.looker: Any = None
        self.captives = captives.take(os.environ)  # of the image before; at the end, for the one that comes
        self.last = None  # the newest sight, as it was before the prober's answers
        self.beat = time.monotonic()  # when this thread last did anything

    def run(self):
        """Until the service ends. Whatever goes wrong in between is told as a look that failed, and it goes on: without this thread the
        chips would keep for ever the state that they had."""
        unsubscribed = None
        while not self.over.is_set():
            try:
                self.beat = time.monotonic()
                if self.looker is None:
                    places, uevents = self.backend.places(self.settings), self.backend.uevents
                    self.signals = self.signals or Signals(
                        self.watch, self.settings.dev_root, self.log, places=places, uevents=uevents)
                    self.looker = self.backend.looker(
                        self.settings, self.watch, signals=self.signals, tell=self.tell, meanwhile=self.check)
                    self.looker.captives = self.captives
                unsubscribed = self.turn(self.looker, unsubscribed)
            except Over:
                break
            except Exception as error:
                self.failed(error)
        for one in (self.prober.stop, self.looker and self.looker.close, self.signals and self.signals.close):
            if one:
                one()

    def turn(self, looker, unsubscribed):
        """One look and the rest after it. Why there are no fault events, as `unsubscribed` was before."""
        sight = looker.look()
        started = time.monotonic()
        why = looker.driver.unsubscribed if looker.driver is not None and sight.chips else None
        if why and not unsubscribed:
            self.log("no fault events from the driver", cause=why, looks_every=min(self.settings.poll_seconds, BLIND_SECONDS))
        self.tell(sight)
        self.rest(looker, started, lambda: self.period(sight, why))
        self.say.over()
        return why

    def failed(self, error):
        """A fault of ours must not look like a node without chips, nor be a reason to stop looking."""
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.say("a look failed", "error", cause=trace[-TRACE_LETTERS:])
        self.put(Sight(True, [], [f"looking at the chips failed: {error!r}"], False))
        self.over.wait(FAILED_SECONDS)

    def period(self, sight, why):
        if not sight.present:
            return max(self.settings.poll_seconds, ABSENT_SECONDS)
        return min(self.settings.poll_seconds, BLIND_SECONDS) if why else self.settings.poll_seconds

    def rest(self, looker, started, period):
        """Until the next look is due, or something happens."""
        signals, count = self.signals, self.signals.count
        signals.follow()
        if signals.count != count:
            looker.wait(0.0)  # it takes note of that before it waits for more
        while True:
            now = time.monotonic()
            left, quick = started + (PAUSE_SECONDS if looker.news else period()) - now, signals.left(now)
            if left <= 0:
                return
            looker.wait(left if quick is None else min(left, quick))

    def check(self):
        self.beat = time.monotonic()
        if self.over.is_set():
            raise Over
        if self.prober.news and self.last is not None:
            self.tell(self.last._replace(events=()))

    def tell(self, sight):
        self.last = sight
        self.put(self.prober.attach(self.keeper.keep(sight)))

    def put(self, sight):
        self.inbox.put((sight, time.monotonic()))
        notify = self.notify
        if notify is not None:
            notify()

    def reconsider(self):
        """The settings have changed, so the next look may be due at another time."""
        self.bell.ring()

    def stop(self):
        """The processes that ask the driver end with this one at the latest: they see their input close, but for those that hang."""
        if self.looker is not None:
            self.captives = captives.of(self.looker)
        self.over.set()
        self.bell.ring()
        self.join(0.3)
