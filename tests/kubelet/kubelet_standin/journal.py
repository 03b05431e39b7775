# SPDX-License-Identifier: GPL-3.0-or-later
"""What came from plugins and when, for those who measure: one entry each for a registration, a stream's start and end, a list."""

import collections
import threading
import time

KEPT = 10000  # entries


class Journal:
    """Entries are {"n": number from 1, "time": monotonic seconds (one clock for all processes of a host), "kind", "resource", …}."""

    def __init__(self):
        self.entries = collections.deque(maxlen=KEPT)
        self.count, self.more = 0, threading.Condition()

    def write(self, kind, resource, **fields):
        with self.more:
            self.count += 1
            self.entries.append({"n": self.count, "time": time.monotonic(), "kind": kind, "resource": resource, **fields})
            self.more.notify_all()

    def read(self, after=0, kind=None, resource=None, seconds=0.0):
        """Entries with a higher number than `after`; waits up to `seconds` for the first one that fits."""
        deadline = time.monotonic() + seconds
        with self.more:
            while True:
                found = [entry for entry in self.entries
                         if entry["n"] > after and kind in (None, entry["kind"]) and resource in (None, entry["resource"])]
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                self.more.wait(left)
