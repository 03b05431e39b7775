# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet is told of one resource: its ids, and whether they may take work."""

from typing import NamedTuple, Optional

from . import units
from .chip import Chip

LINE_SECONDS = 1.0  # between two lines of the log about one chip: fault events can change its reason a thousand times a second


class Said(NamedTuple):
    """What the log has of a chip, when it said so, and what has changed since."""

    chip: Chip
    when: float
    newest: Chip
    changes: int


class Board:
    """The newest list of one resource. Whoever streams it puts an event into `waiters`.

    chips: {chip.id: Chip}. units: {id towards kubelet: Chip}; with shares several ids are one chip. forms: {name of a chip: texts}, how
    the node's chips are offered now. due: monotonic time at which the log has to say what it could not say yet, or None.
    """

    def __init__(self, resource, log, encode, forms):
        self.resource, self.log, self.encode, self.forms = resource, log, encode, forms
        self.family = None  # of the first chip
        self.chips, self.units = {}, {}
        self.payload, self.version, self.told = b"", 0, None
        self.waiters = set()
        self.said: dict = {}  # {chip.id: Said}
        self.due: Optional[float] = None

    def publish(self, chips, shares, now):
        """Take the chips as they are now. True when kubelet must hear of it."""
        chips = dict(sorted(chips.items(), key=lambda item: (len(item[0]), item[0])))
        told = (shares, [(name, chip.healthy, chip.numa_node) for name, chip in chips.items()])
        if chips == self.chips and told == self.told and self.due is None:
            return False
        before, self.chips = self.chips, chips
        self.units = units.ids(chips, shares)
        self.family = next((chip.family for chip in chips.values()), self.family)
        self.say(before, now)
        if told == self.told:
            return False
        self.told, self.payload, self.version = told, self.encode(self.units.items()), self.version + 1
        for waiter in self.waiters:
            waiter.set()
        return True

    def say(self, before, now):
        """Log what has changed; what a chip was only for a moment is counted, what it is now is always told."""
        self.due = None
        for name, chip in self.chips.items():
            said = self.said.get(name)
            if said is not None:
                said = self.said[name] = said._replace(newest=chip, changes=said.changes + (aspects(said.newest) != aspects(chip)))
                if aspects(said.chip) == aspects(chip):
                    continue
                if now - said.when < LINE_SECONDS:
                    self.due = min(self.due or said.when + LINE_SECONDS, said.when + LINE_SECONDS)
                    continue
            more = {"left_out": said.changes - 1} if said is not None and said.changes > 1 else {}
            self.said[name] = Said(chip, now, chip, 0)
            self.log("chip", "info" if chip.healthy else "warning", id=name, phy_id=chip.phy_id, pci_address=chip.pci_address,
                     numa_node=chip.numa_node, healthy=chip.healthy, reason=chip.reason, degraded=list(chip.degraded), **more)
        for name in before:
            if name not in self.chips:
                self.said.pop(name, None)
                self.log("chip no longer offered", "warning", id=name, resource=self.resource)

    def count(self):
        """(healthy, all) ids."""
        return sum(chip.healthy for chip in self.units.values()), len(self.units)


def aspects(chip):
    """What the log tells of a chip, when it changes."""
    return chip.healthy, chip.reason, chip.degraded, chip.phy_id
