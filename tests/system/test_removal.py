# SPDX-License-Identifier: GPL-3.0-or-later
"""What `npu.fleet.remove` leaves on a real systemd host: files, users, units and modules as they were, but for a documented list.

Collected only by the lane `system`: it boots a node. The tests build on each other in the order they stand in.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import lab

NAME = "removal"
(NODE,) = lab.node_names(NAME, 1)

#: What stays, by the first folder or file of it. The vendor's own uninstall leaves these ("driver package, measured", section 4); the logs
#: are for whoever wants to know later.
STAYS = (
    "/etc/hccn.conf", "/etc/vnpu.cfg", "/etc/logrotate.d/tmp", "/etc/udev/rules.d/70-persistent-net.rules", "/root/ascend_check",
    "/lib/modules/", "/usr/lib/modules/",  # empty folders `updates`
    "/var/log/npu-fleet", "/var/log/npu-agent", "/var/log/ascend_seclog", "/var/log/hotreset_status.log", "/var/log/ascend-docker-runtime",
)
#: What every run of a system writes by itself, or what the stand-in of hardware does.
VOLATILE = (
    "/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp", "/var/lib/docker", "/var/lib/containerd", "/var/lib/systemd", "/var/lib/npu-sim",
    "/var/lib/kubelet", "/var/log/journal", "/var/log/node-calls.log", "/var/log/btmp", "/var/log/wtmp", "/var/log/lastlog",
    "/var/cache/ldconfig", "/etc/ld.so.cache", "/root/.ansible", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-",
    "/etc/.pwd.lock", "/etc/subuid-", "/etc/subgid-",
)
LOOK = r"""
import hashlib, json, os, stat, subprocess, sys
volatile = tuple(json.loads(sys.argv[1]))
files = {}
for folder, folders, names in os.walk("/"):
    kept = [name for name in folders if name != "__pycache__"]
    folders[:] = [name for name in kept if not (os.path.join(folder, name) + "/").startswith(tuple(v + "/" for v in volatile))]
    for name in folders + names:
        path = os.path.join(folder, name)
        if path in volatile:
            continue
        seen = os.lstat(path)
        what = [oct(seen.st_mode), seen.st_uid, seen.st_gid]
        if stat.S_ISLNK(seen.st_mode):
            what.append(os.readlink(path))
        elif stat.S_ISREG(seen.st_mode):
            what.append(hashlib.sha256(open(path, "rb").read()).hexdigest())
        files[path] = what
run = lambda *words: sorted(subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout.decode().splitlines())
print(json.dumps({
    "files": files,
    "users": run("getent", "passwd"),
    "groups": run("getent", "group"),
    "units": [line.split()[:2] for line in run("systemctl", "list-unit-files", "--no-legend")],
    "running": [line.split()[0] for line in run("systemctl", "list-units", "--type=service", "--state=running", "--no-legend", "--plain")],
    "modules": [line.split()[0] for line in run("lsmod")],
    "devices": sorted(name for name in os.listdir("/dev") if name.startswith(("davinci", "devmm_svm", "hisi_hdc"))),
}))
"""


def on_node(*argv):
    return lab.nodes("exec", NODE, "--", *argv, capture=True)


def look():
    return json.loads(on_node("python3", "-c", LOOK, json.dumps(VOLATILE)))


def words(done):
    return " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def play():
    """A function that runs a playbook of the collection with variables on top of the user's, and one bare node."""
    lab.build()
    folder = lab.up(NAME)

    def run(book, **variables):
        command = ["ansible-playbook", f"npu.fleet.{book}", "--extra-vars", json.dumps(variables)]
        return subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, timeout=900, check=False)

    yield run
    lab.down(NAME)


@pytest.fixture(scope="module")
def bare(play):
    """What the node is like before, with files of an admin on it."""
    on_node("sh", "-c", "mkdir -p /etc/docker && printf '{\\n  \"labels\": [\"rack=7\"]\\n}\\n' > /etc/docker/daemon.json")
    on_node("systemctl", "restart", "docker")
    return look()


def changed(done):
    """How many tasks changed the node, from the recap."""
    line = next(line for line in done.stdout.splitlines() if line.startswith(NODE) and "changed=" in line)
    return int(line.split("changed=")[1].split()[0])


def differences(before, after):
    """Paths that came, went or changed, but for those that stay on purpose."""
    paths = {path for path in before["files"].keys() | after["files"].keys() if before["files"].get(path) != after["files"].get(path)}
    return sorted(path for path in paths if not path.startswith(STAYS))


def converge(play):
    done = play("site")
    assert done.returncode == 0, done.stdout


def test_it_asks_for_a_clear_wish(play, bare):
    converge(play)
    with_everything = look()
    assert differences(bare, with_everything)
    done = play("remove")
    assert done.returncode == 2
    assert "npu_fleet_remove=true" in words(done)
    assert differences(with_everything, look()) == []


@pytest.mark.long
def test_it_names_who_holds_a_chip_and_does_nothing(play, bare):
    hold = "import os, time; os.open('/dev/davinci0', os.O_PATH); time.sleep(600)"
    on_node("systemd-run", "--unit=holder", "--property=Type=exec", "python3", "-c", hold)
    before = look()
    try:
        done = play("remove", npu_fleet_remove=True)
    finally:
        on_node("systemctl", "stop", "holder")
    assert done.returncode == 2
    assert "python3 (pid" in words(done)
    assert "/dev/davinci0" in words(done)
    assert differences(before, look()) == []


def test_everything_goes_but_what_is_documented(play, bare):
    done = play("remove", npu_fleet_remove=True)
    assert done.returncode == 0, done.stdout
    after = look()
    assert differences(bare, after) == []
    for what in ("users", "groups", "units", "running", "modules", "devices"):
        assert after[what] == bare[what], what
    assert json.loads(on_node("cat", "/etc/docker/daemon.json")) == {"labels": ["rack=7"]}
    runtimes = json.loads(on_node("docker", "info", "--format", "{{json .Runtimes}}"))
    assert "ascend" not in runtimes


def test_again_changes_nothing(play, bare):
    before = look()
    done = play("remove", npu_fleet_remove=True)
    assert done.returncode == 0, done.stdout
    assert changed(done) == 0
    assert differences(before, look()) == []


@pytest.mark.long
@pytest.mark.parametrize(("stage", "there"), [("10", False), ("40", True)])
def test_a_cut_installation_goes_too(play, bare, stage, there):
    """At 10 % there is a record and no file, so no installed script either; at 40 % a tree without version.info, and modules."""
    on_node("npu-sim", "set", "package.pause_at", f"driver:{stage}")
    done = play("site", npu_driver_timeout=20)
    on_node("sh", "-c", "npu-sim set package.pause_at null; rm -f /run/npu-sim/paused")
    assert done.returncode == 2, done.stdout
    cut = look()
    assert "/etc/ascend_install.info" in differences(bare, cut)
    assert ("/usr/local/Ascend/driver/script/uninstall.sh" in cut["files"]) is there
    done = play("remove", npu_fleet_remove=True)
    assert done.returncode == 0, done.stdout
    after = look()
    assert differences(bare, after) == []
    for what in ("users", "groups", "units", "modules"):
        assert after[what] == bare[what], what


@pytest.mark.long
def test_a_driver_that_stays_loaded_goes_with_a_reboot(play, bare):
    """`Kernel modules can not be removed`, rc 0 ("driver package, measured", section 7)."""
    done = play("site", npu_fleet_versions={"driver": lab.RELEASE["driver"]})
    assert done.returncode == 0, done.stdout
    on_node("sh", "-c", "cp -p /usr/local/sbin/rmmod /var/lib/npu-sim/rmmod; printf '#!/bin/sh\\nexit 1\\n' >/usr/local/sbin/rmmod")
    boot = on_node("cat", "/proc/sys/kernel/random/boot_id")
    refused = play("remove", npu_fleet_remove=True, npu_fleet_reboot="never")
    assert refused.returncode == 2
    assert "still loaded" in words(refused)
    # the run that follows finds nothing on disk and a driver in the kernel
    done = play("remove", npu_fleet_remove=True)
    on_node("cp", "-p", "/var/lib/npu-sim/rmmod", "/usr/local/sbin/rmmod")
    assert done.returncode == 0, done.stdout
    assert on_node("cat", "/proc/sys/kernel/random/boot_id") != boot
    after = look()
    assert differences(bare, after) == []
    assert after["modules"] == bare["modules"]
