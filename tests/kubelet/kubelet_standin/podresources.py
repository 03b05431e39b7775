# SPDX-License-Identifier: GPL-3.0-or-later
"""PodResources: which pod has which device, for monitoring; the services v1 and v1alpha1 on one socket."""

import os
import threading
import time
from concurrent import futures

import grpc

from . import api
from .pods import ENDED
from .registration import unary

BURST, RATE = 10, 100  # about 107 answers in the first second (measured)


class Limiter:
    """Tokens for all methods together (source). Time is passed in, in seconds."""

    def __init__(self, now):
        self.tokens, self.filled = float(BURST), now

    def allow(self, now):
        self.tokens = min(BURST, self.tokens + (now - self.filled) * RATE)
        self.filled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class PodResources:
    def __init__(self, devices, pods):
        self.devices, self.pods = devices, pods
        self.limiter, self.lock = Limiter(time.monotonic()), threading.Lock()

    def limited(self, answer):
        def method(request, context):
            with self.lock:
                allowed = self.limiter.allow(time.monotonic())
            if not allowed:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return answer(request, context)

        return method

    def entries(self, name, ids, topology=True):
        """One ContainerDevices entry per device (measured)."""
        resource = self.devices.resources.get(name)
        for device in ids:
            nodes = [{"ID": node} for node in resource.numa(device)] if resource and topology else []
            yield {"resource_name": name, "device_ids": [device], "topology": {"nodes": nodes} if nodes else None}

    def pod(self, pod, topology=True):
        """A pod that is being admitted is there without devices, and has them a little after Allocate (measured). Init containers that
        end are not shown (source)."""
        return {"name": pod["name"], "namespace": pod["namespace"], "containers": [
            {"name": each["name"], "devices": [entry for name, ids in each["devices"].items() if pod["shown"]
                                               for entry in self.entries(name, ids, topology)]}
            for each in pod["containers"] if each["kind"] != "init"]}

    def list(self, topology=True):
        """Pods that have not ended (measured)."""
        with self.devices.lock:
            return {"pod_resources": [self.pod(pod, topology) for pod in self.pods.pods.values() if pod["phase"] not in ENDED]}

    def allocatable(self, request, context):
        """All healthy devices, whether a pod has them or not, and whether a pod could get them or not (measured; healthy: source)."""
        with self.devices.lock:
            return {"devices": [entry for name, resource in sorted(self.devices.resources.items())
                                for entry in self.entries(name, sorted(resource.healthy))]}

    def get(self, request, context):
        name, namespace = request["pod_name"], request["pod_namespace"]
        with self.devices.lock:
            pod = self.pods.pods.get(f"{namespace}/{name}")
            if pod is None:
                context.abort(grpc.StatusCode.UNKNOWN, f"pod {name} in namespace {namespace} not found")
            return {"pod_resources": self.pod(pod)}

    def serve(self, folder):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "kubelet.sock")
        if os.path.lexists(path):
            os.unlink(path)
        server = grpc.server(futures.ThreadPoolExecutor(4))

        def handlers(service, **methods):
            made = {name: unary(self.limited(answer), request, response) for name, (answer, request, response) in methods.items()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, made),))

        handlers("v1.PodResourcesLister", List=(lambda _request, _context: self.list(), api.EMPTY, api.LIST_RESPONSE),
                 GetAllocatableResources=(self.allocatable, api.EMPTY, api.ALLOCATABLE_RESPONSE),
                 Get=(self.get, api.GET_REQUEST, api.GET_RESPONSE))
        handlers("v1alpha1.PodResourcesLister", List=(lambda _request, _context: self.list(topology=False), api.EMPTY, api.LIST_RESPONSE))
        server.add_insecure_port(f"unix://{path}")
        server.start()
        return server


