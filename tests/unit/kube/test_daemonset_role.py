# SPDX-License-Identifier: GPL-3.0-or-later
"""The role npu_device_plugin and its neighbours in DaemonSet mode, against the API stand-in. No node can be reached."""

import hashlib

import pytest
import yaml
from daemons_rig import LABEL, OBJECTS, agents, label, vendor
from kube_cluster import CLUSTER_ROLE, DAEMON_SET, NAMESPACE, POD
from test_device_plugin_role import PLAY, ROLE, node, playbook, text_of

REPO = ROLE.parents[1]
INCLUDE = "ansible.builtin.include_role"
ENGINE = [{"name": "containerd", "kubelet": True}]


def host(kubeconfig, name, **variables):
    """Variables of a node of the DaemonSet. Its service is not there."""
    there = node(ENGINE, {}, kubeconfig=kubeconfig, node=name, mode="daemonset", image="registry.example.com/npu-agent:1", runtime_class="",
                 pods_timeout=0)
    there["npu_preflight_observed"]["agent"].update(active=False, enabled=False, unit_sha256=None)
    there["npu_preflight_observed"].update(arch="x86_64", chips=[{"family": "a2"}])
    return {**there, **{f"npu_device_plugin_{key}": value for key, value in variables.items()}}


def serving(there, **agent):
    """The same node, where the agent is a service, or what else is said of it."""
    there["npu_preflight_observed"]["agent"].update(agent or {"active": True, "enabled": True, "unit_sha256": "x"})
    return there


def said(done):
    return " ".join((done.stdout + done.stderr).split())


def changed(api):
    return [path for method, path in api.requests if method in ("POST", "PUT", "PATCH", "DELETE") and "selfsubject" not in path]


def role(file):
    return {"tasks": [{INCLUDE: {"name": "npu.fleet.npu_device_plugin", "tasks_from": file}}]}


def test_the_objects_come_and_nobody_prints_a_token(api, kubeconfig, tmp_path):
    config = {"log_level": "debug", "endpoints": [{"resource": "x.example/y", "envs": {"TOKEN": "canary-7d1f"}}]}
    done = playbook(tmp_path, [PLAY], "-vvv", "--diff", hosts={"node-01": host(kubeconfig, "node-01", config=config)})
    text = said(done)
    # No kubelet makes these pods ready.
    assert "After 0 s the agent's pods are not ready on node-01" in text and label(api) == "daemonset", text[-3000:]
    assert agents(api) == [("npu-agent", "node-01"), ("npu-agent-access", "node-01")]
    assert "canary-7d1f" not in text and "UNREACHABLE" not in text


@pytest.mark.parametrize("refusal", ["foreign", *(pytest.param(name, marks=pytest.mark.long) for name in (
    "pod security", "vendor", "not joined"))])
def test_a_service_runs_on_where_the_cluster_refuses(api, kubeconfig, tmp_path, refusal):
    if refusal == "foreign":
        api.stores[CLUSTER_ROLE].create({"metadata": {"name": "npu-agent"}})
    elif refusal == "pod security":
        api.stores[NAMESPACE].create({"metadata": {"name": "npu-fleet", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}})
    elif refusal == "vendor":
        vendor(api)
    name = "not-there" if refusal == "not joined" else "node-01"
    done = playbook(tmp_path, [PLAY], hosts={name: serving(host(kubeconfig, name))})
    text = said(done)
    # It would be stopped on the node, which cannot be reached.
    assert done.returncode != 0 and "UNREACHABLE" not in text and "Look what stands in the way" in text, text
    assert changed(api) == []


def test_nodes_that_differ_are_refused_by_name(api, kubeconfig, tmp_path):
    others = {"log": {"config": {"log_level": "debug"}}, "memory": {"memory_max": "1G"}}
    done = playbook(tmp_path, [PLAY], hosts={"a-node": host(kubeconfig, "a-node"), **{
        name: host(kubeconfig, name, **options) for name, options in others.items()}})
    for name in others:
        assert f"{name} and a-node have different options of the agent" in said(done)


def test_an_engine_that_takes_no_image_is_refused_before_one_is_built(kubeconfig, tmp_path):
    there = host(kubeconfig, "node-01", image="")
    there["npu_preflight_observed"]["engines"] = [{"name": "isulad", "kubelet": True}]
    text = said(playbook(tmp_path, [PLAY], hosts={"node-01": there}))
    assert "container engine is isulad" in text and "npu_device_plugin_mode: systemd" in text and "Have the image" not in text


def test_a_kind_of_board_that_no_daemonset_is_for_is_refused(kubeconfig, tmp_path):
    there = host(kubeconfig, "node-01", profiles=["server", "310b"])
    there["npu_preflight_observed"]["chips"] = [{"family": "a5"}]
    text = said(playbook(tmp_path, [PLAY], hosts={"node-01": there}))
    assert "node-01 has boards of the kind a5" in text and "server, 310b only" in text and "Have the image" not in text


def test_a_refusal_of_the_settings_is_told(kubeconfig, tmp_path):
    words = {"cdi": "is not known to have CDI switched on", "memory": "needs an amount",
             "remote": "The backend remote is not served as a DaemonSet"}
    options = {"cdi": {"allocate_by": "cdi"}, "memory": {"memory_max": "infinity"}, "remote": {"config": {"backend": "remote"}}}
    text = said(playbook(tmp_path, [PLAY], hosts={name: host(kubeconfig, name, **options[name]) for name in words}))
    assert {name for name, told in words.items() if told not in text} == set()


# --- from one mode to the other

def with_pods(api, name="node-01"):
    for one in OBJECTS:
        kind = next(kind for kind in api.stores if kind.name == one["kind"])
        api.stores[kind].create(one)
    api.store.patch(name, "application/merge-patch+json", {"metadata": {"labels": {LABEL: "daemonset"}}})
    api.reconcile()


def right(kubeconfig, **variables):
    """A node whose service is as it should be, so that nothing has to be done there."""
    there = node([], {}, kubeconfig=kubeconfig, runtime_class="", pods_timeout=0, **variables)
    agent = there["npu_preflight_observed"]["agent"]
    assert agent["config_sha256"] == hashlib.sha256(text_of("config.yaml.j2", {}).encode()).hexdigest()
    return there


def test_a_service_takes_pods_away_by_the_nodes_label_though_none_serves(api, kubeconfig, tmp_path):
    with_pods(api)
    api.store.patch("node-01", "application/merge-patch+json", {"metadata": {"labels": {"rack": "r9"}}})
    assert agents(api) != []
    done = playbook(tmp_path, [PLAY], hosts={"node-01": right(kubeconfig)})
    assert done.returncode == 0, said(done)
    assert label(api) is None and api.stores[POD].list() == [] and api.stores[DAEMON_SET].list() == []


@pytest.mark.long
def test_where_others_are_kept_off_they_stay_off(api, kubeconfig, tmp_path):
    with_pods(api)
    done = playbook(tmp_path, [PLAY], hosts={"node-01": right(kubeconfig, take_over=True)})
    assert done.returncode == 0, said(done)
    assert label(api) == "systemd" and api.stores[POD].list() == []


@pytest.mark.long
def test_a_removal_without_a_cluster_is_refused_where_a_pod_serves(tmp_path):
    done = playbook(tmp_path, [role("remove.yml")], hosts={"node-01": serving(right(""), pod=True)})
    assert "kubectl label node node-01 npu.fleet/agent-" in said(done) and "UNREACHABLE" not in said(done)


# --- the driver

def driver_tasks(file):
    """Those tasks of the role npu_driver that are about our own agent's pod."""
    tasks = yaml.safe_load((REPO / "roles/npu_driver/tasks" / file).read_text())
    return [task for task in tasks if task.get(INCLUDE, {}).get("name") == "npu.fleet.npu_device_plugin"]


@pytest.mark.parametrize(("file", "variables"), [
    ("main.yml", {"npu_driver_steps": [{"component": "driver"}]}),
    pytest.param("roll_back.yml", {"__npu_driver_back": {"changes": 1}}, marks=pytest.mark.long),
])
def test_pods_go_before_the_driver_and_come_back(api, kubeconfig, tmp_path, file, variables):
    with_pods(api)
    pods = {pod["metadata"]["name"] for pod in api.stores[POD].list()}
    before, after = driver_tasks(file)
    held = []
    api.after = lambda verb, name: held.append(label(api)) if (verb, name) == ("patch", "node-01") else None
    done = playbook(tmp_path, [{"tasks": [before, after]}], hosts={"node-01": {**host(kubeconfig, "node-01"), **variables}})
    assert done.returncode == 0 and held == [None, "daemonset"], said(done)
    assert len(agents(api)) == 2 and not pods & {pod["metadata"]["name"] for pod in api.stores[POD].list()}


@pytest.mark.long
def test_nothing_is_asked_where_the_driver_stays(api, kubeconfig, tmp_path):
    done = playbook(tmp_path, [{"tasks": driver_tasks("main.yml")}],
                    hosts={"node-01": {**host(kubeconfig, "node-01"), "npu_driver_steps": []}})
    assert done.returncode == 0 and api.requests == []


@pytest.mark.long
def test_without_a_cluster_the_driver_is_not_changed_under_a_pod(tmp_path):
    there = {**serving(host("", "node-01"), pod=True), "npu_driver_steps": [{"component": "driver"}]}
    done = playbook(tmp_path, [{"tasks": driver_tasks("main.yml")}], hosts={"node-01": there})
    assert done.returncode != 0 and "kubectl label node node-01 npu.fleet/agent-" in said(done)


def test_our_own_pod_keeps_no_removal_from_beginning(tmp_path):
    (task,) = [task for task in yaml.safe_load((REPO / "playbooks/remove.yml").read_text())[0]["tasks"]
               if task.get("name") == "Refuse while chips are in use"]
    holder = {"pid": 7, "comm": "npu-agent", "device": "/dev/davinci_manager", "container": "abc", "unit": "abc.scope"}
    hosts = {}
    for name, space, pod in (("ours", "npu-fleet", "npu-agent-x7xqk"), ("theirs", "default", "npu-agent-x7xqk"),
                             ("job", "npu-fleet", "job")):
        containers = {"abc": {"name": "agent", "pod": pod, "namespace": space}}
        hosts[name] = {"npu_preflight_agent_namespace": "npu-fleet",
                       "npu_preflight_observed": {"holders": [holder], "preflight": {"containers": containers}}}
    text = said(playbook(tmp_path, [{"tasks": [task]}], hosts=hosts))
    assert {name for name in hosts if f"Chips of {name} are in use by npu-agent" in text} == {"theirs", "job"}
