# SPDX-License-Identifier: GPL-3.0-or-later
"""Small self-extracting packages with any content, for tests of what is read out of them."""

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile

HEADER = """#!/bin/sh
# This script was generated using Makeself 2.4.5
{sha}label="{label}"
filesizes="{size}"
skip="{lines}"
exit 0
"""
DRIVER = "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"
FIRMWARE = "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run"
TOOLKIT = "Ascend-cann-toolkit_8.5.0_linux-x86_64.run"
OPS = "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run"
RUNTIME = "Ascend-docker-runtime_7.3.0_linux-x86_64.run"

DRIVER_FILES = {
    "./version.info": "version=25.5.0\n",
    "./driver/version.info": "Version=25.5.0\npackage_version=25.5.0\n",
    "./driver/scene.info": "os=linux\nos_version=any\narch=x86_64\n",
}
FIRMWARE_FILES = {"./firmware/version.info": "Version=7.8.0.5.216\nfirmware_version=1.0\npackage_version=25.5.0\n"}
FIRMWARE_LABEL = "ASCEND-HDK-910B-NPU FIRMWARE RUN PACKAGE"
PACK = {
    "gzip": lambda data: gzip.compress(data, mtime=0), "bzip2": bz2.compress, "xz": lzma.compress, "none": bytes,
    "zstd": lambda data: b"\x28\xb5\x2f\xfd" + data,
}


def content(files, compression="gzip", label="ASCEND_RUN_PACKAGE", with_sha=True):
    """Return the bytes of a package with these files ({name: text})."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            data = text if isinstance(text, bytes) else text.encode()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    payload = PACK[compression](buffer.getvalue())
    sha = f'SHA="{hashlib.sha256(payload).hexdigest()}"\n' if with_sha else ""
    lines = HEADER.count("\n") + bool(sha)
    return HEADER.format(label=label, size=len(payload), lines=lines, sha=sha).encode() + payload


def write(path, files, **options):
    """Write a package and return its sha256."""
    data = content(files, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def depot(folder, arch="x86_64"):
    """A depot with one good set for a2; {component: sha256}."""
    tail = arch if arch == "aarch64" else "x86-64"
    driver = {name: text.replace("x86_64", arch) for name, text in DRIVER_FILES.items()}
    return {
        "driver": write(folder / DRIVER.replace("x86-64", tail), driver, label="ASCEND-HDK_DRIVER_RUN_PACKAGE"),
        "firmware": write(folder / FIRMWARE, FIRMWARE_FILES, label=FIRMWARE_LABEL),
        "cann_toolkit": write(folder / TOOLKIT.replace("x86_64", arch), {"./toolkit/version.info": "Version=8.5.0\n"}),
        "cann_kernels": write(folder / OPS.replace("x86_64", arch), {"./opp/kernel/ascend910b/add.o": "x"}),
        "docker_runtime": write(folder / RUNTIME.replace("x86_64", arch), {"./bin/ascend-docker-runtime": "x"}),
    }
