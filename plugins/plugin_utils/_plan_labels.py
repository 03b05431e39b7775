# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes labels of a node, from what npu_info tells of it. Pure. Private to the collection."""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _labels


def _known(values):
    """The values there are, each once; None unless every chip has told one."""
    values = list(values)
    return sorted(set(values)) if values and all(value is not None for value in values) else None


def _same(values):
    found = _known(values)
    return found[0] if found and len(found) == 1 else None


def facts_of(observed, ready):
    """What _labels.labels_of() takes. ready: whether the node has passed its gates."""
    chips, versions = observed["chips"], observed["versions"]
    families = [observed["family"]] if observed["family"] else []  # None for several, and beside chips that no table names
    products = [observed["product"]] if observed.get("product") else []
    return {
        "backend": observed.get("backend") or ("ascend" if chips else None),
        "present": observed["present"], "ready": ready,
        "families": families,
        "chips": len(chips),
        "chip_names": _known(chip.get("name") for chip in chips),
        "products": products,
        "driver_version": versions["driver"].get("running"),
        "firmware_version": versions["firmware"].get("running"),
        "cann_version": (versions.get("cann_toolkit") or {}).get("on_disk"),
        "aicores": _same(chip.get("cores") for chip in chips),
        "link": _labels.link_of(families, products, len(chips)),
        "serial_hash": _labels.serial_hash([chip.get("serial") for chip in chips]),
        "arch": observed.get("arch"),
        "stack": _same(chip.get("stack") if (chip.get("evidence") or {}).get("driver") else None for chip in chips),  # else it is a guess
    }


def node_labels_of(observed, ready=True):
    """Labels that this node should carry; without an observation those that are ours by name, for taking them off."""
    if observed is None:
        return dict.fromkeys(_labels.OWN, "")
    return _labels.labels_of(facts_of(observed, ready))
