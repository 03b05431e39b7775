#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the simulated vendor packages: real makeself archives with the vendor's file names (README.md in this folder)."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import package_stages as stages
from package_tables import COMPONENTS, FAMILIES, MODES, MORE_COMPONENTS, RELEASES, file_name

HERE = Path(__file__).resolve().parent


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the .run files and SHA256SUMS")
    parser.add_argument("--payload", type=Path, help="folder with driver/libdcmi.so and driver/npu-smi; placeholders without it")
    parser.add_argument("--release", choices=sorted(RELEASES), default="a2-25.5.0", help="versions that go together")
    for name in ("driver", "firmware", "cann", "runtime"):
        parser.add_argument(f"--{name}", metavar="VERSION", help=f"{name} version other than that of the release")
    parser.add_argument("--component", action="append", choices=COMPONENTS + MORE_COMPONENTS, help="only this one (may be repeated)")
    parser.add_argument("--family", choices=sorted(FAMILIES), help="family of the release by default")
    parser.add_argument("--arch", choices=("x86_64", "aarch64"), default="x86_64")
    parser.add_argument("--mode", choices=sorted(MODES), default="ok", help="what the packages do (see README.md)")
    parser.add_argument("--hang-at", choices=("before-payload", "after-payload"), default="before-payload", help="stage of hang, breaks")
    parser.add_argument("--busy", choices=("refuse", "reboot"), default="refuse", help="driver over a held device: refuse, or go on (rc 2)")
    parser.add_argument(
        "--driver-rc", type=int, choices=(0, 2), help="exit status of a good driver installation (mode dead-after-boot: 2)"
    )
    parser.add_argument("--firmware-rc", type=int, choices=(0, 2), default=0, help="exit status of a good firmware installation")
    parser.add_argument("--dkms", action="store_true", help="driver: builds its modules, so it wants headers of the running kernel")
    parser.add_argument("--space-mib", type=int, help="free space the installation asks for, instead of the vendor's number")
    parser.add_argument("--padding-kib", type=int, default=0, help="bytes that do not compress, to give the files a size")
    options = parser.parse_args(words)
    release = RELEASES[options.release]
    for name in ("driver", "firmware", "cann", "runtime", "family"):
        if getattr(options, name) is None:
            setattr(options, name, release[name])
    if options.driver_rc is None and options.mode in ("reboot", "dead-after-boot"):
        options.driver_rc = 2
    if options.mode == "wrong-family":
        # The name says one family, the content is for another.
        options.content_family = "310p" if options.family != "310p" else "a2"
    else:
        options.content_family = options.family
    return options


def pack(stage, target, component, options):
    """Call makeself with our own header; reproducible: fixed dates, owners and no gzip time stamp."""
    outer = stage.parent / "outer.sh"
    text = (HERE / "template" / "outer.sh").read_text()
    words, help_text = stages.outer_help(component, options)
    for key, value in {"LABEL": stages.label(component, options), "WORDS": words, "HELP": help_text}.items():
        text = text.replace(f"@{key}@", value)
    outer.write_text(text)
    for path in [stage, *stage.rglob("*")]:
        if not path.is_symlink():
            os.utime(path, (0, 0))
    partial = target.with_name(target.name + ".partial")
    command = [
        "makeself", "--quiet", "--header", str(HERE / "template" / "makeself-header.sh"), "--sha256", "--nomd5", "--nocrc", "--nox11",
        "--complevel", "9n", "--packaging-date", "Thu Jan  1 00:00:00 UTC 1970", "--tar-extra", "--owner=0 --group=0 --numeric-owner",
        str(stage), str(partial), "unused", "./install.sh",
    ]  # fmt: skip
    environment = dict(os.environ, NPU_SIM_OUTER=str(outer), TMPDIR=str(stage.parent), LC_ALL="C")
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise SystemExit(f"makeself failed for {target.name} (rc {done.returncode}): {done.stdout}{done.stderr}")
    partial.replace(target)


def spoil(target, mode):
    """Damage the finished file for the modes that are about the archive itself."""
    size = target.stat().st_size
    if mode == "truncated":
        os.truncate(target, size - min(4096, size // 4))
    elif mode == "altered":
        with target.open("r+b") as stream:
            stream.seek(size - 100)
            byte = stream.read(1)
            stream.seek(size - 100)
            stream.write(bytes([byte[0] ^ 0xFF]))


def build(component, options):
    target = options.out / file_name(component, options)
    with tempfile.TemporaryDirectory(prefix="npu-sim-package-") as work:
        stage = Path(work) / component
        stage.mkdir()
        shutil.copy(HERE / "template" / "common.sh", stage)
        stages.STAGES[component](stage, options)
        if options.padding_kib:
            stages.padding(stage / "padding.bin", options.padding_kib)
        pack(stage, target, component, options)
    spoil(target, options.mode)
    target.chmod(0o755)
    return target


def write_sums(folder):
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.glob("*.run"))]
    (folder / "SHA256SUMS").write_text("".join(lines))


def main(words=None):
    options = arguments(words)
    if not shutil.which("makeself"):
        raise SystemExit("makeself is missing: apt-get install makeself")
    options.out.mkdir(parents=True, exist_ok=True)
    for component in options.component or COMPONENTS:
        print(build(component, options))
    write_sums(options.out)


if __name__ == "__main__":
    main()
