# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packs the agent for one kind of node: its code, the hardware library and the wheels for that node's Python and architecture.

The same input gives the same bytes on every controller, so the checksum says whether a node has it already. Private to the collection.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import namedtuple
from pathlib import Path

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "roles" / "npu_agent" / "files" / "npu_agent"
HARDWARE = ROOT / "plugins" / "module_utils" / "_hardware"
LOWEST_PYTHON = (3, 9)
PIP_SECONDS = 600
KEPT = 12  # archives in the cache: several Pythons and architectures, and the versions before
LAYOUT = 2  # part of the cache key: raise it when this file packs differently

#: Words for one architecture: of `uname -m`, of the vendor's packages, of Debian.
ARCHITECTURES = {"x86_64": "x86_64", "x86-64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")

NO_PIP = (
    f"Give Ansible's own Python a pip: `{sys.executable} -m ensurepip`, or `apt-get install python3-pip` for a system's Python, "
    "or `pipx inject ansible-core pip`."
)

LAUNCHER = """#!{python} -I
import os
import sys

home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path[:0] = [home, os.path.join(home, "site-packages")]

from npu_agent.__main__ import main

sys.exit(main())
"""

Archive = namedtuple("Archive", "path sha256 version folder")


def python_of(text):
    """(major, minor) of '3.11' or '3.11.2'; FleetError for what the agent cannot run on."""
    match = re.match(r"^(\d+)\.(\d+)(\.|$)", str(text))
    if match is None:
        raise FleetError(f"{text!r} is no Python version.", "python_version", hint="Give it as 3.11, for example.")
    found = int(match.group(1)), int(match.group(2))
    if found < LOWEST_PYTHON:
        raise FleetError(
            f"The agent needs Python {LOWEST_PYTHON[0]}.{LOWEST_PYTHON[1]} or newer on the node; this one is {text}.", "python_version",
            observed=str(text), hint="Install a newer one beside it and set npu_agent_python to its path.",
        )
    return found


def requirements(python, part="python"):
    """The pinned requirements for a Python: the newest file that is not newer than it. part: "labels-python" for what images have more."""
    found = {tuple(map(int, path.stem[len(part):].split("."))): path for path in (PACKAGE / "requirements").glob(f"{part}*.txt")}
    return found[max(version for version in found if version <= python)]


def agent_version():
    return re.findall(r'^__version__ = "([^"]+)"', (PACKAGE / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)[0]


def sources():
    """{path in the archive: bytes} of our own code; the hardware library is the one that the modules use, not a copy kept by hand."""
    files = {}
    for folder, target in ((PACKAGE, "npu_agent"), (HARDWARE, "npu_agent/_hardware")):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in (".py", ".proto", ".json"):
                files[f"{target}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return files


def write_sources(target):
    """Lay our own code out as a package, for running it from a checkout."""
    for name, data in sources().items():
        path = Path(target) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def pack(python_version, arch, cache_dir, *, wheelhouse=None, python="/usr/bin/python3", pip=None, labels=False):
    """The archive for nodes with this Python and architecture: Archive(path, sha256, version, folder).

    sha256 is that of the tar stream inside, since compressors differ between controllers; folder is its name under /opt/npu-agent.
    wheelhouse: a folder with the wheels, for controllers without a package index. pip: command to use instead of `python -m pip`.
    labels: with what `npu-agent labels` needs; for images.
    """
    version = python_of(python_version)
    if arch not in ARCHITECTURES:
        raise FleetError(f"{arch} is not an architecture that the agent has wheels for.", "architecture", observed=arch,
                         hint="There are x86_64 and aarch64.")
    if not python.startswith("/"):
        raise FleetError(f"The node's Python must be an absolute path, not {python!r}.", "python_path", observed=python)
    cache = Path(cache_dir).expanduser()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / "lock"):
            parts = ("python", "labels-python") if labels else ("python",)
            wanted = [requirements(version, part) for part in parts]
            wheels = fetch(version, ARCHITECTURES[arch], cache / "wheels", wanted=wanted, wheelhouse=wheelhouse, pip=pip)
            return assemble(version, ARCHITECTURES[arch], wheels, python, cache / "archives")
    except OSError as error:
        raise FleetError(f"The agent could not be packed in {cache}: {error}.", "cache", object=str(cache),
                         hint="Set npu_agent_cache_dir to a folder that this user may write.") from error


@contextlib.contextmanager
def locked(path):
    """One packer at a time: Ansible's forks all want the same archive."""
    with open(path, "w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def fetch(version, arch, cache, *, wanted, wheelhouse, pip):
    """Paths of the wheels, sorted; downloaded once for each set of pins (wanted: files of requirements)."""
    key = hashlib.sha256(b"".join(path.read_bytes() for path in wanted) + str(wheelhouse or "").encode()).hexdigest()[:12]
    folder = cache / f"python{version[0]}.{version[1]}-{arch}-{key}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=cache))
        try:
            download(version, arch, temporary, wanted=wanted, wheelhouse=wheelhouse, pip=pip or [sys.executable, "-m", "pip"])
            temporary.chmod(0o755)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return sorted(folder.glob("*.whl"))


def download(version, arch, target, *, wanted, wheelhouse, pip):
    kind = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", f"{version[0]}.{version[1]}"]
    kind += [word for platform in PLATFORMS for word in ("--platform", f"{platform}_{arch}")]
    kind += [word for path in wanted for word in ("--requirement", str(path))]
    command = [*pip, "download", "--quiet", "--disable-pip-version-check", "--no-input", *kind, "--dest", str(target)]
    elsewhere = (
        f"Where the controller has no package index: `pip download {' '.join(kind)} --dest wheels` on a machine that has one, copy that "
        "folder to the controller and set npu_agent_wheelhouse to its path."
    )
    if wheelhouse:
        command += ["--no-index", "--find-links", str(Path(wheelhouse).expanduser())]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FleetError(f"The agent's wheels could not be fetched: {error}.", "wheels", object=str(wanted[0]), hint=elsewhere) from error
    if done.returncode != 0:
        no_pip = "No module named pip" in done.stderr
        said = " ".join(line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module named" in line) or done.stderr
        raise FleetError(
            f"The agent's wheels for Python {version[0]}.{version[1]} on {arch} could not be fetched: {said.strip()[-600:]}", "wheels",
            object=str(wanted[0]), observed=f"status {done.returncode}",
            hint=NO_PIP if no_pip else elsewhere,
        )


def wheel_members(path):
    """{path under site-packages: bytes} of a wheel; its scripts are not wanted."""
    files = {}
    with zipfile.ZipFile(path) as wheel:
        for member in wheel.infolist():
            parts = member.filename.split("/")
            if member.is_dir():
                continue
            if parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue
                parts = parts[2:]
            if ".." in parts or parts[0] == "":
                raise FleetError(f"{path.name} has a member with an unsafe name: {member.filename}.", "wheels", object=str(path))
            files["/".join(parts)] = wheel.read(member)
    return files


def assemble(version, arch, wheels, python, cache):
    files = sources()
    files["bin/npu-agent"] = LAUNCHER.format(python=python).encode()
    digest = hashlib.sha256(f"{LAYOUT} {version} {arch}".encode())
    for name, data in sorted(files.items()):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    for wheel in wheels:
        digest.update(f"{wheel.name} {wheel.stat().st_size}\n".encode())
    note = cache / f"{digest.hexdigest()[:20]}.json"
    known = read_note(note)
    if known is not None:
        return known
    for wheel in wheels:
        for name, data in wheel_members(wheel).items():
            files[f"site-packages/{name}"] = data
    return write_archive(files, agent_version(), f"python{version[0]}.{version[1]}-{arch}", cache, note)


def read_note(note):
    try:
        archive = Archive(**json.loads(note.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return archive if os.path.isfile(archive.path) else None


def write_archive(files, version, kind, cache, note):
    cache.mkdir(parents=True, exist_ok=True)
    data = tar(files)
    sha256 = hashlib.sha256(data).hexdigest()
    folder = f"{version}-{sha256[:8]}"
    path = cache / f"npu-agent-{folder}-{kind}.tar.gz"
    temporary = cache / f".{path.name}.new"
    with open(temporary, "wb") as raw, gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as stream:
        stream.write(data)
    temporary.rename(path)
    archive = Archive(str(path), sha256, version, folder)
    temporary = cache / f".{note.name}.new"
    temporary.write_text(json.dumps(archive._asdict()), encoding="utf-8")
    temporary.rename(note)
    for old in sorted(cache.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink()  # its note then counts for nothing
    return archive


def tar(files):
    """A tar stream that depends on names and contents alone: sorted, no times, root's, fixed modes."""
    folders = {parent.as_posix() for name in files for parent in Path(name).parents} - {"."}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(folders | set(files)):
            member = tarfile.TarInfo(name)
            if name in folders:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
                continue
            member.size, member.mode = len(files[name]), 0o755 if name.startswith("bin/") else 0o644
            archive.addfile(member, io.BytesIO(files[name]))
    return stream.getvalue()
