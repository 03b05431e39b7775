# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The looks of the gates, one after the other, each with its own limit of time. Private to the collection.

What a look saw goes to `_gates.py`, which judges it. The driver is asked once, for L0 and L1 together: a query that hangs ends by its own
limit and is a finding of L1; should the whole look not end, L0 is looked at again without the driver.
"""

import hashlib
import json
import os
import time

from ansible_collections.npu.fleet.plugins.module_utils import (
    _gates,
    _gates_admission,
    _gates_container,
    _gates_kubelet,
    _gates_note,
    _gates_plugin,
    _gates_verdict,
)
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import engine_of, runtime_path
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._gates_engines import OWN, engine_for
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import within
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import under
from ansible_collections.npu.fleet.plugins.module_utils._observe import observe
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good
from ansible_collections.npu.fleet.plugins.module_utils._packages._journal import STATE_DIR

#: Seconds of each gate. L0 and L1 share one look and the sum of both.
LIMITS = {"L0": 60, "L1": 180, "L2": 430, "L3": 30, "L4": 120}
#: Seconds in which a look that is given up may take its containers away.
CLEAN_UP = 45
#: Of the options, what is wanted of the node.
WANTED = ("versions", "runtime", "engine", "unhealthy_allowed", "unhealthy_from", "chips", "seen_before")
#: Good news reaches kubelet at most once a second: what differs is looked at again after that.
AGAIN_SECONDS = 2.0
_COMPARED = ("plugin and driver agree", "kubelet has the chips")


def limits_of(given):
    """LIMITS with what the user wants instead."""
    return dict(LIMITS, **{gate: float(seconds) for gate, seconds in (given or {}).items()})


def own_versions(npu, state):
    """``(versions, where they are from)`` of a node for which nobody pins any: the set that passed here last, else what is installed."""
    good = (_good.read(state, os.path.join(state, "none"))["good"].get("current") or {}).get("components") or {}
    known = {name: package["version"] for name, package in good.items() if package.get("version")}
    if known:
        return known, "record"
    return {name: one["version"] for name, one in npu["components"].items() if one["state"] != "absent" and one["version"]}, "disk"


class Run(object):
    """One run of the gates: what is known so far, and the verdicts."""

    def __init__(self, params, check_mode, observe_node=observe):
        if not params["gates"]:
            raise FleetError("No gate is asked for.", "no_gate", object="npu_verify_gates",
                             hint="Name some of %s: a node that nobody looks at has proved nothing." % ", ".join(sorted(LIMITS)))
        self.params, self.check_mode, self.observe = params, check_mode, observe_node
        self.limits = limits_of(params["limits"])
        left_out = ("L2", "L4") if check_mode else ()
        self.gates = [gate for gate, unused in _gates_verdict.GATES if gate in params["gates"] and gate not in left_out]
        self.state = under(params["root"], STATE_DIR)
        self.npu, self.verdicts, self.seconds = {}, [], {}  # npu: empty until the node was looked at
        self.plugin = {}  # empty: it was not asked
        self.container = self.pod = None
        self.versions, self.versions_from = params["versions"], "pins"
        self.pod_due, self.pod_print = False, None

    def wanted(self):
        return dict({key: self.params[key] for key in WANTED}, gates=self.gates, versions=self.versions)

    def run(self):
        """Judge all gates in their order; return what the module returns."""
        late = self.look_at_node()
        if self.npu:
            if not self.versions and self.params["own_versions"]:
                self.versions, self.versions_from = own_versions(self.npu, self.state)
                if "docker_runtime" not in self.versions:
                    self.params = dict(self.params, runtime="")
            if self.npu["present"] and ("L3" in self.gates or "L4" in self.gates):
                self.look_at_plugin()
        for gate in self.gates:
            self.verdicts.append(late.get(gate) or self.judge(gate))
        return {
            "passed": not any(verdict["passed"] is False for verdict in self.verdicts),
            "gates": self.verdicts,
            "first_failed": _gates_verdict.first_failed(self.verdicts),
            "failures": _gates_verdict.failures(self.verdicts),
            "summary": _gates_verdict.summary(self.verdicts),
            "container": self.container,
            "pod": self.pod,
            "pod_due": self.pod_due,
            "pod_print": self.pod_print,
            "pod_wanted": self.pod_wanted(),
            "versions": self.versions,
            "versions_from": self.versions_from,
            "npu": self.npu,
        }

    def judge(self, gate):
        if not self.npu:
            return _gates_verdict.verdict_of(gate, [], why="the node could not be looked at")
        why = _gates_verdict.blocked(gate, self.verdicts)
        if why:
            return _gates_verdict.verdict_of(gate, [], why=why)
        return getattr(self, "judge_" + gate)()

    # --- L0 and L1: the node and its driver ---

    def look_at_node(self):
        """Observe; return the verdicts of gates that are over already, because their time is. Where the gate that a look is about is not
        asked for, the first one is: all go by what was seen here, and a node that hangs must not pass for want of a question."""
        limit = self.limits["L0"] + self.limits["L1"]
        looked = within(limit, lambda: self.observe(self.params))
        late, first = {}, (self.gates or ["L0"])[0]
        if looked.timed_out:
            gate = "L1" if "L1" in self.gates else first
            late[gate] = _gates_verdict.too_late(gate, looked, limit, "the look at host and driver")
            looked = within(self.limits["L0"], lambda: self.observe(self.params, ask=False))
            if looked.timed_out:
                late[first] = _gates_verdict.too_late(first, looked, self.limits["L0"], "the look at the host, without its driver,")
        self.npu, self.seconds["L0"] = looked.value or {}, looked.seconds
        return late

    def judge_L0(self):
        return self.verdict("L0", {"asked": "PCI functions and device tree, packages at work, engines", "seen": "%d chip(s) of %s" % (
            len(self.npu["chips"]), ", ".join(self.npu["families"]) or "no known family")})

    def judge_L1(self):
        query = self.npu["query"]
        self.seconds["L1"] = self.seconds["L0"]
        return self.verdict("L1", {
            "asked": "the driver by %s, version files" % (query["source"] or "nothing"),
            "seen": (query.get("error") or {}).get("message") or "all queries answered", "versions": self.versions_from,
        })

    def verdict(self, gate, evidence, **more):
        checks = _gates.checks_of(gate, self.npu, self.wanted(), container=self.container, plugin=self.plugin, pod=self.pod)
        seconds = self.seconds.get(gate)
        took = None if seconds is None else round(seconds, 1)
        return _gates_verdict.verdict_of(gate, checks, seconds=took, limit=self.limits[gate], evidence=evidence, **more)

    # --- L2: containers ---

    def judge_L2(self):
        board = self.npu.get("backend") == _gates.BOARD
        if not self.params["runtime"] and not board:
            return _gates_verdict.verdict_of("L2", [], why="no container runtime is wanted here")
        looked = within(self.limits["L2"], self.look_into_containers, CLEAN_UP)
        self.seconds["L2"] = looked.seconds
        if looked.timed_out:
            return _gates_verdict.too_late("L2", looked, self.limits["L2"], "the look into containers")
        self.container = looked.value
        return self.verdict("L2", {"asked": "containers by %s" % looked.value.get("engine"), "seen": looked.value.get("rows")})

    def look_into_containers(self):
        """What real containers see, by the engine that counts."""
        npu, params = self.npu, self.params
        engine, why = engine_of(npu["engines"], params["engine"])
        if engine is None:
            return {"error": "no container was tried: %s" % why}
        root = params["root"]
        if npu.get("backend") == _gates.BOARD:
            table, host = _gates_container.board_table(npu["chips"])
            runtime = path = OWN
        else:
            family = FAMILIES.get(npu["family"])
            if family is None:
                return {"error": "the family of the chips is not known, so no container was tried"}
            chips, managers, host = _gates_container.wanted_of(npu, family, params["dev_root"], params["unhealthy_from"])
            if not chips:
                return {"error": "no chip has a device node, so no container was tried"}
            table = _gates_container.truth_table(chips, managers, family["device_prefix"])
            runtime, path = params["runtime"], runtime_path(engine, params["runtime"], params["runtime_path"])
        if not table:
            return {"error": "no chip has a device node, so no container was tried"}
        known = _gates_container.fingerprint(npu, engine, runtime, path, table, root=root)
        return dict(_gates_container.probe(self.engine(engine, runtime, path), table, host, known, self.state, root=root),
                    engine=engine["name"])

    def engine(self, engine, runtime, path):
        return engine_for(run, engine, runtime, path, os.path.join(self.state, "gates", "work"), root=self.params["root"])

    # --- L3: the plugin ---

    def look_at_plugin(self):
        kubelet_dir = self.params["kubelet_dir"]

        def look():
            told = _gates_plugin.probe_plugin(self.params["agent_url"], kubelet_dir)
            return dict(told, kubelet=_gates_kubelet.ask_kubelet(kubelet_dir))

        looked = within(self.limits["L3"], look)
        self.seconds["L3"] = self.seconds.get("L3", 0.0) + looked.seconds
        self.plugin = looked.value or {}
        if looked.timed_out:
            self.plugin = {"error": "the agent did not answer within %g s" % self.limits["L3"], "late": looked}

    def judge_L3(self):
        if self.plugin.get("late"):
            return _gates_verdict.too_late("L3", self.plugin["late"], self.limits["L3"], "the question to agent and kubelet")
        verdict = self.verdict("L3", self.plugin_evidence())
        if any(check["name"] in _COMPARED for check in verdict["checks"] if not check["passed"]):
            time.sleep(AGAIN_SECONDS)
            self.look_at_plugin()
            verdict = self.verdict("L3", self.plugin_evidence())
        return verdict

    def plugin_evidence(self):
        kubelet = self.plugin.get("kubelet") or {}
        return {"asked": "%s and %s" % (self.params["agent_url"], kubelet.get("socket")),
                "seen": {"agent": self.plugin.get("status") or self.plugin.get("error"), "node": self.plugin.get("node"),
                         "kubelet": kubelet.get("error") or kubelet.get("allocatable")}}

    # --- L4: a pod ---

    def resources(self):
        status = self.plugin.get("status") or {}
        named = [one["resource"] for one in status.get("resources") or []]
        return named or [name for name in (status.get("resource") or "").split(", ") if name]

    def choice(self):
        """What there is to ask for, see `_gates_admission.choose`."""
        if self.plugin.get("error") or not self.plugin:
            told = self.plugin.get("error") or "the plugin was not asked, because there is no NPU"
            return _gates_admission.Choice(None, [], None, "no plugin is there to ask: %s" % told)
        return _gates_admission.choose(self.plugin.get("kubelet") or {"error": "kubelet was not asked"}, self.resources())

    def cannot_try(self, failure, by):
        """The verdict where no pod can be tried. Where L3 has failed already, that is the reason, and one is enough."""
        if any(verdict["gate"] == "L3" and verdict["passed"] is False for verdict in self.verdicts):
            return _gates_verdict.verdict_of("L4", [], why=failure, by=by)
        self.pod = _gates_admission.nothing(error=failure, by=by)
        return self.verdict("L4", {"asked": "agent and kubelet", "seen": failure}, by=by)

    def judge_L4(self):
        engine, why = engine_of(self.npu["engines"], self.params["engine"])
        by = self.params["pod_by"]
        choice = self.choice()
        failure = choice.failure
        if failure is None and by == "pod" and not choice.why and self.pod_wanted() is None:
            failure = "the family of the chips is not known, so nobody knows what a pod has to see"
        if failure is None and by != "pod" and engine is None:
            failure = "no container engine is there to start a container: %s" % why
        if failure:
            return self.cannot_try(failure, by)
        self.pod_print = self.print_of(engine, by)
        if not self.params["pod_always"] and _gates_note.noted(self.state, "pod") == self.pod_print:
            return _gates_verdict.verdict_of("L4", [], why="nothing has changed since it passed", by=by)
        # Whom kubelet cannot tell here, the cluster can.
        if by == "pod" and (not choice.why or self.plugin["kubelet"]["error"]):
            self.pod_due = True
            return _gates_verdict.verdict_of("L4", [], why="a pod of the cluster tells", by=by)
        if choice.why:
            self.pod = {"why": choice.why, "by": by}
            return _gates_verdict.verdict_of("L4", [], why=choice.why, by=by)
        looked = within(self.limits["L4"], lambda: self.admit(engine), CLEAN_UP)
        self.seconds["L4"] = looked.seconds
        if looked.timed_out:
            return dict(_gates_verdict.too_late("L4", looked, self.limits["L4"], "the admission"), by=by)
        self.pod = looked.value
        if self.pod["why"]:
            return _gates_verdict.verdict_of("L4", [], why=self.pod["why"], by=by)
        verdict = self.verdict("L4", {"asked": "Allocate of %s at %s, and a container with the answer; nothing is reserved by that" % (
            self.pod["id"], self.pod.get("socket")), "seen": self.pod}, by=by)
        if not self.check_mode:
            _gates_note.note(self.state, self.pod_print if verdict["passed"] else None, "pod")
        return verdict

    def admit(self, engine):
        family = FAMILIES.get(self.npu["family"])
        if family:
            unused, managers, host = _gates_container.wanted_of(self.npu, family, self.params["dev_root"], self.params["unhealthy_from"])
        else:
            managers, host = [], _gates_container.board_table(self.npu["chips"])[1]
        runtime = self.params["runtime"] or OWN

        def start(needs_runtime):
            named = runtime if needs_runtime else OWN
            return self.engine(engine, named, runtime_path(engine, named, self.params["runtime_path"]) if named else OWN)

        return _gates_admission.admit(start, self.plugin["kubelet"], self.resources(), self.params["kubelet_dir"], self.state,
                                      root=self.params["root"], host=host, managers=managers)

    def print_of(self, engine, by):
        """What the outcome of L4 depends on, as a sha256."""
        agent, npu = self.npu["agent"], self.npu
        parts = {
            "by": by, "boot": npu.get("boot_id"), "engine": [(engine or {}).get("name"), (engine or {}).get("version")],
            "agent": [agent.get(key) for key in ("version", "archive_sha256", "config_sha256", "unit_sha256")],
            "told": (self.plugin.get("status") or {}).get("version"), "resources": self.resources(),
            "chips": sorted([str(c["phy_id"]), str(c["pci_address"])] for c in npu["chips"]),
            "driver": npu["versions"]["driver"]["running"],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode("utf-8")).hexdigest()

    def pod_wanted(self):
        """What a pod on this node has to see: for the module that starts one. None where nothing is known."""
        if not self.npu or not self.resources():
            return None
        if self.npu.get("backend") == _gates.BOARD:
            chips, managers = [[path[len("/dev/"):] for path in chip["device_nodes"]] for chip in self.npu["chips"]], []
        else:
            family = FAMILIES.get(self.npu["family"])
            if family is None:
                return None
            numbers, managers, unused = _gates_container.wanted_of(self.npu, family, self.params["dev_root"], self.params["unhealthy_from"])
            chips = [["davinci%d" % number] for number in numbers]
        resource = self.choice().resource or self.resources()[0]
        slices = _gates_plugin.slices_of(self.plugin, resource)
        if slices is not None:
            # Inside, the node of a slice is named as a chip's: backends/ascend.py of the agent, as the vendor does.
            chips = [["davinci%d" % number] for number in slices]
        return {"resource": resource, "chips": chips, "managers": managers}
