# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The detached units that packages run in: their names, and which of them are still at work. Private to the collection."""

from ansible_collections.npu.fleet.plugins.module_utils._detached import STATE_DIR, vendor_running
from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import KNOWN


def unit_name(component):
    """Return the name of the unit that the package of this component runs in."""
    return "npu-fleet-" + component.replace("_", "-")


def running_packages(run_dir=STATE_DIR):
    """Return the components whose package still runs, also one whose caller is long gone. Only root can see them."""
    return [component for component in KNOWN if vendor_running(unit_name(component), run_dir)]
