# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the agent's manifests, with what is refused in words. Pure. Private to the collection."""

from __future__ import annotations

import copy
import re
from typing import Any

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_pod import PROFILES

DEFAULTS: dict[str, Any] = {
    "namespace": "npu-fleet", "image": "", "access": "devices", "profiles": ["server"], "config": {}, "kubelet_root": "/var/lib/kubelet",
    # Kubelet has it there whatever its own folder is (its constant pluginapi.DevicePluginPath).
    "device_plugins": "/var/lib/kubelet/device-plugins",
    "install_path": "/usr/local/Ascend", "pull_policy": "IfNotPresent", "pull_secrets": [], "tolerations": [], "memory_limit": "512M",
    "max_unavailable": "10%", "confine": True, "labels": True,
}
ACCESS_WAYS = ("devices", "privileged")
#: Of declared devices and endpoints nothing says which nodes of /dev the pod needs, or that it needs any.
SERVICE_ONLY = ("paths", "remote")
UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_MEMORY = re.compile(r"([0-9]+)(?:([KMGT])i?)?B?")


def memory_quantity(text: str) -> str:
    """systemd's notation (512M is 512 * 1024 * 1024) as Kubernetes writes the same amount; it shows a quantity in its shortest form."""
    found = _MEMORY.fullmatch(str(text).strip())
    amount = int(found[1]) * 1024 ** UNITS[found[2] or ""] if found else 0
    if not amount:
        raise FleetError(
            f"npu_device_plugin_memory_max is {text!r}. As a DaemonSet the agent needs an amount in bytes, such as 512M or 1G; a share of "
            "the node's memory or no limit at all is not known to Kubernetes.", "invalid_option", object="npu_device_plugin_memory_max",
            observed=str(text), hint="Set npu_device_plugin_memory_max: 512M, which is the default.")
    power = max(power for power in UNITS.values() if amount % 1024 ** power == 0)
    unit = next(unit for unit, value in UNITS.items() if value == power)
    return f"{amount // 1024 ** power}{unit + 'i' if unit else ''}"


def unavailable(value: Any) -> Any:
    """How many pods an update may take at once: a number as number, a share as text."""
    text = str(value).strip()
    share = re.fullmatch(r"([0-9]{1,3})%?", text)
    if share is None or not int(share[1]) or (text.endswith("%") and int(share[1]) > 100):
        raise FleetError(f"npu_device_plugin_max_unavailable is {value!r}; it takes a number of pods, or a share such as 10%.",
                         "invalid_option", object="npu_device_plugin_max_unavailable", observed=str(value))
    return text if text.endswith("%") else int(text)


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options with defaults, or FleetError."""
    unknown = sorted(set(options) - set(DEFAULTS))
    if unknown:
        raise FleetError(f"There is no option {', '.join(unknown)} of the agent's manifests.", "invalid_option", object=unknown[0])
    full = {**copy.deepcopy(DEFAULTS), **options}
    if not full["image"]:
        raise FleetError("The DaemonSet needs an image and none is named.", "invalid_option", object="npu_device_plugin_image",
                         hint="Build one with the playbook npu.fleet.image, and set npu_device_plugin_image to what it prints.")
    if full["access"] not in ACCESS_WAYS:
        raise FleetError(f"npu_device_plugin_access is {full['access']!r}; there are {', '.join(ACCESS_WAYS)}.", "invalid_option",
                         object="npu_device_plugin_access", observed=full["access"],
                         hint="A CDI annotation is no way: kubelet does not hand a pod's annotations to the engine for its containers.")
    strange = [profile for profile in full["profiles"] if profile not in PROFILES]
    if strange or not full["profiles"]:
        raise FleetError(f"There is no profile {strange}; there are {', '.join(sorted(PROFILES))}.", "invalid_option", object="profiles")
    backend = full["config"].get("backend")
    if backend in SERVICE_ONLY:
        raise FleetError(
            f"The backend {backend} is not served as a DaemonSet: its pods get the device nodes of NPUs that are looked for, not such that "
            "are declared.",
            "invalid_option", object="npu_device_plugin_config", observed=backend,
            hint="Run the agent as a service on these nodes: npu_device_plugin_mode: systemd.")
    return {**full, "memory_limit": memory_quantity(full["memory_limit"]), "max_unavailable": unavailable(full["max_unavailable"])}
