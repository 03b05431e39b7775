# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a package decision needs to know of the node: chips, what runs, what is on disk. Private to the collection."""

import platform

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._hardware._dcmi_client import DcmiClient, DcmiError, find_library
from ansible_collections.npu.fleet.plugins.module_utils._hardware._detect import detect
from ansible_collections.npu.fleet.plugins.module_utils._hardware._query import find_npu_smi
from ansible_collections.npu.fleet.plugins.module_utils._packages import _state
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import DEFAULT_PATH

# Only for these does it matter what the driver itself says; asking it takes a second or more.
_ASK_DRIVER = ("driver", "firmware")
_QUERY_SECONDS = 20


def observe(component, root="/"):
    """Return what ``decide`` takes: arch, family, families and components."""
    record = _state.observe(root)["driver"]["record"]
    hardware = _detect(component, root, record.get("install_path") or DEFAULT_PATH)
    firmware = [chip["firmware_version"] for chip in hardware["chips"] if chip["firmware_version"]]
    running = {
        "driver_loaded": hardware["driver"]["loaded"],
        "driver_version": hardware["driver"]["version"],
        "firmware_versions": firmware or None,
        "npu_present": hardware["present"],
        "kernel": platform.release(),
    }
    return {
        "arch": platform.machine(),
        "family": hardware["family"],
        "families": hardware["families"],
        "components": _state.observe(root, running),
        "firmware_known": bool(firmware),
    }


def _detect(component, root, install_path):
    if component not in _ASK_DRIVER:
        return detect(run)
    npu_smi = find_npu_smi(root)[0]
    client = None
    try:
        library = find_library(install_path, root)
        client = DcmiClient(library, _QUERY_SECONDS, install_path) if library else None
    except DcmiError:
        # No driver, no library: the PCI functions tell what there is. What nobody tells stays unknown.
        client = None
    try:
        boards = component == "firmware"
        return detect(run, dcmi=client, npu_smi=npu_smi, timeout=_QUERY_SECONDS, install_path=install_path, boards=boards)
    finally:
        if client is not None:
            client.close()


def predict(observed, versions):
    """Return the observation as it would be once ``versions`` (component -> version) are installed; unchanged without any."""
    would_be = {
        component: dict(observed["components"][component], state="present", version=version, reason=None)
        for component, version in versions.items()
    }
    return dict(observed, components=dict(observed["components"], **would_be))
