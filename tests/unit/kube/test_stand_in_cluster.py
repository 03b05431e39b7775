# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in as a cluster: namespaces, rights of ServiceAccounts, tokens, and a DaemonSet's pods."""

import json
import urllib.error
import urllib.request

import pytest
from kube_rig import TOKEN

MERGE = "application/merge-patch+json"
APPS = "/apis/apps/v1/namespaces/ours/daemonsets"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "/api/v1/namespaces/ours/serviceaccounts"


@pytest.fixture
def ask(api):
    def call(method, path, body=None, token=TOKEN, content_type="application/json"):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(api.url + path, data, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
    return call


@pytest.fixture
def ours(ask):
    assert ask("POST", "/api/v1/namespaces", {"metadata": {"name": "ours"}})[0] == 201
    assert ask("POST", ACCOUNT, {"metadata": {"name": "agent"}})[0] == 201


def grant(ask, *verbs, resource="nodes"):
    ask("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "r"}, "rules": [
        {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}]})
    ask("POST", f"{RBAC}/clusterrolebindings", {"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [
        {"kind": "ServiceAccount", "namespace": "ours", "name": "agent"}]})


def daemon(**spec):
    return {"metadata": {"name": "d"}, "spec": {"template": {"metadata": {"labels": {"app": "d"}}, "spec": spec}}}


def on_nodes(api):
    return sorted(pod["spec"]["nodeName"] for pod in api.stores[next(kind for kind in api.stores if kind.name == "Pod")].list())


def test_nothing_is_made_in_a_namespace_that_is_not_there(ask):
    code, answer = ask("POST", "/api/v1/namespaces/none/configmaps", {"metadata": {"name": "c"}})
    assert (code, answer["message"]) == (404, 'namespaces "none" not found')
    assert ask("GET", "/api/v1/configmaps/c")[0] == 404


def test_objects_of_two_namespaces_do_not_meet(ask, ours):
    for space in ("ours", "default"):
        assert ask("POST", f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "c"}, "data": {"in": space}})[0] == 201
    assert ask("GET", "/api/v1/namespaces/default/configmaps/c")[1]["data"] == {"in": "default"}
    assert len(ask("GET", "/api/v1/configmaps")[1]["items"]) == 2
    assert len(ask("GET", "/api/v1/namespaces/ours/configmaps")[1]["items"]) == 1


def test_a_service_account_may_what_is_bound_to_it_and_each_use_is_kept(api, ask, ours):
    token = ask("POST", f"{ACCOUNT}/agent/token", {"spec": {}})[1]["status"]["token"]
    code, answer = ask("GET", "/api/v1/nodes/node-01", token=token)
    assert code == 403 and 'User "system:serviceaccount:ours:agent" cannot get resource "nodes" in API group ""' in answer["message"]
    grant(ask, "get")
    assert ask("GET", "/api/v1/nodes/node-01", token=token)[0] == 200
    assert ask("PATCH", "/api/v1/nodes/node-01", {}, token, MERGE)[0] == 403
    assert ask("PATCH", "/api/v1/nodes/node-01/status", {}, token, MERGE)[0] == 403
    assert api.rights.used == {("r", "get", "nodes")}
    assert {(verb, what) for _who, verb, what in api.rights.refused} == {("get", "nodes"), ("patch", "nodes"), ("patch", "nodes/status")}


def test_an_access_review_tells_and_uses_nothing(api, ask, ours):
    grant(ask, "get")
    token = api.add_account("ours", "agent")
    for verb, allowed in (("get", True), ("delete", False)):
        body = {"spec": {"resourceAttributes": {"verb": verb, "resource": "nodes", "group": ""}}}
        review = ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, token)
        assert review[0] == 201 and review[1]["status"]["allowed"] is allowed
    assert api.rights.used == set()


def test_a_token_of_a_pod_says_its_node(api, ask, ours):
    ask("POST", "/api/v1/namespaces/ours/pods", {"metadata": {"name": "p"}, "spec": {"nodeName": "node-01"}})
    body = {"spec": {"boundObjectRef": {"kind": "Pod", "name": "p"}}}
    token = ask("POST", f"{ACCOUNT}/agent/token", body)[1]["status"]["token"]
    assert api.tokens[token]["extra"]["authentication.kubernetes.io/node-name"] == ["node-01"]


def test_pods_of_a_daemon_set_follow_labels_taints_and_template(api, ask, ours):
    api.add_node("node-02")
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r7", "r8"]}]}]}}}
    ask("POST", APPS, daemon(affinity=affinity))
    assert on_nodes(api) == ["node-01"]
    ask("PATCH", "/api/v1/nodes/node-02", {"metadata": {"labels": {"rack": "r8"}}}, content_type=MERGE)
    assert on_nodes(api) == ["node-01", "node-02"]
    (first, _second) = before = ask("GET", "/api/v1/namespaces/ours/pods?labelSelector=app%3Dd")[1]["items"]
    ask("PATCH", f"{APPS}/d", {"spec": {"template": {"spec": {"image": "2"}}}}, content_type=MERGE)
    assert len(on_nodes(api)) == 2
    names = {pod["metadata"]["name"] for pod in ask("GET", "/api/v1/namespaces/ours/pods")[1]["items"]}
    assert not names & {pod["metadata"]["name"] for pod in before} and first["status"]["phase"] == "Pending"
    ask("PATCH", "/api/v1/nodes/node-01", {"spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]}}, content_type=MERGE)
    assert on_nodes(api) == ["node-02"]
    ask("DELETE", f"{APPS}/d")
    assert on_nodes(api) == []
