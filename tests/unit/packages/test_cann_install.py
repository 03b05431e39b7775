# SPDX-License-Identifier: GPL-3.0-or-later
"""Several versions of CANN on one host, through the installer, with small packages that write what the vendor's write."""

import json
import os

import pytest
from install_rig import DRIVER, GOOD_DRIVER, HELP, Machine, machine  # noqa: F401  (a fixture)

BASE = "usr/local/Ascend"
SET_ENV = "export ASCEND_HOME_PATH=%s\nexport LD_LIBRARY_PATH=%s/lib64:$LD_LIBRARY_PATH\nexport PATH=%s/bin:$PATH\n"


def toolkit(machine, version, script="", arch="x86_64", chip=None):  # noqa: F811
    """A package of the new layout that makes its folder and leaves the link alone, with ``script`` before its record."""
    home = "/usr/local/Ascend/cann-" + version
    lines = [
        HELP + f'echo "call toolkit {version} $*" >>"$ROOT/calls"',
        f'home="$ROOT{home}"; mkdir -p "$home/{arch}-linux" "$home/share/info/runtime"',
        'echo Runtime_Install_Type=full >"$home/share/info/runtime/ascend_install.info"',
        "cat >\"$home/set_env.sh\" <<'END'\n%sEND" % (SET_ENV % (home, home, home)),
        script,
        f'echo version={version} >"$home/{arch}-linux/ascend_toolkit_install.info"',
        f'echo arch={arch} >>"$home/{arch}-linux/ascend_toolkit_install.info"',
        f'echo Version={version} >"$home/share/info/runtime/version.info"',
    ]
    return machine.package(f"Ascend-cann-toolkit_{version}_linux-x86_64.run", "\n".join(lines))


def kernels(machine, version, chip="910b"):  # noqa: F811
    lines = [
        HELP + f'echo "call kernels {version} $*" >>"$ROOT/calls"',
        f'home="$ROOT/usr/local/Ascend/cann-{version}"',
        f'mkdir -p "$home/opp/built-in/op_impl/ai_core/tbe/kernel/ascend{chip}"',
        f'echo version={version} >"$home/x86_64-linux/ascend_ops_install.info"',
        f'echo package_name=Ascend-cann-{chip}-ops >>"$home/x86_64-linux/ascend_ops_install.info"',
    ]
    return machine.package(f"Ascend-cann-910b-ops_{version}_linux-x86_64.run", "\n".join(lines))


def link(machine, path="cann"):  # noqa: F811
    return os.readlink(str(machine.root / BASE / path))


def environment(machine):  # noqa: F811
    return (machine.root / "etc/npu-fleet/ascend.env").read_text()


def test_a_second_version_goes_beside_the_first_and_going_back_needs_no_package(machine):  # noqa: F811
    machine.install("cann_toolkit", "8.5.0", **toolkit(machine, "8.5.0"))
    machine.install("cann_kernels", "8.5.0", **kernels(machine, "8.5.0"))
    assert link(machine) == "cann-8.5.0"
    assert 'LD_LIBRARY_PATH="/usr/local/Ascend/cann-8.5.0/lib64"' in environment(machine)
    assert not machine.install("cann_toolkit", "8.5.0")["changed"]

    machine.install("cann_toolkit", "8.5.2", **toolkit(machine, "8.5.2"))
    machine.install("cann_kernels", "8.5.2", **kernels(machine, "8.5.2"))
    assert link(machine) == "cann-8.5.2"
    assert "--upgrade" not in " ".join(machine.calls())
    calls = len(machine.calls())

    assert machine.refused("cann_toolkit", "8.5.0").code == "downgrade_refused"
    back = machine.install("cann_toolkit", "8.5.0", allow_downgrade=True, accept_licence=False)
    assert (back["step"]["action"], back["changed"], back["after"]["version"]) == ("switch", True, "8.5.0")
    assert link(machine) == "cann-8.5.0"
    assert 'ASCEND_HOME_PATH="/usr/local/Ascend/cann-8.5.0"' in environment(machine)
    assert "cann-8.5.0" in (machine.root / "etc/profile.d/npu-fleet-ascend.sh").read_text()
    # the kernels came with their tree
    assert not machine.install("cann_kernels", "8.5.0", accept_licence=False)["changed"]
    forth = machine.install("cann_toolkit", "8.5.2", accept_licence=False)
    assert (forth["step"]["action"], link(machine)) == ("switch", "cann-8.5.2")
    assert len(machine.calls()) == calls
    record = json.loads((machine._folder / "state/installed.json").read_text())["cann_toolkit"]
    assert record["version"] == "8.5.2"
    assert record["file"] == "Ascend-cann-toolkit_8.5.2_linux-x86_64.run"
    assert len(record["sha256"]) == 64


def test_check_mode_predicts_a_switch(machine):  # noqa: F811
    for version in ("8.5.0", "8.5.2"):
        machine.install("cann_toolkit", version, **toolkit(machine, version))
    result = machine.install("cann_toolkit", "8.5.0", check_mode=True, allow_downgrade=True)
    assert (result["step"]["action"], result["after"]["version"], result["changed"]) == ("switch", "8.5.0", True)
    assert link(machine) == "cann-8.5.2"


@pytest.mark.parametrize("spoil", ["etc/npu-fleet/ascend.env", "etc/profile.d/npu-fleet-ascend.sh", BASE + "/cann"])
def test_what_a_cut_run_left_out_is_made_up_for(machine, spoil):  # noqa: F811
    machine.install("cann_toolkit", "8.5.0", **toolkit(machine, "8.5.0"))
    (machine.root / spoil).unlink()
    result = machine.install("cann_toolkit", "8.5.0")
    assert (result["step"]["action"], result["changed"]) == ("switch", True)
    assert os.path.lexists(str(machine.root / spoil))
    assert len(machine.calls()) == 1
    assert not machine.install("cann_toolkit", "8.5.0")["changed"]


def test_links_go_back_when_the_environment_can_not_be_read(machine):  # noqa: F811
    for version in ("8.5.0", "8.5.2"):
        machine.install("cann_toolkit", version, **toolkit(machine, version))
    (machine.root / BASE / "cann-8.5.0/set_env.sh").write_text("exit 7\n")
    assert machine.refused("cann_toolkit", "8.5.0", allow_downgrade=True).code == "environment_unknown"
    assert link(machine) == "cann-8.5.2"


def stubborn(machine, version, then="exit 1"):  # noqa: F811
    """A package that breaks after its files are copied, and then neither repairs nor removes what it left."""
    cut = f'if [ -e "$home/broken" ] || [ ! -e "$ROOT/mended" ]; then echo x >"$home/broken"; {then}; fi'
    return toolkit(machine, version, cut)


def test_a_folder_of_ours_that_the_package_can_not_repair_is_removed_and_installed_again(machine):  # noqa: F811
    package = stubborn(machine, "8.5.2")
    machine.install("cann_toolkit", "8.5.0", **toolkit(machine, "8.5.0"))
    machine.refused("cann_toolkit", "8.5.2", **package)
    assert link(machine) == "cann-8.5.0"
    (machine.root / "mended").touch()
    result = machine.install("cann_toolkit", "8.5.2", **package)
    assert (result["step"]["action"], result["after"]["version"]) == ("repair", "8.5.2")
    assert "removed and installed again" in " ".join(result["warnings"])
    assert link(machine) == "cann-8.5.2"
    assert [entry["path"] for entry in machine.journal() if entry["event"] == "remove_folder"] == ["/usr/local/Ascend/cann-8.5.2"]
    assert (machine.root / BASE / "cann-8.5.0/set_env.sh").exists()


def test_it_is_tried_once(machine):  # noqa: F811
    package = stubborn(machine, "8.5.2")
    machine.refused("cann_toolkit", "8.5.2", **package)
    assert machine.refused("cann_toolkit", "8.5.2", **package).code == "package_failed"
    assert len(machine.calls()) == 3


def test_a_folder_of_somebody_else_stays(machine):  # noqa: F811
    home = machine.root / BASE / "cann-8.5.2"
    home.mkdir(parents=True)
    (home / "broken").write_text("the admin's\n")
    (machine.root / "mended").touch()
    for _unused in range(2):
        machine.refused("cann_toolkit", "8.5.2", **stubborn(machine, "8.5.2"))
    assert (home / "broken").exists()
    assert not [entry for entry in machine.journal() if entry["event"] == "remove_folder"]


def test_a_package_for_another_machine_is_not_taken_for_good(machine):  # noqa: F811
    """The name says x86_64, what it installs is for aarch64; it ends with 0 (runtime package, measured)."""
    package = toolkit(machine, "8.5.0", arch="aarch64")
    error = machine.refused("cann_toolkit", "8.5.0", **package)
    assert (error.code, "aarch64" in str(error)) == ("wrong_package", True)
    assert machine.refused("cann_toolkit", "8.5.0", **package).code == "wrong_package"


def test_kernels_for_another_chip(machine):  # noqa: F811
    machine.install("cann_toolkit", "8.5.0", **toolkit(machine, "8.5.0"))
    assert machine.refused("cann_kernels", "8.5.0", **kernels(machine, "8.5.0", "310p")).code == "wrong_package"
    result = machine.install("cann_kernels", "8.5.0", **kernels(machine, "8.5.0"))
    assert result["step"]["action"] == "repair"
    assert "310p" in result["step"]["reason"]


def test_nnal_gets_the_environment_of_the_toolkit(machine):  # noqa: F811
    script = HELP + (
        '[ "$ASCEND_HOME_PATH" = "$ASCEND_TOOLKIT_HOME" ] && [ -d "$ROOT$ASCEND_HOME_PATH" ] || { echo "Check owner failed"; exit 1; }\n'
        'case $LD_LIBRARY_PATH in *cann-8.5.0/lib64*) ;; *) exit 1;; esac\n'
        'atb="$ROOT/usr/local/Ascend/nnal/atb"; mkdir -p "$atb/8.5.0"; echo "ATB Version : 8.5.0" >"$atb/8.5.0/version.info"\n'
        'ln -sfn 8.5.0 "$atb/latest"; echo "export ATB_HOME_PATH=/atb" >"$atb/set_env.sh"'
    )
    package = machine.package("Ascend-cann-nnal_8.5.0_linux-x86_64.run", script)
    assert machine.refused("nnal", "8.5.0", **package).code == "toolkit_missing"
    machine.install("cann_toolkit", "8.5.0", **toolkit(machine, "8.5.0"))
    assert machine.install("nnal", "8.5.0", **package)["after"]["version"] == "8.5.0"
    assert 'ATB_HOME_PATH="/atb"' in environment(machine)
    assert not machine.install("cann_toolkit", "8.5.0")["changed"]


def test_old_and_new_layout_on_one_host(machine):  # noqa: F811
    old = machine.root / BASE / "ascend-toolkit"
    (old / "8.3.RC1/x86_64-linux").mkdir(parents=True)
    (old / "8.3.RC1/x86_64-linux/ascend_toolkit_install.info").write_text("version=8.3.RC1\narch=x86_64\n")
    (old / "8.3.RC1/set_env.sh").write_text(SET_ENV % (("/usr/local/Ascend/ascend-toolkit/latest",) * 3))
    (old / "latest").symlink_to("8.3.RC1")
    (old / "set_env.sh").symlink_to("latest/set_env.sh")
    machine.install("cann_toolkit", "8.5.0", **toolkit(machine, "8.5.0"))
    assert (link(machine), link(machine, "ascend-toolkit/latest")) == ("cann-8.5.0", "../cann")
    assert "cann-8.5.0" in (old / "set_env.sh").read_text()
    back = machine.install("cann_toolkit", "8.3.RC1", allow_downgrade=True)
    assert (back["step"]["action"], back["after"]["version"]) == ("switch", "8.3.RC1")
    assert link(machine, "ascend-toolkit/latest") == "8.3.RC1"
    assert not os.path.lexists(str(machine.root / BASE / "cann"))
    assert "ascend-toolkit/latest" in (old / "set_env.sh").read_text()
    assert not machine.install("cann_toolkit", "8.3.RC1")["changed"]
    machine.install("cann_toolkit", "8.5.0")
    assert (link(machine), link(machine, "ascend-toolkit/latest")) == ("cann-8.5.0", "../cann")


def test_the_driver_package_can_not_lose_the_network_of_the_chips(machine):  # noqa: F811
    (machine.root / "etc").mkdir()
    (machine.root / "etc/hccn.conf").write_text("address_0=10.0.0.1\n")
    package = machine.package(DRIVER, GOOD_DRIVER + '\n: >"$ROOT/etc/hccn.conf"')
    result = machine.install("driver", "25.5.0", **package)
    assert (machine.root / "etc/hccn.conf").read_text() == "address_0=10.0.0.1\n"
    assert "/etc/hccn.conf" in " ".join(result["warnings"])
