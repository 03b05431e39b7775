# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts about container engines that decide whether a runtime can be registered in them. Private to the collection.

Facts only, and none may fail a look; plugin_utils/_findings_engine.py judges them. What an engine has in effect stands in npu.engines.
"""

import json
import re

from ansible_collections.npu.fleet.plugins.module_utils import _cri, _engine_docker, _engine_kubelet
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import socket_of
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, under

#: Units that may start an engine; the one that is there counts.
UNITS = {
    "docker": ("docker.service",), "containerd": ("containerd.service",), "crio": ("crio.service",), "isulad": ("isulad.service",),
    "k3s": ("k3s.service", "k3s-agent.service"), "rke2": ("rke2-server.service", "rke2-agent.service"),
}
#: Engines whose CRI part is a plugin that may be missing, and whose running configuration has runc's options.
CONTAINERD = ("containerd", "k3s", "rke2")
# Keys of daemon.json that are truth values or numbers (reference of daemon.json, docs.docker.com/reference/cli/dockerd).
_BOOLEANS = _engine_docker.BOOLEAN_FLAGS - {"validate"}
_NUMBERS = {"mtu", "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts", "shutdown-timeout"}


def engine_facts(npu, root, run, timeout=5):
    """``{"kubelet": {...}, "engines": {name: {"unit", "file", "cri", "cgroup_driver"}}}`` for the engines of ``npu`` (npu_info's)."""
    found = {engine["name"]: engine for engine in npu.get("engines") or []}
    kubelet = _kubelet(run, root, timeout)
    states = unit_states(run, root, timeout, [unit for name in sorted(found) for unit in UNITS.get(name, ())])
    return {
        "kubelet": kubelet,
        "engines": {name: _one(name, found[name], states, kubelet, (run, root, timeout)) for name in sorted(found)},
    }


def _one(name, engine, states, kubelet, look):
    run, root, timeout = look
    mine = [states[unit] for unit in UNITS.get(name, ()) if unit in states]
    # Of a server's and an agent's unit one is there: the one that runs, else the one that is not simply missing.
    mine.sort(key=lambda unit: (unit["active"] != "active", unit["load"] == "not-found"))
    facts = {"unit": mine[0] if mine else None, "file": None, "cri": None, "cgroup_driver": None}
    text = units.read_text(under(root, engine["config_path"])) if engine.get("config_path") else ""
    if name == "docker":
        flags = _engine_docker.observe_process(run, root, timeout)["flags"]
        facts["file"] = daemon_json(text, [_engine_docker.flag_key(flag) for flag in flags])
        facts["cgroup_driver"] = _of_docker(run, root, timeout) if engine["active"] and kubelet["installed"] else None
    elif name == "isulad":
        facts["file"] = daemon_json(text, [])
    elif name in CONTAINERD:
        # One whose CRI part did not load counts as down, but its unit runs and its socket answers.
        runs = engine["active"] or (facts["unit"] or {}).get("active") == "active"
        facts["cri"], facts["cgroup_driver"] = _of_cri(engine, timeout) if runs else (None, None)
        facts["cri"] = dict(facts["cri"] or {"loaded": None, "error": None}, disabled=disabled_cri(text))
    return facts


# --- kubelet ---


def _kubelet(run, root, timeout):
    """How kubelet reaches its engine, and the driver of control groups that it was told."""
    try:
        known = _engine_kubelet.endpoint(run, root, timeout)
    except (FleetError, OSError, ValueError) as error:
        return {"installed": None, "endpoint": None, "source": str(error), "cgroup_driver": None, "cgroup_source": None}
    driver, source = None, None
    for pid, _name in units.processes(("kubelet",), root):
        words = units.command_line(pid, root)
        driver, source = kubelet_driver(words, lambda path: units.read_text(under(root, path)))
        break
    return {"installed": known["installed"], "endpoint": known["endpoint"], "source": known["source"], "cgroup_driver": driver,
            "cgroup_source": source}


def kubelet_driver(words, text_of):
    """``(driver, where it stands)`` from kubelet's command line and the file of its --config; (None, None) where nobody said. Pure.

    Without a word kubelet takes cgroupfs, or from 1.28 on what the engine tells it, so silence is no difference.
    """
    flag = _engine_kubelet.flag_value(words, "cgroup-driver")
    if flag:
        return flag, "kubelet's command line"
    path = _engine_kubelet.flag_value(words, "config")
    value = _engine_kubelet.config_value(text_of(path), "cgroupDriver") if path else None
    return (value, path) if value else (None, None)


# --- units ---


def unit_states(run, root, timeout, names):
    """``{unit: {"name", "load", "active", "kill_mode"}}``; empty where there is no systemd."""
    systemctl = find_program("systemctl", root)
    if systemctl is None or not names:
        return {}
    shown = run([systemctl, "show"] + list(names) + ["--property=Id,LoadState,ActiveState,KillMode"], timeout)
    return parse_units(shown.stdout) if shown.rc == 0 and not shown.timed_out else {}


def parse_units(text):
    """Blocks of `systemctl show` for several units, parted by empty lines. Pure."""
    states = {}
    for block in re.split(r"\n\s*\n", text.strip()):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            states[values["Id"]] = {
                "name": values["Id"], "load": values.get("LoadState"), "active": values.get("ActiveState"),
                "kill_mode": values.get("KillMode") or None,
            }
    return states


# --- files ---


def daemon_json(text, flag_keys):
    """``{"conflicts": keys that the command line has as well, "second": line of a second document or None, "quoted": keys whose truth
    value or number is written as text}``. Names only, never values. Pure.
    """
    nothing = {"conflicts": [], "second": None, "quoted": []}
    body = text.lstrip()
    try:
        config, end = json.JSONDecoder().raw_decode(body)
    except (ValueError, RecursionError):
        return nothing
    rest = body[end:]
    second = None
    if rest.strip():
        second = text.count("\n", 0, len(text) - len(rest.lstrip())) + 1
    if not isinstance(config, dict):
        return dict(nothing, second=second)
    quoted = sorted(
        key for key, value in config.items() if isinstance(value, str)
        and ((key in _BOOLEANS and value.lower() in ("true", "false")) or (key in _NUMBERS and value.isdigit()))
    )
    return {"conflicts": _engine_docker.conflicts(config, flag_keys), "second": second, "quoted": quoted}


def disabled_cri(text):
    """Whether a containerd configuration switches its CRI part off, as the package of Docker's repository does. Pure."""
    plain = re.sub(r"(?m)^\s*#.*$", "", text)
    top = re.split(r"(?m)^\s*\[[^\]=]*\]\s*$", plain, maxsplit=1)[0]
    said = re.search(r"(?ms)^\s*disabled_plugins\s*=\s*\[(.*?)\]", top)
    names = re.findall(r"""["']([^"']+)["']""", said.group(1)) if said else []
    return any(name == "cri" or name.startswith(("io.containerd.grpc.v1.cri", "io.containerd.cri.v1")) for name in names)


# --- what runs ---


def _of_cri(engine, timeout):
    """What the running CRI says: is it there, and the driver of runc's control groups."""
    try:
        config = _cri.status(socket_of(engine), timeout)["config"]
    except FleetError as error:
        # Only this code says that something answers and knows no CRI.
        return {"loaded": False if error.code == "cri_missing" else None, "error": str(error)}, None
    except (OSError, ValueError) as error:
        return {"loaded": None, "error": str(error)}, None
    return {"loaded": True, "error": None}, runc_driver(config)


def runc_driver(config):
    """systemd or cgroupfs, from the configuration that a running containerd tells over CRI; None where it does not. Pure."""
    options = config
    for key in ("containerd", "runtimes", "runc", "options"):
        options = options.get(key) if isinstance(options, dict) else None
    if not isinstance(options, dict) or "SystemdCgroup" not in options:
        return None
    return "systemd" if options["SystemdCgroup"] is True else "cgroupfs"


def _of_docker(run, root, timeout):
    client = find_program("docker", root)
    shown = run([client, "info", "--format", "{{.CgroupDriver}}"], timeout) if client else None
    return shown.stdout.strip() or None if shown and shown.rc == 0 and not shown.timed_out else None
