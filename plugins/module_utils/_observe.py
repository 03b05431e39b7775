# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything about one node in one look: what npu_info returns and what the gates judge. Private to the collection."""

from ansible_collections.npu.fleet.plugins.module_utils import _agent, _detached, _device_group, _engine
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import holders, under, users_present
from ansible_collections.npu.fleet.plugins.module_utils._packages._node import see
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import DEFAULT_USER
from ansible_collections.npu.fleet.plugins.module_utils._packages._units import running_packages


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


def versions(hardware, components):
    """On disk from files only, running from the driver only."""
    per_chip = [chip["firmware_version"] for chip in hardware["chips"]]
    same = per_chip[0] if len(set(per_chip)) == 1 else None
    answer = {name: {"on_disk": components[name]["version"]} for name in sorted(components)}
    answer["driver"]["running"] = hardware["driver"]["version"]
    answer["firmware"].update(running=same, per_chip=per_chip)
    return answer


def observe(params, ask=True):
    """Everything about this node; without ``ask`` but for what only its driver knows.

    Raises FleetError when its own files cannot be read.
    """
    root = params["root"]
    # First, so that a package that ends while we look is still one that runs: what it leaves may be seen half done.
    at_work = running_packages(under(root, _detached.STATE_DIR))
    npu, hardware, components = see(params, ask)
    username = components["driver"]["record"].get("username") or DEFAULT_USER
    reasons = [components[name]["reason"] for name in sorted(components) if components[name]["state"] == "reboot_pending"]
    if at_work:
        # Nobody may take a node down in the middle of a flash.
        reasons = []
    seen = (
        "present", "backend", "family", "families", "product", "chips", "unknown", "virtual_functions", "device_nodes", "query", "notes",
    )
    npu.update({key: hardware[key] for key in seen})
    npu.update(
        versions=versions(hardware, components),
        components=components,
        engines=_engine.observe(run, root),
        agent=_agent.observe(root, run),
        holders=holders(params["proc_root"], hardware["device_nodes"]),
        device_group=_device_group.group_of(root),
        users=users_present(sorted({DEFAULT_USER, username}), root),
        running_packages=at_work,
        reboot_required=bool(reasons),
        reboot_reasons=reasons,
    )
    return npu
