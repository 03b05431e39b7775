# SPDX-License-Identifier: GPL-3.0-or-later
"""The process: sockets, node status, commands. `python3 -m kubelet_standin --help`"""

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time

from . import node, registration, topology
from .cluster import Cluster
from .control import SOCKET, Control
from .devices import GRACE_SECONDS, Devices
from .journal import Journal
from .podresources import PodResources
from .pods import Pods, key_of, new_pod, one_container
from .registration import Registration
from .rough import Rough

NEXT = "KUBELET_STANDIN_NEXT"  # how the process that follows a restart is to begin


def log(text):
    print(text, file=sys.stderr, flush=True)


class Kubelet:
    def __init__(self, options, begin):
        self.options, self.start = options, time.time()
        self.socket = os.path.join(options.plugins, "kubelet.sock")
        if begin.get("replace_folder") and os.path.isdir(options.plugins):
            # Moved away in one step: a plugin that puts its socket back while a folder is being emptied would keep it from going.
            os.rename(options.plugins, options.plugins + ".old")
            shutil.rmtree(options.plugins + ".old", ignore_errors=True)
        os.makedirs(options.plugins, exist_ok=True)
        inode = os.lstat(self.socket).st_ino if begin.get("same_inode") and os.path.lexists(self.socket) else None
        self.journal, self.rough = Journal(), Rough(options.rough)
        self.devices = Devices(self.journal, options.grace_seconds)
        self.pods = Pods(self.devices, options.plugins, options.topology_policy, options.numa_nodes, options.cdi_folders)
        self.pods.load(begin.get("reboot", False))
        self.registration = Registration(self.devices, options.plugins, self.rough, log, options.dial_seconds)
        self.servers = [registration.serve(self.registration, inode), PodResources(self.devices, self.pods).serve(options.pod_resources)]
        if inode and os.lstat(self.socket).st_ino != inode:
            log("kubelet.sock has another inode: another process was quicker, or this file system does not give a number away twice")
        kept = os.path.join(os.path.dirname(options.plugins), "standin-join.json")
        self.status = node.NodeStatus(self.devices, options.node, options.status_seconds, kept, log)
        self.status.start()
        threading.Thread(target=self.sync, daemon=True).start()
        Cluster(self, log).start()
        self.waiting = {}  # pods that the scheduler has not placed: kubelet does not know them
        self.control = Control(options.control, self)

    def sync(self):
        while True:
            time.sleep(self.options.sync_seconds)
            self.pods.retry()

    def command(self, name, **arguments):
        return getattr(self, "do_" + name)(**arguments)

    def do_info(self):
        return {"start": self.start, "pid": os.getpid(), "node": self.options.node}

    # The node.

    def do_nodes(self):
        return {self.options.node: self.status.last}

    def do_allocatable(self):
        return self.devices.numbers()["allocatable"]

    def do_capacity(self):
        return self.devices.numbers()["capacity"]

    def do_report(self):
        self.status.report()
        return self.status.last

    def do_join(self, server, token="", pods=False):
        self.status.join_cluster(server, token, pods)
        return {"node": self.options.node, "server": server}

    # Plugins.

    def do_devices(self):
        return self.devices.describe()

    def do_registrations(self):
        return self.registration.requests

    def do_plugins(self):
        return self.registration.describe()

    def do_calls(self, resource):
        return list(self.registration.calls[resource])

    def do_history(self, after=0, kind=None, resource=None, seconds=0.0):
        return self.journal.read(after, kind, resource, seconds)

    # Pods.

    def do_allocate(self, count, resource, pod, env=None, schedule=None):
        return self.do_create(one_container(pod, count, resource, env), schedule)

    def do_create(self, manifest, schedule=None):
        pod = new_pod(manifest)
        if schedule is not None:
            self.waiting[key_of(pod)] = pod
            if not node.schedule(self.status, self.pods.pods, pod, schedule):
                return self.pods.describe(pod)
            del self.waiting[key_of(pod)]
        self.pods.run(pod)
        return self.pods.describe(pod)

    def do_pods(self):
        return {key: self.pods.describe(pod) for key, pod in [*self.waiting.items(), *self.pods.pods.items()]}

    def do_delete(self, pod):
        self.pods.delete(pod)
        return pod

    def do_finish(self, pod):
        self.pods.finish(pod)
        return pod

    # Trouble.

    def do_end_stream(self, resource):
        return self.registration.end_stream(resource)

    def do_drop_socket(self):
        os.unlink(self.socket)
        return self.socket

    def do_rough(self, **values):
        self.rough.change(values.items())
        return self.rough.values

    def do_restart(self, down=0.0, same_inode=False, replace_folder=False, reboot=False):
        begin = {"down": down, "same_inode": same_inode, "replace_folder": replace_folder, "reboot": reboot}
        threading.Timer(0.05, again, [begin]).start()
        return "restarting"


def again(begin):
    """A new process image closes every socket and removes none, as the end of a kubelet does."""
    log(f"restarting: {begin}")
    os.environ[NEXT] = json.dumps(begin)
    # By its own path where it has one: a process keeps the name of what was executed.
    if os.access(sys.argv[0], os.X_OK):
        os.execv(sys.argv[0], sys.argv)  # noqa: S606  no shell is wanted
    os.execv(sys.executable, [sys.executable, "-m", __package__, *sys.argv[1:]])  # noqa: S606


def parse(argv):
    env = os.environ.get
    parser = argparse.ArgumentParser(description=__doc__)
    root = env("KUBELET_STANDIN_ROOT", "/var/lib/kubelet")
    parser.add_argument("--plugins", default=f"{root}/device-plugins")
    parser.add_argument("--pod-resources", default=f"{root}/pod-resources")
    parser.add_argument("--control", default=env("KUBELET_STANDIN_SOCKET", SOCKET))
    parser.add_argument("--node", default=env("KUBELET_STANDIN_NODE") or os.uname().nodename)
    parser.add_argument("--status-seconds", type=float, default=float(env("KUBELET_STANDIN_STATUS_SECONDS", "10")))
    parser.add_argument("--topology-policy", choices=topology.POLICIES, default=env("KUBELET_STANDIN_TOPOLOGY_POLICY", "none"))
    parser.add_argument("--numa-nodes", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1], metavar="N,N")
    parser.add_argument("--cdi-folders", type=lambda text: text.split(","), metavar="DIR,DIR",
                        help="the engine has CDI and reads specifications there; without this option it has none")
    parser.add_argument("--grace-seconds", type=float, default=GRACE_SECONDS, help="until the capacity of a lost plugin is 0")
    parser.add_argument("--dial-seconds", type=float, default=registration.DIAL_SECONDS, help="for which Register waits for a plugin")
    parser.add_argument("--sync-seconds", type=float, default=10.0, help="until a container that could not be created is tried again")
    parser.add_argument("--rough", action="append", default=[], metavar="NAME=VALUE", help="list=0, dial_delay=SECONDS, refuse=1")
    parser.add_argument("--container-runtime-endpoint", metavar="ADDRESS", help="of the engine, for those who look; pods run nowhere")
    parser.add_argument("--version", action="version", version="Kubernetes v1.36.0")
    return parser.parse_args(argv)


def main(argv=None):
    options = parse(argv)
    begin = json.loads(os.environ.pop(NEXT, "{}"))
    time.sleep(begin.get("down", 0.0))
    # Waited for, not handled: a handler would not run while gRPC's threads take the signals and this one sleeps.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    Kubelet(options, begin)
    log(f"kubelet stand-in: node {options.node}, plugins in {options.plugins}, control at {options.control}")
    signal.sigwait(ends)
    os._exit(0)  # nothing is closed and nothing removed: a kubelet that stops leaves its folders as they are (measured)
