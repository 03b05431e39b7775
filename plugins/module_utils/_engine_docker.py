# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dockerd as an engine: its facts, read. Private to the collection. Changing it is the business of ``_engine_docker_apply.py``."""

import json
import os
import re
import shlex

from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, snapshot, under

NAME = "docker"
DEFAULT_CONFIG = "/etc/docker/daemon.json"
UNIT = "docker.service"
INSTALL = "Debian and Ubuntu: `apt-get install docker.io`"
PID_FILES = ("/run/docker.pid", "/var/run/docker.pid")
UNIT_PROPERTIES = "LoadState,ActiveState,SubState,MainPID,KillMode,CanReload,Environment,EnvironmentFiles,ExecStart"

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
        "error": info["error"] or error,
    }


def _config(path):
    try:
        return snapshot(path), None
    except FleetError as error:
        return None, str(error)


# --- what stands in the file ---


def configured(data, path, default_flag=None):
    """Return what dockerd would know after its next start; no value of the file other than names, paths and the default. Pure.

    A reload takes over a key only where it stands in the file (moby daemon/reload_unix.go), so dockerd may still have a runtime that the
    file lost. ``default_flag`` is the default runtime that dockerd's command line names: it may not stand in both places.
    """
    try:
        config = _config_object(data)
        default = config.get("default-runtime") or default_flag
        if default is not None and not isinstance(default, str):
            raise ValueError('"default-runtime" is not a text')
        return {"runtimes": _config_runtimes(config), "default_runtime": default, "error": None}
    except UnicodeDecodeError as error:
        line, reason = data.count(b"\n", 0, error.start) + 1, "it is not UTF-8 text"
    except json.JSONDecodeError as error:
        # Its message may quote what stands there.
        line, reason = error.lineno, "it is not JSON"
    except (ValueError, RecursionError) as error:
        line, reason = 1, str(error)
    return no_config("%s, line %d: %s." % (path, line, reason))


def _config_object(data):
    text = (data or b"").decode("utf-8")
    config = json.loads(text) if text.strip() else {}
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object")
    return config


def _config_runtimes(config):
    runtimes = config.get("runtimes") or {}
    if not isinstance(runtimes, dict) or not all(isinstance(runtime, dict) for runtime in runtimes.values()):
        raise ValueError('"runtimes" is not an object of objects')
    return {name: str(runtime.get("path") or runtime.get("runtimeType") or "") for name, runtime in runtimes.items()}


def no_config(error):
    """Return what is told of a file that says nothing, and why."""
    return {"runtimes": {}, "default_runtime": None, "error": error}


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
        "error": mask_text(error),
    }


def last_line(text):
    """Return the last line of ``text`` that is not empty, without secrets."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return mask_text(lines[-1]) if lines else ""


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
        runtimes[name] = {"path": runtime.get("path") or runtime.get("runtimeType") or "", "args": runtime.get("runtimeArgs") or []}
    return {
        "active": True,
        "version": info["ServerVersion"],
        "runtimes": runtimes,
        "default_runtime": info.get("DefaultRuntime") or None,
        "live_restore": info.get("LiveRestoreEnabled"),
        "containers_running": info.get("ContainersRunning"),
        "error": None,
    }


def unmet(info, expect):
    """Return what the engine has other than expected, as a text; None when all is as expected. Pure."""
    if not info["active"]:
        return "dockerd does not answer: %s" % info["error"]
    name = expect["name"]
    found = info["runtimes"].get(name)
    if expect["state"] == "absent":
        if info["default_runtime"] == name:
            return "its default runtime is still %s" % name
        return "it still has the runtime %s" % name if found else None
    if found is None:
        return "it does not have the runtime %s" % name
    if found["path"] != expect["path"]:
        return "its runtime %s is %s" % (name, found["path"])
    if expect.get("args") is not None and found["args"] != expect["args"]:
        return "its runtime %s has other arguments" % name
    if expect.get("default") == name and info["default_runtime"] != name:
        return "its default runtime is %s" % info["default_runtime"]
    return None


def binary_version(run, root="/", timeout=20):
    """Return the version that the dockerd program prints, or None."""
    result = run([find_program("dockerd", root), "--version"], timeout)
    match = re.search(r"version (\d+\.[^\s,]+)", result.stdout)
    return match.group(1) if match and result.rc == 0 else None


# --- the process and its unit ---


def observe_process(run, root="/", timeout=20):
    """Return how dockerd is started: unit facts, pid, words of the command line in force, and the configuration file they name."""
    unit = query_unit(run, root, timeout)
    pid = unit["main_pid"] or _pid_from_file(root)
    words = _command_line(pid, root) or unit["command"]
    flags = parse_flags(words)
    return {
        "unit": unit,
        "pid": pid,
        "flags": flags,
        "words": words,
        "config_path": flags.get("config-file", [DEFAULT_CONFIG])[-1] or DEFAULT_CONFIG,
    }


def query_unit(run, root="/", timeout=20):
    """Return the facts of dockerd's unit; ``loaded`` is False where systemd or the unit is missing."""
    systemctl = find_program("systemctl", root)
    values = {}
    if systemctl:
        result = run([systemctl, "show", UNIT, "--property=" + UNIT_PROPERTIES], timeout)
        if result.rc == 0 and not result.timed_out:
            values = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    loaded = values.get("LoadState") == "loaded"
    environment = unit_environment(values, lambda path: _text(under(root, path))) if loaded else {}
    return {
        "name": UNIT,
        "loaded": loaded,
        "state": values.get("ActiveState") if loaded else None,
        "sub_state": values.get("SubState") if loaded else None,
        "main_pid": int(values.get("MainPID") or 0) or None,
        "kill_mode": values.get("KillMode") if loaded else None,
        "can_reload": values.get("CanReload") == "yes",
        "command": expand(exec_start(values.get("ExecStart", "")), environment),
    }


def exec_start(text):
    """Return the words of ``ExecStart`` as ``systemctl show`` prints it (``{ path=... ; argv[]=... ; ignore_errors=no ; ... }``)."""
    match = re.search(r"argv\[\]=(.*?) ; ignore_errors=", text)
    if not match:
        return []
    try:
        return shlex.split(match.group(1))
    except ValueError:
        return match.group(1).split()


def unit_environment(values, read_text):
    """Return the variables a unit's command may use: ``Environment=``, then the files of ``EnvironmentFile=`` in their order."""
    environment = {}
    _assignments(_words(values.get("Environment", "")), environment)
    for path in re.findall(r"(\S+) \(ignore_errors=", values.get("EnvironmentFiles", "")):
        for line in read_text(path).splitlines():
            if line.strip() and line.lstrip()[0] not in "#;":
                name, _equals, value = line.strip().partition("=")
                environment[name] = " ".join(_words(value))
    return environment


def _assignments(words, environment):
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            environment[name] = value


def _words(text):
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def expand(words, environment):
    """Expand ``$NAME`` (a word of its own becomes several) and ``${NAME}`` (stays one) as systemd does."""
    expanded = []
    for word in words:
        whole = re.match(r"^\$(\w+)$", word)
        if whole:
            expanded.extend(_words(environment.get(whole.group(1), "")))
        else:
            expanded.append(re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match.group(1), ""), word))
    return expanded


def parse_flags(words):
    """Return ``{flag: [values]}`` of a dockerd command line, long names only."""
    flags = {}
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word[:2] in SHORT_FLAGS and not word.startswith("--"):
            name, value = SHORT_FLAGS[word[:2]], word[2:].lstrip("=") or None
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            value = value if equals else None
        else:
            continue
        if value is None:
            value = "true" if name in BOOLEAN_FLAGS or not rest else rest.pop(0)
        flags.setdefault(name, []).append(value)
    return flags


def flag_key(flag):
    """Return the key of daemon.json that says the same as ``flag``."""
    return LIST_KEYS.get(flag, flag)


def conflicts(keys, flag_keys):
    """Return the keys that stand both in daemon.json and on the command line: dockerd refuses to start or reload then.

    ``runtimes`` may stand in both (moby's skipDuplicates).
    """
    return sorted(set(keys) & set(flag_keys) - {"runtimes"})


def _text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _pid_from_file(root):
    for path in PID_FILES:
        text = _text(under(root, path)).strip()
        if text.isdigit() and _text(under(root, "/proc/%s/comm" % text)).strip() == "dockerd":
            return int(text)
    return None


def _command_line(pid, root):
    if pid is None:
        return []
    try:
        with open(under(root, os.path.join("/proc", str(pid), "cmdline")), "rb") as stream:
            return [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]
    except OSError:
        return []
