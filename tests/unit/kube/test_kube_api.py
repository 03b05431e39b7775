# SPDX-License-Identifier: GPL-3.0-or-later
"""The client side against the stand-in, through the real kubernetes package."""

import os
import socket
import subprocess
import sys
import threading

import pytest
from kube_rig import TOKEN, ApiError, ApiServer

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_node
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._api_request import send


def ensure(kubeconfig, name="node-01", check_mode=False, timeout=20, state="present", **given):
    configuration = _kube.load_configuration(kubeconfig, None)
    return _kube.ensure(_kube.NodeApi(configuration, timeout), name, _kube_node.wanted({"state": state, **given}), check_mode)


def failure(kubeconfig, **given):
    with pytest.raises(FleetError) as caught:
        ensure(kubeconfig, **given)
    assert TOKEN not in str(caught.value.as_dict())
    return caught.value


def patches(api):
    return [request for request in api.requests if request[0] != "GET"]


def test_labels_come_change_and_go_and_foreign_keys_stay(api, kubeconfig):
    first = ensure(kubeconfig, labels={"npu.fleet/family": "a2"}, annotations={"npu.fleet/release": "a2 25.5.0"})
    assert first["changed"]
    assert first["before"]["labels"] == {}
    again = ensure(kubeconfig, labels={"npu.fleet/family": "a2"})
    assert not again["changed"]
    assert len(patches(api)) == 1
    ensure(kubeconfig, labels={"npu.fleet/family": "a3"})
    assert api.store.get("node-01")["metadata"]["labels"]["npu.fleet/family"] == "a3"
    ensure(kubeconfig, state="absent", labels={"npu.fleet/family": None, "never-there": None})
    labels = api.store.get("node-01")["metadata"]["labels"]
    assert labels["rack"] == "r7"
    assert "npu.fleet/family" not in labels
    assert api.store.get("node-01")["metadata"]["annotations"] == {"npu.fleet/release": "a2 25.5.0"}


def test_no_class_of_an_object_is_loaded(kubeconfig):
    """With those of a Node a module takes twice the time of a processor; a play runs some of these modules for each of its hosts."""
    code = ("import sys\n"
            "from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_class_api, _kube_node\n"
            "configuration = _kube.load_configuration(sys.argv[1], None)\n"
            "wish = _kube_node.wanted({'state': 'present', 'labels': {'npu.fleet/family': 'a2'}})\n"
            "assert _kube.ensure(_kube.NodeApi(configuration, 20), 'node-01', wish)['changed']\n"
            "assert _kube_class_api.ClassApi(configuration, 20).nodes('rack') == ['node-01']\n"
            "print([name for name in sys.modules if name.startswith('kubernetes.client.models.')])\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, kubeconfig], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_an_older_client_reads_the_answer_within_the_call():
    """It reads when somebody looks: a server that stops in the middle would be an error of whoever does so."""
    class Response:
        @property
        def data(self):
            raise ConnectionAbortedError

    class Client:  # of kubernetes before 36
        def call_api(self, path, method, names, query, headers, **more):
            assert (path, method, names, query) == ("/x/{name}", "GET", {"name": "a"}, [("limit", 2)])
            assert headers == {"Accept": "application/json"}
            assert (more["_preload_content"], more["_return_http_data_only"], more["auth_settings"]) == (False, True, ["BearerToken"])
            return Response()

    with pytest.raises(ConnectionAbortedError):
        send(Client(), "GET", "/x/{name}", Exception, names={"name": "a"}, query={"limit": 2})


def test_check_mode_leaves_the_server_alone(api, kubeconfig):
    version = api.store.version()
    result = ensure(kubeconfig, check_mode=True, labels={"a": "1"}, taints=[{"key": "t", "effect": "NoSchedule"}])
    assert result["changed"]
    assert result["after"]["labels"] == {"a": "1"}
    assert api.store.version() == version
    assert patches(api) == []


def test_without_keys_it_only_reads(api, kubeconfig):
    api.store.patch("node-01", "application/merge-patch+json", {"status": {"allocatable": {"huawei.com/Ascend910": "8"}}}, "status")
    result = ensure(kubeconfig)
    assert not result["changed"]
    assert _kube_node.status(result["node"])["allocatable"]["huawei.com/Ascend910"] == "8"
    assert patches(api) == []


def test_taint_of_another_writer_between_read_and_patch_survives(api, kubeconfig):
    foreign = {"key": "other", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}

    def meddle(verb, name):
        api.after = lambda *_: None
        api.store.patch(name, "application/merge-patch+json", {"spec": {"taints": [foreign]}})

    api.after = meddle
    result = ensure(kubeconfig, taints=[{"key": "ours", "value": "x", "effect": "NoSchedule"}])
    assert result["changed"]
    assert api.store.get("node-01")["spec"]["taints"] == [foreign, {"key": "ours", "value": "x", "effect": "NoSchedule"}]
    assert [method for method, _ in api.requests] == ["GET", "PATCH", "GET", "PATCH"]


def test_many_writers_lose_nothing(api, kubeconfig):
    errors = []

    def write(number):
        try:
            for step in range(4):
                ensure(kubeconfig, taints=[{"key": f"w{number}-{step}", "effect": "NoSchedule"}], labels={f"l{number}-{step}": "1"})
        except FleetError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    node = api.store.get("node-01")
    assert len(node["spec"]["taints"]) == 16
    assert sum(key.startswith("l") and "-" in key for key in node["metadata"]["labels"]) == 16


def test_endless_conflict_ends_at_the_deadline(api, kubeconfig):
    count = iter(range(10 ** 6))

    def meddle(verb, name):
        api.store.patch(name, "application/merge-patch+json", {"metadata": {"annotations": {"n": str(next(count))}}})

    api.after = meddle
    error = failure(kubeconfig, timeout=1, taints=[{"key": "a", "effect": "NoSchedule"}])
    assert error.code == "kube_conflict"
    assert "managed-fields" in error.hint


def test_busy_server_is_asked_again(api, kubeconfig, monkeypatch):
    answers = [ApiError(429, "TooManyRequests", "try again"), ApiError(503, "ServiceUnavailable", "starting")]
    real = api.store.get

    def get(name):
        if answers:
            raise answers.pop()
        return real(name)

    monkeypatch.setattr(api.store, "get", get)
    assert not ensure(kubeconfig)["changed"]
    assert len(api.requests) == 3


def test_missing_node(kubeconfig):
    error = failure(kubeconfig, name="node-77")
    assert error.code == "node_not_found"
    assert "node-77" in error.message
    assert "kubectl get nodes" in error.hint


@pytest.mark.parametrize(("verbs", "missing"), [((), "get"), (("get", "list"), "patch")])
def test_forbidden_names_verb_and_resource(api, tmp_path, verbs, missing):
    weak = str(api.kubeconfig(tmp_path / "weak", api.add_user("viewer", verbs)))
    error = failure(weak, labels={"a": "1"})
    assert error.code == "kube_forbidden"
    assert f"lacks the verb '{missing}' on resource 'nodes'" in error.message
    assert 'User "viewer"' in error.observed


def test_unknown_token(api, tmp_path):
    path = api.kubeconfig(tmp_path / "old", TOKEN)
    api.tokens.clear()
    assert failure(str(path)).code == "kube_unauthorized"


def test_nobody_listens(api, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        path = tmp_path / "kubeconfig"
        path.write_text(api.kubeconfig(path, TOKEN).read_text().replace(api.url, f"http://127.0.0.1:{port}"))
        error = failure(str(path))
    assert error.code == "kube_unreachable"
    assert f"http://127.0.0.1:{port}: " in error.message
    assert "Connection refused" in error.message


def test_server_that_never_answers(api, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = tmp_path / "kubeconfig"
        path.write_text(api.kubeconfig(path, TOKEN).read_text().replace(api.url, f"http://127.0.0.1:{silent.getsockname()[1]}"))
        error = failure(str(path), timeout=1)
    assert error.code == "kube_unreachable"
    assert "no answer in time" in error.message


def test_name_that_does_not_resolve(api, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(api.kubeconfig(path, TOKEN).read_text().replace(api.url, "https://user:canary-password@api.invalid:6443"))
    error = failure(str(path))
    assert error.code == "kube_unreachable"
    assert "https://api.invalid:6443" in error.message
    assert "canary-password" not in str(error.as_dict())


def test_address_of_something_else(api, tmp_path, monkeypatch):
    monkeypatch.setattr(api.store, "get", lambda name: {"hello": "world"})
    error = failure(str(api.kubeconfig(tmp_path / "k", TOKEN)))
    assert error.code == "kube_error"
    assert "does not answer as a Kubernetes API" in error.message


def test_refusal_of_the_server_is_told(api, kubeconfig, monkeypatch):
    def patch(*args, **kwargs):
        raise ApiError(422, "Invalid", 'Node "node-01" is invalid: because')

    monkeypatch.setattr(api.store, "patch", patch)
    error = failure(kubeconfig, labels={"a": "1"})
    assert error.code == "kube_error"
    assert "HTTP 422" in error.message
    assert "because" in error.message


def test_https_with_the_cluster_s_own_authority(tmp_path):
    with ApiServer(tls_dir=tmp_path / "tls") as api:
        token = api.add_user("admin", token=TOKEN)
        api.add_node("node-01")
        good = api.kubeconfig(tmp_path / "kubeconfig", token)
        assert ensure(str(good), labels={"a": "1"})["changed"]
        bad = tmp_path / "bad"
        bad.write_text(good.read_text().replace("certificate-authority-data", "ignored"))
        error = failure(str(bad))
    assert error.code == "kube_unreachable"
    assert "certificate verify failed" in error.message


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_proxy_of_the_environment_is_not_used_for_loopback(api, kubeconfig, monkeypatch, variable):
    monkeypatch.setenv(variable, "http://user:secret@192.0.2.1:3128")
    assert ensure(kubeconfig, timeout=5, labels={"a": "1"})["changed"]


def test_proxy_is_named_where_it_fails(tmp_path, api, monkeypatch):
    path = tmp_path / "kubeconfig"
    path.write_text(api.kubeconfig(path, TOKEN).read_text().replace(api.url, "http://192.0.2.10:6443"))
    monkeypatch.setenv("HTTP_PROXY", "http://user:canary-password@127.0.0.1:9")
    error = failure(str(path), timeout=5)
    assert "through the proxy http://127.0.0.1:9" in error.message
    assert "NO_PROXY" in error.hint
    assert "canary-password" not in str(error.as_dict())


def test_proxy_of_the_kubeconfig_is_honoured_even_for_loopback(api, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(api.kubeconfig(path, TOKEN).read_text().replace('"server":', '"proxy-url": "http://127.0.0.1:9", "server":'))
    assert "through the proxy" in failure(str(path), timeout=5).message


@pytest.mark.parametrize(("url", "answer"), [
    ("https://127.0.0.1:6443", True), ("https://127.9.9.9", True), ("https://[::1]:6443", True), ("https://localhost:6443", True),
    ("https://10.0.0.1:6443", False), ("https://api.example.com", False), ("https://localhost.example.com", False)])
def test_loopback(url, answer):
    assert _kube.is_loopback(url) is answer


@pytest.mark.parametrize(("text", "part"), [
    ("token: canary-5f0d9b1e7a3c4d2e\n bad: [", "not YAML (line 2)"),
    ("", "cannot be used"),
    ("- a\n- b\n", "kubeconfig"),
    ("apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: []\nclusters: []\nusers: []\n", "cannot be used"),
])
def test_broken_kubeconfig(tmp_path, text, part):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    error = failure(str(path))
    assert error.code == "kube_config"
    assert part in error.message
    assert str(path) in error.message


def test_no_kubeconfig(tmp_path, monkeypatch):
    assert failure(str(tmp_path / "none")).code == "kube_config"
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(tmp_path / ".kube/config") in failure(None).message


def test_unknown_context(kubeconfig):
    with pytest.raises(FleetError, match="with context other"):
        _kube.load_configuration(kubeconfig, "other")


def test_kubeconfig_of_the_environment(api, kubeconfig, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    assert _kube.load_configuration(None, None).host == api.url


def test_secrets_are_known(kubeconfig):
    configuration = _kube.load_configuration(kubeconfig, None)
    configuration.proxy = "http://user:proxy-password@192.0.2.1:1"
    assert _kube.secrets(configuration) == {TOKEN, "proxy-password"}
