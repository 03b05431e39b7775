# SPDX-License-Identifier: GPL-3.0-or-later
"""Notices that the thread that looks at the chips has ended or hangs: what kubelet was told then is nobody's knowledge any more."""

from .eyes import ABSENT_SECONDS

TICK_SECONDS = 5.0


class Watchdog:
    """`trouble`: why nothing is known of the chips, "" while they are watched. Only time in which this process ran counts, by its ticks:
    one that was stopped for a while has missed nothing.

    A driver that is slow with every chip makes a look long; the thread then still goes on, and there is no use in starting anew.
    """

    def __init__(self, now):
        self.ticked, self.silent, self.trouble = now, 0.0, ""

    def heard(self):
        """The thread has told what it sees, or is to look at other times than before."""
        self.silent, self.trouble = 0.0, ""

    def tick(self, now, alive, idle, limit):
        """True when this process should end. alive: the thread is there. idle, limit: seconds, since it did anything, and allowed."""
        self.silent += min(now - self.ticked, 2 * pause(limit))
        self.ticked = now
        if not alive:
            self.silent = max(self.silent, limit)
        if self.silent < limit:
            return False
        stuck = not alive or idle >= limit / 2
        ended = "has ended" if not alive else "hangs" if stuck else "is still busy with one look"
        self.trouble = f"nobody knows how the chips are: the thread that looks at them {ended}"
        return stuck and self.silent >= 2 * limit


def limit(settings, present):
    """Seconds within which the thread tells something, whatever the driver does; present: of a Sight, None without one."""
    period = max(settings.poll_seconds, ABSENT_SECONDS) if present is False else settings.poll_seconds
    return period + 3 * settings.query_timeout + settings.keep_last_state


def pause(allowed):
    """Seconds between two ticks."""
    return min(TICK_SECONDS, allowed / 4)
