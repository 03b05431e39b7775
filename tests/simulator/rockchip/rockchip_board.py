# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes this node look like a board with a Rockchip SoC: `rockchip-board lay [--soc rk3588] [--stack rknpu-drm] ...`.

Each call makes the node exactly what its options say, so it breaks and mends a board as well. What the node's kernel shows of itself stays:
over each folder of /sys that the board has something in, a file system in memory is mounted, which has the kernel's own entries by bind
mounts and the board's beside them. /proc takes no new files, so the driver's files are those of debugfs. Device nodes are real ones.

The Python package `rockchip_tree` beside this file has what is shown. `rockchip-board again` (at boot) does what the last call did.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import sys
from pathlib import Path

from rockchip_tree import SOCS, STACKS, Board, content, write

Tree = dict  # relative path -> what is there
STATE = Path("/var/lib/rockchip-board/board.json")
RUN = Path("/run/rockchip-board")
# Folders of every kernel's /sys that a board has more in.
COVERED = ("class", "bus/platform", "devices/platform", "firmware", "kernel/debug")
MS_BIND = 4096
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str | None, flags: int) -> None:
    if LIBC.mount(source.encode(), os.fsencode(target), kind.encode() if kind else None, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount of {source} on {target} failed: {os.strerror(ctypes.get_errno())}")


def cover(folder: Path, real: Path, board: Tree) -> None:
    """An empty folder in memory becomes the kernel's own one with room for the board's entries."""
    for name in sorted(os.listdir(real)):
        source, target = real / name, folder / name
        own = {path.partition("/")[2]: value for path, value in board.items() if path.startswith(f"{name}/")}
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif not source.is_dir():
            target.symlink_to(source)
        else:
            target.mkdir()
            if own:
                cover(target, source, own)
            else:
                mount(str(source), target, None, MS_BIND)


def cover_sysfs(places: Tree) -> None:
    """Once a boot. `places`: everything that any board may have, so that each folder of it can be written to from now on."""
    real = RUN / "sys"
    if real.exists():
        return
    real.mkdir(parents=True)
    mount("/sys", real, None, MS_BIND)
    for folder in COVERED:
        target = Path("/sys") / folder
        mount("rockchip-board", target, "tmpfs", 0)
        cover(target, real / folder, {path.removeprefix(f"sys/{folder}/"): 0 for path in places if path.startswith(f"sys/{folder}/")})


def lay(board: Board) -> None:
    """Makes the node show this board and nothing of the one before."""
    every: Tree = {}
    for stack in STACKS:
        for soc in SOCS:
            every |= content(Board(soc=soc, stack=stack))
    cover_sysfs(every)
    wanted = {path: value for path, value in content(board).items() if path.startswith("dev/") or path.startswith("sys/")}
    before, now = RUN / "shown.json", {path: repr(value) for path, value in wanted.items()}
    shown = json.loads(before.read_text()) if before.exists() else {}
    for path in shown.keys() - now.keys():
        remove(Path("/") / path)
    # What stays as it was is not touched: nobody may see a node vanish for a moment.
    write(Path("/"), {path: value for path, value in wanted.items() if shown.get(path) != now[path]})
    before.write_text(json.dumps(now))


def remove(target: Path) -> None:
    """A file, and the folders that it leaves empty: such a folder would look like a device without attributes."""
    if target.is_symlink() or not target.is_dir():
        target.unlink(missing_ok=True)
    parent = target.parent
    while len(parent.parts) > 2 and parent.is_dir() and not os.path.ismount(parent) and not os.listdir(parent):
        parent.rmdir()
        parent = parent.parent


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rockchip-board", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("lay", help="make the node this board")
    verb.add_argument("--soc", choices=sorted(SOCS), default="rk3588")
    verb.add_argument("--stack", choices=STACKS, default="rknpu-drm")
    verb.add_argument("--driver-version", default=Board().driver_version)
    verb.add_argument("--unbound", action="store_true", help="the kernel has no driver for the NPU")
    verb.add_argument("--broken", action="store_true", help="its nodes cannot be opened")
    verb.add_argument("--no-gpu", action="store_true", help="the NPU has the first DRM numbers")
    verb.add_argument("--gone", action="append", default=[], metavar="NAME", help="this device node is missing, such as dri/card1")
    verb.add_argument("--load", type=int, nargs="*", default=[], help="percent of each core")
    verbs.add_parser("again", help="what the last call said, as at a boot")
    given = parser.parse_args(argv)
    if given.verb == "again":
        values = json.loads(STATE.read_text())
        board = Board(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
    else:
        board = Board(
            soc=given.soc, stack=given.stack, driver_version=given.driver_version, bound=not given.unbound, broken=given.broken,
            gpu=not given.no_gpu, gone=tuple(given.gone), load=tuple(given.load),
        )
    lay(board)
    STATE.parent.mkdir(parents=True, exist_ok=True)
    STATE.write_text(json.dumps(vars(board)))
    return 0


def install(root: Path) -> None:
    """The command, and the unit that lays the board again at each boot, below the root of a node."""
    library = root / "usr/local/lib/rockchip-board"
    library.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).resolve().parent
    for name in ("rockchip_tree.py", "rockchip_board.py"):
        shutil.copyfile(here / name, library / name)
    command = root / "usr/local/sbin/rockchip-board"
    command.parent.mkdir(parents=True, exist_ok=True)
    text = "#!/usr/bin/python3\nimport sys\n\nsys.path.insert(0, '/usr/local/lib/rockchip-board')\nimport rockchip_board\n\n"
    command.write_text(text + "sys.exit(rockchip_board.main())\n")
    command.chmod(0o755)
    unit = root / "etc/systemd/system/rockchip-board.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(here / "rockchip-board.service", unit)


if __name__ == "__main__":
    sys.exit(main())
