# SPDX-License-Identifier: GPL-3.0-or-later
"""build.py: what it writes, and that a missing tool is named with the command that brings it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import npu_sim
import pytest

SIMULATOR = Path(__file__).resolve().parents[3] / "simulator"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    subprocess.run([sys.executable, str(SIMULATOR / "build.py"), "--out", str(folder), "--chips", "4"], check=True, stdout=subprocess.PIPE)
    return folder


def test_payload_is_what_the_driver_package_takes(out):
    assert sorted(os.listdir(out / "payload/driver")) == ["libdcmi.so", "npu-smi"]
    assert "@NPU_SMI_VERSION@" in (out / "payload/driver/npu-smi").read_text()
    assert os.access(out / "payload/driver/npu-smi", os.X_OK)


def test_rootfs_is_complete_and_enabled(out):
    root = out / "rootfs"
    unit = root / "etc/systemd/system/sysinit.target.wants/npu-simd.service"
    assert unit.resolve() == root / "etc/systemd/system/npu-simd.service"
    content = npu_sim.load(root / "var/lib/npu-sim/state.json")
    assert (len(content["chips"]), content["node"], content["kernel"]["driver_loaded"]) == (4, None, False)
    for tool in ("usr/local/bin/npu-sim", "usr/local/sbin/npu-simd", "usr/local/sbin/modprobe", "usr/local/sbin/lsmod"):
        assert os.access(root / tool, os.X_OK)
    assert "libcjson1" in (out / "debian-packages.txt").read_text().split()
    imported = {path.stem for path in (root / "usr/local/lib/npu-sim").glob("*.py")}
    assert {"npu_sim", "npu_simd", "sysfs_tree", "module_tools"} <= imported


def test_missing_compiler_names_the_command(build, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="apt-get install gcc libc6-dev libcjson-dev"):
        build.compile_library(tmp_path / "lib.so")


def test_missing_header_names_the_command(build, monkeypatch, tmp_path):
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\necho 'fatal error: cjson/cJSON.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(build.BuildError, match="apt-get install libc6-dev libcjson-dev"):
        build.compile_library(tmp_path / "lib.so")
