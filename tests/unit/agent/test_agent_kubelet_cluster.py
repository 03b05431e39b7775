# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods that the kubelet stand-in takes from the API stand-in: admitted as all others, run by docker, reported as kubelet reports them."""

import json
import sys

import pytest
from agent_rig import REPO, until
from odd_plugin import NAME

sys.path.insert(0, str(REPO / "tests/kube"))
from api_server import ApiServer
from kube_cluster import POD

#: Stands for docker: knows the image "here", and a container tells its words and leaves its environment as its message.
DOCKER = """#!/bin/sh
echo "$@" >> {log}
case "$1 $2 $3" in
  "image inspect here") exit 0 ;;
  "image "*) exit 1 ;;
  "run "*)
    for word in "$@"; do case "$word" in *:/dev/termination-log) printf '{{"ok":1}}' > "${{word%:/dev/termination-log}}" ;; esac; done
    case "$*" in *fail*) exit 3 ;; esac ;;
esac
"""


@pytest.fixture
def cluster(kubelet_rig, tmp_path, monkeypatch):
    """An API server with one Node, whose kubelet takes pods; `log`: what docker was called with."""
    program, log = tmp_path / "bin/docker", tmp_path / "docker.log"
    program.parent.mkdir()
    program.write_text(DOCKER.format(log=log))
    program.chmod(0o755)
    log.write_text("")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with ApiServer() as api:
        token = api.add_user("kubelet")
        api.add_node("rig")
        kubelet_rig.start()
        plugin = kubelet_rig.plugin()
        plugin.register()
        kubelet_rig.serving(3, 3)
        kubelet_rig.ask("join", server=api.url, token=token, pods=True)
        api.plugin, api.log, api.rig = plugin, log, kubelet_rig
        yield api


def create(api, name, node="rig", **container):
    entry = {"name": "main", "image": "here", "command": ["/bin/sh", "-c", "true"], "resources": {"limits": {NAME: "1"}}, **container}
    spec = {"nodeName": node, "restartPolicy": "Never", "containers": [entry], "securityContext": {"runAsUser": 7}}
    api.stores[POD].create({"metadata": {"name": name, "namespace": "default"}, "spec": spec})


def status(api, name):
    return api.stores[POD].get(f"default/{name}").get("status") or {}


def await_phase(api, name, *phases):
    until(lambda: status(api, name).get("phase") in phases, what=f"{name} to be {phases}, it is {status(api, name)}")
    return status(api, name)


def test_a_pod_runs_with_what_its_plugin_answered_and_ends(cluster):
    cluster.plugin.response = {"container_responses": [{
        "envs": {"A": "1"}, "devices": [{"host_path": "/dev/zero", "container_path": "/dev/npu0", "permissions": "rw"}]}]}
    create(cluster, "good")
    ended = await_phase(cluster, "good", "Succeeded", "Failed")
    state = ended["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], json.loads(state["message"])) == (0, {"ok": 1})
    words = next(line for line in cluster.log.read_text().splitlines() if line.startswith("run "))
    for part in ("--device /dev/zero:/dev/npu0:rw", "--env A=1", "--user 7:0", "--entrypoint /bin/sh here -c true"):
        assert part in words
    # Its device is free again, and it goes when it is deleted.
    assert cluster.rig.ask("pods")["default/good"]["devices"] == {}
    cluster.stores[POD].delete("default/good")
    until(lambda: cluster.rig.ask("pods") == {}, what="the pod to go")


def test_what_the_plugin_refuses_ends_the_pod_in_kubelets_words(cluster):
    cluster.plugin.refusal = "no such device"
    create(cluster, "refused")
    ended = await_phase(cluster, "refused", "Failed")
    assert ended["reason"] == "UnexpectedAdmissionError"
    assert "no such device" in ended["message"]
    assert "run " not in cluster.log.read_text()


def test_an_image_that_is_not_there_is_waited_for(cluster):
    create(cluster, "none", image="registry.example.com/none")
    waits = await_phase(cluster, "none", "Pending")["containerStatuses"][0]["state"]["waiting"]
    assert waits == {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.example.com/none"'}


def test_a_container_that_fails_and_pods_of_others(cluster):
    create(cluster, "elsewhere", node="other")
    create(cluster, "bad", command=["/bin/sh", "-c", "fail"])
    ended = await_phase(cluster, "bad", "Failed")
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert status(cluster, "elsewhere") == {}
    assert list(cluster.rig.ask("pods")) == ["default/bad"]
