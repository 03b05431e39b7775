# SPDX-License-Identifier: GPL-3.0-or-later
"""The module itself, from its arguments to its result."""

import json

import pytest
from ansible.module_utils.testing import patch_module_args
from kube_rig import TOKEN, ApiError

from ansible_collections.npu.fleet.plugins.module_utils import _kube
from ansible_collections.npu.fleet.plugins.modules import node_labels


@pytest.fixture
def run(kubeconfig, capsys):
    def call(**arguments):
        with patch_module_args({"name": "node-01", "kubeconfig": kubeconfig, **arguments}), pytest.raises(SystemExit) as end:
            node_labels.main()
        text = capsys.readouterr().out
        assert TOKEN not in text
        result = json.loads(text)
        assert bool(result.get("failed")) == bool(end.value.code)
        return result
    return call


def test_result(api, run):
    result = run(labels={"npu.fleet/family": "a2"}, taints=[{"key": "t", "effect": "NoSchedule"}])
    assert result["changed"] is True
    assert result["before"] == {"labels": {}, "annotations": {}, "taints": []}
    assert result["after"] == {"labels": {"npu.fleet/family": "a2"}, "annotations": {},
                               "taints": [{"key": "t", "value": "", "effect": "NoSchedule"}]}
    assert result["diff"]["before"] == result["before"]
    assert result["diff"]["after"] == result["after"]
    assert result["node"]["name"] == "node-01"
    assert result["node"]["allocatable"]["pods"] == "110"
    assert result["node"]["ready"] is None
    assert run(labels={"npu.fleet/family": "a2"}, taints=[{"key": "t", "effect": "NoSchedule"}])["changed"] is False


def test_keys_of_the_result_are_the_documented_ones(run):
    import yaml
    documented = yaml.safe_load(node_labels.RETURN)
    result = run(labels={"a": "1"})
    assert set(result) - {"invocation", "changed", "diff"} == set(documented) - {"error"}
    assert set(result["node"]) == set(documented["node"]["contains"])
    assert set(result["after"]) == set(documented["after"]["contains"])
    error = run(name="node-99")["error"]
    assert set(error) == set(documented["error"]["contains"])


def test_check_mode(api, run):
    version = api.store.version()
    result = run(labels={"a": "1"}, _ansible_check_mode=True)
    assert result["changed"] is True
    assert result["after"]["labels"] == {"a": "1"}
    assert api.store.version() == version


def test_failure_has_fields(run):
    result = run(name="node-99")
    assert result["error"]["code"] == "node_not_found"
    assert result["error"]["object"] == "node-99"
    assert "kubectl get nodes" in result["msg"]


def test_a_node_that_has_not_joined_may_be_no_error(api, run):
    result = run(name="node-99", missing="ignore", taints=[{"key": "t", "effect": "NoSchedule"}])
    assert result["changed"] is False and result["node"] is None and result["after"]["taints"] == []
    assert [method for method, _path in api.requests] == ["GET"]
    assert run(name="node-99")["error"]["code"] == "node_not_found"


def test_labels_come_and_a_taint_goes_in_one_request(api, run):
    site = {"key": "npu.fleet/not-ready", "value": "site", "effect": "NoSchedule"}
    run(taints=[site], unless_labels={"npu.fleet/ready": "true"})
    api.requests.clear()
    arguments = {"record": "npu.fleet/labels", "labels": {"npu.fleet/ready": "true"}, "taints": [{**site, "state": "absent"}]}
    result = run(**arguments)
    assert result["before"]["taints"] == [site] and result["after"]["taints"] == []
    assert result["after"]["annotations"] == {"npu.fleet/labels": "npu.fleet/ready=true"}
    assert [method for method, _path in api.requests] == ["GET", "PATCH"]
    assert run(**arguments)["changed"] is False
    assert run(taints=[site], unless_labels={"npu.fleet/ready": "true"})["changed"] is False
    assert run(labels={"a": "1"}, only_missing=["a"], record="npu.fleet/labels")["before"]["labels"] == {"npu.fleet/ready": "true"}
    assert "npu.fleet/ready" not in api.store.get("node-01")["metadata"]["labels"]


def test_bad_label_is_refused_before_the_api_is_asked(api, run):
    assert run(labels={"a b": "1"})["error"]["code"] == "invalid_label"
    assert api.requests == []


def test_token_is_masked_even_where_the_server_repeats_it(api, run, monkeypatch):
    def get(name):
        raise ApiError(500, "InternalError", f"cannot authenticate {TOKEN}")

    monkeypatch.setattr(api.store, "get", get)
    assert "cannot authenticate" in run()["msg"]


def test_missing_package_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(_kube, "IMPORT_ERROR", "Traceback ...")
    assert "pip install kubernetes" in run()["msg"]


def with_token(kubeconfig, tmp_path, text, user="token"):
    """The same kubeconfig, with the token in a file of its own or in itself."""
    made = json.loads(open(kubeconfig, encoding="utf-8").read())
    (tmp_path / "token").write_text(text)
    made["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")} if user == "tokenFile" else {"token": text}
    (tmp_path / "tidy").write_text(json.dumps(made))
    return str(tmp_path / "tidy")


@pytest.mark.parametrize("user", ["token", "tokenFile"])
@pytest.mark.parametrize("text", [f"{TOKEN}\n", f"{TOKEN}\r\n", f"{TOKEN} \n\n"])
def test_a_token_with_an_end_of_line_is_a_token(run, kubeconfig, tmp_path, text, user):
    assert run(kubeconfig=with_token(kubeconfig, tmp_path, text, user), labels={"a": "1"})["changed"] is True


@pytest.mark.parametrize("text", [f"{TOKEN}\nmore", f"{TOKEN}\r\n\tmore", f"\x00{TOKEN}", f"{TOKEN}\u540d", f"{TOKEN}\x7f"])
def test_a_token_that_is_no_line_is_refused_without_its_text(api, run, kubeconfig, tmp_path, text):
    failed = run(kubeconfig=with_token(kubeconfig, tmp_path, text, "tokenFile"))
    assert failed["error"]["code"] == "kube_config" and "one line of printable characters" in failed["msg"] and api.requests == []


def test_what_cannot_be_sent_is_refused_without_the_clients_words(run, monkeypatch):
    def invalid(*args, **kwargs):
        raise ValueError(f"Invalid header value b'Bearer {TOKEN}\\n'")

    monkeypatch.setattr("http.client.HTTPConnection.putheader", invalid)
    monkeypatch.setattr(_kube, "secrets", lambda configuration: set())  # nothing masks it
    failed = run()
    assert failed["error"]["code"] == "kube_config" and "(ValueError)" in failed["msg"]
