# SPDX-License-Identifier: GPL-3.0-or-later
"""The NPU of a Rockchip SoC: found by the driver that it is bound to, given as its device nodes at their own paths.

A container gets all nodes of the NPU, since the vendor's runtime walks /dev/dri/card* and older ones open the render node, and no other
node below /dev/dri: that would be the GPU or the display. Never a link: by a link /dev/rknpu to a DRM node the runtime says
"hw_version = -1". What the runtime reads in /proc/device-tree (the SoC's name) engines hide from containers, and no answer to kubelet
can change that; so the name comes as a variable too, and docs/backends.md says what else there is.

The driver queues the jobs of several processes, but there are many reports of hangs and panics, so an NPU is one container's unless the
operator sets `shares`; the mask of cores is advice, nothing holds a container to it.
"""

import os
import re

from .. import nodes
from .._hardware import _rknpu
from ..opener import Opener
from .base import Backend, Looker, Refused, Sight, blind, in_container, merged, on_host, pattern, record

RESOURCES = {_rknpu.ROCKET: "rockchip.com/rocket"}
RESOURCE = "rockchip.com/rknpu"
SHARING = ("several containers on one Rockchip NPU: the kernel queues their jobs and keeps nothing apart, and hangs and panics of the "
           "driver have been reported; what you run there must have been tried together")
TEMPERATURE = "npu-thermal"
WANTED = re.compile(r"rknpu\Z|dri\Z|accel\Z")
DRI, ACCEL = re.compile(r"(?:card|renderD)[0-9]+\Z"), re.compile(r"accel[0-9]+\Z")


class Rockchip(Backend):
    name = "rockchip"
    facts = (("driver_bound", "driver"), ("driver_version", "driver version"), ("cores", "cores"), ("telemetry", "load and temperature"))
    distinct = True
    uevents = re.compile(rb"\0(?:DRIVER=(?:RKNPU|rocket)|DEVNAME=(?:rknpu|dri/(?:card|renderD)[0-9]+|accel/accel[0-9]+))\0")

    def looker(self, settings, watch=None, **more):
        opener = Opener(settings)
        return Looker(lambda clock: look(settings, clock, opener.refusals), settings, watch, over=opener.close, **more)

    def places(self, settings):
        return [(settings.dev_root, WANTED), (f"{settings.dev_root}/dri", DRI), (f"{settings.dev_root}/accel", ACCEL)]

    def ids(self, settings):
        return pattern(["npu-r[kv][0-9]{4}-", "npu-unknown-"])

    def sharing(self, family):
        return SHARING

    def give(self, chips, settings):
        """Looks again at what the board has: numbers of DRM nodes change when a driver comes back."""
        here = {one["address"]: one for one in _rknpu.find(settings.sysfs_root, settings.dev_root, settings.proc_root)}
        devices, variables = {}, []
        for chip in chips:
            one = here.get(chip.pci_address)
            why = "it is not there any more" if one is None else "; ".join(one["problems"])
            if one is None or why:
                raise Refused(f"{chip.id} ({chip.pci_address}) cannot be given: {why}; see `npu-agent discover` and `dmesg` on this node")
            devices.update((path, in_container(path, settings)) for path in one["device_nodes"])
            variables += list(told(one).items())
        devices.update((path, in_container(path, settings)) for path in extras(settings))
        return {"envs": merged(variables), "devices": list(devices.items()), "mounts": [], "cdi": []}


def told(one):
    """Variables of ours; the vendor's runtime has none for these."""
    known = {
        "NPU_FLEET_SOC": one["soc"], "NPU_FLEET_NPU_STACK": one["stack"], "NPU_FLEET_NPU_DRIVER": one["driver_version"],
        "NPU_FLEET_NPU_CORES": one["cores"], "NPU_FLEET_NPU_CORE_MASK": one["cores"] and hex((1 << one["cores"]) - 1),
    }
    return {name: str(value) for name, value in known.items() if value}


def extras(settings):
    """What of `rockchip_extra` is a device node here."""
    found = [path for name in settings.rockchip_extra for path in nodes.matching(on_host(name, settings))]
    return [path for path in found if not nodes.trouble(path)]


def look(settings, clock, refusals):
    asked = clock()
    found = _rknpu.find(settings.sysfs_root, settings.dev_root, settings.proc_root)
    unseen = [] if found else blind(settings)
    chips, counts = [], {}
    # Of a DRM device the render node: who opens a card first becomes its master.
    tried = {one["address"]: one["device_nodes"][-1] for one in found if one["device_nodes"] and not one["problems"]}
    refused = refusals(tried.values())
    for one in found:
        number = counts[one["soc"]] = counts.get(one["soc"], -1) + 1
        node = tried.get(one["address"])
        chips.append(chip_of(one, number, settings, asked, broken(node, refused[node]) if node else None))
    return Sight(bool(found or unseen), chips, unseen, not unseen)


def broken(node, why):
    return f"its driver is broken: {node} cannot be opened: {why}; see `dmesg | grep -i -e rknpu -e rocket`" if why else None


def chip_of(one, number, settings, asked, unfit):
    """The record of one NPU. `pci_address` is its address on the board's own bus."""
    prefix = f"npu-{one['soc']}-"
    every = one["device_nodes"] + one["missing_nodes"]
    return record(
        name=one["soc"].upper(), family=one["soc"], pci_address=one["address"], serial=serial_of(settings), aicore_count=one["cores"],
        driver_bound=one["driver_bound"], device_node=next(iter(one["missing_nodes"] + one["device_nodes"]), None),
        device_node_present=not one["missing_nodes"] if one["driver_bound"] else None, node_trouble="; ".join(one["problems"]), unfit=unfit,
        asked_at=asked, telemetry=telemetry(settings), natural=f"{prefix}{number}", prefix=prefix,
        resource=RESOURCES.get(one["stack"], RESOURCE),
        places=sorted(in_container(path, settings) for path in every),
        stack=one["stack"], driver_version=one["driver_version"], cores=one["cores"], device_nodes=one["device_nodes"],
    )


def serial_of(settings):
    """The board's."""
    text = _rknpu.read(f"{settings.proc_root}/device-tree/serial-number") or \
        _rknpu.read(f"{settings.sysfs_root}/firmware/devicetree/base/serial-number")
    return (text or "").strip("\0 \n") or None


def telemetry(settings):
    """What can be read without waking the NPU; no ECC, no limit: nobody tells them."""
    return {"temperature_c": temperature(settings.sysfs_root), "temperature_limit_c": None, "ecc": None,
            **_rknpu.usage(settings.sysfs_root, settings.proc_root)}


def temperature(sysfs_root):
    folder = os.path.join(sysfs_root, "class/thermal")
    for name in _rknpu.listed(folder):
        if name.startswith("thermal_zone") and (_rknpu.read(f"{folder}/{name}/type") or "").strip() == TEMPERATURE:
            try:
                return int(_rknpu.read(f"{folder}/{name}/temp") or "") / 1000
            except ValueError:
                return None
    return None


BACKEND = Rockchip()
