# SPDX-License-Identifier: GPL-3.0-or-later
"""A device plugin that does what a test tells it to; it has nothing of the agent."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from kubelet_standin import api, wire

NAME = "example.com/npu"


def device(name, health="Healthy", numa=None):
    """`numa`: a node, a list of nodes (an empty one: TopologyInfo without nodes), or None for no topology."""
    if numa is None:
        return {"ID": name, "health": health, "topology": None}
    nodes = numa if isinstance(numa, list) else [numa]
    return {"ID": name, "health": health, "topology": {"nodes": [{"ID": node} for node in nodes]}}


THREE = (device("a"), device("b"), device("c"))


class OddPlugin:
    """`calls`: [(method, monotonic time, what was asked)] in the order in which they came. `deadlines`: {method: seconds that its last
    caller would have waited}."""

    def __init__(self, folder, endpoint="odd.sock"):
        self.folder, self.endpoint, self.calls, self.deadlines = folder, endpoint, [], {}
        self.options = {"pre_start_required": False, "get_preferred_allocation_available": True}
        self.options_seconds = self.first_list_seconds = 0.0
        self.response = {"container_responses": [{"envs": {"A": "1"}}]}
        self.refusal = self.preferred_refusal = self.pre_start_refusal = None
        self.preferred = []
        self.allocating = threading.Event()
        self.go_on = threading.Event()  # Allocate waits for it
        self.go_on.set()
        self.changed = threading.Condition()
        self.devices, self.streams, self.ended = [], 0, set()
        self.serve()

    def serve(self):
        def unary(method, request, answer):
            return grpc.unary_unary_rpc_method_handler(method, lambda data: wire.decode(request, data), lambda m: wire.encode(answer, m))

        self.server = grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {
            "GetDevicePluginOptions": unary(self.get_options, api.EMPTY, api.OPTIONS),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch, None, lambda m: wire.encode(api.DEVICES, m)),
            "GetPreferredAllocation": unary(self.prefer, api.PREFERRED_REQUEST, api.PREFERRED_RESPONSE),
            "Allocate": unary(self.allocate, api.ALLOCATE_REQUEST, api.ALLOCATE_RESPONSE),
            "PreStartContainer": unary(self.pre_start, api.PRE_START, api.EMPTY),
        }),))
        self.server.add_insecure_port(f"unix://{self.folder}/{self.endpoint}")
        self.server.start()

    def note(self, method, context, asked=None):
        self.calls.append((method, time.monotonic(), asked))
        self.deadlines[method] = context.time_remaining()

    def called(self, method):
        """What was asked in each call of a method."""
        return [asked for name, _time, asked in self.calls if name == method]

    def when(self, method):
        return next(when for name, when, _asked in self.calls if name == method)

    def push(self, *devices):
        with self.changed:
            self.devices = list(devices)
            self.changed.notify_all()

    def end(self, stream):
        """End a stream from the plugin's side; they are numbered from 1."""
        with self.changed:
            self.ended.add(stream)
            self.changed.notify_all()

    def get_options(self, _request, context):
        self.note("GetDevicePluginOptions", context)
        time.sleep(self.options_seconds)
        return self.options

    def list_and_watch(self, _request, context):
        self.note("ListAndWatch", context)
        self.streams += 1
        number, sent = self.streams, None
        context.add_callback(lambda: self.end(number))
        time.sleep(self.first_list_seconds)
        while True:
            with self.changed:
                while self.devices is sent and number not in self.ended:
                    self.changed.wait()
                if number in self.ended:
                    return
                sent = self.devices
            yield {"devices": sent}

    def prefer(self, request, context):
        self.note("GetPreferredAllocation", context, request["container_requests"][0])
        if self.preferred_refusal:
            context.abort(grpc.StatusCode.INTERNAL, self.preferred_refusal)
        return {"container_responses": [{"deviceIDs": self.preferred}]}

    def allocate(self, request, context):
        self.note("Allocate", context, request["container_requests"][0]["devices_ids"])
        self.allocating.set()
        self.go_on.wait()
        if self.refusal:
            context.abort(grpc.StatusCode.INTERNAL, self.refusal)
        return self.response(request["container_requests"][0]["devices_ids"]) if callable(self.response) else self.response

    def pre_start(self, request, context):
        self.note("PreStartContainer", context, request["devices_ids"])
        if self.pre_start_refusal:
            context.abort(grpc.StatusCode.INTERNAL, self.pre_start_refusal)
        return {}

    def register(self, name=NAME, version="v1beta1", seconds=30):
        with grpc.insecure_channel(f"unix://{self.folder}/kubelet.sock", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary("/v1beta1.Registration/Register", lambda m: wire.encode(api.REGISTER, m))
            call({"version": version, "endpoint": self.endpoint, "resource_name": name, "options": self.options}, timeout=seconds)

    def stop(self):
        for stream in range(1, self.streams + 1):
            self.end(stream)
        self.go_on.set()
        self.server.stop(0).wait(10)
