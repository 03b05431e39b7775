# SPDX-License-Identifier: GPL-3.0-or-later
"""The OCI shim in front of a stand-in for runc that writes down what it was given."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from npu_nodes.files import oci_shim

NO_SYS_RESOURCE = "CapBnd:\t000001fffeffffff\n"


def test_bounding_set():
    names = oci_shim.bounding_set(NO_SYS_RESOURCE)
    assert "CAP_SYS_ADMIN" in names
    assert "CAP_CHECKPOINT_RESTORE" in names
    assert "CAP_SYS_RESOURCE" not in names


def test_capabilities_beyond_ours_are_dropped_and_a_lower_oom_score_raised():
    process = {"capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "ambient": None}, "oomScoreAdj": -998}
    oci_shim.fix_process(process, {"CAP_CHOWN"}, 0)
    assert process == {"capabilities": {"bounding": ["CAP_CHOWN"], "ambient": None}, "oomScoreAdj": 0}


def test_a_machine_with_all_capabilities_keeps_its_oom_score():
    process = {"oomScoreAdj": -998}
    oci_shim.fix_process(process, {"CAP_SYS_RESOURCE"}, 0)
    assert process == {"oomScoreAdj": -998}


@pytest.mark.parametrize(
    ("controllers", "left"),
    [
        (None, {"cpu", "memory", "pids", "blockIO", "devices", "hugepageLimits", "unified"}),
        ({"hugetlb"}, {"devices"}),
        ({"cpu", "memory", "pids", "io"}, {"cpu", "memory", "pids", "blockIO", "devices"}),
    ],
)
def test_limits_without_controller_are_dropped(controllers, left):
    resources = {key: {} for key in ("cpu", "memory", "pids", "blockIO", "devices", "hugepageLimits", "unified")}
    oci_shim.fix_resources(resources, controllers)
    assert set(resources) == left


@pytest.mark.parametrize("words", [["--bundle", "/b"], ["--bundle=/b"], ["-b", "/b"]])
def test_option(words):
    assert oci_shim.option(["create", *words, "id"], "--bundle", "-b") == "/b"


@pytest.fixture
def runc(tmp_path):
    """A shim installed as runc over a real one that prints its arguments and its standard input."""
    shim = tmp_path / "runc"
    shutil.copy(oci_shim.__file__, shim)
    real = Path(f"{shim}.distrib")
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$*"\ncase " $* " in *" - "*) cat ;; esac\n')
    real.chmod(0o755)

    def call(*words, stdin=""):
        argv = [sys.executable, "-IS", str(shim), *words]
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    return call


def test_create_edits_the_bundle_and_becomes_runc(runc, tmp_path):
    document = {"process": {"args": ["true"], "capabilities": {"bounding": ["CAP_CHOWN", "CAP_NO_SUCH"]}}, "linux": {"resources": {}}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert runc("--root", "/r", "create", "--bundle", str(tmp_path), "id") == f"--root /r create --bundle {tmp_path} id\n"
    written = json.loads((tmp_path / "config.json").read_text())
    allowed = oci_shim.bounding_set(oci_shim.read("/proc/self/status"))
    assert written["process"]["capabilities"]["bounding"] == [name for name in ["CAP_CHOWN"] if name in allowed]
    assert written["process"]["args"] == ["true"]


def test_update_from_standard_input_goes_through(runc):
    out = runc("update", "--resources", "-", "id", stdin='{"devices": [], "unified": {"x": "1"}}')
    first, _, rest = out.partition("\n")
    assert first == "update --resources - id"
    dropped = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    assert ("unified" not in json.loads(rest)) == dropped


def test_other_commands_pass_untouched(runc):
    assert runc("state", "id") == "state id\n"


def test_without_a_runc_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(oci_shim, "PLACES", ())
    with pytest.raises(SystemExit, match="no runc found"):
        oci_shim.real_runc(str(tmp_path / "runc"))
