# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What engines that kubelet talks to over CRI have in common. Private to the collection.

The running engine is the process that listens at the socket, wherever its program and its file lie: a host may have several of them.
Whether it took over a change is asked over CRI, for a unit that is active says nothing about the CRI part inside.
"""

import os
import socket
import struct

from ansible_collections.npu.fleet.plugins.module_utils import _cri, _grpc
from ansible_collections.npu.fleet.plugins.module_utils import _engine_base as base
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import under

# Processes that hold a running container; the name of a process is cut after 15 characters.
SHIMS = ("containerd-shim", "conmon", "conmonrs")
SURVIVE = ("process", "none")  # KillMode that ends the main process alone, or nothing
CONNECT_SECONDS = 2


class CriEngine(base.BaseEngine):
    """An engine with a CRI socket, for the length of one read or commit. ``pid`` and ``words``: of the process that owns the socket."""

    unit_names = []  # in the order in which they are looked for
    socket_path = ""
    short_flags = {}
    config_flag = "config"
    default_config = ""

    pid = None
    words = []
    lost = False  # the last answer was that the engine runs and its CRI part does not
    _pods = None

    def find_unit(self):
        """Return the facts of the unit in which the process at the socket runs, else of the engine's usual one."""
        self.pid = listener(under(self.root, self.socket_path))
        # With socket activation it is systemd that listens.
        known = self.pid not in (None, 1)
        groups = units.read_text(under(self.root, "/proc/%s/cgroup" % self.pid)) if known else ""
        name = unit_of(groups)
        unit = units.query_unit(self.run, self.root, self.command_timeout, name) if name else self._usual_unit()
        if not known:
            self.pid = unit["main_pid"]
        elif groups and name is None and unit["main_pid"] != self.pid:
            # Somebody started it by hand; a unit of the usual name has nothing to do with it.
            unit = dict(unit, loaded=False)
        self.words = units.command_line(self.pid, self.root) or unit["command"]
        return unit

    def _usual_unit(self):
        known = [units.query_unit(self.run, self.root, self.command_timeout, name) for name in self.unit_names]
        for wanted in ("active", "reloading", "activating"):
            for unit in known:
                if unit["state"] == wanted:
                    return unit
        return next((unit for unit in known if unit["loaded"]), known[0])

    def flags(self):
        """Return ``{flag: [values]}`` of the command line in force."""
        return units.parse_flags([double_dashed(word) for word in self.words], self.short_flags)

    def find_config(self, wanted):
        """Return the main file that the engine reads; an error when the user names another one."""
        found = self.flags().get(self.config_flag, [self.default_config])[-1] or self.default_config
        if wanted is None or not self.words:
            return wanted or found
        if os.path.normpath(wanted) != os.path.normpath(found):
            raise FleetError(
                "%s on this host reads %s, not %s." % (self.label, found, wanted),
                "config_path_mismatch",
                phase="read",
                object=wanted,
                observed=found,
                hint="Leave config_path out, or change --%s of %s first." % (self.config_flag, self.unit["name"]),
            )
        return found

    def require(self):
        """Raise when nothing that we know could make the engine read its files."""
        if not self.unit["loaded"]:
            raise FleetError(
                "%s is not started by a systemd unit that could be found (looked for: %s), so it could not be made to read a changed file; "
                "nothing was written." % (self.label, ", ".join(self.unit_names)),
                "engine_unmanaged",
                phase="check",
                object=self.socket_path,
                hint="Start it by a unit, or use restart=never and restart it by your own means.",
            )

    # --- over CRI ---

    def facts(self):
        """Ask the engine over CRI; never raises for one that is down."""
        self._pods = None
        self.lost = False
        try:
            status = _cri.status(under(self.root, self.socket_path), self.command_timeout)
            self._pods = _cri.sandboxes(under(self.root, self.socket_path), self.command_timeout)
        except FleetError as error:
            self.lost = error.code == "cri_missing"
            return no_facts(error.message.rstrip("."))
        runtimes, default = self.runtimes_of(status)
        ready = status["conditions"].get("RuntimeReady", {})
        return {
            "active": status["ready"],
            "version": status["version"],
            "error": None if status["ready"] else "it is not ready: %s" % (ready.get("message") or ready.get("reason") or "why not known"),
            "runtimes": runtimes,
            "default_runtime": default,
            "live_restore": None,
            "containers_running": sum(1 for pod in self._pods if pod["state"] == _cri.READY),
            # An engine that lists no handlers has those that its configuration names.
            "handlers": status["handlers"] or sorted(runtimes),
            "cdi": self.cdi_of(status),
        }

    def runtimes_of(self, status):
        """Return ``({name: {"path", "args", "type"}}, default)`` of the running engine; ``status``: of ``_cri.status``."""
        raise NotImplementedError

    def cdi_of(self, status):
        """Return whether CDI is switched on in the running engine, None where it does not say."""
        raise NotImplementedError

    def unmet(self, facts, expect):
        """Return what the engine has other than expected, as a text; None when all is as expected."""
        missing = base.unmet(self.label, facts, expect)
        if missing is None and expect["state"] == "present" and expect["name"] not in (facts["handlers"] or [expect["name"]]):
            return "CRI does not list the handler %s" % expect["name"]
        return missing

    def failed(self):
        """Return whether waiting is no use: the unit has ended, or it runs without its CRI part, which does not load later."""
        return self.lost or super(CriEngine, self).failed()

    def pods(self):
        """Return the engine's pods; [] where it can not be asked."""
        if self._pods is None:
            try:
                self._pods = _cri.sandboxes(under(self.root, self.socket_path), self.command_timeout)
            except FleetError:
                return []
        return self._pods

    def users(self, name, facts):
        """Return the pods, running or not, that were made with the runtime: by its name, or by none while it is the default."""
        handlers = (name, "") if facts["default_runtime"] == name else (name,)
        return sorted({pod_name(pod) for pod in self.pods() if pod["handler"] in handlers})

    def restart_kills(self, facts):
        """Return what would end with the unit: the containers whose shims are in its control group, where systemd ends all of that."""
        if not self.unit["loaded"] or self.unit["kill_mode"] in SURVIVE or self.unit["kill_mode"] is None:
            return []
        held = []
        for pid, _name in units.processes(SHIMS, self.root):
            if unit_of(units.read_text(under(self.root, "/proc/%d/cgroup" % pid))) == self.unit["name"]:
                held.append(units.command_line(pid, self.root))
        return sorted({self._held_name(words) for words in held})

    def _held_name(self, words):
        found = held_by(words)
        if found is None:
            return "a container of an unknown name"
        namespace, identity = found
        for pod in self.pods():
            if pod["id"] == identity:
                return pod_name(pod)
        return "%s/%s" % (namespace, identity[:12])


def no_facts(error):
    """Return the facts of an engine that does not answer."""
    return {
        "active": False, "version": None, "error": error, "runtimes": {}, "default_runtime": None, "live_restore": None,
        "containers_running": None, "handlers": None, "cdi": None,
    }


def entry(engine, facts, config_sha256, configured):
    """Return the engine's entry of ``npu_info.engines``."""
    return {
        "name": engine.name,
        "version": facts["version"] or engine.version(),
        "active": facts["active"],
        "config_path": engine.config_path,
        "config_sha256": config_sha256,
        "runtimes": {name: runtime["path"] or runtime["type"] or "" for name, runtime in facts["runtimes"].items()},
        "default_runtime": facts["default_runtime"],
        "live_restore": None,
        "containers_running": facts["containers_running"],
        "handlers": facts["handlers"],
        "configured": configured,
        "socket": engine.socket_path,
        "kubelet": None,
        "cdi": facts["cdi"],
        "error": facts["error"],
    }


def pod_name(pod):
    """Return how a pod is called in a list."""
    return "%s/%s" % (pod["namespace"], pod["name"])


def listener(path):
    """Return the pid of the process that listens at a unix socket, None where nobody does or it is of another pid namespace.

    The kernel keeps who called listen(2) and gives it to whoever connects (unix(7), SO_PEERCRED).
    """
    try:
        connection = _grpc.connect(path, CONNECT_SECONDS)
    except OSError:
        return None
    try:
        pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
    finally:
        connection.close()
    return pid or None


def unit_of(text):
    """Return the name of the service in whose control group a process is, None for no service. Pure; ``text``: /proc/PID/cgroup."""
    for line in text.splitlines():
        hierarchy, controllers, path = (line.split(":", 2) + ["", "", ""])[:3]
        # cgroup v2, or systemd's own hierarchy of v1.
        if (hierarchy, controllers) == ("0", "") or controllers == "name=systemd":
            services = [part for part in path.split("/") if part.endswith(".service")]
            if services:
                return services[-1]
    return None


def held_by(words):
    """Return (namespace, id) of what a shim or conmon holds, None where its command line does not say. Pure."""
    values = {"-namespace": "k8s.io"}
    for position, word in enumerate(words[:-1]):
        if word in ("-namespace", "-id", "-c", "--cid"):
            values[word] = words[position + 1]
    identity = values.get("-id") or values.get("--cid") or values.get("-c")
    return (values["-namespace"], identity) if identity else None


def double_dashed(word):
    """Return a flag's word as ``--flag``: programs in Go take ``-config``, too. Pure."""
    return "-" + word if word[:1] == "-" and word[:2] != "--" and len(word.partition("=")[0]) > 2 else word
