# SPDX-License-Identifier: GPL-3.0-or-later
"""What a backend has to answer. The rest of the agent knows records, ids and resources, and asks the backend for everything else.

A backend is one object, BACKEND of its module, and keeps nothing: all it needs comes as an argument. Who looks at the devices is made for
each run of the service (`looker`), and lives in the thread that looks, so it may wait for a device; what is asked by kubelet's calls
(`give`) must not.
"""

import os
import re
import time
from collections import namedtuple
from typing import Any

# What may be known of a device, as look.Looker.record() says it. Further keys of records:
#   natural   its id where no other one has it: "mlu-0"; None: the lowest number that is free behind the prefix
#   prefix    of its ids: "mlu-"
#   resource  the extended resource that it is offered under
#   places    what containers get of it, as they see it: device nodes, an address. Needed where there is no phy_id
#   unfit     why it may not take work, of what is the device's own fault and counts as one more time out of service
KEYS = (
    "phy_id", "logic_id", "card_id", "device_id", "name", "family", "pci_address", "numa_node", "serial", "vdie", "aicore_count",
    "driver_bound", "device_node", "device_node_present", "node_trouble", "health_code", "error_codes", "error", "hung", "asked_at",
    "telemetry", "unfit",
)


class Refused(Exception):
    """Kubelet shows this text on the pod and does not try again, so it says what an operator must know."""


class Sight(namedtuple("Sight", "present chips problems complete events", defaults=((),))):
    """What a look saw.

    present: the node has a device at all; None: only who has seen one here can tell. chips: records, see look.Looker.record().
    problems: texts for operators. complete: all devices were told of, so one that is missing is gone. events: fault events since the
    last sight, each with phy_id, code (eight hex digits), assertion (occur, recover, once), severity (0 to 3) and at (monotonic time).
    """

    __slots__ = ()


class Backend:
    name = ""
    facts: tuple = ()  # (key of a record, words) of what `discover` tells where it is not known
    uevents: Any = None  # pattern of the kernel's events that make a look due, of bytes; None: none
    cdi = False  # whether there is a CDI specification
    distinct = False  # whether its ids are such as no other plugin has

    def looker(self, settings, watch=None, **more):
        """Who looks: an object with look() -> Sight, wait(seconds), close(), and the attributes of Looker below."""
        raise NotImplementedError

    def places(self, settings):
        """[(folder, pattern)]: folders with device nodes, the one that is always there first, and the names in them that matter."""
        raise NotImplementedError

    def resource(self, record):
        """The extended resource of a record's device; those of one family have the same."""
        return record["resource"]

    def prefix(self, record):
        """What its ids begin with, up to the number."""
        return record["prefix"]

    def natural(self, record):
        """Its id where no other device has it; None: the lowest number that is free."""
        return record["natural"]

    def ids(self, settings):
        """Pattern of ids towards kubelet: its groups are prefix, number of a slice, number, number of a share."""
        raise NotImplementedError

    def give(self, chips, settings):
        """What a container gets with these chips (chip.Chip, at least one): {"envs": {...}, "devices": [(host path, container path)],
        "mounts": [the same], "cdi": [name]}. Refused where it cannot be given."""
        raise NotImplementedError

    def keeper(self, settings, log):
        """What keeps files on this node in step with what is seen: keep(sight) -> sight, before anybody is told of it."""
        return Keeper()

    def lacking(self, settings, families):
        """Texts: what containers with chips of these families will lack."""
        return []

    def sharing(self, family):
        """What `shares` needs on chips of this family, or ""."""
        return ""


class Keeper:
    def keep(self, sight):
        return sight


class Looker:
    """Looks by calling see(clock) -> Sight, for backends whose devices are looked at without waiting."""

    def __init__(self, see, settings, watch=None, *, signals=None, tell=None, meanwhile=lambda: None, clock=time.monotonic,
                 over=lambda: None):
        self.see, self.settings, self.watch, self.signals, self.clock = see, settings, watch, signals, clock
        self.tell, self.halt, self.over = tell, meanwhile, over
        self.driver, self.captives = None, []  # of a driver that is asked, see look.Looker
        self.news, self.changes = False, 0
        self.once: dict = {}  # {vdie or address: record} of what was seen once

    def look(self):
        """One look; never raises for what the node is like."""
        self.news, self.changes = False, self.signals.count if self.signals is not None else 0
        return self.see(self.clock)

    def wait(self, seconds):
        """Until something happens, at most so long."""
        self.watch.wait(seconds)
        self.halt()
        self.news = self.news or (self.signals is not None and self.signals.count != self.changes)

    def close(self):
        self.over()


def record(**values):
    """A device that is well as far as these values tell."""
    known = dict.fromkeys(KEYS)
    known.update(health_code=0, error_codes=[], dropped=False, unasked=False, slices=[], strange_slices=[])
    known.update(values)
    return known


def pattern(prefixes):
    """The pattern of ids() for these prefixes, as regular expressions, of a backend without slices."""
    return re.compile(rf"({'|'.join(prefixes) or '(?!)'})(?:(?!)([0-9]+))?([0-9]+)(?:-([0-9]+))?")


def blind(settings):
    """Texts: why nobody can say whether this node has devices. Without a free descriptor every folder looks empty."""
    return [text for text in map(unreadable, (settings.dev_root, settings.sysfs_root)) if text]


def unreadable(folder):
    """Why nobody can say what is in a folder, None where that is known."""
    try:
        os.listdir(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"whether this node has NPUs is not known: {folder}: {error.strerror}"
    return None


def on_host(path, settings):
    """A path below /dev where the host's /dev is."""
    return f"{settings.dev_root}{path[len('/dev'):]}"


def in_container(path, settings):
    """The same the other way round: containers have it below /dev."""
    return f"/dev{path[len(settings.dev_root):]}"


def merged(pairs):
    """{name: value} of variables that several devices of one container bring: different values of one name are joined by commas."""
    found: dict = {}
    for name, value in pairs:
        values = found.setdefault(name, [])
        if value not in values:
            values.append(value)
    return {name: ",".join(values) for name, values in found.items()}
