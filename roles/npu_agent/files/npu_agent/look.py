# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at the chips of this node: what the detector knows of them, and their health, asked anew each time."""

import os
import time
from collections import namedtuple
from typing import Any

from ._hardware._dcmi_client import DcmiClient, DcmiError, find_library
from ._hardware._detect import detect
from ._hardware._query import QueryError


class Sight(namedtuple("Sight", "present chips problems complete events", defaults=((),))):
    """What a look saw.

    present: the node has an NPU at all. chips: records, see record(). problems: texts for operators.
    complete: the driver told of all chips, so one that is missing is gone. events: fault events since the last sight, each with
    phy_id, code (eight hex digits), assertion (occur, recover, once) and severity (0 to 3).
    """

    __slots__ = ()

    @property
    def family(self):
        """Of all chips, None when they have several. Only until its last users group chips by their own family."""
        families = {chip["family"] for chip in self.chips if chip.get("family")}
        return families.pop() if len(families) == 1 else None


DETECT_SECONDS = 60.0  # names, addresses and serial numbers come from slow places of the board and hardly change


class Looker:
    def __init__(self, settings, clock=time.monotonic):
        self.settings, self.clock = settings, clock
        self.client: Any = None
        self.found: Any = None
        self.found_at, self.starts = 0.0, 0

    def close(self):
        if self.client is not None:
            self.client.close()

    def look(self):
        """One look. Takes at most a few times query_timeout and never raises for what the node is like."""
        try:
            if self.outdated():
                self.found = None
                found = self.detect()
                if "dcmi" not in (found["query"]["source"] or ""):
                    return unusable(found)
                self.found, self.found_at, self.starts = found, self.clock(), self.client.starts
            states = self.client.call("health")
        except DcmiError as error:
            self.found = None
            return Sight(True, [], [f"the NPU driver does not answer: {error}"], False)
        sight = combine(self.found, states, self.settings)
        if {place(state) for state in states} != {place(chip) for chip in self.found["chips"]}:
            self.found = None  # there are other chips than before: detect again next time
        return sight

    def outdated(self):
        return self.found is None or self.client.starts != self.starts or self.clock() - self.found_at > DETECT_SECONDS

    def detect(self):
        settings, missing = self.settings, []
        if self.client is None:
            try:
                library = settings.dcmi_library or find_library(settings.install_path)
                self.client = DcmiClient(library, settings.query_timeout, settings.install_path)
            except DcmiError as error:
                missing = [QueryError("dcmi", error.code, error.message)]
        return detect(
            None, settings.sysfs_root, settings.dev_root, dcmi=self.client, timeout=settings.query_timeout,
            install_path=settings.install_path, missing=missing,
        )


def place(record):
    return record["card_id"], record["device_id"]


def unusable(found):
    """A node without an NPU, or one whose driver cannot be asked: two very different things."""
    if not found["present"] and not found["device_nodes"]:
        return Sight(False, [], [], True)
    where = ", ".join(chip["pci_address"] or "?" for chip in found["chips"])
    seen = f"{len(found['chips'])} NPUs on PCI ({where})" if where else "device nodes of an NPU"
    driver = "the chips cannot be asked" if found["driver"]["loaded"] else "the driver is not loaded"
    cause = (found["query"]["error"] or {}).get("message", "nobody to ask")
    return Sight(True, [], [f"this node has {seen}, but {driver}: {cause}"], False)


def combine(found, states, settings):
    """What the detector knows of each chip and what DCMI says of it now. Keeps the order of ids, loses no chip silently."""
    by_place = {place(state): state for state in states}
    chips, problems = [], []
    for known in found["chips"]:
        where = f"the NPU {known['pci_address'] or place(known)}"
        if known["phy_id"] is None or known["family"] is None:
            cause = (known["error"] or {}).get("message") or "the driver does not know it"
            problems.append(f"{where} is left out: {cause}")
            continue
        if settings.family not in ("auto", known["family"]):
            continue
        state = by_place.get(place(known))
        if state is None:
            continue  # gone since the detection
        node = f"{settings.dev_root}/davinci{known['phy_id']}"
        function = f"{settings.sysfs_root}/bus/pci/devices/{known['pci_address']}"
        bound = os.path.exists(f"{function}/driver") if known["evidence"]["pci"] else None
        keys = ("phy_id", "card_id", "device_id", "name", "family", "pci_address", "numa_node", "serial", "vdie")
        chip = {key: known.get(key) for key in keys}
        chip.update({key: state[key] for key in ("health_code", "error_codes", "dropped")})
        chip.update(driver_bound=bound, device_node=node, device_node_present=os.path.exists(node))
        chip["error"] = state["error"]["message"] if state["error"] else None
        chip.update(aicore_count=None, hung=None, unasked=False, telemetry=None, slices=[])
        chips.append(chip)
    problems += [error["message"] for error in found["query"]["errors"]]
    return Sight(found["present"], chips, problems, found["query"]["ok"])
