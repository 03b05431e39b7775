# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Rockchip board in the form in which `_detect.detect` describes a server, and the two joined.

What `_rknpu` finds is kept; added are the board's name, and whether the node can be opened: a driver that says that it is there may be
broken all the same (field report I10).
"""

import errno
import os
import re

from ._detect import blank, only_family
from ._families import ASCEND, ROCKCHIP
from ._rknpu import ROCKET, find, read

DRIVER_NAMES = {ROCKET: "rocket"}
VENDOR_DRIVER = "RKNPU"
TREES = ("device-tree", "firmware/devicetree/base")  # below /proc and /sys: the same folder by two names
KERNEL_LINE = re.compile(r"rknpu|rocket|rknn|[0-9a-f]{8}\.npu", re.IGNORECASE)
KERNEL_LINES, KERNEL_RECORDS, KERNEL_LINE_LENGTH = 3, 50000, 300  # told; read at most: a log that never ends; of a line
# Nobody is told what only root may know.
NOT_ALLOWED = (errno.EACCES, errno.EPERM)


def board_text(name, sysfs_root="/sys", proc_root="/proc"):
    """A text of the board's device tree, such as its model; None on a machine without one."""
    for path in (os.path.join(proc_root, TREES[0], name), os.path.join(sysfs_root, TREES[1], name)):
        text = (read(path) or "").strip("\0 \n")
        if text:
            return text
    return None


def refusal(path):
    """Why the kernel does not open a device node: "" where it does, None where we may not try. Nothing is read or written."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return None if error.errno in NOT_ALLOWED else error.strerror
    return ""


def kernel_says(dev_root="/dev"):
    """The last lines of the kernel's log that are about an NPU of this kind; none where it cannot be read."""
    try:
        log = os.open(os.path.join(dev_root, "kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    found = []
    try:
        for _number in range(KERNEL_RECORDS):
            try:
                record = os.read(log, 8192)  # one line for each read
            except BrokenPipeError:  # lines were overwritten while we read: the next read has the oldest that is left
                continue
            if not record:
                break
            for part in record.decode("utf-8", "replace").splitlines():  # a plain file, such as a copy of a log, gives many at once
                line = "".join(letter for letter in part.partition(";")[2] if letter.isprintable())
                found += [line[:KERNEL_LINE_LENGTH]] if KERNEL_LINE.search(line) else []
    except OSError:  # EAGAIN: that was the last line
        pass
    finally:
        os.close(log)
    return found[-KERNEL_LINES:]


def detect(sysfs_root="/sys", dev_root="/dev", proc_root="/proc", opened=refusal, says=kernel_says):
    """The NPUs of this board as `_detect.detect` has those of a server; None where there are none."""
    found = find(sysfs_root, dev_root, proc_root)
    if not found:
        return None
    serial = board_text("serial-number", sysfs_root, proc_root)
    chips = [chip_of(number, one, serial, opened) for number, one in enumerate(found)]
    errors = [chip["error"] for chip in chips if chip["error"]]
    lines = says(dev_root) if errors else []
    for error in errors:
        error["message"] += "; the kernel says: {0}".format(" / ".join(lines)) if lines else ""
    families = sorted({chip["family"] for chip in chips})
    return {
        "present": True,
        "family": only_family(families),
        "families": families,
        "product": board_text("model", sysfs_root, proc_root),
        "chips": chips,
        "unknown": [],
        "virtual_functions": 0,
        "device_nodes": [path for chip in chips for path in chip["device_nodes"]],
        "driver": {
            "loaded": any(one["driver_bound"] for one in found),
            "version": next((one["driver_version"] for one in found if one["driver_version"]), None),
        },
        "tool_version": None,
        "processes": [],
        "query": {"ok": not errors, "source": "sysfs", "error": errors[0] if errors else None, "errors": errors},
    }


def chip_of(number, one, serial, opened):
    """One NPU as the record of a chip."""
    problems, nodes = list(one["problems"]), one["device_nodes"]
    health = None
    if not problems:
        # Of a DRM device the render node: nobody becomes the master of a display by opening that.
        why = opened(nodes[-1])
        if why:
            problems.append("the NPU {0} does not work: its device node {1} cannot be opened: {2}".format(one["address"], nodes[-1], why))
        health = {"": "OK", None: None}.get(why, "Critical")
    code = "npu_driver_missing" if not one["driver_bound"] else "npu_broken"
    return blank(
        logic_id=number, name=one["soc"].upper(), family=one["soc"], health=health, error_codes=[], serial=serial, cores=one["cores"],
        stack=one["stack"], device_node=nodes[-1] if nodes else None, device_nodes=nodes,
        error={"source": "sysfs", "code": code, "message": "; ".join(problems)} if problems else None,
        evidence={
            "pci": None, "driver": DRIVER_NAMES.get(one["stack"], VENDOR_DRIVER) if one["driver_bound"] else None,
            "device_node": bool(nodes) and not one["missing_nodes"],
        },
    )


def join(server, board):
    """One answer for the node, with the backend that serves it and notes about what is left alone.

    A card in a board is why somebody bought the board: it wins over the SoC's own NPU, and one node has one plugin.
    """
    if board is None or server["present"] or server["device_nodes"]:
        notes = [
            "The {0} of this board has an NPU of its own, which is left alone: the cards are what this node offers.".format(chip["name"])
            for chip in (board or {"chips": []})["chips"]
        ]
        return dict(server, backend=ASCEND if server["present"] or server["device_nodes"] else None, notes=notes)
    return dict(board, backend=ROCKCHIP, notes=[])
