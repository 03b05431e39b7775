# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes labels of a node with NPUs. Pure. Private to the collection."""

from __future__ import annotations

#: Labels that a node gets, from its chips. "accelerator" and "node.kubernetes.io/npu.chip.name" are the vendor's names (docs/facts.md, K).
LABELS = (
    "npu.fleet/family", "npu.fleet/chips", "npu.fleet/driver-version", "npu.fleet/firmware-version", "npu.fleet/cann-version",
    "node.kubernetes.io/npu.chip.name", "accelerator",
)


def node_labels_of(observed, resource):
    """Kubernetes labels as a pure function of what was observed: {key: value}."""
    names = sorted({c["name"] for c in observed["chips"] if c.get("name")})
    values = (
        observed["family"],
        str(len(observed["chips"])),
        observed["versions"]["driver"]["running"],
        observed["versions"]["firmware"]["running"],
        (observed["versions"].get("cann_toolkit") or {}).get("on_disk"),
        names[0] if len(names) == 1 else None,
        f"huawei-{resource.rsplit('/', 1)[-1]}" if resource else None,
    )
    return {key: value for key, value in zip(LABELS, values, strict=True) if value}
