# SPDX-License-Identifier: GPL-3.0-or-later
"""A node in a folder: fake sysfs and /dev, the simulated DCMI library, a kubelet stand-in and agents, each a process of its own."""

import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
import zlib
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPO / "tests/kubelet"), str(REPO / "tests/simulator/hardware")]
import npu_sim
from kubelet_standin import control

RESOURCE = "huawei.com/Ascend910"
SOCKET = "npu-agent-Ascend910.sock"
MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")


def private_folder(prefix=".npu-fleet-"):
    """A folder on the way to which nobody else may write, as the agent wants it for what it runs: not below /tmp, where a checkout and
    its HOME may be."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=pwd.getpwuid(os.geteuid()).pw_dir)


def until(check, seconds=60.0, what=None):
    """The first true answer of `check`; AssertionError with the last one when none comes. The bound is for what hangs, not a measure."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or check} (last: {answer!r})")
        time.sleep(0.02)


def make_node(path):
    """A device node as the driver makes them, with a number of its own. Nobody serves it: opening it fails."""
    digits = "".join(filter(str.isdecimal, path.name))
    minor = int(digits) + 1000 * path.name.startswith("vdavinci") if digits else 200 + zlib.crc32(path.name.encode()) % 800
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(npu_sim.MAJOR, minor))
    except PermissionError:
        raise unittest.SkipTest("only root can make device nodes (mknod)") from None


def prepare(folder):
    """The agent's package and the simulator in a folder, for programs outside pytest: `package`, `simulator/payload/driver/libdcmi.so`."""
    place = Path(folder) / "collections/ansible_collections/npu"
    place.mkdir(parents=True)
    (place / "fleet").symlink_to(REPO)
    sys.path.insert(0, str(Path(folder) / "collections"))
    from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive

    _agent_archive.write_sources(Path(folder) / "package")
    build = [sys.executable, str(REPO / "tests/simulator/build.py"), "--out", str(Path(folder) / "simulator")]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)


class Process:
    def __init__(self, argv, log, env=None, output=None):
        """`output`: a descriptor for standard output, instead of the log."""
        self.log = Path(log)
        with open(log, "ab") as stream:
            self.process = subprocess.Popen(argv, stdout=stream if output is None else output, stderr=stream, stdin=subprocess.DEVNULL,
                                            env={**os.environ, **(env or {})})
        self.pid = self.process.pid

    def stop(self, number=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def text(self):
        return self.log.read_text()


class Agent(Process):
    def __init__(self, rig, name="agent", command=("serve",), *, prefix=(), output=None, **settings):
        self.rig, self.port = rig, rig.free_port()
        env = {
            "PYTHONPATH": str(rig.package), "NPU_SIM_STATE": str(rig.state), "NPU_AGENT_SYSFS_ROOT": str(rig.sys),
            "NPU_AGENT_DEV_ROOT": str(rig.dev), "NPU_AGENT_KUBELET_DIR": str(rig.plugins), "NPU_AGENT_DCMI_LIBRARY": str(rig.library),
            "NPU_AGENT_POLL_SECONDS": "0.1", "NPU_AGENT_RECOVERY_SECONDS": "0", "NPU_AGENT_FLAP_COUNT": "0",
            "NPU_AGENT_STATE_DIR": str(rig.folder / "state"), "NPU_AGENT_LISTEN": f"127.0.0.1:{self.port}",
            "NPU_AGENT_AUDIT_FILE": str(rig.folder / "audit.jsonl"), "NPU_AGENT_KERNEL_LOG": str(rig.folder / "kmsg"),
            "NPU_AGENT_CONFIG": str(rig.config), "NPU_AGENT_POD_RESOURCES": str(rig.folder / "pods/kubelet.sock"),
        }
        for key, value in settings.items():  # None: as the configuration has it
            if value is None:
                del env["NPU_AGENT_" + key.upper()]
            else:
                env["NPU_AGENT_" + key.upper()] = str(value)
        super().__init__([*prefix, rig.python, "-m", "npu_agent", *command], rig.folder / f"{name}.log", env, output)
        self.started = time.monotonic()

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        """The value of a metric without labels."""
        return float(self.get("/metrics")[1].split(f"\nnpu_agent_{name} ")[1].split()[0])

    def report(self):
        try:
            return json.loads(self.get("/readyz")[1])
        except OSError:
            return None

    def await_state(self, state, seconds=60):
        report = until(lambda: (report := self.report()) and report["state"] == state and report, seconds, f"state {state}")
        if state == "serving":
            self.rig.await_lists(report)
        return report

    def events(self, name=None):
        lines = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return [line for line in lines if name is None or line["event"] == name]


class Rig:
    """AGENT_PYTHON: another interpreter for the agent, one that has grpcio, protobuf and PyYAML."""

    def __init__(self, folder, package, library, chips=8, *, python=None, other=0, product="a2"):
        """`other` of the chips, the last ones, are 310P."""
        self.folder, self.package, self.library = Path(folder), package, library
        self.python = python or os.environ.get("AGENT_PYTHON") or sys.executable
        self.sys, self.dev, self.state = self.folder / "sys", self.folder / "dev", self.folder / "state.json"
        self.plugins, self.control = self.folder / "kubelet/device-plugins", self.folder / "kubelet-control"
        self.config = self.folder / "config.yaml"
        self.config.write_text("")
        (self.folder / "kmsg").write_text("")
        self.processes = []
        self.dev.mkdir()
        (self.sys / "bus/pci/drivers/devdrv_device_driver").mkdir(parents=True)
        (self.sys / "bus/pci/devices").mkdir()
        for node in (0, 1):
            (self.sys / f"devices/system/node/node{node}").mkdir(parents=True)
        state = npu_sim.initial(product, chips)
        state["kernel"].update(driver_loaded=True, driver_version="25.5.0")
        for chip in state["chips"][chips - other:]:
            chip.update(name="310P3", aicore_count=8)
        npu_sim.personalise(state, "rig")
        npu_sim.save(state, self.state)
        for chip in state["chips"]:
            self.add_function(chip["pci_address"], chip["numa_node"], {"310P3": "0xd500"}.get(chip["name"], state["pci"]["device"]))
        for name in [*MANAGERS, *(f"davinci{chip['phy_id']}" for chip in state["chips"])]:
            make_node(self.dev / name)

    def add_function(self, address, numa_node, device="0xd802"):
        folder = self.sys / "bus/pci/devices" / address
        folder.mkdir()
        values = {"vendor": "0x19e5", "device": device, "class": "0x120000", "subsystem_vendor": "0x19e5", "subsystem_device": "0x3000"}
        for name, value in {**values, "numa_node": numa_node}.items():
            (folder / name).write_text(f"{value}\n")
        (folder / "driver").symlink_to("../../drivers/devdrv_device_driver")

    def change(self, path, value):
        """As `npu-sim set PATH VALUE`."""
        state = npu_sim.load(self.state)
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place = state
        for part in parents:
            place = place[part]
        place[last] = value
        npu_sim.save(state, self.state)

    def put(self, pairs):
        """The same for several, as one change."""
        npu_sim.set_values(pairs, self.state)

    def chips(self):
        return npu_sim.load(self.state)["chips"]

    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def agent(self, **settings):
        agent = Agent(self, **settings)
        self.processes.append(agent)
        return agent

    def kubelet(self, *arguments, wait=True):
        argv = [sys.executable, "-m", "kubelet_standin", "--plugins", str(self.plugins), "--pod-resources", str(self.folder / "pods"),
                "--control", str(self.control), "--node", "rig", "--status-seconds", "0.1", *arguments]
        kubelet = Process(argv, self.folder / "kubelet.log", {"PYTHONPATH": str(REPO / "tests/kubelet")})
        self.processes.append(kubelet)
        if wait:
            control.wait(str(self.control))
        return kubelet

    def ask(self, name, **arguments):
        return control.ask(str(self.control), name=name, **arguments)

    def await_lists(self, report, seconds=5.0):
        """Kubelet takes a list a moment after it was sent, and until then it allocates nothing. One that says less is not waited for."""
        wanted = {one["resource"]: one["total"] for one in report["resources"]}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                known = self.ask("capacity")
            except (OSError, ValueError):
                return
            if all(known.get(resource, 0) >= total for resource, total in wanted.items()):
                return
            time.sleep(0.01)

    def numbers(self, resource=RESOURCE):
        """(allocatable, capacity) of the resource at this moment."""
        return self.ask("allocatable").get(resource), self.ask("capacity").get(resource)

    def restart_kubelet(self, down=0.0):
        before = self.ask("info")["start"]
        self.ask("restart", down=down)
        until(lambda: self.started_at() not in (None, before), 20 + down, "a new kubelet")

    def started_at(self):
        try:
            return self.ask("info")["start"]
        except OSError:
            return None

    def close(self):
        for process in reversed(self.processes):
            if process.process.poll() is None:
                process.process.kill()
                process.process.wait()
