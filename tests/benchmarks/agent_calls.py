# SPDX-License-Identifier: GPL-3.0-or-later
"""Run by agent.py: an empty gRPC handler (`server SOCKET`), and the client that calls it and the plugin in turn (`client ...`).

Both are processes of their own, so that nobody shares an interpreter with whom he measures.
"""

import argparse
import asyncio
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc


async def serve(path):
    async def answer(request, context):
        return b""

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("empty.Empty", {"Call": handler}),))
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    await server.wait_for_termination()


def timed(method, request):
    begin = time.perf_counter()
    method(request, timeout=60)
    return time.perf_counter() - begin


def measure(methods, request, calls, parallel):
    """[seconds of each call] for each method. They take turns in small batches, so that whatever else the machine does meets all."""
    times = [[] for _method in methods]
    with ThreadPoolExecutor(parallel) as pool:
        for number in range(max(1, calls // (parallel * 10))):
            order = range(len(methods)) if number % 2 else reversed(range(len(methods)))
            for which in order:
                times[which] += pool.map(lambda _unused, method=methods[which]: timed(method, request), range(parallel * 10))
    return times


def worst_for(method, request, seconds, every):
    """Seconds of each call, made one after the other with a pause, for so long."""
    times, over = [], time.monotonic() + seconds
    while time.monotonic() < over:
        times.append(timed(method, request))
        threading.Event().wait(every)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["server", "compare", "worst"])
    parser.add_argument("socket", help="of the empty handler")
    parser.add_argument("--plugin", help="socket of the plugin")
    parser.add_argument("--method", default="Allocate")
    parser.add_argument("--request", type=bytes.fromhex, default=b"", help="hex")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    if options.what == "server":
        asyncio.run(serve(options.socket))
        return
    with grpc.insecure_channel(f"unix://{options.socket}") as one, grpc.insecure_channel(f"unix://{options.plugin}") as two:
        method = two.unary_unary(f"/v1beta1.DevicePlugin/{options.method}")
        if options.what == "worst":
            json.dump([worst_for(method, options.request, options.seconds, 0.01)], sys.stdout)
            return
        methods = [one.unary_unary("/empty.Empty/Call"), method]
        measure(methods, options.request, 400, options.parallel)
        json.dump(measure(methods, options.request, options.calls, options.parallel), sys.stdout)


if __name__ == "__main__":
    main()
