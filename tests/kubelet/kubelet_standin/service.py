# SPDX-License-Identifier: GPL-3.0-or-later
"""gRPC: kubelet's Registration service, its client of each plugin, and PodResources."""

import os
import re
import threading
import time
from concurrent import futures

import grpc

from . import api, wire

VERSION = "v1beta1"
DIAL_SECONDS = 10.0
PRE_START_SECONDS = 30.0
LIST_BURST, LIST_RATE = 10, 100  # PodResources: about 107 answers in the first second (measured)
GO_CODES = {"INVALID_ARGUMENT": "InvalidArgument", "FAILED_PRECONDITION": "FailedPrecondition", "NOT_FOUND": "NotFound",
            "DEADLINE_EXCEEDED": "DeadlineExceeded", "RESOURCE_EXHAUSTED": "ResourceExhausted", "PERMISSION_DENIED": "PermissionDenied"}


def valid_name(name):
    """Accepted: huawei.com/Ascend910, huawei.com/Ascend910-share, rocknpu.device/npu. Refused: an upper-case or underscored domain, no
    domain, *kubernetes.io, requests.* (all measured)."""
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    match = re.fullmatch(rf"({label}(\.{label})*)/([A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?)", name)
    return match is not None and not match.group(1).endswith("kubernetes.io") and not name.startswith("requests.")


def codec(schema):
    return lambda message: wire.encode(schema, message), lambda data: wire.decode(schema, data)


class Client:
    """Kubelet's connection to one plugin socket."""

    class Failure(Exception):
        pass

    def __init__(self, path):
        self.channel = grpc.insecure_channel(f"unix://{path}", options=[
            ("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1),
        ])  # gRPC's own limit of 4 MiB for one message is kubelet's too
        self.options = {"pre_start_required": False, "get_preferred_allocation_available": False}
        self.calls = []

    def method(self, name, request, response, stream=False):
        make = self.channel.unary_stream if stream else self.channel.unary_unary
        return make(f"/{VERSION}.DevicePlugin/{name}", codec(request)[0], codec(response)[1])

    def call(self, name, request_schema, response_schema, request, timeout=None):
        self.calls.append(name)
        try:
            return self.method(name, request_schema, response_schema)(request, timeout=timeout)
        except grpc.RpcError as error:
            code = error.code().name
            raise self.Failure(f"rpc error: code = {GO_CODES.get(code, code.capitalize())} desc = {error.details()}") from error

    def dial(self):
        grpc.channel_ready_future(self.channel).result(timeout=DIAL_SECONDS)
        self.options = self.call("GetDevicePluginOptions", api.EMPTY, api.OPTIONS, {})

    def preferred(self, available, must_include, size):
        request = {"available_deviceIDs": available, "must_include_deviceIDs": must_include, "allocation_size": size}
        answer = self.call("GetPreferredAllocation", api.PREFERRED_REQUEST, api.PREFERRED_RESPONSE, {"container_requests": [request]})
        return answer["container_responses"][0]["deviceIDs"] if answer["container_responses"] else []

    def allocate(self, ids):
        request = {"container_requests": [{"devices_ids": ids}]}
        answer = self.call("Allocate", api.ALLOCATE_REQUEST, api.ALLOCATE_RESPONSE, request)
        if not answer["container_responses"]:
            raise self.Failure("no containers return in allocation response")
        if self.options["pre_start_required"]:
            self.call("PreStartContainer", api.PRE_START, api.EMPTY, {"devices_ids": ids}, PRE_START_SECONDS)
        return answer["container_responses"][0]

    def watch(self, manager, name, log):
        """Follow ListAndWatch to its end; the end stops the resource."""
        self.calls.append("ListAndWatch")
        try:
            for message in self.method("ListAndWatch", api.EMPTY, api.DEVICES, stream=True)({}):
                manager.update(name, self, message["devices"])
            log(f"{name}: the plugin ended ListAndWatch")
        except grpc.RpcError as error:
            log(f"{name}: ListAndWatch ended: {error.code().name} {error.details()}")
        manager.disconnect(name)
        self.channel.close()


class Registration:
    def __init__(self, manager, log):
        self.manager, self.log = manager, log
        self.requests = []

    def register(self, request, context):
        name = request["resource_name"]
        self.requests.append({"time": time.time(), **request})
        if request["version"] != VERSION:
            asked = request["version"]
            self.refuse(context, f'requested API version "{asked}" is not supported by kubelet. Supported version is ["{VERSION}"]')
        if not valid_name(name):
            self.refuse(context, f'the ResourceName "{name}" is invalid')
        # Inside this call kubelet dials the plugin and asks for its options; ListAndWatch follows at once (measured).
        client = Client(os.path.join(self.manager.folder, request["endpoint"]))
        try:
            client.dial()
        except (grpc.FutureTimeoutError, client.Failure) as error:
            client.channel.close()
            self.refuse(context, f"failed to dial device plugin with socketPath {request['endpoint']}: {error!r}")
        self.manager.connect(name, client)
        threading.Thread(target=client.watch, args=(self.manager, name, self.log), daemon=True).start()
        self.log(f"{name}: registered at {request['endpoint']}, options {client.options}")
        return {}

    def refuse(self, context, text):
        self.log(f"registration refused: {text}")
        context.abort(grpc.StatusCode.UNKNOWN, text)


class PodResources:
    def __init__(self, manager):
        self.manager = manager
        self.tokens, self.filled, self.lock = LIST_BURST, time.monotonic(), threading.Lock()

    def devices(self, resource_name, ids):
        resource = self.manager.resources.get(resource_name)
        for device in ids:
            nodes = resource.numa.get(device, []) if resource else []
            topology = {"nodes": [{"ID": node} for node in nodes]} if nodes else None
            yield {"resource_name": resource_name, "device_ids": [device], "topology": topology}  # one entry per device (measured)

    def pod(self, record):
        devices = []
        if record["phase"] == "Running":
            devices = [entry for name, ids in record["devices"].items() for entry in self.devices(name, ids)]
        return {"name": record["name"], "namespace": record["namespace"],
                "containers": [{"name": record["container"], "devices": devices}]}

    def list(self, request, context):
        with self.lock:
            now = time.monotonic()
            self.tokens = min(LIST_BURST, self.tokens + (now - self.filled) * LIST_RATE)
            self.filled = now
            if self.tokens < 1:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            self.tokens -= 1
        with self.manager.lock:
            pods = [self.pod(record) for record in self.manager.pods.values() if record["phase"] != "Failed"]
        return {"pod_resources": pods}

    def allocatable(self, request, context):
        with self.manager.lock:
            devices = [entry for name, resource in sorted(self.manager.resources.items())
                       for entry in self.devices(name, sorted(resource.healthy | resource.unhealthy))]
        return {"devices": devices}

    def get(self, request, context):
        with self.manager.lock:
            record = self.manager.pods.get(f"{request['pod_namespace']}/{request['pod_name']}")
            if record is None:
                context.abort(grpc.StatusCode.UNKNOWN, f"pod {request['pod_name']} in namespace {request['pod_namespace']} not found")
            return {"pod_resources": self.pod(record)}


def unary(method, request, response):
    return grpc.unary_unary_rpc_method_handler(method, codec(request)[1], codec(response)[0])


def clean(folder):
    """A kubelet that starts deletes every socket in the folder and leaves files and folders alone (measured)."""
    os.makedirs(folder, exist_ok=True)
    for entry in os.scandir(folder):
        if not entry.is_symlink() and entry.stat(follow_symlinks=False).st_mode & 0o170000 == 0o140000:
            os.unlink(entry.path)
    with open(os.path.join(folder, "DEPRECATION"), "w", encoding="utf-8") as stream:
        stream.write("Please use the plugins_registry directory.\n")


def start(manager, pod_resources_folder, log):
    """Serve both sockets. They are never removed at the end: a kubelet that stops changes nothing in its folders (measured)."""
    registration, resources = Registration(manager, log), PodResources(manager)
    server = grpc.server(futures.ThreadPoolExecutor(16))
    register = unary(registration.register, api.REGISTER, api.EMPTY)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{VERSION}.Registration", {"Register": register}),))
    server.add_insecure_port(f"unix://{manager.folder}/kubelet.sock")
    os.makedirs(pod_resources_folder, exist_ok=True)
    path = os.path.join(pod_resources_folder, "kubelet.sock")
    if os.path.lexists(path):
        os.unlink(path)
    pods = grpc.server(futures.ThreadPoolExecutor(4))
    pods.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {
        "List": unary(resources.list, api.EMPTY, api.LIST_RESPONSE),
        "GetAllocatableResources": unary(resources.allocatable, api.EMPTY, api.ALLOCATABLE_RESPONSE),
        "Get": unary(resources.get, api.GET_REQUEST, api.GET_RESPONSE),
    }),))
    pods.add_insecure_port(f"unix://{path}")
    server.start()
    pods.start()
    return registration, (server, pods)
