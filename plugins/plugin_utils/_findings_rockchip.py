# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What there is to say about the NPU of a Rockchip board: its driver, which is the kernel's, and its device nodes.

Sources: docs/rockchip.md. Pure. Private to the collection.
"""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils._hardware._rknpu import ROCKET, SOCS
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import compare

#: The first driver that tells how busy the NPU is (public report for 0.4.2), and the oldest that runtimes 2.3 want.
WITH_LOAD = "0.7.2"
FOR_RUNTIME_23 = "0.9.0"
KERNEL_HINT = "Boot the board vendor's kernel (its NPU driver is part of it), or a newer one; docs/rockchip.md has the known versions."
NODES_HINT = "`ls -l /dev/dri /dev/rknpu` and `dmesg | grep -i rknpu` on the node."
VERSION_HINT = "`mount -t debugfs none /sys/kernel/debug`, or look into `dmesg | grep -i rknpu`."


def access(chip):
    """The same about who may open the nodes: a device keeps the host's number of its group in a container."""
    groups = [group for group in chip.get("device_groups") or [] if group]
    if not chip["device_nodes"] or chip.get("device_groups") is None:
        return []
    if groups:
        numbers = ", ".join(map(str, groups))
        message = f"A pod that does not run as root gets to the NPU by supplementalGroups: [{numbers}]."
        return [("note", "device_groups", chip["name"], message, "")]
    message = f"Only root may open the nodes of the NPU ({', '.join(chip['device_nodes'])}), here and in pods."
    return [("note", "device_groups", chip["name"], message, "npu_driver_device_group: NUMBER gives them to a group.")]


def of_chip(chip, driver):
    """[(severity, code, object, message, hint)] of one chip. ``driver``: version of the driver, None where nobody tells."""
    name = chip["name"]
    if chip.get("error"):
        error = chip["error"]
        hint = KERNEL_HINT if error["code"] == "npu_driver_missing" else NODES_HINT
        return [("warning", error["code"], name, f"{error['message']}.", hint)]
    if chip["family"] not in SOCS:
        message = f"The SoC {chip['family']} is in no table here. Its NPU is offered as it is; nothing was ever said of it."
        return [("warning", "soc_unknown", name, message, "Known are " + ", ".join(sorted(SOCS)) + ".")]
    if chip["stack"] == ROCKET:
        message = (
            "This kernel drives the NPU by mainline's rocket. The vendor's runtime (librknnrt) does not work with it: the node offers "
            "rockchip.com/rocket instead of rockchip.com/rknpu, and images need Mesa's Teflon, 25.3 or newer."
        )
        return [("warning", "rocket", name, message, "For the vendor's runtime boot the board vendor's kernel.")]
    if driver is None:
        message = "The NPU driver does not tell its version: neither /proc/rknpu nor debugfs has it."
        return [("note", "driver_version_unknown", name, message, VERSION_HINT)]
    if compare(driver, WITH_LOAD) < 0:
        message = f"The NPU driver {driver} is older than {WITH_LOAD}: it does not tell how busy the NPU is; runtimes of today want more."
        return [("warning", "driver_old", name, message, KERNEL_HINT)]
    if compare(driver, FOR_RUNTIME_23) < 0:
        message = f"The NPU driver {driver} is older than {FOR_RUNTIME_23}, which librknnrt 2.3 wants. Older runtimes work with it."
        return [("warning", "driver_old", name, message, KERNEL_HINT)]
    return []
