# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a chip may take to answer before the others are asked without it. What hangs is decided by query_timeout, not here."""

HURRY_SECONDS, HURRY_SHARE = 0.5, 0.1  # at least so long, or this share of query_timeout
USUAL_TIMES = 5  # at least so many times what chips took
USUAL_KEPT = 0.9  # of what they took, in the next answer


class Pace:
    """usual: {command: seconds that a chip has taken at most, lately}."""

    def __init__(self, settings):
        self.settings, self.usual = settings, {}

    def patience(self, command, late):
        """Seconds. late: another chip was, a moment ago. Infinite where nobody knows how long chips take, and none was late."""
        if command not in self.usual and not late:
            return float("inf")
        return max(HURRY_SECONDS, HURRY_SHARE * self.settings.query_timeout, USUAL_TIMES * self.usual.get(command, 0.0))

    def took(self, command, times):
        """times: when it came to each chip, and when the last one had answered."""
        longest = max((end - begin for begin, end in zip(times, times[1:])), default=0.0)
        self.usual[command] = max(min(longest, self.settings.query_timeout), USUAL_KEPT * self.usual.get(command, 0.0))
