# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a package (from a checkout it has no _hardware of its own), and nodes in folders."""

import subprocess
import sys
from pathlib import Path

import agent_rig as rigs
import delivery_rig
import pytest
import simulated_world
from audit_rig import audited  # noqa: F401  fixture
from chip_life import agent, levels, life  # noqa: F401  fixtures
from driver_files import tree  # noqa: F401  fixture
from driver_rig import fake_driver, fake_node  # noqa: F401  fixtures
from kubelet_rig import kubelet, kubelet_rig, odd, ready  # noqa: F401  fixtures
from labels_rig import deaf, kube_api, kubeconfig, node_api  # noqa: F401  fixtures
from names_rig import names  # noqa: F401  fixture
from node_rig import make  # noqa: F401  fixture
from service_rig import node  # noqa: F401  fixture

from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    _agent_archive.write_sources(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def library():
    """Not below /tmp: the agent loads no library from a folder where others may write."""
    with rigs.private_folder() as out:
        subprocess.run([sys.executable, str(rigs.REPO / "tests/simulator/build.py"), "--out", out], check=True, capture_output=True)
        yield Path(out) / "payload/driver/libdcmi.so"


@pytest.fixture
def rig(tmp_path_factory, package, library):
    made = rigs.Rig(tmp_path_factory.mktemp("node"), package, library)
    yield made
    made.close()


@pytest.fixture
def world(tmp_path, library, package, monkeypatch):
    made = []

    def make_world(*arguments, **more):
        made.append(simulated_world.World(tmp_path, library, *arguments, **more))
        monkeypatch.setenv("NPU_SIM_STATE", str(made[-1].state))
        return made[-1]

    yield make_world
    for one in made:
        one.close()


@pytest.fixture
def pair(rig):
    """A kubelet and an agent that is registered with it and whose list it has taken in."""
    rig.kubelet()
    started = rig.agent()
    started.await_state("serving")
    rigs.until(lambda: rig.numbers() == (8, 8), what="8 of 8 at the kubelet")
    return rig, started


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheelhouse")
    delivery_rig.write_wheels(folder)
    return folder


@pytest.fixture(scope="module")
def archive(tmp_path_factory, wheelhouse):
    return delivery_rig.pack(tmp_path_factory.mktemp("cache"), wheelhouse)
