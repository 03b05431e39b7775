# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes labels of a node with NPUs. Pure. Private to the collection."""

from __future__ import annotations


#: Labels that a node gets, from its chips. "accelerator" and "node.kubernetes.io/npu.chip.name" are the vendor's names (docs/facts.md, K).
def node_labels_of(observed, resource):
    """Kubernetes labels as a pure function of what was observed: {key: value}."""
    names = sorted({c["name"] for c in observed["chips"] if c.get("name")})
    labels = {
        "npu.fleet/family": observed["family"],
        "npu.fleet/chips": str(len(observed["chips"])),
        "npu.fleet/driver-version": observed["versions"]["driver"]["running"],
        "npu.fleet/firmware-version": observed["versions"]["firmware"]["running"],
        "npu.fleet/cann-version": (observed["versions"].get("cann_toolkit") or {}).get("on_disk"),
        "node.kubernetes.io/npu.chip.name": names[0] if len(names) == 1 else None,
        "accelerator": f"huawei-{resource.rsplit('/', 1)[-1]}" if resource else None,
    }
    return {key: value for key, value in labels.items() if value}
