# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu.fleet.rollback` on a real host: to the release before and forward again, each time out of the node's own cache.

Collected only by the lane `system`: it boots a node. The tests build on each other in the order they stand in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import lab

# The scenario molecule/upgrade goes back and forward, too.
pytestmark = pytest.mark.long

NAME = "rollback"
(NODE,) = lab.node_names(NAME, 1)
# Rows of the public matrix: HDK 25.3.RC1 and 25.5.0, with the firmware of each.
OLD = {"driver": "25.3.rc1", "firmware": "7.8.0.2.212"}
NEW = {"driver": lab.RELEASE["driver"], "firmware": lab.RELEASE["firmware"]}


def on_node(*argv):
    return lab.nodes("exec", NODE, "--", *argv, capture=True)


def boot_id():
    return on_node("cat", "/proc/sys/kernel/random/boot_id").strip()


def runs():
    """{component: version}, as the driver's own tools say it; what lies on disk is asked for separately."""
    driver = on_node("npu-smi", "info").split("Version: ")[1].split()[0]
    boards = [on_node("npu-smi", "info", "-t", "board", "-i", str(chip)) for chip in (0, 7)]
    lines = [line.strip() for board in boards for line in board.splitlines()]
    firmware = {line.split(":")[1].strip() for line in lines if line.startswith("Firmware Version")}
    return {"driver": driver, "firmware": " ".join(sorted(firmware))}


def on_disk():
    text = on_node("grep", "-H", "^Version=", "/usr/local/Ascend/driver/version.info", "/usr/local/Ascend/firmware/version.info")
    return {line.split("/")[4]: line.strip().split("=")[1] for line in text.splitlines()}


def words(done):
    return " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """A function that runs a playbook; the node has had both releases, and its depot is gone for good."""
    lab.build()
    depot = tmp_path_factory.mktemp("depot")
    for release in ("a2-25.3.rc1", "a2-25.5.0"):
        parts = ["--payload", lab.BUILD / "simulator/payload", "--component", "driver", "--component", "firmware"]
        lab.tool("tests/simulator/packages/build.py", "--out", depot, "--release", release, *parts)
    folder = lab.up(NAME, depot=depot)

    def run(book, *options, **variables):
        command = ["ansible-playbook", f"npu.fleet.{book}", "--extra-vars", json.dumps(variables), *options]
        return subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, timeout=600, check=False)

    try:
        for versions in (OLD, NEW):
            done = run("site", npu_fleet_versions=versions)
            assert done.returncode == 0, done.stdout
        depot_pid = folder / "depot.pid"
        os.killpg(int(depot_pid.read_text()), signal.SIGTERM)
        depot_pid.unlink()
        yield run
    finally:
        lab.down(NAME)


def test_a_dry_run_says_what_it_would_do(play):
    before = (boot_id(), on_disk())
    done = play("rollback", "--check")
    assert done.returncode == 0, done.stdout
    assert f"driver downgrade {NEW['driver']} -> {OLD['driver']}" in words(done)
    assert f"firmware downgrade {NEW['firmware']} -> {OLD['firmware']}" in words(done)
    assert (boot_id(), on_disk()) == before


def test_a_damaged_package_is_seen_before_anything_changes(play):
    """Firmware comes first: without a look at the driver's package the node would end between two releases."""
    path = on_node("sh", "-c", f"ls /var/cache/npu-fleet/*/*driver_{OLD['driver']}*.run").strip()
    before = (boot_id(), on_disk())
    on_node("sh", "-c", f"cp -p {path} /root/whole && truncate -s 100000 {path}")
    done = play("rollback")
    on_node("mv", "/root/whole", path)
    assert done.returncode == 2, done.stdout
    assert f"The package of driver {OLD['driver']} is not in the cache of the node" in words(done)
    assert (boot_id(), on_disk()) == before


@pytest.mark.parametrize(("gives_up", "gets"), [(NEW, OLD), (OLD, NEW)], ids=["back", "forward again"])
def test_it_changes_places_with_the_release_before(play, gives_up, gets):
    assert runs() == on_disk() == gives_up
    boot = boot_id()
    done = play("rollback")
    assert done.returncode == 0, done.stdout
    assert runs() == on_disk() == gets
    assert boot_id() != boot


def test_an_agent_that_a_cut_run_has_stopped_runs_again(play):
    on_node("systemctl", "stop", "npu-agent")
    boot = boot_id()
    done = play("rollback", npu_fleet_rollback_to="current")
    assert done.returncode == 0, done.stdout
    assert on_node("systemctl", "is-active", "npu-agent").strip() == "active"
    assert boot_id() == boot
