# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in by itself: what a client sees on the wire."""

import json
import os
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request

import kube_patch
import pytest
from kube_rig import KUBE, TOKEN

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"


@pytest.fixture
def ask(api):
    def call(method, path, body=None, content_type="application/json", token=TOKEN):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(api.url + path, data, {"Content-Type": content_type}, method=method)  # noqa: S310
        if token:
            request.add_header("Authorization", "Bearer " + token)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
    return call


NODE = "/api/v1/nodes/node-01"


@pytest.mark.parametrize(("request_", "code", "reason"), [(case[:4], *case[4:]) for case in [
    ("GET", "/api/v1/nodes/none", None, "", 404, "NotFound"),
    ("GET", "/api/v1/endpoints", None, "", 404, "NotFound"),
    ("GET", "/api/v1/nodes?watch=true", None, "", 405, "MethodNotAllowed"),
    ("PATCH", NODE, b"{", MERGE, 400, "BadRequest"),
    ("PATCH", NODE, [], MERGE, 400, "BadRequest"),
    ("PATCH", NODE, {}, "application/json", 415, "UnsupportedMediaType"),
    ("PATCH", NODE, {"metadata": {"name": "other"}}, MERGE, 400, "BadRequest"),
    ("PATCH", NODE, {"metadata": {"resourceVersion": "0815"}}, MERGE, 409, "Conflict"),
    ("PATCH", NODE, {"metadata": {"labels": {"a b": "c"}}}, MERGE, 422, "Invalid"),
    ("PATCH", NODE, {"metadata": {"labels": {"a": 1}}}, MERGE, 422, "Invalid"),
    ("PATCH", NODE, {"spec": {"taints": [{"key": "a", "effect": "Never"}]}}, MERGE, 422, "Invalid"),
    ("PATCH", NODE, {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}] * 2}}, MERGE, 422, "Invalid"),
    ("PATCH", NODE + "/status", {"status": {"capacity": {"x.y/z": "eight"}}}, MERGE, 422, "Invalid"),
    ("PATCH", NODE, [{"op": "test", "path": "/metadata/name", "value": "x"}], JSON, 422, "Invalid"),
    ("POST", "/api/v1/nodes", {"metadata": {"name": "node-01"}}, "application/json", 409, "AlreadyExists"),
]])
def test_refusals_are_status_objects(ask, request_, code, reason):
    status, answer = ask(*request_)
    assert (status, answer["kind"], answer["status"], answer["code"], answer["reason"]) == (code, "Status", "Failure", code, reason)


def test_users(api, ask):
    viewer = api.add_user("viewer", ("get", "list"))
    assert ask("GET", NODE, token=None)[0] == 401
    assert ask("GET", NODE, token="unknown")[0] == 401  # noqa: S106
    assert ask("GET", NODE, token="")[1]["reason"] == "Unauthorized"
    assert ask("GET", NODE, token=viewer)[0] == 200
    status, answer = ask("PATCH", NODE, {}, MERGE, token=viewer)
    assert status == 403
    assert answer["message"] == ('nodes "node-01" is forbidden: User "viewer" cannot patch resource "nodes" in API group "" '
                                 "at the cluster scope")


def test_versions(ask):
    old = ask("GET", NODE)[1]["metadata"]["resourceVersion"]
    assert ask("PATCH", NODE, {"metadata": {"labels": {"rack": "r7"}}}, MERGE)[1]["metadata"]["resourceVersion"] == old
    new = ask("PATCH", NODE, {"metadata": {"labels": {"rack": "r8"}}}, MERGE)[1]["metadata"]["resourceVersion"]
    assert int(new) > int(old)
    node = ask("GET", NODE)[1]
    node["metadata"]["resourceVersion"] = old
    assert ask("PUT", NODE, node)[0] == 409
    node["metadata"]["resourceVersion"] = new
    assert ask("PUT", NODE, node)[0] == 200


def test_status_is_written_at_its_own_address_only(ask):
    patch = {"spec": {"unschedulable": True}, "status": {"capacity": {"huawei.com/Ascend910": "8"}}}
    node = ask("PATCH", NODE, patch, STRATEGIC)[1]
    assert node["spec"]["unschedulable"] is True
    assert "huawei.com/Ascend910" not in node["status"]["capacity"]
    node = ask("PATCH", NODE + "/status", {**patch, "spec": {"unschedulable": False}}, STRATEGIC)[1]
    assert node["spec"]["unschedulable"] is True
    assert node["status"]["capacity"]["huawei.com/Ascend910"] == "8"
    assert node["status"]["capacity"]["pods"] == "110"


def test_list_and_dry_run(api, ask):
    api.add_node("node-02")

    def names(query):
        return [node["metadata"]["name"] for node in ask("GET", "/api/v1/nodes" + query)[1]["items"]]

    assert names("") == ["node-01", "node-02"]
    assert names("?labelSelector=rack%3Dr7") == ["node-01"]
    assert names("?labelSelector=!rack") == ["node-02"]
    assert names("?fieldSelector=metadata.name%3Dnode-02") == ["node-02"]
    version = api.store.version()
    assert ask("PATCH", NODE + "?dryRun=All", {"metadata": {"labels": {"a": "b"}}}, MERGE)[1]["metadata"]["labels"]["a"] == "b"
    assert api.store.version() == version


def test_real_client_lists_discovers_and_reads_the_version(api, kubeconfig):
    from kubernetes import client, config
    connection = config.new_client_from_config(kubeconfig)
    assert [node.metadata.name for node in client.CoreV1Api(connection).list_node().items] == ["node-01"]
    assert client.VersionApi(connection).get_code().major == "1"
    assert "nodes" in [resource.name for resource in client.CoreV1Api(connection).get_api_resources().resources]
    client.CoreV1Api(connection).patch_node_status("node-01", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    client.CoreV1Api(connection).patch_node_status("node-01", {"status": {"conditions": [{"type": "DiskPressure", "status": "False"}]}})
    assert [condition["type"] for condition in api.store.get("node-01")["status"]["conditions"]] == ["Ready", "DiskPressure"]


def conditions(*pairs):
    return {"status": {"conditions": [{"type": kind, "status": status} for kind, status in pairs]}}


@pytest.mark.parametrize(("target", "patch", "result"), [
    ({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": None}, "e": [1]}, {"b": {"d": 3}, "e": [1]}),
    (conditions(("A", "1"), ("B", "1")), conditions(("B", "2"), ("C", "1")), conditions(("A", "1"), ("B", "2"), ("C", "1"))),
    (conditions(("A", "1"), ("B", "1")), {"status": {"conditions": [{"type": "A", "$patch": "delete"}]}}, conditions(("B", "1"))),
    (conditions(("A", "1")), {"status": {"conditions": [{"$patch": "replace"}, {"type": "Z"}]}},
     {"status": {"conditions": [{"type": "Z"}]}}),
    ({"spec": {"taints": [{"key": "a"}]}}, {"spec": {"taints": [{"key": "b"}]}}, {"spec": {"taints": [{"key": "b"}]}}),
    ({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}),
    ({"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {"a": {}}),
])
def test_strategic_merge(target, patch, result):
    assert kube_patch.strategic(target, patch) == result


@pytest.mark.parametrize(("operations", "result"), [
    ([{"op": "add", "path": "/a~1b", "value": 1}], {"x": [1, 2], "a/b": 1}),
    ([{"op": "add", "path": "/x/-", "value": 3}], {"x": [1, 2, 3]}),
    ([{"op": "add", "path": "/x/0", "value": 0}], {"x": [0, 1, 2]}),
    ([{"op": "replace", "path": "/x/1", "value": 9}], {"x": [1, 9]}),
    ([{"op": "remove", "path": "/x/0"}], {"x": [2]}),
    ([{"op": "move", "from": "/x", "path": "/y"}], {"y": [1, 2]}),
    ([{"op": "copy", "from": "/x/0", "path": "/y"}], {"x": [1, 2], "y": 1}),
    ([{"op": "test", "path": "/x/0", "value": 1}], {"x": [1, 2]}),
    ([{"op": "replace", "path": "/none", "value": 9}], None),
    ([{"op": "remove", "path": "/x/7"}], None),
    ([{"op": "add", "path": "/x/7", "value": 9}], None),
    ([{"op": "add", "path": "none", "value": 9}], None),
    ([{"op": "jump", "path": "/x"}], None),
])
def test_json_patch(operations, result):
    target = {"x": [1, 2]}
    if result is None:
        with pytest.raises(kube_patch.PatchError):
            kube_patch.json_patch(target, operations)
    else:
        assert kube_patch.json_patch(target, operations) == result
    assert target == {"x": [1, 2]}


def test_command_line(tmp_path):
    kubeconfig, viewer = tmp_path / "kubeconfig", tmp_path / "viewer"
    command = [sys.executable, KUBE / "api_server.py", "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig, "--viewer-kubeconfig", viewer]
    process = subprocess.Popen([*command, "--node", "node-01", "--node", "node-02"], stdout=subprocess.PIPE, text=True)
    try:
        assert "listens on http://127.0.0.1:" in process.stdout.readline()
        assert stat.S_IMODE(os.stat(kubeconfig).st_mode) == 0o600
        from kubernetes import client, config
        nodes = client.CoreV1Api(config.new_client_from_config(str(viewer))).list_node()
        assert [node.metadata.name for node in nodes.items] == ["node-01", "node-02"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        process.stdout.close()
