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
import yaml
from api_server import ApiServer
from cri import connect, prepare
from daemonset_rig import NAME, NODE, RESOURCE, SIMULATED, Runner, World, plain
from kube_cluster import DAEMON_SET, NAMESPACE

from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_image, _agent_manifest, _agent_pod

CHIPS = "huawei.com/Ascend910"
DRIVER = "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"
#: Of every container, by the OCI runtime specification, and the engine's own.
ALWAYS = {"core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "termination-log", "tty",
          "urandom", "zero"}
NPU = {"davinci_manager", "devmm_svm", "hisi_hdc", *(f"davinci{number}" for number in range(8))}
CAPABILITIES = {"DAC_OVERRIDE": 1, "SYSLOG": 34}


def until(check, what, seconds=90.0):
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what} (last: {answer!r})"
        time.sleep(0.2)


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
    # As the driver leaves its nodes on a real server; the simulated ones are root's.
    made.exec("sh", "-c", "chown HwHiAiUser:HwHiAiUser /dev/davinci* && chmod 0660 /dev/davinci*")
    with connect(made.nodes, NODE) as client, ApiServer((lab.GATEWAY, 0), tls_dir=str(made.folder / "tls")) as api:
        made.client, made.api, made.admin = client, api, api.add_user("admin")
        api.add_node(NODE)
        api.kubeconfig(made.folder / "kubeconfig", made.admin)
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
    # It sees them. The device cgroup lets it open none, and a chip's node is not even its to open.
    assert seen["host_disk"] == "Operation not permitted" and seen["host_chip"] == "Permission denied"


def test_the_agent_gets_the_nodes_of_the_driver_and_no_more(world, specs, objects):
    spec = specs["npu-agent"]
    admitted = world.ctl("allocate", "1", RESOURCE, "--pod", "npu-agent-1")
    assert admitted["phase"] in ("Pending", "Running"), admitted
    world.given = admitted
    (agent,) = (one for one in spec["containers"] if one["name"] == "agent")
    pod = world.node.sandbox("npu-agent", "npu-fleet", spec, {"spec.nodeName": NODE, "status.hostIP": world.nodes.ip(NODE)})
    (config,) = (one for one in objects if one["kind"] == "Secret")
    world.node.project(pod, "etc-npu-agent", plain(config), "0400")
    world.pod, world.agent = pod, agent
    world.running["agent"] = container = world.node.start(pod, agent, admitted["response"], more=SIMULATED)
    until(lambda: world.allocatable(CHIPS) == 8, "8 chips at the kubelet")
    seen = world.look(container)
    assert set(seen["dev"]) - ALWAYS == NPU | {"kmsg"}
    wanted = sum(1 << CAPABILITIES[name] for name in agent["securityContext"]["capabilities"]["add"])
    assert seen["caps"] == seen["bounding"] == wanted
    assert seen["root"] == "Read-only file system" and seen["new_privileges"] == "1" and seen["seccomp"] == "2" and not seen["token"]
    assert seen["processes"] <= 6  # its own: no process of the host


def test_no_right_of_the_agent_is_there_for_nothing(world, specs):
    """The same container without one of them cannot do what the agent does with it."""
    restricted = world.exec("cat", "/proc/sys/kernel/dmesg_restrict").strip() == "1"
    does = {"DAC_OVERRIDE": ("/dev/davinci_manager", "O_RDWR", True), "SYSLOG": ("/dev/kmsg", "O_RDONLY", restricted)}
    assert set(does) == set(world.agent["securityContext"]["capabilities"]["add"])
    allocated = {"devices": world.given["response"]["devices"], "mounts": [], "envs": {}, "annotations": {}}
    for lacking, (path, flags, matters) in does.items():
        answers = []
        for rights in (sorted(does), sorted(set(does) - {lacking})):
            context = {**world.agent["securityContext"], "capabilities": {"drop": ["ALL"], "add": rights}}
            probe = {"name": f"probe-{lacking.lower().replace('_', '-')}-{len(rights)}", "image": world.agent["image"], "volumeMounts": [],
                     "command": ["python3", "-I", "-c", "import time; time.sleep(600)"], "securityContext": context}
            container = world.node.start(world.pod, probe, allocated)
            code = f"import os\ntry:\n    os.open({path!r}, os.{flags})\nexcept OSError as error:\n    print(error.strerror)"
            answers.append(world.client.exec(container, ["python3", "-I", "-c", code])[1].strip())
            world.node.stop(container, 0)
        print(f"{lacking}: {path} {'open' if not answers[0] else answers[0]!r} with it, {answers[1] or 'open'!r} without")
        refused = ("Permission denied", "Operation not permitted")
        assert answers[0] not in refused
        assert (answers[1] in refused) == matters


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
    for name in ("npu-agent-1", "job"):
        world.exec("kubelet-ctl", "delete", name)
    assert [name for name in world.exec("ls", "/var/lib/kubelet/device-plugins").split() if name.startswith("npu-agent")] == []


# --- the whole way: a play, pods, labels

@pytest.fixture(scope="module")
def runner(world):
    made = Runner(world)
    made.start()
    yield made
    made.stop()


def play(world, *words, mode="daemonset", playbook="npu.fleet.site"):
    """A user's play; the number of remote calls on the node, and what it said."""
    world.nodes.reset_calls(NODE)
    folder = lab.BUILD / "lab" / NAME
    variables = {"npu_fleet_kubeconfig": str(world.folder / "kubeconfig"), "npu_device_plugin_mode": mode,
                 "npu_device_plugin_image_base": base.load(world.docker, lab.BUILD / "image-base"),
                 "npu_device_plugin_image_cache": str(lab.BUILD / "image-cache"),
                 "npu_device_plugin_config": {"poll_seconds": 0.5, "recovery_seconds": 0, "label_poll": 0.5, "label_period": 5.0,
                                              "taint_after": 2.0},
                 "npu_device_plugin_runtime_class": "", "npu_device_plugin_pods_timeout": 60}
    (world.folder / "variables.yml").write_text(yaml.safe_dump(variables))
    done = subprocess.run([Path(sys.executable).parent / "ansible-playbook", playbook, "-e", f"@{world.folder}/variables.yml", *words],
                          cwd=folder, capture_output=True, text=True, check=False, timeout=900,
                          env={**lab.environment(folder), "DOCKER_HOST": world.docker})
    return done, len(world.nodes.calls(NODE))


TAGS = ("--tags", "npu_agent,npu_device_plugin")


def test_a_play_brings_the_daemon_set(world, runner, image):
    done, calls = play(world, *TAGS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:] + str(runner.trouble)
    assert world.allocatable(CHIPS) == 8
    # As a kubelet reports it some time after an image has come.
    images = {"status": {"images": [{"names": [image.name], "sizeBytes": image.size}]}}
    world.api.store.patch(NODE, "application/merge-patch+json", images, "status")
    again, calls_again = play(world, *TAGS)
    assert again.returncode == 0 and "changed=0" in again.stdout, again.stdout[-3000:]
    print(f"remote calls: {calls} the first time, {calls_again} the second")
    assert calls_again == 2  # the probe, and the look at the node
    assert world.exec("find", "/opt", "/etc/systemd/system", "-name", "npu-agent*") == ""


def test_labels_are_written_with_the_rights_of_the_manifest_and_each_is_used(world, runner, objects):
    until(lambda: world.labels()[0].get("npu.fleet/ready") == "true", "the Node's labels")
    labels, taints = world.labels()
    assert labels["npu.fleet/family"] == "a2" and labels["npu.fleet/agent"] == "daemonset" and taints == []
    (role,) = (one for one in objects if one["kind"] == "ClusterRole")
    granted = {(verb, resource) for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]}
    used = {(verb, resource) for _role, verb, resource in world.api.rights.used}
    print(f"permissions used: {sorted(used)}")
    assert used == granted and world.api.rights.refused == set(), runner.logs("npu-agent", "labels")[-5:]


def test_a_driver_that_is_lost_keeps_work_away_and_comes_back(world, runner):
    world.exec("npu-sim", "set", "behaviour.dcmi", '{"get_device_health": -8006}')
    taint = {"key": "npu.fleet/not-ready", "value": "agent", "effect": "NoSchedule"}
    until(lambda: taint in [{key: one.get(key) for key in taint} for one in world.labels()[1]], "the agent's taint", 90)
    world.exec("npu-sim", "set", "behaviour.dcmi", "{}")
    until(lambda: world.labels()[1] == [], "no taint any more", 90)


def test_only_the_labels_container_has_a_token(world, runner):
    (containers,) = [containers for name, (_pod, containers) in runner.pods.items() if "labels" in containers]
    assert world.look(containers["labels"])["token"] and not world.look(containers["agent"])["token"]
    seen = world.look(containers["labels"])
    assert set(seen["dev"]) - ALWAYS == set() and seen["caps"] == seen["bounding"] == 0


def test_the_vendors_plugin_is_refused_on_the_node_and_in_the_cluster(world, runner):
    daemon = {"metadata": {"name": "ascend-device-plugin-daemonset"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
            "containers": [{"name": "c", "image": "ascend-k8sdeviceplugin:v7.3.0"}]}}}}
    world.ask("POST", "/apis/apps/v1/namespaces/kube-system/daemonsets", daemon)
    done, _calls = play(world, *TAGS)
    assert done.returncode != 0 and "kubectl -n kube-system delete daemonset ascend-device-plugin-daemonset" in done.stdout
    world.ask("DELETE", "/apis/apps/v1/namespaces/kube-system/daemonsets/ascend-device-plugin-daemonset")


def test_back_to_a_service_takes_the_pods_away_first(world, runner):
    done, _calls = play(world, *TAGS, mode="systemd")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert world.exec("systemctl", "is-active", "npu-agent").strip() == "active" and world.allocatable(CHIPS) == 8
    assert "npu.fleet/agent" not in world.labels()[0]
    assert world.api.stores[DAEMON_SET].list() == [] and not world.api.stores[NAMESPACE].has("npu-fleet")


def test_and_to_the_daemon_set_again_takes_the_service_away(world, runner):
    done, _calls = play(world, *TAGS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert world.exec("systemctl", "is-active", "npu-agent", check=False).strip() != "active"
    until(lambda: world.allocatable(CHIPS) == 8, "8 chips by the pod")
