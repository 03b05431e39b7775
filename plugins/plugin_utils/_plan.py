# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run would change on one node: pure functions from (observed, wanted) to a plan.

``observed`` is what ``npu_info`` returns as ``npu``; ``wanted`` is built by the playbook from the fleet's variables.
Private to the collection. The package part of the plan is `_packages.decide`, the same function that ``npu_package``
runs again on the node right before it acts.
"""

from __future__ import annotations

import os.path

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.npu.fleet.plugins.module_utils._agent import UNIT_NAME as AGENT_UNIT
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import decide
from ansible_collections.npu.fleet.plugins.module_utils._packages._names import file_name
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import needs_licence

#: Which components one pinned version covers. CANN's operators must equal the toolkit (docs/facts.md, P 0 (12)).
COMPONENTS_OF = {
    "driver": ("driver",),
    "firmware": ("firmware",),
    "cann": ("cann_toolkit", "cann_kernels"),
    "docker_runtime": ("docker_runtime",),
}
#: Components whose change takes the chips away from whoever uses them.
CHIP_COMPONENTS = ("driver", "firmware")
#: What an operator of the playbook does about a refusal of `decide`, by its code.
HINTS = {"downgrade_refused": "For the whole fleet that is npu_fleet_allow_downgrade: true."}


def pinned_components(versions):
    """{'driver': '25.5.0', 'cann': '8.5.0', ...} -> {component: version}; an unknown key is an error, an empty value is not managed."""
    unknown = sorted(set(versions) - set(COMPONENTS_OF))
    if unknown:
        raise FleetError(
            f"npu_fleet_versions has the unknown key {', '.join(unknown)}.",
            code="unknown_component",
            phase="plan",
            observed=unknown,
            hint=f"Allowed keys: {', '.join(COMPONENTS_OF)}.",
        )
    return {
        component: str(versions[key]) for key, components in COMPONENTS_OF.items() if versions.get(key) for component in components
    }


def package_source(depot, name):
    """The place of one package file: a path on the node or an HTTP(S) URL, both given as the folder that holds the files."""
    if not depot:
        raise FleetError(
            "No depot is set, so no package can be found.",
            code="depot_missing",
            phase="plan",
            hint="Set npu_fleet_depot to an http(s):// URL or to an absolute path on the nodes.",
        )
    if depot.startswith(("http://", "https://")):
        return f"{depot.rstrip('/')}/{name}"
    if not depot.startswith("/"):
        raise FleetError(
            "npu_fleet_depot is neither an http(s):// URL nor an absolute path.",
            code="depot_invalid",
            phase="plan",
            hint="Use an http(s):// URL or an absolute path on the nodes.",
        )
    return os.path.join(depot, name)


def _with_files(steps, observed, wanted):
    """The steps with file and checksum of their packages; every checksum that is missing is named at once.

    Where the file comes from is not part of it: a plan is printed, and the address of a depot may hold a password.
    """
    names = [file_name(step["component"], step["to"], observed["family"], observed["arch"]) for step in steps]
    sums = wanted.get("checksums") or {}
    missing = [name for name in names if name not in sums]
    if missing:
        raise FleetError(
            f"No checksum is known for {', '.join(missing)}, and nothing runs without one.",
            code="checksum_missing",
            phase="plan",
            observed=missing,
            hint=f"Run `sha256sum {' '.join(missing)}` in the depot, compare with the vendor, and add them to npu_fleet_checksums.",
        )
    if names:
        package_source(wanted.get("depot"), names[0])
    return [dict(step, file=name, sha256=sums[name]) for step, name in zip(steps, names, strict=True)]


def _holder_refusal(observed, steps):
    touched = [step["component"] for step in steps if step["component"] in CHIP_COMPONENTS]
    # Our own agent is stopped before its driver or firmware changes.
    holders = [holder for holder in observed.get("holders") or [] if holder.get("unit") != AGENT_UNIT]
    if not touched or not holders:
        return None
    who = ", ".join(f"{h['comm']} (pid {h['pid']}) on {h['device']}" for h in holders[:5])
    return {
        "component": touched[0],
        "reason": f"Chips are in use by {who}; changing {' and '.join(touched)} would take them away.",
        "hint": "Stop these processes or drain the node, then run again.",
    }


def _flag(wanted, name):
    """A truth value, also where it came as text: `-e` and INI inventories give 'false', which Python takes for true."""
    return boolean(wanted.get(name) or False)


def _licence_refusal(step):
    return {
        "component": step["component"],
        "reason": f"Installing {step['component']} {step['to']} accepts the vendor's licence, and nobody has agreed to that.",
        "hint": "Read it, then set npu_fleet_accept_licence: true.",
    }


def _unknown_refusal(observed):
    """An accelerator that no table names: nothing may be guessed for it."""
    unknown = observed.get("unknown") or []
    if not unknown:
        return None
    ids = ", ".join(sorted(f"{f['vendor']}:{f['device']} at {f['address']}" for f in unknown))
    return {
        "component": "driver",
        "reason": f"This node has accelerators that no table here names: {ids}.",
        "hint": "Nothing is installed on it. Take it out of the run with -l, and report the ids from `lspci -nn`.",
    }


def _running_refusal(component):
    return {
        "component": component,
        "reason": f"The package of {component} still runs on this node.",
        "hint": "Do not reboot or power off the node. Run the playbook again later.",
    }


def _packages(observed, wanted):
    pins = pinned_components(wanted.get("versions") or {})
    steps = decide(
        {key: observed.get(key) for key in ("arch", "family", "families", "components")},
        {component: {"version": version} for component, version in pins.items()},
        allow_downgrade=_flag(wanted, "allow_downgrade"),
    )
    refused = [
        {"component": s["component"], "reason": s["reason"], "hint": HINTS.get(s["code"], "")} for s in steps if s["action"] == "refuse"
    ]
    todo = [s for s in steps if s["action"] not in ("none", "refuse")]
    if not _flag(wanted, "accept_licence"):
        refused += [_licence_refusal(s) for s in todo if needs_licence(s["component"], s["to"])]
    refused += [_running_refusal(component) for component in observed.get("running_packages") or []]
    refused += filter(None, [_holder_refusal(observed, todo), _unknown_refusal(observed) if todo else None])
    return todo, refused


def engine_step(observed, wanted):
    """'register' or 'none' for the engine's entry of the NPU runtime, from what the engine itself reports and what its file says."""
    if not wanted:
        return {"action": "none", "reason": "no runtime wanted"}
    name = wanted["name"]
    engines = [e for e in observed.get("engines") or [] if wanted.get("engine", "auto") in ("auto", e["name"])]
    if not engines:
        return {"action": "register", "reason": "no container engine was seen yet"}
    engine = engines[0]
    if engine.get("error"):
        return {"action": "register", "reason": f"{engine['name']}: {engine['error']}"}
    path = (engine.get("runtimes") or {}).get(name)
    if path != wanted["path"]:
        return {"action": "register", "reason": f"{engine['name']} knows {name} as {path or 'nothing'}, wanted {wanted['path']}"}
    if _flag(wanted, "set_default") and engine.get("default_runtime") != name:
        return {"action": "register", "reason": f"default runtime is {engine.get('default_runtime')}, wanted {name}"}
    missing = _missing_in_file(engine, wanted)
    if missing:
        return {"action": "register", "reason": missing}
    return {"action": "none", "reason": f"{engine['name']} has {name} -> {path}"}


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
    if _flag(wanted, "set_default") and said["default_runtime"] != name:
        return f"{engine['config_path']} has the default runtime {said['default_runtime'] or 'of the engine'}, wanted {name}"
    return None


def make_plan(observed, wanted):
    """The plan of one node.

    Returns ``{"packages": [step + file, sha256], "refused": [{component, reason, hint}], "engine": {action, reason},
    "reboot_required": bool, "changes": int}``; raises FleetError where the fleet's variables cannot be right.
    """
    todo, refused = _packages(observed, wanted)
    packages = [] if refused else _with_files(todo, observed, wanted)
    engine = engine_step(observed, wanted.get("runtime"))
    return {
        "packages": packages,
        "refused": refused,
        "engine": engine,
        "reboot_required": bool(observed.get("reboot_required")),
        "changes": len(packages) + (engine["action"] != "none"),
    }


def beyond_ceiling(plan, ceiling):
    """Package steps of ``plan`` that the approved ``ceiling`` does not contain, as text. Empty: the plan may run."""
    allowed = {(s["component"], s["to"]) for s in ceiling["packages"]}
    return [
        f"{s['component']} -> {s['to']} ({s['reason']})" for s in plan["packages"] if (s["component"], s["to"]) not in allowed
    ]


def render(plan):
    """The plan as lines for an operator, one a step."""
    lines = [f"{s['component']:<14} {s['action']:<10} {s['from'] or '-'} -> {s['to']}   {s['reason']}" for s in plan["packages"]]
    lines += [f"{r['component']:<14} refused    {r['reason']} {r['hint']}".rstrip() for r in plan["refused"]]
    if plan["engine"]["action"] != "none":
        lines.append(f"{'engine':<14} {plan['engine']['action']:<10} {plan['engine']['reason']}")
    return lines or ["packages and engine: nothing to change"]


#: Labels that a node gets, from its chips. "accelerator" and "node.kubernetes.io/npu.chip.name" are the vendor's names (docs/facts.md, K).
def node_labels_of(observed, resource):
    """Kubernetes labels as a pure function of what was observed: {key: value}."""
    names = sorted({c["name"] for c in observed["chips"] if c.get("name")})
    labels = {
        "npu.fleet/family": observed["family"],
        "npu.fleet/chips": str(len(observed["chips"])),
        "npu.fleet/driver-version": observed["versions"]["driver"]["running"],
        "npu.fleet/firmware-version": observed["versions"]["firmware"]["running"],
        "npu.fleet/cann-version": (observed["versions"].get("cann_toolkit") or {}).get("on_disk"),
        "node.kubernetes.io/npu.chip.name": names[0] if len(names) == 1 else None,
        "accelerator": f"huawei-{resource.rsplit('/', 1)[-1]}" if resource else None,
    }
    return {key: value for key, value in labels.items() if value}
