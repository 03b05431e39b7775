# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet's device manager remembers: devices of each resource, who answers for them, which pod has them.

Each rule that is marked "measured" was seen on kubelet 1.36; README.md has the list.
"""

import json
import os
import random
import threading
import time

CAPACITY_GRACE = 300.0  # a plugin gone for over 5 minutes: capacity drops to 0 (measured)


class Resource:
    def __init__(self, client=None):
        self.client = client
        self.healthy, self.unhealthy = set(), set()  # an id sent twice can be in both, and then counts twice (measured)
        self.numa = {}
        self.stopped_at = None

    def take(self, devices):
        """A list from the plugin replaces the last one; only the text Healthy counts (measured)."""
        self.healthy = {device["ID"] for device in devices if device["health"] == "Healthy"}
        self.unhealthy = {device["ID"] for device in devices if device["health"] != "Healthy"}
        self.numa = {}
        for device in devices:
            nodes = (device["topology"] or {"nodes": []})["nodes"]
            if nodes:  # TopologyInfo without nodes is no topology (measured)
                self.numa[device["ID"]] = [node["ID"] for node in nodes]

    def stop(self):
        """The stream broke: all devices are unhealthy at once, the capacity stays (measured)."""
        self.unhealthy |= self.healthy
        self.healthy, self.stopped_at, self.client = set(), time.monotonic(), None

    def numbers(self):
        """(capacity, allocatable)"""
        if self.stopped_at is not None and time.monotonic() - self.stopped_at > CAPACITY_GRACE:
            return 0, 0
        return len(self.healthy) + len(self.unhealthy), len(self.healthy)


class AdmissionError(Exception):
    """The pod fails: reason and message as its status shows them."""

    def __init__(self, reason, message):
        super().__init__(message)
        self.reason = reason


class Manager:
    def __init__(self, folder, topology_policy="none", host_nodes=(0,)):
        self.folder = folder
        self.checkpoint = os.path.join(folder, "kubelet_internal_checkpoint")
        self.policy, self.host_nodes = topology_policy, set(host_nodes)
        self.lock = threading.RLock()
        self.resources, self.pods = {}, {}
        self.changed = threading.Event()
        self.load()

    def load(self):
        """Pods keep their devices across a restart; resources start with nothing until their plugin registers again (measured)."""
        try:
            with open(self.checkpoint, encoding="utf-8") as stream:
                kept = json.load(stream)
        except (OSError, ValueError):
            return
        self.pods = kept["pods"]
        self.resources = {name: Resource() for name in kept["resources"]}

    def save(self):
        kept = {"pods": self.pods, "resources": sorted(self.resources)}
        with open(self.checkpoint + ".new", "w", encoding="utf-8") as stream:
            json.dump(kept, stream)
        os.rename(self.checkpoint + ".new", self.checkpoint)

    def connect(self, name, client):
        with self.lock:
            known = self.resources.setdefault(name, Resource())
            known.client, known.stopped_at = client, None
            self.save()

    def update(self, name, client, devices):
        with self.lock:
            if self.resources[name].client is client:
                self.resources[name].take(devices)
                self.changed.set()

    def disconnect(self, name):
        """The end of a stream, found by the resource's name: a late end of an old stream stops its successor too (kubelet's source)."""
        with self.lock:
            self.resources[name].stop()
            self.changed.set()

    def numbers(self):
        with self.lock:
            found = {name: resource.numbers() for name, resource in sorted(self.resources.items())}
        return {"capacity": {name: pair[0] for name, pair in found.items()}, "allocatable": {name: pair[1] for name, pair in found.items()}}

    def taken(self, name):
        return {device for pod in self.pods.values() for device in pod["devices"].get(name, [])}

    def allocate(self, count, name, pod, container="main", namespace="default"):
        """Admit a pod with one container. Returns its record; AdmissionError leaves the pod Failed, as kubelet does."""
        key = f"{namespace}/{pod}"
        with self.lock:
            if key in self.pods:
                raise ValueError(f"there is a pod {key} already")
            record = {"name": pod, "namespace": namespace, "container": container, "phase": "Pending", "devices": {}}
            self.pods[key] = record
        try:
            response = self.admit(count, name, record)
        except AdmissionError as error:
            record.update(phase="Failed", reason=error.reason, message=str(error), devices={})
            self.save()
            raise
        record.update(phase="Running", response=response)
        for device in response["devices"]:
            if not os.path.lexists(device["host_path"]):
                text = f"lstat {device['host_path']}: no such file or directory"
                record.update(phase="Pending", reason="CreateContainerError", message=text)
        with self.lock:
            self.save()
        return record

    def admit(self, count, name, record):
        with self.lock:
            resource = self.resources.get(name)
            if resource is None:
                raise AdmissionError("UnexpectedAdmissionError", f"Allocate failed due to cannot allocate unregistered device {name}, "
                                     "which is unexpected")
            if not resource.healthy:
                text = f"no healthy devices present; cannot allocate unhealthy devices {name}"
                raise AdmissionError("UnexpectedAdmissionError", f"Allocate failed due to {text}, which is unexpected")
            free = resource.healthy - self.taken(name)
            if len(free) < count:
                text = f"requested number of devices unavailable for {name}. Requested: {count}, Available: {len(free)}"
                raise AdmissionError("UnexpectedAdmissionError", f"Allocate failed due to {text}, which is unexpected")
            chosen = self.choose(resource, free, count)
            record["devices"] = {name: sorted(chosen)}
            client = resource.client
        try:
            return client.allocate(shuffled(chosen))
        except client.Failure as error:
            raise AdmissionError("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected") from error

    def choose(self, resource, free, count):
        """The plugin's preference among all free ids; filled up, and cut, from those that are free (measured)."""
        if self.policy == "restricted":
            free = self.aligned(resource, free, count)
            if len(free) == count:
                return free  # measured: the plugin is not asked then
        preferred = []
        if resource.client.options["get_preferred_allocation_available"]:
            preferred = [device for device in resource.client.preferred(shuffled(free), [], count) if device in free][:count]
        rest = shuffled(free - set(preferred))
        return set(preferred) | set(rest[: count - len(set(preferred))])

    def aligned(self, resource, free, count):
        """The NUMA node with enough free devices, else all; a node that the host has not rejects the pod (measured)."""
        if not resource.numa:
            return free
        unknown = {node for nodes in resource.numa.values() for node in nodes} - self.host_nodes
        if unknown:
            raise AdmissionError("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
        for node in sorted(self.host_nodes):
            here = {device for device in free if node in resource.numa.get(device, [])}
            if len(here) >= count:
                return here
        return free

    def delete(self, pod, namespace="default"):
        with self.lock:
            self.pods.pop(f"{namespace}/{pod}")
            self.save()


def shuffled(ids):
    """Kubelet takes ids out of a map: their order is never the same (measured)."""
    return random.sample(sorted(ids), len(ids))
