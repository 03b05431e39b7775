# SPDX-License-Identifier: GPL-3.0-or-later
"""observe(): what the vendor's files say, in every broken state that was measured."""

import json

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._command import Result
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _managed, _records, _state

KERNEL = "6.1.0-1-amd64"
LIVE = {"driver_loaded": True, "driver_version": "25.5.0", "firmware_versions": ["7.8.0.5.216"] * 8, "npu_present": True, "kernel": KERNEL}
IDLE = {"driver_loaded": False, "driver_version": None, "firmware_versions": None, "npu_present": True, "kernel": KERNEL}
UNKNOWN = {"driver_loaded": None, "driver_version": None, "firmware_versions": None, "npu_present": True, "kernel": KERNEL}

INFO = (
    "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Type=full\nDriver_Install_Path_Param=/usr/local/Ascend\n"
    "Driver_Install_For_All=yes\nDriver_Install_Mode=normal\nFirmware_Install_Type=full\nFirmware_Install_Path_Param=/usr/local/Ascend\n"
    "Driver_Install_Status=complete\n"
)
MODULE = f"/lib/modules/{KERNEL}/updates/drv_pcie_host.ko"
GOOD = {
    "/etc/ascend_install.info": INFO,
    "/usr/local/Ascend/driver/version.info": "Version=25.5.0\npackage_version=25.5.0\ncompatible_version_fw=[7.0.0,8.9.9]\n",
    "/usr/local/Ascend/firmware/version.info": "Version=7.8.0.5.216\nfirmware_version=1.0\npackage_version=25.5.0\n",
    "/etc/ascend_filelist.info": f"[driver_ko] {MODULE}\n",
    MODULE: "npu-sim module drv_pcie_host 25.5.0\n",
}


@pytest.fixture
def observe(tmp_path):
    def observe(files, running):
        for path, text in files.items():
            if text is None:
                continue
            target = tmp_path / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("->"):
                target.symlink_to(text[2:])
            elif text == "folder":
                target.mkdir()
            else:
                target.write_bytes(text.encode())
        return _state.observe(str(tmp_path), running)

    return observe


def test_empty_machine(observe):
    found = observe({}, IDLE)
    assert sorted(found) == sorted(_state.COMPONENTS)
    for entry in found.values():
        assert (entry["state"], entry["version"], entry["path"]) == ("absent", None, None)
        assert sorted(entry) == ["path", "reason", "record", "running", "state", "version"]


@pytest.mark.parametrize(
    ("files", "running", "state", "words"),
    [
        (GOOD, LIVE, "present", None),
        (GOOD, UNKNOWN, "present", None),
        (GOOD, dict(IDLE, npu_present=False), "present", None),
        (GOOD, IDLE, "reboot_pending", "on disk, but not loaded"),
        (GOOD, dict(LIVE, driver_version="25.3.rc1"), "reboot_pending", "25.5.0 is on disk, 25.3.rc1 is loaded"),
        (GOOD, dict(LIVE, driver_version=None), "present", None),
        ({}, LIVE, "reboot_pending", "none is on disk"),
        ({}, IDLE, "absent", None),
        # the three marks, each alone missing
        (dict(GOOD, **{"/usr/local/Ascend/driver/version.info": None}), IDLE, "half_installed", "version.info has no Version"),
        (dict(GOOD, **{"/usr/local/Ascend/driver/version.info": ""}), LIVE, "half_installed", "version.info has no Version"),
        (dict(GOOD, **{"/etc/ascend_install.info": INFO.replace("Driver_Install_Status=complete\n", "")}), LIVE, "half_installed",
         "Driver_Install_Status=complete"),
        (dict(GOOD, **{"/etc/ascend_install.info": None}), LIVE, "foreign", "does not name it"),
        (dict(GOOD, **{"/etc/ascend_install.info": ""}), LIVE, "foreign", "does not name it"),
        (dict(GOOD, **{"/etc/ascend_install.info": "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\n"}), LIVE, "foreign", "does not name it"),
        # killed at 10 %: six keys and no files
        ({"/etc/ascend_install.info": INFO.replace("Driver_Install_Status=complete\n", "")}, IDLE, "half_installed", "version.info"),
        # a tree without version.info and without a record
        ({"/usr/local/Ascend/driver/lib64/libdcmi.so": "x"}, IDLE, "foreign", "does not name it"),
        ({"/usr/local/Ascend/driver": "folder"}, IDLE, "absent", None),
        # development and container installations are no driver for a host
        (dict(GOOD, **{"/etc/ascend_install.info": INFO.replace("Type=full", "Type=devel", 1)}), IDLE, "half_installed", "type is devel"),
        (dict(GOOD, **{"/etc/ascend_install.info": INFO.replace("Type=full", "Type=run", 1)}), LIVE, "present", None),
        # module files
        (dict(GOOD, **{MODULE: ""}), LIVE, "half_installed", "is empty"),
        (dict(GOOD, **{MODULE: None}), IDLE, "half_installed", "is not there"),
        (dict(GOOD, **{MODULE: None}), LIVE, "present", None),
        (GOOD, dict(IDLE, kernel="6.1.0-2-amd64"), "half_installed", "running kernel is 6.1.0-2-amd64"),
        (dict(GOOD, **{"/etc/ascend_filelist.info": None}), IDLE, "reboot_pending", "not loaded"),
    ],
)
def test_driver(observe, files, running, state, words):
    found = observe(files, running)["driver"]
    assert found["state"] == state
    if words is None:
        assert found["reason"] is None
    else:
        assert words in found["reason"]


def test_driver_record(observe):
    found = observe(GOOD, LIVE)["driver"]
    assert (found["version"], found["running"], found["path"]) == ("25.5.0", "25.5.0", "/usr/local/Ascend/driver")
    assert found["record"] == {
        "install_type": "full", "install_path": "/usr/local/Ascend", "for_all": True, "username": "HwHiAiUser", "usergroup": "HwHiAiUser",
        "package_version": "25.5.0", "compatible_firmware": "[7.0.0,8.9.9]", "answers": True,
    }  # fmt: skip


def test_driver_whose_file_name_has_another_version(observe):
    files = dict(GOOD, **{"/usr/local/Ascend/driver/version.info": "Version=22.0.4\npackage_version=6.0.0\n"})
    assert observe(files, dict(LIVE, driver_version="22.0.4"))["driver"]["state"] == "present"


def test_awkward_text(observe):
    # CRLF, keys twice (the last counts), blanks, another path, a byte order mark, a broken line
    info = "\ufeff" + INFO.replace("\n", "\r\n").replace("/usr/local/Ascend", "/opt/npu") + "Driver_Install_Status=\r\nnonsense\r\n"
    info += "Driver_Install_Status = complete \r\n"
    files = {"/etc/ascend_install.info": info, "/opt/npu/driver/version.info": "\r\n\r\nVersion=25.5.0\r\n"}
    found = observe(files, LIVE)["driver"]
    assert (found["state"], found["version"], found["path"]) == ("present", "25.5.0", "/opt/npu/driver")


OURS = "/var/lib/npu-fleet/"
BOOTED = dict(LIVE, boot_id="now", boot_time=0)


def ours(boot, driver="25.5.0", firmware="7.8.0.5.216"):
    entries = {"driver": {"version": driver, "boot_id": boot}, "firmware": {"version": firmware, "boot_id": boot}}
    return {OURS + "installed.json": json.dumps(entries)}


def launched(boot, version="25.5.0", component="driver"):
    line = {"event": "launched", "component": component, "version": version, "boot_id": boot}
    return {OURS + "journal.jsonl": json.dumps(line) + "\n"}


@pytest.mark.parametrize(
    ("record", "changes", "state"),
    [
        # (what our record says, what runs) -> a boot has passed since, or not, or nobody knows
        (ours("now"), {}, "reboot_pending"),
        (ours("before"), {}, "mismatched"),
        (ours("before"), {"driver_version": "25.5.0"}, "present"),
        (ours("before"), {"driver_loaded": False, "driver_version": None}, "mismatched"),
        (ours("now"), {"driver_loaded": False, "driver_version": None}, "reboot_pending"),
        # cut after the package, before the record: the journal knows
        (launched("before"), {}, "mismatched"),
        (launched("now"), {}, "reboot_pending"),
        (dict(ours("before"), **launched("now")), {}, "reboot_pending"),
        # an upgrade that changed nothing before it was cut
        (dict(ours("before"), **launched("now", "25.5.2")), {}, "mismatched"),
        # not ours: the file's age against the boot's
        ({}, {"boot_time": 2 ** 33}, "mismatched"),
        (ours("now", driver="25.3.rc1"), {"boot_time": 2 ** 33}, "mismatched"),
        ({}, {"boot_time": 1}, "reboot_pending"),
        ({}, {"boot_time": None, "boot_id": None}, "reboot_pending"),
        (ours("now"), {"boot_time": 2 ** 33}, "reboot_pending"),
    ],
)
def test_disk_and_running_still_differ_after_a_boot(observe, record, changes, state):
    found = observe(dict(GOOD, **record), dict(BOOTED, **dict({"driver_version": "25.3.rc1"}, **changes)))["driver"]
    assert found["state"] == state
    assert ("a reboot since then" in (found["reason"] or "")) is (state == "mismatched")


@pytest.mark.parametrize(
    ("boot", "chips", "state"),
    [
        ("now", ["7.3.0.1.231"] * 2, "reboot_pending"),
        ("before", ["7.3.0.1.231"] * 2, "mismatched"),
        ("before", ["7.8.0.5.216", "7.3.0.1.231"], "mismatched"),
        ("before", ["7.8.0.5.216"] * 2, "present"),
        ("before", None, "present"),
    ],
)
def test_chips_that_still_run_other_firmware_after_a_boot(observe, boot, chips, state):
    found = observe(dict(GOOD, **ours(boot)), dict(BOOTED, firmware_versions=chips))["firmware"]
    assert found["state"] == state


@pytest.mark.parametrize(
    ("running", "answers"),
    [(LIVE, True), (IDLE, False), (UNKNOWN, None), (dict(LIVE, driver_version=None), False),
     (dict(LIVE, driver_version=None, npu_present=False), None)],
)
def test_whether_the_driver_answers(observe, running, answers):
    assert observe(GOOD, running)["driver"]["record"]["answers"] is answers


DPKG = """Package: bash
Status: install ok installed
Version: 5.2

Package: %s
Status: %s
Priority: optional
Version: 26.0.rc1-1
"""


@pytest.mark.parametrize(
    ("name", "status", "component"),
    [
        ("ascend910b-driver", "install ok installed", "driver"),
        ("Ascend910B-firmware", "install ok half-configured", "firmware"),
        ("ascend910b-driver", "deinstall ok config-files", None),
        ("xserver-driver", "install ok installed", None),
        ("descend-driver", "install ok installed", None),
    ],
)
def test_a_driver_of_dpkg_is_foreign(observe, name, status, component):
    found = observe(dict(GOOD, **{"/var/lib/dpkg/status": DPKG % (name, status)}), LIVE)
    foreign = [part for part in ("driver", "firmware") if found[part]["state"] == "foreign"]
    assert foreign == ([component] if component else [])
    if component:
        assert f"{name} 26.0.rc1-1 of dpkg" in found[component]["reason"]


def test_a_driver_of_rpm(tmp_path):
    files = _records.Files(str(tmp_path))
    (tmp_path / "var/lib/rpm").mkdir(parents=True)
    asked = []

    def run(argv, timeout):
        asked.append(argv[0])
        return Result(argv, 0, "bash 5.2\nAscend910B-driver 25.5.2\nAscend910B-driver-devel 1\n", "", False, 0)

    assert _managed.find(files, run) == [] == asked
    (tmp_path / "var/lib/rpm/rpmdb.sqlite").write_text("x")
    expected = {"manager": "rpm", "name": "Ascend910B-driver", "component": "driver", "version": "25.5.2"}
    assert _managed.find(files, run) == [expected]
    assert _managed.find(files) == []


FIRMWARE = "/usr/local/Ascend/firmware/version.info"


@pytest.mark.parametrize(
    ("files", "running", "state", "words"),
    [
        (GOOD, LIVE, "present", None),
        (GOOD, UNKNOWN, "present", None),
        (GOOD, dict(LIVE, firmware_versions=[]), "present", None),
        (GOOD, dict(LIVE, firmware_versions=["7.8.0.5.216", "7.3.0.1.231"]), "reboot_pending", "1 of 2 chips run 7.3.0.1.231"),
        (dict(GOOD, **{FIRMWARE: None}), LIVE, "half_installed", "has no Version"),
        (dict(GOOD, **{"/etc/ascend_install.info": None}), LIVE, "foreign", "does not name it"),
        ({}, LIVE, "absent", None),
    ],
)
def test_firmware(observe, files, running, state, words):
    found = observe(files, running)["firmware"]
    assert found["state"] == state
    assert found["reason"] is None if words is None else words in found["reason"]


RUNTIME = "/usr/local/Ascend/Ascend-Docker-Runtime/"
RUNTIME_FILES = {
    RUNTIME + "ascend_docker_runtime_install.info": "version=v7.3.0\narch=x86_64\nos=linux\ninstall-scene=docker\n",
    RUNTIME + "ascend-docker-runtime": "x",
    RUNTIME + "ascend-docker-hook": "x",
    "/etc/ascend-docker-runtime.d/base.list": "/usr/local/bin/npu-smi\n",
}


def journal(*entries):
    return {"/var/lib/npu-fleet/journal.jsonl": "".join(json.dumps(entry) + "\n" for entry in entries)}


ENDED = {"event": "ended", "rc": 1, "time": "2026-01-01T00:00:00Z"}


def launched(component, version="25.5.0", **fields):
    return dict({"event": "launched", "component": component, "version": version, "action": "install"}, **fields)


@pytest.mark.parametrize(
    ("component", "entries", "state"),
    [
        ("firmware", [launched("firmware", "7.8.0.5.216")], "half_installed"),
        ("driver", [launched("driver")], "half_installed"),
        ("docker_runtime", [launched("docker_runtime", "7.3.0")], "half_installed"),
        ("driver", [dict(launched("driver", None), action="remove", way="script")], "half_installed"),
        # what was recorded and has lost its record since then, another version, and another component were not cut by us
        ("firmware", [launched("firmware", "7.8.0.5.216"), {"event": "recorded", "component": "firmware"}], "foreign"),
        ("firmware", [launched("firmware", "7.7.0.6.236")], "foreign"),
        ("driver", [launched("firmware", "7.8.0.5.216")], "foreign"),
        ("docker_runtime", [launched("driver", "7.3.0")], "foreign"),
        ("driver", [dict(launched("driver", None))], "foreign"),
        # a run that left nothing, or had ended before the files came, did not leave these
        ("driver", [launched("driver"), {"event": "observed", "component": "driver", "state": "absent"}], "foreign"),
        ("driver", [launched("driver"), dict(ENDED, component="driver")], "foreign"),
        ("driver", [dict(launched("driver", None), action="remove"), dict(ENDED, component="driver")], "foreign"),
        ("docker_runtime", [launched("docker_runtime", "6.0.0"), dict(ENDED, component="docker_runtime")], "foreign"),
        ("driver", [launched("driver"), dict(ENDED, component="driver", time="2999-01-01T00:00:00Z")], "half_installed"),
    ],
)
def test_what_a_package_of_ours_left_without_a_record_is_not_foreign(observe, component, entries, state):
    files = dict(GOOD, **RUNTIME_FILES)
    files.update({"/etc/ascend_install.info": None, RUNTIME + "ascend_docker_runtime_install.info": None}, **journal(*entries))
    found = observe(files, LIVE)[component]
    assert found["state"] == state
    assert "cut" in found["reason"] if state == "half_installed" else "no" in found["reason"]


def toolkit(version, package="Ascend-cann-toolkit"):
    return f"package_name={package}\nversion={version}\ninnerversion=V100R001C25SPC001B212\narch=x86_64\nos=linux\n"


NEW = "/usr/local/Ascend/cann-8.5.0/x86_64-linux"
OLD = "/usr/local/Ascend/ascend-toolkit/8.0.RC3"
CANN_NEW = {
    "/usr/local/Ascend/cann": "->/usr/local/Ascend/cann-8.5.0",
    NEW + "/ascend_toolkit_install.info": toolkit("8.5.0"),
    NEW + "/ascend_ops_install.info": toolkit("8.5.0", "Ascend-cann-910b-ops"),
    # kept for compatibility by the vendor
    "/usr/local/Ascend/ascend-toolkit/latest": "->/usr/local/Ascend/cann-8.5.0",
    "/usr/local/Ascend/ascend-toolkit/set_env.sh": "->/usr/local/Ascend/cann/set_env.sh",
}
CANN_OLD = {
    OLD + "/x86_64-linux/ascend_toolkit_install.info": toolkit("8.0.RC3"),
    OLD + "/opp_kernel/version.info": "Version=8.3.T5.0.B028\nversion_dir=8.0.RC3\n",
    "/usr/local/Ascend/ascend-toolkit/latest": "->./8.0.RC3",
    "/usr/local/Ascend/ascend-toolkit/set_env.sh": "x",
    "/usr/local/Ascend/ascend-toolkit/8.0.RC3_backup/x86_64-linux/ascend_toolkit_install.info": toolkit("8.0.RC3"),
}


def test_cann_new_layout(observe):
    found = observe(CANN_NEW, LIVE)
    assert (found["cann_toolkit"]["state"], found["cann_toolkit"]["version"]) == ("present", "8.5.0")
    assert (found["cann_kernels"]["state"], found["cann_kernels"]["version"]) == ("present", "8.5.0")
    assert found["cann_kernels"]["record"]["package_name"] == "Ascend-cann-910b-ops"
    assert found["cann_nnrt"]["state"] == "absent"


def test_cann_old_layout(observe):
    found = observe(CANN_OLD, LIVE)
    assert (found["cann_toolkit"]["version"], found["cann_toolkit"]["path"]) == ("8.0.RC3", OLD)
    assert found["cann_kernels"]["version"] == "8.0.RC3"
    assert found["cann_toolkit"]["record"]["installed"] == ["8.0.RC3"]


@pytest.mark.parametrize(("link", "version"), [("cann-8.5.0", "8.5.0"), ("cann-8.5.2", "8.5.2"), (None, "8.10.0")])
def test_cann_the_link_decides(observe, link, version):
    record = "/usr/local/Ascend/cann-%s/x86_64-linux/ascend_toolkit_install.info"
    files = {record % name: toolkit(name) for name in ("8.5.0", "8.5.2", "8.10.0")}
    if link:
        files["/usr/local/Ascend/cann"] = "->" + link
    found = observe(files, LIVE)["cann_toolkit"]
    assert found["version"] == version
    assert len(found["record"]["installed"]) == 3


def test_cann_cut_installation(observe):
    found = observe({"/usr/local/Ascend/cann-8.5.0/share/info/runtime/ascend_install.info": "Runtime_Install_Type=full\n"}, LIVE)
    assert found["cann_toolkit"]["state"] == "half_installed"
    assert "cann-8.5.0" in found["cann_toolkit"]["reason"]
    assert found["cann_kernels"]["state"] == "absent"


def test_cann_leftovers_of_a_removal(observe):
    found = observe({"/usr/local/Ascend/cann-8.5.0/var": "folder"} | {"/usr/local/Ascend/cann": "->cann-8.5.0"}, LIVE)
    assert found["cann_toolkit"]["state"] == "absent"


def test_cann_nnrt_by_whitelist(observe):
    found = observe(dict(CANN_NEW, **{NEW + "/install.conf": "whitelist=nnrt\n"}), LIVE)
    assert found["cann_nnrt"]["version"] == "8.5.0"
    assert found["cann_toolkit"]["state"] == "absent"


def test_cann_nnrt_old_and_nnal(observe):
    found = observe(
        {
            "/usr/local/Ascend/nnrt/8.0.RC3/x86_64-linux/ascend_nnrt_install.info": toolkit("8.0.RC3", "Ascend-cann-nnrt"),
            "/usr/local/Ascend/nnal/atb/8.0.RC3/version.info": "Ascend-cann-atb Version : 8.0.RC3\nAscend-cann-atb Version Date : x\n",
            "/usr/local/Ascend/nnal/atb/latest": "->8.0.RC3",
            "/usr/local/Ascend/nnal/atb/set_env.sh": "x",
        },
        LIVE,
    )
    assert found["cann_nnrt"]["version"] == "8.0.RC3"
    assert found["nnal"]["version"] == "8.0.RC3"


def test_cann_another_base(observe):
    files = {path.replace("/usr/local/Ascend", "/opt/cann"): text for path, text in CANN_NEW.items()}
    files["/etc/Ascend/ascend_cann_install.info"] = "Install_Path_Param=/opt/cann\n"
    assert observe(files, LIVE)["cann_toolkit"]["path"] == "/opt/cann/cann-8.5.0"


@pytest.mark.parametrize(
    ("gone", "state", "words"),
    [
        ([], "present", None),
        ([RUNTIME + "ascend-docker-runtime"], "half_installed", "ascend-docker-runtime missing"),
        (["/etc/ascend-docker-runtime.d/base.list"], "half_installed", "base.list"),
        ([RUNTIME + "ascend_docker_runtime_install.info"], "foreign", "install.info"),
        (list(RUNTIME_FILES), "absent", None),
    ],
)
def test_docker_runtime(observe, gone, state, words):
    found = observe({path: text for path, text in RUNTIME_FILES.items() if path not in gone}, LIVE)["docker_runtime"]
    assert found["state"] == state
    assert found["reason"] is None if words is None else words in found["reason"]
    if state == "present":
        assert (found["version"], found["record"]["install-scene"]) == ("7.3.0", "docker")


def test_unreadable_is_not_absent(monkeypatch, tmp_path):
    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(_records, "open", refuse, raising=False)
    with pytest.raises(FleetError) as caught:
        _state.observe(str(tmp_path), LIVE)
    assert caught.value.code == "file_unreadable"


@pytest.mark.parametrize("path", ["/etc/ascend_install.info", "/usr/local/Ascend/driver/version.info"])
def test_a_folder_in_the_place_of_a_record_is_named(tmp_path, path):
    """A pod that is started again after the driver has gone: the engine makes what it was to mount."""
    (tmp_path / path.lstrip("/")).mkdir(parents=True)
    with pytest.raises(FleetError) as caught:
        _state.observe(str(tmp_path), LIVE)
    assert f"{path} is a folder" in str(caught.value) and f"rmdir {path}" in caught.value.hint
