# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet's device manager knows of each resource: its devices, and who answers for them.

Rules marked "measured" were seen on kubelet 1.36, those marked "source" were read there; README.md has the list.
"""

import threading
import time

GRACE_SECONDS = 300.0  # a plugin gone for over 5 minutes: capacity drops to 0 (measured)


class Resource:
    def __init__(self):
        self.client, self.options = None, None  # the newest that registered, and what it said of itself
        self.listed = False
        self.devices = {}  # id -> as it was sent last
        self.healthy, self.unhealthy = set(), set()  # an id sent twice can be in both, and then counts twice (measured)
        self.stopped_at = None

    def take(self, devices):
        """A list from a plugin replaces the last one; only the text Healthy counts (measured)."""
        self.devices = {device["ID"]: device for device in devices}
        self.healthy = {device["ID"] for device in devices if device["health"] == "Healthy"}
        self.unhealthy = {device["ID"] for device in devices if device["health"] != "Healthy"}
        self.listed = True

    def stop(self, now):
        """The stream broke: all devices are unhealthy at once, the capacity stays (measured)."""
        self.unhealthy |= self.healthy
        self.healthy, self.stopped_at, self.listed = set(), now, True

    def numa(self, device):
        """NUMA nodes of a device; TopologyInfo without nodes is no topology (measured)."""
        topology = self.devices.get(device, {}).get("topology")
        return [node["ID"] for node in topology["nodes"]] if topology else []


class Devices:
    """Resources by name. Everything that reads or changes them holds `lock`. `save` is called after each list, as kubelet writes its
    checkpoint then: plugins that watch the folder see that (source)."""

    def __init__(self, journal, grace_seconds=GRACE_SECONDS):
        self.journal, self.grace = journal, grace_seconds
        self.lock = threading.RLock()
        self.resources = {}
        self.removed = set()  # their plugin was gone for too long: the Node object keeps the name, with 0
        self.save = lambda: None

    def restart(self, names):
        """After a restart each resource is there with nothing, until its plugin registers again (measured)."""
        for name in names:
            self.resources[name] = Resource()
            self.resources[name].stop(time.monotonic())

    def connect(self, name, client):
        with self.lock:
            resource = self.resources.setdefault(name, Resource())
            resource.client, resource.options, resource.stopped_at = client, client.options, None

    def update(self, name, devices, stream):
        """A list came, from any stream of this resource that is open (source)."""
        with self.lock:
            resource = self.resources.setdefault(name, Resource())
            before = {key: device["health"] for key, device in resource.devices.items()}
            resource.take(devices)
            after = {key: device["health"] for key, device in resource.devices.items()}
            changed = {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
            self.journal.write("list", name, stream=stream, sent=len(devices), healthy=len(resource.healthy),
                               total=len(resource.healthy) + len(resource.unhealthy), changed=changed)
        self.save()

    def disconnect(self, name):
        with self.lock:
            if name in self.resources:
                self.resources[name].stop(time.monotonic())

    def numbers(self):
        """{"capacity": {name: n}, "allocatable": {name: n}}; a plugin that is gone for too long is forgotten here, as kubelet does it when
        it reports the node's status."""
        with self.lock:
            for name, resource in list(self.resources.items()):
                if resource.stopped_at is not None and time.monotonic() - resource.stopped_at > self.grace:
                    del self.resources[name]
                    self.removed.add(name)
            listed = {name: resource for name, resource in self.resources.items() if resource.listed}
            zero = dict.fromkeys(self.removed, 0)
            return {
                "capacity": {**zero, **{name: len(one.healthy) + len(one.unhealthy) for name, one in sorted(listed.items())}},
                "allocatable": {**zero, **{name: len(one.healthy) for name, one in sorted(listed.items())}},
            }

    def registered(self, name):
        """The resource when a plugin's list, or its end, was seen; else None."""
        resource = self.resources.get(name)
        return resource if resource is not None and resource.listed else None

    def describe(self):
        with self.lock:
            return {name: {device: {"healthy": device in resource.healthy, "numa": resource.numa(device)}
                           for device in sorted(resource.healthy | resource.unhealthy)}
                    for name, resource in self.resources.items()}
