# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine of our own: containerd and dockerd in a private mount namespace with pure cgroup v2, apart from the machine's.

Everything it writes lies below one folder. What cannot lie there (a bridge, a cgroup, mount points that did not exist) is
named after that folder, so that `remove` finds it even if the run that made it was killed.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from . import machine
from .run import NodesError, end, processes, read_pid, run, say, tail, wait_until, write_pid

FILES = Path(__file__).parent / "files"
NETWORK_NAME = "nodes"
DAEMONS = ("containerd", "dockerd", "containerd-shim", "docker-proxy")
BUILDERS = ("mmdebstrap", "apt-get", "dpkg", "dpkg-deb", "tar")
BOUND_PLACES = ("/etc/docker", "/run/docker", "/run/containerd")
START_TIMEOUT = 60
QUICK = 120


class Engine:
    def __init__(self, folder: Path, subnet: ipaddress.IPv4Network):
        self.folder = folder
        self.home = folder / "engine"
        self.build = folder / "build"
        self.logs = folder / "log"
        self.subnet = subnet
        mark = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
        self.bridge = f"npu{mark}"
        self.cgroup = f"npu-nodes-{mark}"
        self.socket = self.home / "docker.sock"
        self.containerd_socket = self.home / "containerd.sock"

    # -- talking to it

    @property
    def env(self) -> dict[str, str]:
        """What a docker client needs to talk to this engine, and to nothing of the user's own set-up."""
        return {
            "DOCKER_HOST": f"unix://{self.socket}", "DOCKER_CONFIG": str(self.home / "client"), "DOCKER_BUILDKIT": "0",
            "DOCKER_CONTEXT": "", "DOCKER_TLS_VERIFY": "", "DOCKER_CERT_PATH": "",
        }  # fmt: skip

    def docker(
        self, *words: str, timeout: float = QUICK, check: bool = True, stdin: bytes | str | None = None, log: Path | None = None
    ) -> subprocess.CompletedProcess:
        if not self.alive():
            raise NodesError("the engine is not running; start it by `python3 tests/nodes/nodes.py prepare`")
        return run(["docker", *words], timeout, check=check, stdin=stdin, env=self.env, log=log)

    def alive(self) -> bool:
        return all(self._pid(name) for name in ("containerd", "dockerd")) and answers(self.socket)

    def _pid(self, name: str) -> int | None:
        return read_pid(self.home / f"{name}.pid")

    # -- starting

    def start(self, way: machine.Way) -> None:
        if self.alive():
            say("engine: running already")
            return
        self._check_place()
        left = self._leftovers()
        if left:
            say(f"engine: ending {len(left)} process(es) that an earlier run left")
            end(left, ((signal.SIGKILL, 20),))
            shutil.rmtree(self.build, ignore_errors=True)
        self._forget_run()
        self._write_settings(way)
        self._start_daemon("containerd", ["unshare", "--mount", "--propagation", "private", "sh", str(FILES / "engine-namespace.sh"),
                                          str(self.home / "private"), "containerd", "--config", str(self.home / "containerd.toml")],
                           self.containerd_socket)  # fmt: skip
        self._start_daemon("dockerd", ["nsenter", "--mount", f"--target={self._pid('containerd')}", "--", "dockerd",
                                       "--config-file", str(self.home / "daemon.json")], self.socket)  # fmt: skip
        wanted = "{{.Server.Version}}"
        version = self.docker("version", "--format", wanted).stdout.strip()
        say(f"engine: dockerd {version} at unix://{self.socket}")

    def _check_place(self) -> None:
        if len(str(self.containerd_socket) + ".ttrpc") > 100:
            raise NodesError(f"{self.folder} is too long a path for the engine's sockets; name a shorter one: export NPU_NODES_DIR=DIR")
        routes = json.loads(run(["ip", "-json", "-4", "route", "show"], 20).stdout or "[]")
        for route in routes:
            other, device = route.get("dst", "default"), route.get("dev")
            if other != "default" and device != self.bridge and ipaddress.ip_network(other, strict=False).overlaps(self.subnet):
                raise NodesError(
                    f"network {self.subnet} is taken on this machine by {other} on {device}; if that is the engine of another folder, run"
                    " `nodes.py destroy` with its NPU_NODES_DIR; else use another network: export NPU_NODES_NETWORK=10.213.0.0/16"
                )

    def _forget_run(self) -> None:
        """What a machine loses when it boots must not outlive the daemons either: they would take it for the truth."""
        for name in ("run", "private/run"):
            shutil.rmtree(self.home / name, ignore_errors=True)
        for path in (*self.home.glob("*.sock*"), *self.home.glob("*.pid")):
            path.unlink()

    def _write_settings(self, way: machine.Way) -> None:
        for name in ("run", "private", "client"):
            (self.home / name).mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        created = [place for place in BOUND_PLACES if not os.path.isdir(place)]
        record = self.home / "created-places.json"
        if record.exists():
            created = sorted({*created, *json.loads(record.read_text())})
        record.write_text(json.dumps(created))
        for place in created:
            os.makedirs(place, exist_ok=True)
        settings = {
            "data-root": str(self.home / "data"),
            "exec-root": str(self.home / "run/docker"),
            "pidfile": str(self.home / "run/docker-own.pid"),
            "hosts": [f"unix://{self.socket}"],
            "containerd": str(self.containerd_socket),
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": f"/{self.cgroup}",
            # The machine's firewall and routing stay as they are: nodes reach each other and the gateway, and nothing else.
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "dns": [str(next(self.subnet.hosts()))],
            "log-driver": "json-file",
            "log-opts": {"max-size": "5m", "max-file": "2"},
        }
        if way.shim:
            shim = self.home / "oci-shim"
            shim.write_text(f"#!{sys.executable} -IS\n" + (FILES / "oci_shim.py").read_text())
            shim.chmod(0o755)
            settings["runtimes"] = {"oci-shim": {"path": str(shim)}}
            settings["default-runtime"] = "oci-shim"
        (self.home / "daemon.json").write_text(json.dumps(settings, indent=2) + "\n")
        (self.home / "containerd.toml").write_text(
            f'version = 2\nroot = "{self.home}/containerd"\nstate = "{self.home}/run/containerd"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{self.containerd_socket}"\n'
        )

    def _start_daemon(self, name: str, argv: list[str], its_socket: Path) -> None:
        log = self.logs / f"{name}.log"
        with log.open("ab") as stream:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, cwd="/",
                env={"PATH": machine.SYSTEM_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root"},
            )  # fmt: skip
        write_pid(self.home / f"{name}.pid", child.pid)

        def up() -> bool:
            if child.poll() is not None:
                raise NodesError(f"{name} ended with {child.returncode}; the end of {log}:\n{tail(log)}")
            return answers(its_socket)

        try:
            wait_until(f"{name} answering at {its_socket}", up, START_TIMEOUT)
        except NodesError as error:
            child.kill()
            raise NodesError(f"{error}\nits log: {log}") from error

    def ensure_network(self) -> None:
        if NETWORK_NAME in self.docker("network", "ls", "--format", "{{.Name}}").stdout.split():
            return
        gateway = str(next(self.subnet.hosts()))
        options = {"com.docker.network.bridge.name": self.bridge, "com.docker.network.bridge.enable_ip_masquerade": "false"}
        flags = [f"--opt={key}={value}" for key, value in options.items()]
        self.docker("network", "create", "--driver=bridge", f"--subnet={self.subnet}", f"--gateway={gateway}", *flags, NETWORK_NAME)
        say(f"network: {self.subnet} on bridge {self.bridge}, gateway {gateway} is this machine")

    # -- ending

    def _leftovers(self) -> dict[int, str]:
        """Daemons, shims, node processes and half-done builds of this folder, told by command line, cgroup or root folder."""

        def fits(folder: Path) -> bool:
            if any(self.cgroup in line.split("/") for line in (folder / "cgroup").read_text().splitlines()):
                return True
            if os.readlink(folder / "root").startswith(f"{self.build}/"):
                return True
            name, words = (folder / "comm").read_text().strip(), os.fsdecode((folder / "cmdline").read_bytes())
            return (name.startswith(DAEMONS) and f"{self.home}/" in words) or (name in BUILDERS and f"{self.build}/" in words)

        return processes(fits)

    def stop(self) -> None:
        for name in ("dockerd", "containerd"):
            pid = self._pid(name)
            if pid:
                end(processes(lambda folder, pid=pid: folder.name == str(pid)), ((signal.SIGTERM, 20), (signal.SIGKILL, 10)))
        end(self._leftovers(), ((signal.SIGTERM, 5), (signal.SIGKILL, 20)))

    def remove(self) -> None:
        """Take everything away that the engine has outside its folder; the folder itself is the caller's."""
        if self.alive():
            nodes = self.docker("ps", "--all", "--quiet").stdout.split()
            if nodes:
                self.docker("rm", "--force", "--volumes", *nodes, timeout=300)
            self.docker("network", "rm", NETWORK_NAME, check=False)
        self.stop()
        if Path("/sys/class/net", self.bridge).exists():
            run(["ip", "link", "delete", self.bridge], 20)
        self._remove_cgroup()
        record = self.home / "created-places.json"
        if record.exists():
            for place in json.loads(record.read_text()):
                try:
                    os.rmdir(place)
                except OSError:
                    say(f"{place} was made by the engine's start, but is in use by now: left")

    def _remove_cgroup(self) -> None:
        """The cgroups of killed nodes stay; seen through a mount of our own, since the machine may show no v2 tree."""
        if not self.folder.is_dir():
            return
        view = self.folder / "cgroup-view"
        view.mkdir(exist_ok=True)
        script = 'mount -t cgroup2 none "$1" && if [ -d "$1/$2" ]; then find "$1/$2" -depth -type d -exec rmdir {} +; fi'
        run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(view), self.cgroup], 30)
        view.rmdir()


def answers(path: Path) -> bool:
    """Whether somebody accepts connections at a unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
