# SPDX-License-Identifier: GPL-3.0-or-later
"""The module runtime_class, from its arguments to its result, through the real kubernetes package against the stand-in."""

import json
import threading

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from kube_rig import TOKEN, ApiError

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_class, _kube_class_api
from ansible_collections.npu.fleet.plugins.modules import runtime_class

MERGE = "application/merge-patch+json"
OURS = {"app.kubernetes.io/managed-by": "npu.fleet"}


@pytest.fixture
def run(kubeconfig, capsys):
    def call(**arguments):
        with patch_module_args({"name": "ascend", "kubeconfig": kubeconfig, **arguments}), pytest.raises(SystemExit) as end:
            runtime_class.main()
        text = capsys.readouterr().out
        assert TOKEN not in text
        result = json.loads(text)
        assert bool(result.get("failed")) == bool(end.value.code)
        return result
    return call


def methods(api):
    return [method for method, _path in api.requests]


def get(api):
    return api.runtime_classes.get("ascend")


def make(api, labels=None, handler="ascend", **more):
    return api.runtime_classes.create({"metadata": {"name": "ascend", "labels": labels or {}}, "handler": handler, **more})


def test_life_of_one(api, run):
    result = run(node_selector={"npu.fleet/family": "a2"}, tolerations=[{"key": "t", "operator": "Exists"}])
    assert (result["changed"], result["action"], result["before"]) == (True, "create", {})
    assert result["after"] == {"handler": "ascend", "node_selector": {"npu.fleet/family": "a2"},
                               "tolerations": [{"key": "t", "operator": "Exists"}]}
    assert result["diff"]["before"] == {} and result["diff"]["after"] == result["after"]
    made = get(api)
    assert made["metadata"]["labels"] == OURS and made["handler"] == "ascend"
    api.requests.clear()
    result = run(node_selector={"npu.fleet/family": "a2"}, tolerations=[{"key": "t", "operator": "Exists"}])
    assert (result["changed"], result["action"]) == (False, None) and methods(api) == ["GET"]
    theirs = {"labels": {"theirs": "x"}, "annotations": {"a": "b"}}
    api.runtime_classes.patch("ascend", MERGE, {"metadata": theirs})
    assert run()["changed"] is False
    assert run(node_selector={"npu.fleet/family": "a3"})["action"] == "update"
    changed = get(api)
    assert changed["scheduling"] == {"nodeSelector": {"npu.fleet/family": "a3"}, "tolerations": [{"key": "t", "operator": "Exists"}]}
    assert changed["metadata"]["labels"] == {**OURS, "theirs": "x"} and changed["metadata"]["annotations"] == {"a": "b"}
    result = run(state="absent")
    assert (result["changed"], result["action"], result["after"], result["kept"]) == (True, "delete", {}, None)
    assert not api.runtime_classes.has("ascend")
    assert run(state="absent")["changed"] is False


def test_check_mode_sends_nothing(api, run):
    result = run(_ansible_check_mode=True)
    assert result["changed"] and result["after"] == {"handler": "ascend"}
    make(api, OURS)
    assert run(node_selector={"a": "1"}, _ansible_check_mode=True)["action"] == "update"
    assert run(state="absent", _ansible_check_mode=True)["action"] == "delete"
    assert set(methods(api)) == {"GET"}


def test_another_handler_is_an_error_with_the_command(api, run):
    make(api, OURS, handler="old")
    version = api.store.version()
    result = run()
    assert result["error"]["code"] == "runtime_class_handler" and "kubectl delete runtimeclass ascend" in result["msg"]
    assert run(_ansible_check_mode=True)["error"]["code"] == "runtime_class_handler"
    assert api.store.version() == version


def test_somebody_elses(api, run):
    make(api, {"app.kubernetes.io/managed-by": "Helm"})
    version = api.store.version()
    assert run()["changed"] is False
    assert run(node_selector={"a": "1"})["error"]["code"] == "runtime_class_foreign"
    result = run(state="absent")
    assert result["changed"] is False and "made by somebody else" in result["kept"] and result["after"] == {"handler": "ascend"}
    assert api.store.version() == version


def test_one_that_is_used_stays(api, run):
    make(api, OURS)
    for number in range(3):
        api.add_pod(f"train-{number}", "jobs", "ascend", phase="Succeeded" if number == 2 else "Running")
    api.add_pod("web", "default")
    result = run(state="absent")
    assert result["error"]["code"] == "runtime_class_used" and "used by 2 pods: jobs/train-0, jobs/train-1." in result["msg"]
    result = run(state="absent", when_used="keep")
    assert not result["changed"] and result["users"] == ["jobs/train-0", "jobs/train-1"] and "used by 2 pods" in result["kept"]
    assert api.runtime_classes.has("ascend")
    api.pods.clear()
    assert run(state="absent", when_used="keep")["action"] == "delete"


def test_one_for_other_nodes_stays(api, run):
    make(api, OURS)
    api.add_node("node-02", labels={"npu.fleet/family": "a2"})
    result = run(state="absent", when_used="keep", unless_nodes="npu.fleet/family")
    assert not result["changed"] and "serves other nodes: 1 of the cluster match 'npu.fleet/family': node-02." in result["kept"]
    assert run(state="absent", unless_nodes="npu.fleet/family")["error"]["code"] == "runtime_class_used"
    assert run(state="absent", unless_nodes="npu.fleet/family=a3")["action"] == "delete"


def test_all_pages_of_pods_are_read(api, run, monkeypatch):
    make(api, OURS)
    for number in range(5):
        api.add_pod(f"p{number}", runtime_class="ascend" if number == 4 else None)
    monkeypatch.setattr(_kube_class_api, "_PAGE", 2)
    assert run(state="absent", when_used="keep")["users"] == ["default/p4"]
    assert api.requests.count(("GET", "/api/v1/pods")) == 3


def once(api, meddle):
    """Let somebody else write between our read and what we send."""
    def after(verb, _name):
        if verb == "get":
            api.after = lambda *_: None
            meddle()
    api.after = after


def test_another_writer_between_read_and_update(api, run):
    make(api, OURS)
    once(api, lambda: api.runtime_classes.patch("ascend", MERGE, {"metadata": {"labels": {"theirs": "x"}}}))
    assert run(node_selector={"a": "1"})["action"] == "update"
    assert get(api)["metadata"]["labels"] == {**OURS, "theirs": "x"} and get(api)["scheduling"] == {"nodeSelector": {"a": "1"}}
    assert methods(api) == ["GET", "PUT", "GET", "PUT"]


def test_another_maker_between_read_and_create(api, run, monkeypatch):
    real = api.runtime_classes.create

    def create(sent, dry_run=False):
        monkeypatch.setattr(api.runtime_classes, "create", real)
        make(api)
        return real(sent, dry_run)

    monkeypatch.setattr(api.runtime_classes, "create", create)
    result = run()
    assert result["changed"] is False and methods(api) == ["GET", "POST", "GET"]


def test_one_that_goes_between_read_and_update(api, run):
    make(api, OURS)
    once(api, lambda: api.runtime_classes.delete("ascend"))
    assert run(node_selector={"a": "1"})["action"] == "create"
    assert methods(api) == ["GET", "PUT", "GET", "POST"]


def test_one_that_was_made_anew_is_not_deleted_unseen(api, run):
    make(api, OURS)

    def meddle():
        api.runtime_classes.delete("ascend")
        make(api, {"theirs": "x"})

    once(api, meddle)
    result = run(state="absent")
    assert result["changed"] is False and "somebody else" in result["kept"] and api.runtime_classes.has("ascend")


def test_endless_conflict_ends_at_the_deadline(api, run):
    make(api, OURS)
    count = iter(range(10 ** 6))

    def meddle(verb, _name):
        api.runtime_classes.patch("ascend", MERGE, {"metadata": {"annotations": {"n": str(next(count))}}})

    api.after = meddle
    result = run(timeout=1, node_selector={"a": "1"})
    assert result["error"]["code"] == "kube_conflict" and "managed-fields" in result["msg"]


def test_many_makers_at_once(api, kubeconfig):
    results = []

    def one():
        want = _kube_class.wanted({"name": "ascend", "state": "present"})
        results.append(_kube_class_api.present(_kube_class_api.ClassApi(_kube.load_configuration(kubeconfig, None), 20), want)["action"])

    threads = [threading.Thread(target=one) for _unused in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results, key=str) == [None] * 5 + ["create"]


@pytest.mark.parametrize("case", [
    ({}, {}, "lacks the verb 'get' on resource 'runtimeclasses'"),
    ({"runtimeclasses": ("get",)}, {}, "lacks the verb 'create' on resource 'runtimeclasses'"),
    ({"runtimeclasses": ("get", "delete")}, {"state": "absent"}, "forbids to list the pods of the cluster"),
    ({"runtimeclasses": ("get",), "pods": ("list",)}, {"state": "absent", "unless_nodes": "a"}, "forbids to list the nodes of the cluster"),
    ({"runtimeclasses": ("get",), "pods": ("list",)}, {"state": "absent"}, "lacks the verb 'delete' on resource 'runtimeclasses'"),
])
def test_missing_rights_are_named(api, run, tmp_path, case):
    verbs, arguments, words = case
    if arguments:
        make(api, OURS)
    weak = str(api.kubeconfig(tmp_path / "weak", api.add_user("weak", verbs)))
    result = run(kubeconfig=weak, **arguments)
    assert result["error"]["code"] == "kube_forbidden" and words in result["msg"] and "kubectl create clusterrole" in result["msg"]


def test_bad_values_are_refused_before_the_api_is_asked(api, run):
    assert run(name="Ascend")["error"]["code"] == "invalid_runtime_class"
    assert run(tolerations=[{"operator": "Equal"}])["error"]["code"] == "invalid_toleration"
    assert api.requests == []


def test_an_answer_of_something_else(api, run, monkeypatch):
    monkeypatch.setattr(api.runtime_classes, "get", lambda _name: {"hello": "world"})
    assert "does not answer as a Kubernetes API: asked for the RuntimeClass 'ascend'" in run()["msg"]


def test_a_refusal_of_the_server_is_told(api, run, monkeypatch):
    def create(*_args, **_kwargs):
        raise ApiError(422, "Invalid", f'admission webhook "x" denied the request for {TOKEN}')

    monkeypatch.setattr(api.runtime_classes, "create", create)
    result = run()
    assert result["error"]["code"] == "kube_error" and "HTTP 422" in result["msg"] and "webhook" in result["msg"]


def test_a_webhook_that_changes_it_is_seen(api, run, monkeypatch):
    real = api.runtime_classes.create
    other = {"scheduling": {"nodeSelector": {"b": "1"}}}
    monkeypatch.setattr(api.runtime_classes, "create", lambda sent, dry_run=False: real({**sent, **other}, dry_run))
    result = run(node_selector={"a": "1"})
    assert result["error"]["code"] == "kube_error" and "other values than were sent" in result["msg"]


def test_keys_of_the_result_are_the_documented_ones(api, run):
    documented = yaml.safe_load(runtime_class.RETURN)
    result = run(node_selector={"a": "1"}, tolerations=[{"operator": "Exists"}])
    assert set(result) - {"invocation", "changed", "diff"} == set(documented) - {"error"}
    assert set(result["after"]) == set(documented["after"]["contains"])
    assert set(run(name="Ascend")["error"]) == set(documented["error"]["contains"])
    assert set(run(state="absent")) - {"invocation", "changed", "diff"} == set(documented) - {"error"}


def test_missing_package_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(_kube, "IMPORT_ERROR", "Traceback ...")
    assert "pip install kubernetes" in run()["msg"]
