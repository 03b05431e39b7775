#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run lanes of tests: `python tests/lanes/run.py [--long] LANE...`. Without a name it lists them.

One lane shows its output as it comes. Of several, those that boot nodes run beside those that compute, each writes to a file of its own,
and that of a lane that failed is shown. A lane that fails keeps no other from running.
"""

import json
import os
import resource
import sys
import time
import traceback

import steps
from lanes import BOOTING, LANES, SHARING


def run_lane(name, long=False):
    """Run one lane; returns what it counted."""
    print(f"\n==== {name}: {LANES[name].__doc__.strip()}", flush=True)
    count, start = steps.Count(long), time.monotonic()
    try:
        LANES[name](count)
    except steps.StepFailed as error:
        count.fail(str(error))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    count.seconds, count.cpu = time.monotonic() - start, used.ru_utime + used.ru_stime
    if not (count.passed or count.failed or count.not_run):
        count.fail("nothing was run")
    for words in count.not_run:
        print(f"not run here: {words}", flush=True)
    print(f"==== {name}: {verdict(count)} in {count.seconds:.0f} s", flush=True)
    return count


def verdict(count):
    if count.failed:
        return "failed"
    return "passed" if count.passed else "not run"


class Lane:
    """One lane in a process of its own, with its output in a file."""

    def __init__(self, name, long):
        self.name, self.start = name, time.monotonic()
        folder = steps.BUILD / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self.answer = folder / f"{name}.log", folder / f"{name}.json"
        self.answer.unlink(missing_ok=True)
        print(f"==== {name} started, writes to {os.path.relpath(self.log, steps.ROOT)}", flush=True)
        self.pid = os.fork()
        if not self.pid:
            self._be_the_lane(long)

    def _be_the_lane(self, long):
        """Never returns: nothing of the parent may be done twice."""
        try:
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
            self.answer.write_text(json.dumps(vars(run_lane(self.name, long))))
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def ended(self):
        """What it counted, None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        count = steps.Count()
        count.seconds = time.monotonic() - self.start
        if self.answer.exists():
            vars(count).update(json.loads(self.answer.read_text()))
        if (status or not self.answer.exists()) and not count.failed:
            count.failed = 1  # it died
        if count.failed:
            print(f"\n==== output of {self.name} ====\n{self.log.read_text(errors='replace')}\n==== end of {self.name} ====\n", flush=True)
        print(f"==== {self.name}: {verdict(count)} in {count.seconds:.0f} s", flush=True)
        return count


def second(queue, running):
    """The first lane of the queue that can run beside those that run; nothing where there is none."""
    sharing = any(name in SHARING for name in running)
    return next((name for name in queue if not (sharing and name in SHARING)), None)


def side_by_side(names, long):
    """Run lanes, one of each kind at a time; {name: Count} in the order of the names.

    Lanes that boot nodes take the place of those that compute when there are none left.
    """
    waiting = [[name for name in names if (name in BOOTING) is booting] for booting in (True, False)]
    running, results = {}, {}
    while running or any(waiting):
        for side, queue in enumerate(waiting):
            if side in running:
                continue
            name = queue[0] if queue else second(waiting[0], [lane.name for lane in running.values()])
            if name:
                waiting[0 if name in BOOTING else 1].remove(name)
                running[side] = Lane(name, long)
        for side, lane in list(running.items()):
            count = lane.ended()
            if count:
                results[lane.name] = count
                del running[side]
        time.sleep(0.1)
    return {name: results[name] for name in names}


def table(results):
    """Return the lines of the summary."""
    rows = [("lane", "verdict", "passed", "failed", "seconds", "cpu", "not run here")]
    for name, count in results.items():
        numbers = (count.passed, count.failed, round(count.seconds), round(count.cpu))
        rows.append((name, verdict(count), *map(str, numbers), "; ".join(count.not_run)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def main(arguments):
    long, names = "--long" in arguments, list(dict.fromkeys(word for word in arguments if word != "--long"))
    unknown = [name for name in names if name not in LANES]
    if unknown or not names:
        print("\n".join(f"{name:11} {lane.__doc__.strip()}" for name, lane in LANES.items()))
        if unknown:
            print(f"no such lane: {', '.join(unknown)}", file=sys.stderr)
        return 2
    start = time.monotonic()
    results = {name: run_lane(name, long) for name in names} if len(names) == 1 else side_by_side(names, long)
    print("\n" + "\n".join(table(results)))
    passed, failed = (sum(getattr(count, what) for count in results.values()) for what in ("passed", "failed"))
    print(f"\n{time.monotonic() - start:.0f} s in all\n{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
