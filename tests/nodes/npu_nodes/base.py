# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of all nodes: a Debian tree by mmdebstrap, kept as a tar file under a name made of everything that shaped it."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import machine
from .run import NodesError, run, say


@dataclass(frozen=True)
class Suite:
    """A Debian release as base of nodes: what it needs beyond the packages of all, and what its engines are."""

    engines: str
    packages: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    security: bool = True


SUITE = "bookworm"
SUITES = {
    "bookworm": Suite("docker 20.10, containerd 1.6"),
    # docker's client is a package of its own from here on, and e2fsprogs (chattr) no longer part of every system.
    "trixie": Suite("docker 26.1, containerd 1.7", packages=("docker-cli", "e2fsprogs")),
    # A mirror that stands still (a snapshot) has a Release file of sid that is past its date.
    # Nor is rev of util-linux.
    "sid": Suite("docker 28.5, containerd 2.1", packages=("bsdextrautils", "docker-cli", "e2fsprogs"),
                 options=('Acquire::Check-Valid-Until "false"',), security=False),
}
FILES = Path(__file__).parent / "files"
PACKAGES = (
    "busybox-static", "ca-certificates", "containerd", "dbus", "docker.io", "iproute2", "iptables", "kmod", "libcjson1", "net-tools",
    "openssh-server", "pciutils", "procps", "python3", "python3-apt", "runc", "sudo", "systemd", "systemd-sysv", "udev",
)  # fmt: skip
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
BUILD_TIMEOUT = 1800
KEPT = 2  # half a gigabyte each


def wanted_packages(extra: Iterable[str], suite: str = SUITE) -> list[str]:
    return sorted({*PACKAGES, *SUITES[suite].packages, *(name for name in extra if name)})


def cache_key(packages: Iterable[str], arch: str, setup: str, suite: str = SUITE) -> str:
    """Name of the base: the mirror is not part of it, for it only says where the same packages come from."""
    text = "\n".join([suite, arch, *LEFT_OUT, *sorted(packages), setup])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def build_argv(out: Path, packages: Iterable[str], suite: str = SUITE) -> list[str]:
    argv = ["mmdebstrap", "--variant=minbase", "--format=tar", "--include=" + ",".join(packages)]
    argv += ["--aptopt=Acquire::Retries \"3\"", "--aptopt=APT::Install-Recommends \"false\""]
    argv += [f"--aptopt={option}" for option in SUITES[suite].options]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    argv += [f'--customize-hook=sh {shlex.quote(str(FILES / "setup-base.sh"))} "$1"', suite, str(out), "-"]
    return argv


def lines_for_mirror(suite: str = SUITE) -> list[str]:
    given = os.environ.get("NPU_NODES_MIRROR")
    if given:
        return [f"deb {given} {suite} main"]
    lines = machine.debian_lines(machine.machine_sources(), suite, SUITES[suite].security)
    if not lines:
        raise NodesError(
            f"no Debian mirror for {suite} in /etc/apt/sources.list or /etc/apt/sources.list.d; name one: export NPU_NODES_MIRROR=URL"
        )
    return lines


def ensure(cache: Path, workplace: Path, log: Path, extra: Iterable[str] = (), suite: str = SUITE) -> tuple[str, Path]:
    """The base's key and its tar file, built in `workplace` if it is not in the cache; each suite but the usual one has a folder there."""
    packages = wanted_packages(extra, suite)
    key = cache_key(packages, platform.machine(), (FILES / "setup-base.sh").read_text(), suite)
    cache = cache if suite == SUITE else cache / suite
    tar = cache / f"base-{key}.tar"
    if tar.exists():
        say(f"base {key}: from the cache")
        return key, tar
    lines = lines_for_mirror(suite)
    say(f"base {key}: building Debian {suite} with {len(packages)} packages by mmdebstrap, about a minute; log {log}")
    shutil.rmtree(workplace, ignore_errors=True)
    workplace.mkdir(parents=True)
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = cache / f".base-{key}.{os.getpid()}"
    try:
        built = workplace / "base.tar"
        run(build_argv(built, packages, suite), BUILD_TIMEOUT, stdin="\n".join(lines) + "\n", log=log, env={"TMPDIR": str(workplace)})
        shutil.move(built, unfinished)  # the cache may lie on another file system
        unfinished.replace(tar)
        for old in sorted(cache.glob("base-*.tar"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink()
    finally:
        unfinished.unlink(missing_ok=True)
        shutil.rmtree(workplace, ignore_errors=True)
    say(f"base {key}: built, {tar.stat().st_size >> 20} MiB")
    return key, tar
