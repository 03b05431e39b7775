# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking components away: which way, in which order, and never what is somebody else's."""

import json
import os
import shutil

import pytest
from install_rig import CUT_DRIVER, DRIVER, GOOD_DRIVER, Machine, machine  # noqa: F401  (a fixture)
from test_cann_install import BASE, environment, kernels, link, stubborn, toolkit

from ansible_collections.npu.fleet.plugins.module_utils._packages import _remove

UNINSTALL = 'case "$*" in --uninstall) echo "call $*" >>"$ROOT/calls"; %s; exit 0;; esac\n'
DRIVER_GOES = 'rm -rf "$ROOT/usr/local/Ascend/driver" "$ROOT/etc/ascend_install.info"'


def now(state="present", version="25.5.0", **record):
    return {"state": state, "version": version, "running": None, "path": "/usr/local/Ascend/driver", "reason": "Why.", "record": record}


@pytest.mark.parametrize(
    ("component", "seen", "version", "left"),
    [
        ("driver", now(), None, 1),
        ("driver", now("half_installed", None), None, 1),
        ("driver", now("absent", None), None, 0),
        # removed, but the kernel still has it
        ("driver", now("reboot_pending", None), None, 0),
        ("driver", now("reboot_pending"), None, 1),
        ("driver", now("mismatched"), None, 1),
        ("cann_toolkit", now(trees={"8.5.0": "/a", "8.5.2": "/b"}, broken={"8.6.0": "/c"}), None, 3),
        ("cann_toolkit", now(trees={"8.5.0": "/a", "8.5.2": "/b"}), "8.5.0", 1),
        ("cann_toolkit", now(trees={"8.5.2": "/b"}), "8.5.0", 0),
        ("cann_toolkit", now("half_installed", None, broken={"8.5.0": "/a"}), None, 1),
        ("cann_toolkit", now("absent", None), None, 0),
    ],
)
def test_what_is_to_go(component, seen, version, left):
    assert len(_remove.targets(component, seen, version)) == left
    assert _remove.step(component, seen, version)["action"] == ("remove" if left else "none")


@pytest.mark.parametrize(
    ("ways", "tried", "chosen"),
    [
        ([("script", "/a"), ("package", "/a")], [], ("script", "/a")),
        ([("script", "/a"), ("package", "/a")], [("script", "/a")], ("package", "/a")),
        ([("script", "/b")], [("script", "/a")], ("script", "/b")),
        ([("script", "/a")], [["script", "/a"]], None),
        ([], [], None),
    ],
)
def test_next_way(ways, tried, chosen):
    assert _remove.next_way(ways, tried) == chosen


def test_absent_is_absent(machine):  # noqa: F811
    for component in ("driver", "firmware", "cann_toolkit", "cann_kernels", "nnal", "docker_runtime"):
        assert not machine.install(component, None, state="absent")["changed"]
    assert machine.journal() == []


def script(machine, text, path="driver/script/uninstall.sh"):  # noqa: F811
    """Installed scripts are looked for at their real path, so it is one that exists below the test's folder."""
    target = machine.root / BASE / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("#!/bin/sh\n" + text.replace("$ROOT", str(machine.root)) + "\n")
    target.chmod(0o755)


@pytest.fixture
def installed_script(monkeypatch, machine):  # noqa: F811
    """The product calls /usr/local/Ascend/...; here that is below the test's root."""
    ours = _remove._options.remove_command

    def command(component, current, engine_file, exists):
        words = ours(component, current, engine_file, lambda path: exists(str(machine.root) + path))
        return words and [str(machine.root) + words[0]] + words[1:]

    monkeypatch.setattr(_remove._options, "remove_command", command)


def test_the_installed_script_comes_first(machine, installed_script):  # noqa: F811
    machine.install("driver", "25.5.0", **machine.package(DRIVER, UNINSTALL % DRIVER_GOES + GOOD_DRIVER))
    script(machine, 'echo "script $*" >>"$ROOT/calls"; ' + DRIVER_GOES)
    assert machine.install("driver", None, state="absent", check_mode=True)["after"]["state"] == "absent"
    result = machine.install("driver", None, state="absent")
    assert (result["changed"], result["after"]["state"], result["step"]["action"]) == (True, "absent", "remove")
    assert machine.calls()[1:] == ["script --quiet"]
    assert json.loads((machine._folder / "state" / "installed.json").read_text()) == {}
    assert not machine.install("driver", None, state="absent")["changed"]


def test_the_package_of_the_cache_follows_where_the_script_leaves_something(machine, installed_script):  # noqa: F811
    package = machine.package(DRIVER, UNINSTALL % DRIVER_GOES + GOOD_DRIVER)
    machine.install("driver", "25.5.0", **package)
    os.unlink(package["src"])
    script(machine, 'echo "script" >>"$ROOT/calls"; exit 1')
    result = machine.install("driver", None, state="absent")
    assert result["after"]["state"] == "absent"
    # it takes no --quiet beside it
    assert machine.calls()[1:] == ["script", "call --uninstall"]


def test_a_cut_first_installation_goes_by_the_package_that_was_started(machine):  # noqa: F811
    machine.refused("driver", "25.5.0", **machine.package(DRIVER, UNINSTALL % DRIVER_GOES + CUT_DRIVER + "1"))
    result = machine.install("driver", None, state="absent")
    assert (result["before"]["state"], result["after"]["state"]) == ("half_installed", "absent")


def test_without_script_and_cache_the_given_package_is_taken(machine):  # noqa: F811
    package = machine.package(DRIVER, UNINSTALL % DRIVER_GOES + CUT_DRIVER + "1")
    machine.refused("driver", "25.5.0", **package)
    shutil.rmtree(machine.places.cache_dir)
    error = machine.refused("driver", None, state="absent")
    assert (error.code, "src" in error.hint) == ("uninstaller_missing", True)
    assert machine.refused("driver", None, state="absent", check_mode=True).code == "uninstaller_missing"
    assert machine.install("driver", None, state="absent", check_mode=True, **package)["after"]["state"] == "absent"
    assert machine.install("driver", None, state="absent", **package)["after"]["state"] == "absent"


def test_exit_code_0_with_everything_left_is_no_removal(machine):  # noqa: F811
    machine.install("driver", "25.5.0", **machine.package(DRIVER, UNINSTALL % "true" + GOOD_DRIVER))
    error = machine.refused("driver", None, state="absent")
    assert (error.code, "was not removed" in str(error)) == ("nothing_installed", True)
    assert machine.calls()[1:] == ["call --uninstall"]
    # and it is tried again by the next run
    machine.refused("driver", None, state="absent")
    assert machine.calls()[1:] == ["call --uninstall"] * 2


def goes(machine, version):  # noqa: F811
    home = f'"$ROOT/usr/local/Ascend/cann-{version}"'
    return UNINSTALL % (f"find {home} -type f -delete; mkdir -p {home}/var")


def with_uninstall(machine, version):  # noqa: F811
    package = toolkit(machine, version)
    text = open(package["src"]).read().split("exit $?")[0].split("\n", 5)[5]
    return machine.package(os.path.basename(package["src"]), goes(machine, version).replace("$ROOT", str(machine.root)) + text)


def test_one_version_of_cann_goes_and_the_other_comes_into_force(machine):  # noqa: F811
    for version in ("8.5.0", "8.5.2"):
        machine.install("cann_toolkit", version, **with_uninstall(machine, version))
    result = machine.install("cann_toolkit", "8.5.2", state="absent")
    assert (result["after"]["state"], result["after"]["version"]) == ("present", "8.5.0")
    assert link(machine) == "cann-8.5.0"
    assert "cann-8.5.0" in environment(machine)
    # the empty folders that the package leaves go, too
    assert not (machine.root / BASE / "cann-8.5.2").exists()
    assert not machine.install("cann_toolkit", "8.5.2", state="absent")["changed"]


def test_all_of_cann_goes_with_links_and_environment(machine):  # noqa: F811
    for version in ("8.5.0", "8.5.2"):
        machine.install("cann_toolkit", version, **with_uninstall(machine, version))
    result = machine.install("cann_toolkit", None, state="absent")
    assert result["after"]["state"] == "absent"
    assert os.listdir(str(machine.root / BASE)) == []
    assert not (machine.root / "etc/npu-fleet/ascend.env").exists()
    assert not (machine.root / "etc/profile.d/npu-fleet-ascend.sh").exists()
    assert json.loads((machine._folder / "state/cann-folders.json").read_text()) == {}


def test_a_broken_folder_of_ours_goes_by_force(machine):  # noqa: F811
    machine.refused("cann_toolkit", "8.5.2", **stubborn(machine, "8.5.2"))
    result = machine.install("cann_toolkit", None, state="absent")
    assert (result["before"]["state"], result["after"]["state"]) == ("half_installed", "absent")
    assert not (machine.root / BASE / "cann-8.5.2").exists()


def test_a_broken_folder_of_somebody_else_stays(machine):  # noqa: F811
    home = machine.root / BASE / "cann-8.5.2"
    home.mkdir(parents=True)
    (home / "notes").write_text("the admin's\n")
    assert machine.refused("cann_toolkit", None, state="absent").code == "uninstaller_missing"
    assert (home / "notes").exists()


def test_kernels_go_before_their_toolkit(machine):  # noqa: F811
    machine.install("cann_toolkit", "8.5.0", **with_uninstall(machine, "8.5.0"))
    package = kernels(machine, "8.5.0")
    home = "$ROOT/usr/local/Ascend/cann-8.5.0"
    gone = UNINSTALL % f'rm -r "{home}/opp" "{home}/x86_64-linux/ascend_ops_install.info"'
    text = open(package["src"]).read().split("exit $?")[0].split("\n", 5)[5]
    package = machine.package(os.path.basename(package["src"]), gone.replace("$ROOT", str(machine.root)) + text)
    machine.install("cann_kernels", "8.5.0", **package)
    result = machine.install("cann_kernels", None, state="absent")
    assert (result["after"]["state"], machine.observe()["components"]["cann_toolkit"]["state"]) == ("absent", "present")
    assert (machine.root / BASE / "cann-8.5.0").exists()


def test_a_record_of_another_user_is_told_before_the_package_does(machine):  # noqa: F811
    """No driver, but the record is there: the package would refuse (0x0095; field case)."""
    (machine.root / "etc").mkdir()
    (machine.root / "etc/ascend_install.info").write_text("UserName=svc1\nUserGroup=svc1\nFirmware_Install_Path_Param=/usr/local/Ascend\n")
    error = machine.refused("driver", "25.5.0", username="HwHiAiUser", **machine.package(DRIVER, GOOD_DRIVER))
    assert (error.code, "svc1" in str(error)) == ("user_differs", True)
    assert machine.calls() == []
    machine.install("driver", "25.5.0", **machine.package(DRIVER, GOOD_DRIVER.replace("--full ", "--full --install-username ")))
    assert "--install-username=svc1" in machine.calls()[0]
