# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in the way of registering a runtime in the host's container engine. Pure. Private to the collection.

Found before anything is installed: a registration that fails at the end of a run leaves a node with a new driver and no containers.
"""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import engine_of
from ansible_collections.npu.fleet.plugins.plugin_utils._findings import accepted, finding

#: Engines that have no reload: taking over means a restart of their unit.
RESTARTED = ("containerd", "k3s", "rke2")
#: What shows the place of an error in an engine's file; containerd's own is the rest.
PARSERS = {"docker": "python3 -m json.tool {}", "isulad": "python3 -m json.tool {}", "crio": "crio --config {} config"}
#: Distributions whose engine is not configured here, and why.
UNSUPPORTED = {
    "k0s": "it puts its engine's configuration together itself, from /etc/k0s/containerd.d",
    "microk8s": "its engine lives inside of a snap",
}
#: What ends with a unit of these modes is all that the unit has started, shims of containers included (systemd.kill(5)).
_KILLS_ALL = ("control-group", "mixed")


class Engine:
    """What the rules look at: the engine that counts, its facts, and whether this run would touch it."""

    def __init__(self, observed, wanted, runtime, step):
        entry, self.why = engine_of(observed.get("engines") or [], runtime.get("engine") or "auto")
        facts = observed["preflight"].get("container") or {}
        self.names = [one["name"] for one in observed.get("engines") or []]
        self.wanted = wanted
        self.runtime = runtime
        self.entry = entry or {}
        self.name = self.entry.get("name")
        self.kubelet = facts.get("kubelet") or {}
        self.facts = (facts.get("engines") or {}).get(self.name) or {}
        self.unit = self.facts.get("unit") or {}
        self.kubelets = next((one["name"] for one in observed.get("engines") or [] if one.get("kubelet")), None)
        self.path = self.entry.get("config_path")
        self.touched = step["action"] != "none"

    def error_if_touched(self):
        return "error" if self.touched else "warning"


def judge(observed, wanted, runtime, step):
    """Findings about the engine. ``runtime``: what is to be registered, None where none is wanted; ``step``: the plan's engine step."""
    if not observed.get("preflight") or not runtime:
        return []
    engine = Engine(observed, wanted, runtime, step)
    return accepted([one for rule in RULES for one in rule(engine)], wanted.get("accept_findings"))


def which(engine):
    """No engine, or more than one and nobody says which the kubelet uses."""
    auto = (engine.runtime.get("engine") or "auto") == "auto"
    if engine.name or (auto and engine.kubelet.get("endpoint")):
        return
    if not engine.names:
        message = "No container engine was found, so the runtime cannot be registered."
        yield finding("error", "engine_missing", "engine", message, "Install one, for example `apt-get install -y docker.io`.")
    elif len(engine.names) > 1 and auto:
        why = f" ({engine.kubelet['source']})" if engine.kubelet.get("source") else ""
        message = f"There are {' and '.join(engine.names)}, and it is not known which one the kubelet uses{why}."
        hint = f"npu_runtime_engine: {engine.names[0]}, or {engine.names[-1]}; `ps -o args= -C kubelet` shows --container-runtime-endpoint."
        yield finding("error", "engine_ambiguous", "engine", message, hint)
    else:
        message = f"The engine that is asked for is not usable: {engine.why}."
        yield finding("error", "engine_missing", "engine", message, f"npu_runtime_engine: {engine.names[0]}, or auto.")


def unsupported(engine):
    """A distribution that keeps its engine to itself."""
    parts = (engine.kubelet.get("endpoint") or "").split("/")
    for name, why in UNSUPPORTED.items():
        if name in parts and (engine.runtime.get("engine") or "auto") == "auto":
            message = f"The kubelet of this host is that of {name}, whose engine is not configured in this release: {why}."
            hint = "Register the runtime there by hand and leave docker_runtime out of the pins of this host."
            yield finding("error", "engine_unsupported", name, message, hint)
            return
    if engine.kubelet.get("endpoint") and not engine.kubelets and (engine.runtime.get("engine") or "auto") == "auto":
        message = f"The kubelet uses the engine at {engine.kubelet['endpoint']} ({engine.kubelet['source']}), which was not found here."
        name = engine.names[0] if engine.names else "NAME"
        hint = f"Install that engine, or npu_runtime_engine: {name} for containers without the kubelet."
        yield finding("error", "engine_missing", "kubelet", message, hint)


def not_kubelets(engine):
    """A runtime in one engine and pods in the other."""
    if engine.name and engine.kubelets and engine.kubelets != engine.name:
        message = f"The runtime is to be registered in {engine.name}, but the kubelet uses {engine.kubelets}: pods would not get it."
        yield finding("warning", "engine_not_kubelets", engine.name, message, f"npu_runtime_engine: {engine.kubelets}, or auto.")


def masked(engine):
    """A masked unit cannot be started, whatever its file says."""
    if engine.unit.get("load") == "masked":
        unit = engine.unit["name"]
        message = f"{unit} is masked: {engine.name} cannot be started or restarted."
        yield finding(engine.error_if_touched(), "engine_masked", unit, message, f"systemctl unmask {unit}")


def file_of_engine(engine):
    """A file that the engine would not take: broken, two documents in one, a key on both sides, a truth value as text."""
    said = engine.facts.get("file") or {}
    broken = (engine.entry.get("configured") or {}).get("error")
    show = PARSERS.get(engine.name, "containerd --config {} config dump").format(engine.path)
    if said.get("second"):
        # dockerd before 23 reads the first and is silent about the rest (C06).
        message = (
            f"{engine.path} has a second JSON document at line {said['second']}: older versions of {engine.name} ignore it, newer ones do "
            "not start."
        )
        hint = f"Merge both into one object; `python3 -m json.tool {engine.path}` shows when it is right."
        yield finding(engine.error_if_touched(), "engine_two_documents", engine.path, message, hint)
    elif broken:
        message = f"The configuration of {engine.name} cannot be read: {broken.rstrip('.')}."
        yield finding(engine.error_if_touched(), "engine_config_broken", engine.path or engine.name, message, f"{show} names the place.")
    if said.get("conflicts"):
        keys = ", ".join(said["conflicts"])
        unit = engine.unit.get("name") or engine.name
        message = f"{keys} stands both in {engine.path} and on the command line of {unit}: {engine.name} does not start like that."
        hint = f"Take it out of {engine.path}, or `systemctl edit {unit}` with an ExecStart= without it."
        yield finding(engine.error_if_touched(), "engine_flag_conflict", engine.path, message, hint)
    if said.get("quoted"):
        keys = ", ".join(said["quoted"])
        message = f"{engine.path} has truth values or numbers as text ({keys}): newer versions of {engine.name} do not start with that."
        yield finding("warning", "engine_quoted_values", engine.path, message, f"Take the quotes off their values in {engine.path}.")


def cri(engine):
    """containerd of Docker's own repository comes with its CRI part switched off."""
    said = engine.facts.get("cri") or {}
    if said.get("loaded") is False or (said.get("disabled") and not said.get("loaded")):
        off = f"{engine.path} names it in disabled_plugins" if said.get("disabled") else said.get("error") or "it did not load"
        message = f"containerd runs without its CRI part, which the kubelet needs: {off}"
        hint = (
            f"Take cri out of disabled_plugins in {engine.path}, then `systemctl restart {engine.unit.get('name') or 'containerd'}`."
            if said.get("disabled") else "`ctr plugins ls` and `journalctl -u containerd -n 100` tell why it failed to load."
        )
        yield finding(engine.error_if_touched(), "engine_without_cri", engine.name, message.rstrip(".") + ".", hint)


def kill_mode(engine):
    """A restart ends every pod where the unit takes its whole control group along."""
    running = engine.entry.get("containers_running") or 0
    restarts = engine.touched and engine.name in RESTARTED and engine.runtime.get("restart") != "never"
    if engine.unit.get("kill_mode") not in _KILLS_ALL or engine.name not in RESTARTED or not running:
        return
    unit = engine.unit["name"]
    message = (
        f"{unit} has KillMode={engine.unit['kill_mode']}: its restart ends the {running} container(s) that run. "
        f"{'Registering the runtime restarts it.' if restarts else ''}"
    ).rstrip()
    hint = (
        f"`systemctl edit {unit}` with [Service] and KillMode=process, then `systemctl daemon-reload`; or drain the node first; or "
        "npu_fleet_disruption: allow."
    )
    refused = restarts and engine.wanted.get("disruption", "refuse") != "allow"
    yield finding("error" if refused else "warning" if restarts else "note", "engine_kill_mode", unit, message, hint)


def cgroup_driver(engine):
    """Two drivers of control groups on one host: pods fail or lose their limits."""
    mine, kubelets = engine.facts.get("cgroup_driver"), engine.kubelet.get("cgroup_driver")
    if not mine or not kubelets or mine == kubelets or engine.kubelets != engine.name:
        return
    message = f"{engine.name} uses the cgroup driver {mine}, the kubelet {kubelets} ({engine.kubelet.get('cgroup_source')})."
    if engine.name == "docker":
        hint = f'"exec-opts": ["native.cgroupdriver={kubelets}"] in {engine.path}, then `systemctl restart docker` (it ends containers).'
    else:
        hint = (
            f"SystemdCgroup = {'true' if kubelets == 'systemd' else 'false'} in the options of runc in {engine.path}, then "
            f"`systemctl restart {engine.unit.get('name') or engine.name}`."
        )
    yield finding("warning", "engine_cgroup_driver", engine.name, message, hint)


RULES = (unsupported, which, not_kubelets, masked, file_of_engine, cri, kill_mode, cgroup_driver)
