# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a DaemonSet on a real node: image without a registry, the manifest's containers by the node's containerd, with the device
nodes that they need and no more, and no right that is not used.

Collected only by the lane `system`: it boots a node. The tests build on each other in the order they stand in. What kubelet does between
manifest and engine is in tests/cri/pods.py; admission and the device plugin API are those of the kubelet stand-in.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests" / place) for place in ("lab", "cri", "nodes", "kube", "image")]
import base
import lab
import pods
from api_server import ApiServer
from cri import connect, prepare
from npu_nodes import Nodes

from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_image, _agent_manifest, _agent_pod

NAME = "daemonset"
(NODE,) = lab.node_names(NAME, 1)
RESOURCE, CHIPS = "npu.fleet/agent", "huawei.com/Ascend910"
DRIVER = "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"
#: The simulated library reads what the hardware is like from there; on real hardware that is behind the device nodes.
SIMULATED = ({"container_path": "/var/lib/npu-sim", "host_path": "/var/lib/npu-sim", "readonly": True},)
#: Of every container, by the OCI runtime specification, and the engine's own.
ALWAYS = {"core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "termination-log", "tty",
          "urandom", "zero"}
NPU = {"davinci_manager", "devmm_svm", "hisi_hdc", *(f"davinci{number}" for number in range(8))}
LOOK = """
import json, os
def may(path, flags):
    try:
        os.close(os.open(path, flags))
        return True
    except OSError as error:
        return error.strerror
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(json.dumps({
    "dev": os.listdir("/dev"), "caps": int(status["CapEff"], 16), "bounding": int(status["CapBnd"], 16),
    "new_privileges": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(),
    "root": may("/x", os.O_CREAT | os.O_WRONLY), "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "sockets": [name for name in os.listdir("/var/run") if name.endswith(".sock")] if os.path.isdir("/var/run") else [],
    "host_chip": may("/host/dev/davinci0", os.O_RDONLY), "host_disk": may("/host/dev/loop0", os.O_RDONLY),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
}))
"""
CAPABILITIES = {"DAC_OVERRIDE": 1, "SYSLOG": 34}


def until(check, what, seconds=90.0):
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what} (last: {answer!r})"
        time.sleep(0.2)


class World:
    """The node, its containerd, and an API server that knows RBAC."""

    def __init__(self, folder):
        self.nodes, self.folder = Nodes(), folder
        self.docker = f"unix://{self.nodes.folder}/engine/docker.sock"
        self.running = {}

    def exec(self, *argv, check=True):
        return self.nodes.exec(NODE, list(argv), check=check).stdout

    def ctl(self, *argv):
        return json.loads(self.exec("kubelet-ctl", *argv))

    def allocatable(self, resource):
        return self.ctl("allocatable").get(resource)

    def look(self, container):
        code, out, err = self.client.exec(container, ["python3", "-I", "-c", LOOK])
        assert code == 0, err
        return json.loads(out)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    lab.build()
    lab.up(NAME, engine="containerd")
    made = World(tmp_path_factory.mktemp("daemonset"))
    prepare(made.nodes, NODE)
    made.nodes.engine.docker("cp", str(lab.BUILD / "depot" / DRIVER), f"{NODE}:/root/driver.run")
    made.exec("useradd", "HwHiAiUser")
    made.exec("bash", "/root/driver.run", "--nox11", "--full", "--quiet", "--install-for-all")
    made.exec("npu-sim", "load-driver")
    with connect(made.nodes, NODE) as client, ApiServer((lab.GATEWAY, 0), tls_dir=str(made.folder / "tls")) as api:
        made.client, made.api = client, api
        made.node = pods.Node(made.nodes, NODE, client)
        yield made
    lab.down(NAME)


@pytest.fixture(scope="module")
def image(world):
    """Built on a base that mmdebstrap made; no registry is there to ask."""
    name = base.load(world.docker, lab.BUILD / "image-base")
    patch = pytest.MonkeyPatch()
    patch.setenv("DOCKER_HOST", world.docker)
    built, _changed = _agent_image.build(str(lab.BUILD / "image-cache"), base=name, builder="docker")
    patch.undo()
    return built


@pytest.fixture(scope="module")
def objects(image):
    return _agent_manifest.manifests({"image": image.name, "config": {"poll_seconds": 0.5, "recovery_seconds": 0}})


@pytest.fixture(scope="module")
def specs(objects):
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects if one["kind"] == "DaemonSet"}


def load(world, image):
    """Run the module on the node over ssh; how many remote calls that took, and what it said."""
    world.nodes.reset_calls(NODE)
    (world.folder / "load.yml").write_text(json.dumps([{
        "hosts": "npu_nodes", "gather_facts": False, "vars": {"ansible_python_interpreter": "/usr/bin/python3"}, "tasks": [
            {"npu.fleet.agent_image": {"state": "loaded", "name": image.name, "archive": image.path, "sha256": image.sha256,
                                       "engine": "containerd"}}]}]))
    folder = lab.BUILD / "lab" / NAME
    done = subprocess.run([Path(sys.executable).parent / "ansible-playbook", world.folder / "load.yml"], cwd=folder, capture_output=True,
                          text=True, env=lab.environment(folder), check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return len(world.nodes.calls(NODE)), "changed=1" in done.stdout


def test_the_image_comes_to_the_node_once(world, image):
    first, again = load(world, image), load(world, image)
    print(f"remote calls: {first[0]} to bring it, {again[0]} where it is")
    assert first[1] and not again[1]
    assert (first[0], again[0]) == (3, 1)  # a look, the file, and what is done with it
    assert world.client.has_image(image.name)
    assert "npu-agent-image" not in world.exec("ls", "/var/tmp")


def test_access_runs_without_any_right(world, specs):
    spec = specs["npu-agent-access"]
    pod = world.node.sandbox("npu-agent-access", "npu-fleet", spec, {})
    world.running["access"] = container = world.node.start(pod, spec["containers"][0])
    until(lambda: world.allocatable(RESOURCE) == 1, "the resource of the agent at the kubelet")
    seen = world.look(container)
    assert set(seen["dev"]) - ALWAYS == set() and seen["caps"] == seen["bounding"] == 0
    assert seen["root"] == "Read-only file system" and seen["new_privileges"] == "1" and seen["seccomp"] == "2" and not seen["token"]
    assert seen["host_chip"] == seen["host_disk"] == "Operation not permitted"  # it sees them, and the device cgroup lets it open none


def test_the_agent_gets_the_nodes_of_the_driver_and_no_more(world, specs, objects):
    spec = specs["npu-agent"]
    admitted = world.ctl("allocate", "1", RESOURCE, "--pod", "npu-agent-1")
    assert admitted["phase"] in ("Pending", "Running"), admitted
    (agent,) = (one for one in spec["containers"] if one["name"] == "agent")
    pod = world.node.sandbox("npu-agent", "npu-fleet", spec, {"spec.nodeName": NODE, "status.hostIP": world.nodes.ip(NODE)})
    (config,) = (one for one in objects if one["kind"] == "ConfigMap")
    world.node.project(pod, "etc-npu-agent", config["data"])
    world.pod, world.agent = pod, agent
    world.running["agent"] = container = world.node.start(pod, agent, admitted["response"], more=SIMULATED)
    until(lambda: world.allocatable(CHIPS) == 8, "8 chips at the kubelet")
    seen = world.look(container)
    assert set(seen["dev"]) - ALWAYS == NPU | {"kmsg"}
    wanted = sum(1 << CAPABILITIES[name] for name in agent["securityContext"]["capabilities"]["add"])
    assert seen["caps"] == seen["bounding"] == wanted
    assert seen["root"] == "Read-only file system" and seen["new_privileges"] == "1" and seen["seccomp"] == "2" and not seen["token"]
    assert seen["processes"] <= 6  # its own: no process of the host


def test_probes_of_the_manifest_answer(world):
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = world.agent[probe]["httpGet"]
        url = f"http://{world.nodes.ip(NODE)}:{_agent_pod.PORT}{get['path']}"
        code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)"
        assert world.exec("python3", "-c", code, url).strip() == "200"


def test_pods_get_chips_from_it(world):
    given = world.ctl("allocate", "2", CHIPS, "--pod", "job")
    assert given["phase"] == "Running", given
    chips = [one["host_path"] for one in given["container"]["devices"] if one["host_path"].startswith("/dev/davinci")]
    assert len([path for path in chips if path != "/dev/davinci_manager"]) == 2
    assert {one["type"] for one in given["container"]["devices"]} == {"c"}  # they are there on the host, by these paths


def test_a_chip_that_is_lost_is_told(world):
    world.exec("npu-sim", "set", "chips.3.health", "3", "chips.3.error_codes", '["80E01801"]')
    until(lambda: world.allocatable(CHIPS) == 7, "7 of 8")
    world.exec("npu-sim", "set", "chips.3.health", "0", "chips.3.error_codes", "[]")
    until(lambda: world.allocatable(CHIPS) == 8, "8 again")


def test_kubelet_may_start_anew(world):
    world.ctl("restart")
    until(lambda: world.allocatable(CHIPS) == 8 and world.allocatable(RESOURCE) == 1, "both registered with the new kubelet")


def test_an_end_leaves_nothing_and_takes_less_than_its_grace(world, specs):
    seconds = world.node.stop(world.running["agent"], specs["npu-agent"]["terminationGracePeriodSeconds"])
    assert seconds < specs["npu-agent"]["terminationGracePeriodSeconds"]
    world.node.stop(world.running["access"], 5)
    assert [name for name in world.exec("ls", "/var/lib/kubelet/device-plugins").split() if name.startswith("npu-agent")] == []
