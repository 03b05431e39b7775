# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which editor knows which engine's files, and what a run has to do. Private to the collection.

An editor is a module with ``plan_edit(found, wanted)`` and ``masked(text)``. Another engine is a new editor file here and a new entry in
EDITORS.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from ansible_collections.npu.fleet.plugins.module_utils._engine_base import unmet
from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import (
    _engine_config_containerd,
    _engine_config_crio,
    _engine_config_docker,
    _engine_config_isulad,
    _engine_config_k3s,
)
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Edit, Wanted, files_of

EDITORS = {
    "docker": _engine_config_docker,
    "containerd": _engine_config_containerd,
    "k3s": _engine_config_k3s,
    "rke2": _engine_config_k3s,
    "crio": _engine_config_crio,
    "isulad": _engine_config_isulad,
}


@dataclass
class Plan:
    """What a run has to do: ``commit`` are the arguments of the second step (None where nothing is to be done)."""

    edit: Edit
    expect: dict
    missing: str | None
    commit: dict | None
    warnings: list[str] = field(default_factory=list)


def plan(found: dict, wanted: Wanted) -> Plan:
    """Decide from what ``oci_runtime_node`` read on the node. Pure; raises FleetError for a file or an engine that must not be touched."""
    edit = _edit(found, wanted)
    expect = {"state": wanted.state, "name": wanted.name, "path": wanted.path, "args": edit.args, "default": edit.default}
    info = {key: found[key] for key in ("active", "error")}
    info.update({key: found["effective"][key] for key in ("runtimes", "default_runtime")})
    # An engine that is down has no runtime to forget; it is not started for a removal.
    missing = None if wanted.state == "absent" and not found["active"] else unmet(found["engine"], info, expect)
    result = Plan(edit, expect, missing, None, list(edit.warnings) + _warnings(found, wanted))
    if edit.changed or missing is not None:
        bridge = edit.bridge if missing is not None else None
        result.commit = {
            "file": edit.path,
            "expected": _expected(found, edit.path),
            "content": _encoded(edit.text) if edit.changed and not edit.remove else None,
            "remove": edit.remove,
            "bridge": _encoded(bridge),
            "check": _encoded(edit.check),
            "expect": expect,
            "note": edit.note,
        }
    return result


def _edit(found: dict, wanted: Wanted) -> Edit:
    try:
        return EDITORS[found["engine"]].plan_edit(found, wanted)
    except FleetError as error:
        said = found.get("effective_error")
        if error.code != "effective_unknown" or not said:
            raise
        said = mask_text(said)
        raise FleetError(
            f"{error.message} Its parser says: {said}", error.code, phase=error.phase, object=error.object, observed=said, hint=error.hint
        ) from error


def _expected(found: dict, path: str) -> dict[str, str]:
    """Return the digests of all files that the decision rests on; "" where there was none, also for the one that is to be made."""
    # Leftovers of a killed run decide nothing and may be cleared away at any time.
    files = [file for file in files_of(found) if not _engine_config_crio.leftover(file.path)]
    return {path: "", **{file.path: file.sha256 or "" for file in files}}


def _encoded(text: str | None) -> str | None:
    return None if text is None else base64.b64encode(text.encode("utf-8")).decode("ascii")


def _warnings(found: dict, wanted: Wanted) -> list[str]:
    warnings = []
    if found["users"]:
        names = ", ".join(found["users"])
        warnings.append(f"Containers made with the runtime {wanted.name} can not be started again once it is gone: {names}.")
    if found["others"]:
        names = ", ".join(found["others"])
        warnings.append(f"Only {found['engine']} is configured; this host has {names}, too.")
    return warnings


def runtime_missing(found: dict, wanted: Wanted) -> FleetError | None:
    """Return the error for a runtime whose program is not on the node: registered, it would break each container that uses it."""
    program = found["program"]
    if wanted.state != "present" or (program["exists"] and program["executable"]):
        return None
    what = "is not executable" if program["exists"] else "does not exist"
    return FleetError(
        f"The runtime's program {wanted.path} {what} on this host; it was not registered.",
        "runtime_missing",
        phase="check",
        object=wanted.path,
        hint="Install the docker_runtime package first (npu.fleet.npu_package with component=docker_runtime).",
    )


def diff(found: dict, planned: Plan) -> dict:
    """Return the change as Ansible shows it, credentials masked."""
    masked, edit = EDITORS[found["engine"]].masked, planned.edit
    return {
        "before": masked(edit.before),
        "after": "" if edit.remove else masked(edit.text),
        "before_header": edit.path,
        "after_header": edit.path,
    }


def killed(found: dict, planned: Plan, restart: str) -> list[str]:
    """Return the names of the containers or pods that the run would end."""
    return list(found.get("restart_kills") or []) if planned.commit is not None and restart != "never" else []


def verb(found: dict) -> str:
    """Return what the engine will be told to do: reload or restart; start where it is down."""
    return (found.get("takes_over_by") or "restart") if found["active"] else "start"
