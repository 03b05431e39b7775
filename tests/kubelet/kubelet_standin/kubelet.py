# SPDX-License-Identifier: GPL-3.0-or-later
"""The process: sockets, node status, commands. `python3 -m kubelet_standin --help`"""

import argparse
import json
import os
import signal
import sys
import threading
import time
import urllib.request

from . import service
from .control import SOCKET, Control
from .devices import Manager


def log(text):
    print(text, file=sys.stderr, flush=True)


class NodeStatus(threading.Thread):
    """Kubelet tells the API server every 10 s, so what people see is that late (measured); `seconds` makes it another period."""

    def __init__(self, manager, options):
        super().__init__(daemon=True)
        self.manager, self.options = manager, options
        self.last = {"capacity": {}, "allocatable": {}}
        self.error = None
        self.kept = os.path.join(os.path.dirname(options.plugins), "standin-join.json")
        self.joined = read_json(self.kept)

    def join_cluster(self, server, token):
        self.joined = {"server": server if "://" in server else f"http://{server}", "token": token}
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
                    log(f"node status: {error}")
                self.error = str(error)
            time.sleep(self.options.status_seconds)

    def report(self):
        self.last = self.manager.numbers()
        if not self.joined:
            return
        numbers = {key: {name: str(count) for name, count in value.items()} for key, value in self.last.items()}
        url = f"{self.joined['server']}/api/v1/nodes/{self.options.node}/status"
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


class Kubelet:
    def __init__(self, options):
        self.options, self.start = options, time.time()
        service.clean(options.plugins)
        self.manager = Manager(options.plugins, options.topology_policy, options.numa_nodes)
        self.registration, self.servers = service.start(self.manager, options.pod_resources, log)
        self.status = NodeStatus(self.manager, options)
        self.status.start()
        self.control = Control(options.control, self)

    def command(self, name, **arguments):
        return getattr(self, "do_" + name)(**arguments)

    def do_info(self):
        return {"start": self.start, "pid": os.getpid(), "node": self.options.node}

    def do_nodes(self):
        return {self.options.node: self.status.last}

    def do_allocatable(self):
        return self.manager.numbers()["allocatable"]

    def do_capacity(self):
        return self.manager.numbers()["capacity"]

    def do_join(self, server, token=""):
        self.status.join_cluster(server, token)
        return {"node": self.options.node, "server": server}

    def do_devices(self):
        with self.manager.lock:
            return {
                name: {device: {"healthy": device in resource.healthy, "numa": resource.numa.get(device, [])}
                       for device in sorted(resource.healthy | resource.unhealthy)}
                for name, resource in self.manager.resources.items()
            }

    def do_registrations(self):
        return self.registration.requests

    def do_calls(self, resource):
        client = self.manager.resources[resource].client
        return client.calls if client else []

    def do_allocate(self, count, resource, pod):
        return self.manager.allocate(count, resource, pod)

    def do_pods(self):
        with self.manager.lock:
            return dict(self.manager.pods)

    def do_delete(self, pod):
        self.manager.delete(pod)
        return pod

    def do_restart(self, down=0.0):
        threading.Timer(0.05, again, [down]).start()
        return "restarting"


def again(down):
    """A new process image closes every socket and removes none, as the end of a kubelet does."""
    log(f"restarting after {down} s")
    os.environ["KUBELET_STANDIN_DOWN"] = str(down)
    # By its own path where it has one: a process keeps the name of what was executed.
    program, words = (sys.argv[0], sys.argv) if os.access(sys.argv[0], os.X_OK) else (sys.executable, sys.orig_argv)
    os.execv(program, words)  # noqa: S606  no shell is wanted


def parse(argv):
    env = os.environ.get
    parser = argparse.ArgumentParser(description=__doc__)
    root = env("KUBELET_STANDIN_ROOT", "/var/lib/kubelet")
    parser.add_argument("--plugins", default=f"{root}/device-plugins")
    parser.add_argument("--pod-resources", default=f"{root}/pod-resources")
    parser.add_argument("--control", default=env("KUBELET_STANDIN_SOCKET", SOCKET))
    parser.add_argument("--node", default=env("KUBELET_STANDIN_NODE") or os.uname().nodename)
    parser.add_argument("--status-seconds", type=float, default=float(env("KUBELET_STANDIN_STATUS_SECONDS", "10")))
    parser.add_argument("--topology-policy", choices=["none", "restricted"], default=env("KUBELET_STANDIN_TOPOLOGY_POLICY", "none"))
    parser.add_argument("--numa-nodes", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1])
    parser.add_argument("--container-runtime-endpoint", metavar="ADDRESS", help="of the engine, for those who look; pods run nowhere")
    parser.add_argument("--version", action="version", version="Kubernetes v1.36.0")
    return parser.parse_args(argv)


def main(argv=None):
    options = parse(argv)
    time.sleep(float(os.environ.pop("KUBELET_STANDIN_DOWN", "0")))
    # Waited for, not handled: a handler would not run while gRPC's threads take the signals and this one sleeps.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    Kubelet(options)
    log(f"kubelet stand-in: node {options.node}, plugins in {options.plugins}, control at {options.control}")
    signal.sigwait(ends)
    os._exit(0)  # nothing is closed and nothing removed: a kubelet that stops leaves its folders as they are (measured)
