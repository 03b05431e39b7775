# SPDX-License-Identifier: GPL-3.0-or-later
"""Several versions of CANN on a real host, in both layouts, through the playbook that users run: forwards by packages, back by links.

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

# The scenario `upgrade` brings one version after another too, and the unit tests look at every step of a link.
pytestmark = pytest.mark.long

NAME = "cann"
(NODE,) = lab.node_names(NAME, 1)
OLD, NEW, NEWER = "8.3.RC2", "8.5.0", "8.5.2"


def on_node(*argv):
    return lab.nodes("exec", NODE, "--", *argv, capture=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A function that brings one version of CANN into force, from a depot on the node."""
    lab.build()
    folder = lab.up(NAME)
    depot = tmp_path_factory.mktemp("depot")
    packages = [word for part in ("cann_toolkit", "cann_kernels") for word in ("--component", part)]
    for version in (OLD, NEW, NEWER):
        lab.tool("tests/simulator/packages/build.py", "--out", depot, "--cann", version, *packages)
    on_node("mkdir", "-p", "/srv/depot")
    for path in depot.iterdir():
        lab.nodes("docker", "--", "cp", str(path), f"{NODE}:/srv/depot/{path.name}")

    def run(version, **variables):
        variables = {
            "npu_fleet_versions": {"cann": version}, "npu_fleet_checksums": lab.checksums(depot), "npu_fleet_depot": "/srv/depot",
            **variables,
        }  # fmt: skip
        command = ["ansible-playbook", "npu.fleet.site", "--tags", "npu_cann", "--extra-vars", json.dumps(variables)]
        return subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, timeout=600, check=False)

    yield run
    lab.down(NAME)


def runs():
    """How many packages have run so far: each has a log of its own."""
    return len(on_node("sh", "-c", "ls /var/log/npu-fleet/cann* 2>/dev/null || true").split())


def in_force(shell="bash"):
    """The folder that a new login shell works with."""
    return on_node("env", "-i", shell, "-lc", 'realpath "$ASCEND_HOME_PATH"').strip().rsplit("/", 1)[-1]


def unit_sees():
    command = ["systemd-run", "--quiet", "--pipe", "--wait", "-p", "EnvironmentFile=-/etc/npu-fleet/ascend.env"]
    return on_node(*command, "sh", "-c", 'realpath "$ASCEND_HOME_PATH"').strip().rsplit("/", 1)[-1]


def changed(done):
    line = next(line for line in done.stdout.splitlines() if line.startswith(NODE) and "changed=" in line)
    return int(line.split("changed=")[1].split()[0])


def goes_forward(site, version, folder):
    before = runs()
    done = site(version)
    assert done.returncode == 0, done.stdout
    assert runs() == before + 2
    assert (in_force(), in_force("sh"), unit_sees()) == (folder, folder, folder)


def goes_by_its_link(site, version, folder):
    """No package, so neither its depot nor anybody's consent to its licence."""
    before = runs()
    wish = {"npu_fleet_allow_downgrade": True, "npu_fleet_accept_licence": False, "npu_fleet_depot": "", "npu_fleet_checksums": {}}
    done = site(version, **wish)
    assert done.returncode == 0, done.stdout
    assert runs() == before
    assert (in_force(), in_force("sh"), unit_sees()) == (folder, folder, folder)
    assert changed(site(version, **wish)) == 0


@pytest.mark.parametrize(("version", "folder"), [(OLD, OLD), (NEW, f"cann-{NEW}")])
def test_forwards_beside_the_version_before(site, version, folder):
    goes_forward(site, version, folder)


def test_both_are_there():
    assert set(on_node("ls", "/usr/local/Ascend").split()) >= {"cann", f"cann-{NEW}", "ascend-toolkit"}
    assert OLD in on_node("ls", "/usr/local/Ascend/ascend-toolkit").split()


def test_an_older_one_needs_a_clear_wish(site):
    done = site(OLD)
    assert done.returncode == 2
    assert "npu_fleet_allow_downgrade: true" in " ".join(done.stdout.split())
    assert in_force() == f"cann-{NEW}"


@pytest.mark.parametrize(("version", "folder"), [(OLD, OLD), (NEW, f"cann-{NEW}")])
def test_back_and_forth_by_links(site, version, folder):
    goes_by_its_link(site, version, folder)


def test_two_of_the_new_layout(site):
    goes_forward(site, NEWER, f"cann-{NEWER}")
    goes_by_its_link(site, NEW, f"cann-{NEW}")
