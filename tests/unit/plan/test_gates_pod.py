# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L4 by a pod: the pod has no right too many, each way in which it can fail is told in words, and it is deleted whatever happens."""

import json
import subprocess

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _gates_pod as pods
from ansible_collections.npu.fleet.plugins.module_utils import _gates_pod_api as api
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

CHIPS, MANAGERS = [["davinci0"], ["davinci1"]], ["davinci_manager", "hisi_hdc"]
SEEN = {"nodes": {"null": "1:3", "davinci1": "236:1", "davinci_manager": "237:0", "hisi_hdc": "238:0"}, "env": {}, "libraries": {}}
MORE = {"namespace": "default", "image": "debian", "resource": "huawei.com/Ascend910"}


def status(phase, state=None, **more):
    return {"status": dict({"phase": phase, "containerStatuses": [{"name": "gate", "state": state}] if state else []}, **more)}


def ended(code=0, text=None, phase="Succeeded"):
    return status(phase, {"terminated": {"exitCode": code, "message": json.dumps(SEEN) if text is None else text}})


def test_the_pod_has_no_right_that_it_does_not_need():
    made = pods.manifest("node-01", "abc", libraries=["libascend_hal.so"], seconds=90, **MORE)
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert spec["nodeName"] == "node-01"
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] == 90
    assert spec["tolerations"] == [{"key": "npu.fleet/not-ready", "operator": "Exists", "effect": "NoSchedule"}]
    assert container["resources"] == {"limits": {"huawei.com/Ascend910": "1"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert spec["securityContext"]["runAsNonRoot"] is True
    # A mount of /dev or a privileged pod would hide what was given (field report F15).
    assert not {"volumes", "hostPID", "hostNetwork", "hostIPC"} & set(spec)
    assert "volumeMounts" not in container
    assert "runtimeClassName" not in spec


def test_a_pod_of_a_long_node_name_is_found_again():
    node = "n" * 60 + "." + "m" * 60 + ".example.com"
    made = pods.manifest(node, "abc", **MORE)
    labels = made["metadata"]["labels"]
    assert len(labels["npu.fleet/gate-node"]) <= 63
    assert pods.selector(node) == f"npu.fleet/gate=L4,npu.fleet/gate-node={labels['npu.fleet/gate-node']}"
    assert pods.selector(node) != pods.selector(node.replace("example", "exemple"))
    assert len(made["metadata"]["name"]) <= 63


@pytest.mark.parametrize(("pod", "wanted"), [
    (ended(), (True, None, None)),
    (ended(3, "", "Failed"), (True, "its container ended with 3", None)),
    (status("Failed", reason="UnexpectedAdmissionError", message="Allocate failed due to rpc error: no node"), (
        True, "UnexpectedAdmissionError: Allocate failed due to rpc error: no node", None)),
    (status("Failed", {"terminated": {"exitCode": 137}}, reason="DeadlineExceeded", message="too long"), (
        True, "its container ended with 137: DeadlineExceeded: too long", None)),
    (status("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}), (
        True, "ImagePullBackOff: no such image", None)),
    (status("Pending", {"waiting": {"reason": "CreateContainerError", "message": "lstat /dev/davinci0"}}), (
        True, "CreateContainerError: lstat /dev/davinci0", None)),
    (status("Pending", {"waiting": {"reason": "ContainerCreating"}}), (False, None, "ContainerCreating")),
    (status("Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]), (
        False, None, "Unschedulable: 0/1 nodes")),
    (status("Running", {"running": {}}), (False, None, "phase Running")),
    ({}, (False, None, "phase unknown")),
])
def test_what_a_status_means(pod, wanted):
    assert pods.progress(pod) == wanted


@pytest.mark.parametrize(("text", "good"), [
    (json.dumps(SEEN), True), ("", False), ("{", False), ("[]", False), ('{"nodes": [], "env": {}, "libraries": {}}', False),
])
def test_what_the_pod_left(text, good):
    assert (pods.message(ended(text=text)) is not None) is good


@pytest.mark.parametrize(("names", "passed", "words"), [
    ("davinci1 davinci_manager hisi_hdc", True, "saw davinci1"),
    ("davinci_manager hisi_hdc", False, "asked for one chip, saw davinci_manager hisi_hdc"),
    ("davinci0 davinci1 davinci_manager hisi_hdc", False, "asked for one chip, saw davinci0 davinci1"),
    ("davinci1 davinci7 davinci_manager hisi_hdc", False, "davinci7"),
    ("davinci1 davinci_manager", False, "missing: hisi_hdc"),
    ("null", False, "saw no node of an NPU"),
])
def test_devices_of_exactly_one_chip(names, passed, words):
    seen = {"nodes": dict.fromkeys(names.split(), "1:1")}
    found = pods.devices(seen, CHIPS, MANAGERS)
    assert found[0] is passed
    assert words in found[1]


def test_a_boards_chip_has_several_nodes():
    chips = [["dri/card1", "dri/renderD129"]]
    assert pods.devices({"nodes": {"dri/card1": "226:1", "dri/renderD129": "226:129"}}, chips, [])[0]
    assert not pods.devices({"nodes": {"dri/card1": "226:1"}}, chips, [])[0]


def checks(libraries=(), **outcome):
    rows = pods.checks(dict({"pod": "p", "failure": None, "seen": SEEN, "warnings": [], "left": []}, **outcome), CHIPS, MANAGERS, libraries)
    assert all(row["hint"] for row in rows)
    return {row["name"]: (row["passed"], row["detail"]) for row in rows}


def test_nodes_and_libraries_are_told_apart():
    seen = dict(SEEN, libraries={"libascend_hal.so": "ok", "libascendcl.so": "cannot open shared object file"})
    found = checks(["libascend_hal.so", "libascendcl.so", "libx.so"], seen=seen)
    assert found["pod has the devices of one chip"][0]
    assert found["pod loads its libraries"] == (
        False, "libascendcl.so: cannot open shared object file; libx.so: not tried (LD_LIBRARY_PATH is not set)")


def test_a_failure_carries_the_warnings_of_its_events():
    found = checks(failure="ImagePullBackOff: back-off", warnings=["Failed: no such host", "ImagePullBackOff: back-off"])
    assert found == {"pod runs": (False, "ImagePullBackOff: back-off; Failed: no such host"), "no pod is left": (True, "deleted")}
    assert pods.warnings([
        {"type": "Warning", "reason": "B", "message": "b", "lastTimestamp": "2"}, {"type": "Normal", "reason": "N", "message": "n"},
        {"type": "Warning", "reason": "A", "message": "a", "lastTimestamp": "1"}, {"type": "Warning", "reason": "B", "message": "b"},
    ]) == ["B: b", "A: a"]


def test_one_that_leaves_nothing_says_what_its_image_lacks():
    assert "has its image /bin/sh" in checks(seen=None)["pod runs"][1]
    assert checks(left=["pod x"])["no pod is left"] == (False, "pod x")


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_the_script_tells_what_a_container_has(shell, tmp_path):
    """Run here, where there are other devices, but the same shell and tools as in an image."""
    told = tmp_path / "told"
    script = pods.SCRIPT.replace(pods.MESSAGE, str(told))
    env = {"PATH": "/usr/bin:/bin", "NPU_FLEET_LIBRARIES": "libc.so.6 libnone-such.so.1", "LD_LIBRARY_PATH": '/a:/b"$(reboot)',
           "ASCEND_VISIBLE_DEVICES": "1"}
    subprocess.run([shell, "-c", script], env=env, check=True, timeout=60)
    seen = json.loads(told.read_text())
    assert seen["nodes"]["null"] == "1:3"
    assert "stdin" not in seen["nodes"]
    assert seen["env"] == {"ASCEND_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/a:/breboot"}
    assert seen["libraries"]["libc.so.6"] == "ok"
    assert "libnone-such.so.1" in seen["libraries"]["libnone-such.so.1"] or "not found" in seen["libraries"]["libnone-such.so.1"]


class Cluster:
    """A namespace in which each pod goes through the given states; what is not given stays as it is."""

    def __init__(self, *states, **odd):
        self.states, self.odd = list(states), odd
        self.pods, self.log = dict.fromkeys(odd.get("leftovers", ()), {}), []

    def connect(self, _seconds):
        return self

    def create(self, body):
        self.log.append("create")
        if self.odd.get("refused"):
            raise FleetError("The Kubernetes API forbids to create the Pod.", "kube_forbidden", hint="Grant it.")
        self.pods[body["metadata"]["name"]] = body

    def get(self, name):
        if self.odd.get("lost"):
            raise FleetError("Cannot reach the Kubernetes API.", "kube_unreachable")
        if len(self.states) > 1:
            return self.states.pop(0)
        return self.states[0] if name in self.pods else None

    def names(self, selector):
        assert selector == pods.selector("node-01")
        return sorted(self.pods)

    def delete(self, name):
        self.log.append("delete")
        if not self.odd.get("stuck"):
            del self.pods[name]

    def events(self, _name):
        return [{"type": "Warning", "reason": "Failed", "message": "pull"}]


def attempt(monkeypatch, cluster, seconds=30.0):
    monkeypatch.setattr(api, "POLL", 0.01)
    monkeypatch.setattr(api, "CLEANING", 0.2)
    return api.try_pod(cluster.connect, "node-01", seconds, **MORE)


def test_a_pod_that_ends_well_is_read_and_deleted(monkeypatch):
    cluster = Cluster(status("Pending"), status("Running", {"running": {}}), ended())
    outcome = attempt(monkeypatch, cluster)
    assert (outcome["failure"], outcome["seen"], outcome["left"]) == (None, SEEN, [])
    assert cluster.log == ["create", "delete"]
    assert cluster.pods == {}


def test_what_a_cut_run_left_goes_first(monkeypatch):
    cluster = Cluster(ended(), leftovers=["old-1", "old-2"])
    assert attempt(monkeypatch, cluster)["failure"] is None
    assert cluster.log == ["delete", "delete", "create", "delete"]


@pytest.mark.parametrize(("cluster", "words"), [
    (Cluster(status("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such host"}})), "ImagePullBackOff: no such host"),
    (Cluster(status("Failed", reason="UnexpectedAdmissionError", message="m")), "UnexpectedAdmissionError: m"),
    (Cluster(ended(), refused=True), "forbids to create the Pod. Grant it."),
    (Cluster(ended(), lost=True), "Cannot reach the Kubernetes API."),
    (Cluster(None), "somebody has deleted"),
])
def test_each_end_deletes_the_pod(monkeypatch, cluster, words):
    outcome = attempt(monkeypatch, cluster)
    assert words in outcome["failure"]
    assert outcome["seen"] is None
    assert cluster.pods == {}


def test_one_that_never_ends_fails_in_its_time_with_what_it_waits_for(monkeypatch):
    cluster = Cluster(status("Pending", {"waiting": {"reason": "ContainerCreating"}}))
    outcome = attempt(monkeypatch, cluster, 0.3)
    assert "was not over within 0.3 s: ContainerCreating" in outcome["failure"]
    assert outcome["warnings"] == ["Failed: pull"]
    assert cluster.pods == {}


def test_one_that_cannot_be_deleted_is_told(monkeypatch):
    outcome = attempt(monkeypatch, Cluster(ended(), stuck=True))
    assert len(outcome["left"]) == 1
    assert outcome["failure"] is None
    again = attempt(monkeypatch, Cluster(ended(), stuck=True, leftovers=["old"]))
    assert again["failure"] == "what an earlier run may have left cannot be deleted: pod old"
