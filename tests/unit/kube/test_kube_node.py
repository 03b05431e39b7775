# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to change on a Node: tables."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _kube_node
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError


def want(state="present", **given):
    return _kube_node.wanted({"state": state, **given})


def node(labels=None, annotations=None, taints=None, **more):
    return {"kind": "Node", "metadata": {"name": "n", "resourceVersion": "7", "labels": labels, "annotations": annotations},
            "spec": {"taints": taints} if taints is not None else {}, **more}


FOREIGN = {"key": "other", "value": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
OURS = {"key": "npu.fleet/maintenance", "value": "driver", "effect": "NoSchedule"}


@pytest.mark.parametrize(("have", "given", "patch"), [
    ({}, {}, None),
    ({"labels": {"a": "1"}}, {"labels": {"a": "1"}}, None),
    ({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": 3}}, {"metadata": {"labels": {"a": "3"}}}),
    ({}, {"labels": {"a": ""}}, {"metadata": {"labels": {"a": ""}}}),
    ({"labels": {"a": "1", "b": "2"}}, {"state": "absent", "labels": {"a": None, "c": None}}, {"metadata": {"labels": {"a": None}}}),
    ({"annotations": {"a": "1", "z": "1"}}, {"annotations": {"a": "two words", "b": "x"}},
     {"metadata": {"annotations": {"a": "two words", "b": "x"}}}),
    ({}, {"taints": [OURS]}, {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [OURS]}}),
    ({"taints": [FOREIGN]}, {"taints": [OURS]}, {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [FOREIGN, OURS]}}),
    ({"taints": [OURS, FOREIGN]}, {"taints": [OURS]}, None),
    ({"taints": [{"key": "a", "effect": "NoSchedule"}]}, {"taints": [{"key": "a", "effect": "NoSchedule"}]}, None),
    ({"taints": [OURS, FOREIGN]}, {"taints": [{**OURS, "value": "cann"}]},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [{**OURS, "value": "cann"}, FOREIGN]}}),
    # Another effect of the same key is another taint.
    ({"taints": [{**OURS, "effect": "NoExecute"}]}, {"taints": [OURS]},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [{**OURS, "effect": "NoExecute"}, OURS]}}),
    ({"taints": [OURS, FOREIGN]}, {"state": "absent", "taints": [{"key": "npu.fleet/maintenance", "effect": "NoExecute"}]}, None),
    ({"taints": [OURS, FOREIGN, {**OURS, "effect": "NoExecute"}]}, {"state": "absent", "taints": [{"key": "npu.fleet/maintenance"}]},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [FOREIGN]}}),
    ({"taints": [OURS]}, {"state": "absent", "taints": [{"key": "npu.fleet/maintenance"}]},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": []}}),
])
def test_patch(have, given, patch):
    assert _kube_node.plan(node(**have), want(**given))["patch"] == patch


SITE = {"key": "npu.fleet/not-ready", "value": "site", "effect": "NoSchedule"}
AGENT = {**SITE, "value": "agent"}


@pytest.mark.parametrize(("have", "given", "patch"), [
    # A taint that goes by its value, beside labels that come.
    ({"taints": [SITE, FOREIGN]}, {"labels": {"a": "1"}, "taints": [{**SITE, "state": "absent"}]},
     {"metadata": {"labels": {"a": "1"}, "resourceVersion": "7"}, "spec": {"taints": [FOREIGN]}}),
    ({"taints": [AGENT]}, {"taints": [{**SITE, "state": "absent"}]}, None),
    ({"taints": [AGENT]}, {"taints": [SITE]}, {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [SITE]}}),
    ({"taints": [AGENT]}, {"state": "absent", "taints": [SITE]}, None),
    ({"taints": [AGENT, {**SITE, "effect": "NoExecute"}]}, {"state": "absent", "taints": [SITE, AGENT]},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [{**SITE, "effect": "NoExecute"}]}}),
    # What was noted and is not given any more.
    ({"labels": {"a": "1", "b": "2"}, "annotations": {"r": "a=1,b=3"}}, {"labels": {}, "record": "r"},
     {"metadata": {"labels": {"a": None}, "annotations": {"r": None}}}),
    ({"labels": {"a": "1"}}, {"labels": {"a": "1", "b": "2"}, "record": "r"},
     {"metadata": {"labels": {"b": "2"}, "annotations": {"r": "b=2"}}}),
    ({"labels": {"b": "2"}, "annotations": {"r": "b=2"}}, {"labels": {"b": "2"}, "record": "r"}, None),
    ({"labels": {"a": "1", "b": "2", "c": "3"}, "annotations": {"r": "b=2"}}, {"state": "absent", "labels": {"c": None}, "record": "r"},
     {"metadata": {"labels": {"b": None, "c": None}, "annotations": {"r": None}}}),
    # Keys to be left alone, though they were noted.
    ({"labels": {"a": "1", "b": "2"}, "annotations": {"r": "a=1,b=2"}}, {"labels": {"b": "2"}, "record": "r", "keep": ["a"]},
     {"metadata": {"annotations": {"r": "b=2"}}}),
    ({"labels": {"a": "1"}}, {"labels": {"a": "2"}, "keep": ["a"], "record": "r"}, None),
    ({"labels": {"a": "1", "b": "2"}, "annotations": {"r": "a=1,b=2"}},
     {"state": "absent", "labels": {"a": None}, "record": "r", "keep": ["a"]},
     {"metadata": {"labels": {"b": None}, "annotations": {"r": None}}}),
    # A taint of another writer that counts as well as ours.
    ({"taints": [AGENT, FOREIGN]}, {"taints": [{**SITE, "replace": False}]}, None),
    ({"taints": [FOREIGN]}, {"taints": [{**SITE, "replace": False}]},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [FOREIGN, SITE]}}),
    ({"taints": [{**AGENT, "effect": "NoExecute"}]}, {"taints": [{**SITE, "replace": False}]},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [{**AGENT, "effect": "NoExecute"}, SITE]}}),
    ({"taints": [AGENT, FOREIGN]}, {"taints": [{**SITE, "replace": False}, OURS]},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [AGENT, FOREIGN, OURS]}}),
    # What others have set.
    ({"labels": {"a": "9"}}, {"labels": {"a": "1", "b": "2"}, "only_missing": ["a", "b"]}, {"metadata": {"labels": {"b": "2"}}}),
    # A Node that needs nothing.
    ({"labels": {"ready": "true"}}, {"taints": [SITE], "unless_labels": {"ready": "true"}}, None),
    ({"labels": {"ready": "false"}}, {"taints": [SITE], "unless_labels": {"ready": "true"}},
     {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [SITE]}}),
])
def test_patch_of_shared_nodes(have, given, patch):
    step = _kube_node.plan(node(**have), want(**given))
    assert step["patch"] == patch
    assert (step["before"] == step["after"]) == (patch is None)


def test_what_others_have_set_is_told():
    step = _kube_node.plan(node(labels={"a": "9", "b": "1"}), want(labels={"a": "1", "b": "1"}, only_missing=["a", "b"], record="r"))
    assert step["kept"] == {"a": "9"} and step["after"] == {"labels": {"a": "9", "b": "1"}, "annotations": {}, "taints": []}


def test_a_record_must_be_a_legal_key():
    with pytest.raises(FleetError, match="annotation key 'a b'"):
        want(record="a b")


def test_before_and_after_hold_the_given_keys_only():
    step = _kube_node.plan(node(labels={"a": "1", "foreign": "x"}, taints=[FOREIGN]), want(labels={"a": "2"}, taints=[OURS]))
    assert step["before"] == {"labels": {"a": "1"}, "annotations": {}, "taints": []}
    assert step["after"] == {"labels": {"a": "2"}, "annotations": {}, "taints": [OURS]}


@pytest.mark.parametrize("key", [
    "a", "A-b_c.d", "npu.fleet/family", "node-role.kubernetes.io/worker", "x" * 63, "a.b/" + "x" * 63, "a" * 63 + "." + "b" * 63 + "/x"])
def test_good_keys(key):
    assert want(labels={key: "v"})["labels"] == {key: "v"}


@pytest.mark.parametrize(("key", "rule"), [
    ("", "1 to 63"), ("-a", "1 to 63"), ("a-", "1 to 63"), ("a b", "1 to 63"), ("x" * 64, "1 to 63"), ("a\n", "1 to 63"),
    ("NPU.fleet/x", "lower-case DNS name"), ("/x", "lower-case DNS name"), ("a/b/c", "lower-case DNS name"),
    ("a_b/c", "lower-case DNS name"), ("a." * 130 + "b/x", "lower-case DNS name"),
    ("npu.fleet/", "1 to 63"), ("chips?", "1 to 63"), ("nüp", "1 to 63"), (7, "text"),
])
@pytest.mark.parametrize("what", ["label", "annotation", "taint"])
def test_bad_keys_are_refused_with_the_rule(what, key, rule):
    given = {"taints": [{"key": key, "effect": "NoSchedule"}]} if what == "taint" else {what + "s": {key: "v"}}
    with pytest.raises(FleetError) as caught:
        want(**given)
    assert caught.value.code == "invalid_" + what
    assert rule in str(caught.value)
    assert str(key) in str(caught.value)


@pytest.mark.parametrize("value", ["a b", "-a", "a.", "x" * 64, "ü", "a/b"])
def test_bad_values_are_refused_with_the_rule(value):
    for given in ({"labels": {"a": value}}, {"taints": [{"key": "a", "value": value, "effect": "NoSchedule"}]}):
        with pytest.raises(FleetError, match="empty, or 1 to 63 letters"):
            want(**given)


@pytest.mark.parametrize("value", [True, None, 1.1, ["a"], {"a": 1}])
def test_values_that_are_not_text_are_refused(value):
    for what in ("labels", "annotations"):
        with pytest.raises(FleetError, match="in quotes"):
            want(**{what: {"a": value}})


@pytest.mark.parametrize(("taints", "text"), [
    ([{"key": "a"}], "has no effect"),
    ([{"key": "a", "effect": "Never"}], "one of NoSchedule"),
    ([{"key": "a", "value": "1", "effect": "NoSchedule"}, {"key": "a", "value": "2", "effect": "NoSchedule"}], "given twice"),
])
def test_bad_taints(taints, text):
    with pytest.raises(FleetError, match=text) as caught:
        want(taints=taints)
    assert caught.value.code == "invalid_taint"


def test_annotations_have_a_limit_together():
    want(annotations={"a": "x" * 262143})
    with pytest.raises(FleetError, match="262144"):
        want(annotations={"a": "x" * 262144})


@pytest.mark.parametrize("name", ["", "Node-01", "node_01", "-n", "n-", "a" * 254, "n\n", "node 1", "../x"])
def test_bad_node_names(name):
    with pytest.raises(FleetError) as caught:
        _kube_node.node_name(name)
    assert caught.value.code == "invalid_node_name"


@pytest.mark.parametrize(("conditions", "ready"), [
    (None, None), ([], None), ([{"type": "Ready", "status": "True"}], True), ([{"type": "Ready", "status": "False"}], False),
    ([{"type": "Ready", "status": "Unknown"}], None), ([{"type": "DiskPressure", "status": "True"}], None)])
def test_ready_is_unknown_unless_reported(conditions, ready):
    assert _kube_node.status(node(status={"conditions": conditions}))["ready"] is ready
