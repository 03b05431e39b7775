# SPDX-License-Identifier: GPL-3.0-or-later
"""From observe to observe, with small packages that write the vendor's files below a folder."""

import json
import os
import threading
import time

import pytest
from install_rig import (
    CUT_DRIVER,
    DRIVER,
    FIRMWARE,
    GOOD_DRIVER,
    GOOD_TOOLKIT,
    HELP,
    RUNTIME,
    RUNTIME_SCRIPT,
    STEPS,
    TOOLKIT,
)

from ansible_collections.npu.fleet.plugins.module_utils._packages import _call, _install, _journal, _node
from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import decide


def test_install_and_again(machine):
    package = machine.package(DRIVER, GOOD_DRIVER)
    result = machine.install("driver", "25.5.0", family="a2", **package)
    assert result["changed"]
    assert result["before"]["state"] == "absent"
    assert (result["after"]["state"], result["after"]["version"]) == ("present", "25.5.0")
    assert (result["step"]["action"], result["reboot_required"], result["running"]) == ("install", False, False)
    assert result["created"] == ["user HwHiAiUser"]
    assert machine.calls() == ["call --full --quiet --install-for-all --nox11"]
    record = json.loads((machine._folder / "state" / "installed.json").read_text())
    assert (record["driver"]["version"], record["driver"]["sha256"], record["driver"]["file"]) == ("25.5.0", package["sha256"], DRIVER)
    assert [entry["event"] for entry in machine.journal()] == STEPS
    assert record["driver"]["boot_id"] == _journal.boot_id()

    os.unlink(package["src"])
    again = machine.install("driver", "25.5.0", **package)
    assert (again["changed"], again["log"], again["step"]["action"]) == (False, None, "none")
    assert again["before"] == again["after"]
    assert len(machine.journal()) == len(STEPS)


def test_it_unpacks_and_runs_in_our_cache(machine):
    machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))
    folder, unpack = (machine.root / "pwd").read_text().splitlines()
    assert folder == unpack
    assert folder.startswith(machine.places.cache_dir + "/work/")
    assert not os.path.exists(os.path.dirname(folder))


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_a_file_without_x_bit(machine, mode):
    package = machine.package(DRIVER, GOOD_DRIVER)
    os.chmod(package["src"], mode)
    assert machine.install("driver", "25.5.0", **package)["changed"]


def test_check_mode_changes_nothing(machine):
    package = machine.package(DRIVER, GOOD_DRIVER)
    result = machine.install("driver", "25.5.0", check_mode=True, **package)
    assert (result["changed"], result["after"]["version"], result["log"]) == (True, "25.5.0", None)
    assert sorted(os.listdir(machine._folder)) == ["packages", "root"]
    assert os.listdir(machine.root) == []


def test_check_mode_of_firmware_foretells_the_reboot(machine):
    machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))
    result = machine.install("firmware", "7.8.0.5.216", check_mode=True, **machine.package(FIRMWARE, "exit 0"))
    assert (result["after"]["state"], result["reboot_required"]) == ("reboot_pending", True)


@pytest.mark.parametrize(
    ("changes", "wish", "code", "words"),
    [
        ({"family": "310p"}, {}, "wrong_family", ("310p", "a2")),
        ({}, {"family": "910"}, "wrong_family", ("910", "a2")),
        ({"arch": "aarch64"}, {}, "wrong_arch", ("aarch64", "x86_64")),
        ({"family": None}, {}, "npu_missing", ("No NPU",)),
        ({}, {"sha256": "0" * 64}, "checksum_differs", ("0000",)),
        ({}, {"version": "25.5.2"}, "wrong_version", ("25.5.0", "25.5.2")),
        ({}, {"src": "/nonexistent/" + DRIVER}, "package_missing", ("/nonexistent/",)),
        ({}, {"src": "/nonexistent/driver.run"}, "package_unknown", ("driver.run",)),
    ],
)
def test_refused_before_it_starts(machine, changes, wish, code, words):
    for name, value in changes.items():
        setattr(machine, name, value)
    arguments = dict(machine.package(DRIVER, GOOD_DRIVER), version="25.5.0", **{})
    arguments.update(wish)
    error = machine.refused("driver", arguments.pop("version"), **arguments)
    assert error.code == code
    for word in words:
        assert word in str(error)
    assert machine.calls() == []
    assert not {"verified", "launched"} & {entry["event"] for entry in machine.journal()}


def test_truncated(machine):
    package = machine.package(DRIVER, GOOD_DRIVER)
    os.truncate(package["src"], os.path.getsize(package["src"]) - 20)
    assert machine.refused("driver", "25.5.0", **package).code == "package_truncated"
    assert machine.refused("driver", "25.5.0", check_mode=True, **package).code == "package_truncated"
    assert machine.calls() == []


def test_content_of_another_family(machine):
    package = machine.package(FIRMWARE, "exit 0", label="ASCEND-HDK-310P-NPU FIRMWARE RUN PACKAGE")
    machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))
    assert machine.refused("firmware", "7.8.0.5.216", **package).code == "wrong_family"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo 'Driver package installed successfully!'; exit 0", "nothing_installed"),
        ("echo '[Driver] [x] [ERROR]The list of missing tools: lspci,'; exit 1", "tools_missing"),
        ("kill -9 $$", "package_killed"),
        ("echo 'Unexpected archive size.' >&2; exit 2", "package_damaged"),
        (CUT_DRIVER + "0", "nothing_installed"),
    ],
)
def test_failures(machine, script, code):
    error = machine.refused("driver", "25.5.0", **machine.package(DRIVER, HELP + script))
    assert error.code == code
    assert machine.installer.result["log"]["path"].startswith(machine.places.log_dir)
    assert machine.journal()[-1]["good"] is False
    assert not (machine._folder / "state" / "installed.json").exists()
    assert machine.installer.result["after"]["state"] in ("absent", "half_installed")


def test_a_failure_is_repaired_by_the_next_run(machine):
    machine.refused("driver", "25.5.0", **machine.package(DRIVER, CUT_DRIVER + "1"))
    result = machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))
    assert (result["step"]["action"], result["after"]["state"]) == ("repair", "present")


def test_exit_code_one_but_installed_is_installed(machine):
    result = machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER + "\n(exit 15)"))
    assert result["after"]["state"] == "present"


def test_hang(machine):
    started = time.monotonic()
    error = machine.refused("driver", "25.5.0", timeout=1, **machine.package(DRIVER, HELP + "echo waiting; sleep 300"))
    assert error.code == "deadline"
    assert time.monotonic() - started < 10
    assert machine.installer.result["log"]["lines"] == ["waiting"]


def test_firmware_is_waited_for_by_the_next_run(machine):
    machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))
    script = (
        HELP + 'until [ -e "$ROOT/go" ]; do sleep 0.05; done\nmkdir -p "$ROOT/usr/local/Ascend/firmware"\n'
        'echo "Version=7.8.0.5.216" >"$ROOT/usr/local/Ascend/firmware/version.info"\n'
        'echo "Firmware_Install_Path_Param=/usr/local/Ascend" >>"$ROOT/etc/ascend_install.info"'
    )
    package = machine.package(FIRMWARE, script)
    first = machine.install("firmware", "7.8.0.5.216", timeout=1, **package)
    assert (first["running"], first["changed"], first["reboot_required"]) == (True, True, False)
    again = machine.install("firmware", "7.8.0.5.216", timeout=1, **package)
    assert (again["running"], again["attached"], again["step"]["action"]) == (True, True, "attach")
    # nothing else may run meanwhile
    assert machine.refused("cann_toolkit", "8.5.0", **machine.package(TOOLKIT, GOOD_TOOLKIT)).code == "busy"
    assert machine.install("firmware", "7.8.0.5.216", check_mode=True, **package)["running"]
    (machine.root / "go").touch()
    last = machine.install("firmware", "7.8.0.5.216", **package)
    assert (last["running"], last["attached"], last["after"]["version"]) == (False, True, "7.8.0.5.216")
    # nobody tells what the chips run, so what was just written counts as not running
    assert last["reboot_required"]
    assert not machine.install("firmware", "7.8.0.5.216", **package)["changed"]


def test_two_at_once(machine):
    with _install._journal.HostLock(machine.places.state_dir, "driver"):
        assert machine.refused("driver", "25.5.0", timeout=1, **machine.package(DRIVER, GOOD_DRIVER)).code == "busy"
    assert machine.calls() == []


def test_a_run_that_lost_its_controller_is_waited_for(machine):
    """It holds the lock until its package has ended; the one that waited finds the work done."""
    script = 'touch "$ROOT/began"; until [ -e "$ROOT/go" ]; do sleep 0.05; done\n'
    package = machine.package(DRIVER, GOOD_DRIVER.replace("echo \"call", script + "echo \"call", 1))
    orphan = threading.Thread(target=machine.install, args=("driver", "25.5.0"), kwargs=package)
    orphan.start()
    while not (machine.root / "began").exists():
        time.sleep(0.02)
    timer = threading.Timer(0.5, (machine.root / "go").touch)
    timer.start()
    result = machine.install("driver", "25.5.0", **package)
    orphan.join()
    assert (result["changed"], result["step"]["action"], result["after"]["version"]) == (False, "none", "25.5.0")
    assert len(machine.calls()) == 1


def test_not_root(machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machine.refused("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER)).code == "not_root"


def test_loaded_driver_of_another_version_needs_a_reboot(machine):
    machine.running.update(driver_loaded=True, driver_version="25.3.rc1")
    script = GOOD_DRIVER + "\necho 'Reboot needed for installation/upgrade to take effect!'\n(exit 2)"
    (machine.root / "etc").mkdir()
    (machine.root / "etc/ascend_install.info").write_text(
        "Driver_Install_Type=full\nDriver_Install_Path_Param=/usr/local/Ascend\nDriver_Install_Status=complete\n"
    )
    (machine.root / "usr/local/Ascend/driver").mkdir(parents=True)
    (machine.root / "usr/local/Ascend/driver/version.info").write_text("Version=25.3.rc1\n")
    result = machine.install("driver", "25.5.0", **machine.package(DRIVER, script))
    assert (result["after"]["state"], result["reboot_required"]) == ("reboot_pending", True)
    again = machine.install("driver", "25.5.0", **machine.package(DRIVER, script))
    assert (again["changed"], again["reboot_required"]) == (False, True)


def test_downgrade(machine):
    machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))
    older = DRIVER.replace("25.5.0", "25.3.rc1")
    package = machine.package(older, GOOD_DRIVER.replace("25.5.0", "25.3.rc1"))
    assert machine.refused("driver", "25.3.rc1", **package).code == "downgrade_refused"
    result = machine.install("driver", "25.3.rc1", allow_downgrade=True, **package)
    assert (result["step"]["action"], result["after"]["version"]) == ("downgrade", "25.3.rc1")
    assert machine.calls()[-1] == "call --upgrade --quiet --nox11"


def test_another_user_than_recorded(machine):
    (machine.root / "etc").mkdir()
    (machine.root / "etc/ascend_install.info").write_text("UserName=svc1\nDriver_Install_Path_Param=/usr/local/Ascend\n")
    error = machine.refused("driver", "25.5.0", username="HwHiAiUser", **machine.package(DRIVER, GOOD_DRIVER))
    assert error.code == "user_differs"
    assert "svc1" in str(error)
    assert machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))["created"] == ["user svc1"]



def test_docker_runtime_gets_a_file_of_ours_and_the_answer(machine):
    package = machine.package(RUNTIME, RUNTIME_SCRIPT)
    assert machine.refused("docker_runtime", "26.1.0", accept_licence=False, **package).code == "licence_not_accepted"
    result = machine.install("docker_runtime", "26.1.0", accept_licence=True, **package)
    assert result["after"]["version"] == "26.1.0"
    assert (machine.root / "engine").read_text() == "{}\n"
    assert result["created"] == []


def test_foreign_is_not_removed(machine):
    (machine.root / "usr/local/Ascend/driver").mkdir(parents=True)
    (machine.root / "usr/local/Ascend/driver/version.info").write_text("Version=25.5.0\n")
    assert machine.refused("driver", None, state="absent").code == "foreign"
    assert machine.refused("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER)).code == "foreign"


def test_nothing_secret_is_written(machine):
    machine.refused("driver", "25.5.0", src="http://someone:canary@127.0.0.1:1/" + DRIVER, sha256="0" * 64)
    for folder, _, names in os.walk(machine._folder):
        for name in names:
            with open(os.path.join(folder, name), "rb") as stream:
                assert b"canary" not in stream.read()


def test_noexec(machine, monkeypatch):
    class Flags:
        f_flag = _call._ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda path: Flags)
    assert machine.refused("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER)).code == "noexec"


def test_prediction_takes_earlier_steps_as_done_and_leaves_the_observation_alone():
    absent = {"state": "absent", "version": None, "reason": None, "record": {}}
    observed = {"arch": "x86_64", "family": "a2", "families": ["a2"], "components": {"driver": absent, "firmware": absent}}
    wanted = {"firmware": {"version": "7.8.0.5.216"}}
    assert decide(observed, wanted)[0]["action"] == "refuse"
    assert decide(_node.predict(observed, {"driver": "25.5.0"}), wanted)[0]["action"] == "install"
    assert observed["components"]["driver"] is absent
    assert _node.predict(observed, {}) == observed
