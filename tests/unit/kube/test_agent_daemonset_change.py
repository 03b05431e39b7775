# SPDX-License-Identifier: GPL-3.0-or-later
"""agent_daemonset: what is refused before anything is changed, what is wanted no more, drift, and pods that go for a while."""

import base64
import copy
import json

import api_server
import kube_cluster
import pytest
from daemons_rig import LABEL, MERGE, OBJECTS, actions, agents, label
from kube_cluster import CLUSTER_ROLE, CONFIG_MAP, DAEMON_SET, NAMESPACE, POD, POLICY, POLICY_BINDING, SECRET

from ansible_collections.npu.fleet.plugins.module_utils import _kube_object
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.modules import agent_daemonset
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_manifest import manifests, whole_config, without_secrets

# --- what is refused before a service is stopped or a label put

def sent(api):
    return [path for method, path in api.requests if method in ("POST", "PUT", "PATCH", "DELETE") and "selfsubject" not in path]


def test_look_finds_each_refusal_of_present(api, do):
    api.stores[CLUSTER_ROLE].create({"metadata": {"name": "npu-agent"}})
    with pytest.raises(FleetError) as caught:
        do("look")
    assert caught.value.code == "kube_foreign"
    api.stores[CLUSTER_ROLE].delete("npu-agent")
    api.stores[NAMESPACE].create({"metadata": {"name": "npu-fleet", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    with pytest.raises(FleetError) as caught:
        do("look")
    assert caught.value.code == "kube_pod_security" and sent(api) == []


def test_a_node_that_has_not_joined_is_named_at_once(api, do):
    for state in ("look", "present", "resumed"):
        with pytest.raises(FleetError) as caught:
            do(state, nodes={"node-01": "daemonset", "not-joined": "daemonset"})
        assert caught.value.code == "node_not_found" and "no Node not-joined" in str(caught.value)
        assert "kubectl get nodes" in caught.value.hint
    assert sent(api) == [] and label(api) is None


def test_a_cluster_without_the_policies_is_refused_in_words(api, do, monkeypatch):
    place = "/apis/admissionregistration.k8s.io/v1"
    old = {**api_server.DISCOVERY[place], "resources": []}
    monkeypatch.setitem(api_server.DISCOVERY, place, old)
    for kind in (POLICY, POLICY_BINDING):
        monkeypatch.delitem(kube_cluster.KINDS, (kind.group, kind.version, kind.resource))
    for state in ("look", "present"):
        with pytest.raises(FleetError) as caught:
            do(state)
        assert caught.value.code == "kube_too_old" and "any pod of any tenant" in str(caught.value)
        assert "npu_device_plugin_access: privileged" in caught.value.hint and "npu_device_plugin_confine: false" in caught.value.hint
    assert sent(api) == []
    chosen = manifests({"image": "npu-agent:1", "confine": False})
    do("look", objects=chosen)
    assert do("present", objects=chosen)["changed"] and not do("present", objects=chosen)["changed"]
    assert do("absent", objects=chosen)["kept"] is None


def test_nodes_with_another_processor_are_refused(api, do):
    do("look", arch="amd64")
    api.add_node("arm", labels={"kubernetes.io/arch": "arm64"})
    with pytest.raises(FleetError) as caught:
        do("look", arch="amd64", nodes={"node-01": "daemonset", "arm": "daemonset"})
    assert caught.value.code == "mixed_architectures" and "arm64 on arm" in str(caught.value) and "manifest" in caught.value.hint
    do("look", arch="amd64")  # without our label it has no pod
    api.store.patch("arm", MERGE, {"metadata": {"labels": {LABEL: "daemonset"}}})
    with pytest.raises(FleetError, match="arm64 on arm"):
        do("look", arch="amd64")
    do("look")  # an image of a registry may be for both


def test_the_objects_are_there_before_a_node_is_labelled(api, do):
    do("present")
    posts = [place for place, (method, path) in enumerate(api.requests) if method == "POST" and path.endswith("/daemonsets")]
    labelled = [place for place, (method, path) in enumerate(api.requests) if method == "PATCH" and path.endswith("/nodes/node-01")]
    assert max(posts) < min(labelled)


# --- what is wanted no more

@pytest.mark.parametrize("options", [
    {"namespace": "other"}, {"access": "privileged"}, {"confine": False}, {"profiles": ["310b"]}, {"labels": False},
])
def test_what_is_wanted_no_more_goes(api, do, options):
    everything = {"image": "npu-agent:1", "profiles": ["server", "310b"]}
    do("present", objects=manifests(everything))
    new = manifests({**everything, **options})
    assert do("present", objects=new, check_mode=True)["changed"]
    do("present", objects=new)
    there = {(kind.name, one["metadata"].get("namespace"), one["metadata"]["name"]) for kind in kube_cluster.MORE if kind is not POD
             for one in api.stores[kind].list()}
    assert there == {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in new}
    assert not do("present", objects=new)["changed"]


def test_the_removal_takes_what_an_earlier_namespace_has(api, do):
    do("present", objects=manifests({"image": "npu-agent:1", "namespace": "before"}))
    do("absent")
    assert not any(api.stores[kind].list() for kind in kube_cluster.MORE)


def test_what_another_tool_made_with_our_owners_label_stays(api, do):
    labels = {"app.kubernetes.io/managed-by": "npu.fleet"}
    api.stores[CONFIG_MAP].create({"metadata": {"name": "x", "namespace": "kube-system", "labels": labels}})
    do("present")
    do("absent")
    assert api.stores[CONFIG_MAP].has("kube-system/x")


@pytest.mark.parametrize(("where", "change"), [
    ((), {"hostPID": True}), ((), {"hostNetwork": True}), ((), {"securityContext": {"fsGroup": 1}}),
    ((), {"initContainers": [{"name": "i", "image": "x"}]}),
    (("containers", 0), {"command": ["sh"]}), (("containers", 0, "securityContext"), {"procMount": "Unmasked"}),
    (("containers", 0, "securityContext", "capabilities"), {"more": ["SYS_ADMIN"]}),
])
def test_rights_that_somebody_added_are_taken_back(api, do, where, change):
    do("present")
    now = api.stores[DAEMON_SET].get("npu-fleet/npu-agent")
    place = now["spec"]["template"]["spec"]
    for key in where:
        place = place[key]
    place.update(change)
    api.stores[DAEMON_SET].replace("npu-fleet/npu-agent", now)
    assert actions(do("present"))["DaemonSet npu-fleet/npu-agent"] == "update"
    assert not do("present")["changed"]


def test_what_newer_servers_fill_in_is_no_drift(api, do):
    do("present")
    now = api.stores[DAEMON_SET].get("npu-fleet/npu-agent")
    spec = now["spec"]["template"]["spec"]
    spec.update(securityContext={}, serviceAccount="npu-agent", hostPID=False)
    spec["containers"][0]["securityContext"]["procMount"] = "Default"
    api.stores[DAEMON_SET].replace("npu-fleet/npu-agent", now)
    assert not do("present")["changed"]


def test_a_key_that_is_wanted_no_more_is_noticed(api, do):
    do("present", objects=manifests({"image": "npu-agent:1", "pull_secrets": ["mirror"]}))
    do("present")
    assert "imagePullSecrets" not in api.stores[DAEMON_SET].get("npu-fleet/npu-agent")["spec"]["template"]["spec"]
    earlier = copy.deepcopy(OBJECTS)
    for one in earlier:
        if one["kind"] == "DaemonSet":
            one["spec"]["minReadySeconds"] = 5  # outside of the template
            one["metadata"]["annotations"][_kube_object.SPEC] = _kube_object.digest(one)
    do("present", objects=earlier)
    do("present")
    assert "minReadySeconds" not in api.stores[DAEMON_SET].get("npu-fleet/npu-agent")["spec"]


# --- for a while

def test_pods_go_for_a_change_of_the_driver_and_come_back(api, do):
    do("present", nodes={"node-01": "daemonset-310b"}, objects=manifests({"image": "npu-agent:1", "profiles": ["server", "310b"]}))
    assert do("paused", check_mode=True, nodes={"node-01": ""})["modes"] == {"node-01": "daemonset-310b"} and agents(api) != []
    seen = do("paused", nodes={"node-01": ""})
    assert seen["changed"] and agents(api) == [] and api.stores[DAEMON_SET].has("npu-fleet/npu-agent-310b")
    assert not do("paused", nodes={"node-01": ""})["changed"]
    assert do("resumed", nodes=seen["modes"])["changed"] and label(api) == "daemonset-310b" and len(agents(api)) == 2


def test_a_pod_that_does_not_end_holds_up_the_driver(api, do):
    do("present")
    api.reconcile = lambda: None
    with pytest.raises(FleetError) as caught:
        do("paused", nodes={"node-01": ""})
    assert caught.value.code == "daemonset_not_gone" and "kubectl -n npu-fleet delete pod npu-agent" in caught.value.hint


def test_a_service_that_keeps_others_off_goes_on_to(api, do):
    do("present")
    do("paused", nodes={"node-01": "systemd"})
    assert label(api) == "systemd" and not do("paused", nodes={"node-01": ""})["changed"] and label(api) == "systemd"


def test_a_node_that_never_had_pods_costs_one_question(api, do):
    do("paused", nodes={"node-01": ""})
    assert [(method, path) for method, path in api.requests if "version" not in path] == [("GET", "/api/v1/nodes/node-01")]


def test_tokens_come_apart_from_the_objects(api, do):
    options = {"image": "npu-agent:1", "config": {"endpoints": [{"envs": {"TOKEN": "canary"}}]}}
    parts = {"objects": without_secrets(options), "config": whole_config(options)}
    said = json.dumps([parts["objects"], do("look", objects=parts["objects"]), do("present", **parts), do("present", **parts)])
    assert "canary" not in said and not do("present", **parts)["changed"]
    kept = api.stores[SECRET].get("npu-fleet/npu-agent")["data"]["config.yaml"]
    assert base64.b64decode(kept).decode() == whole_config(options)
    assert agent_daemonset.argument_spec()["config"]["no_log"] is True
