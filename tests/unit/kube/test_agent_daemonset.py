# SPDX-License-Identifier: GPL-3.0-or-later
"""agent_daemonset against the API stand-in: apply, refuse, take over, wait, take away."""

import copy
import json

import pytest
from kube_cluster import CLUSTER_ROLE, CONFIG_MAP, DAEMON_SET, EVENT, NAMESPACE, POD
from kube_rig import ApiServer  # noqa: F401

from ansible_collections.npu.fleet.plugins.module_utils import _kube_daemonset, _kube_foreign
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.modules import agent_daemonset
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_manifest import manifests

MERGE = "application/merge-patch+json"
OBJECTS = manifests({"image": "npu-agent:1"})
LABEL = "npu.fleet/agent"
VENDOR = {"metadata": {"name": "ascend-device-plugin-daemonset", "namespace": "kube-system"}, "spec": {
    "selector": {"matchLabels": {"name": "ascend-device-plugin-ds"}}, "template": {
    "metadata": {"labels": {"name": "ascend-device-plugin-ds"}},
    "spec": {"containers": [{"name": "c", "image": "mirror.example.com:5000/ascend-k8sdeviceplugin:v7.3.0"}],
             "nodeSelector": {"rack": "r7"}, "tolerations": [{"operator": "Exists"}],
             "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                 {"matchExpressions": [{"key": "servertype", "operator": "NotIn", "values": ["soc"]}]}]}}}}}}}


@pytest.fixture
def do(api, kubeconfig):
    def call(state, *, objects=None, nodes=None, check_mode=False, **options):
        params = {"state": state, "objects": OBJECTS if objects is None else objects, "nodes": nodes or {"node-01": "daemonset"},
                  "take_over": False, "ready_timeout": 0, "kubeconfig": kubeconfig, "context": None, "timeout": 20, **options}
        return agent_daemonset.run(params, check_mode, lambda _values: None)

    return call


def actions(result):
    return {one["object"]: one["action"] for one in result["objects"]}


def label(api, name="node-01"):
    return api.store.get(name)["metadata"]["labels"].get(LABEL)


def agents(api):
    return sorted((pod["metadata"]["ownerReferences"][0]["name"], pod["spec"]["nodeName"]) for pod in api.stores[POD].list())


def vendor(api, **changes):
    made = api.stores[DAEMON_SET].create({**copy.deepcopy(VENDOR), **changes})
    api.reconcile()
    return made


def status(api, ready, **more):
    """What kubelet would say of all pods."""
    for pod in api.stores[POD].list():
        api.stores[POD].patch(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", MERGE, {"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}], **more}}, "status")


def test_all_is_made_and_the_second_time_nothing(api, do):
    first = do("present")
    assert first["changed"] and set(actions(first).values()) == {"create"} and first["labelled"] == ["node-01"]
    assert agents(api) == [("npu-agent", "node-01"), ("npu-agent-access", "node-01")]
    version = api.store.version()
    again = do("present")
    assert not again["changed"] and set(actions(again).values()) == {None} and api.store.version() == version


def test_check_mode_sends_nothing(api, do):
    version = api.store.version()
    assert do("present", check_mode=True)["changed"] and api.store.version() == version


def test_a_new_image_and_what_somebody_changed_are_brought_back(api, do):
    do("present")
    newer = do("present", objects=manifests({"image": "npu-agent:2"}))
    assert {name for name, action in actions(newer).items() if action} == {
        "DaemonSet npu-fleet/npu-agent", "DaemonSet npu-fleet/npu-agent-access"}
    api.stores[CLUSTER_ROLE].patch("npu-agent", MERGE, {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})
    api.stores[CONFIG_MAP].patch("npu-fleet/npu-agent", MERGE, {"data": {"other": "x"}})
    api.stores[DAEMON_SET].patch("npu-fleet/npu-agent", MERGE, {"metadata": {"annotations": {"theirs": "x"}}})
    back = do("present", objects=manifests({"image": "npu-agent:2"}))
    assert {name for name, action in actions(back).items() if action} == {"ClusterRole npu-agent", "ConfigMap npu-fleet/npu-agent"}
    assert api.stores[CLUSTER_ROLE].get("npu-agent")["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    assert set(api.stores[CONFIG_MAP].get("npu-fleet/npu-agent")["data"]) == {"config.yaml"}
    assert api.stores[DAEMON_SET].get("npu-fleet/npu-agent")["metadata"]["annotations"]["theirs"] == "x"


def test_defaults_of_the_server_are_no_difference(api, do):
    do("present")
    api.stores[DAEMON_SET].patch("npu-fleet/npu-agent", MERGE, {"spec": {"minReadySeconds": 0, "template": {"spec": {
        "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "restartPolicy": "Always"}}}})
    assert not do("present")["changed"]


@pytest.mark.parametrize(("store", "name"), [(CLUSTER_ROLE, "npu-agent"), (DAEMON_SET, "npu-fleet/npu-agent")])
def test_what_is_somebody_elses_is_refused_before_anything_is_changed(api, do, store, name):
    api.stores[NAMESPACE].create({"metadata": {"name": "npu-fleet"}})
    space = {"namespace": "npu-fleet"} if "/" in name else {}
    spec = {"template": {"metadata": {}, "spec": {"nodeSelector": {"no": "node"}}}}
    api.stores[store].create({"metadata": {"name": "npu-agent", **space}, "spec": spec})
    with pytest.raises(FleetError) as caught:
        do("present")
    assert caught.value.code == "kube_foreign" and "--overwrite" in caught.value.hint
    assert api.stores[CONFIG_MAP].list() == []
    do("absent")
    assert api.stores[store].has(name)


def test_a_namespace_of_an_admin_is_used_but_not_one_that_bars_the_pods(api, do):
    api.stores[NAMESPACE].create({"metadata": {"name": "npu-fleet"}})
    do("present")
    do("absent")
    assert api.stores[NAMESPACE].has("npu-fleet")
    api.stores[NAMESPACE].patch("npu-fleet", MERGE, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}})
    with pytest.raises(FleetError) as caught:
        do("present")
    assert caught.value.code == "kube_pod_security"
    assert "kubectl label namespace npu-fleet pod-security.kubernetes.io/enforce=privileged --overwrite" in str(caught.value)


def test_missing_rights_are_told_all_at_once(api, do, tmp_path):
    token = api.add_user("worker", {"*": ("get",), "daemonsets": ("get", "list")})
    with pytest.raises(FleetError) as caught:
        do("look", kubeconfig=str(api.kubeconfig(tmp_path / "worker", token)))
    text = str(caught.value)
    assert caught.value.code == "kube_forbidden" and "create clusterroles.rbac.authorization.k8s.io" in text and "patch nodes" in text
    assert "--verb=create,update --resource=daemonsets.apps" in text and ["get", "nodes", None] not in caught.value.observed
    assert [path for method, path in api.requests if method in ("POST", "PUT", "PATCH") and "selfsubject" not in path] == []


def test_look_tells_images_and_modes(api, do):
    images = [{"names": ["b@sha256:1", "b:1"], "sizeBytes": 1}, {"sizeBytes": 2}]
    api.store.patch("node-01", MERGE, {"status": {"images": images}}, "status")
    seen = do("look", nodes={"node-01": "daemonset", "not-joined": "daemonset"})
    assert seen["images"] == {"node-01": ["b:1", "b@sha256:1"]} and seen["modes"] == {"node-01": None} and seen["missing"] == ["not-joined"]


# --- other plugins

@pytest.mark.parametrize("image", [
    "ascend-k8sdeviceplugin:v7.3.0", "projecthami/ascend-device-plugin:v1", "r/ascend-device-plugin@sha256:0",
])
def test_the_vendors_plugin_is_refused_with_the_command(api, do, image):
    daemon = copy.deepcopy(VENDOR)
    daemon["spec"]["template"]["spec"]["containers"][0]["image"] = image
    daemon["metadata"]["name"] = "renamed"
    vendor(api, **daemon)
    for state in ("look", "present"):
        with pytest.raises(FleetError) as caught:
            do(state)
        assert "kubectl -n kube-system delete daemonset renamed" in str(caught.value) and "on node-01" in str(caught.value)
    assert label(api) is None and api.stores[CONFIG_MAP].list() == []


@pytest.mark.parametrize("spec", [
    {"nodeSelector": {"rack": "r8"}}, {"containers": [{"name": "c", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17"}]},
])
def test_what_serves_no_node_of_this_run_is_left_alone(api, do, spec):
    daemon = copy.deepcopy(VENDOR)
    daemon["metadata"]["name"] = "other"
    daemon["spec"]["template"]["spec"].update(spec)
    vendor(api, **daemon)
    assert do("look")["others"] == [] and do("present")["changed"]


def test_taken_over_and_given_back(api, do):
    api.add_node("node-02", labels={"rack": "r7"})
    before = vendor(api)["spec"]
    assert [node for _name, node in agents(api)] == ["node-01", "node-02"]
    first = do("present", take_over=True)
    assert actions(first)["DaemonSet kube-system/ascend-device-plugin-daemonset"] == "update"
    assert agents(api) == [("ascend-device-plugin-daemonset", "node-02"), ("npu-agent", "node-01"), ("npu-agent-access", "node-01")]
    assert not do("present", take_over=True)["changed"] and not do("present")["changed"]
    gone = do("absent")
    assert actions(gone)["DaemonSet kube-system/ascend-device-plugin-daemonset"] == "update"
    after = api.stores[DAEMON_SET].get("kube-system/ascend-device-plugin-daemonset")
    assert after["spec"] == before and _kube_foreign.BEFORE not in after["metadata"].get("annotations", {})
    assert [node for _name, node in agents(api)] == ["node-01", "node-02"]


def test_a_plugin_without_affinity_gets_none_back(api, do):
    daemon = copy.deepcopy(VENDOR)
    del daemon["spec"]["template"]["spec"]["affinity"]
    vendor(api, **daemon)
    do("present", take_over=True)
    assert {name for name, _node in agents(api)} == {"npu-agent", "npu-agent-access"}
    name = "kube-system/ascend-device-plugin-daemonset"
    taken = api.stores[DAEMON_SET].get(name)
    assert _kube_foreign.taken(taken) is None
    api.stores[DAEMON_SET].patch(name, MERGE, {"metadata": {"annotations": {_kube_foreign.BEFORE: "{"}}})
    with pytest.raises(FleetError, match="no JSON any more"):
        do("absent")
    api.stores[DAEMON_SET].patch(name, MERGE, {"metadata": {"annotations": {_kube_foreign.BEFORE: "null"}}})
    do("absent")
    assert "affinity" not in api.stores[DAEMON_SET].get(name)["spec"]["template"]["spec"]


# --- ready

def test_ready_waits_for_each_pod_of_each_node(api, do):
    do("present")
    with pytest.raises(FleetError) as caught:
        do("ready")
    assert "node-01" in str(caught.value) and "its pod is Pending" in str(caught.value)
    status(api, True, podIP="10.244.1.7")
    seen = do("ready")
    assert len(seen["pods"]["node-01"]) == 2 and seen["addresses"] == {"node-01": "10.244.1.7"}


@pytest.mark.parametrize(("more", "words"), [
    ({"containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
     "container agent waits: ImagePullBackOff no such image"),
    ({"containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                             "lastState": {"terminated": {"exitCode": 135, "reason": "Error"}}}]}, "container agent ended with 135"),
    ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed due to no device node"}, "no device node"),
    ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient npu.fleet/agent"}]},
     "not scheduled: Insufficient npu.fleet/agent"),
])
def test_why_a_pod_is_not_ready(api, do, more, words):
    do("present")
    status(api, False, **more)
    with pytest.raises(FleetError) as caught:
        do("ready")
    assert words in str(caught.value) and "describe daemonset" in caught.value.hint


def test_where_no_pod_was_made_the_events_say_why(api, do):
    """A namespace whose Pod Security bars them; taints."""
    do("present")
    api.store.patch("node-01", MERGE, {"spec": {"taints": [{"key": "other/taint", "effect": "NoExecute"}]}})
    api.reconcile()
    assert agents(api) == []
    with pytest.raises(FleetError, match="does the Node have taints"):
        do("ready")
    barred = 'pods "npu-agent-" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes'
    for name, text in (("npu-agent", barred), ("x", "no")):
        api.stores[EVENT].create({"metadata": {"name": f"e-{name}", "namespace": "npu-fleet"}, "type": "Warning", "reason": "FailedCreate",
                                  "message": text, "involvedObject": {"kind": "DaemonSet", "name": name}})
    with pytest.raises(FleetError) as caught:
        do("ready")
    assert "DaemonSet npu-agent: FailedCreate: " in str(caught.value) and "violates PodSecurity" in str(caught.value)


def test_only_the_daemon_sets_of_a_nodes_kind_are_waited_for(api, do):
    api.add_node("board")
    objects = manifests({"image": "npu-agent:1", "profiles": ["server", "310b"]})
    nodes = {"node-01": "daemonset", "board": "daemonset-310b"}
    do("present", objects=objects, nodes=nodes)
    assert agents(api) == [("npu-agent", "node-01"), ("npu-agent-310b", "board"), ("npu-agent-access", "board"),
                           ("npu-agent-access", "node-01")]
    status(api, True)
    assert sorted(map(len, do("ready", objects=objects, nodes=nodes)["pods"].values())) == [2, 2]


# --- away

def test_the_objects_go_with_the_last_node(api, do):
    api.add_node("node-02")
    nodes = {"node-01": "daemonset", "node-02": "daemonset"}
    do("present", nodes=nodes)
    first = do("absent", nodes={"node-02": "daemonset"})
    assert first["labelled"] == ["node-02"] and "1 other Nodes" in first["kept"] and {node for _name, node in agents(api)} == {"node-01"}
    last = do("absent")
    assert last["kept"] is None and set(actions(last).values()) == {"delete"}
    assert not any(api.stores[kind].list() for kind in (DAEMON_SET, CONFIG_MAP, CLUSTER_ROLE, NAMESPACE, POD))
    assert not do("absent")["changed"]


def test_a_pod_that_does_not_end_is_named(api, do):
    do("present")
    api.reconcile = lambda: None
    with pytest.raises(FleetError) as caught:
        do("absent")
    assert caught.value.code == "daemonset_not_gone" and "--force" in caught.value.hint


def test_a_removal_in_check_mode(api, do):
    do("present")
    version = api.store.version()
    assert do("absent", check_mode=True)["changed"] and api.store.version() == version


def test_no_secret_is_in_a_result(api, do):
    assert "canary" not in json.dumps([do("look"), do("present"), do("absent")])


def test_waiting_ends_when_the_pods_are_ready(api, do, kubeconfig):
    do("present")
    from ansible_collections.npu.fleet.plugins.module_utils import _kube

    cluster = _kube_daemonset.Cluster(_kube.load_configuration(kubeconfig, None), 20, {"node-01": "daemonset"})
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            status(api, True)

    assert _kube_daemonset.ready(cluster, OBJECTS, 1000, sleep=sleep)["pods"] and len(slept) == 2
