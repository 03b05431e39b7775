# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything about one node in one look: what npu_info returns and what the gates judge. Private to the collection."""

from ansible_collections.npu.fleet.plugins.module_utils import _agent, _detached, _engine
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._hardware._dcmi_client import DcmiClient, DcmiError, find_library
from ansible_collections.npu.fleet.plugins.module_utils._hardware._detect import detect
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import holders, host, under, users_present
from ansible_collections.npu.fleet.plugins.module_utils._hardware._query import QueryError, find_npu_smi
from ansible_collections.npu.fleet.plugins.module_utils._packages import _state
from ansible_collections.npu.fleet.plugins.module_utils._packages._units import running_packages

DRIVER_USER = "HwHiAiUser"
INSTALL_PATH = "/usr/local/Ascend"


def look_options():
    """Options of a module that looks at a node: where its files are, and how long one query may take."""
    return {
        "root": {"type": "path", "default": "/"},
        "sysfs_root": {"type": "path", "default": "/sys"},
        "dev_root": {"type": "path", "default": "/dev"},
        "proc_root": {"type": "path", "default": "/proc"},
        "npu_smi": {"type": "path"},
        "dcmi_library": {"type": "path"},
        "timeout": {"type": "int", "default": 20},
    }


def see_hardware(params, install_path):
    """The detector's answer, with npu-smi and DCMI looked up where the driver was installed."""
    npu_smi, library, missing = params["npu_smi"], params["dcmi_library"], []
    if npu_smi is None:
        npu_smi, error = find_npu_smi(params["root"])
        missing += [error] if error else []
    if library is None:
        try:
            library = find_library(install_path, params["root"])
        except DcmiError as error:
            missing.append(QueryError("dcmi", error.code, error.message))
    client = DcmiClient(library, params["timeout"], install_path) if library else None
    try:
        return detect(
            run, params["sysfs_root"], params["dev_root"], dcmi=client, npu_smi=npu_smi, timeout=params["timeout"],
            install_path=install_path, boards=True, missing=missing,
        )
    finally:
        if client is not None:
            client.close()


def versions(hardware, components):
    """On disk from files only, running from the driver only."""
    per_chip = [chip["firmware_version"] for chip in hardware["chips"]]
    same = per_chip[0] if len(set(per_chip)) == 1 else None
    answer = {name: {"on_disk": components[name]["version"]} for name in sorted(components)}
    answer["driver"]["running"] = hardware["driver"]["version"]
    answer["firmware"].update(running=same, per_chip=per_chip)
    return answer


def observe(params):
    """Everything about this node. Raises FleetError when its own files cannot be read."""
    root = params["root"]
    # First, so that a package that ends while we look is still one that runs: what it leaves may be seen half done.
    at_work = running_packages(under(root, _detached.STATE_DIR))
    record = _state.observe(root)["driver"]["record"]
    hardware = see_hardware(params, record.get("install_path") or INSTALL_PATH)
    npu = host(root, params["proc_root"])
    firmware = [chip["firmware_version"] for chip in hardware["chips"] if chip["firmware_version"]]
    components = _state.observe(root, {
        "driver_loaded": hardware["driver"]["loaded"],
        "driver_version": hardware["driver"]["version"],
        "firmware_versions": firmware or None,
        "npu_present": hardware["present"],
        "kernel": npu["kernel"],
    })
    reasons = [components[name]["reason"] for name in sorted(components) if components[name]["state"] == "reboot_pending"]
    if at_work:
        # Nobody may take a node down in the middle of a flash.
        reasons = []
    seen = ("present", "family", "families", "product", "chips", "unknown", "virtual_functions", "device_nodes", "query")
    npu.update({key: hardware[key] for key in seen})
    npu.update(
        versions=versions(hardware, components),
        components=components,
        engines=_engine.observe(run, root),
        agent=_agent.observe(root, run),
        holders=holders(params["proc_root"]),
        users=users_present(sorted({DRIVER_USER, record.get("username") or DRIVER_USER}), root),
        running_packages=at_work,
        reboot_required=bool(reasons),
        reboot_reasons=reasons,
    )
    return npu
