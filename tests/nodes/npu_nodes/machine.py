# SPDX-License-Identifier: GPL-3.0-or-later
"""What the machine offers: capabilities, cgroup controllers, Debian mirror, tools. Pure functions over texts, and one look."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files.oci_shim import CAPABILITIES
from .run import SYSTEM_PATH, NodesError

WANTED_CONTROLLERS = ("cpu", "io", "memory", "pids")
# tool -> Debian package; docker's client is a package of its own from Debian 13 on.
TOOLS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
DEBIAN_CODENAMES = ("bullseye", "bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable")


@dataclass(frozen=True)
class Way:
    """How engines are run here: with or without the OCI shim, and why."""

    shim: bool
    reasons: tuple[str, ...]
    pure_v2: bool


def missing_capabilities(status: str, last: int) -> list[str]:
    mask = 0
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            mask = int(line.split()[1], 16)
    absent = [bit for bit in range(last + 1) if not mask >> bit & 1]
    return ["CAP_" + CAPABILITIES[bit] if bit < len(CAPABILITIES) else f"capability {bit}" for bit in absent]


def v2_controllers(proc_cgroups: str) -> set[str]:
    """Controllers that no cgroup v1 hierarchy has taken (hierarchy 0 in /proc/cgroups), by their v2 names."""
    found = set()
    for line in proc_cgroups.splitlines():
        fields = line.split()
        if len(fields) == 4 and not line.startswith("#") and fields[1] == "0" and fields[3] == "1":
            found.add("io" if fields[0] == "blkio" else fields[0])
    return found


def cgroup2_mounts(mountinfo: str) -> list[str]:
    return [line.split()[4] for line in mountinfo.splitlines() if " - cgroup2 " in line]


def decide_way(missing: list[str], controllers: set[str], mounts: list[str]) -> Way:
    reasons = [f"root lacks {name} in its bounding set" for name in missing]
    absent = [name for name in WANTED_CONTROLLERS if name not in controllers]
    if absent:
        reasons.append(f"cgroup v2 has no controller {', '.join(absent)}")
    return Way(bool(reasons), tuple(reasons), "/sys/fs/cgroup" in mounts)


def look() -> Way:
    status = Path("/proc/self/status").read_text()
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    mounts = cgroup2_mounts(Path("/proc/self/mountinfo").read_text())
    if mounts:
        controllers = set(Path(mounts[0], "cgroup.controllers").read_text().split())
    else:
        controllers = v2_controllers(Path("/proc/cgroups").read_text())
    return decide_way(missing_capabilities(status, last), controllers, mounts)


def describe(way: Way) -> str:
    cgroup = "the machine's own cgroup v2" if way.pure_v2 else "cgroup v2 mounted privately (the machine runs cgroup v1)"
    if way.shim:
        return f"{cgroup}; runc behind the OCI shim because {'; '.join(way.reasons)}"
    return f"{cgroup}; plain runc, for nothing is missing"


def missing_packages(present: Iterable[str], version_id: str) -> list[str]:
    """Debian packages to install for the tools that are not among `present`."""
    here = set(present)
    packages = {package for tool, package in TOOLS.items() if tool not in here}
    if "docker" not in here and version_id.isdigit() and int(version_id) >= 13:
        packages.add("docker-cli")
    return sorted(packages)


def check_tools() -> None:
    if os.geteuid() != 0:
        raise NodesError("engines, bridges and mounts need root; run the same command by `sudo`")
    present = [tool for tool in TOOLS if shutil.which(tool, path=SYSTEM_PATH)]
    packages = missing_packages(present, os_release().get("VERSION_ID", ""))
    if packages:
        raise NodesError(
            "missing on this machine; install by:\n  apt-get update && apt-get install --no-install-recommends -y " + " ".join(packages)
        )


def os_release(text: str | None = None) -> dict[str, str]:
    if text is None:
        try:
            text = Path("/etc/os-release").read_text()
        except OSError:
            return {}
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key: value.strip("\"'") for key, value in pairs}


@dataclass(frozen=True)
class Source:
    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str


def parse_deb822(text: str) -> list[Source]:
    """Entries of a *.sources file, comments and disabled ones left out."""
    found = []
    for stanza in re.split(r"\n\s*\n", "\n".join(line for line in text.splitlines() if not line.startswith("#"))):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t") and key:
                fields[key] += " " + line.strip()
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.lower()
                fields[key] = value.strip()
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() not in ("no", "false"):
            signed = fields.get("signed-by", "")
            for uri in fields.get("uris", "").split():
                found.append(
                    Source(uri, tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split()),
                           signed if signed.startswith("/") else "")
                )
    return found


def parse_one_line(text: str) -> list[Source]:
    """Entries of a sources.list file."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>[^#]+)", line)
        if match:
            signed = re.search(r"signed-by=(/\S+)", match["options"] or "")
            found.append(Source(match["uri"], (match["suite"],), tuple(match["components"].split()), signed.group(1) if signed else ""))
    return found


def debian_lines(sources: Iterable[Source], suite: str, with_security: bool = True) -> list[str]:
    """sources.list lines for `suite`: the machine's Debian mirror, and its security mirror where it and the suite have one."""
    archive = security = None
    for source in sources:
        if "main" not in source.components:
            continue
        if any(name in DEBIAN_CODENAMES for name in source.suites):
            archive = archive or source
        elif any(name.removesuffix("-security") in DEBIAN_CODENAMES for name in source.suites if name.endswith("-security")):
            security = security or source
    lines = []
    for source, name in ((archive, suite), (security, suite + "-security")):
        if source and (source is archive or with_security):
            signed = f"[signed-by={source.signed_by}] " if source.signed_by else ""
            lines.append(f"deb {signed}{source.uri} {name} main")
    return lines if archive else []


def machine_sources(apt: Path = Path("/etc/apt")) -> list[Source]:
    found = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.is_file():
            text = path.read_text(errors="replace")
            if path.suffix == ".sources":
                found += parse_deb822(text)
            elif path.suffix == ".list":
                found += parse_one_line(text)
    return found
