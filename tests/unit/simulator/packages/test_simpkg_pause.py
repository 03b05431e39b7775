# SPDX-License-Identifier: GPL-3.0-or-later
"""A package stands still where `package.pause_at` says, with exactly that on the disk which README.md says for the stage."""

import pytest

STAGES = ("start", "10", "30", "40", "90", "version", "status", "end")
# Plays the tester: at each stop it notes what is there, names the next stop, and lets the package go on.
FOLLOW = """
pause() { sed -i "s/\\"pause_at\\": [^}]*/\\"pause_at\\": \\"$1\\"/" /var/lib/npu-sim/state.json; }
pause COMPONENT:start
PACKAGE </dev/null >/tmp/out 2>&1 & package=$!
set -- STAGES
while [ $# -gt 0 ]; do
    for i in $(seq 400); do [ ! -e /run/npu-sim/paused ] || break; sleep 0.05; done
    read -r stage pid < /run/npu-sim/paused
    kill -0 $pid && echo "$stage: $(LOOK)"
    shift
    pause COMPONENT:${1:-none}
    rm /run/npu-sim/paused
done
wait $package
echo rc=$?
"""


def follow(sandbox, component, command, look, stages=STAGES):
    script = FOLLOW.replace("COMPONENT", component).replace("PACKAGE", command).replace("STAGES", " ".join(stages)).replace("LOOK", look)
    lines = sandbox.run(script).stdout.splitlines()
    assert lines[-1] == "rc=0", lines
    assert [line.partition(": ")[0] for line in lines[:-1]] == [f"{component}:{stage}" for stage in stages]
    return [line.partition(": ")[2] for line in lines[:-1]]


def marks(*pairs):
    """A shell command that prints the letter of each path that is there."""
    return "; ".join(f"! ls {path} >/dev/null 2>&1 || echo -n {letter}" for letter, path in pairs)


def test_driver_over_an_older_one(build, sandbox):
    older, newer = (sandbox.add(build("driver", "--driver", version)) for version in ("25.3.rc1", "25.5.0"))
    sandbox.run(f"{older} --full --quiet")
    look = marks(("t", "/usr/local/Ascend/driver/tools"), ("k", "/lib/modules/$(uname -r)/updates/ts_agent.ko"), ("n", "/dev/davinci0"))
    look += "; ! grep -qs 25.3 /usr/local/Ascend/driver/version.info || echo -n o; "
    look += "! grep -qs 25.5 /usr/local/Ascend/driver/version.info || echo -n v; ! grep -qs complete /etc/ascend_install.info || echo -n c"
    stages = ("start", "removed", "record", *STAGES[1:])
    assert follow(sandbox, "driver", f"{newer} --upgrade --quiet", look, stages) == [
        "tknoc", "", "", "", "t", "t", "tk", "tknv", "tknvc", "tknvc",
    ]  # fmt: skip


def test_driver_uninstall(build, sandbox):
    driver = sandbox.add(build("driver"))
    sandbox.run(f"{driver} --full --quiet")
    look = marks(("t", "/usr/local/Ascend/driver"), ("i", "/etc/ascend_install.info"))
    assert follow(sandbox, "driver", f"{driver} --uninstall", look, ("start", "removed", "end")) == ["ti", "i", ""]


def test_firmware_half_of_the_chips(build, sandbox):
    sandbox.run(f"{sandbox.add(build('driver'))} --full --quiet")
    firmware = sandbox.add(build("firmware"))
    look = "wc -l < /var/lib/npu-sim/calls | tr '\\n' ' '; ! grep -qs 7.8 /usr/local/Ascend/firmware/version.info || echo -n v; "
    look += "! grep -q Firmware /etc/ascend_install.info || echo -n r"
    before = int(sandbox.run("wc -l < /var/lib/npu-sim/calls").stdout)
    assert follow(sandbox, "firmware", f"{firmware} --full --quiet", look) == [
        f"{before + calls} {rest}" for calls, rest in ((0, ""), (0, ""), (1, ""), (2, ""), (2, ""), (2, "v"), (2, "vr"), (2, "vr"))
    ]
    assert sandbox.text("var/lib/npu-sim/calls").splitlines()[-2:] == [
        "flash-firmware 7.8.0.5.216 --count 1", "flash-firmware 7.8.0.5.216",
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "top"), [("8.5.0", "cann-8.5.0"), ("8.3.RC2", "ascend-toolkit/8.3.RC2")])
def test_cann(build, sandbox, version, top):
    toolkit, kernels = (sandbox.add(build(name, "--cann", version)) for name in ("cann_toolkit", "cann_kernels"))
    home = f"/usr/local/Ascend/{top}"
    look = marks(("i", f"{home}/share/info/runtime/ascend_install.info"), ("l", f"{home}/lib64/libascendcl.so"),
                 ("r", f"{home}/*-linux/ascend_toolkit_install.info"), ("v", f"{home}/share/info/runtime/version.info"))  # fmt: skip
    command = f"{toolkit} --install --quiet --install-for-all"
    assert follow(sandbox, "cann_toolkit", command, look) == ["", "", "i", "il", "il", "ilr", "ilrv", "ilrv"]
    record = f"{home}/*-linux/ascend_ops_install.info" if version == "8.5.0" else f"{home}/opp_kernel/version.info"
    look = marks(("k", f"{home}/opp*"), ("r", record))
    assert follow(sandbox, "cann_kernels", f"{kernels} --install --quiet", look) == ["", "", "", "k", "k", "kr", "kr", "kr"]


def test_docker_runtime(build, sandbox):
    runtime = sandbox.add(build("docker_runtime"))
    look = marks(("b", "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"), ("l", "/etc/ascend-docker-runtime.d/base.list"),
                 ("r", "/usr/local/Ascend/Ascend-Docker-Runtime/*install.info"))  # fmt: skip
    look += "; ! grep -qs ascend /etc/docker/daemon.json || echo -n e"
    command = f"{runtime} --install"
    sandbox.run("rm -rf /etc/docker")
    assert follow(sandbox, "docker_runtime", command, look) == ["", "", "b", "bl", "bl", "blr", "blre", "blre"]


def test_a_driver_that_is_dead_after_the_next_boot(build, sandbox):
    bad = sandbox.add(build("driver", "--driver", "25.5.2", "--mode", "dead-after-boot"))
    done = sandbox.run(f"{bad} --full --quiet")
    assert done.returncode == 2 and "Reboot needed" in done.stdout
    assert sandbox.info()["Driver_Install_Status"] == "complete" and not sandbox.exists("/dev/davinci0")
    look = "head -n 1 /lib/modules/$(uname -r)/updates/drv_pcie_host.ko; cat /usr/local/Ascend/driver/version.info"
    lines = sandbox.run(look).stdout.splitlines()
    assert lines[:2] == ["npu-sim module drv_pcie_host 25.5.2 dead-after-boot", "Version=25.5.2"]


def test_a_dead_driver_may_work_until_then(build, sandbox):
    bad = sandbox.add(build("driver", "--mode", "dead-after-boot", "--driver-rc", "0"))
    done = sandbox.run(f"{bad} --full --quiet")
    assert done.returncode == 0 and "takes effect immediately" in done.stdout and sandbox.exists("/dev/davinci0")
