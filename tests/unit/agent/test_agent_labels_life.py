# SPDX-License-Identifier: GPL-3.0-or-later
"""The process `npu-agent labels` beside a real `serve`, at the API stand-in."""

import json
import signal
import time

from agent_rig import until
from labels_rig import AGENT_TAINT, OTHER_TAINT, metadata, taints


def labels(rig, agent, kubeconfig, command=("labels",), **settings):
    made = rig.agent(name="labels", command=command, listen=f"127.0.0.1:{agent.port}", kubeconfig=kubeconfig,
                     label_poll=0.1, label_period=1, **{"node_name": "node-01", "taint_after": 1.5, **settings})
    made.port = agent.port
    return made


def test_a_driver_that_is_lost_and_comes_back(rig, kube_api, kubeconfig):
    """The taint comes while the driver is away, and goes; a stop of a second does not bring it; no serial number leaves the node."""
    rig.kubelet()
    agent = rig.agent(keep_last_state=0)
    agent.await_state("serving")
    kube_api.store.patch("node-01", "application/merge-patch+json", {"spec": {"taints": [OTHER_TAINT]}})
    writer = labels(rig, agent, kubeconfig)
    until(lambda: metadata(kube_api)["labels"].get("npu.fleet/ready") == "true", what="labels")
    assert metadata(kube_api)["labels"].items() >= {
        "npu.fleet/family": "a2", "npu.fleet/chips": "8", "npu.fleet/driver-version": "25.5.0", "accelerator": "huawei-Ascend910",
        "node.kubernetes.io/npu.chip.name": "910B3", "rack": "r7"}.items()
    facts = json.loads(agent.get("/node")[1])
    serials = {chip["serial"] for chip in rig.chips()}
    told = json.dumps([facts, metadata(kube_api)]) + writer.text()
    assert facts["serial_hash"] and not any(serial in told for serial in serials)

    rig.change("kernel.driver_loaded", False)
    until(lambda: AGENT_TAINT in taints(kube_api), what="the taint")
    assert taints(kube_api)[0] == OTHER_TAINT and metadata(kube_api)["labels"]["npu.fleet/ready"] == "false"
    assert metadata(kube_api)["labels"]["npu.fleet/family"] == "a2" and "npu.fleet/driver-version" not in metadata(kube_api)["labels"]
    rig.change("kernel.driver_loaded", True)
    until(lambda: taints(kube_api) == [OTHER_TAINT], what="no taint")
    assert metadata(kube_api)["labels"]["npu.fleet/driver-version"] == "25.5.0"

    agent.process.send_signal(signal.SIGSTOP)
    until(lambda: AGENT_TAINT in taints(kube_api), what="the taint of an agent that hangs")
    agent.process.send_signal(signal.SIGCONT)
    until(lambda: taints(kube_api) == [OTHER_TAINT], what="no taint")

    kube_api.store.delete("node-01")
    until(lambda: any("missing" in line["event"] for line in writer.events()), what="the missing Node is told")
    kube_api.add_node("node-01", labels={"rack": "r8"})
    until(lambda: metadata(kube_api)["labels"].get("npu.fleet/ready") == "true", what="labels of the new Node")
    assert writer.stop() == 0
    assert writer.events("stopped") and metadata(kube_api)["labels"]["npu.fleet/ready"] == "true"
    assert labels(rig, agent, kubeconfig, ("labels", "--remove")).process.wait(60) == 0
    assert set(metadata(kube_api)["labels"]) == set(kube_api.add_node("node-02", labels={"rack": "r8"})["metadata"]["labels"])


def test_once_and_what_is_missing_is_told(rig, kube_api, kubeconfig, tmp_path):
    agent = rig.agent()
    agent.await_state("waiting_for_kubelet")
    nobody = str(kube_api.kubeconfig(tmp_path / "nobody", kube_api.add_user("nobody", {})))
    writer = labels(rig, agent, nobody, taint_after=0)
    until(lambda: "right to get the resource nodes is missing" in writer.text(), what="the missing right")
    assert writer.process.poll() is None
    writer.stop()
    assert labels(rig, agent, kubeconfig, ("labels", "--once")).process.wait(60) == 0
    assert taints(kube_api) == [AGENT_TAINT] and metadata(kube_api)["labels"]["npu.fleet/ready"] == "false"
    nameless = labels(rig, agent, kubeconfig, node_name="")
    assert nameless.process.wait(60) == 2 and "NODE_NAME" in nameless.text()


def test_it_ends_at_once_though_the_api_hangs(rig, deaf):
    rig.kubelet()
    agent = rig.agent()
    agent.await_state("serving")
    writer = labels(rig, agent, deaf.kubeconfig)
    connection, _address = deaf.socket.accept()
    started = time.monotonic()
    assert writer.stop() == 0 and time.monotonic() - started < 8.0  # a request may last 10 s
    connection.close()
