# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container gets with its chips. Obeys exactly the ids that kubelet sends and keeps nothing.

`allocate_mode`
  devices  device nodes only: works with every runtime; the driver's libraries must come into the container by other means.
  env      ASCEND_VISIBLE_DEVICES only: needs the vendor's container runtime, which adds nodes and libraries itself.
  both     the default. Through the nodes nothing depends on which runtime a container has, and an update of the container (CPU manager,
           `systemctl daemon-reload`) keeps them; where the vendor's runtime is in use, the variable has it mount the driver's libraries.
"""

import os

VARIABLE = "ASCEND_VISIBLE_DEVICES"  # physical ids, never "all" (vendor runtime)


class Refused(Exception):
    """Kubelet shows this text on the pod and does not try again, so it says what an operator must know."""


def answer(ids, chips, managers, settings):
    """{"envs": {...}, "devices": [(host path, container path)]} for one container."""
    chosen = []
    for name in ids:
        if name not in chips:
            known = ", ".join(chips) or "none"
            raise Refused(f"{name} is no chip of this node (there are: {known}); restart npu-agent and kubelet if chips were exchanged")
        chosen.append(chips[name])
    chosen.sort(key=lambda chip: chip.phy_id)
    given: dict = {"envs": {}, "devices": []}
    if settings.allocate_mode != "devices":
        given["envs"][VARIABLE] = ",".join(str(chip.phy_id) for chip in chosen)
    if settings.allocate_mode != "env":
        for chip in chosen:
            node = f"{settings.dev_root}/davinci{chip.phy_id}"
            if not os.path.exists(node):
                raise Refused(f"{node} of {chip.id} (PCI {chip.pci_address}) does not exist on this node: the NPU driver is not loaded "
                              "or lost the chip; see `npu-agent discover` and `dmesg` there")
            given["devices"].append((node, f"/dev/davinci{chip.phy_id}"))
        given["devices"] += manager_nodes(managers, settings.dev_root)
    return given


def manager_nodes(managers, dev_root):
    """[(host path, container path)] of those that exist: a path that does not would keep the container from starting for ever."""
    nodes = [(f"{dev_root}/{node['host']}", f"/dev/{node['container']}") for node in managers]
    return [(host, inside) for host, inside in nodes if os.path.exists(host)]
