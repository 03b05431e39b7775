# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at chips, what runs and what is on disk: for npu_info, gates and packages. Private to the collection."""

import os
import stat

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._hardware import _rockchip
from ansible_collections.npu.fleet.plugins.module_utils._hardware._dcmi_client import DcmiClient, DcmiError, find_library
from ansible_collections.npu.fleet.plugins.module_utils._hardware._detect import detect
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import ROCKCHIP
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import boot_time, host
from ansible_collections.npu.fleet.plugins.module_utils._hardware._query import QueryError, find_npu_smi
from ansible_collections.npu.fleet.plugins.module_utils._packages import _state
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import DEFAULT_PATH
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import Files

# Only for these does it matter what the driver itself says; asking it takes a second or more.
_ASK_DRIVER = ("driver", "firmware")
# A node as it is: where npu_info's options point by default.
HERE = {
    "root": "/", "sysfs_root": "/sys", "dev_root": "/dev", "proc_root": "/proc", "npu_smi": None, "dcmi_library": None, "timeout": 20,
}


def see(places, ask=True, boards=True):
    """Return (host facts, hardware, components) of the node at ``places``, a dict with the keys of HERE.

    Without ``ask`` the driver is not asked, only PCI and files are read; without ``boards`` not for each card's firmware.
    """
    root = places["root"]
    recorded = (Files(root).values(_state.INSTALL_INFO) or {}).get("Driver_Install_Path_Param")
    facts = host(root, places["proc_root"])
    hardware = see_hardware(places, recorded or DEFAULT_PATH, ask, boards)
    # What runs is asked for the vendor's packages; a driver that is part of the kernel is none of them.
    other = hardware["backend"] == ROCKCHIP
    firmware = [chip["firmware_version"] for chip in hardware["chips"] if chip["firmware_version"]]
    components = _state.observe(root, {
        "driver_loaded": hardware["driver"]["loaded"] and not other,
        "driver_version": None if other else hardware["driver"]["version"],
        "firmware_versions": firmware or None,
        "npu_present": hardware["present"] and not other,
        "kernel": facts["kernel"],
        "boot_id": facts["boot_id"],
        "boot_time": boot_time(places["proc_root"]),
    })
    return facts, hardware, components


def see_hardware(places, install_path, ask=True, boards=True):
    """The detectors' answer: cards, or the NPU of a board's SoC. Each chip has the groups that may open its nodes, by number."""
    board = _rockchip.detect(places["sysfs_root"], places["dev_root"], places["proc_root"])
    hardware = _rockchip.join(_see_cards(places, install_path, ask, boards), board)
    for chip in hardware["chips"]:
        chip["device_groups"] = groups_of(chip["device_nodes"])
    return hardware


def groups_of(nodes):
    """Numbers of the groups that may open these device nodes (a number has another name, or none, in a container's image)."""
    groups = set()
    for path in nodes:
        try:
            info = os.stat(path)
        except OSError:
            continue
        if info.st_mode & stat.S_IRGRP and info.st_mode & stat.S_IWGRP:
            groups.add(info.st_gid)
    return sorted(groups)


def _see_cards(places, install_path, ask, boards):
    """Cards on the PCI bus, with npu-smi and DCMI looked up where the driver was installed. What is missing is told, not guessed."""
    if not ask:
        return detect(run, places["sysfs_root"], places["dev_root"])
    npu_smi, library, missing = places["npu_smi"], places["dcmi_library"], []
    if npu_smi is None:
        npu_smi, error = find_npu_smi(places["root"])
        missing += [error] if error else []
    if library is None:
        try:
            library = find_library(install_path, places["root"])
        except DcmiError as error:
            missing.append(QueryError("dcmi", error.code, error.message))
    client = DcmiClient(library, places["timeout"], install_path) if library else None
    try:
        return detect(
            run, places["sysfs_root"], places["dev_root"], dcmi=client, npu_smi=npu_smi, timeout=places["timeout"],
            install_path=install_path, boards=boards, missing=missing,
        )
    finally:
        if client is not None:
            client.close()


def observe(component, root="/"):
    """Return what ``decide`` takes: arch, family, families and components."""
    facts, hardware, components = see(dict(HERE, root=root), ask=component in _ASK_DRIVER, boards=component == "firmware")
    return {
        "arch": facts["arch"],
        "family": hardware["family"],
        "families": hardware["families"],
        "components": components,
        "firmware_known": any(chip["firmware_version"] for chip in hardware["chips"]),
    }


def predict(observed, versions):
    """Return the observation as it would be once ``versions`` (component -> version) are installed; unchanged without any."""
    would_be = {
        component: _installed(observed["components"][component], version)
        for component, version in versions.items()
    }
    return dict(observed, components=dict(observed["components"], **would_be))


def _installed(now, version):
    # Whether it will answer is not known before it runs.
    return dict(now, state="present", version=version, reason=None, record=dict(now["record"], answers=None))
