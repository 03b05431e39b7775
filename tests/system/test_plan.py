# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook npu.fleet.plan on real systemd hosts: it changes nothing there, names every node, and what it wrote is a ceiling.

The tests build on each other in the order they stand in: bare nodes are planned, spoiled, and one is brought to its pins at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import lab

NAME = "plan"
NODE, OTHER = lab.node_names(NAME, 2)
AWAY = "plan-away"
# What a login and systemd's own timers write, whatever the login does; the rest of the node must stay as it is.
NOT_OURS = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/log/journal", "/var/log/wtmp", "/var/log/lastlog", "/var/log/btmp",
            "/var/log/node-calls.log", "/var/lib/systemd", "/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet")

# A simulated node has no driver behind it, so it cannot be opened to read.
HOLD = "import os, time; os.open('/dev/davinci3', os.O_PATH); time.sleep(600)"


@pytest.fixture(scope="module")
def play():
    """A function that runs a playbook of the collection with variables on top of the user's, on two bare nodes."""
    lab.build()
    folder = lab.up(NAME, count=2)

    def run(playbook, *options, **variables):
        command = ["ansible-playbook", f"npu.fleet.{playbook}", "--extra-vars", json.dumps(variables), *options]
        return subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, timeout=600, check=False)

    run.folder = folder
    # The first login makes files of its own.
    subprocess.run(["ansible", "all", "-m", "raw", "-a", "true"], cwd=folder, env=lab.environment(folder), check=True, capture_output=True)
    yield run
    lab.down(NAME)


def on_node(*argv, node=NODE):
    return lab.nodes("exec", node, "--", *argv, capture=True)


def tree(node=NODE):
    """Every file of a node with mode, owner, size, link and times; a change of content or of meaning shows in the ctime."""
    skip = " -o ".join(f"-path {path}" for path in NOT_OURS)
    command = f"find / \\( {skip} \\) -prune -o -printf '%p %M %U:%G %s %l %T@ %C@\\n'"
    return set(on_node("sh", "-c", command, node=node).splitlines())


def report(play):
    return json.loads((play.folder / "npu-plan/plan.json").read_text())


def shown(done):
    """Lines of plans that a run has printed."""
    return {" ".join(line.strip().strip('",').split()) for line in done.stdout.splitlines() if " -> " in line}


def test_a_plan_changes_nothing_and_is_written_three_ways(play):
    before = tree()
    done = play("plan")
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree() == before
    assert "changed=0" in done.stdout
    assert "changed=1" not in done.stdout
    plan = report(play)["nodes"][NODE]["plan"]
    assert [step["component"] for step in plan["packages"]] == ["driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime"]
    assert plan["reboot_expected"] is True
    assert f"{NODE}  planned" in done.stdout
    page = (play.folder / "npu-plan/plan.html").read_text()
    assert NODE in page
    assert "http://" not in page


def test_the_comparison_sees_a_single_new_file():
    before = tree()
    on_node("touch", "/etc/npu-plan-test")
    assert tree() != before
    on_node("rm", "/etc/npu-plan-test")


@pytest.mark.long
def test_a_dry_run_shows_the_same_lines_and_changes_nothing(play):
    planned = shown(play("plan", "-l", NODE))
    before = tree()
    done = play("site", "--check", "-l", NODE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree() == before
    lines = {line for line in shown(done) if line.split(" ")[1] in ("install", "upgrade", "repair", "register")}
    assert len(lines) >= 5
    assert {line.removeprefix(f"{NODE} planned ") for line in planned} >= lines


@pytest.mark.long
def test_refused_and_unreachable_nodes_are_in_the_report_and_end_the_run_red(play):
    away = {"npu_nodes": {"hosts": {AWAY: {"ansible_host": lab.GATEWAY, "ansible_port": 1}}}}
    (play.folder / "away.yml").write_text(yaml.safe_dump(away))
    on_node("sh", "-c", "rm -r /lib/modules/$(uname -r)/build", node=OTHER)
    done = play("plan", "-i", "inventory.yml", "-i", "away.yml")
    assert done.returncode == 2, done.stdout
    nodes = report(play)["nodes"]
    assert {name: one["status"] for name, one in nodes.items()} == {NODE: "planned", OTHER: "refused", AWAY: "unreachable"}
    assert [one["code"] for one in nodes[OTHER]["plan"]["refused"]] == ["kernel_headers_missing"]
    assert "apt-get install -y linux-headers-" in nodes[OTHER]["plan"]["refused"][0]["hint"]
    assert "could not be reached" in nodes[AWAY]["error"]


def test_what_was_not_approved_does_not_run(play):
    done = play("plan", "-l", NODE, npu_fleet_versions={"docker_runtime": lab.RELEASE["docker_runtime"]})
    assert done.returncode == 0, done.stdout
    before = tree()
    done = play("site", "-l", NODE, npu_fleet_approved_plan="npu-plan/plan.json")
    assert done.returncode == 2
    assert tree() == before
    said = " ".join(done.stdout.split())
    assert "The approved plan does not have this: driver -> 25.5.0" in said
    assert "The approved plan does not have this: a reboot" in said
    done = play("site", "-l", OTHER, npu_fleet_approved_plan="npu-plan/plan.json", npu_fleet_accept_findings=["kernel_headers_missing"])
    assert done.returncode == 2  # not in the approved plan at all


@pytest.mark.long
def test_what_was_approved_runs_and_a_new_plan_has_nothing_left(play):
    assert play("plan", "-l", NODE).returncode == 0
    done = play("site", "-l", NODE, npu_fleet_approved_plan="npu-plan/plan.json")
    assert done.returncode == 0, done.stdout + done.stderr
    done = play("plan", "-l", NODE)
    assert done.returncode == 0, done.stdout
    one = report(play)["nodes"][NODE]
    assert (one["status"], one["plan"]["verdict"], one["plan"]["release"]) == ("unchanged", "matched", "25.5.0")
    assert {step["action"] for step in one["plan"]["components"]} == {"none"}


@pytest.mark.long
def test_a_holder_is_named_and_loses_its_chip_only_by_permission(play):
    on_node("systemd-run", "--unit=holder", "python3", "-c", HOLD)
    older = dict(lab.RELEASE, driver="25.3.rc1", cann="8.3.RC1", firmware="7.8.0.2.212", docker_runtime="7.2.RC1")
    options = {"npu_fleet_versions": older, "npu_fleet_allow_downgrade": True, "npu_fleet_checksums": None}
    play("plan", "-l", NODE, **options)
    plan = report(play)["nodes"][NODE]["plan"]
    assert [(one["comm"], one["devices"]) for one in plan["holders"]] == [("python3", ["/dev/davinci3"])]
    assert "chips_in_use" in [one["code"] for one in plan["refused"]]
    play("plan", "-l", NODE, npu_fleet_disruption="allow", **options)
    findings = report(play)["nodes"][NODE]["plan"]["findings"]
    assert [one["severity"] for one in findings if one["code"] == "chips_in_use"] == ["warning"]
