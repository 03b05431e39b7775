# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps this node's NPUs registered with kubelet, whatever either of them goes through."""

import asyncio
import os
import socket

import grpc

from .log import Once
from .plugin import Plugin, register
from .watch import Folder, stamp

STREAM_SECONDS = 5.0  # kubelet opens ListAndWatch within milliseconds of Register (measured)
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
TAKEN_OVER_POLL = 2.0
KNOCKS = 20

# States, as /readyz tells them.
STARTING, NO_NPU, DRIVER, KUBELET, REGISTERING, SERVING, STANDBY = (
    "starting", "no_npu", "driver_unusable", "waiting_for_kubelet", "registering", "serving", "standby",
)


class Session:
    def __init__(self, settings, board, log, counters):
        self.settings, self.board, self.log, self.counters = settings, board, log, counters
        self.state, self.cause = STARTING, ""
        self.registered = False
        self.plugin = None
        self.stopping, self.look_again = asyncio.Event(), asyncio.Event()
        self.folder = Folder(settings.kubelet_dir)
        self.kubelet_socket = os.path.join(settings.kubelet_dir, "kubelet.sock")
        self.say = Once(log)
        self.failures, self.knocks, self.knocked = 0, 0, None

    @property
    def endpoint(self):
        return f"npu-agent-{self.board.resource.rsplit('/', 1)[1][:24]}.sock"

    @property
    def stream_open(self):
        return self.plugin is not None and self.plugin.streams > 0

    def enter(self, state, cause="", event=None, level="info"):
        """Take a state; an event says it once, with its cause."""
        self.state, self.cause = state, cause
        if event:
            self.say(event, level, cause=cause)

    async def run(self):
        self.folder.start()
        try:
            while not self.stopping.is_set():
                await self.once()
        finally:
            self.folder.close()

    async def once(self):
        """From no registration to the end of one."""
        if self.board.resource is None:
            self.without_chips()
            self.look_again.clear()
            await self.folder.wait(self.stopping, self.look_again)
            return
        before = stamp(self.kubelet_socket)
        if before is None or not alive(self.kubelet_socket):
            await self.await_kubelet(before)
            return
        path = os.path.join(self.settings.kubelet_dir, self.endpoint)
        plugin = self.plugin = Plugin(self.board, self.settings, self.log, self.counters)
        try:
            await plugin.open(path)
            await self.register(plugin)
            cause = await self.hold(plugin, before)
        except OSError as error:
            cause = f"cannot serve in {self.settings.kubelet_dir}: {error}"
            self.fail(cause)
        except grpc.RpcError as error:
            cause = f"kubelet refused the registration: {error.details() or error.code().name}"
            self.fail(cause)
        finally:
            was, self.registered = self.registered, False
            taken = plugin.own is not None and not plugin.owned() and alive(path)
            await plugin.close()
            self.plugin = None
        if self.stopping.is_set():
            return
        if was:
            self.log("registration ended", "warning")
        if taken:
            await self.stand_by(path)
        elif self.failures:
            await self.pause(RETRY_SECONDS[min(self.failures, len(RETRY_SECONDS)) - 1])

    def without_chips(self):
        if self.board.present is False:
            self.enter(NO_NPU, "this node has no NPU", "no NPU on this node; looking again from time to time")
        elif self.board.present:
            cause = "; ".join(self.board.problems) or "the driver names no chip"
            self.enter(DRIVER, cause, "the NPUs cannot be used, nothing is registered", "error")

    async def await_kubelet(self, seen):
        """Kubelet's socket has a name before somebody listens on it, so a new one is tried more often for a moment."""
        self.failures = 0
        self.knocks = self.knocks + 1 if seen == self.knocked else 0
        self.knocked = seen
        if os.path.exists(self.kubelet_socket):
            cause = f"nobody listens on {self.kubelet_socket}: kubelet does not run"
        elif os.path.isdir(self.settings.kubelet_dir):
            cause = f"there is no {self.kubelet_socket}: kubelet does not run"
        else:
            cause = (f"there is no folder {self.settings.kubelet_dir}: kubelet has never run here, or has it elsewhere "
                     "(kubelet has it fixed at /var/lib/kubelet/device-plugins)")
        self.enter(KUBELET, cause)
        self.say.event("waiting for kubelet", cause=cause)
        await self.pause(0.05 if seen and self.knocks < KNOCKS else None)

    async def register(self, plugin):
        self.enter(REGISTERING, self.cause if self.failures else "")
        plugin.stream_changed.clear()
        await register(self.kubelet_socket, os.path.basename(plugin.path), self.board.resource)
        self.counters["registrations"] += 1

    def fail(self, cause):
        self.failures += 1
        self.enter(REGISTERING, cause, "not registered, trying again", "warning")

    async def hold(self, plugin, before):
        """Return why the registration is over."""
        deadline = asyncio.get_running_loop().time() + STREAM_SECONDS
        while True:
            if self.stopping.is_set():
                return "stopping"
            if not plugin.owned():
                return "the plugin's socket is gone: kubelet has started anew"
            if stamp(self.kubelet_socket) not in (before, None):
                return "kubelet has a new socket: it has started anew"
            plugin.stream_changed.clear()
            if plugin.streams:
                self.serve()
            elif plugin.streamed:
                self.failures += 1
                return "kubelet ended the stream"
            elif asyncio.get_running_loop().time() > deadline:
                self.fail("kubelet took the registration but did not ask for the devices")
                return self.cause
            await self.folder.wait(plugin.stream_changed, self.stopping)

    def serve(self):
        if self.registered:
            return
        self.registered, self.failures = True, 0
        healthy, total = self.board.count()
        self.say.over()
        self.enter(SERVING)
        self.log("registered", resource=self.board.resource, endpoint=self.endpoint, healthy=healthy, total=total)

    async def stand_by(self, path):
        """Another agent has taken the socket's name. Two that fight for it would flap; this one waits until the other is gone."""
        self.enter(STANDBY, f"another agent serves {path}", "another agent has taken over, standing by", "warning")
        while not self.stopping.is_set() and alive(path):
            await self.folder.wait(self.stopping, timeout=TAKEN_OVER_POLL)

    async def pause(self, seconds):
        await self.folder.wait(self.stopping, **({} if seconds is None else {"timeout": seconds}))


def alive(path):
    """Somebody accepts connections on this socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
