# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container gets with its chips. Obeys exactly the ids that kubelet sends and keeps nothing.

`allocate_mode`
  devices  device nodes only: works with every runtime; the driver's libraries must come into the container by other means.
  env      ASCEND_VISIBLE_DEVICES only: needs the vendor's container runtime, which adds nodes and libraries itself.
  both     the default. Through the nodes nothing depends on which runtime a container has, and an update of the container (CPU manager,
           `systemctl daemon-reload`) keeps them; where the vendor's runtime is in use, the variable has it mount the driver's libraries.

`allocate_by: cdi` has no use for this: the container gets the chips by their CDI names, and cdi.py says what comes with them.
"""

import os

from . import cdi

VARIABLE = "ASCEND_VISIBLE_DEVICES"  # physical ids, never "all" (vendor runtime)


class Refused(Exception):
    """Kubelet shows this text on the pod and does not try again, so it says what an operator must know."""


def answer(ids, chips, managers, settings):
    """{"envs": {...}, "devices": [(host path, container path)], "cdi": [name]} for one container."""
    chosen = []
    for name in ids:
        if name not in chips:
            known = ", ".join(chips) or "none"
            raise Refused(f"{name} is no chip of this node (there are: {known}); restart npu-agent and kubelet if chips were exchanged")
        chosen.append(chips[name])
    chosen.sort(key=lambda chip: chip.phy_id)
    given: dict = {"envs": {}, "devices": [], "cdi": []}
    if settings.allocate_by == "cdi":
        described(chosen, settings)
        given["cdi"] = [cdi.qualified(chip.phy_id) for chip in chosen]
        return given
    if settings.allocate_mode != "devices":
        given["envs"][VARIABLE] = ",".join(str(chip.phy_id) for chip in chosen)
    if settings.allocate_mode != "env":
        for chip in chosen:
            given["devices"].append((own_node(chip, settings), f"/dev/davinci{chip.phy_id}"))
        given["devices"] += manager_nodes(managers, settings.dev_root)
    return given


def own_node(chip, settings):
    node = f"{settings.dev_root}/davinci{chip.phy_id}"
    if not os.path.exists(node):
        raise Refused(f"{node} of {chip.id} (PCI {chip.pci_address}) does not exist on this node: the NPU driver is not loaded "
                      "or lost the chip; see `npu-agent discover` and `dmesg` there")
    return node


def described(chosen, settings):
    """An engine that does not find a CDI name says only that; so look first. What stands in the file was judged when it was written."""
    for chip in chosen:
        own_node(chip, settings)
    path = os.path.join(settings.cdi_folder, cdi.FILE)
    if not os.path.exists(path):
        raise Refused(f"there is no {path} on this node, and chips are given by it (`allocate_by: cdi`); see `npu-agent cdi --check` there")


def manager_nodes(managers, dev_root):
    """[(host path, container path)] of those that exist: a path that does not would keep the container from starting for ever."""
    nodes = [(f"{dev_root}/{node['host']}", f"/dev/{node['container']}") for node in managers]
    return [(host, inside) for host, inside in nodes if os.path.exists(host)]
