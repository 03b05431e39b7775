# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which editor knows which engine's file, and what a run has to do. Private to the collection.

An editor is a module with ``edit``, ``bridge``, ``keys`` and ``masked`` (see ``_engine_config_docker.py``). A later engine is a new editor
file here and a new entry in EDITORS.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from ansible_collections.npu.fleet.plugins.module_utils import _engine_docker as docker
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_docker
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Edit, Wanted

EDITORS = {"docker": _engine_config_docker}


@dataclass
class Plan:
    """What a run has to do: ``commit`` are the arguments of the second step (None where nothing is to be done)."""

    before: str
    edit: Edit
    expect: dict
    missing: str | None
    commit: dict | None
    warnings: list[str] = field(default_factory=list)


def plan(found: dict, wanted: Wanted) -> Plan:
    """Decide from what ``oci_runtime_node`` read on the node. Pure; raises FleetError for a file or an engine that must not be touched."""
    editor = EDITORS[found["engine"]]
    path = found["config_path"]
    data = base64.b64decode(found["content"]) if found["exists"] else None
    runtimes = found["effective"]["runtimes"]
    edit = editor.edit(data, path, wanted, found["note"], known_runtimes=runtimes)
    before = data.decode("utf-8") if data is not None else ""
    _refuse_conflicts(found, wanted, editor.keys(edit.text))
    expect = {"state": wanted.state, "name": wanted.name, "path": wanted.path, "args": edit.args, "default": edit.default}
    info = {
        "active": found["active"],
        "error": found["error"],
        "runtimes": runtimes,
        "default_runtime": found["effective"]["default_runtime"],
    }
    # A dockerd that is down has no runtime to forget; it is not started for a removal.
    missing = None if wanted.state == "absent" and not found["active"] else docker.unmet(info, expect)
    warnings = list(edit.warnings) + _warnings(found, wanted)
    result = Plan(before, edit, expect, missing, None, warnings)
    if edit.changed or missing is not None:
        bridge = None
        if wanted.state == "absent" and missing is not None:
            bridge = editor.bridge(edit.text, default=info["default_runtime"] == wanted.name)
        result.commit = {
            "expected_sha256": found["sha256"] or "",
            "content": _encoded(edit.text) if edit.changed else None,
            "bridge": _encoded(bridge) if bridge is not None else None,
            "expect": expect,
            "note": edit.note,
        }
    return result


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode("utf-8")).decode("ascii")


def _refuse_conflicts(found: dict, wanted: Wanted, keys: list[str]) -> None:
    """Raise where the file and the command line of dockerd contradict each other: it would not start or reload."""
    path = found["config_path"]
    both = docker.conflicts(keys, found["flag_keys"])
    if both:
        raise FleetError(
            "{}: {} stands in the file and on the command line of dockerd ({}); dockerd refuses to start or reload like that. Nothing was "
            "changed.".format(path, ", ".join(f'"{key}"' for key in both), found["unit"]["name"]),
            "config_conflict",
            phase="check",
            object=path,
            observed=", ".join(both),
            hint="Keep each in one place: the file, or ExecStart (systemctl edit {}).".format(found["unit"]["name"]),
        )
    if wanted.state == "absent" and found.get("default_flag") == wanted.name:
        raise FleetError(
            f"dockerd is started with --default-runtime={wanted.name}; without that runtime it would not start. Nothing was changed.",
            "config_conflict",
            phase="check",
            object=path,
            hint="Take the flag away with 'systemctl edit {}' first.".format(found["unit"]["name"]),
        )


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
    masked, path = EDITORS[found["engine"]].masked, found["config_path"]
    return {
        "before": masked(planned.before),
        "after": masked(planned.edit.text),
        "before_header": path,
        "after_header": path,
    }
