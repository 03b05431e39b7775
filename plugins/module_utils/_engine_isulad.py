# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""isulad (iSulad of openEuler) as an engine. Private to the collection.

Its daemon.json has ``runtimes`` and ``default-runtime`` as dockerd's (docs.openeuler.org, iSulad "Installation and Configuration"), at
a path that is fixed; a flag on the command line wins over the file and is no conflict. What differs, read in its source
(src/cmd/isulad/main.c, src/contrib/init/isulad.service): it ignores SIGHUP although its unit has an ExecReload that sends one, so it takes
over by a restart; the unit has KillMode=process, so containers outlive that. ``isula info`` does not list runtimes, and isulad has no mode
that only checks a file.

So what runs is known as far as this: an isulad that was started after the last change of its file has read that file.
"""

import json
import os
import re
import time

from ansible_collections.npu.fleet.plugins.module_utils import _engine_base as base
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._engine_daemon_json import configured, no_config
from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, snapshot, under

NAME = "isulad"
LABEL = "isulad"
DEFAULT_CONFIG = "/etc/isulad/daemon.json"
UNIT = "isulad.service"
INSTALL = "openEuler: `dnf install iSulad`"
CLOCK_TICKS = 100  # USER_HZ of Linux on every architecture there is an NPU for


def installed(root="/"):
    """Return whether isulad is there."""
    return find_program("isulad", root) is not None


def observe(run, root="/", timeout=20):
    """Return isulad's entry of ``npu_info.engines``; its runtimes are those of the file that it has read."""
    engine = Engine(run, root, timeout, timeout)
    facts = engine.facts()
    found, error = _config(under(root, DEFAULT_CONFIG))
    said = no_config(error) if error else configured(found.data, DEFAULT_CONFIG)
    return {
        "name": NAME,
        "version": facts["version"] or engine.version(),
        "active": facts["active"],
        "config_path": DEFAULT_CONFIG,
        "config_sha256": found and found.sha256,
        "runtimes": {name: runtime["path"] for name, runtime in facts["runtimes"].items()},
        "default_runtime": facts["default_runtime"],
        "live_restore": facts["live_restore"],
        "containers_running": facts["containers_running"],
        "configured": said,
        "kubelet": None,
        "cdi": None,
        "error": facts["error"] or error,
    }


def _config(path):
    try:
        return snapshot(path), None
    except FleetError as error:
        return None, str(error)


def parse_info(text):
    """Return ``(version, running containers or None)`` out of ``isula info``; ValueError for text that is something else."""
    version = re.search(r"^Server Version:\s*(\S+)", text, re.MULTILINE)
    if not version:
        raise ValueError("output is not that of isula info")
    running = re.search(r"^\s*Running:\s*(\d+)", text, re.MULTILINE)
    return version.group(1), int(running.group(1)) if running else None


def started_at(pid, root="/", now=None):
    """Return when a process was started, in seconds since the epoch, or None. ``now`` is the time of the clock, for tests."""
    stat = units.read_text(under(root, "/proc/%s/stat" % pid))
    uptime = units.read_text(under(root, "/proc/uptime")).split()
    # The name in brackets may hold blanks; field 22 is the 20th after it (proc_pid_stat(5)).
    fields = stat[stat.rfind(")") + 1:].split()
    try:
        return (time.time() if now is None else now) - float(uptime[0]) + int(fields[19]) / float(CLOCK_TICKS)
    except (IndexError, ValueError):
        return None


def changed_at(path, root="/"):
    """Return when a file was last changed; None where there is none."""
    try:
        return os.stat(under(root, path)).st_mtime
    except OSError:
        return None


class Engine(base.BaseEngine):
    """The isulad of this node, for the length of one read or commit."""

    name = NAME
    label = LABEL
    takes_over_by = "restart"
    unseen = "isulad does not list its runtimes: that it was started with the new file, and answers, is all that could be seen"

    def find_unit(self):
        """Return the facts of isulad's unit."""
        return units.query_unit(self.run, self.root, self.command_timeout, UNIT)

    def find_config(self, wanted):
        """Return isulad's file; an error when the user names another one."""
        if wanted is not None and os.path.normpath(wanted) != DEFAULT_CONFIG:
            raise FleetError(
                "isulad reads %s, not %s." % (DEFAULT_CONFIG, wanted), "config_path_mismatch", phase="read", object=wanted,
                observed=DEFAULT_CONFIG, hint="Leave config_path out.",
            )
        return DEFAULT_CONFIG

    def _pid(self):
        unit = self.find_unit()
        return unit["main_pid"] or next((pid for pid, _name in units.processes(("isulad",), self.root)), None)

    def facts(self):
        """Ask isulad whether it answers; its runtimes are those of its file where it has read that (see the top of this file)."""
        answer = {
            "active": False, "version": None, "error": None, "runtimes": {}, "default_runtime": None, "live_restore": None,
            "containers_running": None, "handlers": None,
        }
        client = find_program("isula", self.root)
        if client is None:
            return dict(answer, error="The client isula was not found beside isulad (%s)." % INSTALL)
        result = self.run([client, "info"], self.command_timeout)
        if result.timed_out:
            return dict(answer, error="'isula info' did not answer within %d s." % self.command_timeout)
        try:
            version, running = parse_info(result.stdout)
        except ValueError as error:
            return dict(answer, error=units.last_line(result.stderr) or "'isula info' ended with %s: %s" % (result.rc, error))
        answer.update(active=True, version=version, containers_running=running)
        started, changed = started_at(self._pid(), self.root), changed_at(self.config_path, self.root)
        if started is not None and (changed is None or changed <= started):
            answer.update(self._of_file())
        return answer

    def _of_file(self):
        found, _error = _config(under(self.root, self.config_path))
        said = configured(found.data if found else None, self.config_path)
        args = _arguments(found.data if found else None)
        runtimes = {name: {"path": path, "args": args.get(name, []), "type": None} for name, path in said["runtimes"].items()}
        return {"runtimes": runtimes, "default_runtime": said["default_runtime"]}

    def version(self):
        """Return the version of the program on disk, or None."""
        result = self.run([find_program("isulad", self.root), "--version"], self.command_timeout)
        match = re.search(r"(\d+\.\d+[^\s,]*)", result.stdout)
        return match.group(1) if match and result.rc == 0 else None

    def read(self):
        """Return daemon.json. No flag contradicts it: isulad lets the command line win."""
        return {
            "files": [base.file_entry(self.root, self.config_path, "main")],
            "effective_text": None,
            "writable": [self.config_path],
            "flag_keys": [],
            "default_flag": None,
        }

    def require(self):
        """Raise when isulad could not be asked whether it is there again."""
        if find_program("isula", self.root) is None:
            raise FleetError(
                "The client isula is missing, so whether isulad comes up with the new file could not be seen; nothing was written.",
                "client_missing", phase="check", hint="Install it (%s), or use restart=never." % INSTALL,
            )

    def validate(self, path, data, check):
        """Say that nothing but isulad's next start checks the file, once it is JSON at least."""
        error = configured(data, path)["error"]
        if error:
            raise FleetError("isulad would refuse the new %s Nothing was written." % error, "parser_refused", phase="validate", object=path,
                             observed=error, hint="Mend what it names.")
        return "as JSON only: isulad has no mode that only checks its file; the restart is its judgement"

    def restart_kills(self, facts):
        """Return the containers that would end: none, unless the unit's KillMode ends the processes that carry them."""
        if self.unit["kill_mode"] in (None, "process", "none"):
            return []
        return sorted(container["name"] for container in self._containers(["ps", "--quiet", "--no-trunc"]))

    def users(self, name, facts):
        """Return the names of containers, running or not, made with a runtime."""
        found = self._containers(["ps", "--all", "--quiet", "--no-trunc"])
        return sorted(container["name"] for container in found if container["runtime"] == name)

    def _containers(self, words):
        client = find_program("isula", self.root)
        listed = self.run([client] + words, self.command_timeout) if client else None
        ids = listed.stdout.split() if listed is not None and listed.rc == 0 else []
        if not ids:
            return []
        shown = self.run([client, "inspect"] + ids, self.command_timeout)
        try:
            answer = json.loads(shown.stdout)
            return [{"name": entry["Name"].lstrip("/"), "runtime": (entry.get("HostConfig") or {}).get("Runtime")} for entry in answer]
        except (ValueError, KeyError, TypeError, AttributeError):
            return [{"name": mask_text(name[:12]), "runtime": None} for name in ids]


def _arguments(data):
    """Return the arguments of each runtime in a daemon.json; those of a broken one are none."""
    try:
        runtimes = json.loads((data or b"").decode("utf-8")).get("runtimes") or {}
        return {name: runtime.get("runtimeArgs") or [] for name, runtime in runtimes.items()}
    except (ValueError, AttributeError):
        return {}
