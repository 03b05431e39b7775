# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu.fleet.verify` on a real host: one fault for each gate stops exactly there, with the right reason; nothing is changed or left.

Collected only by the lane `system`: it boots a node. Each fault is taken away again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import lab

NAME = "gates"
(NODE,) = lab.node_names(NAME, 1)
RESOURCE = "huawei.com/Ascend910"
#: Without CANN: no gate but L1 looks at it, and that in the same way.
PINS = {name: lab.RELEASE[name] for name in ("driver", "firmware", "docker_runtime")}
#: A fault code that needs nothing, by the vendor's own table; DCMI's number may be any.
HARMLESS = "80E01805"
IMAGE = "gate-test"
#: Of all that a run could have changed.
SUMS = "cd / && find etc opt/npu-agent var/lib/npu-fleet/sets.json usr/local/Ascend -type f | sort | xargs sha256sum | sha256sum"
#: busybox is static on these nodes.
MAKE_IMAGE = f"""mkdir -p /tmp/image/bin && cp /bin/busybox /tmp/image/bin &&
for name in sh ls tr cut grep head tail; do ln -sf busybox /tmp/image/bin/$name; done && tar -C /tmp/image -c . | docker import - {IMAGE}"""
DAEMON = """import json
text = json.load(open('/etc/docker/daemon.json'))
%s
json.dump(text, open('/etc/docker/daemon.json', 'w'))"""
SLOW_RECOVERY = "echo 'recovery_seconds: 900' >> /etc/npu-agent/config.yaml && systemctl reload npu-agent"


def on_node(*argv):
    return lab.nodes("exec", NODE, "--", *argv, capture=True)


def sh(text):
    return on_node("sh", "-c", text)


def words(done):
    return " ".join((done.stdout + done.stderr).split())


def eventually(condition, what, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.5)


def allocatable():
    return json.loads(on_node("kubelet-ctl", "allocatable")).get(RESOURCE)


def docker_with(change):
    on_node("sh", "-c", "cp -p /etc/docker/daemon.json /root/daemon.json")
    on_node("python3", "-c", DAEMON % change)
    on_node("systemctl", "restart", "docker")


def docker_again():
    sh("cp -p /root/daemon.json /etc/docker/daemon.json && systemctl restart docker")


@pytest.fixture(scope="module")
def play():
    """A function that runs a playbook of the collection, and a node that has passed all gates and takes pods of the API server."""
    lab.build()
    folder = lab.up(NAME)
    config = yaml.safe_load((folder / "kubeconfig").read_text())
    server, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]

    def run(book, *options, **variables):
        command = ["ansible-playbook", f"npu.fleet.{book}", "--extra-vars", json.dumps({"npu_fleet_versions": PINS, **variables}), *options]
        return subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, timeout=600, check=False)

    try:
        done = run("site")
        assert done.returncode == 0, done.stdout
        assert "L4 passed (by admission)" in words(done)
        on_node("kubelet-ctl", "join", "--server", server, "--token", token, "--pods")
        sh(MAKE_IMAGE)
        yield run
    finally:
        lab.down(NAME)


def lose_a_chip():
    on_node("npu-sim", "set", "chips.5.present", "false")


def find_it_again():
    on_node("npu-sim", "set", "chips.5.present", "true")
    eventually(lambda: allocatable() == 8, "the chip is not offered again")


def break_a_chip(number=3):
    on_node("npu-sim", "set", f"chips.{number}.health", "3")
    eventually(lambda: allocatable() == 7, "the plugin does not see the broken chip")


def heal_it():
    on_node("npu-sim", "set", "chips.3.health", "0")
    eventually(lambda: allocatable() == 8, "the chip is not offered again")


def a_chip_that_the_plugin_holds_back():
    """The driver calls it OK again, the plugin waits."""
    sh(f"cp -p /etc/npu-agent/config.yaml /root/config.yaml && {SLOW_RECOVERY}")
    break_a_chip(4)
    on_node("npu-sim", "set", "chips.4.health", "0")


def let_it_come_back():
    sh("cp -p /root/config.yaml /etc/npu-agent/config.yaml && systemctl reload npu-agent")
    eventually(lambda: allocatable() == 8, "the chip is not offered again")


NOTHING = (lambda: None, lambda: None)
FAULTS = {
    "L0: engine stopped": (
        lambda: on_node("systemctl", "stop", "docker.socket", "docker"), lambda: on_node("systemctl", "start", "docker.socket", "docker"),
        {}, "L0 host: container engine: docker Cannot connect to the Docker daemon", ["L2", "L4"]),
    "L1: chip broken": (break_a_chip, heal_it, {}, "L1 driver: chip health: /dev/davinci3 Critical", []),
    "L2: runtime unregistered": (
        lambda: docker_with("text['runtimes'].pop('ascend')"), docker_again, {}, "L2 container: engine knows the runtime: docker has", []),
    "L3: plugin sees fewer": (
        a_chip_that_the_plugin_holds_back, let_it_come_back, {},
        "L3 plugin: plugin and driver agree: plugin 7 of 8 healthy, driver 8 of 8; /dev/davinci4: the driver calls it OK, the plugin does "
        "not offer it: Ascend910-4: has to be without a fault for 900 s", []),
    "L4: container does not start": (
        lambda: docker_with("text['runtimes']['broken'] = {'path': '/bin/false'}; text['default-runtime'] = 'broken'"), docker_again, {},
        "L4 pod: container gets what was allocated: expected davinci0 davinci_manager devmm_svm hisi_hdc, no container", []),
    "L4: image is not there": (
        *NOTHING, {"npu_verify_pod_image": "registry.example.com/none:1"}, "L4 pod: pod runs: ImagePullBackOff: Back-off pulling image",
        []),
    "L0: chip lost": (
        lose_a_chip, find_it_again, {"npu_fleet_chips": 8}, "L0 host: number of chips: 7, expected 8", []),
    "L1: other version pinned": (
        *NOTHING, {"npu_fleet_versions": {**PINS, "driver": "25.3.rc1"}}, "L1 driver: driver: pinned 25.3.rc1, on disk 25.5.0", []),
    "L3: agent stopped": (
        lambda: on_node("systemctl", "stop", "npu-agent"), lambda: on_node("systemctl", "start", "npu-agent"), {},
        "L3 plugin: agent runs: npu-agent.service is not active", ["L4"]),
}
#: One for each gate, of those that are made and taken away in a moment; the others are in the long form.
SHORT = ("L0: engine stopped", "L1: other version pinned", "L2: runtime unregistered", "L3: agent stopped", "L4: image is not there")


@pytest.mark.parametrize("name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in FAULTS])
def test_a_fault_stops_at_its_gate(play, name):
    spoil, mend, variables, reason, not_judged = FAULTS[name]
    spoil()
    try:
        done = play("verify", **variables)
    finally:
        mend()
    gate = name.partition(":")[0]
    assert done.returncode == 2, done.stdout
    told = words(done)
    # The first that is said is the first gate that failed, and the gates before it have passed.
    assert f'"msg": "{NODE}: {reason}' in told
    line = next(line for line in done.stdout.splitlines() if "FAILED " in line and f"{NODE}: " in line)
    ends = dict(part.split(" ", 1) for part in line.split(f"{NODE}: ")[1].strip('" ,').split(", ") if part.startswith("L"))
    assert ends[gate].startswith("failed")
    assert all(ends[f"L{number}"].startswith("passed") for number in range(int(gate[1])))
    assert [other for other in ends if ends[other].startswith("not judged")] == not_judged


def test_all_pass_by_a_pod_with_a_harmless_fault_and_nothing_is_changed_or_left(play):
    on_node("npu-sim", "set", "chips.2.health", "2", "chips.2.error_codes", json.dumps([HARMLESS]))
    before = sh(SUMS)
    try:
        done = play("verify", npu_fleet_versions={}, npu_verify_pod_image=IMAGE)
    finally:
        on_node("npu-sim", "set", "chips.2.health", "0", "chips.2.error_codes", "[]")
    assert done.returncode == 0, done.stdout
    assert "L0 passed, L1 passed, L2 passed, L3 passed, L4 passed (by pod)" in words(done)
    assert "changed=0" in words(done)
    assert sh(SUMS) == before
    assert json.loads(on_node("kubelet-ctl", "pods")) == {}
    assert on_node("docker", "ps", "--all", "--quiet").strip() == ""
