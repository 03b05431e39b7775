# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether two patterns of paths can match the same path. Pure.

As glob reads them: a path is matched step by step, '*' and '?' match no '/', and what stands in brackets is fnmatch's business.
"""

import fnmatch
import functools
import re

STAR = "*"
MAGIC = re.compile(r"[*?\[]")
# Letters that a pattern may have (printable ASCII), and one for all that it cannot name: what matches one of those matches each.
OTHER = "é"
LETTERS = frozenset(map(chr, range(0x20, 0x7f))) | {OTHER}
WORK = 200_000  # places in two patterns that are compared; a tenth of a second


class TooMuch(ValueError):
    """These patterns cannot be compared in a time that a service may take."""


class Work:
    """What a comparison of many patterns may cost."""

    def __init__(self, limit=WORK):
        self.left = limit

    def take(self):
        self.left -= 1
        if self.left < 0:
            raise TooMuch("these patterns are too many and too much alike to compare them: write them with fewer '*', or as paths")


def overlap(one, other, work=None):
    """Whether some path matches both patterns. TooMuch."""
    ones, others = one.split("/"), other.split("/")
    return len(ones) == len(others) and all(map(ends_agree, ones, others)) and all(
        steps_overlap(mine, yours, work or Work()) for mine, yours in zip(ones, others))


def ends_agree(one, other):
    """A quick look at what both begin and end with."""
    (head, tail), (other_head, other_tail) = ends(one), ends(other)
    if head is None or other_head is None:  # no pattern
        return head is not None or other_head is not None or one == other
    return (head.startswith(other_head) or other_head.startswith(head)) and (tail.endswith(other_tail) or other_tail.endswith(tail))


@functools.lru_cache(maxsize=4096)
def ends(step):
    """(what stands before the first sign of a pattern, what behind the last one), (None, None) without one."""
    found = [match.start() for match in MAGIC.finditer(step)]
    if not found:
        return None, None
    # Behind a bracket it is not that simple.
    return step[:found[0]], "" if "[" in step else step[found[-1] + 1:]


def steps_overlap(one, other, work):
    """The same for one step of a path."""
    mine, yours = tokens(one), tokens(other)
    seen, open_ends = set(), [(0, 0)]
    while open_ends:
        here = open_ends.pop()
        if here in seen:
            continue
        seen.add(here)
        work.take()
        first, second = here
        left, right = mine[first:first + 1], yours[second:second + 1]
        if not left and not right:
            return True
        if left == (STAR,):
            open_ends.append((first + 1, second))
        if right == (STAR,):
            open_ends.append((first, second + 1))
        if not left or not right or left == right == (STAR,):
            continue
        if left == (STAR,):
            open_ends += [(first, second + 1)] if right[0] else []
        elif right == (STAR,):
            open_ends += [(first + 1, second)] if left[0] else []
        elif left[0] & right[0]:
            open_ends.append((first + 1, second + 1))
    return False


@functools.lru_cache(maxsize=4096)
def tokens(step):
    """STAR, or the set of letters that stand at each place."""
    found: list = []
    place = 0
    while place < len(step):
        letter = step[place]
        end = closing(step, place) if letter == "[" else 0
        if letter == "*":
            found.append(STAR)
        elif letter == "?":
            found.append(LETTERS)
        elif end:
            found.append(letters(step[place:end + 1]))
            place = end
        else:
            found.append(frozenset(letter))
        place += 1
    return tuple(found)


def closing(step, place):
    """Where the bracket that opens here closes, 0 where it does not: a ']' at its beginning is a letter."""
    start = place + 1
    start += step.startswith("!", start)
    start += step.startswith("]", start)
    return max(0, step.find("]", start))


@functools.lru_cache(maxsize=4096)
def letters(bracket):
    """What it matches; none where its ranges are empty."""
    matches = re.compile(fnmatch.translate(bracket)).match
    return frozenset(letter for letter in LETTERS if matches(letter))
