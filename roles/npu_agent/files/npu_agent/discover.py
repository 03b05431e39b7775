# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent discover`: what this node has, what kubelet would be told of it, and what nobody knows. Changes nothing."""

import json
import time

from . import mounts
from .look import Looker
from .node import Node

# What is told of a chip where it is not known: key of its record, words.
FACTS = (
    ("name", "name"), ("pci_address", "PCI address"), ("numa_node", "NUMA node"), ("serial", "serial number"), ("vdie", "die id"),
    ("aicore_count", "AI cores"), ("driver_bound", "driver"), ("health_code", "health"), ("error_codes", "fault codes"),
    ("slices", "slices (vNPUs)"), ("telemetry", "temperature and ECC"),
)


def look(settings, levels):
    """(Sight, Node) of now. Some of what the driver tells comes with the second look."""
    looker = Looker(settings)
    node = Node(settings, lambda *_words, **_fields: None, lambda _units: b"", levels, read_only=True)
    try:
        for _unused in range(2):
            sight = looker.look()
            lacking = mounts.problems(settings, {chip["family"] for chip in sight.chips})
            sight = sight._replace(problems=[*sight.problems, *lacking])
            node.update(sight, time.monotonic())
    finally:
        looker.close()
    return sight, node


def report(sight, node):
    """{"present", "complete", "families", "resources": {name: {"healthy", "total"}}, "chips": [...], "problems"}.

    Each chip has the keys of look.py's record and "offered": {"id", "resource", "healthy", "reason", "rank", "degraded"} for each form in
    which kubelet would hear of it, and "unknown": words for what nobody knows.
    """
    chips = []
    for name, seen in node.seen.items():
        offered = [
            {"id": chip.id, "resource": resource, "healthy": chip.healthy, "reason": chip.reason, "rank": chip.rank,
             "degraded": list(chip.degraded)}
            for resource, board in node.boards.items() for chip in board.chips.values() if chip.phy_id == seen.record["phy_id"]
        ]
        unknown = [words for key, words in FACTS if seen.record.get(key) is None]
        chips.append({"id": name, **seen.record, "offered": offered, "unknown": unknown})
    resources = {name: dict(zip(("healthy", "total"), board.count())) for name, board in node.boards.items()}
    return {
        "present": sight.present, "complete": sight.complete, "families": sorted({chip["family"] for chip in chips}),
        "resources": resources, "chips": sorted(chips, key=lambda chip: chip["phy_id"]), "problems": node.problems,
    }


def lines(found):
    """The same as text, a list of lines."""
    if not found["present"]:
        return ["no NPU on this node"]
    told = [f"{len(found['chips'])} chips, {' and '.join(found['families']) or 'of an unknown family'}"]
    told += [f"  {name}: {count['healthy']} of {count['total']} healthy" for name, count in found["resources"].items()]
    for chip in found["chips"]:
        numa = "-" if chip["numa_node"] is None else chip["numa_node"]
        told.append(f"  {chip['phy_id']:>3}  {chip['pci_address'] or '-':14}  numa {numa}  {chip['name'] or chip['family']}")
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
    found = report(*look(settings, levels))
    print(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))
    return 0 if found["complete"] and not found["problems"] else 1
