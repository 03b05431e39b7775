# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of the delivery share: wheels that stand for the real ones, an archive, a runner."""

import subprocess
import sys
import zipfile
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive

Result = namedtuple("Result", "argv rc stdout stderr timed_out seconds")
WHEELS = {"grpcio": "1.85.3", "prometheus_client": "0.26.0", "protobuf": "7.36.2", "PyYAML": "6.0.4", "typing_extensions": "4.16.0"}


def write_wheels(folder):
    """Tiny wheels with the pinned names, so that the packer meets pip but no index."""
    for name, version in WHEELS.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name.lower()}/__init__.py", f"version = {version!r}\n")
            wheel.writestr(f"{stem}.data/purelib/{name.lower()}_extra.py", "")
            wheel.writestr(f"{stem}.data/scripts/tool", "#!python\n")
            wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")


def pack(cache, wheelhouse, version="3.11", **more):
    return _agent_archive.pack(version, "x86_64", cache, wheelhouse=str(wheelhouse), python=sys.executable, **more)


def local_run(argv, timeout, **_unused):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    return Result(argv, done.returncode, done.stdout, done.stderr, False, 0)
