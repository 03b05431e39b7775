# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters about what a node does by itself: judge its driver, go back, run our agent. For the roles of this collection."""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils import _agent
from ansible_collections.npu.fleet.plugins.plugin_utils import _rollback


def agent_due(observed, config, unit):
    """Why the agent's service must be configured or started anew; nothing where it runs with these texts already."""
    return _agent.decide_service(observed, config, unit)["reasons"]


class FilterModule:
    """The filters of this collection; each has a YAML file of its own name with the documentation."""

    def filters(self):
        return {
            "agent_due": agent_due,
            "cut_way_back": _rollback.cut_way_back,
            "driver_failures": _rollback.driver_failures,
            "rollback": _rollback.make_rollback,
            "rollback_lines": _rollback.render,
        }
