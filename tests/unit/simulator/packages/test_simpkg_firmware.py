# SPDX-License-Identifier: GPL-3.0-or-later
"""Firmware package: "driver package, measured", section 10; "Ascend packages" fact sheet, sections 2.3 and 3.1."""

import pytest

FULL = "--full --quiet"


@pytest.fixture
def firmware(build, sandbox):
    return sandbox.add(build("firmware"))


@pytest.fixture
def with_driver(build, sandbox):
    assert sandbox.run(f"{sandbox.add(build('driver'))} {FULL}").returncode == 0


def flash(sandbox):
    return sandbox.run("cat /var/lib/npu-sim/flash").stdout.strip()


def test_needs_the_driver_tree(firmware, sandbox):
    done = sandbox.run(f"{firmware} {FULL}")
    assert done.returncode == 1 and "upgrade-tool" in done.stdout
    assert flash(sandbox) == "" and sandbox.info() == {}


def test_needs_a_running_driver(firmware, sandbox, with_driver):
    sandbox.run("for name in $(lsmod | cut -d' ' -f1); do rmmod $name; done")
    done = sandbox.run(f"{firmware} {FULL}")
    assert done.returncode == 1 and flash(sandbox) == ""
    assert "Firmware_Install_Type" not in sandbox.info()


def test_a_virtual_machine_is_refused(firmware, sandbox, with_driver):
    sandbox.state(virtual=True)
    done = sandbox.run(f"{firmware} {FULL}")
    assert done.returncode == 1 and "not a physical-machine" in done.stdout and flash(sandbox) == ""


def test_upgrade_tool(sandbox, with_driver):
    tool = "/usr/local/Ascend/driver/tools/upgrade-tool --device_index -1"
    sandbox.state(hw_base_version=235)
    # The vendor's own scripts cut the lines like this.
    cut = """grep '{"device_id"' | awk -F'"' '{print $5}' | awk -F'}|,|:' '{print $2}' | sort -nr | head -n1"""
    assert sandbox.run(f"{tool} --hw_base_version | {cut}").stdout == "235\n"
    assert sandbox.run(f"{tool} --phymachflag").returncode == 0
    sandbox.state(virtual=True)
    assert sandbox.run(f"{tool} --phymachflag").returncode == 2
    assert sandbox.run(f"rm /dev/davinci_manager; {tool} --hw_base_version").returncode == 1
    assert "235,24.1.rc2\n" in sandbox.run("cat /usr/local/Ascend/driver/script/version_cap.map").stdout


def test_install(firmware, sandbox, with_driver):
    done = sandbox.run(f"{firmware} {FULL}")
    assert done.returncode == 0
    assert "The firmware of [2] chips are successfully upgraded." in done.stdout
    assert "Reboot now or after driver installation for the installation/upgrade to take effect." in done.stdout
    assert "[Firmware]" in done.stdout
    assert flash(sandbox) == "7.8.0.5.216"
    assert sandbox.info()["Firmware_Install_Type"] == "full"
    assert sandbox.info()["Firmware_Install_Path_Param"] == "/usr/local/Ascend"
    text = sandbox.run("cat /usr/local/Ascend/firmware/version.info").stdout
    assert "Version=7.8.0.5.216\n" in text and "package_version=25.5.0\n" in text


def test_rc_2_on_demand_and_upgrade(build, firmware, sandbox, with_driver):
    other = sandbox.add(build("firmware", "--firmware", "7.8.0.7.220", "--driver", "25.5.2", "--firmware-rc", "2"))
    sandbox.run(f"{firmware} {FULL}")
    done = sandbox.run(f"{other} --upgrade --quiet")
    assert done.returncode == 2 and flash(sandbox) == "7.8.0.7.220"
    assert "package_version=25.5.2" in sandbox.run("cat /usr/local/Ascend/firmware/version.info").stdout


def test_for_all_is_no_option_of_this_package(firmware, sandbox):
    done = sandbox.run(f"{firmware} {FULL} --install-for-all")
    assert done.returncode == 1 and done.stdout == "" and "--upgrade" in done.stderr


def test_uninstall_leaves_the_flash(firmware, sandbox, with_driver):
    sandbox.run(f"{firmware} {FULL}")
    assert sandbox.run(f"{firmware} --uninstall").returncode == 0
    assert flash(sandbox) == "7.8.0.5.216" and not sandbox.exists("/usr/local/Ascend/firmware")
    assert "Firmware_Install_Type" not in sandbox.info() and "Driver_Install_Type" in sandbox.info()


@pytest.mark.parametrize("mode, rc", [("nothing", 0), ("flash-fails", 1)])
def test_modes(build, sandbox, with_driver, mode, rc):
    package = sandbox.add(build("firmware", "--mode", mode))
    assert sandbox.run(f"{package} {FULL}").returncode == rc
    assert flash(sandbox) == "" and "Firmware_Install_Type" not in sandbox.info()


@pytest.mark.long
@pytest.mark.parametrize("stage, flashed", [("before-payload", ""), ("after-payload", "7.8.0.5.216")])
def test_hang(build, sandbox, with_driver, stage, flashed):
    package = sandbox.add(build("firmware", "--mode", "hang", "--hang-at", stage))
    done = sandbox.run(
        f"setsid -f bash -c 'echo $$ > /tmp/pid; exec {package} {FULL}' >/dev/null 2>&1; sleep 2; kill -9 -$(cat /tmp/pid) && echo hung"
    )
    assert "hung" in done.stdout
    assert flash(sandbox) == flashed and not sandbox.exists("/usr/local/Ascend/firmware/version.info")
