# SPDX-License-Identifier: GPL-3.0-or-later
"""One small image for a node's containerd, made without a registry: busybox, and a command, since a sandbox image must have one."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import tarfile

TINY = "localhost/npu-fleet/tiny:1"
APPLETS = ("sh", "ls", "cat", "env", "sleep", "stat", "true")
COMMAND = ["/bin/sleep", "2147483647"]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _add(tar: tarfile.TarFile, name: str, data: bytes = b"", mode: int = 0o644, link: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = mode, len(data)
    if link:
        entry.type, entry.linkname = tarfile.SYMTYPE, link
    tar.addfile(entry, io.BytesIO(data))


def archive(busybox: bytes, names: list[str]) -> bytes:
    """An image archive as `docker save` writes it (manifest.json), with all the names."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, "bin/busybox", busybox, 0o755)
        for applet in APPLETS:
            _add(tar, f"bin/{applet}", link="busybox")
    content = layer.getvalue()
    config = json.dumps({
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux",
        "config": {"Cmd": COMMAND, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest()]},
    }).encode()  # fmt: skip
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        _add(tar, config_name, config)
        _add(tar, "layer.tar", content)
        _add(tar, "manifest.json", json.dumps([{"Config": config_name, "RepoTags": names, "Layers": ["layer.tar"]}]).encode())
    return whole.getvalue()


def sandbox_image(dump: str) -> str:
    """The image that this containerd takes for pods, from `containerd config dump`; its place differs between versions 2 and 3."""
    found = re.search(r"""^\s*sandbox(?:_image)? = (["'])(\S+)\1\s*$""", dump, re.MULTILINE)
    if not found:
        raise ValueError("containerd config dump names no sandbox image")
    return found.group(2)
