# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes: systemd hosts in containers that boot, reboot, take ssh, run engines and count what is executed on them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import ipaddress
import json
import os
import re
import shutil
import socket
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import base, image, machine
from .engine import NETWORK_NAME, Engine
from .run import NodesError, run, say, tail, wait_until

DEFAULT_DIR = "/var/tmp/npu-fleet-nodes"
DEFAULT_NETWORK = "172.30.0.0/16"
GROUP = "npu_nodes"
LABEL = "npu-nodes.address"
MARKER = "this-folder-belongs-to-nodes.py"
CALL_LOG = "/var/log/node-calls.log"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_PER_NODE, INOTIFY_WANTED = 10, 8192  # systemd 6-7, the engines and a simulator the rest
BOOT_TIMEOUT = 120
START_LANES = 3


@dataclass(frozen=True)
class Call:
    """One remote execution on a node."""

    time: str
    user: str
    kind: str  # exec, sftp or login
    command: str


class Nodes:
    """The nodes of one folder. All methods raise NodesError with the way out in its text."""

    def __init__(self, folder: str | os.PathLike | None = None, network: str | None = None):
        self.folder = Path(folder or os.environ.get("NPU_NODES_DIR") or DEFAULT_DIR).absolute()
        try:
            self.subnet = ipaddress.IPv4Network(network or os.environ.get("NPU_NODES_NETWORK") or DEFAULT_NETWORK)
        except ValueError as error:
            raise NodesError(f"NPU_NODES_NETWORK: {error}; write it like {DEFAULT_NETWORK}") from error
        if self.subnet.prefixlen > 22:
            raise NodesError(f"network {self.subnet} is too small for fresh addresses; take a /22 or larger")
        self.gateway = str(next(self.subnet.hosts()))
        self.cache = Path(os.environ.get("NPU_NODES_CACHE") or self.folder / "cache")
        self.engine = Engine(self.folder, self.subnet)
        self.key = self.folder / "ssh" / "id_ed25519"
        self.known_hosts = self.folder / "ssh" / "known_hosts"

    # -- the folder

    @contextlib.contextmanager
    def _locked(self, name: str = "lock") -> Iterator[None]:
        """One change at a time. A lock file that `destroy` has removed meanwhile is not trusted: taken anew."""
        path = self.folder / name
        while True:
            self._claim()
            with path.open("a") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say("waiting for another run of nodes.py to end")
                    fcntl.flock(stream, fcntl.LOCK_EX)
                if path.exists() and os.fstat(stream.fileno()).st_ino == path.stat().st_ino:
                    yield
                    return

    def _claim(self) -> None:
        """Mark the folder as ours; a folder with other content is refused, since `destroy` removes it whole."""
        marker = self.folder / MARKER
        if self.folder.is_dir() and not marker.exists():
            strangers = {path.name for path in self.folder.iterdir()} - {"cache", "log"}
            if strangers:
                some = ", ".join(sorted(strangers)[:3])
                raise NodesError(f"{self.folder} holds other things ({some}); name an empty or new folder: export NPU_NODES_DIR=DIR")
        (self.folder / "log").mkdir(parents=True, exist_ok=True)
        marker.touch()

    def _state(self) -> dict:
        try:
            return json.loads((self.folder / "state.json").read_text())
        except FileNotFoundError:
            return {}

    def _remember(self, **values) -> None:
        fresh = self.folder / "state.json.new"
        fresh.write_text(json.dumps(self._state() | values, indent=2) + "\n")
        fresh.replace(self.folder / "state.json")

    # -- engine and images

    def prepare(self, packages: Iterable[str] = (), suite: str = base.SUITE) -> None:
        """Engine, network, ssh key and base; what exists already is used again."""
        check_suite(suite)
        machine.check_tools()
        way = machine.look()
        say(f"way: {machine.describe(way)}")
        with self._locked():
            self.engine.start(way)
            self.engine.ensure_network()
            if not self.key.exists():
                self.key.parent.mkdir(mode=0o700, exist_ok=True)
                run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "npu.fleet test nodes", "-f", str(self.key)], 30)
        # Two minutes in which others boot nodes: apart from the lock of everything else.
        with self._locked("building"):
            key, tar = base.ensure(self.cache, self.engine.build, self.engine.logs / "base.log", packages, suite)
            image.import_base(self.engine, key, tar)
        with self._locked():
            self._remember(**{base_name(suite): key})
        say("prepared")

    def image(self, overlays: Iterable[str | os.PathLike] = (), tag: str | None = None, suite: str = base.SUITE) -> str:
        check_suite(suite)
        with self._locked():
            key = self._state().get(base_name(suite))
            if not key:
                option = "" if suite == base.SUITE else f" --suite {suite}"
                raise NodesError(f"there is no base yet; run `python3 tests/nodes/nodes.py prepare{option}`")
            paths = [Path(path) for path in overlays]
            name = image.build(self.engine, key, paths, tag or default_tag(suite), machine.look().shim)
        say(f"image {name}: ready")
        return name

    def destroy(self, keep_cache: bool = False) -> None:
        """Nodes, images, engine, network, mounts and the folder: nothing stays. Works after a killed run, and twice."""
        if os.geteuid() != 0:
            raise NodesError("destroy needs root; run the same command by `sudo`")
        if not (self.folder / MARKER).exists():
            say(f"{self.folder} is not there or not ours: nothing to destroy")
            return
        with self._locked("building"), self._locked():
            self.engine.remove()
            old = self._state().get("inotify_instances")
            if old and INOTIFY.read_text().strip() == str(INOTIFY_WANTED):
                INOTIFY.write_text(str(old))
            for path in sorted(self.folder.iterdir()):
                if path.name in ("lock", MARKER) or (keep_cache and path == self.cache):
                    continue
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            # Last, so that a destroy cut short can be called again and a waiting run sees that its lock has gone.
            (self.folder / MARKER).unlink()
            (self.folder / "lock").unlink()
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        say("destroyed" + (f"; kept {self.cache}" if keep_cache else ""))

    # -- nodes

    def names(self) -> list[str]:
        return sorted(self._containers())

    def _containers(self) -> dict[str, str]:
        """Name -> address of every node, running or not."""
        wanted = f'{{{{.Names}}}} {{{{.Label "{LABEL}"}}}}'
        listed = self.engine.docker("ps", "--all", "--filter", f"label={LABEL}", "--format", wanted)
        return dict(line.split() for line in listed.stdout.splitlines())

    def ip(self, name: str) -> str:
        nodes = self._containers()
        if name not in nodes:
            raise NodesError(f"no node {name}; nodes here: {', '.join(sorted(nodes)) or 'none'}; make it by `nodes.py up {name}`")
        return nodes[name]

    def up(self, names: Sequence[str], tag: str = "latest") -> None:
        """Boot nodes until systemd says `running` and ssh answers with the key that we know. Existing ones are only awaited."""
        for name in names:
            check_name(name)
        with self._locked():
            if not image.has_image(self.engine, f"{image.REPOSITORY}:{tag}"):
                raise NodesError(f"there is no node image {tag}; run `python3 tests/nodes/nodes.py image [--overlay DIR]`")
            here = self._containers()
            fresh = [name for name in names if name not in here]
            self._raise_inotify(len(here) + len(fresh))
            for name in fresh:
                self._create(name, self._next_address(), tag)
        with ThreadPoolExecutor(START_LANES) as pool:
            list(pool.map(self._boot, names))
        with self._locked():
            self._write_known_hosts()

    def _raise_inotify(self, nodes: int) -> None:
        limit = int(INOTIFY.read_text())
        if nodes * INOTIFY_PER_NODE > limit and limit < INOTIFY_WANTED:
            say(f"{nodes} nodes need more than {limit} inotify instances: {INOTIFY} raised to {INOTIFY_WANTED} until destroy")
            INOTIFY.write_text(str(INOTIFY_WANTED))
            self._remember(inotify_instances=limit)

    def _next_address(self) -> str:
        """A new address for each node, never one of a node just removed: an open ssh master of that one would go astray."""
        first, size = 256, self.subnet.num_addresses - 2
        taken = set(self._containers().values())
        number = self._state().get("next_address", first)
        while str(self.subnet[number]) in taken or self.subnet[number].packed[3] in (0, 255):
            number = number + 1 if number + 1 < size else first
        self._remember(next_address=number + 1 if number + 1 < size else first)
        return str(self.subnet[number])

    def _create(self, name: str, address: str, tag: str) -> None:
        self.engine.docker(
            "create", "--name", name, "--hostname", name, "--label", f"{LABEL}={address}", "--network", NETWORK_NAME, "--ip", address,
            # No name server answers for the world outside: then a look-up shall fail soon, not after 20 s.
            "--dns-option", "timeout:1", "--dns-option", "attempts:1",
            "--privileged", "--cgroupns", "private", "--restart", "always", "--tmpfs", "/run", "--tmpfs", "/tmp:exec",
            f"{image.REPOSITORY}:{tag}",
        )  # fmt: skip
        self.engine.docker("cp", "-", f"{name}:/root", stdin=authorized_keys(self.key.with_suffix(".pub").read_bytes()))

    def _boot(self, name: str) -> None:
        started = time.monotonic()
        self.engine.docker("start", name)
        self._await(name)
        say(f"{name}: running at {self.ip(name)} after {time.monotonic() - started:.1f} s")

    def _await(self, name: str, not_boot: str | None = None) -> None:
        """Wait for a settled systemd, in a boot other than `not_boot`, and for sshd."""
        asked = 'cat /proc/sys/kernel/random/boot_id; systemctl is-system-running'
        seen = ["", "nothing yet"]

        def settled() -> bool:
            lines = self.engine.docker("exec", name, "sh", "-c", asked, check=False).stdout.split()
            seen[:] = [lines[0], lines[-1]] if lines else ["", "no answer"]
            return seen[1] in ("running", "degraded", "maintenance") and seen[0] != not_boot

        try:
            wait_until(f"{name}: systemd", settled, BOOT_TIMEOUT)
            if seen[1] != "running":
                failed = self.exec(name, ["systemctl", "--failed", "--no-legend", "--plain"], check=False).stdout.strip()
                raise NodesError(f"{name}: systemd is {seen[1]}, failed units:\n{failed}")
            address = self.ip(name)
            wait_until(f"{name}: sshd at {address}", lambda: banner(address).startswith("SSH-2.0-"), BOOT_TIMEOUT)
        except NodesError as error:
            log = self.engine.logs / f"{name}.log"
            log.write_text(
                self.engine.docker("logs", name, check=False).stderr
                + self.engine.docker("exec", name, "journalctl", "--no-pager", "-b", check=False).stdout
            )
            raise NodesError(f"{error}\n(last state: {seen[1]}) its journal: {log}; the end of it:\n{tail(log)}") from error

    def _write_known_hosts(self) -> None:
        """Host keys as the nodes have them on disk, asked through the engine: the network is not believed."""
        lines = []
        for name, address in sorted(self._containers().items()):
            key = self.engine.docker("exec", name, "cat", HOST_KEY, check=False).stdout.split()
            if len(key) >= 2:
                lines.append(f"{address},{name} {key[0]} {key[1]}\n")
        fresh = self.known_hosts.with_suffix(".new")
        fresh.write_text("".join(lines))
        fresh.replace(self.known_hosts)

    def down(self, names: Sequence[str] = ()) -> None:
        """Remove nodes with their volumes; all of them if none is named. Unknown names are fine."""
        with self._locked():
            here = self._containers()
            gone = [name for name in (names or here) if name in here]
            if gone:
                self.engine.docker("rm", "--force", "--volumes", *gone, timeout=60 + 10 * len(gone))
                self._write_known_hosts()
        say(f"removed {', '.join(gone)}" if gone else "no such node: nothing removed")

    def exec(
        self, name: str, argv: Sequence[str], timeout: float = 120, check: bool = True, stdin: bytes | str | None = None
    ):
        """Run a command on a node through the engine: not seen by the counter."""
        flags = ["--interactive"] if stdin is not None else []
        return self.engine.docker("exec", *flags, name, *argv, timeout=timeout, check=check, stdin=stdin)

    def boot_id(self, name: str) -> str:
        return self.exec(name, ["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()

    def reboot(self, name: str) -> None:
        before = self.boot_id(name)
        started = time.monotonic()
        self.exec(name, ["systemctl", "reboot"], check=False)
        self._await(name, not_boot=before)
        say(f"{name}: rebooted in {time.monotonic() - started:.1f} s, boot id {before} -> {self.boot_id(name)}")

    def calls(self, name: str) -> list[Call]:
        self.ip(name)
        return parse_calls(self.exec(name, ["cat", CALL_LOG]).stdout)

    def reset_calls(self, name: str) -> None:
        self.ip(name)
        self.exec(name, ["truncate", "--size", "0", CALL_LOG])

    def ssh_args(self) -> list[str]:
        """Arguments for ssh that make it check host keys against ours and nothing else."""
        return ["-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes",
                "-o", "IdentitiesOnly=yes"]  # fmt: skip

    def inventory(self, names: Sequence[str] = ()) -> dict:
        here = self._containers()
        for name in names:
            self.ip(name)
        hosts = {name: {"ansible_host": address} for name, address in sorted(here.items()) if not names or name in names}
        variables = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": " ".join(self.ssh_args()),
        }
        return {GROUP: {"hosts": hosts, "vars": variables}}


def check_suite(suite: str) -> None:
    if suite not in base.SUITES:
        raise NodesError(f"no base system {suite}; there are {', '.join(base.SUITES)}")


def base_name(suite: str) -> str:
    """What the state file calls the base of a suite."""
    return "base" if suite == base.SUITE else f"base-{suite}"


def default_tag(suite: str) -> str:
    """The image that is meant where no tag is named."""
    return "latest" if suite == base.SUITE else suite


def check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,61}[a-z0-9]", name):
        raise NodesError(f"{name!r} is no host name for a node: small letters, digits and -, two characters or more, a letter first")


def numbered(name: str, count: int | None) -> list[str]:
    """`up npu --count 3` means npu1, npu2 and npu3."""
    return [name] if count is None else [f"{name}{number}" for number in range(1, count + 1)]


def authorized_keys(public: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo(".ssh")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(folder)
        image.add_bytes(tar, ".ssh/authorized_keys", public, 0o600)
    return buffer.getvalue()


def parse_calls(text: str) -> list[Call]:
    calls = []
    for line in text.splitlines():
        fields = line.split(" ", 3)
        if len(fields) == 4:
            calls.append(Call(*fields))
    return calls


def to_yaml(data: dict, indent: int = 0) -> str:
    """Nested mappings of strings as YAML; strings in JSON's quotes, which YAML reads as they are."""
    lines = []
    for key, value in data.items():
        lead = "  " * indent + f"{key}:"
        if isinstance(value, dict):
            lines.append(f"{lead}\n{to_yaml(value, indent + 1)}" if value else f"{lead} {{}}\n")
        else:
            lines.append(f"{lead} {json.dumps(value)}\n")
    return "".join(lines)


def banner(address: str) -> str:
    try:
        with socket.create_connection((address, 22), timeout=2) as connection:
            return connection.recv(64).decode("ascii", "replace")
    except OSError:
        return ""
