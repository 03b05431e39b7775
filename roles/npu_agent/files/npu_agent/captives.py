# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that hang in the driver and cannot be killed, when this process executes itself anew: the new image inherits them as its
children. Their chips still hang, so they are not asked while such a process lives: each query would cost one process more.
"""

import json
import os

VARIABLE = "_NPU_AGENT_CAPTIVES"  # not a setting


def of(looker):
    """What is to be handed over, for JSON: pid, place, since (monotonic time, the same for the new image), and the chips' records."""
    driver = looker.driver
    if driver is None:
        return []
    hung = [(one.worker.child.pid, one.place, one.since) for one in list(driver.apart.values()) if one.since is not None]
    return [
        {"pid": pid, "place": list(place), "since": since,
         "chips": [chip for where, chip in list(looker.identities.items()) if where == place or (where[0], None) == place]}
        for pid, place, since in hung
    ]


def put(found, environ):
    """Hand over to the image that comes."""
    if found:
        environ[VARIABLE] = json.dumps(found)


def take(environ):
    """What the image before has handed over, of processes that live."""
    try:
        found = [dict(one, place=tuple(one["place"])) for one in json.loads(environ.pop(VARIABLE, "[]"))]
        return [one for one in found if lives(one["pid"])]
    except (ValueError, TypeError, KeyError):
        return []


def lives(pid):
    """Whether it is a child of this process and no zombie: its number may be somebody else's by now."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            state, parent = stream.read().rpartition(")")[2].split()[:2]
    except OSError:
        return False
    return state not in "ZX" and int(parent) == os.getpid()


class Left:
    """Stands for the worker that an image before had: it says nothing, and ends or does not."""

    def __init__(self, pid):
        self.pid, self.child, self.fault, self.dropped = pid, self, None, False

    @property
    def ended(self):
        return not lives(self.pid)

    def take(self):
        pass

    def has_left(self, _place):
        return False

    def stop(self, _seconds):
        return self.ended
