# SPDX-License-Identifier: GPL-3.0-or-later
"""What the simulated hardware and driver show below /sys and /dev: pure functions of the state, and the code that makes a folder equal.

A tree maps a relative path to bytes (a file), to a `Link` (a symbolic link) or to None (a folder).
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npu_sim import MAJOR, devices_answer, loaded_modules
from sim_products import BOARD_NODES, SERVER_NODES

DRIVER = "devdrv_device_driver"
CLASS_ACCELERATOR = 0x120000
# One private major for all nodes: N of davinciN is the minor, the managers come after every possible chip.
MANAGERS = {name: 200 + number for number, name in enumerate((*SERVER_NODES, *BOARD_NODES))}
SLICE_MINOR = 1000  # virtual devices: their ids begin at 100

Tree = dict[str, Any]


class Link(str):
    """Target of a symbolic link."""


def _number(text: Any) -> int:
    return int(str(text), 16)


def pci_config(ids: dict[str, int]) -> bytes:
    """Configuration space of a function without capabilities: enough for lspci, which reads ids and class from here."""
    space = bytearray(256)
    struct.pack_into("<HHHHB3s", space, 0, ids["vendor"], ids["device"], 0x0406, 0, 0x20, CLASS_ACCELERATOR.to_bytes(3, "little"))
    struct.pack_into("<HH", space, 0x2C, ids["subsystem_vendor"], ids["subsystem_device"])
    return bytes(space)


def pci_function(state: dict[str, Any], chip: dict[str, Any]) -> Tree:
    ids = {key: _number(value) for key, value in {**state["pci"], **(chip.get("pci") or {})}.items()}
    bound = state["kernel"]["driver_loaded"]
    slot = chip["pci_address"]
    uevent = [f"DRIVER={DRIVER}"] if bound else []
    uevent += ["PCI_CLASS=120000", f"PCI_ID={ids['vendor']:04X}:{ids['device']:04X}"]
    uevent += [f"PCI_SUBSYS_ID={ids['subsystem_vendor']:04X}:{ids['subsystem_device']:04X}", f"PCI_SLOT_NAME={slot}"]
    alias = f"pci:v{ids['vendor']:08X}d{ids['device']:08X}sv{ids['subsystem_vendor']:08X}sd{ids['subsystem_device']:08X}bc12sc00i00"
    lines = {key: f"0x{value:04x}" for key, value in ids.items()}
    lines |= {"class": f"0x{CLASS_ACCELERATOR:06x}", "revision": "0x20", "irq": "0", "enable": "1" if bound else "0"}
    lines |= {"numa_node": str(chip.get("numa_node", -1)), "local_cpulist": chip.get("affinity_cpu", ""), "modalias": alias}
    lines |= {"uevent": "\n".join(uevent), "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13)}
    lines |= {
        "current_link_speed": "16.0 GT/s PCIe",
        "max_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_width": "16",
    }
    tree: Tree = {f"{slot}/{name}": f"{value}\n".encode() for name, value in lines.items()}
    tree[f"{slot}/config"] = pci_config(ids)
    tree[f"{slot}/subsystem"] = Link("../../../pci")
    if bound:
        tree[f"{slot}/driver"] = Link(f"../../drivers/{DRIVER}")
    return tree


def pci_bus(state: dict[str, Any], real: Path) -> Tree:
    """/sys/bus/pci: the machine's own devices and drivers by links, the chips as folders."""
    tree: Tree = {"devices": None, "drivers": None}
    for entry in _names(real):
        if entry not in ("devices", "drivers"):
            tree[entry] = Link(real / entry)
    for device in _names(real / "devices"):
        # relative, so that the path below /sys/devices stays what it was
        tree[f"devices/{device}"] = Link(os.readlink(real / "devices" / device))
    for driver in _names(real / "drivers"):
        tree[f"drivers/{driver}"] = Link(real / "drivers" / driver)
    if state["kernel"]["driver_loaded"]:
        tree[f"drivers/{DRIVER}"] = None
    for chip in state["chips"]:
        if chip["present"]:
            tree |= {f"devices/{name}": value for name, value in pci_function(state, chip).items()}
            if state["kernel"]["driver_loaded"]:
                tree[f"drivers/{DRIVER}/{chip['pci_address']}"] = Link(f"../../devices/{chip['pci_address']}")
    return tree


def classes(state: dict[str, Any], real: Path) -> Tree:
    """/sys/class: copies of the machine's links, our classes beside them. `net` is left to a bind mount: it changes all the time."""
    tree: Tree = {}
    for name in _names(real):
        tree[name] = None
        for entry in _names(real / name) if name != "net" else []:
            source = real / name / entry
            tree[f"{name}/{entry}"] = Link(os.readlink(source)) if source.is_symlink() else Link(source)
    # The server's name; tools take it from dmidecode or from here. Ours replaces the machine's own.
    tree = {path: value for path, value in tree.items() if path != "dmi" and not path.startswith("dmi/")}
    maker, server = "Huawei", state.get("server") or state["product"]
    if state.get("virtual"):
        maker, server = "QEMU", "Standard PC (Q35 + ICH9, 2009)"
    for name, value in {"product_name": server, "sys_vendor": maker, "board_vendor": maker}.items():
        tree[f"dmi/id/{name}"] = f"{value}\n".encode()
    for name, (major, minor) in node_numbers(state).items():
        kind = "devdrv-class" if name.startswith(("davinci", "vdavinci")) and name not in MANAGERS else name
        tree[f"{kind}/{name}/dev"] = f"{major}:{minor}\n".encode()
        tree[f"{kind}/{name}/uevent"] = f"MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\n".encode()
    return tree


def modules(state: dict[str, Any], real: Path) -> Tree:
    """/sys/module: the machine's own modules by links, those of the driver as folders."""
    tree: Tree = {name: Link(real / name) for name in _names(real)}
    version = state["kernel"].get("driver_version") or ""
    for name in loaded_modules(state):
        tree[f"{name}/version"] = f"{version}\n".encode()
        tree[f"{name}/refcnt"] = b"0\n"
        tree[f"{name}/initstate"] = b"live\n"
        tree[f"{name}/coresize"] = b"1048576\n"
        tree[f"{name}/holders"] = None
    return tree


def node_numbers(state: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Device nodes that exist now: none without a driver, none for a chip that is gone."""
    if not devices_answer(state):
        return {}
    chips = [chip for chip in state["chips"] if chip["present"]]
    nodes = {f"davinci{chip['phy_id']}": (MAJOR, chip["phy_id"]) for chip in chips}
    nodes |= {f"vdavinci{one['vdev_id']}": (MAJOR, SLICE_MINOR + one["vdev_id"]) for chip in chips for one in chip.get("slices") or ()}
    return nodes | {name: (MAJOR, MANAGERS[name]) for name in state.get("managers") or SERVER_NODES}


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _with_parents(tree: Tree) -> Tree:
    whole = dict(tree)
    for path in tree:
        while "/" in path:
            path = path.rpartition("/")[0]
            if path in whole:
                break
            whole[path] = None
    return whole


def make_equal(target: Path, tree: Tree, keep: frozenset[str] = frozenset()) -> bool:
    """Changes the folder (never replaces it: it may be mounted elsewhere) until it shows the tree. True if anything changed.

    Entries below a path in `keep` are not looked at.
    """
    wanted = _with_parents(tree)
    there = _walk(str(target), "", keep)
    changed = False
    for path in sorted(there, key=lambda one: one.count("/"), reverse=True):
        # a folder that has to become something else goes with all that is in it
        if path not in wanted or (there[path] is None) != (wanted[path] is None):
            _remove(f"{target}/{path}")
            changed = True
    for path in sorted(wanted):
        if path not in there or (there[path] is None) != (wanted[path] is None) or there[path] != wanted[path]:
            _put(f"{target}/{path}", wanted[path])
            changed = True
    return changed


def _walk(root: str, prefix: str, keep: frozenset[str]) -> Tree:
    """The tree that a folder shows."""
    found: Tree = {}
    with os.scandir(f"{root}/{prefix}") as entries:
        for entry in entries:
            path = prefix + entry.name
            if entry.is_symlink():
                found[path] = Link(os.readlink(entry.path))
            elif entry.is_dir():
                found[path] = None
                if path not in keep:
                    found.update(_walk(root, f"{path}/", keep))
            else:
                with open(entry.path, "rb") as stream:
                    found[path] = stream.read()
    return found


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _put(path: str, value: Any) -> None:
    """Links and files appear in one step, so that a reader sees the old or the new one."""
    if value is None:
        os.mkdir(path)
        return
    folder, _, name = path.rpartition("/")
    fresh = f"{folder}/.{name}.new"
    if isinstance(value, Link):
        os.symlink(value, fresh)
    else:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o444)
        try:
            os.write(descriptor, value)
        finally:
            os.close(descriptor)
    os.rename(fresh, path)


def owner(state: dict[str, Any]) -> tuple[int, int, bool]:
    """uid, gid and whether both names are known; root stands in for a user that the machine does not have yet."""
    uid = gid = 0
    known = True
    try:
        uid = pwd.getpwnam(state["kernel"].get("node_owner") or "root").pw_uid
    except KeyError:
        known = False
    try:
        gid = grp.getgrnam(state["kernel"].get("node_group") or "root").gr_gid
    except KeyError:
        known = False
    return uid, gid, known


def make_nodes(dev: Path, state: dict[str, Any], mknod: Callable[..., None] = os.mknod) -> bool:
    """Device nodes as the state wants them, with mode and owner; nodes of ours that it does not want are removed.

    False when the owner is not known yet.
    """
    wanted = node_numbers(state)
    mode = int(str(state["kernel"].get("node_mode") or "0660"), 8)
    uid, gid, known = owner(state)
    for name in _names(dev):
        info = os.lstat(dev / name)
        ours = stat.S_ISCHR(info.st_mode) and os.major(info.st_rdev) == MAJOR
        if ours and wanted.get(name) != (MAJOR, os.minor(info.st_rdev)):
            os.unlink(dev / name)
    for name, (major, minor) in wanted.items():
        path = dev / name
        if not path.exists():
            # made beside its place and moved in: a reader never sees it with the wrong mode or owner
            fresh = dev / f".{name}.new"
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            mknod(fresh, stat.S_IFCHR | 0o600, os.makedev(major, minor))
            os.chown(fresh, uid, gid)
            fresh.chmod(mode)
            fresh.rename(path)
        info = path.stat()
        if (info.st_uid, info.st_gid) != (uid, gid):
            os.chown(path, uid, gid)
        if stat.S_IMODE(info.st_mode) != mode:
            path.chmod(mode)
    return known
