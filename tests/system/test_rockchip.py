# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet of a server and a Rockchip board, through the playbooks that users run, on real systemd hosts.

Collected only by the lane `system`: it boots two nodes. The tests build on each other in the order they stand in. The server is only
planned for: what is pinned for it must not reach the board, and that is decided in the plan.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import lab

NAME = "rockchip"
BOARD, SERVER = lab.node_names(NAME, 2)
RESOURCE = "rockchip.com/rknpu"
RULE = "/etc/udev/rules.d/70-npu-fleet-rknpu.rules"
OWN = ["/dev/dri/card1", "/dev/dri/renderD129"]  # behind the GPU in the numbers, which has card0 and renderD128


@pytest.fixture(scope="module")
def play():
    """A function that runs a playbook of the collection with variables on top of the user's; a board and a bare server."""
    lab.build()
    folder = lab.up(NAME, count=2)
    lab.board(BOARD)

    def run(book, *options, **variables):
        variables = {"npu_driver_device_group": 990, **variables}
        command = ["ansible-playbook", f"npu.fleet.{book}", "--extra-vars", json.dumps(variables), *options]
        return subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, timeout=600, check=False)

    run.folder = folder
    yield run
    lab.down(NAME)


def on_board(*argv):
    return lab.nodes("exec", BOARD, "--", *argv, capture=True)


def words(done):
    """Output with its line folding undone."""
    return " ".join((done.stdout + done.stderr).split())


def changed(done, node=BOARD):
    """How many tasks changed the node, from the recap."""
    line = next(line for line in done.stdout.splitlines() if line.startswith(node) and "changed=" in line)
    return int(line.split("changed=")[1].split()[0])


def allocatable():
    return json.loads(on_board("kubelet-ctl", "allocatable"))


def wait_for(number, seconds=90):
    """Until kubelet has so many NPUs for the vendor's runtime."""
    deadline = time.monotonic() + seconds
    while (seen := allocatable()).get(RESOURCE, 0) != number:
        assert time.monotonic() < deadline, f"{seen}, wanted {number}"
        time.sleep(0.5)


def node_object(folder):
    """The board's Node, from the API server."""
    config = yaml.safe_load((folder / "kubeconfig").read_text())
    address, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
    connection.request("GET", f"/api/v1/nodes/{BOARD}", headers={"Authorization": f"Bearer {token}"})
    return json.load(connection.getresponse())


def test_a_fleet_of_both_is_planned_in_one_play(play):
    done = play("plan", "-v", npu_fleet_report_dir=str(play.folder / "report"))
    assert done.returncode == 0, words(done)
    nodes = json.loads((play.folder / "report/plan.json").read_text())["nodes"]
    assert [step["component"] for step in nodes[SERVER]["plan"]["packages"]][:2] == ["driver", "firmware"]
    assert nodes[BOARD]["plan"]["packages"] == []
    said = {one["code"]: one["severity"] for one in nodes[BOARD]["plan"]["findings"]}
    assert said == {"no_layers": "note", "device_groups": "note"}


def test_the_first_run_brings_the_plugin_and_nothing_else(play):
    done = play("site", "--limit", BOARD)
    assert done.returncode == 0, words(done)
    wait_for(1)
    assert on_board("cat", "/etc/npu-agent/config.yaml").splitlines()[-1] == 'backend: "rockchip"'
    vendors = "ls -d /usr/local/Ascend /etc/ascend_install.info /usr/local/bin/npu-smi 2>/dev/null; getent passwd HwHiAiUser; true"
    assert on_board("sh", "-c", vendors) == ""
    assert 'GROUP="990"' in on_board("cat", RULE)


def test_the_second_run_changes_nothing(play):
    done = play("site", "--limit", BOARD)
    assert (done.returncode, changed(done)) == (0, 0), words(done)


def test_the_node_is_labelled_with_what_it_is(play):
    node = node_object(play.folder)
    assert node["metadata"]["labels"]["npu.fleet/family"] == "rk3588"
    assert not [taint for taint in node["spec"].get("taints") or [] if taint["key"] == "npu.fleet/not-ready"]


def test_a_container_gets_both_nodes_of_the_npu_and_no_gpu(play):
    pod = json.loads(on_board("kubelet-ctl", "allocate", "1", RESOURCE, "--pod", "smoke"))
    assert pod["phase"] == "Running", pod
    given = [device["host_path"] for device in pod["container"]["devices"]]
    assert given == OWN
    # What an engine makes of that: a container of the node's own files, without any image.
    on_board("sh", "-c", "tar cf - --files-from /dev/null | docker import - outside")
    devices = [word for path in given for word in ("--device", path)]
    usr = [word for folder in ("/usr", "/bin", "/lib", "/lib64") for word in ("-v", f"{folder}:{folder}:ro")]
    listed = on_board("docker", "run", "--rm", "--network", "none", *devices, *usr, "outside", "/bin/ls", "/dev/dri")
    assert listed.split() == ["card1", "renderD129"]
    second = on_board("sh", "-c", f"kubelet-ctl allocate 1 {RESOURCE} --pod second || true")
    assert "Running" not in second  # one pod for each NPU: nothing isolates two
    on_board("kubelet-ctl", "delete", "smoke")


@pytest.mark.parametrize(("book", "fault", "said"), [
    ("site", ["--gone", "dri/card1"], "its device node /dev/dri/card1 is missing"),
    ("verify", ["--broken"], "its device node /dev/dri/renderD129 cannot be opened: No such device or address"),
])
def test_what_breaks_is_taken_out_and_stops_the_play_at_the_driver(play, book, fault, said):
    lab.board(BOARD, *fault)
    wait_for(0)
    done = play(book, "--limit", BOARD)
    assert done.returncode == 2, words(done)
    assert said in words(done)
    assert "L1 driver" in words(done)
    lab.board(BOARD)
    wait_for(1)


def test_another_driver_of_the_same_npu_is_told(play):
    lab.board(BOARD, "--stack", "rocket")
    done = play("plan", "--limit", BOARD, npu_fleet_report_dir=str(play.folder / "report"))
    assert "offers rockchip.com/rocket instead of rockchip.com/rknpu" in words(done)
    lab.board(BOARD)


def test_everything_goes_again(play):
    done = play("remove", "--limit", BOARD, npu_fleet_remove=True)
    assert done.returncode == 0, words(done)
    wait_for(0)
    ours = f"{RULE} /opt/npu-agent /etc/npu-agent /etc/systemd/system/npu-agent.service /var/lib/npu-agent /var/lib/npu-fleet"
    assert on_board("sh", "-c", f"ls -d {ours} 2>/dev/null; true") == ""
    assert not [key for key in node_object(play.folder)["metadata"]["labels"] if key.startswith("npu.fleet/")]
