# SPDX-License-Identifier: GPL-3.0-or-later
"""Who goes first when memory runs out."""

SCORE = "300"  # of 1000: as if it had three tenths of the memory that there is (proc(5))


def expendable(pid):
    """This process goes first: whoever needs it starts another one, and without the agent no chip is served."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as stream:
            stream.write(SCORE)
    except OSError:
        pass  # it has ended, or has more already
