# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of a fleet as one report: a table, JSON that a run takes as its ceiling, and a page. Private to the collection."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils._plan import render

#: Of the report's shape; a reader refuses another one.
FORMAT = 1
#: What a node can come to, in the order of urgency.
STATUSES = ("unreachable", "failed", "refused", "planned", "unchanged", "no_npu")
NO_PLAN = {"packages": [], "engine": {"action": "none", "reason": ""}, "reboot_expected": False}
_ANSWERS = {
    "unreachable": "The node could not be reached.",
    "failed": "Nothing could be planned.",
    "no_npu": "No NPU was found; nothing is done on this node.",
}


def entry(observed, plan=None, error=None, away=False):
    """What one node adds to the report; of a node that did not get so far, ``observed`` or ``plan`` is empty."""
    if away or not (error or observed):
        status = "unreachable"
    elif error:
        status = "failed"
    elif not observed["present"]:
        status = "no_npu"
    elif plan["refused"]:
        status = "refused"
    else:
        status = "planned" if plan["changes"] or plan["reboot_expected"] else "unchanged"
    node = None
    if observed:
        node = {key: observed.get(key) for key in ("hostname", "product", "family", "arch", "kernel")}
        node.update(chips=len(observed["chips"]), os=(observed.get("os") or {}).get("pretty_name"))
    return {"status": status, "node": node, "plan": plan if status in ("refused", "planned", "unchanged") else None, "error": error or None}


def report(names, observed, plans, errors, away, *, made):
    """The report of all nodes, from lists in the order of ``names``: {format, made, summary, nodes}; ``made`` is a time as text."""
    entries = {name: entry(*rest) for name, *rest in zip(names, observed, plans, errors, away, strict=True)}
    nodes = {name: entries[name] for name in sorted(entries)}
    summary = {status: sum(one["status"] == status for one in nodes.values()) for status in STATUSES}
    summary["reboots"] = sum(one["plan"]["reboot_expected"] for one in nodes.values() if one["status"] == "planned")
    return {"format": FORMAT, "made": made, "summary": summary, "nodes": nodes}


def lines_of(one):
    """The lines of one node; the same that a run shows."""
    if one["plan"] is None:
        return [one["error"] or _ANSWERS[one["status"]]]
    return render(one["plan"], everything=True)


def table(whole):
    """The report as lines of text, nodes that need somebody first."""
    ordered = sorted(whole["nodes"].items(), key=lambda pair: (STATUSES.index(pair[1]["status"]), pair[0]))
    width = max([len(name) for name in whole["nodes"]] + [4])
    lines = []
    for name, one in ordered:
        for number, line in enumerate(lines_of(one)):
            lines.append(f"{name if number == 0 else '':<{width}}  {one['status'] if number == 0 else '':<11}  {line}".rstrip())
    return [*lines, words(whole)]


def words(whole):
    """The whole fleet in one line."""
    summary = whole["summary"]
    parts = [f"{summary[status]} {status.replace('_', ' ')}" for status in STATUSES if summary[status]]
    return f"{len(whole['nodes'])} node(s): {', '.join(parts) or 'none'}; {summary['reboots']} would reboot."


def read(path):
    """The report that was approved, from a file of the controller."""
    place = Path(path).expanduser()
    try:
        whole = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "Run `ansible-playbook npu.fleet.plan`, look at its plan, and give that plan.json as npu_fleet_approved_plan."
        raise FleetError(f"{place} is not there.", code="plan_missing", phase="plan", object=str(place), hint=hint) from None
    except (OSError, ValueError, RecursionError) as error:
        whole = error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT or not isinstance(whole.get("nodes"), dict):
        raise _no_plan(f"{place} is no plan that npu.fleet.plan wrote.", str(place), str(whole) if isinstance(whole, Exception) else None)
    return whole


def _no_plan(message, place, observed=None):
    return FleetError(
        message, code="plan_unreadable", phase="plan", object=place, observed=observed,
        hint="Give the plan.json of `ansible-playbook npu.fleet.plan` as it was written.",
    )


def approved(whole, name):
    """The plan of one node in an approved report, as the ceiling of a run. A node that is not in it was approved nothing."""
    one = whole["nodes"].get(name, {})
    if not isinstance(one, dict) or (one.get("status") in ("planned", "unchanged") and not _is_ceiling(one.get("plan"))):
        # None would be no ceiling at all.
        raise _no_plan(f"The approved plan has nothing for {name} that could be a plan.", name)
    return one["plan"] if one.get("status") in ("planned", "unchanged") else NO_PLAN


def _is_ceiling(plan):
    """Has it what a run is compared with?"""
    if not isinstance(plan, dict) or not isinstance(plan.get("packages"), list) or not isinstance(plan.get("reboot_expected"), bool):
        return False
    engine = plan.get("engine")
    steps_are_whole = all(
        isinstance(step, dict) and all(isinstance(step.get(key), str) for key in ("component", "to", "action")) for step in plan["packages"]
    )
    return steps_are_whole and isinstance(engine, dict) and isinstance(engine.get("action"), str)
