# SPDX-License-Identifier: GPL-3.0-or-later
"""From observe to observe, with small packages that write the vendor's files below a folder."""

import json
import os
import threading
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _detached
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _call, _good, _install, _journal, _node, _state
from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import decide
from ansible_collections.npu.fleet.plugins.module_utils._packages._install import Installer, Places, Wish

DRIVER = "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"
FIRMWARE = "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run"
TOOLKIT = "Ascend-cann-toolkit_8.5.0_linux-x86_64.run"
RUNTIME = "Ascend-docker-runtime_26.1.0_linux-x86_64.run"

HELP = """case "$*" in --help)
  echo "--full --quiet --nox11 --upgrade --install --install-for-all --install-scene --config-file-path \\
--install-username --install-usergroup" >&2; exit 0;;
esac
"""
GOOD_DRIVER = HELP + """echo "call $*" >>"$ROOT/calls"
mkdir -p "$ROOT/etc" "$ROOT/usr/local/Ascend/driver"
for line in UserName=HwHiAiUser Driver_Install_Type=full Driver_Install_Path_Param=/usr/local/Ascend; do echo $line; done \\
  >"$ROOT/etc/ascend_install.info"
echo "Version=25.5.0" >"$ROOT/usr/local/Ascend/driver/version.info"
echo Driver_Install_Status=complete >>"$ROOT/etc/ascend_install.info"
pwd >"$ROOT/pwd"; echo "$TMPDIR" >>$ROOT/pwd"""
GOOD_TOOLKIT = HELP + """mkdir -p "$ROOT/usr/local/Ascend/cann-8.5.0/x86_64-linux"
echo "version=8.5.0" >"$ROOT/usr/local/Ascend/cann-8.5.0/x86_64-linux/ascend_toolkit_install.info" """
CUT_DRIVER = HELP + """mkdir -p "$ROOT/etc"
echo "Driver_Install_Path_Param=/usr/local/Ascend" >"$ROOT/etc/ascend_install.info"
exit """


STEPS = ["start", "fetched", "verified", "launched", "ended", "observed", "recorded"]


class Machine:
    """A root folder, what runs on it, and the way to install on it."""

    def __init__(self, folder, build):
        self._folder, self._build = folder, build
        self.root = folder / "root"
        self.root.mkdir()
        self.places = Places(str(folder / "cache"), str(folder / "state"), str(folder / "log"), str(folder / "run"), str(self.root))
        self.running = {"driver_loaded": None, "driver_version": None, "firmware_versions": None, "npu_present": True}
        self.family, self.arch = "a2", "x86_64"
        self.looks = 0

    def observe(self):
        self.looks += 1
        families = [self.family] if self.family else []
        components = _state.observe(str(self.root), self.running)
        return {"arch": self.arch, "family": self.family, "families": families, "components": components, "firmware_known": False}

    def package(self, name, script, **kwargs):
        path = self._folder / "packages" / name
        return {"src": str(path), "sha256": self._build(path, script.replace("$ROOT", str(self.root)), **kwargs)}

    def install(self, component, version, check_mode=False, **wish):
        values = dict.fromkeys(Wish._fields)
        values.update(component=component, version=version, state="present", timeout=20)
        values.update(install_path="/usr/local/Ascend", install_for_all=True, allow_downgrade=False, accept_licence=True, remote_src=True)
        self.installer = Installer(Wish(**dict(values, **wish)), self.observe, self.places)
        return self.installer.ensure(check_mode)

    def refused(self, *args, **kwargs):
        with pytest.raises(FleetError) as caught:
            self.install(*args, **kwargs)
        return caught.value

    def journal(self):
        path = self._folder / "state" / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def calls(self):
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path, build, monkeypatch):
    monkeypatch.setattr(_detached, "_systemd_version", lambda: 0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(_call._users, "ensure", lambda username, usergroup, run: (["user " + username], []))
    return Machine(tmp_path, build)


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


RUNTIME_SCRIPT = HELP.replace("--quiet", "") + """read answer; [ "$answer" = Y ] || exit 0
for word; do case $word in --config-file-path=*) file=${word#*=};; esac; done
cat "$file" >"$ROOT/engine"; echo changed >"$file"
folder="$ROOT/usr/local/Ascend/Ascend-Docker-Runtime"
mkdir -p "$folder/script" "$ROOT/etc/ascend-docker-runtime.d"
for name in ascend-docker-runtime ascend-docker-hook; do echo x >"$folder/$name"; done
echo "version=v26.1.0" >"$folder/ascend_docker_runtime_install.info"
echo x >"$ROOT/etc/ascend-docker-runtime.d/base.list" """


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
