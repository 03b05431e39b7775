# SPDX-License-Identifier: GPL-3.0-or-later
"""npu_pod_gate against the API stand-in: the pod that it makes, what it tells, and that it is gone afterwards."""

import json
import threading
import time

import pytest
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
    answer = run(kubeconfig, timeout=1.0)
    assert "was not over within 1 s: phase Pending" in answer["failures"][0]
    assert api.stores[POD].list() == []


def test_what_a_cut_run_left_is_deleted_first(api, kubeconfig, node):
    for number in range(2):
        api.stores[POD].create(_gates_pod.manifest("node-01", f"old{number}", namespace="default", image="x", resource="huawei.com/npu"))
    other = _gates_pod.manifest("node-02", "theirs", namespace="default", image="x", resource="huawei.com/npu")
    api.stores[POD].create(other)
    assert run(kubeconfig)["passed"]
    # Another node's gate may be at work.
    assert [one["metadata"]["name"] for one in api.stores[POD].list()] == [other["metadata"]["name"]]


def test_a_user_without_the_right_is_told_which(api, tmp_path, node):
    viewer = api.add_user("viewer", ("get", "list"))
    answer = run(str(api.kubeconfig(tmp_path / "viewer", viewer)), token=viewer)
    assert answer["passed"] is False
    assert "lacks the verb 'create' on resource 'pods'" in answer["failures"][0]


def test_check_mode_makes_no_pod(api, kubeconfig, node):
    answer = run(kubeconfig, check_mode=True)
    assert answer["passed"] is None
    assert node.pods == []
