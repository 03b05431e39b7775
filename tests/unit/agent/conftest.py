# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a package (from a checkout it has no _hardware of its own), and nodes in folders."""

import subprocess
import sys

import agent_rig as rigs
import pytest

from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    _agent_archive.write_sources(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    out = tmp_path_factory.mktemp("simulator")
    subprocess.run([sys.executable, str(rigs.REPO / "tests/simulator/build.py"), "--out", str(out)], check=True, capture_output=True)
    return out / "payload/driver/libdcmi.so"


@pytest.fixture
def rig(tmp_path_factory, package, library):
    made = rigs.Rig(tmp_path_factory.mktemp("node"), package, library)
    yield made
    made.close()
