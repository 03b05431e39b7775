# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NPUs of Rockchip SoCs: which one this board has, by which driver stack, and its device nodes.

Three stacks make three kinds of nodes (sources: the vendor's driver 0.9.8, public reports):
  rknpu-drm   a DRM device: /dev/dri/cardN and /dev/dri/renderDM. The numbers differ from board to board and from boot to boot, so the
              nodes are found by the device that they belong to, never by a number.
  rknpu-misc  the same driver, built with CONFIG_ROCKCHIP_RKNPU_DMA_HEAP: /dev/rknpu.
  rocket      mainline's driver (Linux 6.18 and newer): /dev/accel/accelN. The vendor's runtime does not work with it.
A driver that is built into the kernel is in no list of modules, so what counts is the driver that the device is bound to.
"""

import os
import re
import stat

# cores: of one NPU. npu: whose NPU it is to the device tree: the RK3583 is an RK3588 with a core fused off, the RK3566 has the RK3568's. An
# RK3588S has the NPU of the RK3588, and goes by that name.
SOCS = {
    "rk3588": {"cores": 3, "npu": "rk3588"}, "rk3583": {"cores": 2, "npu": "rk3588"}, "rk3576": {"cores": 2, "npu": "rk3576"},
    "rk3568": {"cores": 1, "npu": "rk3568"}, "rk3566": {"cores": 1, "npu": "rk3568"}, "rk3562": {"cores": 1, "npu": "rk3562"},
}
DRM, MISC, ROCKET = "rknpu-drm", "rknpu-misc", "rocket"
COMPATIBLE = re.compile(r"rockchip,(r[kv][0-9]{4})[a-z0-9]*-(rknpu|rknn-core)\Z")
BOARD = re.compile(r"rockchip,(r[kv][0-9]{4})[a-z0-9]*\Z")
DRM_NODE = re.compile(r"(?:card|renderD)[0-9]+\Z")
ACCEL_NODE = re.compile(r"accel[0-9]+\Z")
DRIVERS = {"rknpu": DRM, "rocket": ROCKET}  # as the kernel calls them, in lower case
# rocket's accel device belongs to a platform device of this name, not to one of the cores.
ROCKET_DEVICE = re.compile(r"rknn(?:\.[0-9]+)?\Z")
VERSION = re.compile(r"v?([0-9]+(?:\.[0-9]+)+)")
CORE_LOAD = re.compile(r"(?:Core|NPU)([0-9]+):\s*([0-9]*)\s*%")
WHOLE_LOAD = re.compile(r"NPU load:\s*([0-9]*)\s*%\s*\Z")


def find(sysfs_root="/sys", dev_root="/dev", proc_root="/proc"):
    """The NPUs of this board, a list of dicts:

    soc ("rk3588"), address ("fdab0000.npu"), stack, driver_bound, driver_version (None: nobody tells), device_nodes (paths that exist),
    missing_nodes (paths that the driver has and /dev has not), cores (None: of a SoC that is not known here), numa_node (always None: these
    SoCs have one memory), problems (texts: why no container can use it).
    """
    names = board_names(sysfs_root, proc_root)
    vendor, rocket = [], []
    for address, device in devices(sysfs_root):
        facts = uevent(device)
        kind = compatible(facts)
        driver = facts.get("DRIVER", "").lower()
        if kind is None and DRIVERS.get(driver) != DRM:
            continue
        tree = kind or (None, "rknpu")
        one = {
            "soc": soc_of(tree[0], names), "address": address, "stack": ROCKET if tree[1] != "rknpu" else DRM,
            "driver_bound": driver in DRIVERS, "device": device,
        }
        (rocket if one["stack"] == ROCKET else vendor).append(one)
    found = one_for_each_node([with_nodes(one, sysfs_root, dev_root, proc_root) for one in vendor])
    return found + ([with_cores(rocket, sysfs_root, dev_root)] if rocket else [])


def one_for_each_node(found):
    """The build with /dev/rknpu has that one node for all it drives: two NPUs with the same nodes are one that can be given."""
    kept = {}
    for one in found:
        nodes = tuple(one["device_nodes"] + one["missing_nodes"]) or (one["address"],)
        if nodes not in kept or (one["driver_bound"] and not kept[nodes]["driver_bound"]):
            kept[nodes] = one
    return list(kept.values())


def with_nodes(one, sysfs_root, dev_root, proc_root):
    """An NPU of the vendor's driver."""
    device = one.pop("device")
    drm = os.path.join(sysfs_root, "class/drm")
    names = [name for name in listed(drm) if DRM_NODE.match(name) and leads_to(os.path.join(drm, name), device)]
    wanted = [os.path.join(dev_root, "dri", name) for name in names]
    misc = os.path.join(dev_root, "rknpu")
    if not wanted and (os.path.exists(os.path.join(sysfs_root, "class/misc/rknpu")) or is_device(misc)):
        one["stack"], wanted = MISC, [misc]
    one.update(driver_version=driver_version(sysfs_root, proc_root) if one["driver_bound"] else None,
               cores=SOCS[one["soc"]]["cores"] if one["soc"] in SOCS else None)
    return judged(one, wanted, misc)


def with_cores(cores, sysfs_root, dev_root):
    """The NPU of the driver rocket: each core is a device of its own, and all of them have one node."""
    folder = os.path.join(sysfs_root, "class/accel")
    own = {one["device"] for one in cores}
    wanted = []
    for name in listed(folder):
        device = os.path.realpath(os.path.join(folder, name, "device"))
        if ACCEL_NODE.match(name) and (device in own or ROCKET_DEVICE.match(os.path.basename(device))):
            wanted.append(os.path.join(dev_root, "accel", name))
    bound = [one for one in cores if one["driver_bound"]]
    one = dict((bound or cores)[0])
    del one["device"]
    one.update(driver_version=None, cores=len(bound) or None)
    return judged(one, wanted, os.path.join(dev_root, "rknpu"))


def judged(one, wanted, misc):
    """The NPU with its nodes, and what is wrong. ``misc``: where the other build of the vendor's driver has its node."""
    where = "the NPU {0}".format(one["address"])
    problems = []
    if not one["driver_bound"]:
        problems = ["{0} has no driver: the kernel has none for it, or it failed; see `dmesg | grep -i -e rknpu -e rocket`".format(where)]
    elif not wanted:
        problems = ["{0} has a driver, but no device node; see `dmesg | grep -i -e rknpu -e rocket`".format(where)]
    # A link of that name beside other nodes misleads the vendor's runtime, see node_trouble().
    others = [misc] if os.path.islink(misc) and misc not in wanted else []
    problems = problems + [text for text in map(node_trouble, wanted + others) if text]
    one.update(device_nodes=[path for path in wanted if os.path.lexists(path)], problems=problems, numa_node=None,
               missing_nodes=[path for path in wanted if not os.path.lexists(path)])
    return one


def node_trouble(path):
    """Why no container may get this node, "" where it may. By a link /dev/rknpu to a DRM node the vendor's runtime speaks the wrong
    language to it: "hw_version = -1"."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "its device node {0} is missing".format(path)
    if stat.S_ISLNK(mode):
        return "{0} is a symbolic link, no device node: remove it".format(path)
    return "" if stat.S_ISCHR(mode) else "{0} is no device node: remove it".format(path)


def devices(sysfs_root):
    """[(address, real path)] of platform devices that may be an NPU: by the driver that they are bound to, by their name, by their node."""
    found = {}
    platform = os.path.join(sysfs_root, "bus/platform")
    for driver in ("RKNPU", "rknpu", "rocket"):
        folder = os.path.join(platform, "drivers", driver)
        found.update((name, os.path.join(folder, name)) for name in listed(folder) if ".npu" in name)
    folder = os.path.join(platform, "devices")
    found.update((name, os.path.join(folder, name)) for name in listed(folder) if name.endswith(".npu"))
    drm = os.path.join(sysfs_root, "class/drm")
    for name in listed(drm):
        link = os.path.join(drm, name, "device")
        if DRM_NODE.match(name) and uevent(link).get("DRIVER", "").lower() == "rknpu":
            found.setdefault(os.path.basename(os.path.realpath(link)), link)
    return [(name, os.path.realpath(path)) for name, path in sorted(found.items())]


def leads_to(node, device):
    return os.path.realpath(os.path.join(node, "device")) == device


def uevent(device):
    """{key: value} of a device's uevent; a bound driver is also known by its link."""
    facts = dict(line.partition("=")[::2] for line in (read(os.path.join(device, "uevent")) or "").splitlines())
    if "DRIVER" not in facts and os.path.exists(os.path.join(device, "driver")):
        facts["DRIVER"] = os.path.basename(os.path.realpath(os.path.join(device, "driver")))
    return facts


def compatible(facts):
    """(SoC, "rknpu" or "rknn-core") of a device, None where it is no NPU."""
    for key in sorted(facts):
        match = COMPATIBLE.match(facts[key]) if key.startswith("OF_COMPATIBLE_") else None
        if match:
            return match.groups()
    return None


def board_names(sysfs_root, proc_root):
    """The SoCs that the device tree names for this board, the most exact first."""
    text = read(os.path.join(proc_root, "device-tree/compatible")) or read(os.path.join(sysfs_root, "firmware/devicetree/base/compatible"))
    return [match.group(1) for match in map(BOARD.match, (text or "").split("\0")) if match]


def soc_of(tree, names):
    """The SoC: the board's, where its NPU is what the device tree calls this one; else what that says."""
    for name in names:
        if tree is None or (SOCS[name]["npu"] if name in SOCS else name) == tree:
            return name
    return tree or "unknown"


def driver_version(sysfs_root, proc_root):
    """The version that the driver tells, in the first file that has one; None where nobody tells: that harms no container.

    debugfs is root's, and a kernel that is locked down gives it to nobody. Some forks have the names of their macros there, not the
    numbers (their source).
    """
    for folder in folders(sysfs_root, proc_root) + [os.path.join(sysfs_root, "module/rknpu")]:
        match = VERSION.search((read(os.path.join(folder, "version")) or "")[:4096])
        if match:
            return match.group(1)
    return None


def folders(sysfs_root, proc_root):
    """Where the driver has its files, by how the kernel was built. Its file `freq` must not be read: that wakes the NPU."""
    return [os.path.join(proc_root, "rknpu"), os.path.join(sysfs_root, "kernel/debug/rknpu")]


def load(text):
    """[percent of each core], in their order, of the driver's file `load`; None for a value that cannot be. ValueError for another text.

    Kernels print zero as "0" or as blanks, and a counter that ran over gives values such as 429496 %.
    """
    cores = {int(number): value for number, value in CORE_LOAD.findall(text)}
    if cores:
        return [percent(cores.get(number)) for number in range(max(cores) + 1)] if max(cores) < 64 else refuse(text)
    match = WHOLE_LOAD.search(text)
    return [percent(match.group(1))] if match else refuse(text)


def refuse(text):
    raise ValueError("this is no load of an NPU: {0!r}".format(text[:80]))


def percent(digits):
    value = None if digits is None else int(digits or 0)
    return value if value is not None and value <= 100 else None


def usage(sysfs_root="/sys", proc_root="/proc"):
    """{"load": [percent of each core] or None, "power": True, False or None}. Reading them wakes nothing."""
    cores = power = None
    for folder in folders(sysfs_root, proc_root):
        text = read(os.path.join(folder, "load"))
        if text is not None and cores is None:
            try:
                cores = load(text)
            except ValueError:
                pass
        if power is None:
            power = {"on": True, "off": False}.get((read(os.path.join(folder, "power")) or "").strip())
    return {"load": cores, "power": power}


def is_device(path):
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def read(path):
    """Text of a file of the kernel, None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(65536)
    except OSError:
        return None


def listed(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
