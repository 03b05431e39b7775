# SPDX-License-Identifier: GPL-3.0-or-later
"""npu_pod_gate against the API stand-in: the pod that it makes, what it tells, and that it is gone afterwards."""

import http.server
import json
import threading
import time
from pathlib import Path

import pytest
import yaml
from kube_cluster import POD
from kube_rig import TOKEN

from ansible_collections.npu.fleet.plugins.module_utils import _gates_pod, _gates_pod_api
from ansible_collections.npu.fleet.plugins.modules import npu_pod_gate

SEEN = {"nodes": {"davinci1": "236:1", "davinci_manager": "237:0"}, "env": {}, "libraries": {}}
ENDED = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "message": json.dumps(SEEN)}}}]}
REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError",
           "message": "Allocate failed due to rpc error: code = Unknown desc = /dev/davinci1 does not exist, which is unexpected"}


@pytest.fixture
def node(api, monkeypatch):
    """A kubelet that gives each pod of the node the status `node.status`; the pods that it has seen are in `node.pods`."""
    monkeypatch.setattr(_gates_pod_api, "POLL", 0.05)

    class Kubelet:
        status, over = ENDED, False

        def run(self):
            while not self.over:
                for pod in api.stores[POD].list():
                    name = pod["metadata"]["name"]
                    if name not in [one["metadata"]["name"] for one in self.pods]:
                        self.pods.append(pod)
                        key = f"{pod['metadata']['namespace']}/{name}"
                        api.stores[POD].patch(key, "application/merge-patch+json", {"status": self.status}, "status")
                time.sleep(0.02)

    kubelet = Kubelet()
    kubelet.pods = []
    thread = threading.Thread(target=kubelet.run)
    thread.start()
    yield kubelet
    kubelet.over = True
    thread.join()


def run(kubeconfig, check_mode=False, token=TOKEN, **changes):
    params = {"node": "node-01", "namespace": "default", "image": "debian", "resource": "huawei.com/Ascend910",
              "chips": [["davinci0"], ["davinci1"]], "managers": ["davinci_manager"], "libraries": [], "runtime_class": None,
              "timeout": 60.0, "kubeconfig": kubeconfig, "context": None}
    hidden = set()
    answer = npu_pod_gate.run(dict(params, **changes), check_mode, hidden.update)
    assert check_mode or token in hidden
    assert token not in json.dumps(answer)
    return answer


def test_a_pod_that_sees_its_chip(api, kubeconfig, node):
    answer = run(kubeconfig)
    assert answer["passed"] is True, answer
    assert answer["summary"] == "L4 passed (by pod)"
    assert answer["changed"] is False
    (pod,) = node.pods
    assert pod["spec"]["nodeName"] == "node-01"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"huawei.com/Ascend910": "1"}
    assert api.stores[POD].list() == []


def test_one_that_is_refused_shows_the_plugins_words_and_is_deleted(api, kubeconfig, node):
    node.status = REFUSED
    answer = run(kubeconfig)
    assert answer["passed"] is False
    assert answer["failures"][0].startswith("L4 pod: pod runs: UnexpectedAdmissionError: Allocate failed due to rpc error")
    assert "/dev/davinci1 does not exist" in answer["failures"][0]
    assert api.stores[POD].list() == []


def test_one_that_never_runs_ends_in_its_time(api, kubeconfig, node):
    node.status = {"phase": "Pending"}
    answer = run(kubeconfig, timeout=4.0)
    assert "was not over within 4 s: phase Pending" in answer["failures"][0]
    assert api.stores[POD].list() == []


def test_what_a_cut_run_left_is_deleted_first_and_another_runs_pod_stays(api, kubeconfig, node):
    def left(node, mark, created):
        made = _gates_pod.manifest(node, mark, namespace="default", image="x", resource="huawei.com/npu")
        api.stores[POD].create(made)
        key = f"default/{made['metadata']['name']}"
        api.stores[POD]._objects[key]["metadata"]["creationTimestamp"] = created
        return made["metadata"]["name"]

    for number in range(2):
        left("node-01", f"old{number}", "2026-01-01T00:00:00Z")
    other = left("node-02", "theirs", "2026-01-01T00:00:00Z")
    young = left("node-01", "young", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    assert run(kubeconfig)["passed"]
    # Another node's gate may be at work, and another run's on this node.
    assert sorted(one["metadata"]["name"] for one in api.stores[POD].list()) == sorted([other, young])


def test_a_full_node_is_not_judged(api, kubeconfig, node):
    message = "Node didn't have enough resource: huawei.com/Ascend910, requested: 1, used: 8, capacity: 8"
    node.status = {"phase": "Failed", "reason": "OutOfhuawei.com/Ascend910", "message": message}
    answer = run(kubeconfig)
    assert (answer["passed"], answer["failures"]) == (None, [])
    assert answer["summary"] == f"L4 not judged (all in use: {message})"
    assert api.stores[POD].list() == []


def test_an_api_that_drips_is_given_up_in_its_time(tmp_path, api, kubeconfig, monkeypatch):
    """Each byte starts the client's own time anew."""
    monkeypatch.setattr(_gates_pod_api, "CLEANING", 1.0)
    monkeypatch.setattr(_gates_pod_api, "WORDS", 0.5)

    class Drips(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            try:
                for _byte in range(600):
                    self.wfile.write(b" ")
                    time.sleep(0.2)
            except OSError:
                pass

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Drips)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = yaml.safe_load(Path(kubeconfig).read_text())
    config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{server.server_port}"}
    (tmp_path / "drips").write_text(yaml.safe_dump(config))
    try:
        began = time.monotonic()
        answer = run(str(tmp_path / "drips"), timeout=1.0)
        assert time.monotonic() - began < 60
    finally:
        server.shutdown()
    assert answer["passed"] is False
    assert "what an earlier run may have left cannot be deleted" in answer["failures"][0]


def test_a_pod_is_deleted_though_the_one_who_waits_for_it_hangs(api, kubeconfig, node, monkeypatch):
    monkeypatch.setattr(_gates_pod_api, "WORDS", 0.5)

    def hangs(connect, body, *_more):
        connect(60).create(body)
        time.sleep(600)

    monkeypatch.setattr(_gates_pod_api, "watch", hangs)
    answer = run(kubeconfig, timeout=3.0)
    assert "the Kubernetes API does not finish its answer" in answer["failures"][0]
    assert len(node.pods) == 1
    assert api.stores[POD].list() == []


def test_a_user_without_the_right_is_told_which(api, tmp_path, node):
    viewer = api.add_user("viewer", ("get", "list"))
    answer = run(str(api.kubeconfig(tmp_path / "viewer", viewer)), token=viewer)
    assert answer["passed"] is False
    assert "lacks the verb 'create' on resource 'pods'" in answer["failures"][0]


def test_check_mode_makes_no_pod(api, kubeconfig, node):
    answer = run(kubeconfig, check_mode=True)
    assert answer["passed"] is None
    assert node.pods == []
