# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which components a pinned version covers. Private to the collection."""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

#: Which components one pinned version covers. CANN's operators must equal the toolkit (docs/facts.md, P 0 (12)).
COMPONENTS_OF = {
    "driver": ("driver",),
    "firmware": ("firmware",),
    "cann": ("cann_toolkit", "cann_kernels"),
    "docker_runtime": ("docker_runtime",),
}
KEY_OF = {component: key for key, components in COMPONENTS_OF.items() for component in components}


def pinned_components(versions):
    """{'driver': '25.5.0', 'cann': '8.5.0', ...} -> {component: version}; an unknown key is an error, an empty value is not managed."""
    unknown = sorted(set(versions) - set(COMPONENTS_OF))
    if unknown:
        raise FleetError(
            f"npu_fleet_versions has the unknown key {', '.join(unknown)}.",
            code="unknown_component",
            phase="plan",
            observed=unknown,
            hint=f"Allowed keys: {', '.join(COMPONENTS_OF)}.",
        )
    return {
        component: str(versions[key]) for key, components in COMPONENTS_OF.items() if versions.get(key) for component in components
    }
