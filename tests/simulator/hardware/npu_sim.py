# SPDX-License-Identifier: GPL-3.0-or-later
"""The state file of one simulated NPU node: read it, change it without losing anybody's change, and the `npu-sim` command.

Works on the node (/var/lib/npu-sim/state.json) and on any other path, so tests use it as a module.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sim_products import PRODUCTS, VENDORS, StateError, initial, personalise

STATE = Path(os.environ.get("NPU_SIM_STATE") or "/var/lib/npu-sim/state.json")
APPLIED = Path("/run/npu-sim/applied")  # npu-simd writes the generation it has put into effect
PIDFILE = Path("/run/npu-sim/pid")
MAJOR = 236  # of every simulated device node; prototype value, free on the kernels used here
MAIN_MODULE = "drv_pcie_host"
# What the driver package of 2026 puts into /lib/modules/<kernel>/updates (part; facts: package scripts of hicann/driver).
MODULES = ("drv_seclib_host", "drv_pcie_host", "drv_pcie_hdc_host", "drv_pcie_vnic_host", "ascend_xsmem", "ts_agent", "drv_vascend")


def load(path: Path | str = STATE, patience: float = 0.5) -> dict[str, Any]:
    """The state; a file that is just being written is read again for a moment."""
    deadline = time.monotonic() + patience
    while True:
        try:
            state = json.loads(Path(path).read_text(encoding="utf-8"))
            if isinstance(state, dict) and isinstance(state.get("chips"), list):
                return state
            problem = "it is not an object with a list of chips"
        except FileNotFoundError as error:
            raise StateError(f"no state file {path}: npu-sim init --product a2") from error
        except ValueError as error:
            problem = str(error)
        if time.monotonic() >= deadline:
            raise StateError(f"{path} cannot be read: {problem}")
        time.sleep(0.005)


def save(state: dict[str, Any], path: Path | str = STATE) -> None:
    """Replaces the file in one step; a reader sees the old or the new one."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(state, stream, indent=1)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.rename(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def locked(path: Path | str = STATE) -> Iterator[None]:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def update(change: Callable[[dict[str, Any]], Any], path: Path | str = STATE) -> Any:
    """Runs change(state) under the lock and stores the result; returns what change returned."""
    with locked(path):
        state = load(path)
        result = change(state)
        validate(state)
        state["generation"] = int(state.get("generation") or 0) + 1
        save(state, path)
    _wait_until_applied(state["generation"], path)
    return result


def _wait_until_applied(generation: int, path: Path | str, limit: float = 3.0) -> None:
    """On a node with npu-simd, a change is in effect when the setter returns. Elsewhere nobody has to follow."""
    if Path(path) != STATE or not PIDFILE.exists() or os.environ.get("NPU_SIM_STATE"):
        return
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            os.kill(int(PIDFILE.read_text()), 0)
        except (OSError, ValueError):
            return  # stopped or just starting: it will read the file by itself
        with contextlib.suppress(OSError, ValueError):
            if int(APPLIED.read_text()) >= generation:
                return
        time.sleep(0.005)
    print(f"npu-sim: warning: npu-simd did not follow within {limit} s; see systemctl status npu-simd", file=sys.stderr)


def validate(state: dict[str, Any]) -> None:
    """Refuses values that a reader would misread; unknown keys are free."""
    kernel = state.get("kernel")
    if not isinstance(kernel, dict) or not isinstance(kernel.get("driver_loaded"), bool):
        raise StateError("kernel.driver_loaded must be true or false")
    if not re.fullmatch(r"0?[0-7]{3}", str(kernel.get("node_mode"))):
        raise StateError(f'kernel.node_mode must be a text such as "0660", not {kernel.get("node_mode")!r}')
    for index, chip in enumerate(state["chips"]):
        for key in ("card_id", "device_id", "phy_id", "health"):
            if not isinstance(chip.get(key), int) or isinstance(chip.get(key), bool):
                raise StateError(f"chips.{index}.{key} must be a whole number, not {chip.get(key)!r}")
        if not isinstance(chip.get("present"), bool):
            raise StateError(f"chips.{index}.present must be true or false, not {chip.get('present')!r}")
        if not isinstance(chip.get("processes"), list):
            raise StateError(f"chips.{index}.processes must be a list, not {chip.get('processes')!r}")
        for one in chip.get("slices") or ():
            if not isinstance(one, dict) or not isinstance(one.get("vdev_id"), int) or not isinstance(one.get("template"), str):
                raise StateError(f'chips.{index}.slices must be a list of {{"vdev_id": number, "template": text}}, not {one!r}')
        for one in chip.get("once") or ():
            if not isinstance(one, dict) or not isinstance(one.get("serial"), int):
                raise StateError(
                    f'chips.{index}.once must be a list of {{"serial": number, "code": text, "severity": 0 to 3}}, not {one!r}'
                )
    pause = (state.get("package") or {}).get("pause_at")
    if pause is not None and not re.fullmatch(r"[a-z_]+:[a-z0-9]+", str(pause)):
        raise StateError(f"package.pause_at must be null or COMPONENT:STAGE, not {pause!r}")
    modes = ("ok", "fail", "hang", "garbage")
    behaviour = state.get("behaviour") or {}
    if behaviour.get("npu_smi", "ok") not in modes:
        raise StateError(f"behaviour.npu_smi must be one of {', '.join(modes)}, not {behaviour['npu_smi']!r}")
    dcmi = behaviour.get("dcmi", "ok")
    if not isinstance(dcmi, dict) and dcmi not in ("ok", "fail", "hang", "crash"):
        raise StateError(f"behaviour.dcmi must be ok, fail, hang, crash or an object of function codes, not {dcmi!r}")


def _step(container: Any, key: str, where: str) -> Any:
    try:
        return container[int(key)] if isinstance(container, list) else container[key]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise StateError(f"nothing at {where!r} (stopped at {key!r})") from error


def get(state: dict[str, Any], where: str = "") -> Any:
    """Value at a dotted path; `*` gives the list of the values of all members."""
    keys = [key for key in where.split(".") if key]
    here: Any = state
    for at, key in enumerate(keys):
        if key == "*":
            rest = ".".join(keys[at + 1 :])
            return [get(member, rest) if rest else member for member in here]
        here = _step(here, key, where)
    return here


def put(state: dict[str, Any], where: str, value: Any) -> None:
    """Sets the value at a dotted path; `*` sets it in all members. The last key may be new, the way to it may not."""
    *way, last = [key for key in where.split(".") if key]
    targets: list[Any] = [state]
    for key in way:
        targets = [member for target in targets for member in target] if key == "*" else [_step(t, key, where) for t in targets]
    for target in targets:
        if isinstance(target, list):
            _step(target, last, where)
            target[int(last)] = value
        elif isinstance(target, dict):
            target[last] = value
        else:
            raise StateError(f"{where!r} does not lead to an object or a list")


def set_values(pairs: dict[str, Any], path: Path | str = STATE) -> None:
    """Sets several paths in one step."""

    def change(state: dict[str, Any]) -> None:
        for where, value in pairs.items():
            put(state, where, value)

    update(change, path)


def module_version(name: str, root: Path | str = "/") -> str | None:
    """Version in the first line of a simulated module file of the running kernel, None when there is no such file."""
    folder = Path(root) / "lib/modules" / os.uname().release / "updates"
    try:
        with open(folder / f"{name}.ko", encoding="utf-8", errors="replace") as stream:
            match = re.match(r"npu-sim module (\S+) (\S+)", stream.readline(200))
    except OSError:
        return None
    return match.group(2) if match and match.group(1) == name else None


def module_is_dead(root: Path | str = "/") -> bool:
    """The driver on disk comes from a package that is dead after the next boot: a fourth word in the main module's first line."""
    folder = Path(root) / "lib/modules" / os.uname().release / "updates"
    try:
        with open(folder / f"{MAIN_MODULE}.ko", encoding="utf-8", errors="replace") as stream:
            return stream.readline(200).split()[4:5] == ["dead-after-boot"]
    except OSError:
        return False


def devices_answer(state: dict[str, Any]) -> bool:
    """The driver is loaded and its devices came up: only then are there nodes, and DCMI answers."""
    kernel = state["kernel"]
    return bool(kernel["driver_loaded"]) and kernel.get("npu_nodes_appear") is not False and not kernel.get("driver_dead")


def module_files(root: Path | str = "/") -> list[str]:
    folder = Path(root) / "lib/modules" / os.uname().release / "updates"
    return sorted(file.stem for file in folder.glob("*.ko") if module_version(file.stem, root))


def loaded_modules(state: dict[str, Any]) -> list[str]:
    """Names as lsmod would show them. `driver_loaded` decides about the main module, whatever the list says."""
    kernel = state["kernel"]
    names = [name for name in kernel.get("modules") or [] if name != MAIN_MODULE]
    if kernel["driver_loaded"]:
        names = [MAIN_MODULE, *(names or [name for name in MODULES if name != MAIN_MODULE])]
    return names


def load_driver(version: str | None = None, path: Path | str = STATE, root: Path | str = "/") -> str:
    version = version or module_version(MAIN_MODULE, root)
    if version is None:
        raise StateError(f"no module file {MAIN_MODULE}.ko below {root}lib/modules/{os.uname().release}/updates and no VERSION given")
    set_values(
        {"kernel.driver_loaded": True, "kernel.driver_version": version, "kernel.modules": module_files(root) or list(MODULES)}, path
    )
    return version


def holders(proc: Path | str = "/proc") -> list[dict[str, Any]]:
    """Processes with an open descriptor on a simulated node, also inside containers (told by the device number)."""
    found = []
    for folder in Path(proc).glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    info = os.stat(descriptor)
                    if stat.S_ISCHR(info.st_mode) and os.major(info.st_rdev) == MAJOR:
                        comm = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
                        found.append({"pid": int(folder.name), "comm": comm, "device": os.readlink(descriptor)})
    return sorted(found, key=lambda one: (one["pid"], one["device"]))


def unload_driver(path: Path | str = STATE) -> None:
    busy = holders()
    if busy:
        names = ", ".join(f"{one['comm']}[{one['pid']}] {one['device']}" for one in busy)
        raise StateError(f"module {MAIN_MODULE} is in use by: {names}")
    set_values({"kernel.driver_loaded": False, "kernel.driver_version": None, "kernel.modules": []}, path)


def flash_firmware(version: str, path: Path | str = STATE, count: int | None = None) -> int:
    """Writes the flash of the chips that are there (the first COUNT of them); it runs after the next boot."""

    def change(state: dict[str, Any]) -> int:
        chips = [chip for chip in state["chips"] if chip["present"]][:count]
        for chip in chips:
            chip["firmware_flash"] = version
        return len(chips)

    return update(change, path)


def boot(state: dict[str, Any], boot_id: str, root: Path | str = "/") -> bool:
    """What a power cycle does to the hardware and the kernel; False when this boot was already accounted for."""
    kernel = state["kernel"]
    if kernel.get("boot_id") == boot_id:
        return False
    version = module_version(MAIN_MODULE, root)
    kernel.update(boot_id=boot_id, driver_loaded=version is not None, driver_version=version, driver_dead=module_is_dead(root))
    kernel["modules"] = module_files(root) if version is not None else []
    for chip in state["chips"]:
        chip["firmware_running"] = chip["firmware_flash"]
        chip["processes"] = []
    return True


def parse_value(word: str) -> Any:
    """JSON; a bare word such as `hang` or `25.5.0` is taken as text."""
    try:
        return json.loads(word)
    except ValueError:
        if re.fullmatch(r"[\w.:/-]+(?: [\w.:/-]+)*", word):
            return word
        raise StateError(f"{word!r} is neither JSON nor a plain word") from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="npu-sim", description="Change the simulated NPU hardware of this node.")
    parser.add_argument("--state", type=Path, default=STATE, help="state file (default %(default)s)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("init", help="write a new state: chips with firmware, no driver")
    verb.add_argument("--product", choices=sorted(PRODUCTS), default="a2")
    verb.add_argument("--chips", type=int, help="default: as many as the product has")
    verb.add_argument("--firmware", default="7.3.0.1.231")
    verb.add_argument("--vendor", choices=VENDORS, help="PCI vendor other than the first one: a card of another maker")
    verb.add_argument("--node", help="name that serial numbers are made from (default: the host name)")
    verb.add_argument("--unnamed", action="store_true", help="leave serial numbers to the node's first boot")
    verb = verbs.add_parser("get", help="print a value")
    verb.add_argument("path", nargs="?", default="", help="dotted, * = all members: chips.*.health")
    verb.add_argument("-r", "--raw", action="store_true", help="text without quotes, lists one member a line")
    verb = verbs.add_parser("set", help="set values; several pairs are set in one step")
    verb.add_argument("pairs", nargs="+", metavar="PATH VALUE", help="VALUE is JSON or a plain word")
    verb = verbs.add_parser("load-driver", help="as if the kernel loaded the module")
    verb.add_argument("version", nargs="?", help="default: first line of the module file of the running kernel")
    verbs.add_parser("unload-driver", help="refused while a process holds a device node")
    verb = verbs.add_parser("flash-firmware", help="write the flash of all chips (runs after the next boot)")
    verb.add_argument("version")
    verb.add_argument("--count", type=int, help="only the first COUNT chips")
    verbs.add_parser("holders", help="processes that hold a device node, one JSON object a line")
    arguments = parser.parse_args(argv)
    try:
        return _run(arguments)
    except (StateError, OSError) as error:
        print(f"npu-sim: {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    path = arguments.state
    if arguments.verb == "init":
        state = initial(arguments.product, arguments.chips, arguments.firmware, arguments.vendor)
        if not arguments.unnamed:
            personalise(state, arguments.node or socket.gethostname())
        with locked(path):
            with contextlib.suppress(StateError):
                old = load(path, patience=0)
                state["generation"] = int(old.get("generation") or 0) + 1
                state["kernel"]["boot_id"] = old["kernel"].get("boot_id")  # new hardware is no new boot
            save(state, path)
        _wait_until_applied(state["generation"], path)
    elif arguments.verb == "get":
        print_value(get(load(path), arguments.path), arguments.raw)
    elif arguments.verb == "set":
        if len(arguments.pairs) % 2:
            raise StateError("set needs pairs: PATH VALUE [PATH VALUE ...]")
        set_values({key: parse_value(value) for key, value in zip(arguments.pairs[::2], arguments.pairs[1::2], strict=True)}, path)
    elif arguments.verb == "load-driver":
        print(load_driver(arguments.version, path))
    elif arguments.verb == "unload-driver":
        unload_driver(path)
    elif arguments.verb == "flash-firmware":
        count = flash_firmware(arguments.version, path, arguments.count)
        print(f"{count} chips flashed with {arguments.version}; in effect after the next boot")
    elif arguments.verb == "holders":
        for one in holders():
            print(json.dumps(one))
    return 0


def print_value(value: Any, raw: bool) -> None:
    for one in value if raw and isinstance(value, list) else [value]:
        print(one if raw and isinstance(one, str) else json.dumps(one, indent=None if raw else 1))


if __name__ == "__main__":
    sys.exit(main())
