# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that turn observation into a plan, for the roles of this collection."""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import resource_of
from ansible_collections.npu.fleet.plugins.plugin_utils import (
    _pinned,
    _plan,
    _plan_labels,
    _plan_pins,
    _probe,
    _report,
    _report_page,
)
from ansible_collections.npu.fleet.plugins.plugin_utils._filters import in_words


def approved_plan(path, node):
    """The ceiling of a node's run, from the file that npu.fleet.plan wrote."""
    return _report.approved(_report.read(path), node)


class FilterModule:
    """The filters of this collection; each has a YAML file of its own name with the documentation."""

    def filters(self):
        return {
            "plan": in_words(_plan.make_plan),
            "plan_lines": _plan.render,
            "beyond_ceiling": _plan.beyond_ceiling,
            "node_labels": _plan_labels.node_labels_of,
            "npu_resource": resource_of,
            "package_source": in_words(_plan_pins.package_source),
            "pinned_components": in_words(_pinned.pinned_components),
            "read_probe": _probe.read_probe,
            "probe_failure": _probe.explain,
            "plan_report": _report.report,
            "plan_table": _report.table,
            "plan_page": _report_page.page,
            "approved_plan": in_words(approved_plan),
        }
