# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet is told of one resource: its ids, and whether they may take work."""

from collections import namedtuple

from . import health, units
from ._hardware._families import FAMILIES, device_id


class Board:
    """The newest list of one resource. Whoever streams it puts an event into `waiters`.

    chips: {chip.id: Chip}. units: {id towards kubelet: Chip}; with shares several ids are one chip.
    urgent: the newest change took something out of service, so kubelet should hear of it at once.
    """

    def __init__(self, resource, log, encode):
        self.resource, self.log, self.encode = resource, log, encode
        self.family = None  # of the first chip
        self.chips, self.units = {}, {}
        self.payload, self.version, self.told = b"", 0, None
        self.urgent = False
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
        self.urgent = any(chip.healthy and not (name in chips and chips[name].healthy) for name, chip in before.items())
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


# Until the service is built on node.Node.
OldChip = namedtuple("OldChip", "id phy_id pci_address numa_node card_id device_node healthy reason family slice gone rank",
                     defaults=(None, False, 0))


class OldBoard:
    """The newest list of chips. Whoever streams it puts an event into `waiters`."""

    def __init__(self, settings, log, encode):
        self.settings, self.log, self.encode = settings, log, encode
        self.memory = health.Memory(settings.keep_last_state)
        self.family = None
        self.resource = None
        self.chips = {}
        self.problems = []
        self.present = None  # None: not looked yet
        self.payload = b""
        self.version = 0
        self.waiters = set()

    @property
    def units(self):
        return self.chips

    def update(self, sight, now):
        """Take what look.py saw. True when kubelet must hear of it."""
        self.present, self.problems = sight.present, list(sight.problems)
        if sight.family and self.family is None and sight.chips:
            self.family = sight.family
            self.resource = self.settings.resource_name or FAMILIES[sight.family]["resource"]
        if self.family is None:
            return False
        chips, seen = {}, set()
        for found in sight.chips:
            phy_id = found["phy_id"]
            if phy_id in seen:
                # Two devices with one id make kubelet count one chip twice (measured); the first one keeps it.
                self.problems.append(f"{found.get('pci_address')} has the physical id {phy_id} of another chip and is left out")
                continue
            seen.add(phy_id)
            chip = self.judged(found, now)
            chips[chip.id] = chip
        for name, chip in self.chips.items():
            # A chip that was there stays in the capacity, so that its loss is seen.
            if name not in chips:
                gone = {"phy_id": chip.phy_id, "pci_address": chip.pci_address, "card_id": chip.card_id, "numa_node": chip.numa_node}
                gone["device_node"] = chip.device_node
                if sight.complete:
                    gone["dropped"] = True
                else:
                    gone["error"] = "; ".join(sight.problems) or "it was not seen"
                chips[name] = self.judged(gone, now)
        return self.publish(chips)

    def judged(self, found, now):
        verdict = health.judge(found, self.settings.unhealthy_from)
        healthy, reason, _kept = self.memory.settle(found["phy_id"], verdict, now)
        return OldChip(
            device_id(self.family, found["phy_id"]), found["phy_id"], found.get("pci_address"), found.get("numa_node"),
            found.get("card_id"), found.get("device_node"), healthy, reason, self.family,
        )

    def publish(self, chips):
        before, self.chips = self.chips, dict(sorted(chips.items(), key=lambda item: item[1].phy_id))
        for chip in self.chips.values():
            old = before.get(chip.id)
            if old is None or (old.healthy, old.reason) != (chip.healthy, chip.reason):
                level = "info" if chip.healthy else "warning"
                self.log("chip", level, id=chip.id, pci_address=chip.pci_address, numa_node=chip.numa_node,
                         healthy=chip.healthy, reason=chip.reason)
        payload = self.encode(self.chips.values())
        if payload == self.payload:
            return False
        self.payload, self.version = payload, self.version + 1
        for waiter in self.waiters:
            waiter.set()
        return True

    def count(self):
        """(healthy, total)"""
        return sum(chip.healthy for chip in self.chips.values()), len(self.chips)
