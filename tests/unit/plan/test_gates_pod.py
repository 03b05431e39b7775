# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L4 by a pod: the pod has no right too many, each way in which it can fail is told in words, and it is deleted whatever happens."""

import json
import os
import stat
import subprocess
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _gates_pod as pods
from ansible_collections.npu.fleet.plugins.module_utils import _gates_pod_api as api
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import Looked

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


def test_the_node_of_a_slice_is_right_for_a_slice():
    seen = {"nodes": dict.fromkeys(("davinci100", "davinci_manager", "hisi_hdc"), "1:1")}
    assert pods.devices(seen, [["davinci100"], ["davinci101"]], MANAGERS)[0]
    seen["nodes"]["davinci0"] = "1:1"
    assert not pods.devices(seen, [["davinci100"], ["davinci101"]], MANAGERS)[0]


@pytest.mark.parametrize("other", ["dri/card0", "dri/renderD128", "accel/accel0"])
def test_on_a_board_the_node_of_anything_else_is_strange(other):
    chips = [["dri/card1", "dri/renderD129"], ["accel/accel1"]]
    seen = dict.fromkeys(("dri/card1", "dri/renderD129", other), "226:0")
    passed, detail = pods.devices({"nodes": seen}, chips, [])
    assert not passed
    assert other in detail
    # A server's GPU has nothing to do with its cards.
    assert pods.devices({"nodes": dict(SEEN["nodes"], **{other: "226:0"})}, CHIPS, MANAGERS)[0]


def test_nodes_that_had_no_room_are_no_pass():
    passed, detail = pods.devices(dict(SEEN, cut=7), CHIPS, MANAGERS)
    assert not passed
    assert "and 7 more" in detail


def test_a_boards_chip_has_several_nodes():
    chips = [["dri/card1", "dri/renderD129"]]
    assert pods.devices({"nodes": {"dri/card1": "226:1", "dri/renderD129": "226:129"}}, chips, [])[0]
    assert not pods.devices({"nodes": {"dri/card1": "226:1"}}, chips, [])[0]


def checks(libraries=(), **outcome):
    usual = {"pod": "p", "why": None, "failure": None, "seen": SEEN, "warnings": [], "left": []}
    rows = pods.checks(dict(usual, **outcome), CHIPS, MANAGERS, libraries)
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
           "NPU_FLEET_NODES": "null stdin other",
           "ASCEND_VISIBLE_DEVICES": "1"}
    subprocess.run([shell, "-c", script], env=env, check=True, timeout=60)
    seen = json.loads(told.read_text())
    assert seen["nodes"]["null"] == "1:3"
    assert "stdin" not in seen["nodes"]
    assert "zero" not in seen["nodes"]
    assert seen["cut"] == 0
    assert seen["env"] == {"ASCEND_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/a:/breboot"}
    assert seen["libraries"]["libc.so.6"] == "ok"
    assert "libnone-such.so.1" in seen["libraries"]["libnone-such.so.1"] or "not found" in seen["libraries"]["libnone-such.so.1"]


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_what_the_pod_leaves_has_room_whatever_there_is(shell, tmp_path):
    """kubelet cuts it, and what is cut is no JSON any more."""
    told, names = tmp_path / "told", [f"libascend_with_a_long_name_{number}.so" for number in range(30)]
    devices = tmp_path / "dev" / "dri"
    devices.mkdir(parents=True)
    for number in range(120):
        os.mknod(devices / f"renderD{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    script = pods.SCRIPT.replace(pods.MESSAGE, str(told)).replace("/dev/*/*", f"{tmp_path}/dev/*/*").replace("#/dev/", f"#{tmp_path}/dev/")
    env = {"PATH": "/usr/bin:/bin", "NPU_FLEET_LIBRARIES": " ".join(names), "LD_LIBRARY_PATH": "/" + "x" * 4000,
           "ASCEND_RUNTIME_OPTIONS": "y" * 4000}
    subprocess.run([shell, "-c", script], env=env, check=True, timeout=60)
    text = told.read_text()
    assert len(text) <= 4096
    seen = json.loads(text)
    assert len(seen["nodes"]) + seen["cut"] == 120
    assert 40 < len(seen["nodes"]) < 120
    assert set(seen["libraries"]) == set(names)


FULL = "Node didn't have enough resource: huawei.com/Ascend910, requested: 1, used: 8, capacity: 8"


@pytest.mark.parametrize(("reason", "message", "why"), [
    ("OutOfhuawei.com/Ascend910", FULL, f"all in use: {FULL}"),
    ("OutOfhuawei.com/Ascend910", FULL.replace("8", "0"), None),  # kubelet has none at all
    ("OutOfcpu", FULL, None),
    ("UnexpectedAdmissionError", FULL, None),
    ("OutOfhuawei.com/Ascend910", "no numbers", None),
])
def test_a_full_node_is_not_judged(monkeypatch, reason, message, why):
    cluster = Cluster(status("Failed", reason=reason, message=message))
    outcome = attempt(monkeypatch, cluster)
    assert outcome["why"] == why
    rows = pods.checks(outcome, CHIPS, MANAGERS, ())
    assert (rows is None) is (why is not None)
    # A pod that stays there is a failure all the same.
    stays = pods.checks(dict(outcome, left=["pod x"]), CHIPS, MANAGERS, ())
    assert [row["name"] for row in stays if not row["passed"]] == (["no pod is left"] if why else ["pod runs", "no pod is left"])


def pod_of(name, age, deadline=120, **metadata):
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))
    return {"metadata": {"name": name, "creationTimestamp": created, **metadata}, "spec": {"activeDeadlineSeconds": deadline}}


def test_only_what_is_too_old_for_any_run_is_left_over():
    found = [pod_of("young", 100), pod_of("slow", 500, 400), pod_of("old", 500), pod_of("odd", 9999, creationTimestamp=None)]
    assert pods.leftovers(found, time.time()) == ["old"]


AWAY = FleetError("Cannot reach the Kubernetes API.", "kube_unreachable")
FORBIDDEN = FleetError("The Kubernetes API forbids to read the Pod.", "kube_forbidden")
GONE = object()


class Cluster:
    """A namespace in which a pod goes through the given states until it is deleted; the last one stays. An error is raised."""

    def __init__(self, *states, leftovers=None, **odd):
        self.states, self.odd, self.until = list(states), odd, 0.0
        self.pods, self.log = {name: pod_of(name, age) for name, age in (leftovers or {}).items()}, []

    def connect(self, seconds):
        self.until = time.monotonic() + seconds
        return self

    def left(self):
        return self.until - time.monotonic()

    def create(self, body):
        self.log.append("create")
        if "refused" in self.odd:
            raise FleetError("The Kubernetes API forbids to create the Pod.", "kube_forbidden", hint="Grant it.")
        self.pods[body["metadata"]["name"]] = body

    def get(self, name):
        if name not in self.pods:
            return None
        if self.log[-1:] != ["create"]:
            return self.pods[name]
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, FleetError):
            raise state
        if state is GONE:
            del self.pods[name]
            return None
        return state

    def matching(self, selector):
        assert selector == pods.selector("node-01")
        return list(self.pods.values())

    def delete(self, name):
        self.log.append(f"delete {name}")
        if self.odd.get("stumbles", 0) > 0:
            self.odd["stumbles"] -= 1
            raise AWAY
        if "stuck" not in self.odd:
            self.pods.pop(name, None)

    def events(self, _name):
        return [{"type": "Warning", "reason": "Failed", "message": "pull"}]


def attempt(monkeypatch, cluster, seconds=30.0):
    """Without processes, so that the cluster can be looked at; test_pod_gate.py has them."""
    monkeypatch.setattr(api, "POLL", 0.01)
    monkeypatch.setattr(api, "CLEANING", 0.3)
    monkeypatch.setattr(api, "within", lambda _seconds, look, _grace: Looked(look(), 0.0, False))
    return api.try_pod(cluster.connect, "node-01", seconds, **MORE)


def test_a_pod_that_ends_well_is_read_and_deleted(monkeypatch):
    cluster = Cluster(status("Pending"), status("Running", {"running": {}}), ended())
    outcome = attempt(monkeypatch, cluster)
    assert (outcome["failure"], outcome["seen"], outcome["left"]) == (None, SEEN, [])
    assert cluster.log == ["create", f"delete {outcome['pod']}"]
    assert cluster.pods == {}


def test_what_a_cut_run_left_goes_first_and_what_another_run_has_stays(monkeypatch):
    cluster = Cluster(ended(), leftovers={"old-1": 9000, "theirs": 5, "old-2": 9000})
    outcome = attempt(monkeypatch, cluster)
    assert outcome["failure"] is None
    assert cluster.log == ["delete old-1", "delete old-2", "create", f"delete {outcome['pod']}"]
    assert list(cluster.pods) == ["theirs"]


@pytest.mark.parametrize(("cluster", "words"), [
    (Cluster(status("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such host"}})), "ImagePullBackOff: no such host"),
    (Cluster(status("Failed", reason="UnexpectedAdmissionError", message="m")), "UnexpectedAdmissionError: m"),
    (Cluster(ended(), refused=True), "forbids to create the Pod. Grant it."),
    (Cluster(FORBIDDEN), "forbids to read the Pod."),
    (Cluster(GONE), "somebody has deleted"),
])
def test_each_end_deletes_the_pod(monkeypatch, cluster, words):
    outcome = attempt(monkeypatch, cluster)
    assert words in outcome["failure"]
    assert outcome["seen"] is None
    assert cluster.pods == {}


@pytest.mark.parametrize("error", [
    AWAY, FleetError("refused", "kube_error", observed="HTTP 500: etcd"), FleetError("busy", "kube_error", observed="HTTP 503: no"),
])
def test_an_api_that_is_away_for_a_moment_is_asked_again(monkeypatch, error):
    cluster = Cluster(status("Pending"), error, error, ended(), stumbles=2)
    outcome = attempt(monkeypatch, cluster)
    assert (outcome["failure"], outcome["seen"], outcome["left"]) == (None, SEEN, [])
    assert cluster.pods == {}


@pytest.mark.parametrize(("state", "words"), [
    (status("Pending", {"waiting": {"reason": "ContainerCreating"}}), "was not over within 0.3 s: ContainerCreating"),
    (AWAY, "was not over within 0.3 s: Cannot reach the Kubernetes API."),
])
def test_one_that_never_ends_fails_in_its_time_with_what_it_waits_for(monkeypatch, state, words):
    cluster = Cluster(state)
    outcome = attempt(monkeypatch, cluster, 0.3)
    assert words in outcome["failure"]
    assert outcome["warnings"] == ["Failed: pull"]
    assert cluster.pods == {}


def test_one_that_cannot_be_deleted_is_told(monkeypatch):
    outcome = attempt(monkeypatch, Cluster(ended(), stuck=True))
    assert outcome["left"] == [f"pod {outcome['pod']}"]
    assert outcome["failure"] is None
    again = attempt(monkeypatch, Cluster(ended(), stuck=True, leftovers={"old": 9000}))
    assert again["failure"] == "what an earlier run may have left cannot be deleted: pod old"
    stumbling = attempt(monkeypatch, Cluster(ended(), stumbles=1 << 20))
    assert stumbling["left"] == [f"pod {stumbling['pod']}: Cannot reach the Kubernetes API."]
