#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the kubelet stand-in: an overlay for a node image with systemd.

DIR/rootfs/              /opt/kubelet-standin (code and wheels), /usr/bin/kubelet, /usr/local/bin/kubelet-ctl, kubelet.service (enabled)
DIR/rootfs/debian-packages.txt  Debian packages the node needs for it
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = Path("opt/kubelet-standin")
UNITS = Path("etc/systemd/system")
REQUIREMENTS = ["grpcio==1.80.1", "typing_extensions==4.16.0"]  # grpcio: the last one that also has wheels for Python 3.9

UNIT = """[Unit]
Description=Kubelet stand-in (device plugins, PodResources, node status)
After=network.target

[Service]
Environment=KUBELET_STANDIN_STATUS_SECONDS={status_seconds}
# As kubeadm's packages do it: who wants another engine says so in this file.
Environment=KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/cri-dockerd.sock
EnvironmentFile=-/etc/default/kubelet
ExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""
COMMAND = """#!/usr/bin/python3
import sys

sys.path[:0] = ["/opt/kubelet-standin", "/opt/kubelet-standin/site-packages"]

from kubelet_standin.{module} import main

sys.exit(main())
"""


def fetch(python_version: str, arch: str, cache: Path) -> list[Path]:
    """The wheels, downloaded once into `cache`."""
    folder = cache / f"python{python_version}-{arch}"
    if not folder.is_dir():
        temporary = folder.with_name(folder.name + ".new")
        shutil.rmtree(temporary, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
                   "--implementation", "cp", "--python-version", python_version, "--dest", str(temporary)]
        for platform in ("manylinux2014", "manylinux_2_17", "manylinux_2_28"):
            command += ["--platform", f"{platform}_{arch}"]
        subprocess.run([*command, *REQUIREMENTS], check=True)
        temporary.rename(folder)
    return sorted(folder.glob("*.whl"))


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def build(out: Path, python_version: str, arch: str, status_seconds: float) -> None:
    root = out / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    for wheel in fetch(python_version, arch, out / "wheels"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root / HOME / "site-packages")
    for source in sorted((HERE / "kubelet_standin").glob("*.py")):
        write(root / HOME / "kubelet_standin" / source.name, source.read_text())
    write(root / "usr/local/bin/kubelet-ctl", COMMAND.format(module="ctl"), 0o755)
    write(root / "usr/bin/kubelet", COMMAND.format(module="kubelet"), 0o755)
    write(root / UNITS / "kubelet.service", UNIT.format(status_seconds=f"{status_seconds:g}"))
    wanted = root / UNITS / "multi-user.target.wants/kubelet.service"
    wanted.parent.mkdir(parents=True)
    wanted.symlink_to("../kubelet.service")
    write(root / "debian-packages.txt", "python3\n")
    write(out / "debian-packages.txt", "python3\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python-version", default="3.11", help="of the node (default %(default)s)")
    parser.add_argument("--arch", default="x86_64", choices=["x86_64", "aarch64"])
    parser.add_argument("--status-seconds", type=float, default=10.0, help="period of the node status, a kubelet's is %(default)s")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        build(options.out, options.python_version, options.arch, options.status_seconds)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"kubelet stand-in: {error}", file=sys.stderr)
        return 1
    print(f"kubelet stand-in: node overlay in {options.out / 'rootfs'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
