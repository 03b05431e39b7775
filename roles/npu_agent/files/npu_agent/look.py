# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at the chips of this node: PCI functions, device nodes, and DCMI through its child process."""

import os
from collections import namedtuple

from ._hardware import _pci
from ._hardware._dcmi_client import DcmiClient, DcmiError, find_library
from ._hardware._families import family_of_name

# family: of the chips, None when it is not known. chips: records for health.judge. problems: texts for operators.
# present: the node has an NPU at all. complete: DCMI told of all chips, so one that is missing is gone.
Sight = namedtuple("Sight", "present family chips problems complete")


class Looker:
    def __init__(self, settings):
        self.settings = settings
        self.client = None
        self.identities, self.identified = {}, None

    def close(self):
        if self.client is not None:
            self.client.close()

    def ask(self, command):
        if self.client is None:
            library = self.settings.dcmi_library or find_library(self.settings.install_path)
            self.client = DcmiClient(library, self.settings.query_timeout, self.settings.install_path)
        return self.client.call(command)

    def look(self):
        """One look. Takes at most a few times query_timeout and never raises for what the node is like."""
        functions = [function for function in _pci.scan(self.settings.sysfs_root) if function["kind"] == "chip"]
        if not functions and not os.path.exists(f"{self.settings.dev_root}/davinci_manager"):
            return Sight(False, None, [], [], True)
        try:
            states = self.ask("health")
            self.identify(states)
        except DcmiError as error:
            return Sight(True, None, [], [unusable(functions, error)], False)
        return merge(functions, self.identities, states, self.settings.family, self.settings.dev_root)

    def identify(self, states):
        """Names and addresses, asked again only when the chips are others than before or the library was opened anew."""
        mark = (self.client.starts, [place(state) for state in states])
        if mark != self.identified:
            self.identities = {place(chip): chip for chip in self.ask("chips")}
            self.identified = (self.client.starts, mark[1])


def place(record):
    return record["card_id"], record["device_id"]


def unusable(functions, error):
    where = ", ".join(function["address"] for function in functions) or "a device node"
    bound = sum(function["driver"] is not None for function in functions)
    text = f"{len(functions)} NPUs on PCI ({where}), {bound} with a driver; the driver cannot be asked: {error}"
    return text if functions else f"there is {where} of an NPU driver, but it cannot be asked: {error}"


def merge(functions, identities, states, wanted_family, dev_root):
    """One record for each chip that DCMI names, with what PCI and /dev show of it."""
    by_address = {function["address"]: function for function in functions}
    chips, problems, families = [], [], set()
    for state in states:
        known = identities.get(place(state), {})
        address = known.get("pci_address")
        function = by_address.pop(address, None)
        family = function["family"] if function else family_of_name(known.get("name"))
        phy_id = known.get("phy_id") if state["phy_id"] is None else state["phy_id"]
        where = f"card {state['card_id']} chip {state['device_id']}" + (f" (PCI {address})" if address else "")
        error = state["error"]["message"] if state["error"] else None
        if phy_id is None or family is None:
            problems.append(f"{where} is left out: {error or 'its family is not known'}")
            continue
        if wanted_family not in ("auto", family):
            continue
        families.add(family)
        node = f"{dev_root}/davinci{phy_id}"
        chips.append({
            "phy_id": phy_id, "card_id": state["card_id"], "device_id": state["device_id"], "name": known.get("name"), "family": family,
            "pci_address": address, "numa_node": function["numa_node"] if function else None,
            "driver_bound": function["driver"] is not None if function else None,
            "device_node": node, "device_node_present": os.path.exists(node),
            "health_code": state["health_code"], "error_codes": state["error_codes"], "dropped": state["dropped"], "error": error,
        })
    for address in sorted(by_address):
        problems.append(f"the NPU at PCI {address} is not known to the driver")
    if len(families) > 1:
        several = ", ".join(sorted(families))
        return Sight(True, None, [], [*problems, f"NPUs of several families ({several}): set `family` in the configuration to one of them"], True)
    return Sight(True, families.pop() if families else None, chips, problems, True)
