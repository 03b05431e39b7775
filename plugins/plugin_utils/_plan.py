# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run would change on one node: pure functions from (observed, wanted) to a plan.

``observed`` is what ``npu_info`` returns as ``npu``; ``wanted`` is built by the playbook from the fleet's variables.
Private to the collection. The package part of the plan is `_packages.decide`, the same function that ``npu_package``
runs again on the node right before it acts.
"""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import KNOWN, decide
from ansible_collections.npu.fleet.plugins.plugin_utils import _findings, _findings_engine, _findings_space, _plan_checks, _plan_pins
from ansible_collections.npu.fleet.plugins.plugin_utils._findings import CHIP_COMPONENTS
from ansible_collections.npu.fleet.plugins.plugin_utils._plan_engine import engine_step, group_left, group_step

#: Seconds of a package as public transcripts show them (docs/facts.md, P 2): a driver for one card in about a minute, one over an
#: old driver with a build of its modules in four and a half; firmware in 12 s a card. Of the others nobody has told.
DRIVER_SECONDS = {"install": 60}
DRIVER_OVER_ANOTHER = 270
FIRMWARE_SECONDS = 12


def _steps(observed, wanted, pins):
    return decide(
        {key: observed.get(key) for key in ("arch", "family", "families", "components")},
        {component: {"version": version} for component, version in pins.components.items()},
        allow_downgrade=_plan_checks.flag(wanted, "allow_downgrade"),
    )


def estimate(observed, todo):
    """Seconds of the packages that somebody has measured (no transfer, no reboot), those nobody has, and room by path in MiB."""
    cards = len({chip.get("card_id") if chip.get("card_id") is not None else chip.get("pci_address") for chip in observed["chips"]})
    seconds, unknown = 0, []
    for step in todo:
        if step["component"] == "driver":
            seconds += DRIVER_SECONDS.get(step["action"], DRIVER_OVER_ANOTHER)
        elif step["component"] == "firmware":
            seconds += FIRMWARE_SECONDS * max(1, cards)
        elif step["action"] != "switch":
            unknown.append(step["component"])
    space = (observed.get("preflight") or {}).get("space") or []
    return {"seconds": seconds, "unknown": unknown, "space": _findings_space.by_path(space, todo)}


def in_rows(steps):
    """The steps as a table shows them: every node in the same order, but where driver and firmware both change in the order of work."""
    both = sum(step["component"] in CHIP_COMPONENTS and step["action"] not in ("none", "refuse") for step in steps) == 2
    return list(steps) if both else sorted(steps, key=lambda step: KNOWN.index(step["component"]))


def make_plan(observed, wanted):
    """The plan of one node; raises FleetError where the fleet's variables cannot be right.

    packages: steps to run, in order, each with file, sha256, size and source; empty when anything is refused
    components: a step for every pinned component, also those that change nothing
    findings: everything there is to say, errors first; refused: the errors, as {component, reason, hint, code}
    """
    pins = _plan_pins.pins_of(observed, wanted)
    steps, missing_files = _plan_pins.with_files(_steps(observed, wanted, pins), observed, wanted, pins)
    todo = [step for step in steps if step["action"] not in ("none", "refuse")]
    reboot_required = bool(observed.get("reboot_required"))
    reboots = reboot_required or any(step["reboot"] for step in todo)
    in_use = _plan_checks.holders(observed, wanted)
    judged, verdict, release = _plan_checks.compatible(observed, todo, pins, wanted)
    back = _plan_checks.way_back(observed, todo)
    runtime = wanted.get("runtime") if pins.versions.get("docker_runtime") else None
    engine = engine_step(observed, runtime)
    findings = [
        *_plan_checks.running(observed),
        *pins.problems,
        *_plan_checks.refused_steps(steps),
        *_plan_checks.failed_before(observed, todo, pins.components, wanted),
        *judged,
        *_plan_checks.licences(todo, wanted),
        *_plan_checks.chips_in_use(in_use, todo, wanted),
        *_plan_checks.unknown_chips(observed, todo),
        *missing_files,
        *_findings.judge(observed, wanted, steps, reboots=reboots),
        *_findings_engine.judge(observed, wanted, runtime, engine),
        *_plan_checks.no_way_back(back),
        *group_left(observed, wanted),
    ]
    plan = {
        "packages": todo,
        "components": in_rows(steps),
        "engine": engine,
        "device_group": group_step(observed, wanted),
        "versions": pins.versions,
        "release": release,
        "verdict": verdict,
        "unlisted_reason": pins.reason if verdict == "unlisted" else None,
        "reboot_required": reboot_required,
        "reboot_expected": reboots,
        "holders": in_use,
        "estimate": estimate(observed, todo),
        "way_back": back,
    }
    if wanted.get("ceiling") is not None:
        findings += [
            _findings.finding("error", "beyond_approved", "plan", f"The approved plan does not have this: {text}.",
                              "Make a new plan with npu.fleet.plan, look at it, and approve that one.")
            for text in _plan_checks.beyond_approved(plan, wanted["ceiling"])
        ]
    findings = _findings.in_order(findings)
    refused = [
        {"component": one["object"], "reason": one["message"], "hint": one["hint"], "code": one["code"]}
        for one in findings if one["severity"] == "error"
    ]
    packages = [] if refused else todo
    return dict(
        plan, packages=packages, refused=refused, findings=findings,
        changes=len(packages) + sum(plan[part]["action"] != "none" for part in ("engine", "device_group")),
    )


def beyond_ceiling(plan, ceiling):
    """Package steps of ``plan`` that the ``ceiling`` of this run does not contain, as text. Empty: the plan may run."""
    return _plan_checks.beyond(plan, ceiling)


def line_of(step):
    """One step as a line."""
    reboot = " Needs a reboot." if step["reboot"] else ""
    return f"{step['component']:<14} {step['action']:<10} {step['from'] or '-'} -> {step['to']}   {step['reason'] or ''}{reboot}".rstrip()


def render(plan, everything=False):
    """The plan as lines for an operator, one a step; with ``everything`` also what does not change, and the notes."""
    steps = [step for step in plan["components"] if step["action"] != "refuse"] if everything else plan["packages"]
    lines = [line_of(step) for step in steps]
    lines += [f"{r['component']:<14} refused    {r['reason']} {r['hint']}".rstrip() for r in plan["refused"]]
    if plan["engine"]["action"] != "none":
        lines.append(f"{'engine':<14} {plan['engine']['action']:<10} {plan['engine']['reason']}")
    group = plan.get("device_group") or {"action": "none"}  # a way back has none
    if group["action"] != "none":
        lines.append(f"{'device group':<14} {group['action']:<10} {group['reason']}")
    shown = ("warning", "note") if everything else ("warning",)
    for one in plan["findings"]:
        if one["severity"] in shown:
            lines.append(f"{one['object']:<14} {one['severity']:<10} {one['message']} {one['hint']}".rstrip())
    return lines or ["packages and engine: nothing to change"]
