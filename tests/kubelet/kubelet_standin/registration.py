# SPDX-License-Identifier: GPL-3.0-or-later
"""kubelet.sock: the Registration service, the clients that come of it, and the folder they live in."""

import collections
import os
import re
import stat
import threading
import time
from concurrent import futures

import grpc

from . import api
from .plugin import VERSION, Client, Failure, decoder, encoder

DIAL_SECONDS = 10.0
CALLS_KEPT = 1000


def valid_name(name):
    """Accepted: huawei.com/Ascend910, huawei.com/Ascend910-share, rocknpu.device/npu. Refused: an upper-case or underscored domain, no
    domain, *kubernetes.io, requests.* (all measured)."""
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    match = re.fullmatch(rf"({label}(\.{label})*)/([A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?)", name)
    domain = match.group(1) if match else ""
    own = domain.endswith("kubernetes.io") or name.startswith("requests.")
    return match is not None and not own and len("requests." + domain) <= 253  # quota prefixes the name


class Registration:
    def __init__(self, devices, folder, rough, log, dial_seconds=DIAL_SECONDS):
        self.devices, self.folder, self.rough, self.log, self.dial_seconds = devices, folder, rough, log, dial_seconds
        self.requests = []
        self.clients = {}  # the newest of each resource
        self.open = collections.defaultdict(list)  # clients whose ListAndWatch is running
        self.calls = collections.defaultdict(lambda: collections.deque(maxlen=CALLS_KEPT))
        self.counts = collections.defaultdict(collections.Counter)
        self.streams = 0

    def register(self, request, context):
        name = request["resource_name"]
        self.requests.append({"time": time.time(), "monotonic": time.monotonic(), **request})
        self.counts[name]["Register"] += 1
        self.devices.journal.write("register", name, endpoint=request["endpoint"])
        try:
            self.connect(request)
        except Failure as error:
            self.log(f"registration of {name} refused: {error}")
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return {}

    def connect(self, request):
        """Inside Register kubelet dials the plugin and asks for its options; ListAndWatch follows at once (measured)."""
        name, asked = request["resource_name"], request["version"]
        if asked != VERSION:
            raise Failure(f'requested API version "{asked}" is not supported by kubelet. Supported version is ["{VERSION}"]')
        if not valid_name(name):
            raise Failure(f'the ResourceName "{name}" is invalid')
        def note(method):
            self.calls[name].append(method)
            self.counts[name][method] += 1

        client = Client(os.path.join(self.folder, request["endpoint"]), note)
        self.clients[name] = client
        try:
            self.rough.before_dial()
            client.dial(self.dial_seconds)
        except Failure:
            # By name: an older client that still runs is forgotten with it, and nobody will see its end (source).
            self.clients.pop(name, None)
            client.close()
            raise
        self.devices.connect(name, client)
        self.log(f"{name}: registered at {request['endpoint']}, options {client.options}")
        if self.rough.values["list"]:
            self.streams += 1
            threading.Thread(target=self.follow, args=(name, client, self.streams), daemon=True).start()

    def follow(self, name, client, number):
        """ListAndWatch to its end; kubelet does not call it again (measured)."""
        self.open[name].append(client)
        self.devices.journal.write("stream", name, stream=number)
        try:
            for devices in client.lists():
                self.devices.update(name, devices, number)
            why = "the plugin ended it"
        except Failure as error:
            why = str(error)
        self.log(f"{name}: ListAndWatch ended: {why}")
        self.open[name].remove(client)
        # The client to disconnect is looked up by the resource's name. When the plugin registered again before this stream ended, that is
        # the new client: its connection is closed, and the plugin has to register once more. When it was just being dialled, it lives, but
        # nobody will see its end (source).
        newest = self.clients.pop(name, None)
        if newest is not None:
            newest.disconnect()
            self.devices.disconnect(name)
        self.devices.journal.write("end", name, stream=number, why=why)

    def end_stream(self, name):
        """From kubelet's side, as when its connection breaks. Returns how many there were."""
        clients = list(self.open[name])
        for client in clients:
            client.end()
        return len(clients)

    def describe(self):
        """What plugins did, by resource."""
        answer = {}
        for name, counts in list(self.counts.items()):
            last = next(request for request in reversed(self.requests) if request["resource_name"] == name)
            resource = self.devices.resources.get(name)
            answer[name] = {"endpoint": last["endpoint"], "registered_options": last["options"], "options": resource and resource.options,
                            "streams": len(self.open[name]), "calls": dict(counts)}
        return answer


def clean(folder):
    """A kubelet that starts deletes every socket in the folder and leaves files and folders alone (measured). Its own one goes last, so
    that the next has a chance of the same inode, as was seen."""
    os.makedirs(folder, exist_ok=True)
    own = os.path.join(folder, "kubelet.sock")
    sockets = [entry.path for entry in os.scandir(folder) if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)]
    for path in sorted(sockets, key=lambda path: path == own):
        os.unlink(path)
    with open(os.path.join(folder, "DEPRECATION"), "w", encoding="utf-8") as stream:
        stream.write("Please use the plugins_registry directory.\n")


def hold_inode(folder, inode, tries=256):
    """Make `inode` the next one that the file system gives away in this folder, where it gives them away again at all: files that got
    another one are kept until then. Returns their paths."""
    kept = []
    for number in range(tries):
        path = os.path.join(folder, f".inode-{number}")
        with open(path, "w", encoding="utf-8"):
            pass
        if os.stat(path).st_ino == inode:
            os.unlink(path)
            break
        kept.append(path)
    return kept


def unary(method, request, response):
    return grpc.unary_unary_rpc_method_handler(method, decoder(request), encoder(response))


def serve(registration, inode=None):
    """kubelet.sock. It is never removed at the end: a kubelet that stops changes nothing in its folder (measured).

    inode: number that the socket should have, where the file system can.
    """
    clean(registration.folder)
    register = unary(registration.register, api.REGISTER, api.EMPTY)
    server = grpc.server(futures.ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{VERSION}.Registration", {"Register": register}),))
    kept = hold_inode(registration.folder, inode) if inode else []
    server.add_insecure_port(f"unix://{registration.folder}/kubelet.sock")
    for name in kept:
        os.unlink(name)
    server.start()
    return server
