# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's settings from the options of the role npu_device_plugin. Pure. Private to the collection."""

from __future__ import annotations

from typing import Any

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import ROCKCHIP

CHOICES = ("auto", "nodes", "cdi")
CDI_FOLDER = "/etc/cdi"


def agent_settings(
    config: dict[str, Any], engines: list[dict[str, Any]], allocate_by: str = "auto", cdi_folder: str = "", backend: str | None = "",
) -> dict[str, Any]:
    """Settings for the agent's configuration file: those of the options, and over them the given ones.

    ``engines`` are those of npu_info. ``auto`` is ``nodes``: an engine that leaves out CDI devices says nothing and the pod runs without
    its chips (kubelet, measured), so somebody has to want it. ``backend`` is what the node's chips are of: where that is not what the agent
    looks for first it is written down, so that agent and play cannot see different hardware. FleetError where an engine is not known to
    support what is wanted.
    """
    if allocate_by not in CHOICES:
        raise FleetError(f"npu_device_plugin_allocate_by is {allocate_by!r}; there are {', '.join(CHOICES)}.", "invalid_option",
                         object="npu_device_plugin_allocate_by", observed=allocate_by)
    settings: dict[str, Any] = {"backend": ROCKCHIP} if backend == ROCKCHIP else {}
    if cdi_folder:
        settings["cdi_folder"] = cdi_folder
    if allocate_by == "cdi":
        settings["allocate_by"] = "cdi"
        settings.setdefault("cdi_folder", CDI_FOLDER)
    settings.update(config)
    if settings.get("allocate_by") == "cdi":
        _require_cdi(engines)
    return settings


def _require_cdi(engines: list[dict[str, Any]]) -> None:
    hint = "Use npu_device_plugin_allocate_by: nodes. It works with every engine."
    used = [engine for engine in engines if engine.get("kubelet") is True]
    if len(used) != 1:
        there = ", ".join(str(engine.get("name")) for engine in engines) or "none"
        raise FleetError(
            f"Chips are to be given by CDI, but it is not known which container engine kubelet uses on this node (engines: {there}). "
            "On an engine without CDI pods would run without their chips, and nobody would say so.",
            "cdi_unknown", object="npu_device_plugin_allocate_by", observed=there, hint=hint)
    engine = used[0]
    if engine.get("cdi") is True:
        return
    name = f"{engine.get('name')} {engine.get('version') or '(version unknown)'}"
    why = "has no CDI, or has it switched off" if engine.get("cdi") is False else "is not known to have CDI switched on"
    raise FleetError(
        f"Chips are to be given by CDI, but kubelet's engine on this node, {name}, {why}. Pods would run without their chips, and nobody "
        "would say so.", "cdi_unsupported", object=str(engine.get("name")), observed=engine.get("cdi"),
        hint=hint + " Or give the engine a version with CDI: containerd 2.0 and CRI-O have it on, containerd 1.7 with enable_cdi = true; "
        "kubelet hands CDI names on from 1.29.")
