# SPDX-License-Identifier: GPL-3.0-or-later
"""modprobe, rmmod, lsmod, modinfo and depmod for the simulated driver's modules; everything else goes to the real tools.

A simulated module is a text file in /lib/modules/<kernel>/updates whose first line is `npu-sim module NAME VERSION`.
Installed under all five names in /usr/local/sbin, ahead of the real ones in PATH.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import npu_sim

REAL_FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")


def updates() -> Path:
    return Path("/lib/modules") / os.uname().release / "updates"


def module_name(word: str) -> str:
    name = Path(word).name
    return name.removesuffix(".ko").replace("-", "_")


def loaded() -> list[str]:
    return npu_sim.loaded_modules(npu_sim.load())


def ours(name: str) -> bool:
    with contextlib.suppress(npu_sim.StateError):
        return npu_sim.module_version(name) is not None or name in loaded()
    return False


def chain(tool: str, words: list[str]) -> int:
    """The real tool, when there is one."""
    for folder in REAL_FOLDERS:
        path = os.path.join(folder, tool)
        if os.access(path, os.X_OK):
            sys.stdout.flush()
            os.execv(path, [tool, *words])  # noqa: S606
    print(f"{tool}: command not found", file=sys.stderr)
    return 127


def load_modules(names: list[str]) -> None:
    """One change of the state for all names: each costs a write to the disk and a look by npu-simd."""

    def change(state: dict) -> None:
        kernel = state["kernel"]
        if npu_sim.MAIN_MODULE in names and not kernel["driver_loaded"]:
            # A driver that died at a boot stays dead, and a good one lives again; see npu_sim.module_is_dead.
            dead = bool(kernel.get("driver_dead")) and npu_sim.module_is_dead()
            version = npu_sim.module_version(npu_sim.MAIN_MODULE)
            others = kernel.get("modules") or []
            kernel.update(driver_loaded=True, driver_version=version, driver_dead=dead)
        else:
            others = npu_sim.loaded_modules(state)
        kernel["modules"] = [*dict.fromkeys([*others, *names])]

    npu_sim.update(change)


def remove_modules(names: list[str]) -> None:
    """In order; what comes before a module that is not loaded or in use is gone by then."""
    there, gone, problem = loaded(), [], None
    for name in names:
        if name not in there or name in gone:
            problem = f"ERROR: Module {name} is not currently loaded"
        elif name == npu_sim.MAIN_MODULE and npu_sim.holders():
            problem = f"ERROR: Module {name} is in use"
        if problem:
            break
        gone.append(name)

    def change(state: dict) -> None:
        left = [one for one in npu_sim.loaded_modules(state) if one not in gone]
        if npu_sim.MAIN_MODULE in gone:
            state["kernel"].update(driver_loaded=False, driver_version=None)
        state["kernel"]["modules"] = left

    if gone:
        npu_sim.update(change)
    if problem:
        raise npu_sim.StateError(problem)


def modprobe(words: list[str]) -> int:
    names = [module_name(word) for word in words if not word.startswith("-") and "=" not in word]
    if not names or not ours(names[0]):
        return chain("modprobe", words)
    if any(word == "--remove" or (word.startswith("-") and not word.startswith("--") and "r" in word) for word in words):
        remove_modules([name for name in dict.fromkeys(names) if name in loaded()])
        return 0
    if not any(word in ("-a", "--all") for word in words):
        names = names[:1]  # the rest are parameters of the module
    known = [name for name in names if ours(name)]
    load_modules(known)
    for name in names:
        if name not in known:
            print(f"modprobe: WARNING: Module {name} not found.", file=sys.stderr)
    return 0 if known == names else 1


def rmmod(words: list[str]) -> int:
    names = [module_name(word) for word in words if not word.startswith("-")]
    if not names or not any(ours(name) for name in names):
        return chain("rmmod", words)
    remove_modules(names)
    return 0


def lsmod(words: list[str]) -> int:
    print(f"{'Module':<20} {'Size':>7}  Used by")
    for name in loaded():
        print(f"{name:<20} {1048576:>7}  0")
    try:
        lines = Path("/proc/modules").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0  # a kernel without loadable modules
    for line in lines:
        name, size, count, users = line.split()[:4]
        print(f"{name:<20} {size:>7}  {count} {users.strip(',-')}".rstrip())
    return 0


def modinfo(words: list[str]) -> int:
    names = [module_name(word) for word in words if not word.startswith("-")]
    field = None
    for at, word in enumerate(words):
        if word in ("-F", "--field") and at + 1 < len(words):
            field = words[at + 1]
            names = [name for name in names if name != module_name(field)]
    version = npu_sim.module_version(names[0]) if names else None
    if version is None:
        return chain("modinfo", words)
    name = names[0]
    fields = {"filename": str(updates() / f"{name}.ko"), "version": version, "license": "GPL", "name": name}
    fields["vermagic"] = f"{os.uname().release} SMP mod_unload"
    if "-n" in words:
        field = "filename"
    if field:
        print(fields.get(field, ""))
    else:
        for key, value in fields.items():
            print(f"{key + ':':<16}{value}")
    return 0


def depmod(words: list[str]) -> int:
    """The real depmod refuses text files; a tree that holds only simulated modules gets its list from here."""
    folder = updates().parent
    if (folder / "kernel").is_dir() or any(word.startswith(("-n", "-V", "-h", "--dry", "--version", "--help")) for word in words):
        return chain("depmod", words)
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"updates/{name}.ko:\n" for name in npu_sim.module_files())
    (folder / "modules.dep").write_text(lines, encoding="utf-8")
    return 0


TOOLS = {"modprobe": modprobe, "rmmod": rmmod, "lsmod": lsmod, "modinfo": modinfo, "depmod": depmod}


def main() -> int:
    tool = Path(sys.argv[0]).name
    try:
        return TOOLS[tool](sys.argv[1:])
    except (npu_sim.StateError, OSError) as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 1
