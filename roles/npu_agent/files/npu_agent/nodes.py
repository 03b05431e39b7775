# SPDX-License-Identifier: GPL-3.0-or-later
"""Device nodes on this host: whether a path is one, and which of them a container cannot do without.

A runtime gives a container what stands at the path. A link to another chip's node, or two nodes with one number, would give two
containers the same chip; a plain file keeps the container from starting for ever.
"""

import glob
import os
import stat

from ._hardware._families import FAMILIES

KINDS = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a plain file"))


def trouble(path):
    """Why a container must not get this node, "" where it may, or where it does not exist."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return ""
    return strange(path, mode)


def strange(path, mode):
    """The same of what stands there, by its mode."""
    if stat.S_ISCHR(mode):
        return ""
    kind = next((words for test, words in KINDS if test(mode)), "something else")
    return f"{path} is {kind}, no device node: remove it and load the NPU driver anew"


def number_of(path):
    """The device's number, None where there is no device node."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None


def same_device(paths):
    """{path: why} of nodes that are one device under several names."""
    numbers: dict = {}
    for path in paths:
        number = number_of(path)
        if number is not None:
            numbers.setdefault(number, []).append(path)
    return twins(numbers)


def twins(numbers):
    """The same by {device's number: [path]}."""
    found = {}
    for group in numbers.values():
        for path in group if len(group) > 1 else ():
            others = ", ".join(other for other in group if other != path)
            found[path] = f"{path} is the same device as {others}: load the NPU driver anew"
    return found


def matching(pattern):
    """What there is of a path or a pattern, links included, sorted."""
    return sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern] if os.path.lexists(pattern) else []


def slice_nodes(dev_root):
    """{N of /dev/vdavinciN}, of virtual devices; whose they are is not written there."""
    try:
        names = os.listdir(dev_root)
    except OSError:
        return set()
    return {int(name[len("vdavinci"):]) for name in names if name.startswith("vdavinci") and name[len("vdavinci"):].isdecimal()}


def is_device(path):
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def manager_trouble(family, dev_root):
    """Why no container can use a chip of this family, "" when it can: its boards' manager node."""
    lacking = [f"{dev_root}/{node['host']}" for node in FAMILIES[family]["managers"] if node["required"]]
    lacking = [path for path in lacking if not is_device(path)]
    if not lacking:
        return ""
    return f"there is no device node {', '.join(lacking)}, which each container with an NPU needs: load the NPU driver anew"


def troubles(chips, dev_root):
    """For each record of look.py why its nodes are no good, "" where they are (one that is missing is told elsewhere)."""
    managers = {family: manager_trouble(family, dev_root) for family in {chip["family"] for chip in chips}}
    shared = same_device([chip["device_node"] for chip in chips])
    return [trouble(chip["device_node"]) or shared.get(chip["device_node"]) or managers[chip["family"]] for chip in chips]
