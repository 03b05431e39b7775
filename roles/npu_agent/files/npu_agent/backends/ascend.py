# SPDX-License-Identifier: GPL-3.0-or-later
"""Huawei's Ascend NPUs: asked by the vendor's library DCMI (look.py), and given as the vendor's own plugin gives them.

`allocate_mode`
  devices  device nodes: works with every runtime.
  env      ASCEND_VISIBLE_DEVICES only: needs the vendor's container runtime, which adds nodes and libraries itself.
  both     the default. Through the nodes nothing depends on which runtime a container has, and an update of the container (CPU manager,
           `systemctl daemon-reload`) keeps them; where the vendor's runtime is in use, the variable has it mount the driver's libraries.

Where that runtime is not installed, the driver's files are mounted by the answer (mounts.py, `allocate_mounts`).

`allocate_by: cdi` has no use for this: the container gets the chips by their CDI names, and cdi.py says what comes with them.
"""

import json
import os
import re

from .. import cdi, mounts, nodes, signals
from .._hardware._families import FAMILIES, device_id
from .base import Backend, Refused

VARIABLE = "ASCEND_VISIBLE_DEVICES"  # never "all" (vendor runtime)
OPTIONS = ("ASCEND_RUNTIME_OPTIONS", "VIRTUAL")
ALLOW_LINK = ("ASCEND_ALLOW_LINK", "True")  # the driver's files of the boards with a 310B are symbolic links

PREFIXES = sorted({str(family["device_prefix"])[:-1] for family in FAMILIES.values()}, key=len, reverse=True)
ID = re.compile(rf"((?:{'|'.join(PREFIXES)})-)(?:[0-9]+c[0-9a-z.]*-([0-9]+)-)?([0-9]+)(?:-([0-9]+))?")


class Ascend(Backend):
    name = "ascend"
    facts = (
        ("name", "name"), ("pci_address", "PCI address"), ("numa_node", "NUMA node"), ("serial", "serial number"), ("vdie", "die id"),
        ("aicore_count", "AI cores"), ("driver_bound", "driver"), ("health_code", "health"), ("error_codes", "fault codes"),
        ("slices", "slices (vNPUs)"), ("telemetry", "temperature and ECC"),
    )
    uevents = signals.MATTERS
    cdi = True
    distinct = True

    def looker(self, settings, watch=None, **more):
        from ..look import Looker  # noqa: PLC0415  it takes this module's base

        return Looker(settings, watch, **more)

    def places(self, settings):
        return [(settings.dev_root, signals.NODE)]

    def resource(self, record):
        return FAMILIES[record["family"]]["resource"]

    def prefix(self, record):
        return FAMILIES[record["family"]]["device_prefix"]

    def natural(self, record):
        return device_id(record["family"], record["phy_id"])

    def ids(self, settings):
        return ID

    def keeper(self, settings, log):
        from ..cdi_file import Keeper  # noqa: PLC0415

        return Keeper(settings, log)

    def lacking(self, settings, families):
        return mounts.problems(settings, families)

    def sharing(self, family):
        """By public reports; the vendor shares 310P and 310B only."""
        if family in ("310p", "310b"):
            return ""
        return (f"on a chip of the family {family} a second container gets -8020 (the device is used) unless device-share is on for it: "
                "npu-smi set -t device-share -i CARD -c CHIP -d 1")

    def give(self, chips, settings):
        chips, given = sorted(chips, key=number), {"envs": {}, "devices": [], "mounts": [], "cdi": []}
        families = sorted({chip.family for chip in chips})
        devices = own_nodes(chips, families, settings)
        if settings.allocate_by == "cdi":
            described(chips, settings)
            return {**given, "cdi": [cdi.qualified(cdi.name_of(chip)) for chip in chips]}
        if settings.allocate_mode != "devices":
            given["envs"] = variables(chips, families)
        if settings.allocate_mode != "env":
            given["devices"] = devices + manager_nodes(families, settings.dev_root)
        return {**given, "mounts": mounts.for_container(settings, families)}


def number(chip):
    """N of its node on the host."""
    return chip.phy_id if chip.slice is None else chip.slice.vdev_id


def visible(chip):
    """What ASCEND_VISIBLE_DEVICES has for it: the physical id, of a slice its own; but of the family 950 the runtime wants logic ids."""
    if chip.family == "a5" and chip.logic_id is None:
        raise Refused(f"the driver does not tell the logic id of {chip.id} (PCI {chip.pci_address}), by which the vendor's runtime knows "
                      "it; a new pod gets another chip; with `allocate_mode: devices` it is not needed")
    return chip.logic_id if chip.family == "a5" else number(chip)


def variables(chips, families):
    envs = {VARIABLE: ",".join(str(shown) for shown in sorted(visible(chip) for chip in chips))}
    if chips[0].slice is not None:  # a resource has slices only, or none
        envs.update([OPTIONS])
    if "310b" in families:
        envs.update([ALLOW_LINK])
    return envs


def own_nodes(chips, families, settings):
    """[(host path, container path)]. A slice's node has the name of a chip's inside."""
    found, why, numbers = [], [], {}
    for chip in chips:
        node = f"{settings.dev_root}/{'davinci' if chip.slice is None else 'vdavinci'}{number(chip)}"
        try:
            there = os.lstat(node)
        except OSError:
            raise Refused(f"{node} of {chip.id} (PCI {chip.pci_address}) does not exist on this node: the NPU driver is not loaded "
                          "or lost the chip; see `npu-agent discover` and `dmesg` there") from None
        found.append((node, f"/dev/davinci{number(chip)}"))
        why.append(nodes.strange(node, there.st_mode))
        numbers.setdefault(there.st_rdev, []).append(node)
    why += [*nodes.twins(numbers).values(), *(nodes.manager_trouble(family, settings.dev_root) for family in families)]
    why = [text for text in why if text]
    if why:
        raise Refused(f"{why[0]}; see `npu-agent discover` on this node")
    return found


def described(chips, settings):
    """An engine that does not find a CDI name says only that; so look first. What stands in the file was judged when it was written."""
    path = os.path.join(settings.cdi_folder, cdi.FILE)
    try:
        with open(path, encoding="utf-8") as stream:
            names = {device["name"] for device in json.load(stream)["devices"]}
    except FileNotFoundError:
        raise Refused(f"there is no {path} on this node, and chips are given by it (`allocate_by: cdi`); see `npu-agent cdi --check` "
                      "there") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} on this node cannot be used, and chips are given by it (`allocate_by: cdi`): {error}; see `npu-agent cdi "
                      "--check` there") from None
    for chip in chips:
        if cdi.name_of(chip) not in names:
            raise Refused(f"{path} on this node does not name {chip.id} (PCI {chip.pci_address}) as {cdi.name_of(chip)!r}, and chips are "
                          "given by it (`allocate_by: cdi`); a new pod gets another chip; see `npu-agent cdi --check` there")


def manager_nodes(families, dev_root):
    """[(host path, container path)] of the nodes that chips of these families share. Only what exists and is a device: any other path would
    keep the container from starting for ever."""
    found = {}  # {container path: host path}: of two families the first one's
    for family in families:
        for node in FAMILIES[family]["managers"]:
            found.setdefault(f"/dev/{node['container']}", f"{dev_root}/{node['host']}")
        for folder in FAMILIES[family].get("folders", ()):
            for name in names_in(f"{dev_root}/{folder}"):
                found.setdefault(f"/dev/{folder}/{name}", f"{dev_root}/{folder}/{name}")
    return [(host, inside) for inside, host in found.items() if nodes.is_device(host)]


def names_in(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


BACKEND = Ascend()
