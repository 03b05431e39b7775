# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings about container engines: each field case with its smallest facts, as error where the run touches the engine, less where not."""

import copy

import pytest

from ansible_collections.npu.fleet.plugins.plugin_utils import _findings_engine, _plan

from .observed import converged
from .test_findings import GOOD
from .test_plan import READY

RUNTIME = {"engine": "auto", "name": "ascend", "path": "/opt/r", "set_default": False, "restart": "auto"}
REGISTER, NOTHING = {"action": "register", "reason": ""}, {"action": "none", "reason": ""}
KUBELET = {
    "installed": True, "endpoint": "unix:///run/containerd/containerd.sock", "source": "kubelet's command line", "cgroup_driver": "systemd",
    "cgroup_source": "/var/lib/kubelet/config.yaml",
}


def unit(name="docker", load="loaded", kill_mode="process"):
    return {"name": f"{name}.service", "load": load, "active": "active", "kill_mode": kill_mode}


def facts(name="docker", **changes):
    return dict({"unit": unit(name), "file": None, "cri": None, "cgroup_driver": None}, **changes)


def host(name="docker", kubelet=None, engines=None, **changes):
    """A host with one engine, and what preflight knows of it."""
    npu = converged()
    entry = npu["engines"][0]
    path = {"docker": "/etc/docker/daemon.json", "crio": "/etc/crio/crio.conf"}.get(name, "/etc/containerd/config.toml")
    entry.update(name=name, config_path=path, kubelet=True, containers_running=changes.pop("running", 0))
    entry["configured"]["error"] = changes.pop("broken", None)
    npu["engines"] = [entry] if engines is None else [dict(entry, name=n, kubelet=k) for n, k in engines]
    npu["preflight"] = dict(copy.deepcopy(GOOD), container={
        "kubelet": dict(KUBELET, **(kubelet or {})), "engines": {name: facts(name, **changes)},
    })
    return npu


def judged(npu, step=REGISTER, runtime=RUNTIME, **wanted):
    return [(one["severity"], one["code"]) for one in _findings_engine.judge(npu, wanted, runtime, step)]


@pytest.mark.parametrize("name", ["docker", "containerd", "k3s", "rke2", "crio", "isulad"])
@pytest.mark.parametrize("step", [REGISTER, NOTHING])
def test_a_good_engine_has_no_findings(name, step):
    npu = host(name, running=3, cgroup_driver="systemd", cri={"loaded": True, "error": None, "disabled": False},
               file={"conflicts": [], "second": None, "quoted": []})
    assert judged(npu, step) == []


def test_without_a_runtime_or_facts_there_is_nothing_to_say():
    npu = host(broken="x")
    assert judged(npu, runtime=None) == []
    npu["preflight"] = None
    assert judged(npu) == []


FINE = {"conflicts": [], "second": None, "quoted": []}
NO_CRI = {"loaded": False, "error": "unknown service", "disabled": False}
KILLS = {"unit": unit("containerd", kill_mode="control-group"), "running": 4}
# engine, facts, severities when the run registers there and when it does not, code, words of message or hint.
STOPS, WARNS, ONLY_THEN, ALWAYS, NEVER = ("error", "warning"), ("warning", "warning"), ("error", "note"), ("error", "error"), (None, None)
CASES = [
    ("docker", {"unit": unit(load="masked")}, STOPS, "engine_masked", "systemctl unmask docker.service"),
    ("docker", {"file": dict(FINE, conflicts=["hosts"])}, STOPS, "engine_flag_conflict", "hosts stands both in /etc/docker"),
    ("docker", {"file": dict(FINE, conflicts=["hosts"])}, STOPS, "engine_flag_conflict", "systemctl edit docker.service"),
    ("docker", {"file": dict(FINE, second=2), "broken": "line 2"}, STOPS, "engine_two_documents", "at line 2"),
    ("docker", {"file": dict(FINE, quoted=["ipv6"])}, WARNS, "engine_quoted_values", "(ipv6)"),
    ("docker", {"broken": "line 3"}, STOPS, "engine_config_broken", "json.tool /etc/docker"),
    ("containerd", {"broken": "line 3"}, STOPS, "engine_config_broken", "/etc/containerd/config.toml config dump"),
    ("crio", {"broken": "line 3"}, STOPS, "engine_config_broken", "crio --config /etc/crio/crio.conf config"),
    ("containerd", {"cri": NO_CRI}, STOPS, "engine_without_cri", "unknown service"),
    ("containerd", {"cri": dict(NO_CRI, disabled=True)}, STOPS, "engine_without_cri", "disabled_plugins in /etc/containerd"),
    ("containerd", {"cri": dict(NO_CRI, loaded=None, disabled=True)}, STOPS, "engine_without_cri", "systemctl restart containerd"),
    ("containerd", {"cri": dict(NO_CRI, loaded=None)}, NEVER, None, None),
    # What runs counts for more than what the file says: a drop-in may say otherwise.
    ("containerd", {"cri": dict(NO_CRI, loaded=True, disabled=True)}, NEVER, None, None),
    ("containerd", KILLS, ONLY_THEN, "engine_kill_mode", "KillMode=process"),
    ("containerd", dict(KILLS, running=0), NEVER, None, None),
    ("containerd", dict(KILLS, running=None), NEVER, None, None),
    ("k3s", {"unit": unit("k3s", kill_mode="mixed"), "running": 1}, ONLY_THEN, "engine_kill_mode", "`systemctl edit k3s.service`"),
    # docker reloads, whatever its unit says.
    ("docker", {"unit": unit(kill_mode="control-group"), "running": 4}, NEVER, None, None),
    ("containerd", {"cgroup_driver": "cgroupfs"}, WARNS, "engine_cgroup_driver", "SystemdCgroup = true"),
    ("docker", {"cgroup_driver": "cgroupfs"}, WARNS, "engine_cgroup_driver", "native.cgroupdriver=systemd"),
    ("containerd", {"cgroup_driver": "systemd", "kubelet": {"cgroup_driver": "cgroupfs"}}, WARNS, "engine_cgroup_driver",
     "SystemdCgroup = false"),
    ("containerd", {"cgroup_driver": "cgroupfs", "kubelet": {"cgroup_driver": None}}, NEVER, None, None),
    ("containerd", {"engines": [("containerd", False)], "kubelet": {"endpoint": "unix:///run/k0s/containerd.sock"}}, ALWAYS,
     "engine_unsupported", "/etc/k0s/containerd.d"),
]


@pytest.mark.parametrize(("name", "changes", "severities", "code", "words"), CASES)
def test_field_cases(name, changes, severities, code, words):
    npu = host(name, **changes)
    assert judged(npu, REGISTER) == ([(severities[0], code)] if code else [])
    assert judged(npu, NOTHING) == ([(severities[1], code)] if code else [])
    if words:
        (found,) = _findings_engine.judge(npu, {}, RUNTIME, REGISTER)
        assert words in f"{found['message']} {found['hint']}"
        assert found["hint"]


@pytest.mark.parametrize(("engines", "asked", "endpoint", "found"), [
    ([], "auto", None, [("error", "engine_missing")]),
    ([("docker", None)], "containerd", None, [("error", "engine_missing")]),
    ([("containerd", None), ("docker", None)], "auto", None, [("error", "engine_ambiguous")]),
    ([("crio", False), ("docker", False)], "auto", None, [("error", "engine_ambiguous")]),
    ([("containerd", None), ("docker", None)], "docker", None, []),
    ([("containerd", False), ("docker", False)], "auto", None, []),
    ([("containerd", True), ("docker", False)], "auto", "unix:///run/containerd/containerd.sock", []),
    ([("containerd", True), ("docker", False)], "docker", "unix:///run/containerd/containerd.sock", [("warning", "engine_not_kubelets")]),
    # An engine that is not there, or that nobody knows.
    ([("containerd", False), ("docker", False)], "auto", "unix:///run/crio/crio.sock", [("error", "engine_missing")]),
    ([("docker", False)], "auto", "unix:///run/odd.sock", [("error", "engine_missing")]),
    ([("docker", False)], "docker", "unix:///run/odd.sock", []),
    ([], "auto", "unix:///run/odd.sock", [("error", "engine_missing")]),
    ([("docker", False)], "auto", "unix:///var/snap/microk8s/common/run/containerd.sock", [("error", "engine_unsupported")]),
])
def test_which_engine(engines, asked, endpoint, found):
    npu = host(engines=engines, kubelet={"endpoint": endpoint})
    assert judged(npu, runtime=dict(RUNTIME, engine=asked)) == found


def test_two_engines_are_named_with_what_mends_it():
    npu = host(engines=[("containerd", None), ("docker", None)], kubelet={"endpoint": None, "source": "nobody knows"})
    (found,) = _findings_engine.judge(npu, {}, RUNTIME, REGISTER)
    assert "containerd and docker" in found["message"]
    assert "(nobody knows)" in found["message"]
    assert "npu_runtime_engine: containerd, or docker" in found["hint"]


def test_a_restart_that_ends_pods_may_be_allowed_or_left_out():
    npu = host("containerd", **KILLS)
    assert judged(npu, disruption="allow") == [("warning", "engine_kill_mode")]
    assert judged(npu, runtime=dict(RUNTIME, restart="never")) == [("note", "engine_kill_mode")]


def test_all_at_once_and_accepted_ones_are_warnings():
    npu = host(file=dict(FINE, conflicts=["hosts"], quoted=["ipv6"]), unit=unit(load="masked"))
    assert [code for _severity, code in judged(npu)] == ["engine_masked", "engine_flag_conflict", "engine_quoted_values"]
    assert judged(npu, accept_findings=["engine_masked"])[0] == ("warning", "engine_masked")


def test_an_engine_that_cannot_take_the_runtime_refuses_the_plan_before_anything_is_installed():
    npu = host(unit=unit(load="masked"))
    npu["engines"][0]["runtimes"] = {}
    npu["components"]["cann_toolkit"].update(version=None, state="absent")
    plan = _plan.make_plan(npu, READY)
    assert plan["packages"] == []
    assert [one["code"] for one in plan["refused"]] == ["engine_masked"]
