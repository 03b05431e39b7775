#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures of the agent on this machine, beside those that other device plugins had on one of this kind, and what ours should reach.

All times that involve kubelet are taken where the stand-in got the message, on the one monotonic clock of the host. The figures of others
were measured with a Go client; ours come from a Python client, which calls an empty handler of the same library beside the plugin, so the
ratio is what counts. Nothing here fails a build. Needs gcc and libcjson-dev (simulated DCMI library), grpcio, protobuf and ansible-core.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests/unit/agent")]
CALLS = str(REPO / "tests/benchmarks/agent_calls.py")
CONFIG = "# As the role writes it.\nlog_level: \"info\"\n"
DEFAULTS = dict.fromkeys(("poll_seconds", "recovery_seconds", "flap_count"))  # of the product, not those of the test rig

# what: (vendor's Go plugin, generic Go plugin, ours to reach); measured on two shared cores with a driver that answers at once.
PEERS = {
    "start to registered": ("93 ms", "15 ms", "400 ms"),
    "RSS, 8 chips, all processes": ("67 MB", "16 MB", "55 MB"),
    "idle CPU of one core": ("0.6-0.7 %", "0.03 %", "0.2 %"),
    "Allocate p50 / p99, 1 at a time": ("0.43 / 1.8 ms", "0.22 / 0.8 ms", "p99 of the empty handler x 1.5"),
    "Allocate p50 / p99, 16 at a time": ("3.1 / 12.7 ms", "0.66 / 2.8 ms", "p99 of the empty handler x 1.5"),
    "fault event to push": ("0.09-0.99 s", "1.2-4.5 s", "0.2 s"),
    "device node gone to push": ("", "", "0.2 s"),
    "recovery to push, without hold-down": ("1.0-2.0 s", "0.1-4.9 s", "0.2 s"),
    "one chip hangs: Allocate of others, worst": ("", "", "50 ms"),
    "one chip hangs: stuck children after 100 periods": ("", "", "1"),
    "1,600 shared ids: start to first list": ("", "", ""),
    "1,600 shared ids: preferred call for 8": ("", "", ""),
    "1,600 shared ids: Allocate of 8": ("", "", ""),
}


def processes(pid):
    """{process id: command} of a process and all below it."""
    found = {pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")}
    for child in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split():
        found.update(processes(int(child)))
    return found


def memory(pid):
    """MB of one process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


def cpu(pid):
    """Seconds of a processor that the threads of a process have had, to the nanosecond: ticks are too coarse for so little."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1000


class Bench:
    def __init__(self, rigs, folder, python):
        self.rigs, self.folder, self.python = rigs, folder, python
        self.told, self.figures = {}, {}
        self.nodes = 0
        self.empty = f"{folder}/empty.sock"
        self.server = subprocess.Popen([sys.executable, CALLS, "server", self.empty])
        while not os.path.exists(self.empty):
            time.sleep(0.05)

    def tell(self, what, text, **figures):
        self.told[what] = text
        self.figures[what] = figures
        print(f"  {what}: {text}", file=sys.stderr, flush=True)

    def node(self, chips=8, product="a2"):
        self.nodes += 1
        place = Path(self.folder) / f"node{self.nodes}"
        place.mkdir()
        rig = self.rigs.Rig(place, Path(self.folder) / "package", Path(self.folder) / "simulator/payload/driver/libdcmi.so",
                            chips=chips, python=self.python, product=product)
        rig.config.write_text(CONFIG)
        rig.kubelet()
        return rig

    def client(self, rig, what, method, schema, request, **options):
        from kubelet_standin import wire

        argv = [sys.executable, CALLS, what, self.empty, "--plugin", f"{rig.plugins}/{self.rigs.SOCKET}", "--method", method,
                "--request", wire.encode(schema, {"container_requests": [request]}).hex()]
        argv += [word for key, value in options.items() for word in (f"--{key}", str(value))]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def close(self):
        self.server.kill()
        self.server.wait()


def last(rig):
    return max((entry["n"] for entry in rig.ask("history")), default=0)


def pushed(rig, change):
    """Seconds from a change (the writing of the simulated hardware's state counts in) until kubelet has a list."""
    after, began = last(rig), time.monotonic()
    change()
    entries = rig.ask("history", after=after, kind="list", seconds=30)
    return entries[0]["time"] - began


def start(bench, rig, runs):
    times, bare = [], []
    for number in range(runs):
        after, began = last(rig), time.monotonic()
        agent = rig.agent(name=f"start-{number}", **DEFAULTS)
        times.append(rig.ask("history", after=after, kind="list", seconds=30)[0]["time"] - began)
        agent.await_state("serving")
        agent.stop()
        began = time.monotonic()
        subprocess.run([rig.python, "-c", "import grpc"], check=True)
        bare.append(time.monotonic() - began)
    bench.tell("start to registered", f"{statistics.median(times) * 1000:.0f} ms, worst {max(times) * 1000:.0f} ms of {runs}; "
               f"Python and `import grpc` alone {statistics.median(bare) * 1000:.0f} ms", times=times, import_grpc=bare)


def idle(bench, rig, seconds):
    agent = rig.agent(name="idle", **DEFAULTS)
    agent.await_state("serving")
    agent.get("/metrics")  # loads the library for it
    time.sleep(2)
    before, began = {pid: cpu(pid) for pid in processes(agent.pid)}, time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - began
    used = {pid: cpu(pid) - before.get(pid, 0) for pid in processes(agent.pid)}
    memories = [memory(pid) for pid in used]
    bench.tell("RSS, 8 chips, all processes", f"{sum(memories):.1f} MB ({' + '.join(f'{value:.1f}' for value in memories)}) after "
               f"{seconds:.0f} s", megabytes=memories)
    share = 100 * sum(used.values()) / spent
    bench.tell("idle CPU of one core", f"{share:.2f} % over {spent:.0f} s", percent=share)
    return agent


def allocate(bench, rig, calls):
    from kubelet_standin import api

    request = {"devices_ids": ["Ascend910-1", "Ascend910-0"]}
    for parallel in (1, 16):
        client = bench.client(rig, "compare", "Allocate", api.ALLOCATE_REQUEST, request, calls=calls, parallel=parallel)
        empty, ours = ([percentile(times, part) for part in (0.5, 0.99)] for times in json.loads(client.communicate()[0]))
        bench.tell(f"Allocate p50 / p99, {parallel} at a time", f"{ours[0]:.2f} / {ours[1]:.2f} ms; empty handler {empty[0]:.2f} / "
                   f"{empty[1]:.2f} ms: x {ours[0] / empty[0]:.2f} / x {ours[1] / empty[1]:.2f}", ours_ms=ours, empty_ms=empty)


def changes(bench, rig, runs):
    """A fault event, its end, a device node that goes; with a hold-down of 1 s."""
    agent = rig.agent(name="changes", **{**DEFAULTS, "recovery_seconds": 1})
    agent.await_state("serving")
    time.sleep(2)
    faults, ends, nodes = [], [], []
    for number in range(runs):
        chip = number % 8
        faults.append(pushed(rig, lambda chip=chip: rig.put({f"chips.{chip}.health": 3, f"chips.{chip}.error_codes": ["80E01801"]})))
        time.sleep(1.2)
        ends.append(pushed(rig, lambda chip=chip: rig.put({f"chips.{chip}.health": 0, f"chips.{chip}.error_codes": []})) - 1)
        time.sleep(1.2)
        nodes.append(pushed(rig, (rig.dev / f"davinci{chip}").unlink))
        bench.rigs.make_node(rig.dev / f"davinci{chip}")
        time.sleep(2.5)
    measured = {"fault event to push": faults, "recovery to push, without hold-down": ends, "device node gone to push": nodes}
    for what, values in measured.items():
        bench.tell(what, f"{min(values):.3f}-{max(values):.3f} s", seconds=values)
    agent.stop()


def hang(bench, rig):
    """One chip whose driver does not come back: what the others notice, and what is left of it after many periods."""
    from kubelet_standin import api

    agent = rig.agent(name="hang", **{**DEFAULTS, "poll_seconds": 0.2, "query_timeout": 0.2, "stuck_retry": 2})
    agent.await_state("serving")
    calm = set(processes(agent.pid))
    client = bench.client(rig, "worst", "Allocate", api.ALLOCATE_REQUEST, {"devices_ids": ["Ascend910-1"]}, seconds=22)
    time.sleep(1)
    rig.put({"chips.3.dcmi": {"get_device_health": "hang"}})
    (times,) = json.loads(client.communicate()[0])
    report = agent.report()
    stuck = {pid: memory(pid) for pid in processes(agent.pid) if pid not in calm}
    bench.tell("one chip hangs: Allocate of others, worst", f"{max(times) * 1000:.1f} ms of {len(times)} calls", worst_ms=max(times) * 1000)
    more = len(processes(agent.pid)) - len(calm)
    bench.tell("one chip hangs: stuck children after 100 periods", f"{more} ({', '.join(f'{value:.1f} MB' for value in stuck.values())}); "
               f"{report['healthy']} of {report['total']} chips healthy", children=more, megabytes=list(stuck.values()))
    rig.put({"chips.3.dcmi": {}})
    agent.stop()


def many(bench):
    """16 chips with 100 shares each."""
    from kubelet_standin import api

    rig = bench.node(chips=16, product="a3")
    try:
        began = time.monotonic()
        rig.agent(name="many", **{**DEFAULTS, "shares": 100})
        first = rig.ask("history", kind="list", seconds=30)[0]
        rig.processes[-1].await_state("serving")
        bench.tell("1,600 shared ids: start to first list", f"{(first['time'] - began) * 1000:.0f} ms", seconds=first["time"] - began)
        ids = sorted(rig.ask("devices")[bench.rigs.RESOURCE])
        if len(ids) != 1600:
            raise ValueError(f"there are {len(ids)} ids, not 1600")
        eight = [f"Ascend910-{chip}-0" for chip in range(8)]
        for what, method, schema, request in (
            ("preferred call for 8", "GetPreferredAllocation", api.PREFERRED_REQUEST, {"available_deviceIDs": ids, "allocation_size": 8}),
            ("Allocate of 8", "Allocate", api.ALLOCATE_REQUEST, {"devices_ids": eight}),
        ):
            client = bench.client(rig, "compare", method, schema, request, calls=200)
            _empty, ours = json.loads(client.communicate()[0])
            bench.tell(f"1,600 shared ids: {what}", f"{percentile(ours, 0.5):.1f} / {percentile(ours, 0.99):.1f} ms (p50 / p99)",
                       p50_ms=percentile(ours, 0.5), p99_ms=percentile(ours, 0.99))
    finally:
        rig.close()


def table(told):
    rows = [("", "vendor's Go plugin", "generic Go plugin", "to reach", "ours")]
    rows += [(what, *PEERS[what], told[what]) for what in PEERS if what in told]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of the idle agent")
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--faults", type=int, default=8)
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the agent (default: this one)")
    options = parser.parse_args()
    import agent_rig

    with agent_rig.private_folder(".npu-agent-bench-") as folder:
        agent_rig.prepare(folder)
        bench = Bench(agent_rig, folder, options.python)
        rig = bench.node()
        try:
            start(bench, rig, options.starts)
            agent = idle(bench, rig, options.seconds)
            allocate(bench, rig, options.calls)
            agent.stop()
            changes(bench, rig, options.faults)
            hang(bench, rig)
            many(bench)
        finally:
            rig.close()
            bench.close()
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"
    print(f"{table(bench.told)}\n{load}\n{json.dumps(bench.figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
