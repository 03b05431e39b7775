# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CANN's environment for login shells and for systemd units: whose it has to be, and whether it is. Private to the collection."""

import os

PROFILE = "/etc/profile.d/npu-fleet-ascend.sh"
UNIT_FILE = "/etc/npu-fleet/ascend.env"


def judge(files, found):
    """Note on the component that the environment hangs on what is wrong with its files."""
    wanted = sources(files, found)
    if wanted:
        found[wanted[0][0]]["record"]["unsettled"] += problems(files, wanted)


def sources(files, found):
    """Return (component, version, path of its set_env.sh) in the order to source them: toolkit, or nnrt without one, then nnal."""
    wanted = []
    main = [name for name in ("cann_toolkit", "cann_nnrt") if found[name]["state"] == "present"][:1]
    for name in main + [name for name in ("nnal",) if found[name]["state"] == "present"]:
        path = found[name]["path"]
        # Before 8.5.0, and for ATB, it lies beside the version folders.
        for script in (path + "/set_env.sh", os.path.dirname(path) + "/set_env.sh"):
            if files.exists(script):
                wanted.append((name, found[name]["version"], script))
                break
    return wanted


def title(wanted):
    """Return the line that both files carry, by which they are known to be those of the versions in force."""
    return "# For %s." % ", ".join("%s %s (%s)" % source for source in wanted)


def problems(files, wanted):
    line = title(wanted)
    return ["%s is not that of the version in force" % path for path in (PROFILE, UNIT_FILE)
            if line not in (files.text(path) or "").splitlines()]
