# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hardware without a node: the library compiled once, a state file of its own for each test."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

SIMULATOR = Path(__file__).resolve().parents[3] / "simulator"
sys.path.insert(0, str(SIMULATOR / "hardware"))

import npu_sim


def load_build():
    spec = importlib.util.spec_from_file_location("npu_sim_build", SIMULATOR / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def build():
    return load_build()


@pytest.fixture(scope="session")
def compiled(build, tmp_path_factory):
    return build.compile_library(tmp_path_factory.mktemp("dcmi") / "libdcmi.so")


@pytest.fixture
def library(compiled, tmp_path):
    """A copy: the loader gives each file its own static data, so each test starts before dcmi_init."""
    return Path(shutil.copy(compiled, tmp_path / "libdcmi.so"))


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Path of a state file with eight chips and driver 25.5.0 loaded."""
    path = tmp_path / "state.json"
    content = npu_sim.initial()
    npu_sim.personalise(content, "node1")
    content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
    npu_sim.save(content, path)
    monkeypatch.setenv("NPU_SIM_STATE", str(path))
    return path
