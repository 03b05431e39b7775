# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent serve`: takes what is seen of the chips, tells kubelet, answers its calls. One loop, no locks."""

import asyncio
import collections
import gc
import signal
import sys

from . import __version__
from .board import OldBoard as Board
from .log import Once
from .plugin import encode, numa_nodes
from .session import Session
from .status import Endpoint


class Service:
    def __init__(self, settings, eyes, log):
        self.settings, self.eyes, self.log = settings, eyes, log
        self.counters = collections.Counter()
        self.board = Board(settings, log, encode(numa_nodes(settings.sysfs_root)))
        self.session = Session(settings, self.board, log, self.counters)
        self.endpoint = Endpoint(settings, self.session, self.board, self.counters, log)
        self.say = Once(log)

    def take(self):
        """What the eyes have seen since the last time; may come after the end of the service."""
        while not self.eyes.inbox.empty():
            sight, when = self.eyes.inbox.get()
            if not sight.complete:
                self.counters["looks_failed"] += 1
            self.board.update(sight, when)
            if self.board.problems and self.board.resource:
                self.say("chips", "warning", problems=self.board.problems)
            else:
                self.say.over()
            self.session.look_again.set()

    async def run(self):
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.session.stopping.set)
        self.eyes.notify = lambda: loop.call_soon_threadsafe(self.take)
        self.take()
        await self.endpoint.start()
        # What the imports made stays: to look through it again and again would cost an Allocate call some milliseconds now and then.
        gc.freeze()
        gc.enable()
        sys.setswitchinterval(0.0005)  # the thread that looks at the chips must not hold up a call for Python's usual 5 ms
        try:
            await self.session.run()
        finally:
            self.eyes.notify = None
            self.endpoint.close()
            self.log("stopped")


def serve(settings, eyes, log):
    log("started", version=__version__, kubelet_dir=settings.kubelet_dir, allocate_mode=settings.allocate_mode,
        allocate_by=settings.allocate_by, cdi_folder=settings.cdi_folder or None)

    async def run():
        await Service(settings, eyes, log).run()  # made inside: Python 3.9 ties events to the loop that runs

    asyncio.run(run())
    eyes.stop()
    return 0
