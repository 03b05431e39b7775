# SPDX-License-Identifier: GPL-3.0-or-later
"""Remote calls and wall time of a first and a second run of npu.fleet.site, beside as many pings.

A remote call is one execution on the node (ssh command or sftp session), counted there by sshd. What ansible.builtin.reboot sends while it
waits for the node is counted apart. Figures are printed, never asserted: the machine may be shared.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import lab

NAME = "bench"
#: What the reboot action asks again and again until the node is back: its boot id, and its test command.
POLLING = ("boot_id", "whoami")


def calls(node):
    """Commands that the node counted since the last reset, in order; the tool's last line is their number."""
    return [line for line in lab.nodes("calls", node, "--list", capture=True).splitlines() if line.strip()][:-1]


def split_polling(commands):
    """(calls, polls): polls are the boot id and test commands after the reboot command."""
    rebooted, real, polls = False, [], []
    for command in commands:
        if rebooted and any(word in command for word in POLLING):
            polls.append(command)
        else:
            rebooted = "shutdown" in command or "reboot" in command.split("/")[-1]
            real.append(command)
    return real, polls


def timed(folder, *command):
    """Seconds of one command in the lab's folder; its output is kept for the error alone."""
    start = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:] + done.stderr[-4000:])
    return time.monotonic() - start


def pings(folder, count):
    """Seconds of one play with as many ping tasks."""
    play = folder / "pings.yml"
    tasks = "".join("    - ansible.builtin.ping:\n" for _ in range(count))
    head = "- hosts: npu_nodes\n  gather_facts: false\n  vars: {ansible_python_interpreter: /usr/bin/python3}\n  tasks:\n"
    play.write_text(head + tasks)
    return timed(folder, "ansible-playbook", str(play))


def main():
    lab.build()
    folder = lab.up(NAME)
    node = lab.node_names(NAME, 1)[0]
    verbose = "--list" in sys.argv
    try:
        for title in ("first run", "second run"):
            lab.nodes("calls", node, "--reset")
            seconds = timed(folder, "ansible-playbook", "npu.fleet.site")
            real, polls = split_polling(calls(node))
            if verbose:
                print("\n".join(f"   {command[:150]}" for command in real))
            beside = pings(folder, len(real))
            print(
                f"remote calls: {len(real)}   ({title}; {len(polls)} polls of the reboot apart; wall {seconds:.1f} s, "
                f"{len(real)} pings {beside:.1f} s, ratio {seconds / beside:.1f})",
                flush=True,
            )
    finally:
        lab.down(NAME)


if __name__ == "__main__":
    main()
