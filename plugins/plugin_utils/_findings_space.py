# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much room the steps of a plan need, place by place, and where it is missing. Pure. Private to the collection."""

from __future__ import annotations

import math

MIB = 1 << 20
#: A driver package of 115 to 120 MB asks for 300 MB at its path (docs/facts.md, P 1 and P 2): 2.5 times its size. Nothing was measured for
#: the others, so the same is taken for them, for what they unpack on the way, and for the installed tree.
UNPACKED = 2.5
#: What the packages themselves ask for at their path, whatever their size.
LEAST_AT_TARGET = {"driver": 300, "firmware": 32}
#: Where no size is known: the upper end of public file sizes; for CANN the 10 GB that the vendor's deployer asks for (docs/facts.md, P).
UNKNOWN_SIZE = {"driver": 120, "firmware": 1}
CANN_AT_TARGET = 10 * 1024
#: Ours: what a run may write into the logs. A full log disk stops no package, but nobody sees then what it did (docs/facts.md, M 7).
LOGS = 50
#: Ours: with fewer inodes left, copying the files of any package is likely to end half-way.
INODES = 1000


def needs(steps):
    """{use: (MiB as estimated, MiB that are certain)} of the steps; of a size that nobody knows nothing is certain."""
    steps = [step for step in steps if step["action"] not in ("none", "refuse", "switch")]
    if not steps:
        return {}
    sizes = {step["component"]: _mib(step.get("size")) for step in steps}
    known = {name: size or UNKNOWN_SIZE.get(name, 0) for name, size in sizes.items()}
    target = {name: (_at_target(name, known[name]), _at_target(name, sizes[name])) for name in sizes}
    cann = CANN_AT_TARGET if any(name.startswith("cann") and not sizes[name] for name in sizes) else 0
    answer = {
        "target": (sum(estimate for estimate, _sure in target.values()) + cann, sum(sure for _estimate, sure in target.values())),
        "cache": (sum(known.values()), sum(sizes.values())),
        # One package at a time unpacks itself.
        "extraction": (math.ceil(max(known.values()) * UNPACKED), math.ceil(max(sizes.values()) * UNPACKED)),
        "log": (LOGS, 0),
    }
    if "driver" in known:
        # Its modules cannot be more than all of it, and a full disk there ends with exit code 0 (docs/facts.md, M 7).
        answer["modules"] = (known["driver"], known["driver"])
    return answer


def _at_target(component, size):
    return max(LEAST_AT_TARGET.get(component, 0), math.ceil(size * UNPACKED))


def _mib(size):
    return math.ceil(size / MIB) if size else 0


def by_path(space, steps):
    """{path: MiB} for the plan's estimate."""
    wanted = needs(steps)
    return {place["path"]: wanted[place["use"]][0] for place in space if place["use"] in wanted}


def problems(space, steps):
    """[(severity, code, path, message)]: places without room, read-only ones, and an extraction folder that executes nothing."""
    wanted = needs(steps)
    places = [place for place in space if place["use"] in wanted]
    found = []
    for filesystem in dict.fromkeys(place["filesystem"] for place in places):
        found += _on_filesystem([place for place in places if place["filesystem"] == filesystem], wanted)
    for place in places:
        if place["use"] == "extraction" and place["noexec"]:
            message = f"Nothing may be executed below {place['path']} (mount option noexec), but packages run what they unpack."
            found.append(("error", "noexec", place["path"], message))
    return found


def _on_filesystem(places, wanted):
    """Places on the same filesystem share its room."""
    first, found = places[0], []
    if first["read_only"]:
        return [("error", "read_only", first["path"], f"The filesystem of {first['path']} is mounted read-only.")]
    estimate, sure = (sum(wanted[place["use"]][number] for place in places) for number in (0, 1))
    if first["free_mib"] < estimate:
        parts = ", ".join(f"{wanted[place['use']][0]} MiB for {place['path']} ({place['use']})" for place in places)
        severity = "error" if first["free_mib"] < sure else "warning"
        found.append((severity, "space_short", first["path"], f"{first['free_mib']} MiB are free, wanted are {parts}."))
    if first["inodes_free"] is not None and first["inodes_free"] < INODES:
        message = f"{first['inodes_free']} inodes are free on the filesystem of {first['path']}."
        found.append(("error", "inodes_short", first["path"], message))
    return found
