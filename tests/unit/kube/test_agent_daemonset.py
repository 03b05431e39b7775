# SPDX-License-Identifier: GPL-3.0-or-later
"""agent_daemonset against the API stand-in: apply, refuse, take over, wait, take away."""

import copy
import json

import pytest
from daemons_rig import LABEL, MERGE, OBJECTS, VENDOR, actions, agents, label, status, vendor
from kube_cluster import CLUSTER_ROLE, CONFIG_MAP, DAEMON_SET, EVENT, NAMESPACE, POD

from ansible_collections.npu.fleet.plugins.module_utils import _kube_daemonset, _kube_foreign
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_manifest import manifests


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
    assert "--verb=create,update,delete --resource=daemonsets.apps" in text and ["get", "nodes", None] not in caught.value.observed
    assert [path for method, path in api.requests if method in ("POST", "PUT", "PATCH") and "selfsubject" not in path] == []


def test_look_tells_images_and_modes(api, do):
    images = [{"names": ["b@sha256:1", "b:1"], "sizeBytes": 1}, {"sizeBytes": 2}]
    api.store.patch("node-01", MERGE, {"status": {"images": images}}, "status")
    seen = do("look")
    assert seen["images"] == {"node-01": ["b:1", "b@sha256:1"]} and seen["modes"] == {"node-01": None}


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
    do("absent")
    assert "affinity" not in api.stores[DAEMON_SET].get(name)["spec"]["template"]["spec"]


def terms(api, name="kube-system/ascend-device-plugin-daemonset"):
    affinity = api.stores[DAEMON_SET].get(name)["spec"]["template"]["spec"].get("affinity") or {}
    return affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")


OFF = {"key": LABEL, "operator": "DoesNotExist"}


def test_a_plugin_whose_manifest_was_applied_again_is_taken_again(api, do):
    """The note of before is still there; only the affinity says whether it is kept off."""
    vendor(api)
    do("present", take_over=True)
    name = "kube-system/ascend-device-plugin-daemonset"
    note = api.stores[DAEMON_SET].get(name)["metadata"]["annotations"][_kube_foreign.BEFORE]
    api.stores[DAEMON_SET].patch(name, MERGE, {"spec": {"template": {"spec": {"affinity": None}}}})
    api.reconcile()
    assert ("ascend-device-plugin-daemonset", "node-01") in agents(api)
    with pytest.raises(FleetError):
        do("look")
    do("present", take_over=True)
    assert terms(api) == [{"matchExpressions": [OFF]}] and ("ascend-device-plugin-daemonset", "node-01") not in agents(api)
    assert api.stores[DAEMON_SET].get(name)["metadata"]["annotations"][_kube_foreign.BEFORE] == note


def test_each_term_has_to_keep_it_off(api, do):
    """One of them is enough to let a pod on a node."""
    vendor(api)
    do("present", take_over=True)
    new = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r7"]}]}
    required = {"nodeSelectorTerms": [*terms(api), new]}
    body = {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}}}}
    api.stores[DAEMON_SET].patch("kube-system/ascend-device-plugin-daemonset", MERGE, body)
    do("present", take_over=True)
    assert [OFF in term["matchExpressions"] for term in terms(api)] == [True, True]
    # What somebody has added since then is not ours to take back.
    do("absent")
    assert terms(api) == [{"matchExpressions": [{"key": "servertype", "operator": "NotIn", "values": ["soc"]}]}, new]


def test_an_expression_of_somebody_else_stays():
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [OFF]}]}}}
    daemon = {"metadata": {"name": "d", "namespace": "n"}, "spec": {"template": {"spec": {"affinity": affinity}}}}
    assert _kube_foreign.taken(daemon) is None and _kube_foreign.given_back(daemon) is None
    daemon["metadata"]["annotations"] = {_kube_foreign.BEFORE: "null"}
    assert _kube_foreign.given_back(daemon)["spec"]["template"]["spec"]["affinity"] is None
    gone = _kube_foreign.given_back({**daemon, "spec": {"template": {"spec": {}}}})
    assert gone["metadata"]["annotations"] == {_kube_foreign.BEFORE: None} and "spec" not in gone


# --- ready

def test_ready_waits_for_each_pod_of_each_node(api, do):
    do("present")
    with pytest.raises(FleetError) as caught:
        do("ready")
    assert "node-01" in str(caught.value) and "its pod is Pending" in str(caught.value)
    status(api, True, podIP="10.244.1.7")
    seen = do("ready")
    assert len(seen["pods"]["node-01"]) == 2 and seen["addresses"] == {"node-01": "10.244.1.7"}


def test_pods_of_before_are_not_counted(api, do):
    """The controller has not replaced them yet, or has not even read the change."""
    do("present")
    status(api, True)
    do("ready")
    newer = manifests({"image": "npu-agent:broken"})
    api.reconcile = lambda: None
    do("present", objects=newer)
    with pytest.raises(FleetError, match="its controller has not taken up the change"):
        do("ready", objects=newer)
    for name in ("npu-agent", "npu-agent-access"):
        api.stores[DAEMON_SET].patch(f"npu-fleet/{name}", MERGE, {"status": {"observedGeneration": 2}}, "status")
    with pytest.raises(FleetError, match="its pod is of an earlier template"):
        do("ready", objects=newer)


def test_a_node_that_no_daemonset_is_for_is_not_ready(api, do):
    nodes = {"node-01": "daemonset-a5"}
    do("present", nodes=nodes)
    with pytest.raises(FleetError, match=r"node-01 \(no DaemonSet of the agent is for its kind of board"):
        do("ready", nodes=nodes)


def test_a_pod_that_is_about_to_end_is_not_counted(api, do):
    do("present")
    status(api, True)
    for pod in api.stores[POD].list():
        api.stores[POD].patch(f"npu-fleet/{pod['metadata']['name']}", MERGE, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    with pytest.raises(FleetError) as caught:
        do("ready")
    assert caught.value.code == "daemonset_not_ready"


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
