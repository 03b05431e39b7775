# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps one resource of this node registered with kubelet, whatever either of them goes through."""

import asyncio
import os
import zlib

import grpc

from .log import Once
from .plugin import Plugin, alive, register, until
from .watch import stamp

# Kubelet opens ListAndWatch within milliseconds of Register (measured). One that is slow gets more time with each failure: else each new
# registration would end the stream of the one before.
STREAM_SECONDS = (5.0, 10.0, 30.0)
# The first is there for kubelet, which cleans up after a stream by the resource's name (its source): what registers again before that
# is cleaned up as well.
RETRY_SECONDS = (0.2, 0.2, 0.5, 1.0, 2.0, 5.0)
# For an agent whose socket was taken over to end its stream. If that happened while kubelet dials us, kubelet would forget us and never see
# our own end (its source).
HANDOVER_SECONDS = 0.3
SETTLE_SECONDS = 1.0  # until kubelet has cleaned up after a stream
STEADY_SECONDS = 5.0  # a registration that ends sooner counts as a failure
TAKEN_OVER_POLL = 2.0
KNOCK_SECONDS, KNOCKS, SLOW_KNOCK_SECONDS = 0.05, 20, 0.5
VENDOR = "huawei.com"
NAME_ROOM = 24  # of a resource's name in a socket's

# States, as /readyz tells them.
STARTING, NO_NPU, DRIVER, KUBELET, REGISTERING, SERVING, STANDBY = (
    "starting", "no_npu", "driver_unusable", "waiting_for_kubelet", "registering", "serving", "standby",
)


def endpoint_of(resource):
    """Name of the socket for a resource. Two resources of other domains, or with long names that begin alike, get different ones."""
    domain, _slash, name = resource.partition("/")
    if domain != VENDOR or len(name) > NAME_ROOM:
        name = f"{name[:NAME_ROOM - 9]}-{zlib.crc32(resource.encode()):08x}"
    return f"npu-agent-{name}.sock"


class Session:
    """`wake` is set whenever something may have changed: the folder, the stream. To end it, cancel run().

    standing_by: called when another agent has taken over (True), and before this one is back (False). holders: asks a kubelet which pods
    have chips before anything is registered with it. drain: whether to take the capacity away at the end, asked then.
    """

    plugin_class = Plugin

    def __init__(self, settings, board, folder, log, counters, *, holders, standing_by, drain=lambda: False, audit=None):
        self.settings, self.board, self.folder, self.counters = settings, board, folder, counters
        self.holders, self.standing_by, self.drain, self.audit = holders, standing_by, drain, audit
        self.log = lambda event, level="info", **fields: log(event, level, resource=board.resource, **fields)
        self.say = Once(self.log)
        self.state, self.cause = STARTING, ""
        self.registered, self.since = False, 0.0
        self.plugin = None
        self.wake = asyncio.Event()
        self.kubelet_socket = os.path.join(settings.kubelet_dir, "kubelet.sock")
        self.path = os.path.join(settings.kubelet_dir, endpoint_of(board.resource))
        self.failures, self.knocks, self.knocked = 0, 0, None

    @property
    def stream_open(self):
        return self.plugin is not None and self.plugin.stream is not None

    @property
    def ready(self):
        return self.state == SERVING and self.stream_open

    def enter(self, state, cause="", event=None, level="info"):
        """Take a state; an event says it once, with its cause."""
        before, self.state, self.cause = self.state, state, cause
        if (before == STANDBY) != (state == STANDBY):
            self.standing_by(state == STANDBY)
        if event:
            self.say(event, level, cause=cause)

    async def run(self):
        self.folder.listeners.add(self.wake.set)
        try:
            while True:
                try:
                    await self.once()
                except Exception as error:  # a fault of ours must not end the service of this resource
                    self.failures += 1
                    self.enter(REGISTERING, f"a fault of npu-agent: {error!r}", "not registered, trying again", "error")
                    await asyncio.sleep(RETRY_SECONDS[-1])
        finally:
            self.folder.listeners.discard(self.wake.set)

    async def once(self):
        """From no registration to the end of one."""
        before = stamp(self.kubelet_socket)
        if before is None or not alive(self.kubelet_socket):
            await self.await_kubelet(before)
            return
        plugin = self.plugin = self.plugin_class(self.board, self.settings, self.log, self.counters, self.wake.set)
        plugin.audit = self.audit
        try:
            before_us = alive(self.path)
            await plugin.open(self.path)
            if before_us:
                await asyncio.sleep(HANDOVER_SECONDS)
            await self.holders.before(before)
            await self.register(plugin)
            self.holders.registered(before)
            cause = await self.hold(plugin, before)
            if self.registered:
                self.over(cause, late=plugin.streams > 1)
        except OSError as error:
            self.fail(f"cannot serve in {self.settings.kubelet_dir}: {error}")
        except grpc.RpcError as error:
            self.fail(f"kubelet refused the registration: {error.details() or error.code().name}")
        finally:
            self.registered = False
            try:
                taken = plugin.own is not None and not plugin.owned() and alive(self.path)
                if self.drain():
                    await plugin.drain()
            finally:
                await plugin.close()
                self.plugin = None
        if taken:
            await self.stand_by()
        else:
            await self.pause(RETRY_SECONDS[min(self.failures, len(RETRY_SECONDS) - 1)], before)
        if stamp(self.kubelet_socket) != before:
            self.failures = 0  # of a kubelet that is gone

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
        self.wake.clear()
        await until(self.wake, None if seen is None else KNOCK_SECONDS if self.knocks < KNOCKS else SLOW_KNOCK_SECONDS)

    async def register(self, plugin):
        self.enter(REGISTERING, self.cause if self.failures else "")
        await register(self.kubelet_socket, os.path.basename(plugin.path), self.board.resource)
        self.counters["registrations"] += 1

    def fail(self, cause):
        self.failures += 1
        self.enter(REGISTERING, cause, "not registered, trying again", "warning")

    async def hold(self, plugin, before):
        """Return why the registration is over."""
        clock = asyncio.get_running_loop().time
        deadline, doubted = clock() + STREAM_SECONDS[min(self.failures, len(STREAM_SECONDS) - 1)], None
        while True:
            self.wake.clear()
            if not plugin.owned():
                return "the plugin's socket is gone: kubelet has started anew"
            if stamp(self.kubelet_socket) not in (before, None):
                return "kubelet has a new socket: it has started anew"
            left = None
            if plugin.stream is None and plugin.streams:
                return "kubelet ended the stream"
            if plugin.stream is None:
                left = deadline - clock()
                if left <= 0:
                    self.fail("kubelet took the registration but did not ask for the devices")
                    return self.cause
            elif plugin.streams > 1:
                # Whose stream is it? Kubelet may have cleaned up by the first one's end, and not know us any more.
                doubted = doubted or clock() + SETTLE_SECONDS
                left = doubted - clock()
                if left <= 0:
                    return "ListAndWatch was called a second time, so that it is not known what kubelet thinks: registering anew"
            else:
                self.serve()
            await until(self.wake, left)

    def serve(self):
        if self.registered:
            return
        self.registered, self.since = True, asyncio.get_running_loop().time()
        healthy, total = self.board.count()
        self.say.over()
        self.enter(SERVING)
        self.log("registered", endpoint=os.path.basename(self.path), healthy=healthy, total=total)

    def over(self, cause, late):
        """late: its stream may have been one for the registration before, which is no success."""
        held = asyncio.get_running_loop().time() - self.since
        self.failures = 0 if held > STEADY_SECONDS and not late else self.failures + 1
        self.enter(REGISTERING, cause)
        self.log("registration ended", "warning", cause=cause)

    async def stand_by(self):
        """Another agent has taken the socket's name. Two that fight for it would flap; this one waits until the other is gone."""
        self.enter(STANDBY, f"another agent serves {self.path}", "another agent has taken over, standing by", "warning")
        while alive(self.path):
            self.wake.clear()
            await until(self.wake, TAKEN_OVER_POLL)

    async def pause(self, seconds, seen):
        """For so long, or until kubelet has another socket than `seen`."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while stamp(self.kubelet_socket) == seen and clock() < end:
            self.wake.clear()
            await until(self.wake, end - clock())
