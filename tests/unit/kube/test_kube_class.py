# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to change on a RuntimeClass: tables."""

import copy

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _kube_class
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

OURS = {"app.kubernetes.io/managed-by": "npu.fleet"}


def want(name="ascend", state="present", **given):
    return _kube_class.wanted({"name": name, "state": state, **given})


def found(handler="ascend", labels=None, scheduling=None, **more):
    metadata = {"name": "ascend", "resourceVersion": "7", "labels": labels or dict(OURS)}
    given = {} if scheduling is None else {"scheduling": scheduling}
    return {"kind": "RuntimeClass", "handler": handler, "metadata": metadata, **given, **more}


def test_create():
    planned = _kube_class.plan(None, want(handler="runc", node_selector={"a": 1}, tolerations=[{"key": "t", "operator": "Exists"}]))
    assert planned["action"] == "create" and planned["before"] == {}
    assert planned["body"] == {
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "ascend", "labels": OURS}, "handler": "runc",
        "scheduling": {"nodeSelector": {"a": "1"}, "tolerations": [{"key": "t", "operator": "Exists"}]}}
    assert planned["after"] == {"handler": "runc", "node_selector": {"a": "1"}, "tolerations": [{"key": "t", "operator": "Exists"}]}
    assert "scheduling" not in _kube_class.plan(None, want(node_selector={}, tolerations=[]))["body"]
    assert _kube_class.plan(None, want())["body"]["handler"] == "ascend"


@pytest.mark.parametrize(("have", "given", "scheduling"), [
    ({}, {}, None),
    ({"scheduling": {"nodeSelector": {"a": "1"}}}, {}, None),
    ({"scheduling": {"nodeSelector": {"a": "1"}}}, {"node_selector": {"a": 1}}, None),
    ({}, {"node_selector": {}, "tolerations": []}, None),
    ({"scheduling": {"tolerations": [{"key": "t"}]}}, {"tolerations": [{"key": "t"}]}, None),
    ({"scheduling": {"tolerations": [{"key": "t", "effect": "", "operator": "Equal"}]}}, {"tolerations": [{"key": "t"}]}, None),
    ({}, {"node_selector": {"a": "1"}}, {"nodeSelector": {"a": "1"}}),
    ({"scheduling": {"nodeSelector": {"a": "1", "b": "2"}}}, {"node_selector": {"a": "3"}}, {"nodeSelector": {"a": "3"}}),
    ({"scheduling": {"nodeSelector": {"a": "1"}, "tolerations": [{"key": "t"}]}}, {"node_selector": {}}, {"tolerations": [{"key": "t"}]}),
    ({"scheduling": {"nodeSelector": {"a": "1"}}}, {"node_selector": {}}, {}),
    ({"scheduling": {"tolerations": [{"key": "t"}], "newer": 1}}, {"tolerations": []}, {"newer": 1}),
    ({"scheduling": {"tolerations": [{"key": "t"}]}}, {"node_selector": {"a": "1"}, "tolerations": [{"key": "t"}]},
     {"nodeSelector": {"a": "1"}, "tolerations": [{"key": "t"}]}),
])
def test_update_keeps_everything_else(have, given, scheduling):
    """scheduling: as it is sent; None where nothing is to be sent."""
    before = found(labels={**OURS, "theirs": "x"}, overhead={"podFixed": {"cpu": "1"}}, **have)
    kept = copy.deepcopy(before)
    planned = _kube_class.plan(before, want(**given))
    assert before == kept
    if scheduling is None:
        assert planned["action"] is None and planned["body"] is None and planned["before"] == planned["after"]
        return
    assert planned["action"] == "update" and planned["before"] != planned["after"]
    body = planned["body"]
    assert body.get("scheduling", {}) == scheduling and ("scheduling" in body) == bool(scheduling)
    assert {key: value for key, value in body.items() if key != "scheduling"} == {k: v for k, v in kept.items() if k != "scheduling"}


@pytest.mark.parametrize("labels", [OURS, {"app.kubernetes.io/managed-by": "Helm"}, {"x": "y"}])
def test_another_handler_is_never_changed(labels):
    with pytest.raises(FleetError) as error:
        _kube_class.plan(found("nvidia", labels=labels), want())
    assert error.value.code == "runtime_class_handler" and error.value.observed == "nvidia"
    assert "kubectl delete runtimeclass ascend" in error.value.hint
    assert ("Somebody else made it" in error.value.message) == (labels is not OURS)


def test_what_somebody_else_made():
    theirs = found(labels={"app.kubernetes.io/managed-by": "Helm"}, scheduling={"nodeSelector": {"a": "1"}})
    assert _kube_class.plan(theirs, want())["action"] is None
    assert _kube_class.plan(theirs, want(node_selector={"a": "1"}))["action"] is None
    with pytest.raises(FleetError) as error:
        _kube_class.plan(theirs, want(node_selector={"a": "2"}))
    assert error.value.code == "runtime_class_foreign" and error.value.observed == {"node_selector": {"a": "1"}}
    assert "another node_selector than wanted" in error.value.message
    assert "kubectl label runtimeclass ascend app.kubernetes.io/managed-by=npu.fleet --overwrite" in error.value.hint


@pytest.mark.parametrize(("given", "code", "words"), [
    ({"name": "Ascend"}, "invalid_runtime_class", "lower-case DNS name"),
    ({"name": "a" * 254}, "invalid_runtime_class", "at most 253"),
    ({"name": "a\n"}, "invalid_runtime_class", "lower-case DNS name"),
    ({"name": "a.b"}, "invalid_runtime_class", "'a.b' cannot be the handler"),
    ({"handler": "Ascend"}, "invalid_runtime_class", "The handler is the name of the runtime"),
    ({"handler": "a" * 64}, "invalid_runtime_class", "1 to 63"),
    ({"node_selector": {"a b": "c"}}, "invalid_label", "'a b'"),
    ({"node_selector": {"a": True}}, "invalid_label", "in quotes"),
    ({"tolerations": [{"key": "a b", "operator": "Exists"}]}, "invalid_label", "'a b'"),
    ({"tolerations": [{"key": "a", "value": "b c"}]}, "invalid_label", "'b c'"),
    ({"tolerations": [{}]}, "invalid_toleration", "operator Exists"),
    ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "invalid_toleration", "has no value"),
    ({"tolerations": [{"key": "a", "effect": "Never"}]}, "invalid_toleration", "one of NoSchedule"),
    ({"tolerations": [{"key": "a", "effect": "NoSchedule", "toleration_seconds": 3}]}, "invalid_toleration", "NoExecute only"),
    ({"tolerations": [{"key": "a"}, {"key": "a", "operator": "Equal"}]}, "invalid_toleration", "given twice"),
])
def test_what_is_refused(given, code, words):
    with pytest.raises(FleetError) as error:
        want(**given)
    assert error.value.code == code and words in str(error.value)


def test_tolerations_in_the_form_of_the_api():
    given = [{"key": None, "operator": "Exists", "value": None, "effect": None, "toleration_seconds": None},
             {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "toleration_seconds": 0}]
    assert _kube_class.tolerations(given) == [
        {"operator": "Exists"}, {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 0}]


def test_users():
    def pod(name, runtime_class, phase="Running"):
        return {"metadata": {"namespace": "n", "name": name}, "spec": {"runtimeClassName": runtime_class}, "status": {"phase": phase}}

    pods = [pod("b", "ascend"), pod("a", "ascend", "Pending"), pod("c", "other"), pod("d", None), pod("e", "ascend", "Succeeded"),
            pod("f", "ascend", "Failed"), {"metadata": {"name": "g"}}]
    assert _kube_class.users(pods, "ascend") == ["n/a", "n/b"]


@pytest.mark.parametrize(("pods", "nodes", "words"), [
    ([], [], None),
    (["n/a"], ["x"], "used by 1 pods: n/a."),
    ([f"n/{number}" for number in range(7)], [], "used by 7 pods: n/0, n/1, n/2, n/3, n/4 and 2 more."),
    ([], ["node-2"], "1 of the cluster match 'npu.fleet/family': node-2."),
])
def test_what_keeps_it(pods, nodes, words):
    answer = _kube_class.keeps("ascend", pods, nodes, "npu.fleet/family")
    assert answer is None if words is None else words in answer
