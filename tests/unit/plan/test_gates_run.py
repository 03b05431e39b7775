# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of the gates: which looks are made, what becomes of one that hangs, and when L4 is not judged again."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from jinja2 import StrictUndefined
from jinja2.nativetypes import NativeEnvironment

from ansible_collections.npu.fleet.plugins.module_utils import _gates_note, _gates_run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good
from ansible_collections.npu.fleet.plugins.modules import npu_gates, npu_node_record, npu_pod_gate

from .observed import converged
from .test_gates import CONTAINER, PLUGIN, POD, WANTED, kubelet, told

ALL = ["L0", "L1", "L2", "L3", "L4"]


def params(root, **changes):
    values = {
        "gates": ALL, "limits": {}, "root": str(root), "dev_root": "/dev", "engine": "auto", "runtime": "ascend", "runtime_path": "/opt/r",
        "versions": WANTED["versions"], "own_versions": False, "unhealthy_allowed": 0, "unhealthy_from": "major", "chips": 0,
        "seen_before": [], "agent_url": "http://127.0.0.1:9/readyz", "kubelet_dir": str(root), "pod_by": "admission", "pod_always": True,
    }
    return dict(values, **changes)


@pytest.fixture
def seen(monkeypatch):
    """What the looks see; a test changes it, or has one hang. The calls are looked at in the answer: a look runs in its own process."""
    found = {"plugin": PLUGIN, "container": dict(CONTAINER, engine="docker"), "pod": POD, "hang": ()}

    def look(name):
        def now(*_args, **_more):
            if name in found["hang"]:
                time.sleep(600)
            return found[name]

        return now

    def probe_plugin(_url, _folder):
        return {key: value for key, value in look("plugin")().items() if key != "kubelet"}

    monkeypatch.setattr(_gates_run._gates_plugin, "probe_plugin", probe_plugin)
    monkeypatch.setattr(_gates_run._gates_kubelet, "ask_kubelet", lambda folder: found["plugin"].get("kubelet"))
    monkeypatch.setattr(_gates_run.Run, "look_into_containers", look("container"))
    monkeypatch.setattr(_gates_run.Run, "admit", look("pod"))
    monkeypatch.setattr(_gates_run, "AGAIN_SECONDS", 0.0)
    return found


def run(root, npu=None, check_mode=False, hang=(), **changes):
    def observe(_params, ask=True):
        if ("driver" in hang and ask) or "host" in hang:
            time.sleep(600)
        return npu or converged()

    return _gates_run.Run(params(root, **changes), check_mode, observe).run()


def ends(answer):
    return {verdict["gate"]: verdict["passed"] for verdict in answer["gates"]}


def test_all_pass_each_with_its_time_its_limit_and_its_evidence(tmp_path, seen):
    answer = run(tmp_path)
    assert answer["passed"]
    assert answer["first_failed"] is None
    assert list(ends(answer)) == ALL
    for verdict in answer["gates"]:
        assert verdict["seconds"] is not None
        assert verdict["limit"] == _gates_run.LIMITS[verdict["gate"]]
        assert {"asked", "seen"} <= set(verdict["evidence"])


@pytest.mark.parametrize(("hangs", "limits", "gate", "others"), [
    ("driver", {"L0": 5, "L1": 0.2}, "L1", {"L0": True, "L2": True, "L3": True, "L4": True}),
    ("host", {"L0": 0.2, "L1": 0.2}, "L0", {"L2": None, "L3": None, "L4": None}),
    ("container", {"L2": 0.3}, "L2", {"L0": True, "L1": True, "L3": True, "L4": True}),
    ("plugin", {"L3": 0.3}, "L3", {"L0": True, "L1": True, "L2": True}),
    ("pod", {"L4": 0.3}, "L4", {"L0": True, "L1": True, "L2": True, "L3": True}),
])
def test_a_gate_that_is_not_over_in_its_time_fails_with_that_reason(tmp_path, seen, *, hangs, limits, gate, others):
    seen["hang"] = (hangs,)
    began = time.monotonic()
    answer = run(tmp_path, hang=(hangs,), limits=limits)
    assert time.monotonic() - began < 120
    assert not answer["passed"]
    assert answer["first_failed"]["gate"] == gate
    assert answer["first_failed"]["check"] == "in time"
    assert "was not over within" in answer["first_failed"]["reason"]
    assert "npu_verify_limits" in answer["first_failed"]["reason"]
    for other, passed in others.items():
        assert ends(answer)[other] is passed


@pytest.mark.parametrize(("hangs", "asked"), [
    ("driver", ["L3"]), ("driver", ["L0", "L4"]),
    ("host", ["L2"]), ("host", ["L3"]), ("host", ["L4"]), ("host", ["L2", "L3", "L4"]), ("host", ["L0", "L4"]),
])
def test_a_look_that_was_given_up_fails_the_first_gate_asked_for(tmp_path, seen, asked, hangs):
    """Whichever gates somebody wants: a node that hangs is not right."""
    answer = run(tmp_path, hang=(hangs,), limits={"L0": 0.2 if hangs == "host" else 5, "L1": 0.2}, gates=asked)
    assert not answer["passed"]
    assert (answer["first_failed"]["gate"], answer["first_failed"]["check"]) == (asked[0], "in time")


def test_no_gate_at_all_is_refused(tmp_path):
    with pytest.raises(FleetError, match="No gate is asked for"):
        run(tmp_path, gates=[])


NAMELESS = {"status": dict(told(), resources=[], resource=None), "kubelet": kubelet()}
HUNG = dict(PLUGIN, kubelet=kubelet([], "kubelet does not tell its devices: no answer within 5 s"))


@pytest.mark.parametrize("by", ["admission", "pod"])
@pytest.mark.parametrize(("plugin", "words"), [
    ({"error": "refused"}, "no plugin is there to ask: refused"),
    (NAMELESS, "no plugin is there to ask: it names no resource"),
    (HUNG, "nobody tells which ids are free: kubelet does not tell its devices: no answer within 5 s"),
    (dict(PLUGIN, kubelet=kubelet([])), "kubelet has no id of huawei.com/Ascend910 that may take work"),
])
def test_what_ought_to_answer_and_does_not_fails_the_pod(tmp_path, seen, by, plugin, words):
    seen["plugin"], seen["hang"] = plugin, ("pod",)
    answer = run(tmp_path, gates=["L4"], pod_by=by)
    assert ends(answer) == {"L4": False}
    assert (answer["pod_due"], answer["first_failed"]["check"]) == (False, "plugin allocates")
    assert words in answer["first_failed"]["reason"]
    # Where L3 tells it, one failure is enough; nothing is green.
    both = ends(run(tmp_path, gates=["L3", "L4"], pod_by=by))
    assert both == {"L3": False, "L4": None}


def test_a_node_without_npu_has_no_pod_to_try(tmp_path, seen):
    npu = converged()
    npu.update(present=False, chips=[], family=None, families=[])
    assert ends(run(tmp_path, npu, gates=["L4"])) == {"L4": False}


def test_a_kubelet_that_cannot_tell_is_no_failure(tmp_path, seen):
    seen["plugin"], seen["hang"] = dict(PLUGIN, kubelet=kubelet([], "there is no /k.sock", excused=True)), ("pod",)
    assert ends(run(tmp_path, gates=["L3", "L4"])) == {"L3": True, "L4": None}
    assert run(tmp_path, gates=["L4"], pod_by="pod")["pod_due"] is True


def test_a_pod_asks_for_the_resource_of_which_something_is_free(tmp_path, seen):
    """Slices have nodes of their own."""
    name, ids = "huawei.com/Ascend910-2c.1cpu", ["Ascend910-2c.1cpu-101-0", "Ascend910-2c.1cpu-100-0"]
    devices = [{"id": one, "phy_id": 0, "pci_address": None} for one in ids]
    status = dict(told(), resources=[
        {"resource": "huawei.com/Ascend910", "healthy": 1, "total": 1, "reasons": []},
        {"resource": name, "healthy": 2, "total": 2, "reasons": [], "devices": devices}])
    seen["plugin"] = {"status": status, "kubelet": dict(
        kubelet(["Ascend910-1"]), used={"huawei.com/Ascend910": {"Ascend910-1": "default/job"}})}
    seen["plugin"]["kubelet"]["allocatable"][name] = ids
    wanted = run(tmp_path, pod_by="pod", gates=["L4"])["pod_wanted"]
    assert (wanted["resource"], wanted["chips"]) == (name, [["davinci100"], ["davinci101"]])


def test_check_mode_starts_no_container(tmp_path, seen):
    seen["hang"] = ("container", "pod")
    assert list(ends(run(tmp_path, check_mode=True))) == ["L0", "L1", "L3"]


def test_without_a_wanted_runtime_no_container_is_asked_for(tmp_path, seen):
    seen["hang"] = ("container",)
    verdict = run(tmp_path, runtime="", versions={})["gates"][2]
    assert (verdict["passed"], verdict["why"]) == (None, "no container runtime is wanted here")


def test_a_node_without_npu_is_not_asked_further(tmp_path, seen):
    seen["hang"] = ("container", "pod", "plugin")
    npu = converged()
    npu.update(present=False, chips=[], family=None, families=[])
    answer = run(tmp_path, npu)
    assert answer["first_failed"]["check"] == "npu present"
    assert ends(answer) == {"L0": False, "L1": None, "L2": None, "L3": None, "L4": None}


def test_what_differs_between_driver_and_plugin_is_looked_at_twice(tmp_path, seen, monkeypatch):
    first = {"status": told("Ascend910-3: fault"), "kubelet": kubelet()}
    looks = iter([first, PLUGIN])
    real = _gates_run.Run.look_at_plugin

    def look(self):
        seen["plugin"] = next(looks)
        real(self)

    monkeypatch.setattr(_gates_run.Run, "look_at_plugin", look)
    assert run(tmp_path)["passed"]
    assert next(looks, None) is None


def test_a_pod_is_not_tried_again_where_nothing_has_changed(tmp_path, seen):
    assert ends(run(tmp_path, pod_always=False))["L4"] is True
    seen["hang"] = ("pod",)
    again = run(tmp_path, pod_always=False)["gates"][4]
    assert (again["passed"], again["why"]) == (None, "nothing has changed since it passed")
    seen["hang"] = ()
    assert ends(run(tmp_path))["L4"] is True
    for change in (lambda n: n["agent"].update(config_sha256="z"), lambda n: n.update(boot_id="c"),
                   lambda n: n["versions"]["driver"].update(running="26"), lambda n: n["engines"][0].update(version="99")):
        npu = converged()
        change(npu)
        assert run(tmp_path, npu, pod_always=False)["gates"][4]["judged"], change


def test_a_pod_that_failed_is_tried_again(tmp_path, seen):
    run(tmp_path, pod_always=False)
    seen["pod"] = dict(POD, error="no")
    assert ends(run(tmp_path))["L4"] is False
    assert _gates_note.noted(str(tmp_path / "var/lib/npu-fleet"), "pod") is None


def test_a_pod_of_the_cluster_is_left_to_its_module(tmp_path, seen):
    seen["hang"] = ("pod",)
    answer = run(tmp_path, pod_by="pod")
    assert answer["pod_due"] is True
    assert answer["passed"]
    assert answer["pod_wanted"]["resource"] == "huawei.com/Ascend910"
    # What passed there is noted by the checksum that is given here; before that it is due each time.
    _gates_note.note(str(tmp_path / "var/lib/npu-fleet"), answer["pod_print"], "pod")
    assert run(tmp_path, pod_by="pod", pod_always=False)["pod_due"] is False
    assert run(tmp_path, pod_by="pod")["pod_due"] is True
    # All in use: kubelet would refuse the pod, and that is nobody's fault.
    busy = dict(kubelet(), used={"huawei.com/Ascend910": {f"Ascend910-{n}": "default/job" for n in range(8)}})
    seen["plugin"] = dict(PLUGIN, kubelet=busy)
    answer = run(tmp_path, pod_by="pod")
    assert answer["pod_due"] is False
    assert "no id is free" in answer["gates"][4]["why"]


def test_nothing_is_promoted_before_the_pod_has_passed(tmp_path, seen):
    given = dict(params(tmp_path, pod_by="pod"), record=True, cache_dir="/var/cache/npu-fleet")
    answer = run(tmp_path, pod_by="pod")
    assert npu_gates.promote(given, answer, False) is False
    assert npu_gates.promote(given, dict(answer, pod_due=False), False) is True


@pytest.mark.parametrize("check_mode", [True, False])
def test_what_a_pod_has_proved_is_noted_on_the_node(tmp_path, check_mode):
    state = str(tmp_path / "state")
    given = {"action": "mark_passed", "components": {"driver": "25.5.0"}, "pod_print": "abc"}
    assert npu_node_record.change(given, check_mode, state) is True
    good = _good.read(state, str(tmp_path / "cache"))["good"]["current"]
    assert (good is None, _gates_note.noted(state, "pod")) == ((True, None) if check_mode else (False, "abc"))
    assert npu_node_record.change(given, check_mode, state) is check_mode
    # npu.fleet.verify proves, and keeps nothing.
    assert npu_node_record.change(dict(given, components={}), check_mode, state) is False


def test_own_versions_are_those_that_passed_last_else_those_on_disk(tmp_path, seen):
    answer = run(tmp_path, versions={}, own_versions=True)
    assert answer["versions_from"] == "disk"
    assert answer["versions"]["docker_runtime"] == "7.3.0"
    assert answer["passed"]
    _good.promote(str(tmp_path / "var/lib/npu-fleet"), {"driver": "25.3.rc1"}, str(tmp_path / "cache"))
    answer = run(tmp_path, versions={}, own_versions=True)
    assert (answer["versions_from"], answer["versions"]) == ("record", {"driver": "25.3.rc1"})
    assert answer["first_failed"]["gate"] == "L1"
    # That record has no container runtime.
    assert answer["gates"][2]["why"] == "no container runtime is wanted here"


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", [npu_gates, npu_pod_gate])
def test_a_module_that_is_ended_by_a_signal_says_so_in_the_end(handlers, monkeypatch, module, number):
    told = []

    def ended(*_args):
        os.kill(os.getpid(), number)
        time.sleep(60)

    def fail_json(msg):
        told.append(msg)

    fake = SimpleNamespace(params=params("/"), check_mode=False, fail_json=fail_json)
    monkeypatch.setattr(module, "AnsibleModule", lambda **_more: fake)
    monkeypatch.setattr(npu_gates, "Run", ended)
    monkeypatch.setattr(npu_pod_gate._kube, "run_module", ended)
    module.main()
    assert len(told) == 1
    assert "ended by a signal" in told[0]


@pytest.mark.parametrize(("pod", "passed", "noted"), [
    ({}, True, None), ({"passed": True}, True, "abc"), ({"passed": False}, False, None),
    ({"passed": None}, True, ""),  # all in use: not judged
])
def test_what_the_role_makes_of_a_pods_verdict(pod, passed, noted):
    tasks = yaml.safe_load((Path(__file__).resolve().parents[3] / "roles/npu_verify/tasks/main.yml").read_text())
    by_name = {task["name"]: task for task in tasks}
    known = {"npu_verify_result": {"passed": True, "pod_print": "abc"}, "npu_verify_pod": pod}

    def value(text):
        return NativeEnvironment(undefined=StrictUndefined).from_string(text).render(known)

    outcome = by_name["Keep what was observed"]["ansible.builtin.set_fact"]["npu_verify_outcome"]
    assert value(outcome["passed"]) is passed
    if noted is not None:
        assert value(by_name["Note what a pod has proved"]["npu.fleet.npu_node_record"]["pod_print"]) in (noted, noted or None)


@pytest.mark.parametrize("limits", [{"L9": 5}, {"L0": 0}, {"L0": "soon"}, {"L0": None}])
def test_limits_that_are_none(limits):
    with pytest.raises(FleetError, match="npu_verify_limits"):
        npu_gates.check_limits(limits)
    npu_gates.check_limits({"L0": "5", "L4": 0.5})
