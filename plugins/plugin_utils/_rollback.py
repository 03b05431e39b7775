# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way back of one node: from what was observed to the steps that bring back a set of versions which has worked there.

Pure. The sets and the cached packages are those of ``observed["record"]["good"]``. Private to the collection.
"""

from __future__ import annotations

import os

from ansible_collections.npu.fleet.plugins.module_utils import _gates
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import layers_of
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good
from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import KNOWN, decide
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same
from ansible_collections.npu.fleet.plugins.plugin_utils import _plan, _plan_checks
from ansible_collections.npu.fleet.plugins.plugin_utils._findings import CHIP_COMPONENTS, finding, in_order
from ansible_collections.npu.fleet.plugins.plugin_utils._pinned import KEY_OF

SETS = ("auto", "current", "previous")
#: What a driver answers for, of the checks of the gates. Not the health of a chip: no other driver mends that.
DRIVER_CHECKS = ("no chip lost", "driver answers", "driver", "firmware", "every chip has driver and node")
_NO_FILE = ("none", "refuse", "switch")


def make_rollback(observed, wanted=None):
    """How this node gets back to a good set; a plan in the form of `make_plan`, with a source in the node's cache for each package.

    ``wanted``: set (auto, current or previous; auto is the previous one while the current one runs, else the current one),
    components (all of the set), disruption, accept_licence. The result has beside packages, components, refused, findings, changes
    and holders: set and time (of the good set, None without one), versions (component -> version of that set), pins (the same by
    the keys of npu_fleet_versions), leaving (component -> version that is given up), later (steps that need a reboot first).
    """
    wanted = wanted or {}
    name, good = _choose(observed, wanted.get("set") or "auto")
    packages = _parts(good, wanted.get("components"))
    steps = decide(
        {key: observed.get(key) for key in ("arch", "family", "families", "components")},
        {component: {"version": package["version"]} for component, package in packages.items()},
        allow_downgrade=True,
    )
    steps = [_with_file(step, packages[step["component"]]) for step in steps]
    todo = [step for step in steps if step["action"] not in ("none", "refuse")]
    in_use = _plan_checks.holders(observed, wanted)
    findings = in_order([
        *([_no_set(observed, wanted)] if good is None and layers_of(observed.get("family")) else []),
        *_plan_checks.running(observed),
        *_plan_checks.refused_steps(steps),
        *_not_cached(todo, packages),
        *_plan_checks.licences(todo, wanted),
        *_plan_checks.chips_in_use(in_use, todo, wanted),
    ])
    refused = [
        {"component": one["object"], "reason": one["message"], "hint": one["hint"], "code": one["code"]}
        for one in findings if one["severity"] == "error"
    ]
    now, later = ([], []) if refused else _rounds(observed, todo)
    return {
        "set": name, "time": (good or {}).get("time"),
        "versions": {component: package["version"] for component, package in packages.items()},
        "pins": {KEY_OF[component]: package["version"] for component, package in packages.items() if component in KEY_OF},
        "leaving": {step["component"]: step["from"] for step in todo if step["from"] and not same(step["from"], step["to"])},
        "packages": now, "later": later, "components": steps, "refused": refused, "findings": findings,
        "changes": len(now) + len(later), "holders": in_use, "engine": {"action": "none", "reason": None},
        "reboot_expected": bool(observed.get("reboot_required")) or any(step["component"] in CHIP_COMPONENTS for step in todo),
        "unlisted_reason": None,
    }


def render(plan):
    """The way back as lines for an operator."""
    if plan["set"] is None:
        return _plan.render(plan)
    title = f"back to the {plan['set']} good set of {plan['time']}"
    return [title, *_plan.render(dict(plan, packages=plan["packages"] + plan["later"]))]


def driver_failures(observed, versions, seen_before=()):
    """What says that the running driver or firmware does not work, by the checks of gate L1; empty when both do.

    ``versions``: the wanted ones by component; those that another role brings are left out. ``seen_before``: PCI addresses.
    """
    wanted = {
        "gates": ["L0", "L1"],
        "versions": {component: version for component, version in versions.items() if component in CHIP_COMPONENTS},
        "seen_before": list(seen_before),
    }
    checks = [check for verdict in _gates.judge(observed, wanted) for check in verdict["checks"]]
    return [f"{check['name']}: {check['detail']}" for check in checks if check["name"] in DRIVER_CHECKS and not check["passed"]]


def cut_way_back(observed, plan):
    """The failed set that this node was going back from when a run was cut, {components, reason, time}; empty where there is none.

    So it is where the plan refuses that set, and the node has neither all of the last good one nor anything but these two.
    """
    record = observed.get("record") or {}
    good = ((record.get("good") or {}).get("current") or {}).get("components") or {}
    failed = next(reversed(record.get("failed") or []), None)
    if not failed or all(one["code"] != "failed_before" for one in plan["refused"]) or not set(failed["components"]) <= set(good):
        return {}
    pinned = {step["component"]: step["to"] for step in plan["components"]}
    if _runs(observed, {"components": {name: good[name] for name in failed["components"]}}):
        return {}
    for name, version in failed["components"].items():
        now = (observed["components"].get(name) or {}).get("version")
        if not same(pinned.get(name), version) or not (now is None or same(now, version) or same(now, good[name]["version"])):
            return {}
    if make_rollback(observed, {"set": "current", "components": list(failed["components"]), "accept_licence": True})["refused"]:
        return {}
    return failed


def _choose(observed, name):
    """(name, set) of the good set to go back to; (None, None) where there is none."""
    good = (observed.get("record") or {}).get("good") or {}
    if name == "auto":
        current = good.get("current")
        name = "previous" if current and _runs(observed, current) else "current"
    found = good.get(name)
    return (name, found) if found else (None, None)


def _runs(observed, good):
    """Whether the node has all of this set, whole and in force."""
    for component, package in good["components"].items():
        now = observed["components"].get(component) or {}
        if now.get("state") != "present" or not same(now.get("version"), package["version"]):
            return False
    return True


def _parts(good, components):
    chosen = components or KNOWN
    return {component: package for component, package in ((good or {}).get("components") or {}).items() if component in chosen}


def _with_file(step, package):
    needed = step["action"] not in _NO_FILE
    source = os.path.join(_good.CACHE_DIR, package["sha256"], package["file"]) if needed and package.get("cached") else None
    return dict(
        step, file=package["file"] if needed else None, sha256=package["sha256"] if needed else None, size=None, source=source,
    )


def _not_cached(todo, packages):
    found = []
    for step in todo:
        package = packages[step["component"]]
        if step["action"] in _NO_FILE or package.get("cached"):
            continue
        message = f"The package of {step['component']} {step['to']} is not in the cache of the node, or not whole ({_good.CACHE_DIR})."
        hint = f"Pin {step['to']} and run npu.fleet.site with npu_fleet_allow_downgrade: true, which takes it from the depot."
        found.append(finding("error", "package_not_cached", step["component"], message, hint))
    return found


def _no_set(observed, wanted):
    good = (observed.get("record") or {}).get("good") or {}
    asked = wanted.get("set") or "auto"
    known = [f"the {name} one of {good[name]['time']}" for name in ("current", "previous") if good.get(name)]
    if not known:
        message = "No set of versions has passed the gates on this node yet, so there is nothing to go back to."
    elif asked == "auto":
        message = f"The node runs the only set that has passed the gates here, {known[0]}; there is none before it."
    else:
        message = f"This node has no {asked} good set, only {', '.join(known)}."
    return finding("error", "no_good_set", "node", message, "Pin the wanted versions and run npu.fleet.site.")


def _rounds(observed, todo):
    """(steps for now, steps for after a reboot). Firmware is written by a driver that answers, and what is loaded now does not.

    A driver that replaces it runs only after a reboot: the modules of the dead one are loaded.
    """
    driver = observed["components"].get("driver") or {}
    dead = driver.get("state") not in (None, "absent") and (driver.get("record") or {}).get("answers") is False
    if not dead or not any(step["component"] == "driver" for step in todo):
        return todo, []
    return [step for step in todo if step["component"] != "firmware"], [step for step in todo if step["component"] == "firmware"]
