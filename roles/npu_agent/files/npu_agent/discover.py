# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent discover`: what this node has, what kubelet would be told of it, and what nobody knows. Changes nothing."""

import json
import time

from . import backends
from .node import Node


def look(settings, levels):
    """The Node as it is now. Some of what the driver tells comes with the second look."""
    backend = backends.of(settings)
    looker = backend.looker(settings)
    node = Node(settings, lambda *_words, **_fields: None, lambda _units: b"", levels, read_only=True)
    try:
        for _unused in range(2):
            sight = looker.look()
            lacking = backend.lacking(settings, {chip["family"] for chip in sight.chips})
            sight = sight._replace(problems=[*sight.problems, *lacking])
            node.update(sight, time.monotonic())
    finally:
        looker.close()
    return node


def report(node):
    """{"backend", "present", "complete", "families", "resources": {name: {"healthy", "total"}}, "problems", "chips": [...]}.

    Each chip has the keys of its record (look.py), "offered": {"id", "resource", "healthy", "reason", "rank", "degraded"} for each form in
    which kubelet would hear of it, and "unknown": words for what nobody knows.
    """
    chips, sight = [], node.sight
    for name, seen in node.seen.items():
        offered = [
            {"id": chip.id, "resource": resource, "healthy": chip.healthy, "reason": chip.reason, "rank": chip.rank,
             "degraded": list(chip.degraded)}
            for resource, board in node.boards.items() for chip in board.chips.values() if of_chip(chip, name, seen.record)
        ]
        unknown = [words for key, words in node.backend.facts if seen.record.get(key) is None]
        chips.append({"id": name, **seen.record, "offered": offered, "unknown": unknown})
    resources = {name: dict(zip(("healthy", "total"), board.count())) for name, board in node.boards.items()}
    return {
        "backend": node.backend.name, "present": sight.present, "complete": sight.complete,
        "families": sorted({chip["family"] for chip in chips}), "resources": resources, "problems": node.problems,
        "chips": sorted(chips, key=lambda chip: (chip["phy_id"] or 0, len(chip["id"]), chip["id"])),
    }


def of_chip(chip, name, record):
    """Whether this is a form of the chip with this name and record."""
    return chip.id == name or (record["phy_id"] is not None and chip.phy_id == record["phy_id"])


def lines(found):
    """The same as text, a list of lines."""
    if found["present"] is False:
        return [f"no NPU on this node (backend {found['backend']})"]
    told = [f"{len(found['chips'])} chips, {' and '.join(found['families']) or 'of an unknown family'}"]
    told += [f"  {name}: {count['healthy']} of {count['total']} healthy" for name, count in found["resources"].items()]
    for chip in found["chips"]:
        numa = "-" if chip["numa_node"] is None else chip["numa_node"]
        number = chip["id"] if chip["phy_id"] is None else f"{chip['phy_id']:>3}"
        told.append(f"  {number}  {chip['pci_address'] or chip['device_node'] or '-':14}  numa {numa}  {chip['name'] or chip['family']}")
        for form in chip["offered"]:
            words = "healthy" if form["healthy"] else "unhealthy"
            notes = "; ".join([form["reason"], *form["degraded"]] if form["reason"] else form["degraded"])
            told.append(f"       {form['resource']}  {form['id']}  {words}{': ' if notes else ''}{notes}")
        if not chip["offered"]:
            told.append("       not offered")
        if chip["unknown"]:
            told.append(f"       not known: {', '.join(chip['unknown'])}")
    return told + [f"  problem: {problem}" for problem in found["problems"]]


def discover(settings, levels, as_json):
    """Ends with 0 when the driver told of every chip (also of none on a node without NPU), else with 1."""
    found = report(look(settings, levels))
    print(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))
    return 0 if found["complete"] and not found["problems"] else 1
