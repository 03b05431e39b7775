# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input, through the playbook that users run, on real systemd hosts: each ends in words, and nothing is lost.

Collected only by the lane `system` (`make test LANES=system`): it boots two nodes, one of them without any NPU. The tests build on each
other in the order they stand in: a bare node is spoiled in one way after the other and comes out converged at the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import lab

NAME = "system"
NODE, PLAIN = lab.node_names(NAME, 2)
DRIVER = "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"


@pytest.fixture(scope="module")
def site():
    """A function that runs npu.fleet.site with variables on top of the user's, and two bare nodes."""
    lab.build()
    folder = lab.up(NAME, count=2)
    lab.nodes("exec", PLAIN, "--", "npu-sim", "set", "chips", "[]")

    def run(*options, **variables):
        command = ["ansible-playbook", "npu.fleet.site", "--extra-vars", json.dumps(variables), *options]
        return subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, timeout=600, check=False)

    def start(*options, **variables):
        """The same, still running, with its output as it comes."""
        command = ["ansible-playbook", "npu.fleet.site", "--extra-vars", json.dumps(variables), *options]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=folder, env=lab.environment(folder), start_new_session=True, **streams)

    run.folder, run.start = folder, start
    yield run
    lab.down(NAME)


@pytest.fixture
def spoiled(site, tmp_path):
    """A depot on the node with the packages of one mode: what the variables must be to use it."""

    def make(mode, component="driver"):
        lab.tool(
            "tests/simulator/packages/build.py",
            "--out",
            tmp_path,
            "--payload",
            lab.BUILD / "simulator/payload",
            "--mode",
            mode,
            "--component",
            component,
        )
        on_node = f"/srv/{mode}"
        lab.nodes("exec", NODE, "--", "mkdir", "-p", on_node)
        for path in tmp_path.iterdir():
            lab.nodes("docker", "--", "cp", str(path), f"{NODE}:{on_node}/{path.name}")
        return {
            "npu_fleet_depot": on_node,
            "npu_fleet_checksums": lab.checksums(tmp_path),
            "npu_fleet_versions": {component: lab.RELEASE[component]},
        }

    return make


def on_node(*argv):
    return lab.nodes("exec", NODE, "--", *argv, capture=True)


def words(done):
    """Output with its line folding undone."""
    return " ".join((done.stdout + done.stderr).split())


def launches():
    """How many packages have been started on the node so far."""
    return on_node("sh", "-c", "cat /var/lib/npu-fleet/journal.jsonl 2>/dev/null || true").count('"event": "launched"')


def wait_for(seen, seconds=120):
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.5)


def install_record():
    return on_node("sh", "-c", "cat /etc/ascend_install.info 2>/dev/null || true")


def test_a_host_without_npu_is_told_and_the_others_go_on(site):
    done = site("--check", npu_fleet_waves=[2])
    assert done.returncode == 0, done.stdout
    assert f"{PLAIN} has no NPU" in words(done)
    assert "driver install" in words(done)  # the plan of the other one
    assert install_record() == ""


def test_wrong_checksum_is_refused_before_anything_starts(site):
    sums = dict(lab.checksums(lab.BUILD / "depot"), **{DRIVER: "0" * 64})
    users = yaml.safe_load((site.folder / "group_vars/npu_nodes.yml").read_text())
    depot = users["npu_fleet_depot"].replace("http://", "http://depot:canary-0815@")
    done = site("-l", NODE, "-vvv", npu_fleet_checksums=sums, npu_fleet_depot=depot)
    assert done.returncode == 2
    assert "canary-0815" not in done.stdout + done.stderr
    assert DRIVER in words(done)
    assert "0" * 64 in words(done)
    assert install_record() == ""


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        pytest.param("truncated", ["Ascend-hdk-910b-npu-driver"], marks=pytest.mark.long),
        pytest.param(
            "wrong-family", ["for another product", "is not match, please check", "Bring the package of this host"], marks=pytest.mark.long
        ),
        ("nothing", ["was not installed", "exit code 0"]),
    ],
)
def test_a_bad_package_ends_red_with_the_reason(site, spoiled, mode, says):
    done = site("-l", NODE, **spoiled(mode))
    assert done.returncode == 2, done.stdout
    for text in says:
        assert text in words(done)
    assert "Driver_Install_Status=complete" not in install_record()


@pytest.mark.long
def test_a_hanging_package_ends_at_its_deadline(site, spoiled):
    done = site("-l", NODE, npu_driver_timeout=15, **spoiled("hang"))
    assert done.returncode == 2
    assert "driver 25.5.0 was not installed: it did not end in time and was stopped" in words(done)
    assert on_node("sh", "-c", "pgrep -f '[n]pu-driver_25.5.0' || true").strip() == ""


def test_a_package_of_a_killed_run_is_waited_for(site):
    """The controller dies in the middle of a driver; the next run finds it at work, waits, and installs nothing twice."""
    driver = {"npu_fleet_versions": {"driver": lab.RELEASE["driver"]}}
    before = launches()
    on_node("npu-sim", "set", "package.pause_at", "driver:40")
    killed = site.start("-l", NODE, **driver)
    wait_for(lambda: on_node("sh", "-c", "cat /run/npu-sim/paused 2>/dev/null || true"))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    again = site.start("-l", NODE, **driver)
    said = []
    for line in again.stdout:
        said.append(line)
        if "is waited for" in line:
            on_node("sh", "-c", "npu-sim set package.pause_at null && rm /run/npu-sim/paused")
            break
    said.append(again.communicate()[0])
    assert again.returncode == 0, "".join(said)
    assert launches() == before + 1
    assert "Driver_Install_Status=complete" in install_record()


def test_a_broken_daemon_json_is_left_untouched(site):
    broken = '{\n  "log-driver": "json-file",\n  oops\n}\n'
    on_node("sh", "-c", "mkdir -p /etc/docker && printf '%s' \"$1\" > /etc/docker/daemon.json", "sh", broken)
    done = site("-l", NODE)
    assert done.returncode == 2, done.stdout
    assert "/etc/docker/daemon.json" in words(done)
    assert "line 3" in words(done)
    assert on_node("cat", "/etc/docker/daemon.json") == broken


@pytest.mark.long
def test_runtimes_that_are_no_object_are_left_untouched(site):
    broken = '{"runtimes": ["nvidia"]}\n'
    on_node("sh", "-c", "printf '%s' \"$1\" > /etc/docker/daemon.json", "sh", broken)
    done = site("-l", NODE)
    assert done.returncode == 2
    assert "runtimes" in words(done)
    assert on_node("cat", "/etc/docker/daemon.json") == broken


def test_the_admins_keys_survive_and_the_node_converges(site):
    admins = '{\n  "log-driver": "json-file",\n  "labels": ["rack=7"]\n}\n'
    on_node("sh", "-c", "printf '%s' \"$1\" > /etc/docker/daemon.json", "sh", admins)
    # The depot is down as well, and its mirror is not.
    mirror = yaml.safe_load((site.folder / "group_vars/npu_nodes.yml").read_text())["npu_fleet_depot"]
    done = site("-l", NODE, npu_fleet_depot=f"http://{lab.GATEWAY}:1/", npu_fleet_depot_mirrors=[mirror])
    assert done.returncode == 0, done.stdout
    merged = json.loads(on_node("cat", "/etc/docker/daemon.json"))
    assert merged["labels"] == ["rack=7"]
    assert "default-runtime" not in merged
    assert merged["runtimes"]["ascend"]["path"].endswith("ascend-docker-runtime")


@pytest.mark.parametrize(("mode", "cause"), [pytest.param("fail", "-8005", marks=pytest.mark.long), ("hang", "deadline")])
def test_npu_smi_that_fails_or_hangs_is_an_error_with_cause_never_no_chips(site, mode, cause):
    on_node("npu-sim", "set", "behaviour", json.dumps({"npu_smi": mode, "dcmi": mode}))
    try:
        done = site("-l", NODE, "--tags", "npu_verify", npu_preflight_query_timeout=3, npu_verify_query_timeout=3)
    finally:
        on_node("npu-sim", "set", "behaviour", '{"npu_smi": "ok", "dcmi": "ok"}')
    assert done.returncode == 2, done.stdout
    assert "driver answers" in words(done)
    assert cause in words(done) or "3 s" in words(done)
    assert "has no NPU" not in words(done)


def test_a_canary_secret_never_shows(site):
    text = json.loads(on_node("cat", "/etc/docker/daemon.json"))
    text["registry-mirrors"] = ["https://user:canary-4711@mirror.example.com"]
    text.pop("runtimes")
    on_node("sh", "-c", "printf '%s' \"$1\" > /etc/docker/daemon.json", "sh", json.dumps(text))
    done = site("-l", NODE, "--diff", "-vvv", npu_fleet_runtime_set_default=True)
    assert done.returncode == 0, done.stdout
    assert "canary-4711" not in done.stdout + done.stderr
    assert "canary-4711" in on_node("cat", "/etc/docker/daemon.json")
    assert json.loads(on_node("docker", "info", "--format", "{{json .}}"))["DefaultRuntime"] == "ascend"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("whatever.run", ["whatever.run"], marks=pytest.mark.long),
        ("Ascend-hdk-310p-npu-driver_26.0.rc1_linux-x86-64.run", ["family 310p", "are a2"]),
        pytest.param("Ascend-hdk-910b-npu-driver_26.0.rc1_linux-aarch64.run", ["aarch64", "x86_64"], marks=pytest.mark.long),
        pytest.param("Ascend-hdk-910b-npu-firmware_26.0.rc1.run", ["package of firmware, not of driver"], marks=pytest.mark.long),
    ],
)
def test_a_package_that_cannot_fit_is_refused_by_its_name(site, name, says):
    task = {"component": "driver", "version": "26.0.rc1", "src": f"/srv/{name}", "sha256": "0" * 64}
    command = ["ansible", NODE, "-m", "npu.fleet.npu_package", "-a", json.dumps(task)]
    done = subprocess.run(command, cwd=site.folder, env=lab.environment(site.folder), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    for text in says:
        assert text in words(done)


def test_the_users_inventory_checks_host_keys(site):
    inventory = yaml.safe_load((site.folder / "inventory.yml").read_text())
    assert "StrictHostKeyChecking=yes" in inventory["npu_nodes"]["vars"]["ansible_ssh_common_args"]
