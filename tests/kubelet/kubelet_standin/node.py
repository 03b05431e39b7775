# SPDX-License-Identifier: GPL-3.0-or-later
"""The Node object: what kubelet reports of it, and the scheduler, which knows nothing but that report."""

import json
import os
import threading
import time
import urllib.request

from .pods import ENDED, wanted


class NodeStatus(threading.Thread):
    """Kubelet tells the API server every 10 s, so what people see is that late (measured); `seconds` makes it another period."""

    def __init__(self, devices, name, seconds, kept, log):
        super().__init__(daemon=True)
        self.devices, self.name_of_node, self.seconds, self.kept, self.log = devices, name, seconds, kept, log
        self.last = {"capacity": {}, "allocatable": {}}
        self.reports, self.reported = 0, threading.Condition()
        self.error = None
        self.joined = read_json(kept)

    def join_cluster(self, server, token, pods=False):
        self.joined = {"server": server if "://" in server else f"http://{server}", "token": token, "pods": pods}
        with open(os.open(self.kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            json.dump(self.joined, stream)
        self.report()

    def run(self):
        while True:
            try:
                self.report()
                self.error = None
            except OSError as error:
                if str(error) != self.error:
                    self.log(f"node status: {error}")
                self.error = str(error)
            time.sleep(self.seconds)

    def report(self):
        with self.reported:
            self.last = self.devices.numbers()
            self.reports += 1
            self.reported.notify_all()
        if not self.joined:
            return
        numbers = {key: {name: str(count) for name, count in value.items()} for key, value in self.last.items()}
        url = f"{self.joined['server']}/api/v1/nodes/{self.name_of_node}/status"
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        if self.joined["token"]:
            headers["Authorization"] = f"Bearer {self.joined['token']}"
        request = urllib.request.Request(url, json.dumps({"status": numbers}).encode(), headers, method="PATCH")  # noqa: S310  http(s) or nothing
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as response:
            response.read()


def read_json(path):
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def missing(allocatable, pods, pod):
    """Names of resources of which the last node status has too few for one more pod. Other pods count with what they ask for."""
    others = [other for other in pods if other["phase"] not in ENDED]
    names = sorted({name for each in pod["containers"] for name in each["requests"]})
    return [name for name in names if wanted(pod, name) > allocatable.get(name, 0) - sum(wanted(other, name) for other in others)]


def schedule(status, pods, pod, seconds):
    """Bind a pod to the node: at once, or when a later node status has what it asks for. False when that does not come in time. The
    pod's events tell of it: FailedScheduling once, however long it takes (measured, when a resource had only just appeared)."""
    deadline = time.monotonic() + seconds
    with status.reported:
        while True:
            short = missing(status.last["allocatable"], list(pods.values()), pod)
            if not short:
                pod["events"].append("Scheduled")
                return True
            if not pod["events"]:
                pod["events"].append(f"FailedScheduling: 0/1 nodes are available: 1 Insufficient {', '.join(short)}.")
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            status.reported.wait(left)
