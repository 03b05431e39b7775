# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages on a whole simulated node: systemd, docker, npu-simd, a reboot. Changes the node for good; give it a fresh one.

    python3 tests/simulator/build.py --out DIR
    python3 tests/nodes/nodes.py image --overlay DIR/rootfs && python3 tests/nodes/nodes.py up packages-1
    NPU_TEST_NODE=packages-1 pytest tests/simulator/packages/test_in_node.py

The tests are one story and run in the order of the file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
NODE = os.environ.get("NPU_TEST_NODE")
if not NODE:
    pytest.skip("NPU_TEST_NODE names no node", allow_module_level=True)

# Opens without asking for a driver behind the node: the simulated devices have none.
HOLD = "import os, subprocess, sys; os.open('/dev/davinci_manager', os.O_PATH); sys.exit(subprocess.call(sys.argv[1:]))"


def nodes(*words, timeout=300):
    command = [sys.executable, str(TESTS / "nodes" / "nodes.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False)


def on_node(*words):
    return nodes("exec", NODE, "--", *words)


def run(command):
    return on_node("bash", "-c", command)


def state(path):
    return json.loads(on_node("npu-sim", "get", path).stdout)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """{component or component-release: path on the node}"""
    work = tmp_path_factory.mktemp("packages")
    subprocess.run([sys.executable, str(TESTS / "simulator" / "build.py"), "--out", str(work / "hardware")], check=True)
    found = {}
    plan = (("a2-25.5.0", None, "ok"), ("a2-25.5.1", ("driver",), "dead-after-boot"), ("a2-25.5.2", ("driver", "firmware"), "ok"),
            ("a3-25.5.0", ("driver", "firmware"), "ok"))  # fmt: skip
    for release, components, mode in plan:
        words = ["--out", str(work / "depot"), "--payload", str(work / "hardware" / "payload"), "--release", release, "--mode", mode]
        for component in components or ():
            words += ["--component", component]
        done = subprocess.run([sys.executable, str(HERE / "build.py"), *words], check=True, capture_output=True, text=True)
        names = components or ("driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime")
        for name, line in zip(names, done.stdout.splitlines(), strict=True):
            found[name if not components else f"{name}-{release.removeprefix('a2-')}"] = f"/root/depot/{Path(line).name}"
    assert nodes("docker", "--", "cp", str(work / "depot"), f"{NODE}:/root/").returncode == 0
    run("getent passwd HwHiAiUser || useradd -m HwHiAiUser")
    return found


def test_driver_then_firmware(packages):
    done = run(f"{packages['driver']} --nox11 --full --quiet --install-for-all")
    assert done.returncode == 0, done.stdout
    assert state("kernel.driver_version") == "25.5.0"
    look = run("stat -c '%a %U' /dev/davinci7 /dev/davinci_manager; npu-smi info; lsattr /usr/local/Ascend/driver/version.info")
    assert look.stdout.splitlines()[:2] == ["666 HwHiAiUser"] * 2
    assert "25.5.0" in look.stdout and "910B3" in look.stdout
    done = run(f"{packages['firmware']} --nox11 --full --quiet")
    assert done.returncode == 0 and "The firmware of [8] chips" in done.stdout
    assert state("chips.0.firmware_flash") == "7.8.0.5.216" != state("chips.0.firmware_running")


def test_reboot_brings_firmware_and_driver_up(packages):
    assert nodes("reboot", NODE).returncode == 0
    assert set(state("chips.*.firmware_running")) == {"7.8.0.5.216"}
    assert state("kernel.driver_version") == "25.5.0"
    # The nodes keep owner and mode, and the start script of the driver does not spoil the boot.
    assert run("stat -c '%a %U' /dev/davinci7").stdout == "666 HwHiAiUser\n"
    assert run("systemctl is-system-running --wait").stdout == "running\n"


def test_cann(packages):
    for name in ("cann_toolkit", "cann_kernels"):
        assert run(f"{packages[name]} --nox11 --install --quiet --install-for-all").returncode == 0
    assert run("cat /usr/local/Ascend/cann/*-linux/ascend_*_install.info | grep ^version=").stdout == "version=8.5.0\n" * 2


@pytest.fixture(scope="module")
def image(packages):
    run(
        "mkdir -p image/bin && cp $(command -v busybox) image/bin/; "
        "for name in sh ls env cat true; do ln -sf busybox image/bin/$name; done; "
        "tar -C image -c . | docker import - simpkg"
    )
    done = run(f"{packages['docker_runtime']} --install && systemctl restart docker")
    assert done.returncode == 0
    return "simpkg"


def test_a_container_gets_its_chips_and_no_others(image):
    done = run(f"docker run --rm -e ASCEND_VISIBLE_DEVICES=0-1,7 {image} sh -c 'ls /dev; env; cat /proc/mounts'")
    assert done.returncode == 0, done.stderr
    seen = done.stdout.split()
    assert [name for name in seen if name.startswith("davinci")] == ["davinci0", "davinci1", "davinci7", "davinci_manager"]
    assert "hisi_hdc" in seen and "devmm_svm" in seen and "ASCEND_DOCKER_RUNTIME=True" in seen
    assert "/usr/local/bin/npu-smi" in seen and "/usr/local/dcmi" in seen


def test_a_container_without_the_variable_gets_none(image):
    done = run(f"docker run --rm {image} sh -c 'ls /dev; env'")
    assert "davinci" not in done.stdout and "ASCEND_DOCKER_RUNTIME=True" in done.stdout


@pytest.mark.parametrize("devices, reason", [("all", "invalid single device: all"), ("9", "/dev/davinci9")])
def test_a_refused_container_shows_a_status_only(image, devices, reason):
    done = run(f"docker run --rm -e ASCEND_VISIBLE_DEVICES={devices} {image} true")
    assert done.returncode != 0 and "did not terminate successfully: exit status 1" in done.stderr
    assert reason in run("tail -n 1 /var/log/ascend-docker-runtime/runtime-run.log").stdout


def test_a_dcmi_failure_fails_the_container(image):
    on_node("npu-sim", "set", "behaviour.dcmi", "fail")
    assert run(f"docker run --rm -e ASCEND_VISIBLE_DEVICES=0 {image} true").returncode != 0
    assert "dcmi" in run("tail -n 1 /var/log/ascend-docker-runtime/runtime-run.log").stdout
    on_node("npu-sim", "set", "behaviour.dcmi", "ok")
    assert run(f"docker run --rm -e ASCEND_VISIBLE_DEVICES=0 {image} true").returncode == 0


def test_a_held_device_blocks_the_upgrade(packages):
    done = on_node("python3", "-c", HOLD, packages["driver-25.5.2"], "--upgrade", "--quiet")
    assert done.returncode == 1 and "davinci nodes are occupied" in done.stdout
    assert state("kernel.driver_version") == "25.5.0"


def test_upgrade_with_hot_reset(packages):
    assert run(f"{packages['firmware-25.5.2']} --upgrade --quiet").returncode == 0
    done = run(f"{packages['driver-25.5.2']} --upgrade --quiet")
    assert done.returncode == 0 and "upgraded successfully" in done.stdout
    assert state("kernel.driver_version") == "25.5.2" and state("chips.0.firmware_running") == "7.8.0.5.216"
    assert run("stat -c %a /dev/davinci0").stdout == "666\n"


def test_no_node_appears(packages):
    on_node("npu-sim", "set", "kernel.npu_nodes_appear", "false", "time_scale", "0.001")
    done = run(f"{packages['driver-25.5.2']} --full --quiet --install-for-all")
    assert done.returncode == 2 and "some chips not ready" in done.stdout
    on_node("npu-sim", "set", "kernel.npu_nodes_appear", "true", "time_scale", "0.01")


def test_a_driver_that_is_dead_after_the_boot_and_back(packages):
    done = run(f"{packages['driver-25.5.1']} --upgrade --quiet")
    assert done.returncode == 2 and state("kernel.driver_version") == "25.5.2"
    assert nodes("reboot", NODE).returncode == 0
    look = run("cat /sys/module/drv_pcie_host/version; npu-smi info; ls /dev/davinci0")
    assert look.stdout.startswith("25.5.1\n") and "ret is -8005" in look.stdout and look.returncode != 0
    assert run(f"{packages['driver-25.5.2']} --upgrade --quiet").returncode == 0
    assert run("test -e /dev/davinci7 && npu-smi info | grep -c 910B3").stdout == "8\n"


def test_power_cut_where_the_package_stands_still(packages):
    """The container goes at once, as a machine without power; the next run mends what is left."""
    on_node("npu-sim", "set", "package.pause_at", "driver:90")
    run(f"setsid -f {packages['driver']} --upgrade --quiet > /dev/null 2>&1; until [ -e /run/npu-sim/paused ]; do sleep 0.1; done")
    assert nodes("docker", "--", "kill", NODE).returncode == 0
    assert nodes("docker", "--", "start", NODE).returncode == 0
    assert nodes("up", NODE).returncode == 0
    on_node("npu-sim", "set", "package.pause_at", "null")
    assert "Driver_Install_Status" not in run("cat /etc/ascend_install.info").stdout
    assert run("cat /usr/local/Ascend/driver/version.info").returncode != 0
    assert run(f"{packages['driver-25.5.2']} --upgrade --quiet").returncode in (0, 2)
    assert nodes("reboot", NODE).returncode == 0
    assert state("kernel.driver_version") == "25.5.2"


def test_uninstall(packages):
    assert run(f"{packages['docker_runtime']} --uninstall && systemctl restart docker").returncode == 0
    for name in ("cann_kernels", "cann_toolkit"):
        assert run(f"{packages[name]} --uninstall").returncode == 0
    done = run(f"{packages['driver-25.5.2']} --uninstall")
    assert done.returncode == 0 and state("kernel.driver_loaded") is False
    assert run("ls /dev/davinci0").returncode != 0
    assert run(f"{packages['firmware-25.5.2']} --uninstall").returncode == 0
    assert run("cat /etc/ascend_install.info").returncode != 0


def test_another_family(packages):
    on_node("npu-sim", "init", "--product", "a3")
    assert "not match, please check" in run(f"{packages['driver']} --full --quiet").stdout
    assert run(f"{packages['driver-a3-25.5.0']} --full --quiet --install-for-all").returncode == 0
    done = run(f"{packages['firmware-a3-25.5.0']} --full --quiet")
    assert done.returncode == 0 and "The firmware of [16] chips" in done.stdout
    assert run("ls /dev/davinci[0-9]* | wc -l; npu-smi info | grep -c Ascend910").stdout == "16\n16\n"
