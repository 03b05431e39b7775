# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two steps of ``oci_runtime`` on a node: read, and commit. Private to the collection."""

import base64
import os

from ansible_collections.npu.fleet.plugins.module_utils import _engine
from ansible_collections.npu.fleet.plugins.module_utils import _engine_docker as docker
from ansible_collections.npu.fleet.plugins.module_utils._engine_docker_apply import Engine
from ansible_collections.npu.fleet.plugins.module_utils._engine_record import Record
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import locked, make_folder, sha256, snapshot, under


def config_path(process, wanted):
    """Return the file dockerd reads; an error when the user names another one."""
    found = process["config_path"]
    if wanted is None or not process["words"]:
        return wanted or found
    if os.path.normpath(wanted) != os.path.normpath(found):
        raise FleetError(
            "dockerd on this host reads %s, not %s." % (found, wanted),
            "config_path_mismatch",
            phase="read",
            object=wanted,
            observed=found,
            hint="Leave config_path out, or change --config-file of dockerd's unit first.",
        )
    return found


def read(params, run):
    """Return the bytes and looks of the engine's file, what the engine has in effect, and what is on record."""
    root, deadline = params["root"], params["command_timeout"]
    _engine.choose(params["engine"], root)
    process = docker.observe_process(run, root, deadline)
    info = docker.query_info(run, root, deadline)
    path = config_path(process, params["config_path"])
    found = snapshot(under(root, path))
    record = Record(docker.NAME, root, params["state_folder"])
    flags = {docker.flag_key(flag): values for flag, values in process["flags"].items()}
    return {
        "engine": docker.NAME,
        "version": info["version"] or docker.binary_version(run, root, deadline),
        "active": info["active"],
        "error": info["error"],
        "effective": {"runtimes": info["runtimes"], "default_runtime": info["default_runtime"]},
        "live_restore": info["live_restore"],
        "containers_running": info["containers_running"],
        "config_path": path,
        "target": found.target,
        "link": found.link,
        "exists": found.data is not None,
        "content": base64.b64encode(found.data or b"").decode("ascii"),
        "sha256": found.sha256,
        "mode": None if found.mode is None else "%04o" % found.mode,
        "owner": found.uid,
        "group": found.gid,
        "flag_keys": sorted(flags),
        "default_flag": flags.get("default-runtime", [None])[-1],
        "unit": {key: process["unit"][key] for key in ("name", "loaded", "state", "kill_mode", "can_reload")},
        "program": program(params["path"], root),
        "note": record.note(params["name"]),
        "pending": record.pending is not None,
        "users": containers_of(run, params["name"], info, root, deadline) if params["state"] == "absent" else [],
        "others": [name for name in _engine.others_installed(root) if name != "containerd"],
    }


def program(path, root):
    """Return whether the runtime's program is there."""
    if path is None:
        return None
    path = under(root, path)
    return {"exists": os.path.isfile(path), "executable": os.path.isfile(path) and os.access(path, os.X_OK)}


def containers_of(run, name, info, root, deadline):
    """Return the names of containers, running or not, made with a runtime: they can not start once it is gone."""
    if name not in info["runtimes"]:
        return []
    client = docker.find_program("docker", root)
    listed = run([client, "ps", "--all", "--quiet", "--no-trunc"], deadline)
    ids = listed.stdout.split() if listed.rc == 0 else []
    if not ids:
        return []
    shown = run([client, "inspect", "--format", "{{.HostConfig.Runtime}} {{.Name}}"] + ids, deadline)
    pairs = [line.split(" ", 1) for line in shown.stdout.splitlines() if " " in line]
    return sorted(container.lstrip("/") for runtime, container in pairs if runtime == name)


def commit(params, run):
    """Write the new bytes and make the engine take them over, or leave everything as it was."""
    root = params["root"]
    engine = Engine(run, root, params["timeout"], params["command_timeout"])
    path = under(root, config_path(engine.process, params["config_path"]))
    state_folder = under(root, params["state_folder"])
    make_folder(state_folder, 0o755)
    with locked(os.path.join(state_folder, "engines", docker.NAME + ".lock")):
        record = Record(docker.NAME, root, params["state_folder"])
        before = snapshot(path)
        if before.sha256 != (params["expected_sha256"] or None):
            raise changed(before)
        return _Commit(params, engine, record, before).go()


def changed(found):
    """Return the error for a file that somebody else changed meanwhile."""
    return FleetError(
        "%s was changed by somebody else between reading and writing; their file was left as it is." % found.target,
        "file_changed",
        phase="write",
        object=found.target,
        observed=found.sha256,
        hint="Run again.",
    )


class _Commit(object):
    """One commit; it owns the order of its steps and the way back."""

    def __init__(self, params, engine, record, before):
        self._params = params
        self._engine = engine
        self._record = record
        self._before = before
        self._info = engine.info()
        self._old = record.undo(before) if self._unfinished() else before
        self._old_note = record.note(params["name"])
        self._final = _bytes(params["content"])
        self._bridge = _bytes(params["bridge"])
        self._expect = params["expect"]
        self._backup, self._backup_is_new = None, False
        self._validation = None
        self._touched = False

    def _unfinished(self):
        """Return whether a change of an earlier run is in the file and the engine has not taken it over yet."""
        return bool(self._record.pending) and docker.unmet(self._info, self._record.pending["expect"]) is not None

    def go(self):
        """Run the steps; return the module's result."""
        info = self._info
        was_active = info["active"]
        # A dockerd that is down has no runtime to forget; it is not started for a removal.
        idle = self._expect["state"] == "absent" and not was_active
        never = self._params["restart"] == "never" or idle
        if not never:
            self._engine.require_client()
        final = self._final if self._final is not None else self._before.data
        # A dockerd that is down reads the final file at its start and needs no bridge.
        bridge = self._bridge if was_active and not never else None
        if final != self._before.data or bridge is not None:
            make_folder(os.path.dirname(self._before.target), 0o755)
            self._backup, self._backup_is_new = self._record.backup(self._old)
        try:
            if bridge is not None:
                self._put(self._before.sha256, bridge)
                self._take_over(self._expect)
                self._put(sha256(bridge), final)
                info = self._take_over(self._expect)
            else:
                if final != self._before.data:
                    self._put(self._before.sha256, final)
                if not never:
                    info = self._take_over(self._expect)
        except FleetError as error:
            raise self._way_back(error, was_active) from error
        missing = docker.unmet(info, self._expect) if never and not idle else None
        # With restart=never the change stays pending until some later run has seen the engine take it over.
        pending = self._record.pending if never and missing else None
        self._record.save(self._params["name"], self._params["note"] or {}, pending)
        if self._backup is not None and self._backup_is_new and not self._params["backup"] and not pending:
            os.unlink(self._backup)
            self._backup = None
        return {
            "changed": final != self._before.data or bool(self._engine.done),
            "actions": self._engine.done,
            "backup_file": self._backup,
            "validation": self._validation,
            "effective": {"runtimes": info["runtimes"], "default_runtime": info["default_runtime"]},
            "reload_required": missing is not None,
        }

    def _put(self, expected, data):
        current = snapshot(self._before.path)
        if current.sha256 != expected:
            raise changed(current)

        def ready():
            # What a later removal must know is noted before the file changes; what is no longer needed is forgotten only at the end.
            note = self._params["note"] or self._old_note
            self._record.save(self._params["name"], note, {"sha256": sha256(data), "backup": self._backup, "expect": self._expect})
            self._touched = True

        self._validation = self._engine.write(current, data, self._params["validate"], ready)

    def _take_over(self, expect):
        self._touched = True
        trouble = self._engine.take_over()
        info, missing = self._engine.wait(expect) if trouble is None else (self._engine.info(), trouble)
        if missing is not None:
            raise FleetError(
                "dockerd did not take over %s: %s." % (self._before.target, missing),
                "engine_rejected",
                phase="reload",
                object=self._before.target,
                hint="`journalctl -u %s -n 50` on the node tells why." % docker.UNIT,
            )
        return info

    def _way_back(self, error, was_active):
        """Return the error to end with, after the old file is back."""
        if not self._touched:
            return error
        current = snapshot(self._before.path)
        ours = [sha256(data) for data in (self._bridge, self._final, self._before.data) if data is not None]
        if current.data == self._old.data or current.sha256 not in ours:
            self._record.save(self._params["name"], self._old_note, None)
            if error.code != "engine_rejected":
                return error
            after = "The file was left as it is."
        else:
            after = "The file is as it was before, byte for byte; %s" % self._engine.put_back(self._old, was_active)
            self._record.save(self._params["name"], self._old_note, None)
        journal = self._engine.journal()
        return FleetError(
            "%s %s" % (error.message, after) + ("\nJournal of dockerd:\n" + journal if journal else ""),
            error.code, phase=error.phase, object=error.object, observed=journal or error.observed, hint=error.hint,
        )


def _bytes(text):
    return None if text is None else base64.b64decode(text.encode("ascii"))
