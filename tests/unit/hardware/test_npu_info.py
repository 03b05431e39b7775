# SPDX-License-Identifier: GPL-3.0-or-later
"""The module npu_info on made nodes: nothing there, everything there, a tool that hangs, versions that differ."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from hardware_samples import sample

from ansible_collections.npu.fleet.plugins.module_utils import _detached, _hardware, _observe
from ansible_collections.npu.fleet.plugins.modules import npu_info

AGENT = {"version": None, "active": False}


@pytest.fixture
def node(tree, tmp_path, monkeypatch):
    """Parameters for a node below tmp_path; the parts that ask systemd and engines of this machine are left out."""
    monkeypatch.setattr(_observe._engine, "observe", lambda run, root: [])
    monkeypatch.setattr(_observe._agent, "observe", lambda root, run: AGENT)
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    (root / "etc/passwd").write_text("HwHiAiUser:x:1:1::/:/bin/sh\n")
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("b-1\n")
    tree.params = {
        "root": str(root), "sysfs_root": str(tree.sysfs), "dev_root": str(tree.dev), "proc_root": str(tmp_path / "proc"), "npu_smi": None,
        "dcmi_library": None, "timeout": 5,
    }
    tree.root = root
    return tree


def tool(node, text, boards=None):
    """An npu-smi that prints `text`, and for boards a firmware."""
    path = node.root / "usr/local/bin/npu-smi"
    path.parent.mkdir(parents=True, exist_ok=True)
    (node.root / "info").write_text(text)
    (node.root / "board").write_text(boards or "")
    path.write_text(f'#!/bin/sh\ncase "$*" in info) cat {node.root}/info;; "info -m") exit 7;; *) cat {node.root}/board;; esac\n')
    path.chmod(0o755)


def install(node, driver="24.1.0", firmware="7.8.0.5.216"):
    """What packages leave behind, as far as this module looks at it itself."""
    base = node.root / "usr/local/Ascend"
    for name, version in (("driver", driver), ("firmware", firmware)):
        (base / name).mkdir(parents=True)
        (base / name / "version.info").write_text(f"Version={version}\npackage_version={driver}\n")
    (node.root / "etc/ascend_install.info").write_text(
        "UserName=npu\nUserGroup=npu\nDriver_Install_Type=full\nDriver_Install_Path_Param=/usr/local/Ascend\nDriver_Install_For_All=no\n"
        "Driver_Install_Status=complete\nFirmware_Install_Type=full\nFirmware_Install_Path_Param=/usr/local/Ascend\n"
    )


def server(node):
    for number, address in enumerate(("0000:c1:00.0", "0000:01:00.0")):
        node.function(address, "d802", driver="devdrv_device_driver")
        node.node(number)


def test_host_without_npu(node):
    npu = npu_info.observe(node.params)
    assert (npu["present"], npu["chips"], npu["query"]["ok"], npu["query"]["error"]) == (False, [], True, None)
    assert (npu["os"]["id"], npu["boot_id"], npu["users"], npu["agent"]) == ("debian", "b-1", {"HwHiAiUser": True}, AGENT)
    assert (npu["reboot_required"], npu["reboot_reasons"], npu["running_packages"], npu["holders"]) == (False, [], [], [])
    assert npu["components"]["driver"]["state"] == "absent"
    assert npu["versions"]["driver"] == {"on_disk": None, "running": None}
    assert npu["versions"]["firmware"] == {"on_disk": None, "running": None, "per_chip": []}


def test_bare_node_with_chips(node):
    for address in ("0000:c1:00.0", "0000:01:00.0"):
        node.function(address, "d802")
    npu = npu_info.observe(node.params)
    assert (npu["present"], npu["family"], len(npu["chips"])) == (True, "a2", 2)
    assert (npu["query"]["ok"], npu["query"]["error"]["code"]) == (False, "npu_smi_missing")
    assert [error["code"] for error in npu["query"]["errors"]] == ["npu_smi_missing", "dcmi_library_missing"]
    assert npu["reboot_required"] is False


def test_installed_node(node, odd_library):
    server(node)
    install(node)
    tool(node, sample("info_910b_gap.txt"), sample("info-t-board.txt"))
    npu = npu_info.observe(dict(node.params, dcmi_library=odd_library()))
    assert npu["query"]["source"] == "dcmi,npu-smi"
    assert npu["versions"]["firmware"]["on_disk"] == "7.8.0.5.216"
    assert set(npu["versions"]["firmware"]["per_chip"]) == {"7.8.0.5.216"}
    assert npu["versions"]["firmware"]["running"] == "7.8.0.5.216"
    assert npu["users"] == {"HwHiAiUser": True, "npu": False}
    assert npu["versions"]["driver"] == {"on_disk": "24.1.0", "running": "25.5.0"}  # the odd library says 25.5.0
    assert npu["reboot_required"] is True
    assert "24.1.0" in npu["reboot_reasons"][0]
    assert "25.5.0" in npu["reboot_reasons"][0]


def test_firmware_on_disk_is_not_the_running_one(node):
    server(node)
    install(node, firmware="7.9.0")
    tool(node, sample("info_910b_gap.txt"), sample("info-t-board.txt"))
    npu = npu_info.observe(node.params)
    assert npu["versions"]["driver"] == {"on_disk": "24.1.0", "running": "24.1.0"}
    assert npu["versions"]["firmware"] == {"on_disk": "7.9.0", "running": "7.8.0.5.216", "per_chip": ["7.8.0.5.216"] * 2}
    assert npu["components"]["firmware"]["state"] == "reboot_pending"
    assert npu["reboot_required"] is True
    assert "7.9.0" in " ".join(npu["reboot_reasons"])


def test_no_reboot_is_asked_for_while_a_package_runs(node, monkeypatch):
    server(node)
    install(node, firmware="7.9.0")
    tool(node, sample("info_910b_gap.txt"), sample("info-t-board.txt"))
    notes = node.root / "run/npu-fleet"
    notes.mkdir(parents=True)
    note = notes / "npu-fleet-firmware.json"
    # As a host without systemd has it: this very process is the one that runs the package.
    monkeypatch.setattr(_detached, "_systemd_version", lambda: 0)
    note.write_text(json.dumps({"log": "/x.log", "pid": os.getpid(), "start": _detached._start_time(os.getpid())}))
    npu = npu_info.observe(node.params)
    assert npu["running_packages"] == ["firmware"]
    assert (npu["reboot_required"], npu["reboot_reasons"]) == (False, [])
    assert npu["components"]["firmware"]["state"] == "reboot_pending"
    note.write_text(json.dumps({"log": "/x.log", "pid": os.getpid(), "start": 1, "rc": 0}))
    npu = npu_info.observe(node.params)
    assert (npu["running_packages"], npu["reboot_required"]) == ([], True)


def test_nothing_is_claimed_when_the_tool_hangs(node):
    server(node)
    install(node)
    tool(node, "")
    (node.root / "usr/local/bin/npu-smi").write_text("#!/bin/sh\nsleep 60\n")
    npu = npu_info.observe(dict(node.params, timeout=1))
    assert [chip["family"] for chip in npu["chips"]] == ["a2", "a2"]
    assert (npu["query"]["ok"], npu["query"]["error"]["code"]) == (False, "npu_smi_timeout")
    assert (npu["versions"]["driver"]["running"], npu["reboot_required"]) == (None, False)


def test_named_tool_that_is_not_there(node):
    server(node)
    npu = npu_info.observe(dict(node.params, npu_smi="/nowhere/npu-smi"))
    assert (npu["query"]["error"]["source"], npu["query"]["error"]["code"], len(npu["chips"])) == ("npu-smi", "npu_smi_missing", 2)


def test_holders_are_named(node, tmp_path):
    folder = tmp_path / "proc/4242"
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text("python3\n")
    os.symlink("/dev/davinci1", folder / "fd/3")
    holder = {"pid": 4242, "comm": "python3", "device": "/dev/davinci1", "container": None, "pod_uid": None, "unit": None}
    assert npu_info.observe(node.params)["holders"] == [holder]


def test_documented_keys_are_the_returned_ones(node):
    node.function("0000:c1:00.0", "d802")
    npu = npu_info.observe(node.params)
    documented = yaml.safe_load(npu_info.RETURN)["npu"]["contains"]
    assert set(npu) == set(documented)
    assert set(npu["chips"][0]) == set(documented["chips"]["contains"])


def test_runs_as_ansible_sends_it(tmp_path, tree, odd_library):
    """From the zip that Ansible makes: the DCMI child has no file there and must start from its source text."""
    tree.function("0000:c1:00.0", "d802")
    place = str(pathlib.Path(_hardware.__file__).parents[6])
    assert (pathlib.Path(place) / "ansible_collections").is_dir()
    arguments = {
        "root": str(tmp_path), "sysfs_root": str(tree.sysfs), "dev_root": str(tree.dev), "proc_root": str(tmp_path),
        "dcmi_library": odd_library("NOISE"),
    }
    environment = dict(
        os.environ, ANSIBLE_COLLECTIONS_PATH=place, ANSIBLE_LOCAL_TEMP=str(tmp_path / "local"),
        ANSIBLE_REMOTE_TEMP=str(tmp_path / "remote"), LC_ALL="C.UTF-8",
    )
    command = [
        sys.executable, "-m", "ansible", "adhoc", "localhost", "-i", "localhost,", "-c", "local", "-m", "npu.fleet.npu_info", "-a",
        json.dumps(arguments), "-e", f"ansible_python_interpreter={sys.executable}",
    ]
    result = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    npu = json.loads(result.stdout.split("=>", 1)[1])["npu"]
    assert (npu["query"]["source"], npu["versions"]["driver"]["running"]) == ("dcmi", "25.5.0")
    assert [chip["name"] for chip in npu["chips"]][:2] == ["910B4", "910B4"]
