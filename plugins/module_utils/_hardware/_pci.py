# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI functions of NPUs, seen before any driver exists.

Ids: processing table of the vendor's ascend-deployer 26.0.0 (products) and the device tables of its open driver (devdrv_adapt.c,
xsmem_modprobe_adapt.c: further devices, virtual functions, vendors of OEM cards). tests/vectors/pci.yaml has each row with its source.
"""

import os
import re

VENDOR = "19e5"
# The driver binds these devices under other vendors too. The installer's own check looks at 19e5 only, so it misses them.
OEM_DEVICES = {"20c6": ("d500", "d802"), "203f": ("d500", "d802"), "20e9": ("d500", "d802"), "ffff": ("d500",)}
CLASS_ACCELERATOR = "1200"
CLASS_BRIDGE = "0604"
BRIDGE_DEVICE = "d107"  # 310B in root-complex mode shows itself as a bridge
VIRTUAL_DEVICES = {"d805": "a2"}
ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")

# device -> family key (None: in the driver's table, but no package is known for it)
DEVICES = {
    "d100": "310", "d105": "310b", "d107": "310b", "d500": "310p", "d501": "310p", "d801": "910", "d802": "a2", "d803": "a3",
    "d804": None, "d806": "a5", "d807": None, "d808": None,
}
# (device, subsystem vendor, subsystem device) -> product; None where one id stands for several
# products: A900T is a board of several servers, 910 boards sit in cards and servers.
PRODUCTS = {
    ("d100", "0200", "0100"): "Atlas 300I 3000/3010",
    ("d105", "0200", "0100"): "Atlas 200I A2",
    ("d107", "0000", "0000"): "Atlas 200I DK A2",
    ("d500", "0200", "0100"): "Atlas 300I Pro / 300V / 300V Pro",
    ("d500", "0200", "0110"): "Atlas 300I Duo",
    ("d801", "0200", "0100"): None,
    ("d802", "0200", "0100"): None,
    ("d802", "19e5", "3000"): None,
    ("d802", "19e5", "3001"): None,
    ("d802", "19e5", "3002"): "Atlas 800I A2",
    ("d802", "19e5", "3003"): None,
    ("d802", "19e5", "3004"): "Atlas 800I A2",
    ("d802", "19e5", "3005"): "Atlas 800I A2",
    ("d802", "19e5", "3400"): None,
    ("d802", "19e5", "3401"): None,
    ("d802", "19e5", "3402"): None,
    ("d802", "19e5", "3403"): None,
    ("d802", "19e5", "4000"): "Atlas 300I A2",
    ("d802", "19e5", "6000"): "Atlas 300T A2",
    ("d803", "19e5", "0100"): "Atlas 800I A3",
    ("d803", "19e5", "3000"): "Atlas 900 A3 Pod",
    ("d803", "19e5", "3001"): "Atlas 900 A3 Pod",
    ("d803", "19e5", "3002"): "Atlas 900 A3 Pod",
    ("d803", "19e5", "3003"): "Atlas 800I A3",
    ("d806", "19e5", "4003"): "Atlas 350",
    ("d806", "19e5", "4004"): "Atlas 350",
    ("d806", "19e5", "4005"): "Atlas 350",
}


def classify(vendor, device, class_id):
    """(kind, family) of a PCI function: kind is "chip", "virtual", "unknown", or None when it is no NPU at all.

    "unknown" is an accelerator of the vendor that no table names: nothing may be installed for it.
    """
    if vendor == VENDOR:
        if device in VIRTUAL_DEVICES:
            return "virtual", VIRTUAL_DEVICES[device]
        if class_id == CLASS_BRIDGE:
            return ("chip", DEVICES[device]) if device == BRIDGE_DEVICE else (None, None)
        if class_id != CLASS_ACCELERATOR:
            return None, None
        family = DEVICES.get(device)
        return ("chip", family) if family else ("unknown", None)
    if device in OEM_DEVICES.get(vendor, ()) and class_id == CLASS_ACCELERATOR:
        return "chip", DEVICES[device]
    return None, None


def product_of(device, sub_vendor, sub_device):
    """Product name that these ids tell for certain, else None."""
    return PRODUCTS.get((device, sub_vendor, sub_device))


def _read(folder, name):
    """Text of a sysfs attribute; None when it is not there (a function may vanish while it is read)."""
    try:
        with open(os.path.join(folder, name)) as handle:
            return handle.read().strip().lower()
    except OSError:
        return None


def _id(folder, name):
    text = _read(folder, name)
    return None if text is None else text[2:] if text.startswith("0x") else text


def _function(folder, address):
    vendor, device, class_id = _id(folder, "vendor"), _id(folder, "device"), (_id(folder, "class") or "")[:4]
    kind, family = classify(vendor, device, class_id)
    if kind is None:
        return None
    if os.path.islink(os.path.join(folder, "physfn")):
        kind = "virtual"
    node = _read(folder, "numa_node")
    driver = os.path.join(folder, "driver")
    sub_vendor, sub_device = _id(folder, "subsystem_vendor"), _id(folder, "subsystem_device")
    return {
        "address": address,
        "kind": kind,
        "family": family,
        "vendor": vendor,
        "device": device,
        "sub_vendor": sub_vendor,
        "sub_device": sub_device,
        "class": class_id,
        "numa_node": int(node) if node and re.match(r"^[0-9]+$", node) else None,  # the kernel writes -1 when it does not know
        "driver": os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None,
        "product": product_of(device, sub_vendor, sub_device),
    }


def scan(sysfs_root="/sys"):
    """All NPU functions of this machine, by address. A missing PCI tree (some SoC boards) is an empty list."""
    base = os.path.join(sysfs_root, "bus", "pci", "devices")
    try:
        names = sorted(name for name in os.listdir(base) if ADDRESS.match(name.lower()))
    except OSError:
        return []
    found = [_function(os.path.join(base, name), name.lower()) for name in names]
    return [function for function in found if function is not None]
