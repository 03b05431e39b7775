# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors, progress lines, commands with a deadline, processes found by what they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

STARTED = time.monotonic()
# Daemons and their helpers (containerd-shim, iptables) are looked for in the administrator's folders, whoever calls us.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NodesError(Exception):
    """What is wrong, where, and the command that mends it, in one text."""


def say(text: str) -> None:
    print(f"nodes: {text} [{time.monotonic() - STARTED:.1f}s]", file=sys.stderr, flush=True)


def run(
    argv: Sequence[str],
    timeout: float,
    *,
    check: bool = True,
    stdin: bytes | str | None = None,
    env: dict[str, str] | None = None,
    log: Path | None = None,
) -> subprocess.CompletedProcess:
    """Run a command to its end or its deadline; text in and out unless `stdin` is bytes. With `log`, the output goes there."""
    as_text = not isinstance(stdin, bytes)
    environment = {**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8", **(env or {})}
    output = log.open("ab") if log else subprocess.PIPE
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=output, stderr=output, env=environment,
            text=as_text, errors="replace" if as_text else None, start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise NodesError(f"command {argv[0]} is not installed; run `nodes.py prepare`, which names the package") from error
    finally:
        if log:
            output.close()
    try:
        out, err = child.communicate(stdin, timeout)
    except BaseException as error:
        # A group of its own, so that what the command has started goes with it, at Ctrl-C too.
        end_group(child)
        if isinstance(error, subprocess.TimeoutExpired):
            raise NodesError(f"`{shown(argv)}` had not ended after {timeout:.0f} s" + (f"; see {log}" if log else "")) from error
        raise
    done = subprocess.CompletedProcess(argv, child.returncode, out, err)
    if check and done.returncode:
        if log:
            detail = f"; the end of {log}:\n{tail(log)}"
        else:
            detail = ":\n" + (err if as_text else err.decode(errors="replace")).strip()[-2000:]
        raise NodesError(f"`{shown(argv)}` ended with {done.returncode}{detail}")
    return done


def end_group(child: subprocess.Popen) -> None:
    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, number)
            child.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def shown(argv: Sequence[str]) -> str:
    text = " ".join(argv)
    return text if len(text) <= 200 else text[:197] + "..."


def tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no such file)"


def wait_until(what: str, ready: Callable[[], bool], timeout: float, pause: float = 0.1) -> None:
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise NodesError(f"{what}: not so after {timeout:.0f} s")
        time.sleep(pause)


def start_time(pid: int) -> str | None:
    """The kernel's start time of a process that still runs: with the pid it names one process for ever."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def write_pid(path: Path, pid: int) -> None:
    path.write_text(f"{pid} {start_time(pid)}\n")


def read_pid(path: Path) -> int | None:
    """The process a pid file speaks of, if it is still that one: a stale file never makes us touch a stranger."""
    try:
        pid, born = path.read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if start_time(int(pid)) == born else None


def processes(match: Callable[[Path], bool]) -> dict[int, str]:
    """All processes whose /proc folder fits, with their start times."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                fits = match(folder)
            except OSError:
                continue
            born = start_time(int(folder.name)) if fits else None
            if born:
                found[int(folder.name)] = born
    return found


def end(found: dict[int, str], signals: Iterable[tuple[signal.Signals, float]]) -> None:
    """Send the signals in turn, each with its patience in seconds, to processes that are still the ones meant."""

    def alive() -> list[int]:
        return [pid for pid, born in found.items() if start_time(pid) == born]

    for number, patience in signals:
        for pid in alive():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + patience
        while alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        if not alive():
            return
    if alive():
        raise NodesError(f"processes {alive()} do not end, not even by SIGKILL; see `ps -fp {','.join(map(str, alive()))}`")
