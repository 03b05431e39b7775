# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the agent's image on the controller, with whatever builder is there, and keeps it as one archive. Private to the collection.

The name says what is in it: the agent's version, a hash of packed files, Dockerfile and the base's name, and the base's id where the
builder tells it: a base that was renewed under its name makes another image. A second run finds the archive by that and builds nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive

DOCKERFILE = _agent_archive.ROOT / "roles" / "npu_agent" / "files" / "image" / "Dockerfile"
BASE = "docker.io/library/python:3.11-slim-bookworm"
NAME = "localhost/npu-fleet/npu-agent"
BUILDERS = ("docker", "podman")
#: How images call what `uname -m` says.
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
SECONDS = 1800
KEPT = 6


class Image(NamedTuple):
    """path: an archive for `docker load` and `ctr images import`. image_id: what an engine calls it. base_id: "" where it is not known."""

    name: str
    image_id: str
    path: str
    sha256: str
    size: int
    arch: str
    recipe: str = ""
    base_id: str = ""


Run = Callable[[list[str], int], subprocess.CompletedProcess]


def run(argv: list[str], seconds: int) -> subprocess.CompletedProcess:
    """One command of the builder, with nothing to read."""
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)


def find_builder(wanted: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """The program to build with; FleetError where there is none."""
    names = BUILDERS if wanted == "auto" else (wanted,)
    found = next((name for name in names if which(name)), None)
    if found is None:
        raise FleetError(f"There is no {' and no '.join(names)} on the controller to build the image with.", "image_builder",
                         hint="apt-get install docker.io, or podman; or build it on another machine and copy the archive and its .json "
                              "into the cache folder.")
    return found


def key_of(archive: Any, base: str, dockerfile: bytes) -> str:
    """What the tag says of the content."""
    return hashlib.sha256(f"{archive.sha256} {base} ".encode() + dockerfile).hexdigest()[:12]


def build(cache_dir: str, *, base: str = BASE, python_version: str = "3.11", arch: str = "x86_64", builder: str = "auto", name: str = NAME,
          wheelhouse: str | None = None, rebuild: bool = False, run: Run = run) -> tuple[Image, bool]:
    """(Image, whether it was built now)."""
    archive = _agent_archive.pack(python_version, arch, cache_dir, wheelhouse=wheelhouse, labels=True)
    arch = _agent_archive.ARCHITECTURES[arch]
    recipe = key_of(archive, base, DOCKERFILE.read_bytes())
    folder = Path(cache_dir).expanduser() / "images"
    with _agent_archive.locked(Path(cache_dir).expanduser() / "lock"):
        base_id = id_of_base(builder, base, run)
        known = None if rebuild else cached(folder, name, recipe, arch, base_id)
        if known is not None:
            return known, False
        program = find_builder(builder)
        if not base_id and tried(program, ["pull", base], run) is not None:
            base_id = id_of_base(builder, base, run)
        part = f"-{base_id.rpartition(':')[2][:8]}" if base_id else ""
        full = f"{name}:{archive.version}-{recipe}{part}-{PLATFORMS[arch].rpartition('/')[2]}"
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / f"{full.rpartition('/')[2].replace(':', '-')}.json"
        made = make(Order(program, full, archive, base, arch, note, run, recipe, base_id))
    for old in sorted(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink()
    return made, True


def tried(program: str, words: list[str], run: Run) -> str | None:
    """Standard output of a command of the builder, None where it fails: what it would tell is not needed then."""
    try:
        done = run([program, *words], SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return str(done.stdout).strip() if done.returncode == 0 else None


def id_of_base(builder: str, base: str, run: Run) -> str:
    """What the builder calls the base that it has under this name; "" where it has none, or where there is no builder."""
    try:
        program = find_builder(builder)
    except FleetError:
        return ""  # an archive that was copied into the cache needs none
    return tried(program, ["image", "inspect", "--format", "{{.Id}}", base], run) or ""


def cached(folder: Path, name: str, recipe: str, arch: str, base_id: str) -> Image | None:
    """The newest that was built so, on this very base where it is known."""
    for note in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        image = read_note(note)
        if image is not None and (image.recipe, image.arch) == (recipe, arch) and image.name.rpartition(":")[0] == name and (
                not base_id or image.base_id == base_id):
            return image
    return None


def read_note(note: Path) -> Image | None:
    """What was built before, if its archive is still all there, beside the note: both may have come from another machine."""
    try:
        image = Image(**json.loads(note.read_text(encoding="utf-8")))
        image = image._replace(path=str(note.with_suffix(".tar.gz")))
        return image if os.stat(image.path).st_size == image.size and checksum(Path(image.path)) == image.sha256 else None
    except (OSError, ValueError, TypeError):
        return None


class Order(NamedTuple):
    """What is to be built, and by what."""

    builder: str
    full: str
    archive: Any
    base: str
    arch: str
    note: Path
    run: Run
    recipe: str
    base_id: str


def make(order: Order) -> Image:
    """Build, try and save it."""
    builder, full = order.builder, order.full
    with tempfile.TemporaryDirectory(prefix="npu-image-") as scratch:
        context = Path(scratch) / "context"
        unpack(order.archive.path, context / "agent")
        shutil.copy(DOCKERFILE, context / "Dockerfile")
        must(order, ["build", "--network", "none", "--build-arg", f"BASE={order.base}", "--tag", full, str(context)], "image_build",
             f"The image could not be built on {order.base}",
             f"The base must be there (`{builder} pull {order.base}`) or reachable, and must have a python3 in its PATH.")
        attempt(order)
        image_id = must(order, ["image", "inspect", "--format", "{{.Id}}", full], "image_build", "The image is not there", "").strip()
        plain = Path(scratch) / "image.tar"
        must(order, ["save", "--output", str(plain), full], "image_save", "The image could not be saved",
             "Is there room in the folder for temporary files?")
        path = order.note.with_suffix(".tar.gz")
        sha256, size = compress(plain, path)
    image = Image(full, image_id if image_id.startswith("sha256:") else f"sha256:{image_id}", str(path), sha256, size, order.arch,
                  order.recipe, order.base_id)
    temporary = order.note.with_suffix(".new")
    temporary.write_text(json.dumps(image._asdict()), encoding="utf-8")
    temporary.rename(order.note)
    return image


def attempt(order: Order) -> None:
    """As in the pod: nothing to write, no rights, no network. A base with another Python shows here and not on a node."""
    argv = ["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", order.full]
    hint = ("The base needs a python3 of the version that the wheels are for (npu_image_python_version), and libstdc++; see "
            f"`{order.builder} run --rm --entrypoint python3 {order.full} --version`.")
    for words, wish in ((["--version"], order.archive.version), (["check", "--settings"], "kubelet_dir")):
        said = must(order, argv + words, "image_check", f"`npu-agent {' '.join(words)}` fails in the image", hint)
        if wish not in said:
            raise FleetError(f"`npu-agent {' '.join(words)}` in the image does not say {wish!r}.", "image_check", object=order.full,
                             observed=said[-200:], hint=hint)
    try_imports(order, hint)


def try_imports(order: Order, hint: str) -> None:
    """The compiled wheels: they tell of another Python, or of a C library that is too old, when they are loaded."""
    code = "import sys; sys.path.insert(0, '/opt/npu-agent/site-packages'); import grpc, yaml, google.protobuf, kubernetes.client"
    argv = ["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "--entrypoint", "python3", order.full, "-I", "-c", code]
    must(order, argv, "image_check", "The agent's libraries cannot be loaded in the image", hint)


def must(order: Order, words: list[str], code: str, wrong: str, hint: str) -> str:
    """Standard output of a command of the builder; FleetError with its last words."""
    try:
        done = order.run([order.builder, *words], SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FleetError(f"{wrong}: {error}.", code, object=order.builder, hint=hint) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-800:]
        raise FleetError(f"{wrong}: {said}", code, object=order.full, observed=f"status {done.returncode}", hint=hint)
    return str(done.stdout)


def unpack(path: str, target: Path) -> None:
    """The packed agent as a folder. The archive is our own; members are plain files and folders."""
    target.mkdir(parents=True)
    with tarfile.open(path) as members:
        for member in members.getmembers():
            place = target / member.name
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            stream = members.extractfile(member)
            place.write_bytes(stream.read() if stream else b"")
            place.chmod(member.mode)


def compress(plain: Path, path: Path) -> tuple[str, int]:
    """(sha256, size) of the archive that nodes get."""
    temporary = path.with_suffix(".new")
    with open(plain, "rb") as source, open(temporary, "wb") as raw, gzip.GzipFile(
            filename="", mode="wb", compresslevel=3, fileobj=raw, mtime=0) as stream:
        shutil.copyfileobj(source, stream, 1 << 20)
    temporary.rename(path)
    return checksum(path), os.stat(path).st_size


def checksum(path: Path) -> str:
    """sha256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
