# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two steps of ``oci_runtime`` on a node: read, and commit. Private to the collection."""

import fnmatch
import os

from ansible_collections.npu.fleet.plugins.module_utils import _engine
from ansible_collections.npu.fleet.plugins.module_utils._engine_apply import Transaction, changed
from ansible_collections.npu.fleet.plugins.module_utils._engine_record import Record
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import locked, make_folder, snapshot, sweep, under


def read(params, run):
    """Return the bytes and looks of the engine's files, what the engine has in effect, and what is on record. Changes nothing."""
    root, deadline = params["root"], params["command_timeout"]
    module, kubelet = _engine.choose(params["engine"], run, root, deadline)
    engine = module.Engine(run, root, params["timeout"], deadline, params["config_path"])
    facts = engine.facts()
    record = Record(engine.name, root, params["state_folder"], engine.config_path)
    answer = {
        "engine": engine.name,
        "version": facts["version"] or engine.version(),
        "active": facts["active"],
        "error": facts["error"],
        "effective": effective(facts),
        "live_restore": facts["live_restore"],
        "containers_running": facts["containers_running"],
        "config_path": engine.config_path,
        "unit": {key: engine.unit[key] for key in ("name", "loaded", "state", "kill_mode", "can_reload")},
        "takes_over_by": engine.takes_over_by,
        "restart_kills": engine.restart_kills(facts) if facts["active"] or engine.running() else [],
        "kubelet": kubelet,
        "program": program(params["path"], root),
        "note": record.note(params["name"]),
        "pending": bool(record.pending),
        "users": engine.users(params["name"], facts) if params["state"] == "absent" else [],
        "others": _engine.others_installed(engine.name, root),
    }
    answer.update(engine.read())
    return answer


def effective(facts):
    """Return what the engine has in effect, as results show it."""
    return {key: facts[key] for key in ("runtimes", "default_runtime", "handlers")}


def program(path, root):
    """Return whether the runtime's program is there."""
    if path is None:
        return None
    path = under(root, path)
    return {"exists": os.path.isfile(path), "executable": os.path.isfile(path) and os.access(path, os.X_OK)}


def commit(params, run):
    """Write, replace or remove one file and make the engine take it over, or leave everything as it was."""
    root, deadline = params["root"], params["command_timeout"]
    module, _kubelet = _engine.choose(params["engine"], run, root, deadline)
    state_folder = under(root, params["state_folder"])
    make_folder(state_folder, 0o755)
    with locked(os.path.join(state_folder, "engines", module.NAME + ".lock"), params["timeout"]):
        engine = module.Engine(run, root, params["timeout"], deadline, params["config_path"])
        record = Record(engine.name, root, params["state_folder"], engine.config_path)
        path = params["file"] or engine.config_path
        compare(engine, path, params["expected"] or {}, params["remove"] or params["content"] is not None)
        target = snapshot(under(root, path)).target
        sweep(target, engine.stage_folder(target))
        return Transaction(params, engine, record, path).go()


def compare(engine, path, expected, writes):
    """Raise where the files are not those that were read (one has other bytes, one has come), or ``path`` is not the engine's to write."""
    for known in sorted(set(expected) | ({path} if writes else set())):
        found = snapshot(under(engine.root, known))
        if (found.sha256 or "") != (expected.get(known) or ""):
            raise changed(found)
    answer = engine.read()
    for entry in answer["files"]:
        if entry["exists"] and entry["role"] != "generated" and not expected.get(entry["path"]):
            raise changed(snapshot(under(engine.root, entry["path"])))
    if writes and not any(matches(path, pattern) for pattern in answer["writable"]):
        raise FleetError(
            "%s is no file of %s that may be written; those are: %s." % (path, engine.label, ", ".join(answer["writable"]) or "none"),
            "file_not_writable", phase="write", object=path,
        )


def matches(path, pattern):
    """Return whether ``path`` is ``pattern``, whose last part may have wildcards."""
    path, pattern = os.path.normpath(path), os.path.normpath(pattern)
    return os.path.dirname(path) == os.path.dirname(pattern) and fnmatch.fnmatchcase(os.path.basename(path), os.path.basename(pattern))
