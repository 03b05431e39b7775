# SPDX-License-Identifier: GPL-3.0-or-later
"""RuntimeClasses and pods in the stand-in, as the real server has them: strategy and validation of node.k8s.io/v1."""

import json
import urllib.error
import urllib.request

import pytest
from kube_rig import TOKEN

CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
ASCEND = CLASSES + "/ascend"
MERGE = "application/merge-patch+json"


@pytest.fixture
def ask(api):
    def call(method, path, body=None, content_type="application/json", token=TOKEN):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(api.url + path, data, {"Content-Type": content_type}, method=method)  # noqa: S310
        request.add_header("Authorization", "Bearer " + token)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
    return call


def body(name="ascend", handler="ascend", **more):
    return {"metadata": {"name": name}, "handler": handler, **more}


def test_life_of_one(ask):
    assert ask("GET", ASCEND)[1]["message"] == 'runtimeclasses.node.k8s.io "ascend" not found'
    status, made = ask("POST", CLASSES, body())
    assert (status, made["kind"], made["apiVersion"]) == (201, "RuntimeClass", "node.k8s.io/v1")
    assert "spec" not in made and "status" not in made
    assert ask("GET", ASCEND) == (200, made)
    status, answer = ask("POST", CLASSES, body())
    assert (status, answer["reason"]) == (409, "AlreadyExists")
    assert answer["message"] == 'runtimeclasses.node.k8s.io "ascend" already exists'
    listed = ask("GET", CLASSES)[1]
    assert (listed["kind"], listed["apiVersion"], listed["items"]) == ("RuntimeClassList", "node.k8s.io/v1", [made])
    made["metadata"]["labels"] = {"a": "b"}
    status, changed = ask("PUT", ASCEND, made)
    assert status == 200 and changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    status, answer = ask("PUT", ASCEND, made)
    assert (status, answer["reason"]) == (409, "Conflict")
    assert 'fulfilled on runtimeclasses.node.k8s.io "ascend": the object has been modified; please apply' in answer["message"]
    status, answer = ask("DELETE", ASCEND)
    assert (status, answer["status"], answer["details"]["group"]) == (200, "Success", "node.k8s.io")
    assert ask("DELETE", ASCEND)[0] == 404


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_the_handler_is_immutable(ask, method):
    made = ask("POST", CLASSES, body())[1]
    if method == "PUT":
        status, answer = ask("PUT", ASCEND, {**made, "handler": "other"})
    else:
        status, answer = ask("PATCH", ASCEND, {"handler": "other"}, MERGE)
    assert status == 422
    assert answer["message"] == 'RuntimeClass.node.k8s.io "ascend" is invalid: handler: Invalid value: "other": field is immutable'
    assert answer["details"]["kind"] == "RuntimeClass" and answer["details"]["causes"][0]["field"] == "handler"


def test_put_as_the_strategy_has_it(ask):
    assert ask("PUT", ASCEND, body())[0] == 201  # PUT makes what is not there
    status, answer = ask("PUT", ASCEND, body())
    assert status == 422 and "metadata.resourceVersion" in answer["message"] and "must be specified for an update" in answer["message"]
    gone = ask("GET", ASCEND)[1]
    ask("DELETE", ASCEND)
    assert ask("PUT", ASCEND, gone)[0] == 409  # but not one that was another object


def test_preconditions_of_a_delete(ask):
    made = ask("POST", CLASSES, body())[1]["metadata"]
    for wrong in ({"uid": "other"}, {"resourceVersion": "0"}, {"uid": made["uid"], "resourceVersion": "0"}):
        status, answer = ask("DELETE", ASCEND, {"preconditions": wrong})
        assert status == 409 and "in the precondition" in answer["message"]
    right = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    assert ask("DELETE", ASCEND, {"preconditions": right})[0] == 200


def tolerations(*given):
    return {"scheduling": {"tolerations": list(given)}}


@pytest.mark.parametrize(("sent", "field"), [
    (body(handler=""), "handler"), (body(handler="Ascend"), "handler"), (body(handler="a.b"), "handler"),
    (body(handler="a" * 64), "handler"),
    ({"metadata": {"name": "x"}}, "handler"), (body(name="Ascend"), "metadata.name"), (body(name="a_b"), "metadata.name"),
    ({"metadata": {}, "handler": "x"}, "metadata.name"),
    (body(scheduling={"nodeSelector": {"a b": "c"}}), "scheduling.nodeSelector"),
    (body(scheduling={"nodeSelector": {"a": "c d"}}), "scheduling.nodeSelector"),
    (body(**tolerations({"key": "a b", "operator": "Exists"})), "scheduling.tolerations[0].key"),
    (body(**tolerations({"operator": "Equal"})), "scheduling.tolerations[0].operator"),
    (body(**tolerations({"key": "a", "operator": "Exists", "value": "b"})), "scheduling.tolerations[0].operator"),
    (body(**tolerations({"key": "a", "operator": "Is"})), "scheduling.tolerations[0].operator"),
    (body(**tolerations({"key": "a", "effect": "Never"})), "scheduling.tolerations[0].effect"),
    (body(**tolerations({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3})), "scheduling.tolerations[0].effect"),
    (body(**tolerations({"key": "a"}, {"key": "a"})), "scheduling.tolerations[1]"),
])
def test_validation(ask, sent, field):
    status, answer = ask("POST", CLASSES, sent)
    assert (status, answer["reason"], answer["details"]["causes"][0]["field"]) == (422, "Invalid", field)


def test_what_is_allowed(ask):
    sent = body(name="a.b-c", handler="a-1", scheduling={"nodeSelector": {"x.y/z": ""}, "tolerations": [
        {"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 0}]})
    assert ask("POST", CLASSES, sent)[0] == 201


def test_no_other_addresses(ask):
    for path in (ASCEND + "/status", ASCEND + "/x/y", "/apis/node.k8s.io/v1beta1/runtimeclasses", "/api/v1/runtimeclasses"):
        assert ask("GET", path)[0] == 404
    assert [group["name"] for group in ask("GET", "/apis")[1]["groups"]] == [
        "node.k8s.io", "rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apps"]
    assert ask("GET", "/apis/node.k8s.io/v1")[1]["resources"][0]["kind"] == "RuntimeClass"


def test_users_by_resource(api, ask):
    token = api.add_user("some", {"runtimeclasses": ("get",), "pods": ("list",)})
    assert ask("GET", ASCEND, token=token)[0] == 404
    assert ask("GET", "/api/v1/pods", token=token)[0] == 200
    assert ask("GET", "/api/v1/nodes", token=token)[0] == 403
    status, answer = ask("POST", CLASSES, body(), token=token)
    assert (status, answer["message"]) == (403, 'runtimeclasses.node.k8s.io is forbidden: User "some" cannot create resource '
                                                '"runtimeclasses" in API group "node.k8s.io" at the cluster scope')


def test_pods_in_pages(api, ask):
    for number in range(5):
        api.add_pod(f"p{number}", runtime_class="ascend" if number else None)
    first = ask("GET", "/api/v1/pods?limit=2")[1]
    assert first["metadata"]["remainingItemCount"] == 3
    second = ask("GET", f"/api/v1/pods?limit=2&continue={first['metadata']['continue']}")[1]
    last = ask("GET", f"/api/v1/pods?limit=2&continue={second['metadata']['continue']}")[1]
    assert [pod["metadata"]["name"] for page in (first, second, last) for pod in page["items"]] == [f"p{number}" for number in range(5)]
    assert "continue" not in last["metadata"] and "runtimeClassName" not in first["items"][0]["spec"]
    assert len(ask("GET", "/api/v1/pods")[1]["items"]) == 5
    assert ask("POST", "/api/v1/pods", {})[0] == 405
