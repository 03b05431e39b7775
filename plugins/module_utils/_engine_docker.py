# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dockerd as an engine. Private to the collection.

What a run does to containers: nothing. ``runtimes`` and ``default-runtime`` are taken over by a reload (SIGHUP), so a running dockerd is
never restarted; one that is down is started.
"""

import json
import os
import re
import signal

from ansible_collections.npu.fleet.plugins.module_utils import _engine_base as base
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._engine_daemon_json import configured, no_config
from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._engine_units import last_line
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, snapshot, under

NAME = "docker"
LABEL = "dockerd"
DEFAULT_CONFIG = "/etc/docker/daemon.json"
UNIT = "docker.service"
INSTALL = "Debian and Ubuntu: `apt-get install docker.io`"
PID_FILES = ("/run/docker.pid", "/var/run/docker.pid")

# Flags of dockerd whose key in daemon.json has another name (dockerd --help and the reference of daemon.json; moby cmd/dockerd/config.go).
SHORT_FLAGS = {
    "-D": "debug", "-H": "host", "-l": "log-level", "-b": "bridge", "-g": "data-root", "-G": "group", "-p": "pidfile",
    "-s": "storage-driver",
}
LIST_KEYS = {
    "host": "hosts",
    "label": "labels",
    "storage-opt": "storage-opts",
    "exec-opt": "exec-opts",
    "log-opt": "log-opts",
    "dns-opt": "dns-opts",
    "insecure-registry": "insecure-registries",
    "registry-mirror": "registry-mirrors",
    "default-ulimit": "default-ulimits",
    "default-address-pool": "default-address-pools",
    "default-network-opt": "default-network-opts",
    "authorization-plugin": "authorization-plugins",
    "node-generic-resource": "node-generic-resources",
    "cluster-store-opt": "cluster-store-opts",
    "cdi-spec-dir": "cdi-spec-dirs",
}
# Boolean flags take no word after them, so the next word is a flag of its own.
BOOLEAN_FLAGS = {
    "debug", "experimental", "icc", "init", "ip-forward", "ip-masq", "iptables", "ip6tables", "ipv6", "live-restore", "no-new-privileges",
    "raw-logs", "selinux-enabled", "tls", "tlsverify", "userland-proxy", "validate", "bridge-accept-fwmark", "allow-direct-routing",
}


def installed(root="/"):
    """Return whether dockerd is there. The client alone does not count: it may talk to another host, or be podman's stand-in."""
    return find_program("dockerd", root) is not None


def observe(run, root="/", timeout=20):
    """Return dockerd's entry of ``npu_info.engines``."""
    process = observe_process(run, root, timeout)
    info = query_info(run, root, timeout)
    found, error = _config(under(root, process["config_path"]))
    default_flag = process["flags"].get("default-runtime", [None])[-1]
    return {
        "name": NAME,
        "version": info["version"] or binary_version(run, root, timeout),
        "active": info["active"],
        "config_path": process["config_path"],
        "config_sha256": found and found.sha256,
        "runtimes": {name: runtime["path"] for name, runtime in info["runtimes"].items()},
        "default_runtime": info["default_runtime"],
        "live_restore": info["live_restore"],
        "containers_running": info["containers_running"],
        "configured": no_config(error) if error else configured(found.data, process["config_path"], default_flag),
        "kubelet": None,
        "cdi": info["cdi"],
        "error": info["error"] or error,
    }


def _config(path):
    try:
        return snapshot(path), None
    except FleetError as error:
        return None, str(error)


# --- docker info ---


def query_info(run, root="/", timeout=20):
    """Ask dockerd once; ``active`` means that it answered. Never raises for a dockerd that is down."""
    client = find_program("docker", root)
    if client is None:
        return _no_info("The docker client was not found beside dockerd (Debian: apt-get install docker.io or docker-cli).")
    result = run([client, "info", "--format", "{{json .}}"], timeout)
    if result.timed_out:
        return _no_info("'docker info' did not answer within %d s." % timeout)
    try:
        info = parse_info(result.stdout)
    except ValueError as error:
        return _no_info(last_line(result.stderr) or "'docker info' ended with %s: %s" % (result.rc, error))
    if info["active"] and result.rc != 0:
        info["error"] = last_line(result.stderr) or "'docker info' ended with %s" % result.rc
    elif not info["active"]:
        info["error"] = info["error"] or last_line(result.stderr) or "dockerd did not answer."
    return info


def _no_info(error):
    return {
        "active": False, "version": None, "runtimes": {}, "default_runtime": None, "live_restore": None, "containers_running": None,
        "handlers": None, "cdi": None, "error": mask_text(error),
    }


def parse_info(text):
    """Return the facts in the output of ``docker info --format '{{json .}}'``; ValueError for text that is something else."""
    try:
        info = json.loads(text)
    except ValueError as error:
        raise ValueError("output is not JSON") from error
    if not isinstance(info, dict) or "ServerVersion" not in info and "ServerErrors" not in info:
        raise ValueError("output is not that of dockerd")
    # The client prints a whole record of zeroes when dockerd is down (measured: client 28.2, exit code 1); "0 containers" would be a lie.
    if not info.get("ServerVersion"):
        return _no_info("; ".join(info.get("ServerErrors") or []))
    runtimes = {}
    for name, runtime in (info.get("Runtimes") or {}).items():
        # dockerd 23+ lists runtimes that have a type (a shim) and no path.
        runtimes[name] = {
            "path": runtime.get("path") or runtime.get("runtimeType") or "",
            "args": runtime.get("runtimeArgs") or [],
            "type": runtime.get("runtimeType"),
        }
    return {
        "active": True,
        "version": info["ServerVersion"],
        "runtimes": runtimes,
        "default_runtime": info.get("DefaultRuntime") or None,
        "live_restore": info.get("LiveRestoreEnabled"),
        "containers_running": info.get("ContainersRunning"),
        "handlers": None,
        # Docker 25+ prints its folders of CDI specs, and only where CDI is switched on (moby daemon/info.go).
        "cdi": bool(info.get("CDISpecDirs")),
        "error": None,
    }


def running_containers(run, root="/", timeout=20):
    """Return the names of docker's running containers, None where it does not tell."""
    client = find_program("docker", root)
    result = run([client, "ps", "--format", "{{.Names}}"], timeout) if client else None
    return None if result is None or result.timed_out or result.rc != 0 else sorted(result.stdout.split())


def unmet(info, expect):
    """Return what dockerd has other than expected, as a text; None when all is as expected. Pure."""
    return base.unmet(LABEL, info, expect)


def binary_version(run, root="/", timeout=20):
    """Return the version that the dockerd program prints, or None."""
    result = run([find_program("dockerd", root), "--version"], timeout)
    match = re.search(r"version (\d+\.[^\s,]+)", result.stdout)
    return match.group(1) if match and result.rc == 0 else None


# --- the process and its unit ---


def observe_process(run, root="/", timeout=20):
    """Return how dockerd is started: unit facts, pid, words of the command line in force, and the configuration file they name."""
    unit = units.query_unit(run, root, timeout, UNIT)
    pid = unit["main_pid"] or units.pid_from_files(PID_FILES, "dockerd", root)
    words = units.command_line(pid, root) or unit["command"]
    flags = parse_flags(words)
    return {
        "unit": unit,
        "pid": pid,
        "flags": flags,
        "words": words,
        "config_path": flags.get("config-file", [DEFAULT_CONFIG])[-1] or DEFAULT_CONFIG,
    }


def parse_flags(words):
    """Return ``{flag: [values]}`` of a dockerd command line, long names only."""
    return units.parse_flags(words, SHORT_FLAGS, BOOLEAN_FLAGS)


def flag_key(flag):
    """Return the key of daemon.json that says the same as ``flag``."""
    return LIST_KEYS.get(flag, flag)


def conflicts(keys, flag_keys):
    """Return the keys that stand both in daemon.json and on the command line: dockerd refuses to start or reload then.

    ``runtimes`` may stand in both (moby's skipDuplicates).
    """
    return sorted(set(keys) & set(flag_keys) - {"runtimes"})


# --- as an engine ---


class Engine(base.BaseEngine):
    """The dockerd of this node, for the length of one read or commit."""

    name = NAME
    label = LABEL
    takes_over_by = "reload"

    def find_unit(self):
        """Return the facts of docker's unit."""
        self.process = observe_process(self.run, self.root, self.command_timeout)
        return self.process["unit"]

    def find_config(self, wanted):
        """Return the file that dockerd reads; an error when the user names another one."""
        found = self.process["config_path"]
        if wanted is None or not self.process["words"]:
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

    def facts(self):
        """Ask dockerd."""
        return query_info(self.run, self.root, self.command_timeout)

    def read(self):
        """Return daemon.json, and which of its keys the command line sets."""
        flags = {flag_key(flag): values for flag, values in self.process["flags"].items()}
        return {
            "files": [base.file_entry(self.root, self.config_path, "main")],
            "effective_text": None,
            "writable": [self.config_path],
            "flag_keys": sorted(flags),
            "default_flag": flags.get("default-runtime", [None])[-1],
        }

    def version(self):
        """Return the version of the program on disk, or None."""
        return binary_version(self.run, self.root, self.command_timeout)

    def require(self):
        """Raise when the engine could not be asked whether it took over."""
        if find_program("docker", self.root) is None:
            raise FleetError(
                "The docker client is missing, so whether dockerd takes over the new file could not be seen; nothing was written.",
                "client_missing",
                phase="check",
                hint="Install it (Debian: docker-cli, or docker.io which has both), or use restart=never.",
            )

    def validate(self, path, data, check):
        """Let dockerd check a copy, with the flags it is started with.

        Measured on dockerd 26.1.5: with its flags it also names keys that stand on both sides, nested ones (proxies) included; it does not
        check that the default runtime exists.
        """
        dockerd = find_program("dockerd", self.root)
        usage = self.run([dockerd, "--help"], self.command_timeout)
        if "--validate" not in usage.stdout + usage.stderr:
            return "as JSON only: dockerd %s has no --validate (docker 23 brought it); the reload is its judgement" % self.version()
        with base.checked_copy(path, data, check) as copy:
            argv = [dockerd, "--validate", "--config-file", copy]
            for flag, values in sorted(self.process["flags"].items()):
                if flag not in ("config-file", "validate"):
                    argv.extend("--%s=%s" % (flag, value) for value in values)
            result = self.run(argv, self.command_timeout)
        if result.timed_out or result.rc != 0:
            text = mask_text((result.stderr + result.stdout).replace(copy, path).strip())
            raise FleetError(
                "dockerd refuses the new %s: %s. Nothing was written." % (path, text or "no answer within the deadline"),
                "parser_refused",
                phase="validate",
                object=path,
                observed=text,
                hint="Mend what it names; 'dockerd --validate --config-file %s' shows the state of the present file." % path,
            )
        return "by dockerd --validate"

    def users(self, name, facts):
        """Return the names of containers, running or not, made with a runtime: they can not start once it is gone."""
        if name not in facts["runtimes"]:
            return []
        client = find_program("docker", self.root)
        listed = self.run([client, "ps", "--all", "--quiet", "--no-trunc"], self.command_timeout)
        if listed.timed_out or listed.rc != 0:
            raise FleetError(
                "docker does not tell its containers, so nobody knows which need the runtime %s." % name, "users_unknown", phase="read",
                object=name, observed=mask_text(listed.stderr.strip()[-300:]), hint="`docker ps --all` on the node shows why.",
            )
        ids = listed.stdout.split()
        if not ids:
            return []
        # One that was removed meanwhile makes the exit code 1; the others are shown all the same.
        shown = self.run([client, "inspect", "--format", "{{.HostConfig.Runtime}} {{.Name}}"] + ids, self.command_timeout)
        pairs = [line.split(" ", 1) for line in shown.stdout.splitlines() if " " in line]
        return sorted(container.lstrip("/") for runtime, container in pairs if runtime == name)

    def running(self):
        """Return whether the dockerd process is there (it may still not answer)."""
        if self.unit["loaded"]:
            return super(Engine, self).running()
        return self.process["pid"] is not None and units.alive(self.process["pid"])

    def take_over(self):
        """Reload dockerd when it runs, start it when it does not. Returns an error text or None."""
        if not self.running() or (self.unit["loaded"] and self.unit["can_reload"]):
            return super(Engine, self).take_over()
        self.done.append("reload")
        # A unit without ExecReload, or no unit at all: send what ExecReload of docker's own unit sends.
        pid = observe_process(self.run, self.root, self.command_timeout)["pid"]
        try:
            os.kill(pid, signal.SIGHUP)
        except (OSError, TypeError) as error:
            return "could not send SIGHUP to dockerd (process %s): %s" % (pid, error)
        return None
