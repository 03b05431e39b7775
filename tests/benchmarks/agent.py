#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures of the agent on this machine: time to its registration, Allocate beside an empty gRPC handler, memory of all its processes.

The empty handler is a server of the same library in a process of its own; the same client calls both in turn, so that whatever else the
machine does meets both. Needs gcc and libcjson-dev (simulated DCMI library), grpcio, protobuf and ansible-core.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests/unit/agent")]

EMPTY_SERVER = """
import asyncio, sys
import grpc

async def answer(request, context):
    return b""

async def main():
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("empty.Empty", {"Call": handler}),))
    server.add_insecure_port("unix://" + sys.argv[1])
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


def collection_on_path(folder):
    """The checkout as a collection, for the packer."""
    place = Path(folder) / "ansible_collections/npu"
    place.mkdir(parents=True)
    (place / "fleet").symlink_to(REPO)
    sys.path.insert(0, str(folder))


def memory(pid):
    """{name: MiB} of a process and its children."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    found = {}
    for number, name in [(str(pid), "agent"), *((child, "DCMI child") for child in children)]:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
        found[name] = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
    return found


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1000


def time_to_register(rig, runs):
    """Seconds from the start of the process to the call that reaches kubelet, and how long Python needs to load gRPC alone."""
    found, bare = [], []
    for number in range(runs):
        known = len(rig.ask("registrations"))
        started = time.time()
        agent = rig.agent(name=f"start-{number}", poll_seconds=1)
        agent.await_state("serving")
        found.append(rig.ask("registrations")[known]["time"] - started)
        agent.stop()
        started = time.time()
        subprocess.run([rig.python, "-c", "import grpc"], check=True)
        bare.append(time.time() - started)
    return found, bare


def compare(rig, folder, calls, socket_name):
    import grpc
    from kubelet_standin import api, wire

    empty = subprocess.Popen([sys.executable, "-c", EMPTY_SERVER, f"{folder}/empty.sock"])
    try:
        while not os.path.exists(f"{folder}/empty.sock"):
            time.sleep(0.05)
        ids = {"container_requests": [{"devices_ids": ["Ascend910-1", "Ascend910-0"]}]}
        request = wire.encode(api.ALLOCATE_REQUEST, ids)
        plugin = f"unix://{rig.plugins}/{socket_name}"
        with grpc.insecure_channel(f"unix://{folder}/empty.sock") as one, grpc.insecure_channel(plugin) as two:
            methods = [one.unary_unary("/empty.Empty/Call"), two.unary_unary("/v1beta1.DevicePlugin/Allocate")]
            for _unused in range(200):
                for method in methods:
                    method(request)
            times = [[], []]
            for number in range(calls):
                # Who comes second finds caches and clocks warmed up by the first: take turns at that as well.
                for which in (0, 1) if number % 2 else (1, 0):
                    begin = time.perf_counter()
                    methods[which](request)
                    times[which].append(time.perf_counter() - begin)
        return times
    finally:
        empty.kill()
        empty.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the agent (default: this one)")
    options = parser.parse_args()
    # Not below /tmp: the agent loads no library from a folder where others may write.
    with tempfile.TemporaryDirectory(prefix=".npu-agent-bench-", dir=Path.home()) as folder:
        collection_on_path(Path(folder) / "collections")
        import agent_rig

        from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive

        _agent_archive.write_sources(f"{folder}/package")
        build = [sys.executable, str(REPO / "tests/simulator/build.py"), "--out", f"{folder}/simulator"]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (Path(folder) / "node").mkdir()
        library = Path(folder) / "simulator/payload/driver/libdcmi.so"
        rig = agent_rig.Rig(Path(folder) / "node", Path(folder) / "package", library, python=options.python)
        try:
            rig.kubelet()
            starts, bare = time_to_register(rig, options.starts)
            agent = rig.agent(name="agent", poll_seconds=1)
            agent.await_state("serving")
            empty, allocate = compare(rig, folder, options.calls, agent_rig.RESOURCE.replace("huawei.com/", "npu-agent-") + ".sock")
            used = memory(agent.pid)
        finally:
            rig.close()
    figures = {
        "register_s": {"median": round(sorted(starts)[len(starts) // 2], 3), "worst": round(max(starts), 3), "target": 1.0,
                       "import_grpc_alone": round(sorted(bare)[len(bare) // 2], 3)},
        "load": {"average_1_min": round(os.getloadavg()[0], 1), "cores": os.cpu_count()},
        "empty_ms": {"p50": round(percentile(empty, 0.5), 3), "p99": round(percentile(empty, 0.99), 3)},
        "allocate_ms": {"p50": round(percentile(allocate, 0.5), 3), "p99": round(percentile(allocate, 0.99), 3)},
        "ratio": {"p50": round(percentile(allocate, 0.5) / percentile(empty, 0.5), 2),
                  "p99": round(percentile(allocate, 0.99) / percentile(empty, 0.99), 2), "target": 1.5},
        "memory_mib": {**{name: round(value, 1) for name, value in used.items()}, "sum": round(sum(used.values()), 1), "target": 70},
    }
    for name, values in figures.items():
        print(f"{name:12} " + "  ".join(f"{key} {value}" for key, value in values.items()))
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
