#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts kubelet (the stand-in) and the agent, and has the hardware fail, again and again in random order; then looks what is left.

Two parts. In the first one the agent is restarted as well, in every way in which that happens. In the second one the same process lives
through all of it, so that its descriptors and its memory can be compared: after a tenth, when everything has happened once, and at the
end. Every now and then all faults are taken back, and all chips must be allocatable again.

At the end nothing may be left: this process adopts what others leave behind, so a stray child shows up here, and so does a zombie.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests/unit/agent"), str(REPO / "tests/benchmarks")]
import agent_rig as rigs
from agent_rig import RESOURCE, make_node, until

CHIPS = 8
SETTINGS = {"poll_seconds": 0.2, "query_timeout": 0.3, "stuck_retry": 1, "keep_last_state": 1, "recovery_seconds": 0.1}
IN_FLIGHT = SETTINGS["poll_seconds"] + 2 * SETTINGS["query_timeout"]  # seconds that a look may take
CALM_EVERY = 15  # actions
PR_SET_CHILD_SUBREAPER = 36
# What may come on top between the two looks: descriptors of a connection that is being closed; pages that the allocators of C, Python and
# gRPC keep for the most that there was at one time. A leak in each of a thousand faults would be a page for each at least.
MORE_DESCRIPTORS, MORE_MEMORY = 3, 4 << 20


class Faults:
    """What can go wrong with the hardware. Each takes a chip and gives the function that takes it back."""

    def __init__(self, rig, chance):
        self.rig, self.chance = rig, chance
        self.standing = {}  # (name, chip): function
        self.kinds = [self.code, self.health, self.hang, self.crash, self.node_gone, self.chip_gone, self.unbound, self.driver_fails]

    def inject(self):
        kind, chip = self.chance.choice(self.kinds), self.chance.randrange(CHIPS)
        if (kind.__name__, chip) not in self.standing:
            self.standing[kind.__name__, chip] = kind(chip)
        return kind.__name__

    def take_back(self, how_many):
        for key in self.chance.sample(sorted(self.standing), min(how_many, len(self.standing))):
            self.standing.pop(key)()

    def put(self, chip, before, after):
        self.rig.put({f"chips.{chip}.{key}": value for key, value in before.items()})
        return lambda: self.rig.put({f"chips.{chip}.{key}": value for key, value in after.items()})

    def code(self, chip):
        # One without a rule of frequency: those are meant to stay out.
        return self.put(chip, {"error_codes": ["A2301002"], "health": 3}, {"error_codes": [], "health": 0})

    def health(self, chip):
        return self.put(chip, {"health": 2}, {"health": 0})

    def hang(self, chip):
        return self.put(chip, {"dcmi": {"get_device_health": "hang"}}, {"dcmi": {}})

    def crash(self, chip):
        return self.put(chip, {"dcmi": {"get_device_health": "crash"}}, {"dcmi": {}})

    def chip_gone(self, chip):
        return self.put(chip, {"present": False}, {"present": True})

    def node_gone(self, chip):
        node = self.rig.dev / f"davinci{chip}"
        node.unlink()
        return lambda: make_node(node)

    def unbound(self, chip):
        driver = self.rig.sys / "bus/pci/devices" / self.rig.chips()[chip]["pci_address"] / "driver"
        target = os.readlink(driver)
        driver.unlink()
        return lambda: driver.symlink_to(target)

    def driver_fails(self, _chip):
        self.rig.change("behaviour.dcmi", "fail")
        return lambda: self.rig.change("behaviour.dcmi", "ok")


class Soak:
    def __init__(self, rig, chance):
        self.rig, self.chance, self.faults = rig, chance, Faults(rig, chance)
        self.agent, self.number, self.last, self.pods = None, 0, None, 0
        self.done = {"kubelet": 0, "agent": 0, "fault": 0}
        rig.kubelet()
        self.start()
        self.calm()

    def start(self):
        self.number += 1
        self.agent = self.rig.agent(name=f"agent-{self.number}", **SETTINGS)

    # --- actions

    def kubelet(self):
        before = self.rig.ask("info")["start"]
        how = self.chance.choice([{}, {"same_inode": True}, {"replace_folder": True}, {"down": 0.3}])
        self.rig.ask("restart", **how)
        until(lambda: self.rig.started_at() not in (None, before), what=f"kubelet, restarted {how}")
        return f"kubelet {how}"

    def agent_restart(self):
        how = self.chance.choice(["term", "kill", "rolling", "reload"])
        old = self.agent
        if how == "reload":
            # `shares` cannot change in place, so the process executes itself anew; and back, or the ids would stay shared.
            until(old.report)
            for text in ("shares: 2\n", "# the defaults\n"):
                starts = len(old.events("started"))
                self.rig.config.write_text(text)
                old.process.send_signal(signal.SIGHUP)
                until(lambda starts=starts: len(old.events("started")) > starts, what="the agent anew")
                until(old.report)
        elif how == "rolling":
            self.start()
            until(lambda: self.agent.report() and self.agent.report()["state"] not in ("starting", "registering"), what="the new agent")
            old.stop()
        else:
            old.stop(signal.SIGTERM if how == "term" else signal.SIGKILL)
            self.start()
        return f"agent {how}"

    def fault(self):
        name = self.faults.inject()
        if self.chance.random() < 0.2:
            until(lambda: self.rig.numbers()[0] != CHIPS, what=f"kubelet to hear of {name}")
        time.sleep(self.chance.random() * 0.1)
        self.faults.take_back(self.chance.randrange(3))
        return f"fault {name}"

    # --- looks

    def calm(self):
        """All faults away: every chip is back, a pod gets all of them, and no process is there that should not be."""
        self.faults.take_back(len(self.faults.standing))
        self.recover()
        self.pods += 1
        name = f"soak-{self.pods}"
        pod = self.rig.ask("allocate", count=CHIPS, resource=RESOURCE, pod=name)
        if pod["phase"] != "Running" or len(pod["response"]["devices"]) != CHIPS + len(rigs.MANAGERS):
            raise AssertionError(f"a pod did not get all chips: {pod}")
        until(lambda: name in [line["pod"] for line in audit(self.rig)], what=f"the audit's line of {name}")
        self.rig.ask("delete", pod=name)
        until(lambda: len(below(self.agent.pid)) == 1, what="one driver worker and no zombie below the agent")
        left_behind(self.rig)
        return used(self.agent.pid)

    def recover(self):
        """Wait until kubelet and the agent have all chips and keep them: a look that began before a fault went may tell of it later."""
        def whole():
            report = self.agent.report()
            return report and report["ready"] and report["healthy"] == CHIPS and self.rig.numbers() == (CHIPS, CHIPS)

        kept = False
        while not kept:
            until(whole, what=f"{CHIPS} of {CHIPS} chips after {self.last}: {self.rig.numbers()}")
            end, kept = time.monotonic() + IN_FLIGHT, True
            while kept and time.monotonic() < end:
                time.sleep(0.02)
                kept = whole()

    def run(self, actions, measure_after=None):
        """Do so many of each action; returns what calm() measured after so many actions, and at the end."""
        order = [name for name, count in actions.items() for _unused in range(count)]
        self.chance.shuffle(order)
        first = None
        for number, name in enumerate(order, 1):
            self.last = {"kubelet": self.kubelet, "agent": self.agent_restart, "fault": self.fault}[name]()
            self.done[name] += 1
            if number % CALM_EVERY == 0 or number == measure_after:
                found = self.calm()
                first = found if number == measure_after else first
                print(f"  {number} of {len(order)}: last {self.last}; memory {found[0] / 1e6:.1f} MB, descriptors {found[1]}", flush=True)
        return first, self.calm()


def below(pid):
    """[(process id, state)] of all processes below one."""
    rows = subprocess.run(["ps", "-A", "--no-headers", "-o", "pid,ppid,stat,comm"], capture_output=True, text=True, check=True).stdout
    children = {}
    for row in rows.splitlines():
        child, parent, state, name = row.split(None, 3)
        if name != "ps":
            children.setdefault(int(parent), []).append((int(child), f"{state} {name}"))
    found, left = [], [pid]
    while left:
        mine = children.get(left.pop(), [])
        found += mine
        left += [child for child, _state in mine]
    return found


def used(pid):
    """(bytes of memory, open descriptors)"""
    with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))


def audit(rig):
    """The lines of the audit, with those of the file before."""
    files = [rig.folder / "audit.jsonl.1", rig.folder / "audit.jsonl"]
    return [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def left_behind(rig):
    """Processes that nobody has started here. Children of an agent that was killed become ours, and end by themselves: those are taken."""
    known, left = {process.pid for process in rig.processes}, []
    for pid, state in below(os.getpid()):
        if pid not in known and not (state.startswith("Z") and taken(pid)):
            left.append((pid, state))
    return left


def taken(pid):
    try:
        return os.waitpid(pid, os.WNOHANG)[0]
    except ChildProcessError:
        return False  # it is somebody else's


def soak(rig, counts, seed):
    """AssertionError says what was not as it should be."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = Soak(rig, random.Random(seed))
    half = {name: count // 2 for name, count in counts.items()}
    run.run({**half, "agent": counts["agent"]})
    rest = {name: counts[name] - half[name] for name in ("kubelet", "fault")}
    before, after = run.run(rest, measure_after=max(1, sum(rest.values()) // 10))
    if after[1] > before[1] + MORE_DESCRIPTORS:
        raise AssertionError(f"descriptors grew from {before[1]} to {after[1]}: {os.listdir(f'/proc/{run.agent.pid}/fd')}")
    if after[0] > before[0] + MORE_MEMORY:
        raise AssertionError(f"memory grew from {before[0]} to {after[0]} bytes")
    texts = [path.read_text() for path in rig.folder.glob("agent-*.log")]
    if any("Traceback" in text for text in texts):
        raise AssertionError("an agent's log has a traceback")
    if any(line for text in texts for line in text.splitlines() if "a fault of npu-agent" in line):
        raise AssertionError("an agent's log has a fault of its own")
    if run.agent.stop() != 0:
        raise AssertionError("the agent did not end well")
    named = [line["pod"] for line in audit(rig)]
    if named != [f"soak-{number}" for number in range(1, run.pods + 1)]:
        raise AssertionError(f"{run.pods} pods got chips, the audit has {named}")
    until(lambda: not left_behind(rig), what=f"what was left behind to end: {left_behind(rig)}")
    print(f"{run.done['kubelet']} restarts of kubelet, {run.done['agent']} of the agent, {run.done['fault']} faults: all {CHIPS} chips are "
          f"back; memory {before[0] / 1e6:.1f} to {after[0] / 1e6:.1f} MB, descriptors {before[1]} to {after[1]}, nothing left behind")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubelet", type=int, default=100, help="restarts of kubelet")
    parser.add_argument("--agent", type=int, default=100, help="restarts of the agent")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--python", help="interpreter that runs the agent (default: this one)")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with rigs.private_folder(".npu-agent-soak-") as name:
        folder = Path(name)
        rigs.prepare(folder)
        (folder / "node").mkdir()
        rig = rigs.Rig(folder / "node", folder / "package", folder / "simulator/payload/driver/libdcmi.so", python=options.python)
        try:
            soak(rig, {"kubelet": options.kubelet, "agent": options.agent, "fault": options.faults}, options.seed)
        except (AssertionError, ValueError, OSError) as error:
            print(f"seed {options.seed}: {error!r}", file=sys.stderr)
            for process in rig.processes[:1] + rig.processes[-2:]:
                print(f"--- {process.log.name}\n{process.text()[-6000:]}", file=sys.stderr)
            return 1
        finally:
            rig.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
