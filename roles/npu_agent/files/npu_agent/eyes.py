# SPDX-License-Identifier: GPL-3.0-or-later
"""The thread that waits for DCMI, so that a query that hangs holds up nothing else. Imports no gRPC: it runs while that loads.

It also keeps the CDI specification, before it tells of a chip: a container may be wanted a moment later.
"""

import queue
import threading
import time

from .cdi_file import Keeper
from .look import Looker, Sight


class Eyes(threading.Thread):
    """Looks at the chips again and again; `inbox` has (Sight, monotonic time), `notify` is called after each."""

    def __init__(self, settings, log):
        super().__init__(name="look", daemon=True)
        self.keeper = Keeper(settings, log)
        self.poll_seconds, self.looker = settings.poll_seconds, Looker(settings)
        self.inbox = queue.SimpleQueue()
        self.notify = None
        self.over = threading.Event()

    def run(self):
        while not self.over.is_set():
            try:
                sight = self.keeper.keep(self.looker.look())
            except Exception as error:  # a fault of ours must not look like a node without chips
                sight = Sight(True, [], [f"looking at the chips failed: {error!r}"], False)
            self.inbox.put((sight, time.monotonic()))
            notify = self.notify
            if notify is not None:
                notify()
            self.over.wait(self.poll_seconds if sight.present else max(self.poll_seconds, 5.0))
        self.looker.close()

    def stop(self):
        """The DCMI process ends with this one at the latest: it sees its input close."""
        self.over.set()
        self.join(0.3)
