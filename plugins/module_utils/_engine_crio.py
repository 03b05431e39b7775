# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""cri-o as an engine. Private to the collection. Read in its source, not run: no package of it could be had.

It reads one file and then a folder of drop-ins in the order of their names, each over what was there before; tables of runtimes add up
(cri-o, pkg/config: UpdateFromFile, UpdateFromPath). SIGHUP takes over runtimes and the default (pkg/config/reload.go: ReloadRuntimes).
Over HTTP at its socket it gives the configuration in force (server/inspect.go: /config).
"""

import http.client
import os
import re
import shutil
import tempfile
import time

from ansible_collections.npu.fleet.plugins.module_utils import _engine_base as base
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils import _grpc
from ansible_collections.npu.fleet.plugins.module_utils import _toml_read as toml
from ansible_collections.npu.fleet.plugins.module_utils._engine_containerd import refusal_line
from ansible_collections.npu.fleet.plugins.module_utils._engine_cri import CriEngine, entry
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, is_leftover, snapshot, under

NAME = "crio"
UNIT = "crio.service"
INSTALL = "see cri-o.io, packages"
DEFAULT_CONFIG = "/etc/crio/crio.conf"
DEFAULT_FOLDER = "/etc/crio/crio.conf.d"
SOCKET = "/var/run/crio/crio.sock"
RELOAD_SECONDS = 5
MAX_CONFIG = 1 << 20


def installed(root="/"):
    """Return whether cri-o is there."""
    return find_program("crio", root) is not None


def observe(run, root="/", timeout=20):
    """Return cri-o's entry of ``npu_info.engines``."""
    engine = Engine(run, root, timeout, timeout)
    facts = engine.facts()
    try:
        found, error = snapshot(under(root, engine.config_path)), None
        text, error = engine.effective()
        known = configured(text)
        known["error"] = error or known["error"]
    except FleetError as trouble:
        found, known = None, dict(configured(None), error=str(trouble))
    return entry(engine, facts, found and found.sha256, known)


def configured(text):
    """Return ``{"runtimes": {name: path}, "default_runtime", "error"}`` of cri-o's configuration as it prints it. Pure."""
    try:
        runtimes, default = runtimes_of(toml.parse(text or ""))
    except toml.TomlError as error:
        return {"runtimes": {}, "default_runtime": None, "error": "its configuration can not be read: %s" % error}
    return {"runtimes": {name: runtime["path"] for name, runtime in runtimes.items()}, "default_runtime": default, "error": None}


def runtimes_of(document):
    """Return ``({name: {"path", "args", "type"}}, default)`` of a parsed configuration. Pure."""
    tables = toml.get(document, "crio", "runtime", "runtimes")
    found = {}
    for name, table in (tables if isinstance(tables, dict) else {}).items():
        if isinstance(table, dict):
            found[name] = {"path": table.get("runtime_path") or "", "args": [], "type": table.get("runtime_type") or None}
    return found, toml.get(document, "crio", "runtime", "default_runtime") or None


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path, timeout):
        http.client.HTTPConnection.__init__(self, "localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = _grpc.connect(self._path, self.timeout)


def live_config(path, timeout):
    """Return the configuration that the running cri-o has in force, parsed; None where it does not tell."""
    connection = _UnixConnection(path, timeout)
    try:
        connection.request("GET", "/config")
        answer = connection.getresponse()
        text = answer.read(MAX_CONFIG + 1).decode("utf-8", "replace")
        return toml.parse(text) if answer.status == 200 and len(text) <= MAX_CONFIG else None
    except (OSError, http.client.HTTPException, toml.TomlError):
        return None
    finally:
        connection.close()


class Engine(CriEngine):
    """The cri-o of this node, for the length of one read or commit."""

    name = NAME
    label = "cri-o"
    unit_names = [UNIT, "cri-o.service"]
    short_flags = {"-c": "config", "-d": "config-dir", "-l": "log-level"}
    default_config = DEFAULT_CONFIG
    socket_path = SOCKET
    _live = {}

    @property
    def takes_over_by(self):
        """Return ``reload`` where the unit has one."""
        return "reload" if self.unit["can_reload"] else "restart"

    def folder(self):
        """Return the folder of drop-ins."""
        return self.flags().get("config-dir", [DEFAULT_FOLDER])[-1] or DEFAULT_FOLDER

    def version(self):
        """Return the version that the program prints, or None."""
        program = find_program("crio", self.root)
        result = self.run([program, "--version"], self.command_timeout) if program else None
        match = re.search(r"(?mi)^(?:crio version|version:)\s+v?(\d+\.\d+\S*)", result.stdout) if result and result.rc == 0 else None
        return match.group(1) if match else None

    # --- reading ---

    def read(self):
        """Return the file, then the drop-ins in the order in which cri-o reads them."""
        files = [base.file_entry(self.root, self.config_path, "main")]
        files += [base.file_entry(self.root, path, "dropin") for path in self._dropins()]
        effective, error = self.effective()
        return {
            "files": files,
            "effective_text": effective,
            "effective_error": error,
            "writable": [self.config_path, os.path.join(self.folder(), "*.conf")],
            "socket": self.socket_path,
        }

    def _dropins(self):
        # cri-o walks the folder and takes every file, whatever its ending.
        folder = self.folder()
        found = []
        for parent, folders, names in os.walk(under(self.root, folder)):
            folders.sort()
            found += [os.path.join(parent, name) for name in names if not is_leftover(name)]
        prefix = "" if self.root == "/" else os.path.normpath(self.root)
        return sorted((path[len(prefix):] for path in found if os.path.isfile(path)), key=lambda path: path.split("/"))

    def effective(self):
        """Return ``(text, None)`` of what cri-o makes of its files, or ``(None, why not)``."""
        return self._print(under(self.root, self.config_path), under(self.root, self.folder()), self.config_path)

    def _print(self, config, folder, shown):
        program = find_program("crio", self.root)
        if program is None:
            return None, "the program of cri-o was not found"
        result = self.run([program, "--config", config, "--config-dir", folder, "config"], self.command_timeout)
        if result.timed_out:
            return None, "'crio config' did not end within %d s" % self.command_timeout
        if result.rc != 0:
            said = units.last_line(result.stderr).replace(folder, self.folder()).replace(config, shown)
            return None, said or "'crio config' ended with %d" % result.rc
        return result.stdout, None

    def validate(self, path, data, check):
        """Let ``crio config`` judge copies of the files, the new one among them."""
        if find_program("crio", self.root) is None:
            return "not checked: the program of cri-o was not found"
        place = tempfile.mkdtemp(prefix="npu-fleet-")
        try:
            copies = {known: self._bytes_of(known) for known in [self.config_path] + self._dropins()}
            copies[path] = data
            config, folder = os.path.join(place, "crio.conf"), os.path.join(place, "crio.conf.d")
            os.mkdir(folder)
            for known, content in copies.items():
                if content is not None:
                    inside = os.path.relpath(known, self.folder())
                    target = config if known == self.config_path else os.path.join(folder, inside)
                    if not os.path.isdir(os.path.dirname(target)):
                        os.makedirs(os.path.dirname(target))
                    with open(target, "wb") as stream:
                        stream.write(content)
            _text, error = self._print(config, folder, self.config_path)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if error is None:
            return "by crio config"
        line = refusal_line(error) or _line(error)
        raise FleetError(
            "cri-o refuses the new %s%s: %s. Nothing was written." % (path, ", line %d" % line if line else "", error),
            "parser_refused",
            phase="validate",
            object=path,
            observed=error,
            hint="Mend what it names; `crio config` shows the state of the present files.",
        )

    def _bytes_of(self, path):
        return snapshot(under(self.root, path)).data

    # --- taking over ---

    def stage_folder(self, target):
        """Return the parent of the folder of drop-ins for what lies in it: cri-o reads every file there, a half one and a leftover, too."""
        folder = os.path.realpath(under(self.root, self.folder()))
        return os.path.dirname(folder) if target.startswith(folder + "/") else None

    def restart_kills(self, facts):
        """Return what a restart would end; nothing where it takes over by a reload."""
        return [] if self.takes_over_by == "reload" else super(Engine, self).restart_kills(facts)

    def take_over(self):
        """Reload cri-o; restart it where the reload did not bring what its files say, and the restart would end nothing."""
        trouble = super(Engine, self).take_over()
        if trouble or self.done[-1] != "reload" or self._has_its_files():
            return trouble
        if super(Engine, self).restart_kills(self.facts()):
            return "its reload did not bring what its files say, and a restart would end running containers"
        self.done.append("restart")
        return self.systemctl("restart")

    def _has_its_files(self):
        wanted = configured(self.effective()[0])
        if wanted["error"] or not wanted["runtimes"]:
            return True  # nothing to compare with: whoever waits for the runtime sees
        deadline = time.monotonic() + min(RELOAD_SECONDS, self.timeout)
        while True:
            live = live_config(under(self.root, self.socket_path), self.command_timeout)
            if live is None:
                return True
            runtimes, default = runtimes_of(live)
            known = {name: runtime["path"] for name, runtime in runtimes.items()}
            if known == wanted["runtimes"] and wanted["default_runtime"] in (None, default):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)

    # --- the running engine ---

    def runtimes_of(self, status):
        """Return the runtimes and the default of the running cri-o."""
        self._live = live_config(under(self.root, self.socket_path), self.command_timeout) or {}
        found, default = runtimes_of(self._live)
        for name in status["handlers"] or []:
            found.setdefault(name, {"path": "", "args": [], "type": None})
        return found, default

    def cdi_of(self, status):
        """Return whether the running cri-o looks for CDI specs; None where it does not tell."""
        folders = toml.get(self._live, "crio", "runtime", "cdi_spec_dirs")
        return None if folders is None else bool(toml.texts(folders))


def _line(text):
    match = re.search(r"\bline (\d+)\b", text)
    return int(match.group(1)) if match else None
