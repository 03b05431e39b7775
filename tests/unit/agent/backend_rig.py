# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated devices of each backend on a node in a folder: what the suite over all backends, and each one's own tests, stand on.

A World has: resource; ids, in order; settings, of the agent; given(ids), what Allocate has to answer; lose(id) and mend(id), what makes a
device unusable and well again; lost, what the reason of that says; bad, settings that `check` must refuse, and words of why.
"""

import json
import os
import socket
import stat
import subprocess
import sys

import grpc
from agent_rig import REPO, RESOURCE, Rig, make_node
from kubelet_standin import api, wire

sys.path.insert(0, str(REPO / "tests/simulator/rockchip"))
import rockchip_tree

# Numbers of devices that every kernel has and everybody may open.
LIVING = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)]


def living(path, number=0):
    """A device node that can be opened."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*LIVING[number]))


class BackendRig(Rig):
    """A node without any device; the agent on it has the settings of its world."""

    def __init__(self, folder, package, settings):
        self.folder, self.package, self.library = folder, package, folder / "none.so"
        self.python = os.environ.get("AGENT_PYTHON") or sys.executable
        self.sys, self.dev, self.proc = folder / "sys", folder / "dev", folder / "proc"
        self.state = folder / "state.json"
        self.plugins, self.control = folder / "kubelet/device-plugins", folder / "kubelet-control"
        self.config = folder / "config.yaml"
        self.config.write_text("")
        self.processes = []
        for path in (self.sys, self.dev, self.proc):
            path.mkdir(exist_ok=True)
        self.settings = {"proc_root": self.proc, **settings}

    def agent(self, **settings):
        return super().agent(**{**self.settings, **settings})


class World:
    resource: str
    ids: tuple
    settings: dict = {}
    lost: str
    bad: tuple

    def __init__(self, folder, package, _library):
        self.rig = BackendRig(folder, package, {key: value if isinstance(value, str) else json.dumps(value)
                                                for key, value in self.settings.items()})
        self.dev = self.rig.dev

    def close(self):
        self.rig.close()

    def given(self, ids):
        raise NotImplementedError

    def node(self, name):
        return f"{self.dev}/{name}", f"/dev/{name}"


class AscendWorld(World):
    resource, ids, lost = RESOURCE, ("Ascend910-0", "Ascend910-1"), "davinci1 is missing"
    bad = ({"family": "b200"}, "family is 'b200'; allowed:")

    def __init__(self, folder, package, library):
        self.rig = Rig(folder, package, library, chips=2)
        self.dev = self.rig.dev

    def given(self, ids):
        numbers = sorted(name.rpartition("-")[2] for name in ids)
        names = [*(f"davinci{number}" for number in numbers), "davinci_manager", "devmm_svm", "hisi_hdc"]
        return {"ASCEND_VISIBLE_DEVICES": ",".join(numbers)}, [self.node(name) for name in names]

    def lose(self, _name):
        (self.dev / "davinci1").unlink()

    def mend(self, _name):
        make_node(self.dev / "davinci1")


class RockchipWorld(World):
    resource, ids, lost = "rockchip.com/rknpu", ("npu-rk3588-0",), "dri/renderD129 is missing"
    settings = {"backend": "auto", "rockchip_extra": ["/dev/rga", "/dev/dma_heap/system*", "/dev/none"]}
    bad = ({"rockchip_extra": '["/etc/passwd"]'}, "'/etc/passwd' is no path below /dev")

    def __init__(self, folder, package, library, **board):
        super().__init__(folder, package, library)
        rockchip_tree.tree(folder, soc="rk3588", **board)

    def given(self, ids):
        envs = {"NPU_FLEET_SOC": "rk3588", "NPU_FLEET_NPU_STACK": "rknpu-drm", "NPU_FLEET_NPU_DRIVER": "0.9.8", "NPU_FLEET_NPU_CORES": "3",
                "NPU_FLEET_NPU_CORE_MASK": "0x7"}
        return envs, [self.node(name) for name in ("dri/card1", "dri/renderD129", "rga", "dma_heap/system")]

    def lose(self, _name):
        (self.dev / "dri/renderD129").unlink()

    def mend(self, _name):
        living(self.dev / "dri/renderD129", 1)


class PathsWorld(World):
    resource, ids, lost = "cambricon.com/mlu", ("mlu-2", "mlu-5"), "cambricon_dev5 is missing"
    settings = {"backend": "paths", "devices": [{
        "resource": "cambricon.com/mlu", "paths": ["/dev/cambricon_dev[0-9]*"], "with": ["/dev/cambricon_ctl", "/dev/caps/cap{n}*"],
        "envs": {"MLU_MODE": "one"}, "env_ids": "MLU_VISIBLE_DEVICES", "open": True}]}
    bad = ({"devices": '[{"resource": "a.b/c", "paths": ["/dev/x*"]}, {"resource": "a.b/d", "paths": ["/dev/x1"]}]'},
           "entry 2: '/dev/x1' and '/dev/x*' of entry 1 can match the same device")

    def __init__(self, folder, package, library):
        super().__init__(folder, package, library)
        for number, name in enumerate(("cambricon_dev2", "cambricon_dev5", "cambricon_ctl", "caps/cap5")):
            living(self.dev / name, number)

    def given(self, ids):
        numbers = sorted(name.rpartition("-")[2] for name in ids)
        names = [name for number in numbers for name in (f"cambricon_dev{number}", "cambricon_ctl", *["caps/cap5"] * (number == "5"))]
        envs = {"MLU_MODE": "one", "MLU_VISIBLE_DEVICES": ",".join(numbers)}
        return envs, [self.node(name) for name in dict.fromkeys(names)]

    def lose(self, _name):
        (self.dev / "cambricon_dev5").unlink()

    def mend(self, _name):
        living(self.dev / "cambricon_dev5", 1)


class RemoteWorld(World):
    resource, ids, lost = "example.com/npu-server", ("rack-3", "rack-7"), "no connection: Connection refused"
    secret = "s3cr3t-t0ken"  # noqa: S105  a canary
    bad = ({"endpoints": json.dumps([{"resource": "example.com/x", "name": "a", "address": "10.0.0.1:0", "envs": {"TOKEN": secret}}])},
           "entry 1: address must be HOST:PORT")

    def __init__(self, folder, package, library):
        self.listeners = [listener(), listener()]
        self.ports = dict(zip((3, 7), (one.getsockname()[1] for one in self.listeners), strict=True))
        self.settings = {"backend": "remote", "endpoints": [
            {"resource": self.resource, "name": f"rack-{number}", "address": f"127.0.0.1:{port}", "nodes": [f"/dev/link{number}"],
             "envs": {"NPU_URL": "grpc://{host}:{port}/{name}", "NPU_TOKEN": self.secret}}
            for number, port in self.ports.items()]}
        super().__init__(folder, package, library)
        for place, number in enumerate(self.ports):
            living(self.dev / f"link{number}", place)

    def given(self, ids):
        numbers = sorted(int(name.rpartition("-")[2]) for name in ids)
        envs = {"NPU_FLEET_ENDPOINTS": ",".join(f"rack-{number}=127.0.0.1:{self.ports[number]}" for number in numbers),
                "NPU_URL": ",".join(f"grpc://127.0.0.1:{self.ports[number]}/rack-{number}" for number in numbers), "NPU_TOKEN": self.secret}
        return envs, [self.node(f"link{number}") for number in numbers]

    def lose(self, _name):
        self.listeners[1].close()

    def mend(self, _name):
        self.listeners[1] = listener(self.ports[7])

    def close(self):
        super().close()
        for one in self.listeners:
            one.close()


def listener(port=0):
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    found.listen(64)
    return found


WORLDS = {"ascend": AscendWorld, "rockchip": RockchipWorld, "paths": PathsWorld, "remote": RemoteWorld}


def allocate(rig, resource, *containers):
    """Allocate as kubelet calls it: an answer for each list of ids."""
    from npu_agent.session import endpoint_of

    with grpc.insecure_channel(f"unix://{rig.plugins / endpoint_of(resource)}") as channel:
        call = channel.unary_unary("/v1beta1.DevicePlugin/Allocate", lambda message: wire.encode(api.ALLOCATE_REQUEST, message),
                                   lambda data: wire.decode(api.ALLOCATE_RESPONSE, data))
        return call({"container_requests": [{"devices_ids": list(ids)} for ids in containers]}, timeout=30)["container_responses"]


def plain(answer):
    """(variables, [(host path, container path)]) of an answer; each node is for reading and writing."""
    assert {device["permissions"] for device in answer["devices"]} <= {"rw"}
    return answer["envs"], [(device["host_path"], device["container_path"]) for device in answer["devices"]]


def run(rig, *command, **settings):
    """(exit code, output) of a command of the agent."""
    done = rig.agent(name=command[0], command=command, **settings)
    code = done.process.wait(60)
    return code, done.text()


def imported(package, script):
    """What a Python of its own says after a script."""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True,
                          check=True, timeout=60)
    return done.stdout.split()


class Bench:
    """The backend of some settings, without a process: `look`, and `give` of what was seen."""

    def __init__(self, folder, **settings):
        import npu_agent.backends
        import npu_agent.config

        (folder / "empty.yaml").write_text("")
        for name in ("sys", "dev", "proc"):
            (folder / name).mkdir(exist_ok=True)
        values = {"config": folder / "empty.yaml", "sysfs_root": folder / "sys", "dev_root": folder / "dev", "proc_root": folder / "proc"}
        environ = {f"NPU_AGENT_{key.upper()}": value if isinstance(value, str) else json.dumps(value, default=str).strip('"')
                   for key, value in {**values, **settings}.items()}
        self.folder, self.dev, self.sys, self.proc = folder, folder / "dev", folder / "sys", folder / "proc"
        self.settings = npu_agent.config.load(None, environ)
        self.settings.backend, self.why = npu_agent.backends.choose(self.settings)
        self.backend = npu_agent.backends.of(self.settings)
        self.looker = None

    def look(self):
        self.looker = self.looker or self.backend.looker(self.settings)
        return self.looker.look()

    def chips(self):
        """{natural id: record}"""
        return {record["natural"]: record for record in self.look().chips}

    def verdict(self, record):
        """(whether it may take work, why not), as the health rule says it of one record."""
        from npu_agent.health import judge

        return judge(record, "major")

    def give(self, *records):
        """The answer for these records' devices."""
        from npu_agent.chip import Chip

        chips = [Chip(record["natural"], None, record["family"], record["pci_address"], None, None, record["device_node"], None,
                      healthy=True, reason="", rank=0, degraded=()) for record in records]
        return self.backend.give(chips, self.settings)
