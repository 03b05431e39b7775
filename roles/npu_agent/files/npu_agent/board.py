# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet is told: the chips of this node, one id each, and whether they may take work."""

from collections import namedtuple

from . import health
from ._hardware._families import FAMILIES, device_id

Chip = namedtuple("Chip", "id phy_id pci_address numa_node card_id device_node healthy reason")


class Board:
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
        return Chip(
            device_id(self.family, found["phy_id"]), found["phy_id"], found.get("pci_address"), found.get("numa_node"),
            found.get("card_id"), found.get("device_node"), healthy, reason,
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
