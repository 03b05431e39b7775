#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Crash sweep: kill something at every step of a package, run once more, and look whether the node is right.

    tests/crash/sweep.py [--short] [--jobs N] [--flow NAME] [--kind NAME] [--only TEXT] [--go-on] [--keep]

Flows: install (nothing -> N), upgrade (N-1 -> N), rollback (N -> N-1), each of driver and firmware. Kinds:

    module   kill -9 of the module right after every line of its journal and right before every rename
    alone    kill -9 of the module while the package stands still at a stage; the package goes on
    group    kill -9 of every process of the package at a stage
    outer    kill -9 of the package file's own process only, as a parent's timeout does it
    power    docker kill of the whole node at every journal line and every stage, then a boot

After each, one run (and the reboot that it asks for) must end in the wanted state or in the old one, with disk, running version,
firmware of every chip and our own record agreeing. Ends with 1 at the first node that is not (with --go-on at the end). The kernel's
page cache survives a docker kill, so a missing fsync is not seen here.
"""

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
BUILD = REPO / ".build" / "crash"
sys.path.insert(0, str(REPO / "tests" / "nodes"))

from nodes import Nodes, NodesError

# Rows of the public matrix that the simulator builds.
OLD, NEW = "a2-25.3.rc1", "a2-25.5.0"
COMPONENTS = ("driver", "firmware")
FLOWS = {"install": (None, NEW), "upgrade": (OLD, NEW), "rollback": (NEW, OLD)}
STAGES = {
    "driver": ("start", "removed", "record", "10", "30", "40", "90", "version", "status", "end"),
    "firmware": ("start", "10", "30", "40", "90", "version", "status", "end"),
}
KINDS = ("module", "alone", "group", "outer", "power")
ON_NODE = "/opt/crash/on_node.py"
#: For CI: each kind in some flow, at the stages that broke something while this was written, and at a spread of the journal.
SHORT = (
    ("install", "group", "driver:30"), ("install", "group", "firmware:version"), ("install", "power", "driver:90"),
    ("upgrade", "alone", "driver:40"),
    ("upgrade", "power", "firmware:40"), ("upgrade", "outer", "driver:10"), ("rollback", "group", "firmware:30"),
    ("install", "module", "driver launched"), ("upgrade", "module", "driver ended"), ("rollback", "power", "firmware ended"),
)  # fmt: skip


class Failed(Exception):
    pass


class Sweep:
    """One node, and what was found on it."""

    def __init__(self, name, depot, report):
        self.name, self.depot, self.report = name, depot, report
        self.nodes = Nodes()

    # -- the node

    def on_node(self, verb, *words, check=True):
        argv = ["python3", ON_NODE, verb, *[word if isinstance(word, str) else json.dumps(word) for word in words]]
        done = self.nodes.exec(self.name, argv, timeout=240, check=False)
        lines = done.stdout.strip().splitlines()
        if done.returncode and check:
            raise Failed(f"{verb} ended with {done.returncode}: {done.stderr[-600:]}")
        return json.loads(lines[-1]) if lines else {}

    def until_here(self, verb, settings):
        """Start something on the node that says when it stands still; None when it ended without."""
        process = subprocess.Popen(
            ["docker", "exec", self.name, "python3", ON_NODE, verb, json.dumps(settings)], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env={**os.environ, **self.nodes.engine.env},
        )  # fmt: skip
        for line in process.stdout:
            if '"here"' in line:
                return process
        process.wait()
        return None

    def power_cut(self, process):
        self.nodes.engine.docker("kill", self.name)
        process.wait()
        self.nodes.engine.docker("start", self.name)
        self.settle()

    def reboot(self):
        self.nodes.engine.docker("restart", "--time", "0", self.name)
        self.settle()

    def settle(self):
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            seen = self.nodes.exec(self.name, ["systemctl", "is-system-running"], check=False).stdout.strip()
            if seen in ("running", "degraded"):
                return
            time.sleep(0.1)
        raise Failed("the node does not come up")

    def prepare(self):
        """A fresh node, and what it looks like bare, with N-1 and with N."""
        docker = self.nodes.engine.docker
        self.nodes.down([self.name])
        self.nodes.up([self.name], tag="crash")
        self.nodes.exec(self.name, ["mkdir", "-p", "/opt/crash/ansible_collections/npu/fleet/plugins", "/srv/depot"])
        docker("cp", str(REPO / "plugins/module_utils"), f"{self.name}:/opt/crash/ansible_collections/npu/fleet/plugins/")
        docker("cp", str(HERE / "on_node.py"), f"{self.name}:{ON_NODE}")
        docker("cp", f"{self.depot.folder}/.", f"{self.name}:/srv/depot/")
        self.on_node("snapshot", "None")
        for release in (OLD, NEW):
            self.bring(self.depot.wanted(release), release)
            self.on_node("snapshot", release)

    # -- one point

    def bring(self, wanted, what):
        """One run and the reboot it asks for. Returns what the run said."""
        answer = self.on_node("run", {"wanted": wanted})
        if answer["reboot"]:
            self.reboot()
        if answer["error"]:
            raise Failed(f"{what}: {answer['error']}")
        return answer

    def points(self, flow):
        """Journal lines and renames of an undisturbed run, by number."""
        before, after = FLOWS[flow]
        self.on_node("restore", str(before))
        settings = {"wanted": self.depot.wanted(after), "stop": {"at": 0}}
        done = self.nodes.exec(self.name, ["python3", ON_NODE, "run", json.dumps(settings)], timeout=240)
        found = [json.loads(line) for line in done.stdout.splitlines() if '"point"' in line]
        return [(entry["point"], entry["label"]) for entry in found]

    def disturb(self, kind, where, wanted):
        """Make the crash; return whether there was one."""
        number, label = where
        if number is not None:
            stop = {"wanted": wanted, "stop": {"at": number, "how": "wait" if kind == "power" else "kill"}}
            if kind == "power":
                process = self.until_here("run", stop)
                if process:
                    self.power_cut(process)
                return process is not None
            return self.nodes.exec(self.name, ["python3", ON_NODE, "run", json.dumps(stop)], check=False, timeout=240).returncode != 0
        settings = {"wanted": wanted, "stage": {"at": label, "kill": "module" if kind == "alone" else kind}}
        if kind == "power":
            process = self.until_here("crash", settings)
            if process:
                self.power_cut(process)
                # The simulator would stop there again.
                self.nodes.exec(self.name, ["npu-sim", "set", "package.pause_at", "null"])
            return process is not None
        answer = self.on_node("crash", settings)
        if not answer["reached"] and (answer["output"] is None or answer["output"]["error"]):
            raise Failed(f"{label} was not reached: {answer}")
        if answer["reached"] and not answer["killed"]:
            raise Failed(f"nothing was there to kill: {answer}")
        return answer["reached"]

    def point(self, flow, kind, where):
        before, after = FLOWS[flow]
        wanted = self.depot.wanted(after)
        started = time.monotonic()
        self.on_node("restore", str(before))
        if not self.disturb(kind, where, wanted):
            return None
        answer = self.on_node("run", {"wanted": wanted})
        if answer["reboot"]:
            self.reboot()
        result = self.judge(answer, before, after)
        return result, time.monotonic() - started

    def judge(self, answer, before, after):
        """'target' or 'old', or Failed with everything that is known."""
        seen = self.on_node("status")
        problems = {}
        for word, release in (("target", after), ("old", before)):
            versions = self.depot.versions(release)
            problems[word] = problems_of(seen, versions)
            if not problems[word] and (word == "old" or not answer["error"]):
                problems[word] = self.record_problems(versions)
                if not problems[word]:
                    return word
        reasons = [f"not {word}: {'; '.join(found)}" for word, found in problems.items()]
        raise Failed("\n".join([f"one run was not enough: {answer}", *reasons, json.dumps(seen)]))


    def record_problems(self, versions):
        """The gates would pass now, and what they leave behind must be right, too."""
        if versions:
            self.on_node("prove", versions)
        seen = self.on_node("status")
        recorded = {name: seen["installed"].get(name) for name in versions}
        found = [] if recorded == versions else [f"our record says {recorded}"]
        return found + ([f"left behind: {seen['left']}"] if versions and seen["left"] else [])


def problems_of(seen, versions):
    """What keeps a node from being in the state that these versions mean; {} means bare."""
    found = []
    if not versions:
        return [f"{name} is {entry['state']}" for name, entry in seen["components"].items() if entry["state"] != "absent"]
    for name in COMPONENTS:
        entry = seen["components"][name]
        if (entry["state"], entry["version"], entry["running"]) != ("present", versions[name], versions[name]):
            found.append(f"{name}: {entry}")
    if set(seen["chips"]) != {versions["firmware"]} or seen["nodes"] != len(seen["chips"]):
        found.append(f"chips {Counter(seen['chips'])}, {seen['nodes']} nodes")
    return found


def tool(*words):
    subprocess.run([sys.executable, *map(str, words)], cwd=REPO, check=True, stdout=subprocess.DEVNULL)


class Depot:
    """Packages of the two releases, on this machine and (at /srv/depot) on the node."""

    def __init__(self):
        self.folder = BUILD / f"depot-{os.getpid()}"
        sys.path.insert(0, str(REPO / "tests/simulator/packages"))
        from package_tables import RELEASES

        self.table = RELEASES

    def build(self):
        """One at a time: two sweeps share the simulator."""
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / "lock").open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            self._build()

    def _build(self):
        tool("tests/simulator/build.py", "--out", BUILD / "simulator")
        for release in (OLD, NEW):
            words = ["--out", self.folder, "--payload", BUILD / "simulator/payload", "--release", release]
            words += [word for name in COMPONENTS for word in ("--component", name)]
            tool("tests/simulator/packages/build.py", *words)
        self.sums = dict(reversed(line.split()) for line in (self.folder / "SHA256SUMS").read_text().splitlines())

    def versions(self, release):
        return {name: self.table[release][name] for name in COMPONENTS} if release else {}

    def wanted(self, release):
        names = {name: next(file for file in self.sums if f"-{name}_{version}" in file) for name, version in self.versions(release).items()}
        return {
            name: {"version": self.table[release][name], "src": f"/srv/depot/{file}", "sha256": self.sums[file]}
            for name, file in names.items()
        }

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Report:
    """Lines as they come, the table at the end, the first failure."""

    def __init__(self):
        self.lock, self.done, self.failures = threading.Lock(), [], []

    def say(self, text):
        with self.lock:
            print(text, flush=True)

    def add(self, flow, kind, label, result, seconds):
        with self.lock:
            self.done.append((flow, kind, result))
            print(f"{flow:<9} {kind:<7} {label:<58} -> {result} ({seconds:.1f} s)", flush=True)

    def table(self):
        print(f"\n{'flow':<10}" + "".join(f"{kind:>16}" for kind in KINDS))
        for flow in FLOWS:
            cells = []
            for kind in KINDS:
                results = Counter(result for one, other, result in self.done if (one, other) == (flow, kind))
                cells.append(", ".join(f"{count} {word}" for word, count in sorted(results.items())) or "-")
            print(f"{flow:<10}" + "".join(f"{cell:>16}" for cell in cells))


def plan(sweep, args):
    """The points to try: (flow, kind, (number, label)). Asks a node what an undisturbed run writes down."""
    if args.short:
        # Known by their text, so nothing is asked.
        return [(flow, kind, (None if ":" in text else text, text)) for flow, kind, text in SHORT if args.flow in (None, flow)]
    found = []
    for flow in FLOWS:
        if args.flow not in (None, flow):
            continue
        lines = sweep.points(flow)
        for kind in KINDS:
            if kind in ("module", "power"):
                # A power cut right before a rename is one right after the line before it, as far as files go.
                found += [(flow, kind, (number, label)) for number, label in lines if kind == "module" or "line" in label]
            if kind != "module":
                found += [(flow, kind, (None, f"{name}:{stage}")) for name in COMPONENTS for stage in STAGES[name]]
    return spread([p for p in found if args.kind in (None, p[1]) and (args.only or "") in p[2][1]])


def spread(points):
    """A run that is stopped early has seen some of each flow and kind."""
    seen = Counter()
    keyed = []
    for point in points:
        # From both ends and the middle of each: neighbours differ least.
        keyed.append((seen[point[:2]] * 7 % 23, seen[point[:2]], point))
        seen[point[:2]] += 1
    return [point for _turn, _number, point in sorted(keyed, key=lambda entry: entry[:2])]


def work(sweep, queue, report, go_on):
    while go_on or not report.failures:
        with report.lock:
            if not queue:
                return
            flow, kind, where = queue.pop(0)
        try:
            outcome = sweep.point(flow, kind, where)
        except (Failed, NodesError, ValueError, subprocess.SubprocessError) as error:
            report.failures.append(f"{flow}, {kind} at {where[1]} on {sweep.name}: {error}")
            report.say(f"NOT RIGHT: {report.failures[-1]}")
            continue
        if outcome:
            report.add(flow, kind, where[1], *outcome)
        else:
            report.say(f"{flow:<9} {kind:<7} {where[1]:<58} -> is not passed in this flow")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="some points of each kind, for CI")
    parser.add_argument("--jobs", type=int, default=1, help="nodes at work at once")
    parser.add_argument("--flow", choices=FLOWS)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--only", help="only points whose name has this text")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first node that is not right")
    parser.add_argument("--keep", action="store_true", help="leave the nodes for a look")
    args = parser.parse_args()
    started = time.monotonic()
    depot, report, nodes = Depot(), Report(), Nodes()
    depot.build()
    nodes.image([BUILD / "simulator/rootfs"], tag="crash")
    sweeps = [Sweep(f"crash-{number + 1}", depot, report) for number in range(args.jobs)]
    try:
        sweeps[0].prepare()
        queue = plan(sweeps[0], args)
        report.say(f"{len(queue)} points, first node ready after {time.monotonic() - started:.0f} s")
        threads = [threading.Thread(target=work, args=(sweeps[0], queue, report, args.go_on))]
        threads += [threading.Thread(target=lambda one=one: (one.prepare(), work(one, queue, report, args.go_on))) for one in sweeps[1:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        if not args.keep:
            nodes.down([sweep.name for sweep in sweeps])
        depot.remove()
    report.table()
    for failure in report.failures:
        print(f"\nNOT RIGHT: {failure}")
    word = f", {len(report.failures)} not right" if report.failures else ""
    print(f"\nswept {len(report.done) + len(report.failures)} crash points in {time.monotonic() - started:.0f} s{word}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
