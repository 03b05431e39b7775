# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent labels` at the API server: the kubernetes client against the stand-in."""

import datetime
import os
import random
import threading
import time

import pytest
from labels_rig import AGENT_TAINT, RIGHTS, TOKEN, ApiError, ApiServer, taints


def trouble_of(call, *arguments):
    from npu_agent.labels_api import Trouble

    with pytest.raises(Trouble) as caught:
        call(*arguments)
    assert TOKEN not in str(caught.value)
    return caught.value


def test_what_the_server_refuses_is_told_with_what_mends_it(kube_api, node_api, tmp_path):
    assert trouble_of(node_api("node-99").get).code == "missing"
    reader = str(kube_api.kubeconfig(tmp_path / "reader", kube_api.add_user("reader", {"nodes": ("get",)})))
    refused = trouble_of(node_api(path=reader).patch, {"metadata": {"labels": {"a": "1"}}})
    assert refused.code == "forbidden" and "right to patch the resource nodes" in str(refused) and "--verb=get,patch" in str(refused)
    nobody = str(kube_api.kubeconfig(tmp_path / "nobody", kube_api.add_user("nobody", {})))
    assert "right to get the resource nodes" in str(trouble_of(node_api(path=nobody).get))
    stranger = kube_api.add_user("stranger", RIGHTS)
    path = str(kube_api.kubeconfig(tmp_path / "stranger", stranger))
    del kube_api.tokens[stranger]
    assert trouble_of(node_api(path=path).get).code == "unauthorized"
    stale = {"metadata": {"resourceVersion": "999", "labels": {"a": "1"}}}
    assert trouble_of(node_api().patch, stale).code == "conflict"


@pytest.mark.parametrize(("code", "found"), [(429, "busy"), (503, "busy"), (500, "refused"), (422, "refused")])
def test_a_secret_that_the_server_repeats_is_masked(kube_api, node_api, monkeypatch, code, found):
    def get(name):
        raise ApiError(code, "Reason", f"no way, Bearer {TOKEN}")

    monkeypatch.setattr(kube_api.store, "get", get)
    refused = trouble_of(node_api().get)
    assert refused.code == found and "no way" in str(refused)


def test_an_api_that_is_not_there_or_is_none(node_api, kube_api, deaf, monkeypatch):
    monkeypatch.setattr("npu_agent.labels_api.SECONDS", 0.3)
    refused = trouble_of(node_api(path=deaf.kubeconfig).get)
    assert refused.code == "unreachable" and "no answer in time" in str(refused)
    deaf.close()
    refused = trouble_of(node_api(path=deaf.kubeconfig).get)
    assert refused.code == "unreachable" and "refused" in str(refused)
    monkeypatch.setattr(kube_api.store, "get", lambda name: {"kind": "Pod"})
    assert trouble_of(node_api().get).code == "refused"


def test_no_credential_is_taken_from_where_nobody_has_named_one(package, kubeconfig, monkeypatch, tmp_path):
    from npu_agent.labels_api import NodeApi

    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    os.link(kubeconfig, tmp_path / ".kube/config")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "ServiceAccount" in str(trouble_of(NodeApi, "node-01", ""))
    assert "there is no" in str(trouble_of(NodeApi, "node-01", str(tmp_path / "missing")))
    (tmp_path / "broken").write_text("clusters: [{name: x")
    assert trouble_of(NodeApi, "node-01", str(tmp_path / "broken")).code == "config"


def test_in_a_pod_the_token_of_the_pod_counts_and_a_new_one_is_taken_up(package, monkeypatch, tmp_path):
    from kubernetes.config import incluster_config

    from npu_agent.labels_api import NodeApi

    with ApiServer(tls_dir=tmp_path / "tls") as kube_api:
        kube_api.add_node("node-01")
        first = kube_api.add_user("first", RIGHTS)
        token, host = tmp_path / "token", kube_api.url.removeprefix("https://").rpartition(":")
        token.write_text(first + "\n")  # a newline at its end is no part of it
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "tls/api.crt"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host[0])
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", host[2])
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
        one = NodeApi("node-01", "")
        assert one.get()["metadata"]["name"] == "node-01"
        del kube_api.tokens[first]
        token.write_text(kube_api.add_user("second", RIGHTS) + "\n")
        assert trouble_of(one.get).code == "unauthorized"
        later = datetime.datetime.now() + datetime.timedelta(minutes=2)  # the client reads it again after a minute
        clock = type("Clock", (), {"datetime": type("Later", (), {"now": staticmethod(lambda: later)}), "timedelta": datetime.timedelta})
        monkeypatch.setattr(incluster_config, "datetime", clock)
        assert one.get()["metadata"]["name"] == "node-01"
        token.write_text(f"{TOKEN}\nmore")
        later += datetime.timedelta(minutes=2)
        refused = trouble_of(one.get)
        assert refused.code == "config" and "one line of printable characters" in str(refused)


def test_what_cannot_be_sent_is_refused_without_the_clients_words(node_api, monkeypatch):
    def invalid(*args, **kwargs):
        raise ValueError(f"Invalid header value b'Bearer {TOKEN}\\n'")

    api = node_api()
    monkeypatch.setattr("http.client.HTTPConnection.putheader", invalid)
    refused = trouble_of(api.get)
    assert refused.code == "config" and "(ValueError)" in str(refused)


def a_moment(_seconds):
    time.sleep(random.uniform(0, 0.01))


def test_two_writers_of_taints_lose_nothing(kube_api, node_api):
    """Another controller puts one taint after the other, while ours comes and goes; not one of them is lost."""
    from npu_agent._hardware import _labels
    from npu_agent.labels_api import Trouble, ensure

    done, theirs, mine = threading.Event(), node_api(), node_api()
    wanted = [f"other-{number}" for number in range(40)]

    def until_it_is_there(api, plan):
        while True:
            try:
                return ensure(api, plan, a_moment)
            except Trouble as trouble:
                assert trouble.code == "conflict", trouble

    def other():
        for key in wanted:
            def plan(node, key=key):
                version, before = node["metadata"]["resourceVersion"], node["spec"].get("taints", [])
                time.sleep(0.005)  # so long that ours is often in between
                return {"metadata": {"resourceVersion": version}, "spec": {"taints": [*before, {"key": key, "effect": "NoExecute"}]}}, None

            until_it_is_there(theirs, plan)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    times, put = 0, False
    while not done.is_set() or put:
        put, times = not put, times + 1
        until_it_is_there(mine, lambda node, put=put: _labels.patch_of(node, None, put))
        assert (AGENT_TAINT in taints(kube_api)) is put
        time.sleep(random.uniform(0, 0.03))  # a writer that never pauses would leave the slower one no gap on a busy machine
    thread.join()
    assert times > 10 and [taint["key"] for taint in taints(kube_api)] == wanted
