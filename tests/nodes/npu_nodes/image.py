# SPDX-License-Identifier: GPL-3.0-or-later
"""The node image: the base, the files that make a container behave like a host, and the caller's overlays."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

from .engine import Engine
from .run import NodesError, say

FILES = Path(__file__).parent / "files"
HOME = "usr/local/lib/npu-nodes"
REPOSITORY = "npu-nodes/node"
BASE_REPOSITORY = "npu-nodes/base"
# Debian has these as links into /usr; a folder of that name in an overlay would replace the link and break the system.
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
BUILD_TIMEOUT = 600


def merged_usr(name: str) -> str:
    first = name.split("/", 1)[0]
    return f"usr/{name}" if first in MERGED else name


def add_bytes(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def own_files(shim: bool) -> bytes:
    """Our part of the image as a tar file; the shim only where the machine needs it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in ("init-host", "call-log", "setup-image"):
            add_bytes(tar, f"{HOME}/{name}", (FILES / f"{name}.sh").read_bytes(), 0o755)
        add_bytes(tar, "etc/ssh/sshd_config.d/10-node.conf", (FILES / "sshd-node.conf").read_bytes(), 0o644)
        if shim:
            add_bytes(tar, f"{HOME}/oci-shim", b"#!/usr/bin/python3 -IS\n" + (FILES / "oci_shim.py").read_bytes(), 0o755)
    return buffer.getvalue()


def overlay_tar(folder: Path) -> bytes:
    """An overlay as a tar file that is the same for the same content: sorted, owned by root, without times."""
    if not folder.is_dir():
        raise NodesError(f"overlay {folder} is not a folder; build it first, then run `nodes.py image --overlay {folder}` again")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if name in MERGED and path.is_dir() and not path.is_symlink():
                continue
            entry = tar.gettarinfo(path, merged_usr(name))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = "root"
            if entry.isreg():
                with path.open("rb") as stream:
                    tar.addfile(entry, stream)
            else:
                tar.addfile(entry)
    return buffer.getvalue()


def dockerfile(base: str, tars: Iterable[str]) -> str:
    lines = [f"FROM {BASE_REPOSITORY}:{base}"]
    lines += [f"ADD {name} /" for name in tars]
    lines += [
        f'RUN ["/bin/sh", "/{HOME}/setup-image"]',
        'VOLUME ["/var/lib/docker", "/var/lib/containerd"]',
        "ENV container=docker",
        "STOPSIGNAL SIGRTMIN+3",
        f'CMD ["/{HOME}/init-host"]',
    ]
    return "\n".join(lines) + "\n"


def has_image(engine: Engine, name: str) -> bool:
    return engine.docker("image", "inspect", "--format", "{{.Id}}", name, check=False).returncode == 0


def import_base(engine: Engine, key: str, tar: Path) -> None:
    name = f"{BASE_REPOSITORY}:{key}"
    if not has_image(engine, name):
        say(f"base {key}: importing")
        engine.docker("import", str(tar), name, timeout=BUILD_TIMEOUT)


def build(engine: Engine, base: str, overlays: list[Path], tag: str, shim: bool) -> str:
    """Build the node image and give it its tag; an image of the same inputs is used again. Returns its name."""
    parts = {"node.tar": own_files(shim)} | {f"overlay-{number}.tar": overlay_tar(path) for number, path in enumerate(overlays)}
    recipe = dockerfile(base, parts)
    mark = hashlib.sha256(recipe.encode())
    for data in parts.values():
        mark.update(hashlib.sha256(data).digest())
    name = f"{REPOSITORY}:{mark.hexdigest()[:12]}"
    if has_image(engine, name):
        say(f"image {name}: nothing has changed")
    else:
        say(f"image {name}: building from base {base}" + "".join(f" + {path}" for path in overlays))
        context = engine.folder / f"context-{os.getpid()}"
        try:
            context.mkdir()
            for file, data in parts.items():
                (context / file).write_bytes(data)
            (context / "Dockerfile").write_text(recipe)
            engine.docker("build", "--network", "none", "--tag", name, str(context), timeout=BUILD_TIMEOUT, log=engine.logs / "image.log")
        finally:
            shutil.rmtree(context, ignore_errors=True)
    engine.docker("tag", name, f"{REPOSITORY}:{tag}")
    return f"{REPOSITORY}:{tag}"
