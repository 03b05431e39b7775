#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the simulated hardware: an overlay for a node image and the parts that a driver package brings.

DIR/rootfs/              lay over a Debian root with systemd: npu-simd (enabled), npu-sim, module tools, initial state
DIR/debian-packages.txt  Debian packages the node needs for it
DIR/payload/driver/      libdcmi.so and npu-smi
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent / "hardware"
sys.path.insert(0, str(HERE))
import npu_sim

CFLAGS = ["-std=gnu11", "-O2", "-g0", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread"]
LIB = Path("usr/local/lib/npu-sim")
UNITS = Path("etc/systemd/system")
MODULE_TOOLS = ("modprobe", "rmmod", "lsmod", "modinfo", "depmod")


class BuildError(Exception):
    pass


def compile_library(out: Path) -> Path:
    """libdcmi.so from the C sources; names the Debian package when a tool is missing."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise BuildError("gcc is missing: apt-get install gcc libc6-dev libcjson-dev")
    with tempfile.NamedTemporaryFile("w", suffix=".c") as probe:
        probe.write("#include <cjson/cJSON.h>\nint main(void) { return cJSON_Version() == 0; }\n")
        probe.flush()
        check = subprocess.run([compiler, "-o", "/dev/null", probe.name, "-lcjson"], capture_output=True, text=True, check=False)
    if check.returncode != 0:
        raise BuildError(f"libcjson-dev is missing (apt-get install libc6-dev libcjson-dev); gcc said:\n{check.stderr.strip()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    sources = [str(source) for source in sorted((HERE / "dcmi").glob("*.c"))]
    run = subprocess.run(
        [compiler, *CFLAGS, "-Wl,-soname,libdcmi.so", "-o", str(out), *sources, "-lcjson"], capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        raise BuildError(f"gcc failed on {HERE / 'dcmi'}:\n{run.stderr.strip()}")
    out.chmod(0o644)
    return out


def install(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def write_payload(out: Path) -> None:
    """What the driver package installs. npu-smi keeps the word @NPU_SMI_VERSION@ for the package builder to replace."""
    compile_library(out / "libdcmi.so")
    install(HERE / "npu-smi", out / "npu-smi", 0o755)


def write_rootfs(root: Path, product: str, chips: int | None, firmware: str) -> None:
    for name in ("npu_sim.py", "sim_products.py", "npu_simd.py", "sysfs_tree.py", "module_tools.py"):
        install(HERE / name, root / LIB / name, 0o644)
    launch(root / "usr/local/bin/npu-sim", "npu_sim")
    launch(root / "usr/local/sbin/npu-simd", "npu_simd")
    for name in MODULE_TOOLS:
        launch(root / "usr/local/sbin" / name, "module_tools")
    install(HERE / "npu-simd.service", root / UNITS / "npu-simd.service", 0o644)
    wanted = root / UNITS / "sysinit.target.wants/npu-simd.service"
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to("../npu-simd.service")
    state = root / "var/lib/npu-sim/state.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    npu_sim.save(npu_sim.initial(product, chips, firmware), state)


def launch(path: Path, module: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/usr/bin/python3\nimport sys\n\nsys.path.insert(0, "/{LIB}")\nimport {module}\n\nsys.exit({module}.main())\n')
    path.chmod(0o755)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--product", choices=sorted(npu_sim.PRODUCTS), default="a2", help="hardware of the initial state (default a2)")
    parser.add_argument("--chips", type=int, help="default: as many as the product has")
    parser.add_argument("--firmware", default="7.3.0.1.231", help="firmware the chips come with (default %(default)s)")
    arguments = parser.parse_args(argv)
    out: Path = arguments.out
    try:
        for part in ("rootfs", "payload/driver"):
            shutil.rmtree(out / part, ignore_errors=True)
        print(f"npu-sim: compiling libdcmi.so from {HERE / 'dcmi'}")
        write_payload(out / "payload/driver")
        print(f"npu-sim: driver parts in {out / 'payload/driver'}: libdcmi.so npu-smi")
        write_rootfs(out / "rootfs", arguments.product, arguments.chips, arguments.firmware)
        (out / "debian-packages.txt").write_text("libcjson1\npython3\n")
        chips = "all" if arguments.chips is None else arguments.chips
        hardware = f"{arguments.product}, {chips} chips, firmware {arguments.firmware}, no driver"
        print(f"npu-sim: node overlay in {out / 'rootfs'}: {hardware}")
    except (BuildError, npu_sim.StateError, OSError) as error:
        print(f"npu-sim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
