# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run would change on one node beside packages: the engine's entry of the runtime, the rule of a board's device nodes.

Pure. Private to the collection.
"""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils._device_group import RULE
from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import engine_of
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import ROCKCHIP
from ansible_collections.npu.fleet.plugins.plugin_utils._findings import finding
from ansible_collections.npu.fleet.plugins.plugin_utils._plan_checks import flag


def engine_step(observed, wanted):
    """'register' or 'none' for the engine's entry of the NPU runtime, from what the engine itself reports and what its file says."""
    if not wanted:
        return {"action": "none", "reason": "no runtime wanted"}
    name = wanted["name"]
    engine, why = engine_of(observed.get("engines") or [], wanted.get("engine") or "auto")
    if engine is None:
        return {"action": "register", "reason": f"container engine: {why}"}
    if engine.get("error"):
        return {"action": "register", "reason": f"{engine['name']}: {engine['error']}"}
    path = (engine.get("runtimes") or {}).get(name)
    if not path:
        reason = f"{engine['name']} does not know the runtime {name}; it will be registered as {wanted['path']}"
        return {"action": "register", "reason": reason}
    if path != wanted["path"]:
        return {"action": "register", "reason": f"{engine['name']} knows {name} as {path}, wanted {wanted['path']}"}
    if flag(wanted, "set_default") and engine.get("default_runtime") != name:
        return {"action": "register", "reason": f"default runtime is {engine.get('default_runtime')}, wanted {name}"}
    missing = _missing_in_file(engine, wanted)
    if missing:
        return {"action": "register", "reason": missing}
    return {"action": "none", "reason": f"{engine['name']} has {name} -> {path}"}


def group_step(observed, wanted):
    """'write', 'remove' or 'none' for the udev rule that gives a board's NPU to a group; the vendor's driver of a card has its own way."""
    group, now = int(wanted.get("device_group") or 0), observed.get("device_group", 0)
    if observed.get("backend") != ROCKCHIP or now == group or (now is None and not group):
        return {"action": "none", "group": group, "reason": "nothing to change"}
    was = "changed by hand" if now is None else f"for the group {now}" if now else "not there"
    action = "write" if group else "remove"
    reason = f"the rule of the NPU's nodes is {was}, wanted is {f'the group {group}' if group else 'none'}"
    return {"action": action, "group": group, "reason": reason}


def group_left(observed, wanted):
    """A rule that was changed by hand is somebody's: where none is wanted, it is told and stays."""
    if observed.get("backend") != ROCKCHIP or observed.get("device_group", 0) is not None or int(wanted.get("device_group") or 0):
        return []
    hint = "npu_driver_device_group: NUMBER makes it right; else delete it by hand if nobody needs it."
    return [finding("warning", "device_group_changed", "udev rule", f"The rule {RULE} was changed by hand, so it stays.", hint)]


def _missing_in_file(engine, wanted):
    """What the engine has in its memory only, and would have lost after its next start; None when its file says it, too."""
    said, name = engine.get("configured"), wanted["name"]
    if said is None:
        return None
    if said["error"]:
        return f"{engine['name']}: {said['error']}"
    path = said["runtimes"].get(name)
    if path != wanted["path"]:
        return f"{engine['config_path']} has {name} as {path or 'nothing'}, wanted {wanted['path']}"
    if flag(wanted, "set_default") and said["default_runtime"] != name:
        return f"{engine['config_path']} has the default runtime {said['default_runtime'] or 'of the engine'}, wanted {name}"
    return None
