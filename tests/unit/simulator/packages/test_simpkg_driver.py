# SPDX-License-Identifier: GPL-3.0-or-later
"""Flows of the driver package in a throw-away copy of this machine: "driver package, measured", sections 3-8."""

import time

import pytest

FULL = "--full --quiet"
VERSION_INFO = "usr/local/Ascend/driver/version.info"


@pytest.fixture
def driver(build, sandbox):
    return sandbox.add(build("driver"))


def version(sandbox):
    lines = sandbox.run(f"cat /{VERSION_INFO}").stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)["Version"] if lines else None


def test_first_install(driver, sandbox):
    done = sandbox.run(f"{driver} {FULL} --install-for-all")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Verifying" not in done.stdout
    assert [line.split("%")[0].split(":")[-1] for line in done.stdout.splitlines() if "upgradePercentage" in line] == [
        "10",
        "30",
        "40",
        "90",
        "100",
    ]
    assert "installed successfully" in done.stdout and "takes effect immediately" in done.stdout
    lines = done.stdout.splitlines()
    assert "Start time:" in lines[0] and "LogFile:" in lines[1] and "OperationLogFile:" in lines[2] and "End time:" in lines[-1]
    assert list(sandbox.info().items()) == [
        ("UserName", "HwHiAiUser"),
        ("UserGroup", "HwHiAiUser"),
        ("Driver_Install_Type", "full"),
        ("Driver_Install_Path_Param", "/usr/local/Ascend"),
        ("Driver_Install_For_All", "yes"),
        ("Driver_Install_Mode", "normal"),
        ("Driver_Install_Status", "complete"),
    ]
    assert version(sandbox) == "25.5.0"
    assert sandbox.text("usr/local/Ascend/version.info") == "version=25.5.0\n"
    look = sandbox.run(
        "ls /lib/modules/$(uname -r)/updates | wc -l; cat /lib/davinci.conf /etc/ld.so.conf.d/ascend_driver_so.conf; "
        "stat -c %a /usr/local/Ascend/driver/lib64/libdcmi.so /lib/davinci.conf; rm -f /usr/local/Ascend/driver/version.info; echo $?; "
        "ls /usr/local/bin/npu-smi /usr/local/sbin/npu-smi /usr/local/dcmi/libdcmi.so /usr/local/Ascend/driver/script/uninstall.sh; "
        "ls /usr/local/Ascend/driver/host"
    )
    assert look.stdout.splitlines()[:8] == [
        "25",
        "DAVINCI_HOME_PATH=/usr/local/Ascend",
        "/usr/local/Ascend/driver/lib64",
        "/usr/local/Ascend/driver/lib64/common",
        "/usr/local/Ascend/driver/lib64/driver",
        "444",
        "444",
        "1",
    ]
    assert "Operation not permitted" in look.stderr and "driver/host" in look.stderr and look.stderr.count("\n") == 2
    calls = sandbox.text("var/lib/npu-sim/calls")
    assert 'kernel.node_mode "0666"' in calls and 'kernel.node_owner "HwHiAiUser"' in calls
    log = sandbox.text("var/log/ascend_seclog/operation.log")
    assert log.startswith("Install SUGGESTION root ")
    assert log.endswith("success install_type=full; cmdlist=--quiet --full --install-for-all.\n")
    assert sandbox.run("stat -c %a /var/log/ascend_seclog /var/log/ascend_seclog/ascend_install.log").stdout.split() == ["750", "640"]
    assert sandbox.run(f"{driver} --full --quiet; stat -c %a /usr/local/Ascend/driver/lib64/libdcmi.so").stdout.split()[-1] == "440"
    assert sandbox.info()["Driver_Install_For_All"] == "no"


@pytest.mark.long
def test_upgrade_keeps_type_path_and_scope_and_goes_both_ways(build, driver, sandbox):
    older = sandbox.add(build("driver", "--driver", "24.1.rc3"))
    assert sandbox.run(f"{older} --full --quiet --install-for-all --install-path=/opt/npu").returncode == 0
    done = sandbox.run(f"{driver} --upgrade --quiet")
    assert done.returncode == 0 and "upgraded successfully" in done.stdout
    assert sandbox.info()["Driver_Install_Path_Param"] == "/opt/npu" and sandbox.info()["Driver_Install_For_All"] == "yes"
    assert "Version=25.5.0" in sandbox.run("cat /opt/npu/driver/version.info").stdout
    assert sandbox.run(f"{older} --upgrade --quiet").returncode == 0
    assert "Version=24.1.rc3" in sandbox.run("cat /opt/npu/driver/version.info").stdout
    log = sandbox.text("var/log/ascend_seclog/operation.log").splitlines()
    assert log[1].startswith("Upgrade MINOR") and "success; cmdlist=--quiet --upgrade." in log[1]


def test_upgrade_of_nothing_is_an_install(driver, sandbox):
    done = sandbox.run(f"{driver} --upgrade --quiet")
    assert done.returncode == 0 and "installed successfully" in done.stdout
    assert "Install SUGGESTION" in sandbox.text("var/log/ascend_seclog/operation.log")


def test_version_and_check_leave_a_log(driver, sandbox):
    done = sandbox.run(f"{driver} --version")
    assert done.returncode == 0 and "[INFO]driver version :25.5.0\n" in done.stdout
    assert sandbox.exists("/var/log/ascend_seclog/ascend_install.log")
    assert sandbox.run(f"{driver} --version --quiet").returncode == 1
    assert "relationship check success" in sandbox.run(f"{driver} --check").stdout


@pytest.mark.parametrize(
    "prepare, words, text",
    [
        ("true", "", "Unrecognized parameters. Try"),
        ("true", "--full --run", "only support one type"),
        ("userdel -r HwHiAiUser", FULL, "0x0091"),
        ("groupadd other", FULL + " --install-username=HwHiAiUser --install-usergroup=other", "0x0096"),
        ("true", FULL + " --install-username=root --install-usergroup=root", "0x0091"),
        ("echo UserName=a > /etc/ascend_install.info; echo UserGroup=a >> /etc/ascend_install.info", FULL, "0x0095"),
        ("rm /usr/local/sbin/lspci; mv /usr/sbin/ifconfig /root", FULL, "The list of missing tools: lspci,ifconfig,"),
        ("echo 0xd500 > '/sys/bus/pci/devices/0000:81:00.0/device'", FULL, "not match, please check"),
        ("true", FULL + " --install-path=/a/b/c", "only support create one level"),
        ("mkdir /var/own; chown HwHiAiUser /var/own", FULL + " --install-path=/var/own", "should belong to root"),
        ("mkdir -m 700 /var/shut", FULL + " --install-path=/var/shut --install-for-all", "do not have the permission"),
        ("true", "--uninstall", "0x0080"),
    ],
)
def test_refusals_come_before_any_payload(driver, sandbox, prepare, words, text):
    before = sandbox.run(f"({prepare}) 2>/dev/null; cat /etc/ascend_install.info").stdout
    done = sandbox.run(f"{driver} {words}")
    assert done.returncode == 1 and text in done.stdout
    assert ("End time" in done.stdout) == ("not match" not in text)
    after = sandbox.run("cat /etc/ascend_install.info; ls /usr/local/Ascend /var/log/ascend_seclog/operation.log").stdout
    assert after == before


def test_not_root(driver, sandbox):
    done = sandbox.run(f"chmod 755 /root /packages; setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp {driver} --version")
    assert done.returncode == 1 and "0x0093" in done.stdout


def test_wrong_arch_also_blocks_version(build, sandbox):
    other = sandbox.add(build("driver", "--arch", "aarch64"))
    done = sandbox.run(f"{other} --version")
    assert done.returncode == 1 and "Arch mismatch" in done.stdout


def test_without_a_visible_device_any_family_is_taken(build, sandbox):
    wrong = sandbox.add(build("driver", "--mode", "wrong-family"))
    assert "not match, please check" in sandbox.run(f"{wrong} {FULL}").stdout
    sandbox.run("rm -r /sys/bus/pci/devices/*")
    assert sandbox.run(f"{wrong} {FULL}").returncode == 0


def test_too_little_room(build, sandbox):
    package = sandbox.add(build("driver", "--space-mib", "300"))
    done = sandbox.run(f"{package} {FULL}", small_disk=("20m", "usr/local"), env={"PATH": "/usr/sbin:/usr/bin"})
    assert done.returncode == 1
    assert "missing tools" in done.stdout or "free space only" in done.stdout
    done = sandbox.run(f"mkdir /var/disk; {package} {FULL} --install-path=/var/disk", small_disk=("20m", "var"))
    assert done.returncode == 1 and "free space only" in done.stdout
    assert sandbox.info() == {}


@pytest.mark.long
def test_questions_without_quiet(driver, sandbox):
    assert sandbox.run(f"{driver} {FULL}").returncode == 0
    done = sandbox.run(f"{driver} --full", stdin="maybe\nn\n")
    assert done.returncode == 0 and "installation Stoped" in done.stdout and done.stdout.count("input error, please input again") == 1
    assert sandbox.info()["Driver_Install_Status"] == "complete"
    done = sandbox.run(f"timeout -k 1 2 {driver} --full; echo rc=$?")
    assert done.stdout.count("input error, please input again") > 20 and len(done.stdout) < 100_000
    assert sandbox.run(f"{driver} --full", stdin="y\n").returncode == 0


@pytest.mark.long
def test_nodes_never_appear(driver, sandbox):
    sandbox.state(npu_nodes_appear=False)
    begin = time.monotonic()
    # A process of the start script outlives the package and says so in its own log.
    left = "for i in $(seq 100); do grep -s 'no device' /var/log/ascend_seclog/ascend_run_servers.log && break; sleep 0.1; done"
    done = sandbox.run(f"{driver} {FULL}; echo rc=$?; {left}")
    assert time.monotonic() - begin > 0.695
    assert "rc=2" in done.stdout and "some chips not ready" in done.stdout and "Reboot needed" in done.stdout
    assert "no device came up" in done.stdout
    assert sandbox.info()["Driver_Install_Status"] == "complete" and version(sandbox) == "25.5.0"


def test_force_leaves_the_modules_alone(driver, sandbox):
    done = sandbox.run(f"{driver} {FULL} --force")
    assert done.returncode == 2 and "Reboot needed" in done.stdout
    assert not sandbox.exists("/dev/davinci0") and sandbox.info()["Driver_Install_Status"] == "complete"


def test_busy_device_is_refused_and_the_old_driver_stays(build, driver, sandbox):
    sandbox.run(f"{driver} {FULL}")
    newer = sandbox.add(build("driver", "--driver", "25.5.2"))
    done = sandbox.run(f"exec 9</dev/davinci_manager; {newer} --upgrade --quiet 9<&-")
    assert done.returncode == 1 and "davinci nodes are occupied" in done.stdout
    assert version(sandbox) == "25.5.0" and sandbox.exists("/dev/davinci0")
    assert "Uninstall MAJOR" in sandbox.text("var/log/ascend_seclog/operation.log").splitlines()[-1]
    # Only the first node is looked at.
    assert sandbox.run(f"exec 9</dev/davinci0; {newer} --upgrade --quiet").returncode == 0


@pytest.mark.long
def test_busy_device_with_a_tool_that_takes_the_flag(build, driver, sandbox):
    sandbox.run(f"{driver} {FULL}")
    newer = sandbox.add(build("driver", "--driver", "25.5.2", "--busy", "reboot"))
    done = sandbox.run(f"exec 9</dev/davinci_manager; {newer} --upgrade --quiet")
    assert done.returncode == 2 and "Reboot needed" in done.stdout
    assert version(sandbox) == "25.5.2"
    assert sandbox.run("cat /sys/module/drv_pcie_host/version").stdout == "25.5.0\n"


@pytest.mark.parametrize("words", ["--uninstall", "script", "--uninstall --force"])
def test_uninstall(build, driver, sandbox, words):
    firmware = sandbox.add(build("firmware"))
    sandbox.run(f"{driver} {FULL}; {firmware} {FULL}")
    command = "/usr/local/Ascend/driver/script/uninstall.sh --quiet" if words == "script" else f"{driver} {words}"
    done = sandbox.run(command)
    assert done.returncode == 0
    assert ("Reboot needed" if "force" in words else "Uninstallation takes effect immediately") in done.stdout
    left = {"UserName", "UserGroup", "Firmware_Install_Type", "Firmware_Install_Path_Param"}
    assert set(sandbox.info()) == (left | {"Driver_Install_For_All"} if words == "script" else left)
    gone = sandbox.run(
        "ls -d /usr/local/Ascend/driver /lib/davinci.conf /usr/local/bin/npu-smi /usr/local/dcmi /etc/init.d/host_sys_init.sh "
        "/etc/ascend_filelist.info; ls /lib/modules/$(uname -r)/updates"
    )
    assert gone.stdout == ""
    assert sandbox.exists("/etc/hccn.conf") and sandbox.exists("/etc/vnpu.cfg") and sandbox.exists("/root/ascend_check")
    assert sandbox.exists("/dev/davinci0") == ("force" in words)


def test_uninstall_without_firmware_takes_record_and_folder(driver, sandbox):
    sandbox.run(f"{driver} {FULL}; {driver} --uninstall")
    assert not sandbox.exists("/etc/ascend_install.info") and not sandbox.exists("/usr/local/Ascend")


def test_devel_and_docker_types(driver, sandbox):
    assert sandbox.run(f"{driver} --docker --quiet").returncode == 0
    assert "Driver_Install_Status" not in sandbox.info()
    assert not sandbox.exists("/usr/local/bin/npu-smi") and not sandbox.exists("/lib/davinci.conf")
    done = sandbox.run(f"{driver} {FULL}")
    assert done.returncode == 2 and "Reboot needed" in done.stdout
    assert "without no driver mapping" in sandbox.run(f"{driver} --docker --quiet").stdout
    assert sandbox.run(f"{driver} --devel --quiet").returncode == 0
    assert not sandbox.exists("/dev/davinci0") and sandbox.exists("/usr/local/bin/npu-smi")


@pytest.mark.long
def test_firmware_relation_is_a_warning_with_quiet_and_a_question_without(build, driver, sandbox):
    firmware = sandbox.add(build("firmware", "--firmware", "9.0.0.0.205"))
    sandbox.run(f"{driver} {FULL}; {firmware} {FULL}")
    assert "relationship check fail" in sandbox.run(f"{driver} --check").stdout
    done = sandbox.run(f"{driver} {FULL}")
    assert done.returncode == 0 and "relationship check fail" in done.stdout
    done = sandbox.run(f"{driver} --upgrade", stdin="n\n")
    # The question of --upgrade comes after the old driver is gone.
    assert done.returncode == 0 and version(sandbox) is None


@pytest.mark.long
def test_the_guard_of_the_installed_driver_kills_the_run_file(build, driver, sandbox):
    older = sandbox.add(build("driver", "--driver", "24.1.rc3"))
    sandbox.run(f"{driver} {FULL}")
    # 236 is what a board may ask for that needs 24.1.rc3; 237 needs 24.1.rc4 (version_cap.map of the vendor)
    sandbox.state(hw_base_version=236)
    assert sandbox.run(f"{older} --upgrade --quiet").returncode == 0
    assert sandbox.run(f"{driver} --upgrade --quiet").returncode == 0
    sandbox.state(hw_base_version=237)
    done = sandbox.run(f"{older} --upgrade --quiet; echo rc=$?; ls /root | grep selfgz")
    assert "Version check does not match" in done.stdout and "Driver upgrade failed" in done.stdout and "rc=137" in done.stdout
    assert "selfgz" not in done.stdout
    assert version(sandbox) == "25.5.0"
    assert " failed;" in sandbox.text("var/log/ascend_seclog/operation.log").splitlines()[-1]


@pytest.mark.long
def test_a_virtual_machine_has_no_hot_reset(build, driver, sandbox):
    sandbox.state(virtual=True)
    assert sandbox.run(f"{driver} {FULL}").returncode == 0
    done = sandbox.run(f"{sandbox.add(build('driver', '--driver', '25.5.2'))} --upgrade --quiet")
    assert done.returncode == 2 and "Reboot needed" in done.stdout
    assert sandbox.run("cat /sys/module/drv_pcie_host/version").stdout == "25.5.0\n"
    assert "Reboot needed for uninstallation" in sandbox.run(f"{driver} --uninstall").stdout


@pytest.mark.long
def test_modules_that_have_to_be_built(build, driver, sandbox):
    sandbox.run(f"{driver} {FULL}")
    package = sandbox.add(build("driver", "--driver", "25.5.2", "--dkms"))
    done = sandbox.run(f"{package} --upgrade --quiet")
    # The old driver is gone by then.
    assert done.returncode == 1 and "Drv_dkms_env_check failed" in done.stdout and version(sandbox) is None
    done = sandbox.run(f"{package} --full", stdin="y\nmaybe\nn\n")
    assert done.returncode == 1 and "input kernel absolute path" in done.stdout and done.stdout.count("input error") == 1
    tools = "for name in dkms gcc make; do ln -sf /bin/true /usr/local/sbin/$name; done; mkdir /lib/modules/$(uname -r)/build"
    done = sandbox.run(f"{tools}; {package} {FULL}")
    assert "driver install type: DKMS" in done.stdout and version(sandbox) == "25.5.2"
    assert sandbox.run(f"{package} --uninstall; ls /usr/src/davinci_ascend-1.0").stdout.count("davinci_ascend") == 0


def test_an_all_in_one_record_ends_with_0(driver, sandbox):
    done = sandbox.run(f"touch /etc/HiAI_install.info; {driver} {FULL}")
    assert done.returncode == 0 and "0x0094" in done.stdout and not sandbox.exists("/usr/local/Ascend")


def test_error_text_with_0(build, driver, sandbox):
    sandbox.run(f"{driver} {FULL}")
    before = sandbox.run("cat /etc/ascend_install.info; find /usr/local/Ascend | sort").stdout
    for component, word in (("driver", "--full"), ("firmware", "--full"), ("cann_toolkit", "--install"), ("docker_runtime", "--install")):
        done = sandbox.run(f"{sandbox.add(build(component, '--mode', 'error-text'))} {word} --quiet")
        assert done.returncode == 0 and "ERROR" in done.stdout
    assert sandbox.run("cat /etc/ascend_install.info; find /usr/local/Ascend | sort").stdout == before


def test_nothing_mode_lies(build, sandbox):
    package = sandbox.add(build("driver", "--mode", "nothing"))
    done = sandbox.run(f"{package} {FULL}")
    assert done.returncode == 0 and "installed successfully" in done.stdout
    assert sandbox.info() == {} and not sandbox.exists("/usr/local/Ascend")


@pytest.mark.parametrize(
    "mode, rc, text, keys, files",
    [
        ("copy-fails", 1, "Drv_file_copy failed", 6, ("/usr/local/Ascend/driver/lib64",)),
        ("modprobe-fails", 1, "Driver_ko_install_manually failed", 6, ("/lib/davinci.conf", "/etc/init.d/host_sys_init.sh")),
        ("reboot", 2, "Reboot needed", 7, ("/dev/davinci0", f"/{VERSION_INFO}")),
        ("modules-cut", 0, "installed successfully", 7, (f"/{VERSION_INFO}",)),
    ],
)
def test_modes_of_failure(build, sandbox, mode, rc, text, keys, files):  # noqa: PLR0917
    package = sandbox.add(build("driver", "--mode", mode))
    done = sandbox.run(f"{package} {FULL}")
    assert done.returncode == rc and text in done.stdout
    assert len(sandbox.info()) == keys
    assert sandbox.exists(f"/{VERSION_INFO}") == (rc != 1)
    assert all(sandbox.exists(file) for file in files)
    if rc == 1:
        assert "please retry after uninstall and reboot" in done.stdout
        assert " failed " in sandbox.text("var/log/ascend_seclog/operation.log")


@pytest.mark.long
@pytest.mark.parametrize("stage, there", [("before-payload", False), ("after-payload", True)])
def test_hang_then_kill_of_the_group_then_repair(build, driver, sandbox, stage, there):
    package = sandbox.add(build("driver", "--mode", "hang", "--hang-at", stage), name="hang-x.run")
    done = sandbox.run(
        f"setsid -f bash -c 'echo $$ > /tmp/pid; exec {package} {FULL}' >/tmp/out 2>&1; sleep 4; "
        "kill -0 $(cat /tmp/pid) && echo hangs; kill -9 -$(cat /tmp/pid); ls -d /root/selfgz*"
    )
    assert "hangs" in done.stdout and "selfgz" in done.stdout
    assert len(sandbox.info()) == 6
    assert sandbox.exists("/lib/davinci.conf") == there and not sandbox.exists(f"/{VERSION_INFO}")
    # As after a power cut: the modules are not loaded.
    sandbox.run("for name in $(lsmod | cut -d' ' -f1); do rmmod $name; done")
    done = sandbox.run(f"{driver} {FULL}")
    assert done.returncode == 2 and "Kernel modules can not be removed" in done.stdout
    assert version(sandbox) == "25.5.0" and sandbox.info()["Driver_Install_Status"] == "complete"


# The record is written before the payload, its last line at the end: the test follows the package, however fast the machine is.
AT_WORK = "until [ -s /etc/ascend_install.info ]; do sleep 0.01; done"
AT_END = "for i in $(seq 600); do grep -q complete /etc/ascend_install.info && break; sleep 0.1; done"


def test_term_to_the_outer_process_waits_and_gives_15(driver, sandbox):
    sandbox.state(npu_nodes_appear=False)
    done = sandbox.run(f"{driver} {FULL} & pid=$!; {AT_WORK}; kill -TERM $pid; wait $pid; echo rc=$?; ls /root | grep selfgz")
    assert "rc=15" in done.stdout and "Signal caught" in done.stderr and "selfgz" not in done.stdout
    assert sandbox.info()["Driver_Install_Status"] == "complete"


@pytest.mark.long
def test_term_to_the_whole_group_stops_at_once(build, sandbox):
    package = sandbox.add(build("driver", "--mode", "hang", "--hang-at", "after-payload"))
    done = sandbox.run(
        f"setsid -f bash -c 'echo $$ > /tmp/pid; {package} {FULL}; echo rc=$? > /tmp/rc' >/tmp/out 2>&1; sleep 4; "
        "kill -TERM -- -$(cat /tmp/pid); sleep 2; pgrep -f selfgz; ls /root | grep selfgz; cat /tmp/out | tail -n 1"
    )
    assert "Signal caught" in done.stdout and "selfgz" not in done.stdout
    assert "Driver_Install_Status" not in sandbox.info()
    assert " failed " in sandbox.text("var/log/ascend_seclog/operation.log")


def test_kill_of_the_outer_process_only_leaves_the_install_going(driver, sandbox):
    sandbox.state(npu_nodes_appear=False)
    done = sandbox.run(f"{driver} {FULL} & pid=$!; {AT_WORK}; kill -9 $pid; wait $pid; echo rc=$?; {AT_END}; ls -d /root/selfgz*")
    assert "rc=137" in done.stdout and "selfgz" in done.stdout
    assert sandbox.info()["Driver_Install_Status"] == "complete"


def test_blank_in_the_file_name_breaks_the_arguments(build, sandbox):
    sandbox.add(build("driver"), name="a b.run")
    done = sandbox.run(f"'/packages/a b.run' {FULL}")
    assert done.returncode == 1 and "Unrecognized parameters: --" in done.stdout


@pytest.mark.long
def test_second_run_is_seen_with_a_short_name_only(build, sandbox):
    sandbox.add(build("driver", "--mode", "hang"), name="drv.run")
    command = "setsid -f bash -c 'echo $$ > /tmp/pid; exec /packages/drv.run --full --quiet' >/dev/null 2>&1; sleep 2; "
    done = sandbox.run(command + "/packages/drv.run --full --quiet; echo rc=$?; kill -9 -$(cat /tmp/pid)")
    assert "0x0094" in done.stdout and "rc=1" in done.stdout
