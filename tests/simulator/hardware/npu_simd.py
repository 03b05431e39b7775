# SPDX-License-Identifier: GPL-3.0-or-later
"""npu-simd: puts the state file of a simulated node into effect in /sys and /dev, and follows it.

At start: the power-on rule of `npu_sim.boot` (once a boot id), then trees in /run/npu-sim that are bind-mounted over /sys/bus/pci,
/sys/class and /sys/module. Afterwards only the contents of these trees change, so no mount is ever replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import npu_sim
import sysfs_tree

RUN = npu_sim.PIDFILE.parent
REAL = RUN / "sysfs"  # the machine's own /sys, without our mounts
TREES = RUN / "tree"
POLL = 0.1  # seconds between looks when inotify is not to be had
OWNER_POLL = 0.5  # seconds between looks for a user that does not exist yet
MS_BIND = 4096
LIBC = ctypes.CDLL(None, use_errno=True)
IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_TO = 0x2, 0x8, 0x80


def say(text: str) -> None:
    print(f"npu-simd: {text}", flush=True)


def mounted(path: Path) -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8") as stream:
        return any(line.split()[4] == str(path) for line in stream)


def bind(source: Path, target: Path) -> None:
    """Bind-mounts once; the mounts outlive a restart of the service."""
    if mounted(target):
        return
    if LIBC.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND, None) != 0:
        raise OSError(ctypes.get_errno(), f"bind mount of {source} on {target} failed: {os.strerror(ctypes.get_errno())}")


def sysfs_plan() -> dict[str, tuple[Path, str]]:
    """Tree name -> (mount point, place below it). A machine without a PCI bus has no /sys/bus/pci to mount over."""
    if (REAL / "bus/pci").is_dir():
        pci = (Path("/sys/bus/pci"), "")
    else:
        pci = (Path("/sys/bus"), "pci/")
    return {"pci": pci, "class": (Path("/sys/class"), ""), "module": (Path("/sys/module"), "")}


def fill(state: dict) -> None:
    """Makes the trees show the state."""
    for name, (mount, below) in sysfs_plan().items():
        target = TREES / name
        target.mkdir(parents=True, exist_ok=True)
        keep = frozenset()
        if name == "pci":
            tree = {f"{below}{path}": value for path, value in sysfs_tree.pci_bus(state, REAL / "bus/pci").items()}
            if below:
                tree |= {bus: sysfs_tree.Link(REAL / "bus" / bus) for bus in os.listdir(REAL / "bus")}
        elif name == "class":
            tree, keep = sysfs_tree.classes(state, REAL / "class"), frozenset({"net"})
        else:
            tree = sysfs_tree.modules(state, REAL / "module")
        sysfs_tree.make_equal(target, tree, keep)
        bind(target, mount)
    if (REAL / "class/net").is_dir():
        bind(REAL / "class/net", Path("/sys/class/net"))


def apply(state: dict) -> bool:
    """Puts one state into effect. False when the owner of the nodes does not exist yet."""
    order = [lambda: fill(state), lambda: sysfs_tree.make_nodes(Path("/dev"), state)]
    if not state["kernel"]["driver_loaded"]:
        order.reverse()  # a driver that goes takes its nodes with it first
    results = [step() for step in order]
    fresh = npu_sim.APPLIED.with_suffix(".new")
    fresh.write_text(f"{int(state.get('generation') or 0)}\n")
    fresh.rename(npu_sim.APPLIED)
    return False not in results


def power_on(state: dict) -> None:
    npu_sim.personalise(state, socket.gethostname())
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if npu_sim.boot(state, boot_id):
        driver = state["kernel"]["driver_version"] or "none"
        say(f"boot {boot_id}: {len(state['chips'])} chips, driver {driver}")


def kernel_headers(root: Path = Path("/")) -> None:
    """What a distribution's headers of the running kernel show of themselves; a node has none, for its kernel is the machine's."""
    release = os.uname().release
    build = root / "lib/modules" / release / "build"
    if build.exists():
        return
    (build / "include/generated").mkdir(parents=True)
    (build / "Makefile").write_text("# simulated kernel headers\n")
    (build / "include/generated/utsrelease.h").write_text(f'#define UTS_RELEASE "{release}"\n')


def notify(message: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.connect("\0" + address[1:] if address.startswith("@") else address)
            out.send(message.encode())


def watch(folder: Path) -> int | None:
    """An inotify descriptor on the folder of the state file, or None (the number of instances is limited per user)."""
    descriptor = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if LIBC.inotify_add_watch(descriptor, os.fsencode(folder), IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_TO) < 0:
        os.close(descriptor)
        return None
    return descriptor


def touched(descriptor: int, name: str) -> bool:
    """Reads the waiting events; True if one is about the state file (its lock and temporary files lie beside it)."""
    found = False
    with contextlib.suppress(BlockingIOError):
        data = os.read(descriptor, 65536)
        while data:
            _, _, _, length = struct.unpack_from("iIII", data)
            found |= data[16 : 16 + length].rstrip(b"\0") == os.fsencode(name)
            data = data[16 + length :]
    return found


def identity(path: Path) -> tuple | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def changes(path: Path, worries: set[str]) -> Iterator[None]:
    """Yields whenever the state file may have changed, and now and then while there are worries."""
    descriptor = watch(path.parent)
    if descriptor is None:
        say(f"no inotify instance left; looking every {POLL} s")
        seen = None
        while True:
            now = identity(path)
            if now != seen or worries:
                seen = now
                yield
            time.sleep(POLL)
    yield  # what happened before the watch began
    while True:
        ready, _, _ = select.select([descriptor], [], [], OWNER_POLL if worries else None)
        if not ready or touched(descriptor, path.name):
            yield


def follow(path: Path, put_into_effect: Callable[[dict], bool]) -> None:
    worries: set[str] = set()
    for _ in changes(path, worries):
        try:
            settled = put_into_effect(npu_sim.load(path))
            worries.clear()
            if not settled:
                worries.add("owner")
        except (npu_sim.StateError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            # A test may write nonsense on purpose: what is in effect stays, and the service lives on.
            if "state" not in worries:
                say(f"state not applied: {error!r}")
            worries.add("state")


def main() -> int:
    path = npu_sim.STATE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    npu_sim.PIDFILE.unlink(missing_ok=True)  # nobody, this process included, waits for the one before
    REAL.mkdir(parents=True, exist_ok=True)
    bind(Path("/sys"), REAL)
    if not path.exists():
        npu_sim.main(["--state", str(path), "init"])
    npu_sim.update(power_on, path)
    kernel_headers()
    apply(npu_sim.load(path))
    npu_sim.PIDFILE.write_text(f"{os.getpid()}\n")
    notify("READY=1")
    follow(path, apply)
    return 0


if __name__ == "__main__":
    sys.exit(main())
