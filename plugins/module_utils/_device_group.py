# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The group that owns the device nodes of a Rockchip NPU, by a udev rule of ours. Private to the collection.

The groups of such nodes (video and render) have other numbers on each distribution, and a device keeps the host's number in a container,
so a pod that does not run as root fits one kind of host only (field reports I05, E33).
"""

import os
import re

from ansible_collections.npu.fleet.plugins.module_utils import _files
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware import _rknpu

#: After the distribution's own rules (50-udev-default.rules), which name video and render: the last one wins.
RULE = "/etc/udev/rules.d/70-npu-fleet-rknpu.rules"
MARK = "# Written by npu.fleet: npu_driver_device_group."
#: Nodes of the NPU and of nothing else: a GPU is a DRM device too. rocket's accel device belongs to a platform device called rknn.
MATCHES = (
    'SUBSYSTEM=="drm", KERNEL=="card[0-9]*|renderD[0-9]*", DRIVERS=="RKNPU"',
    'SUBSYSTEM=="misc", KERNEL=="rknpu"',
    'SUBSYSTEM=="accel", KERNEL=="accel[0-9]*", KERNELS=="rknn*|*.npu"',
)
SUBSYSTEMS = ("drm", "misc", "accel")
HIGHEST = 2 ** 32 - 2  # of a group's number; the last one means "none" to the kernel
NONE_OF_16_BITS = 65535  # the same for old calls; systemd, and so udev, takes it for no group (systemd's UIDS-GIDS.md)
CHANGED = "The rule %s was changed by hand, so it stays; delete it by hand if nobody needs it." % RULE
GROUP = re.compile(r'GROUP="([0-9]+)"')


def rule(group):
    """Text of the rule for a group's number."""
    return "".join(["%s\n" % MARK] + ['%s, GROUP="%d", MODE="0660"\n' % (match, group) for match in MATCHES])


def group_of(root="/"):
    """The group of our rule on this node: a number, 0 where there is no rule of ours, None for a rule that was changed by hand."""
    try:
        data = _files.snapshot(_files.under(root, RULE)).data
    except FleetError:  # something else in its place; who wants to write there is told
        return None
    if data is None:
        return 0
    text = data.decode("utf-8", "replace")
    match = GROUP.search(text)
    return int(match.group(1)) if match and text == rule(int(match.group(1))) else None


def check(group):
    """FleetError for what is no number of a group that one may give devices to; 0 stands for no rule."""
    if not 0 <= group <= HIGHEST or group == NONE_OF_16_BITS:
        raise FleetError("%d is no number of a group." % group, "group_invalid", object="group", observed=group,
                         hint="Take a number that no group of your nodes has, such as 990; names differ in meaning from host to host.")


def names_here():
    """Names of the NPU's nodes on this machine as udev knows them."""
    return sorted(os.path.basename(path) for one in _rknpu.find() for path in one["device_nodes"])


def bring(group, root, run, check_mode=False, names=names_here):
    """Make the rule be there for ``group`` (0: not at all), and let udev act on it. Returns (changed, before, warnings).

    One that was changed by hand is somebody's: it is made right where a group is wanted, and left where none is.
    """
    check(group)
    before = _files.snapshot(_files.under(root, RULE))
    wanted = rule(group).encode() if group else None
    if before.data == wanted:
        return False, before.data, []
    if wanted is None and group_of(root) is None:
        return False, before.data, [CHANGED]
    if check_mode:
        return True, before.data, []
    if wanted is not None:
        _files.make_folder(os.path.dirname(before.target), 0o755)
    _files.write(before, wanted)
    return True, before.data, act(run, names())


def act(run, names):
    """Have udev look at the nodes that are there, and at no other one: a display server acts on each event of its card. Without a udev
    that runs the rule is for the next boot."""
    words = [["udevadm", "control", "--reload"]]
    if names:
        words += [["udevadm", "trigger", "--action=change"], ["udevadm", "settle", "--timeout=20"]]
        words[1] += ["--subsystem-match=%s" % name for name in SUBSYSTEMS] + ["--sysname-match=%s" % name for name in names]
    for argv in words:
        try:
            result = run(argv, 30)
        except FleetError as error:
            return ["The rule %s is there, and udev did not act on it: %s Its nodes get their group at the next boot." % (RULE, error)]
        if result.rc != 0 or result.timed_out:
            said = result.stderr.strip()[-200:] or "exit code %s" % result.rc
            return ["The rule %s is there, and udev did not act on it (`%s`: %s). Its nodes get their group at the next boot." % (
                RULE, " ".join(argv[:2]), said)]
    return []
