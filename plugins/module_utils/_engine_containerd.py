# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd as an engine. Private to the collection.

containerd has no reload (SIGHUP ends it), so a change is taken over by a restart; with the unit's usual ``KillMode=process`` the shims
live on, and with them all containers. What each version does with its files: docs/facts.md, "Container engines, measured".
"""

import base64
import contextlib
import glob
import os
import re
import tempfile

from ansible_collections.npu.fleet.plugins.module_utils import _engine_base as base
from ansible_collections.npu.fleet.plugins.module_utils import _engine_docker as docker
from ansible_collections.npu.fleet.plugins.module_utils import _engine_kubelet as kubelet
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils import _toml_read as toml
from ansible_collections.npu.fleet.plugins.module_utils._engine_cri import CriEngine, entry
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, snapshot, under

NAME = "containerd"
UNIT = "containerd.service"
INSTALL = "Debian and Ubuntu: `apt-get install containerd`"
DEFAULT_CONFIG = "/etc/containerd/config.toml"
DEFAULT_SOCKET = "/run/containerd/containerd.sock"
SHORT_FLAGS = {"-c": "config", "-l": "log-level", "-a": "address"}

# The table of CRI's runtimes in a file of each version, oldest first; the dump of 2.x may hold both of the last ones.
CRI_TABLES = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
MAX_IMPORTS = 200
# From here on the running containerd tells the options of its runtimes (pkg/cri/config: Options became a map); before, only its files do.
TELLS_OPTIONS = (1, 5)


def installed(root="/"):
    """Return whether containerd is there."""
    return find_program("containerd", root) is not None


def observe(run, root="/", timeout=20):
    """Return containerd's entry of ``npu_info.engines``."""
    return describe(Engine(run, root, timeout, timeout))


def describe(engine):
    """Return the entry of ``npu_info.engines`` of containerd, or of an engine that has containerd inside."""
    facts = engine.facts()
    found, error = None, None
    try:
        found = snapshot(under(engine.root, engine.config_path))
        effective, error = engine.effective()
        known = configured(effective)
    except FleetError as trouble:
        known = configured(None)
        error = str(trouble)
    known["error"] = error or known["error"]
    described = entry(engine, facts, found and found.sha256, known)
    described["error"] = described["error"] or error
    return described


# --- what a dump says ---


def cri_table(document):
    """Return the CRI table with the runtimes of a parsed dump, None where there is none (the plugin is disabled). Pure."""
    for name in reversed(CRI_TABLES):
        table = toml.get(document, "plugins", name)
        if isinstance(table, dict) and ("containerd" in table or name != CRI_TABLES[1]):
            return table
    return None


def configured(text):
    """Return what containerd would know after its next start: ``{"runtimes": {name: path}, "default_runtime", "error"}``. Pure.

    ``text``: its dump, None where it made none. With the CRI plugin disabled it knows no runtimes.
    """
    try:
        table = cri_table(toml.parse(text)) if text else {}
    except toml.TomlError as error:
        return {"runtimes": {}, "default_runtime": None, "error": "its dump can not be read: %s" % error}
    runtimes = toml.get(table, "containerd", "runtimes") or {}
    return {
        "runtimes": {name: runtime["path"] or runtime["type"] or "" for name, runtime in runtimes_of(runtimes).items()},
        "default_runtime": toml.get(table, "containerd", "default_runtime_name") or None,
        "error": None,
    }


def runtimes_of(table):
    """Return ``{name: {"path", "args", "type"}}`` of a table of runtimes, with the keys of the files or of CRI's answer. Pure.

    ``path`` is the runtime's program where its entry names one: ``BinaryName`` for runc's shim, ``Runtime`` for the shim of containerd 1.3
    and older, else the program of a shim of its own.
    """
    found = {}
    for name, runtime in (table if isinstance(table, dict) else {}).items():
        if not isinstance(runtime, dict):
            continue
        options = runtime.get("options") or {}
        path = options.get("BinaryName") or options.get("Runtime") or runtime.get("runtimePath") or runtime.get("runtime_path") or ""
        found[name] = {"path": path, "args": [], "type": runtime.get("runtimeType") or runtime.get("runtime_type") or None}
    return found


def dump_trouble(text):
    """Return why CRI would not load with a configuration that containerd's own parser takes, as a text, or None. Pure.

    The parser does not look whether the default runtime exists (measured: 1.6, 1.7 and 2.1).
    """
    try:
        table = cri_table(toml.parse(text))
    except toml.TomlError as error:
        return "its dump can not be read: %s" % error
    if table is None:
        return None
    default = toml.get(table, "containerd", "default_runtime_name")
    if default and default not in (toml.get(table, "containerd", "runtimes") or {}):
        return "its CRI plugin would not load: the default runtime %s has no entry among the runtimes" % default
    return None


def refusal_line(text):
    """Return the line of the file that containerd's parser names, or None. Pure. 1.x: ``(3, 2): ...``; 2.x: ``at row 3 column 2``."""
    match = re.search(r"\((\d+), \d+\)|\brow (\d+)\b", text)
    return int(match.group(1) or match.group(2)) if match else None


# --- imports ---


def text_of(found):
    """Return the text of one of ``read()["files"]``. Pure."""
    return base64.b64decode(found["content"]).decode("utf-8", "replace")


def imports_of(text):
    """Return the ``imports`` of a file as they stand there; None where the key is missing or the text is no TOML. Pure."""
    try:
        value = toml.parse(text).get("imports")
    except toml.TomlError:
        return None
    return None if value is None else toml.texts(value)


def version_of(text):
    """Return the ``version`` of a file, None where it has none or is no TOML. Pure."""
    try:
        value = toml.parse(text).get("version")
    except toml.TomlError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def address_of(text):
    """Return the socket that a file names, None where it names none or is no TOML. Pure."""
    try:
        value = toml.get(toml.parse(text), "grpc", "address")
    except toml.TomlError:
        return None
    return value if isinstance(value, str) else None


def numbers(version):
    """Return the first two numbers of a version; (99, 99), as a newer one than any known, where there are none. Pure."""
    found = re.search(r"(\d+)\.(\d+)", version or "")
    return (int(found.group(1)), int(found.group(2))) if found else (99, 99)


def import_pattern(path, importer, version, cwd="/"):
    """Return the absolute path or glob behind one line of ``imports``. Pure. ``version``: of containerd, as two numbers.

    Relative to the importing file; but up to 1.6 a glob is relative to where the process runs.
    """
    if os.path.isabs(path):
        return os.path.normpath(path)
    folder = cwd if "*" in path and version < (1, 7) else os.path.dirname(importer)
    return os.path.normpath(os.path.join(folder, path))


class Engine(CriEngine):
    """The containerd of this node that kubelet uses, for the length of one read or commit."""

    name = NAME
    label = "containerd"
    unit_names = [UNIT]
    short_flags = SHORT_FLAGS
    default_config = DEFAULT_CONFIG
    _version = None
    _binary = None

    def find_unit(self):
        """Return the facts of the unit behind the socket that kubelet uses."""
        self.socket_path = self.find_socket()
        return super(Engine, self).find_unit()

    def find_socket(self):
        """Return the path of the socket: kubelet's, else that of the usual unit's command line or of its file, else the usual one."""
        found = kubelet.endpoint(self.run, self.root, self.command_timeout)
        if kubelet.engine_of(found) == self.name and found["endpoint"].startswith("unix://"):
            return found["endpoint"][len("unix://"):]
        self.words = units.query_unit(self.run, self.root, self.command_timeout, UNIT)["command"]
        flags = self.flags()
        path = flags.get("config", [DEFAULT_CONFIG])[-1]
        return flags.get("address", [address_of(units.read_text(under(self.root, path)))])[-1] or DEFAULT_SOCKET

    # --- the program ---

    def binary(self):
        """Return the program that runs, else the one that the unit would start, else the one in the usual folders; None for none."""
        if self._binary is None:
            self._binary = self.find_binary() or ""
        return self._binary or None

    def find_binary(self):
        """Look for the program."""
        candidates = []
        if self.pid:
            try:
                candidates.append(os.readlink(under(self.root, "/proc/%d/exe" % self.pid)))
            except OSError:
                pass
        if self.unit["command"]:
            candidates.append(self.unit["command"][0])
        for shown in candidates:
            # A program that was replaced while it runs is shown as "/usr/bin/containerd (deleted)".
            path = shown[:-len(" (deleted)")] if shown.endswith(" (deleted)") else shown
            if os.path.isabs(path) and os.path.isfile(under(self.root, path)):
                return under(self.root, path)
        return find_program("containerd", self.root)

    def version(self):
        """Return the version that the program prints, or None."""
        if self._version is None:
            result = self.run([self.binary(), "--version"], self.command_timeout) if self.binary() else None
            match = re.search(r"\sv?(\d+\.\d+\S*)", result.stdout) if result and result.rc == 0 else None
            self._version = match.group(1) if match else ""
        return self._version or None

    def _cwd(self):
        try:
            return os.readlink(under(self.root, "/proc/%d/cwd" % self.pid)) if self.pid else "/"
        except OSError:
            return "/"

    # --- reading ---

    def read(self):
        """Return the files in the order in which containerd loads them, and what they come to.

        Own facts: ``effective_error`` (why there is no effective text), ``binary``, ``binary_version``, ``load_version`` (the version that
        counts for all files, for containerd takes one for all: the last in load order; 1 where no file says one), ``socket``.
        """
        effective, error = self.effective()
        files, patterns, version, _missing = self._load(effective)
        writable = [self.config_path] + [item["path"] for item in files[1:]]
        return {
            "files": files,
            "effective_text": effective,
            "effective_error": error,
            "writable": writable + [pattern for pattern in patterns if pattern not in writable],
            "binary": self.binary(),
            "binary_version": self.version(),
            "load_version": version,
            "socket": self.socket_path,
        }

    def _load(self, effective, new=None):
        """Return the files in load order, the globs among the imports, the version that counts, and what is imported and not there.

        ``new``: ``{path: bytes}`` of files as they are to be. What is not there: (path, importing file) of imports without a ``*``.
        """
        missing, new = [], new or {}
        version = numbers(self.version())
        files, patterns, queue, seen, counts = [], [], [(self.config_path, None)], set(), None
        while queue:
            path, importer = queue.pop(0)
            role = "import" if importer else "main"
            found = base.file_entry(self.root, path, role)
            data = new.get(path, base64.b64decode(found["content"]) if found["exists"] else None)
            if found["target"] in seen:
                continue
            if role == "import" and data is None:
                missing.append((path, importer))
                continue
            seen.add(found["target"])
            files.append(found)
            text = (data or b"").decode("utf-8", "replace")
            counts = version_of(text) or counts
            lines = imports_of(text)
            if lines is None and role == "main" and version >= (2, 0) and effective:
                # What the program imports by itself where the main file does not say; only the dump tells.
                lines = imports_of(effective)
            for line in lines or []:
                pattern = import_pattern(line, path, version, self._cwd())
                if "*" not in pattern:
                    queue.append((pattern, path))
                    continue
                patterns.append(pattern)
                queue.extend((one, path) for one in self._glob(pattern))
            if len(files) + len(queue) > MAX_IMPORTS:
                raise FleetError(
                    "%s imports more than %d files." % (self.config_path, MAX_IMPORTS), "too_many_imports", phase="read", object=path,
                )
        return files, patterns, counts or 1, missing

    def _missing_imports(self, path, data):
        """Return (path, importing file) of the imports that would not be there once ``path`` holds ``data``."""
        return self._load(None, {path: data})[3]

    def _glob(self, pattern):
        # Only * is a wildcard for containerd, and files whose name begins with a dot count.
        escaped = "*".join(glob.escape(part) for part in pattern.split("*"))
        hidden = os.path.join(os.path.dirname(escaped), "." + os.path.basename(escaped))
        found = set(glob.glob(under(self.root, escaped)))
        if os.path.basename(escaped).startswith("*"):
            found.update(glob.glob(under(self.root, hidden)))
        prefix = "" if self.root == "/" else os.path.normpath(self.root)
        return sorted(path[len(prefix):] for path in found)

    def effective(self):
        """Return ``(text, None)`` of what containerd's own parser makes of the files, or ``(None, why not)``."""
        if self.binary() is None:
            return None, "the program of %s was not found" % self.label
        words = ["--config", under(self.root, self.config_path), "config", "dump"]
        if not os.path.exists(under(self.root, self.config_path)):
            words = ["config", "default"]
        result = self.run([self.binary()] + words, self.command_timeout, cwd=under(self.root, self._cwd()))
        if result.timed_out or result.rc != 0:
            return None, self._said(result)
        return result.stdout, None

    def _said(self, result):
        if result.timed_out:
            return "its parser did not end within %d s" % self.command_timeout
        return re.sub(r"^containerd: ", "", units.last_line(result.stderr)) or "its parser ended with %s and no reason" % result.rc

    # --- checking ---

    def validate(self, path, data, check):
        """Let ``containerd config dump`` judge a copy. It reads imports of the copy from where they lie."""
        if self.binary() is None:
            return "not checked: the program of %s was not found" % self.label
        if check is None and data is None:
            return "not checked: a file that is removed has nothing to parse"
        missing = self._missing_imports(path, data)
        if missing:
            # The parser of 2.x says nothing of it, and the daemon would not start.
            self._refuse(path, "%s imports %s, which does not exist, and would not start (its main file is %s)"
                         % (missing[0][1], missing[0][0], self.config_path))
        with self._copy(path, data, check) as copy:
            result = self.run([self.binary(), "--config", copy, "config", "dump"], self.command_timeout, cwd=under(self.root, self._cwd()))
            folder = os.path.dirname(copy)
        if result.timed_out or result.rc != 0:
            said = self._said(result).replace(copy, path).replace(folder + "/", os.path.dirname(path) + "/")
            name = os.path.basename(path)
            self._refuse(path, re.sub(r"\.%s\.[^./]+\.npu-fleet" % re.escape(name), lambda _match: name, said))
        trouble = dump_trouble(result.stdout)
        if trouble:
            self._refuse(path, trouble)
        return "by %s config dump" % os.path.basename(self.binary())

    @contextlib.contextmanager
    def _copy(self, path, data, check):
        """Give the file for the parser; a text with relative imports lies beside its original, from where they are found."""
        lines = [] if data is None else imports_of(data.decode("utf-8", "replace")) or []
        if all(os.path.isabs(line) for line in lines) or not os.path.isdir(os.path.dirname(under(self.root, path))):
            with base.checked_copy(path, data, check) as copy:
                yield copy
            return
        with beside(under(self.root, path), data) as copy:
            if check is None:
                yield copy
                return
            with base.checked_copy(path, None, check.replace(base.COPY.encode("ascii"), copy.encode("utf-8"))) as main:
                yield main

    def _refuse(self, path, text):
        line = refusal_line(text)
        raise FleetError(
            "%s refuses the new %s%s: %s. Nothing was written."
            % (self.label, path, ", line %d" % line if line else "", text),
            "parser_refused",
            phase="validate",
            object=path,
            observed=text,
            hint="Mend what it names; '%s --config %s config dump' shows the state of the present one." % (self.binary(), self.config_path),
        )

    # --- what a restart ends ---

    def restart_kills(self, facts):
        """Return what would end with the unit, and with docker's where systemd restarts that along with it."""
        return sorted(set(super(Engine, self).restart_kills(facts)) | set(self._bound_docker()))

    def _bound_docker(self):
        """Return docker's running containers where its unit is bound to this one (docker-ce: BindsTo=) and they do not outlive dockerd."""
        if not self.unit["loaded"] or docker.UNIT not in units.dependents(self.run, self.root, self.command_timeout, self.unit["name"]):
            return []
        unit = units.query_unit(self.run, self.root, self.command_timeout, docker.UNIT)
        if unit["state"] not in ("active", "activating", "reloading"):
            return []
        info = docker.query_info(self.run, self.root, self.command_timeout)
        if info["live_restore"]:
            return []
        names = docker.running_containers(self.run, self.root, self.command_timeout)
        return ["%s (bound to %s)" % (docker.UNIT, self.unit["name"])] if names is None else names

    # --- the running engine ---

    def runtimes_of(self, status):
        """Return the runtimes and the default of the running containerd, from its own record of the CRI configuration."""
        config = (status["config"] or {}).get("containerd") or {}
        found = runtimes_of(config.get("runtimes"))
        for name in status["handlers"] or []:
            found.setdefault(name, {"path": "", "args": [], "type": None})
        if numbers(status["version"]) < TELLS_OPTIONS and any(not runtime["path"] for runtime in found.values()):
            by_file = configured(self.effective()[0])["runtimes"]
            for name, runtime in found.items():
                runtime["path"] = runtime["path"] or (by_file.get(name, "") if by_file.get(name) != runtime["type"] else "")
        return found, config.get("defaultRuntimeName") or None

    def cdi_of(self, status):
        """Return whether the running containerd has CDI switched on; 1.6 and older know it not."""
        if status["config"] is None:
            return None
        return bool(status["config"].get("enableCDI", False))


@contextlib.contextmanager
def beside(path, data):
    """Give a copy in the folder of the file itself, for imports relative to it; no glob over ``*.toml`` takes its name."""
    folder = os.path.dirname(path)
    descriptor, copy = tempfile.mkstemp(prefix=".%s." % os.path.basename(path), suffix=".npu-fleet", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        yield copy
    finally:
        os.unlink(copy)
