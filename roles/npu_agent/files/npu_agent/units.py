# SPDX-License-Identifier: GPL-3.0-or-later
"""In which form a chip is offered: whole, in shares, or in slices. In one of them only: kubelet cannot know that two ids are the same
hardware, and would give it out twice.

  whole   one id, the default.
  shares  `shares: N`: N ids of the whole chip, of the same resource. Nothing keeps the containers apart.
  slices  static vNPUs that somebody made on the chip (`npu-smi set -t create-vnpu`); each kind is a resource of its own.
"""

import os

from . import config, nodes
from .chip import Slice

# What the vendor's device plugin calls a template in resource names and ids. 910A, then 910B (A2) and A3, then 310P.
_910 = {"vir02": "2c", "vir04": "4c", "vir08": "8c", "vir16": "16c"}
_910B = {
    "vir03_1c_8g": "3c.1cpu.8g", "vir05_1c_8g": "5c.1cpu.8g", "vir05_1c_16g": "5c.1cpu.16g", "vir06_1c_16g": "6c.1cpu.16g",
    "vir10_3c_16g": "10c.3cpu.16g", "vir10_3c_16g_nm": "10c.3cpu.16g.ndvpp", "vir10_3c_32g": "10c.3cpu.32g",
    "vir10_4c_16g_m": "10c.4cpu.16g.dvpp", "vir12_3c_32g": "12c.3cpu.32g",
}
_310P = {
    "vir01": "1c", "vir02": "2c", "vir04": "4c", "vir02_1c": "2c.1cpu", "vir04_3c": "4c.3cpu", "vir04_3c_ndvpp": "4c.3cpu.ndvpp",
    "vir04_4c_dvpp": "4c.4cpu.dvpp",
}
ANEW = "make the slice anew, or where npu-agent runs in a pod that is older than the slice, delete that pod"
KINDS = {"910": _910, "a2": _910B, "a3": _910B, "310p": _310P}


def forms(chip, record, resource, settings):
    """([(resource, Chip)], problems): what of this chip is offered, and why something is not.

    record: of look.py, with `slices` [{"vdev_id", "template"}] as they were known last (None: never), and `slices_told`: the driver told
    them to this process. resource: that of the whole chip. A chip with a slice that cannot be named is not offered at all: whole, it would
    be given out beside the slice. One whose slices are not known keeps its place in the capacity, in the form that it had last.
    """
    slices, why = record["slices"], ""
    # Without a node of one there is none, but for those that were told of once: a pod sees the nodes that were there when it was made.
    if not record["slices_told"] and (slices or nodes.slice_nodes(settings.dev_root)):
        why = "the driver does not tell which slices (vNPUs) it has, and this node has some, or had when it told last"
    if not slices:
        return [(resource, withheld(chip, why or strange(record, settings.dev_root)))], []
    if settings.shares > 1:
        return [], [f"{chip.id} has slices (vNPUs), so it is not offered: `shares` is {settings.shares}, and a chip is either shared or "
                    "sliced; set `shares: 1`, or remove its vNPUs"]
    found, problems = [], []
    for entry in slices:
        kind = KINDS.get(chip.family, {}).get(entry["template"])
        name = f"{resource}-{kind}"
        if kind is None:
            problems.append(f"{chip.id} has slice {entry['vdev_id']} of the template {entry['template']!r}, which npu-agent does not know "
                            f"for the family {chip.family}: neither that slice nor the whole chip is offered")
        elif len(name.rpartition("/")[2]) > config.NAME_LIMIT:
            problems.append(f"{chip.id} has slice {entry['vdev_id']}, which is not offered: its resource would be {name}, with more than "
                            f"{config.NAME_LIMIT} characters behind the '/'; set a shorter `resource_name`")
        else:
            piece = part(chip, Slice(entry["vdev_id"], entry["template"], kind), settings.dev_root)
            found.append((name, withheld(piece, why)))
    return found, problems


def strange(record, dev_root):
    """Why a chip without slices may have one that nobody knows yet."""
    numbers = record.get("strange_slices")
    if not numbers:
        return ""
    return f"it may have slices (vNPUs) that the driver has not told of: {', '.join(f'{dev_root}/vdavinci{number}' for number in numbers)}"


def part(chip, piece, dev_root):
    """A slice is as healthy as its chip, and needs a device node of its own."""
    prefix, _dash, number = chip.id.rpartition("-")
    node = f"{dev_root}/vdavinci{piece.vdev_id}"
    made = chip._replace(id=f"{prefix}-{piece.kind}-{piece.vdev_id}-{number}", device_node=node, slice=piece)
    missing = "" if os.path.lexists(node) else f"its device node {node} is missing; {ANEW}"
    return withheld(made, nodes.trouble(node)) if not missing else made._replace(healthy=False, reason=made.reason or missing)


def withheld(chip, why):
    """The chip, which nobody may get for this reason ("": it stays as it is)."""
    if not why:
        return chip
    reason = why if chip.healthy or chip.reason == why else f"{chip.reason}; {why}"
    return chip._replace(healthy=False, reason=reason, barred=why)


def ids(chips, shares):
    """{id towards kubelet: Chip}. chips: {chip.id: Chip}."""
    if shares <= 1:
        return dict(chips)
    return {f"{name}-{share}": chip for name, chip in chips.items() for share in range(shares if chip.slice is None else 1)}
