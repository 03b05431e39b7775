#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run lanes of tests, one after the other even if one fails: `python tests/lanes/run.py LANE...`. Without a name it lists them."""

import sys
import time

import steps
from lanes import LANES


def run_lane(name):
    """Run one lane; returns what it counted and its seconds."""
    print(f"\n==== {name}: {LANES[name].__doc__.strip()}", flush=True)
    count, start = steps.Count(), time.monotonic()
    try:
        LANES[name](count)
    except steps.StepFailed as error:
        count.fail(str(error))
    seconds = time.monotonic() - start
    if not (count.passed or count.failed or count.not_run):
        count.fail("nothing was run")
    for words in count.not_run:
        print(f"not run here: {words}", flush=True)
    print(f"==== {name}: {verdict(count)} in {seconds:.0f} s", flush=True)
    return count, seconds


def verdict(count):
    if count.failed:
        return "failed"
    return "passed" if count.passed else "not run"


def table(results):
    """Return the lines of the summary."""
    rows = [("lane", "verdict", "passed", "failed", "seconds", "not run here")]
    rows += [(name, verdict(count), str(count.passed), str(count.failed), f"{seconds:.0f}", "; ".join(count.not_run))
             for name, (count, seconds) in results.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def main(names):
    unknown = [name for name in names if name not in LANES]
    if unknown or not names:
        print("\n".join(f"{name:11} {lane.__doc__.strip()}" for name, lane in LANES.items()))
        if unknown:
            print(f"no such lane: {', '.join(unknown)}", file=sys.stderr)
        return 2
    results = {name: run_lane(name) for name in dict.fromkeys(names)}
    print("\n" + "\n".join(table(results)))
    passed, failed = (sum(getattr(count, what) for count, _ in results.values()) for what in ("passed", "failed"))
    print(f"\n{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
