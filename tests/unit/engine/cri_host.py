# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with an engine that kubelet talks to over CRI, in a temporary root: files and CRI are real, commands are answered here."""

import os
from pathlib import Path

from cri_server import V1, Server, status, version

from ansible_collections.npu.fleet.plugins.module_utils import _engine_containerd as containerd
from ansible_collections.npu.fleet.plugins.module_utils._command import Result

WRAPPER = "/opt/wrapper"
EXPECT = {"state": "present", "name": "ascend", "path": WRAPPER, "args": [], "default": None}
GONE = dict(EXPECT, state="absent")


def dump(table="io.containerd.grpc.v1.cri", names=("runc", "ascend"), default="runc", more=""):
    text = f"version = 2\n[plugins.'{table}'.containerd]\ndefault_runtime_name = '{default}'\n"
    for name in names:
        text += f"[plugins.'{table}'.containerd.runtimes.{name}]\nruntime_type = 'io.containerd.runc.v2'\n"
        text += f"[plugins.'{table}'.containerd.runtimes.{name}.options]\nBinaryName = '{WRAPPER if name == 'ascend' else ''}'\n"
    return text + more


def config(names=("runc", "ascend"), default="runc", **more):
    programs = {"ascend": WRAPPER}
    runtimes = {name: {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": programs.get(name, "")}} for name in names}
    return {"containerd": {"defaultRuntimeName": default, "runtimes": runtimes}, **more}


class Host:
    """A host in ``root``; the commands are answered here, files and CRI are real."""

    def __init__(self, root, module=containerd):
        self.root = root
        self.module = module
        self.servers = []
        self.unit = {"LoadState": "loaded", "ActiveState": "active", "MainPID": "0", "KillMode": "process", "CanReload": "no"}
        self.unit_name = "containerd.service"
        self.command = "/usr/bin/containerd"
        self.version = "1.6.20~ds1"
        self.dump = (0, dump(), "")
        self.calls = []
        self.copies = []
        for name in ("usr/bin/containerd", "usr/bin/systemctl"):
            self.write(name, "").chmod(0o755)
        self.socket = root / "run/containerd/containerd.sock"
        self.write("etc/containerd/config.toml", "version = 2\n")

    def write(self, path, text):
        path = self.root / str(path).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def process(
        self, pid, *, words=("/usr/bin/containerd",), comm="containerd", exe="/usr/bin/containerd", unit="containerd.service", cwd="/"
    ):
        place = self.root / "proc" / str(pid)
        place.mkdir(parents=True)
        (place / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        (place / "comm").write_text(comm[:15] + "\n")
        (place / "cgroup").write_text(f"0::/system.slice/{unit}\n" if unit else "0::/user.slice/session-1.scope\n")
        for name, target in (("exe", exe), ("cwd", cwd)):
            os.symlink(target, place / name)

    def run(self, argv, timeout, cwd=None, **_more):
        self.calls.append(argv)
        name = os.path.basename(argv[0])
        answer = (0, "", "")
        if name == "systemctl" and argv[1] == "show":
            facts = dict(self.unit) if argv[2] == self.unit_name else {"LoadState": "not-found"}
            facts["ExecStart"] = "{ path=x ; argv[]=" + self.command + " ; ignore_errors=no ; }"
            answer = (0, "".join(f"{key}={value}\n" for key, value in facts.items()), "")
        elif "--version" in argv:
            answer = (0, f"containerd github.com/containerd/containerd {self.version} 1.6.20~ds1-1\n", "")
        elif argv[-2:] == ["config", "dump"]:
            path = argv[argv.index("--config") + 1]
            self.copies.append((path, Path(path).read_text(), cwd))
            answer = self.dump if not callable(self.dump) else self.dump(path)
        elif argv[-2:] == ["config", "default"]:
            answer = (0, dump(names=("runc",)), "")
        said = answer[2].replace("COPY", self.copies[-1][0] if self.copies else "")
        return Result(argv, answer[0], answer[1], said, answer[0] is None, 0.1)

    def engine(self, wanted=None):
        return self.module.Engine(self.run, str(self.root), 5, 5, wanted)

    def serve(self, config=None, *, path=None, pods=b"", answers=None, services=(V1,), number="1.6.20~ds1", name="containerd", **more):
        """Answer over CRI at the engine's socket."""
        full = {"Version": version(number, name), "Status": status(config, **more), "ListPodSandbox": pods} if answers is None else answers
        path = path or self.socket
        # A relative path, for that of a temporary folder is longer than a socket's may be.
        where = os.getcwd()
        path.parent.mkdir(parents=True, exist_ok=True)
        os.chdir(path.parent)
        try:
            self.servers.append(Server(path.name, full, services))
        finally:
            os.chdir(where)

    def stop(self):
        for server in self.servers:
            server.stop()
