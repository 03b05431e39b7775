# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet is told of one resource: its ids, and whether they may take work."""

from . import units


class Board:
    """The newest list of one resource. Whoever streams it puts an event into `waiters`.

    chips: {chip.id: Chip}. units: {id towards kubelet: Chip}; with shares several ids are one chip. forms: {name of a chip: texts}, how
    the node's chips are offered now.
    """

    def __init__(self, resource, log, encode, forms):
        self.resource, self.log, self.encode, self.forms = resource, log, encode, forms
        self.family = None  # of the first chip
        self.chips, self.units = {}, {}
        self.payload, self.version, self.told = b"", 0, None
        self.waiters = set()

    def publish(self, chips, shares):
        """Take the chips as they are now. True when kubelet must hear of it."""
        chips = dict(sorted(chips.items(), key=lambda item: (len(item[0]), item[0])))
        told = (shares, [(name, chip.healthy, chip.numa_node) for name, chip in chips.items()])
        if chips == self.chips and told == self.told:
            return False
        before, self.chips = self.chips, chips
        self.units = units.ids(chips, shares)
        self.family = next((chip.family for chip in chips.values()), self.family)
        self.say(before)
        if told == self.told:
            return False
        self.told, self.payload, self.version = told, self.encode(self.units.items()), self.version + 1
        for waiter in self.waiters:
            waiter.set()
        return True

    def say(self, before):
        for name, chip in self.chips.items():
            old = before.get(name)
            if old is None or aspects(old) != aspects(chip):
                self.log("chip", "info" if chip.healthy else "warning", id=name, phy_id=chip.phy_id, pci_address=chip.pci_address,
                         numa_node=chip.numa_node, healthy=chip.healthy, reason=chip.reason, degraded=list(chip.degraded))
        for name in before:
            if name not in self.chips:
                self.log("chip no longer offered", "warning", id=name, resource=self.resource)

    def count(self):
        """(healthy, all) ids."""
        return sum(chip.healthy for chip in self.units.values()), len(self.units)


def aspects(chip):
    """What the log tells of a chip, when it changes."""
    return chip.healthy, chip.reason, chip.degraded, chip.phy_id
