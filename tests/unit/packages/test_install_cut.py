# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that are cut, that last, that leave a driver which does not work, and packages that come from the controller."""

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

from ansible_collections.npu.fleet.plugins.module_utils import _detached
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good, _install, _journal

# --- long runs ------------------------------------------------------------------------------------------------------

WAITS = GOOD_DRIVER.replace("echo \"call", 'echo "[Driver] [2026-11-29 10:00:00] [INFO]Start time"\n'
                            'echo "[Driver] [2026-11-29 10:00:07] [INFO]upgradePercentage:30%"\n'
                            'until [ -e "$ROOT/go" ]; do sleep 0.05; done\necho "call', 1)


def test_a_poll_ends_early_and_the_caller_comes_back(machine):
    package = machine.package(DRIVER, WAITS)
    first = machine.install("driver", "25.5.0", poll=1, **package)
    assert (first["running"], first["changed"], first["reboot_required"], first["step"]["action"]) == (True, True, False, "install")
    assert first["progress"] == [{"percent": 30, "seconds": 7}]
    again = machine.install("driver", "25.5.0", poll=1, attach=first["log"]["path"], **package)
    assert (again["running"], again["attached"]) == (True, True)
    (machine.root / "go").touch()
    last = machine.install("driver", "25.5.0", poll=10, attach=first["log"]["path"], **package)
    assert (last["running"], last["after"]["version"], last["changed"]) == (False, "25.5.0", True)
    assert len(machine.calls()) == 1
    assert not os.path.exists(machine.places.cache_dir + "/work")
    assert machine.journal()[-1]["event"] == "recorded"


@pytest.mark.parametrize("ends_unseen", [False, True])
def test_a_failure_after_a_poll_is_told_and_not_repeated(machine, ends_unseen):
    script = HELP + 'echo x >>"$ROOT/starts"; until [ -e "$ROOT/go" ]; do sleep 0.05; done; echo "list of missing tools: lspci,"; exit 1'
    package = machine.package(DRIVER, script)
    first = machine.install("driver", "25.5.0", poll=1, **package)
    (machine.root / "go").touch()
    while ends_unseen and _detached.vendor_running("npu-fleet-driver", machine.places.run_dir):
        time.sleep(0.05)
    error = machine.refused("driver", "25.5.0", poll=10, attach=first["log"]["path"], **package)
    assert error.code == "tools_missing"
    assert (machine.root / "starts").read_text() == "x\n"


def test_another_caller_does_not_take_a_foreign_failure_for_its_own(machine):
    """It lost its first answer, so it does not know the log: what the cut run left is repaired."""
    package = machine.package(DRIVER, HELP + 'until [ -e "$ROOT/go" ]; do sleep 0.05; done; ' + CUT_DRIVER[len(HELP):] + "1")
    assert machine.install("driver", "25.5.0", poll=1, **package)["running"]
    threading.Timer(0.3, (machine.root / "go").touch).start()
    result = machine.install("driver", "25.5.0", poll=10, **machine.package(DRIVER, GOOD_DRIVER))
    assert (result["attached"], result["step"]["action"], result["after"]["state"]) == (True, "repair", "present")


def test_the_holder_of_a_flash_is_named(machine):
    machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))
    script = HELP + 'until [ -e "$ROOT/go" ]; do sleep 0.05; done; exit 1'
    assert machine.install("firmware", "7.8.0.5.216", timeout=1, **machine.package(FIRMWARE, script))["running"]
    error = machine.refused("cann_toolkit", "8.5.0", **machine.package(TOOLKIT, GOOD_TOOLKIT))
    assert error.code == "busy"
    assert f"firmware, process {os.getpid()}, since 2" in str(error)
    (machine.root / "go").touch()


# --- what was cut ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("component", ["driver", "docker_runtime"])
def test_a_run_that_was_cut_before_its_record_is_recorded_by_the_next_one(machine, monkeypatch, component):
    name, version, script = {
        "driver": (DRIVER, "25.5.0", GOOD_DRIVER),
        "docker_runtime": (RUNTIME, "26.1.0", RUNTIME_SCRIPT),
    }[component]
    package = machine.package(name, script)

    def cut(*unused, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_install._journal, "remember", cut)
        with pytest.raises(KeyboardInterrupt):
            machine.install(component, version, **package)
    assert _journal.installed(machine.places.state_dir) == {}
    assert not machine.install(component, version, **package)["changed"]
    entry = _journal.installed(machine.places.state_dir)[component]
    assert (entry["version"], entry["sha256"], entry["file"]) == (version, package["sha256"], name)
    assert machine.journal()[-1]["adopted"] is True
    count = len(machine.journal())
    machine.install(component, version, **package)
    assert len(machine.journal()) == count


@pytest.mark.parametrize("step", STEPS)
def test_cut_at_each_step(machine, monkeypatch, step):
    package = machine.package(DRIVER, GOOD_DRIVER)
    note = _journal.note

    def cut(state_dir, event, **fields):
        note(state_dir, event, **fields)
        if event == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_install._journal, "note", cut)
        with pytest.raises(KeyboardInterrupt):
            machine.install("driver", "25.5.0", **package)
    result = machine.install("driver", "25.5.0", **package)
    assert (result["after"]["state"], result["after"]["version"]) == ("present", "25.5.0")
    assert _journal.installed(machine.places.state_dir)["driver"]["sha256"] == package["sha256"]
    assert len(machine.calls()) == 1


def test_everything_of_ours_is_lost(machine):
    package = machine.package(DRIVER, GOOD_DRIVER)
    machine.install("driver", "25.5.0", **package)
    for name in os.listdir(machine.places.state_dir):
        os.unlink(os.path.join(machine.places.state_dir, name))
    assert not machine.install("driver", "25.5.0", **package)["changed"]
    # the cache still knows which package that was
    found = _good.package_of(machine.places.state_dir, machine.places.cache_dir, "driver", "25.5.0")
    assert found == {"version": "25.5.0", "file": DRIVER, "sha256": package["sha256"]}


def test_our_engine_file_is_whole_again_after_a_cut(machine):
    package = machine.package(RUNTIME, RUNTIME_SCRIPT)
    machine.install("docker_runtime", "26.1.0", **package)
    folder = machine.root / "usr/local/Ascend/Ascend-Docker-Runtime"
    (folder / "ascend-docker-runtime").unlink()
    machine.install("docker_runtime", "26.1.0", **package)
    assert (machine.root / "engine").read_text() == "{}\n"


# --- a driver that does not come up ---------------------------------------------------------------------------------

def test_a_fresh_driver_that_does_not_answer_needs_a_reboot(machine, monkeypatch):
    start = _detached.run_vendor

    def load(*args, **kwargs):
        machine.running.update(driver_loaded=True, driver_version=None)
        return start(*args, **kwargs)

    monkeypatch.setattr(_install, "_SETTLE_SECONDS", 0)
    monkeypatch.setattr(_detached, "run_vendor", load)
    assert machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))["reboot_required"]


def test_a_driver_that_does_not_answer_is_not_called_right(machine):
    package = machine.package(DRIVER, GOOD_DRIVER)
    machine.install("driver", "25.5.0", **package)
    machine.running.update(driver_loaded=True, driver_version=None)
    error = machine.refused("driver", "25.5.0", **package)
    assert (error.code, machine.installer.result["step"]["action"]) == ("driver_silent", "none")


GOOD_FIRMWARE = HELP + """mkdir -p "$ROOT/usr/local/Ascend/firmware"
echo "Version=7.8.0.5.216" >"$ROOT/usr/local/Ascend/firmware/version.info"
echo "Firmware_Install_Path_Param=/usr/local/Ascend" >>"$ROOT/etc/ascend_install.info" """


def test_firmware_that_no_chip_tells_of_waits_for_the_next_boot(machine, monkeypatch):
    machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER))
    package = machine.package(FIRMWARE, GOOD_FIRMWARE)
    for _ in range(2):
        assert machine.install("firmware", "7.8.0.5.216", **package)["reboot_required"]
    monkeypatch.setattr(_journal, "boot_id", lambda: "the next one")
    result = machine.install("firmware", "7.8.0.5.216", **package)
    assert (result["changed"], result["reboot_required"]) == (False, False)
    assert "no chip tells" in result["warnings"][0]


def test_a_mismatched_driver_is_not_repaired_by_a_package_that_failed(machine):
    package = machine.package(DRIVER, GOOD_DRIVER)
    machine.install("driver", "25.5.0", **package)
    launches = [entry for entry in machine.journal() if entry["event"] == "launched"]
    assert launches[0]["boot_id"] == _journal.boot_id()
    state = machine.root / "var/lib/npu-fleet"
    state.mkdir(parents=True)
    (state / "installed.json").write_text(json.dumps({"driver": {"version": "25.5.0", "boot_id": "earlier"}}))
    machine.running.update(driver_loaded=True, driver_version="25.3.rc1", boot_id="now")
    assert machine.observe()["components"]["driver"]["state"] == "mismatched"
    refusing = machine.package(DRIVER, HELP + "echo 'davinci nodes are occupied'; exit 1")
    error = machine.refused("driver", "25.5.0", **refusing)
    assert (error.code, machine.installer.result["step"]["action"]) == ("chips_busy", "repair")


# --- from the controller --------------------------------------------------------------------------------------------

def test_a_file_on_the_controller_is_asked_for_only_where_it_is_needed(machine):
    package = machine.package(DRIVER, GOOD_DRIVER)
    wish = {"src": "packages/" + DRIVER, "sha256": package["sha256"], "remote_src": False}
    asked = machine.install("driver", "25.5.0", **wish)
    assert (asked["file_needed"], asked["changed"], asked["after"]["state"]) == (True, False, "absent")
    assert machine.journal() == []
    staged = machine._folder / "staged"
    staged.write_bytes(open(package["src"], "rb").read())
    result = machine.install("driver", "25.5.0", staged=str(staged), **wish)
    assert (result["file_needed"], result["changed"], result["after"]["version"]) == (False, True, "25.5.0")
    assert not staged.exists()
    again = machine.install("driver", "25.5.0", **wish)
    assert (again["file_needed"], again["changed"]) == (False, False)
    assert machine.install("driver", "25.5.0", check_mode=True, **wish)["changed"] is False


def test_the_cache_keeps_the_way_back(machine):
    def sums():
        return sorted(name for name in os.listdir(machine.places.cache_dir) if len(name) == 64)

    packages = {}
    for version in ("25.3.rc1", "25.5.0", "25.5.2"):
        name = DRIVER.replace("25.5.0", version)
        packages[version] = machine.package(name, GOOD_DRIVER.replace("25.5.0", version))
    machine.install("driver", "25.3.rc1", **packages["25.3.rc1"])
    machine.install("driver", "25.5.0", **packages["25.5.0"])
    # nothing was proved yet, so everything may be the way back
    assert len(sums()) == 2
    _good.promote(machine.places.state_dir, {"driver": "25.5.0"}, machine.places.cache_dir)
    machine.install("driver", "25.5.2", keep=["f" * 64], **packages["25.5.2"])
    assert sums() == sorted(packages[version]["sha256"] for version in ("25.5.0", "25.5.2"))


def test_the_reason_for_versions_of_no_release_is_kept(machine):
    package = machine.package(DRIVER, GOOD_DRIVER)
    machine.install("driver", "25.5.0", reason="ticket 7", **package)
    assert _good.read(machine.places.state_dir)["unlisted_reason"] == "ticket 7"
    machine.install("cann_toolkit", "8.5.0", **machine.package(TOOLKIT, GOOD_TOOLKIT))
    assert _good.read(machine.places.state_dir)["unlisted_reason"] == "ticket 7"
