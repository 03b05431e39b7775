# SPDX-License-Identifier: GPL-3.0-or-later
"""The gRPC service that kubelet calls, on one socket, from one registration to the next."""

import asyncio
import os
import re
import socket
import stat
import time
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from . import allocate, health, messages
from .prefer import prefer

API_VERSION = "v1beta1"
GOOD_PAUSE, BAD_PAUSE = 1.0, 0.05  # seconds between two lists
GRACE = 0.5  # seconds that a call has to end by itself
DRAIN_SECONDS = 0.8
SERVER_OPTIONS = [("grpc.so_reuseport", 0)]
WORDS = 300  # characters of a refusal: kubelet puts it into the pod's message and its event, among words of its own
ADVICE = 160  # of them for the last part, which says what to do
GATE = "npu-fleet-gate"  # metadata of a call that a gate of this collection makes, which is no pod's (_gates_kubelet.py)
SCRATCH = re.compile(r"\.npu-agent-[0-9a-f-]+\.sock")  # a socket that has not got its name yet
LEFT_SECONDS = 60.0  # one that nobody listens on so long after it was made is of a process that was killed meanwhile


def options():
    """The same in RegisterRequest and GetDevicePluginOptions: kubelet versions differ in which one they read."""
    return messages.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)


def encode(numa_nodes):
    """A function that makes kubelet's message of (id, Chip) pairs. A topology is only given for a NUMA node that this host has: with any
    other number every pod is refused with TopologyAffinityError (measured)."""

    def encoder(units):
        message = messages.ListAndWatchResponse()
        for name, chip in units:
            device = message.devices.add(ID=name, health=health.HEALTHY if chip.healthy else health.UNHEALTHY)
            if chip.numa_node in numa_nodes:
                device.topology.nodes.add(ID=chip.numa_node)
        return message.SerializeToString(deterministic=True)

    return encoder


def numa_nodes(sysfs_root):
    try:
        names = os.listdir(f"{sysfs_root}/devices/system/node")
    except OSError:
        return set()
    return {int(name[4:]) for name in names if name.startswith("node") and name[4:].isdecimal()}


def file_id(path):
    """(device, inode) of a socket file, None when it is not there."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def alive(path):
    """Somebody listens on this socket. One with a full queue does, too; nobody is waited for."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def scratch_in(folder):
    """A name that no other process takes: in DaemonSet mode two of them share the folder, and each is process 1 to itself."""
    return os.path.join(folder, f".npu-agent-{os.urandom(4).hex()}.sock")


def clear_scratch(folder, now):
    """Remove what killed processes have left. Not by `alive` alone: a socket has its name a moment before it is listened on."""
    for path in (os.path.join(folder, name) for name in os.listdir(folder) if SCRATCH.fullmatch(name)):
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISSOCK(found.st_mode) and now - found.st_mtime > LEFT_SECONDS and not alive(path):
            remove_if(path)


class Stream:
    """What one ListAndWatch call is told, and when: bad news at once, good news at most once in GOOD_PAUSE, the newest list always."""

    def __init__(self, board):
        self.board = board
        self.wake, self.ended, self.emptied = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.over = self.empty = False
        self.told = (0, False, set())  # version, empty, ids that may be used

    def end(self):
        self.over = True
        self.wake.set()

    def message(self):
        self.told = self.board.version, self.empty, healthy_ids(self.board.units)
        return b"" if self.empty else self.board.payload

    async def due(self):
        """Called when a list is on its way: return when the next one should go out."""
        version, empty, healthy = self.told
        if empty:
            self.emptied.set()
        clock = asyncio.get_running_loop().time
        sent = clock()
        while not self.over and self.empty == empty:
            self.wake.clear()
            left = None
            if self.board.version != version and not empty:
                left = sent + pause(healthy, self.board.units) - clock()
                if left <= 0:
                    return
            await until(self.wake, left)

    async def drain(self):
        """Have kubelet hear of an empty list: it takes the capacity away."""
        self.empty = True
        self.wake.set()
        await until(self.emptied, DRAIN_SECONDS)


def healthy_ids(units):
    return {name for name, chip in units.items() if chip.healthy}


def pause(told, units):
    """Seconds between the list that told these ids healthy and the next one. One that must not be used any more cannot wait."""
    return GOOD_PAUSE if told <= healthy_ids(units) else BAD_PAUSE


async def until(event, seconds=None):
    """True when the event came in time."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return False
    return True


class Plugin:
    """One server on one socket. `changed` is called when a ListAndWatch begins or ends.

    Never two streams: kubelet's clean-up of one that ends late hits its successor as well, because it goes by the resource's name. So a
    second call ends the first one before it is answered; `streams` counts them, and session.py does not trust a registration with two.
    """

    audit: Any = None  # of audit.py, where allocations are told

    def __init__(self, board, settings, log, counters, changed):
        self.board, self.settings, self.log, self.counters, self.changed = board, settings, log, counters, changed
        self.server: Any = None
        self.starting = self.path = self.own = None
        self.stream, self.streams = None, 0
        self.preferred: Any = None  # (available, must include) of the last such call, until the Allocate that follows it

    async def open(self, path):
        """Serve on `path`, which may be another agent's: the new one takes its place in one step.

        gRPC removes its socket by name when it stops, whoever's it is by then; so it binds a name of its own, and the file is renamed.
        """
        folder = os.path.dirname(path)
        clear_scratch(folder, time.time())
        scratch = scratch_in(folder)
        self.server = aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers((self.handlers(),))
        try:
            self.server.add_insecure_port(f"unix://{scratch}")
        except RuntimeError as error:  # gRPC's word for a name that cannot be bound
            raise OSError(str(error)) from None
        self.starting = asyncio.ensure_future(self.server.start())
        await asyncio.shield(self.starting)
        os.chmod(scratch, 0o600)
        self.path, self.own = path, file_id(scratch)
        os.rename(scratch, path)

    def owned(self):
        return self.own is not None and file_id(self.path) == self.own

    async def drain(self):
        if self.stream is not None:
            await self.stream.drain()

    async def close(self):
        """End the stream first: kubelet's clean-up of a late one would hit the next registration. No empty list: it would take the
        capacity away as well. The socket file goes only if it is still ours."""
        if self.stream is not None:
            self.stream.end()
        if self.path and self.owned():
            remove_if(self.path)
        if self.starting is not None:
            # One that is cut off while it starts cannot be stopped: gRPC then raises an InvalidStateError, and what had cut it off is lost.
            await asyncio.wait([self.starting])
            await self.server.stop(GRACE)

    def handlers(self):
        m = messages
        return grpc.method_handlers_generic_handler(f"{API_VERSION}.DevicePlugin", {
            "GetDevicePluginOptions": self.unary(self.get_options, m.Empty),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch),
            "GetPreferredAllocation": self.unary(self.get_preferred, m.PreferredAllocationRequest),
            "Allocate": self.unary(self.allocate, m.AllocateRequest),
            "PreStartContainer": self.unary(self.pre_start, m.PreStartContainerRequest),
        })

    def unary(self, method, kind):
        """A handler that takes and gives bytes: what is no message of this kind, and a fault of ours, get an answer in words."""

        async def handle(data, context):
            try:
                return (await method(kind.FromString(data), context)).SerializeToString()
            except aio.AbortError:
                raise
            except DecodeError:
                text = f"this is no {kind.DESCRIPTOR.name} of the device plugin API {API_VERSION}"
                await self.refuse(context, grpc.StatusCode.INVALID_ARGUMENT, text)
            except Exception as error:
                await self.refuse(context, grpc.StatusCode.INTERNAL, fault_text(error))

        return grpc.unary_unary_rpc_method_handler(handle)

    async def refuse(self, context, code, text):
        self.counters["calls_refused"] += 1
        from .redact import redact  # noqa: PLC0415  a refusal is seldom, and a start is to be quick

        text = redact(text)
        self.log("call refused", "error", reason=text)
        await context.abort(code, short(text))

    async def get_options(self, request, context):
        return options()

    async def pre_start(self, request, context):
        return messages.PreStartContainerResponse()

    async def list_and_watch(self, request, context):
        stream, before = Stream(self.board), self.stream
        self.stream, self.streams = stream, self.streams + 1
        try:
            if before is not None:
                self.counters["streams_replaced"] += 1
                before.end()
                await until(before.ended, GRACE)
            self.changed()
            self.board.waiters.add(stream.wake)
            while not stream.over:
                yield stream.message()
                self.counters["lists_sent"] += 1
                await stream.due()
        finally:
            self.board.waiters.discard(stream.wake)
            stream.ended.set()
            if self.stream is stream:
                self.stream = None
            self.changed()

    async def get_preferred(self, request, context):
        response = messages.PreferredAllocationResponse()
        for container in request.container_requests:
            chosen = prefer(self.board, container.available_deviceIDs, container.must_include_deviceIDs, container.allocation_size,
                            self.settings.shares)
            response.container_responses.add(deviceIDs=chosen)
            if not by_gate(context):
                self.preferred = container.available_deviceIDs, container.must_include_deviceIDs
        self.counters["preferred"] += len(request.container_requests)
        return response

    async def allocate(self, request, context):
        response, began, answers = messages.AllocateResponse(), time.perf_counter(), []
        try:
            for container in request.container_requests:
                given = allocate.answer(container.devices_ids, self.board, self.settings)
                answers.append(given)
                one = response.container_responses.add(envs=given["envs"])
                for host, inside in given["devices"]:
                    one.devices.add(host_path=host, container_path=inside, permissions="rw")
                for host, inside in given["mounts"]:
                    one.mounts.add(host_path=host, container_path=inside, read_only=True)
                for name in given["cdi"]:
                    one.cdi_devices.add(name=name)
        except Exception as error:
            self.counters["allocations_refused"] += 1
            self.tell(request, began, str(error) if isinstance(error, allocate.Refused) else fault_text(error), gate=by_gate(context))
            if not isinstance(error, allocate.Refused):
                raise
            await self.refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self.tell(request, began, None, answers, gate=by_gate(context))
        self.counters["allocations"] += len(request.container_requests)
        self.log("allocated", "debug", containers=[sorted(container.devices_ids) for container in request.container_requests])
        return response

    def tell(self, request, began, reason, answers=(), *, gate=False):
        """Have the audit know: a line for each container. gate: no pod asks, and what kubelet said before is about its next Allocate."""
        if self.audit is None:
            return
        seconds, preferred = time.perf_counter() - began, None
        if not gate:
            preferred, self.preferred = self.preferred, None
        for number, container in enumerate(request.container_requests):
            ids = list(container.devices_ids)
            found = (self.board.units.get(name) for name in ids)
            chips = sorted({chip for chip in found if chip is not None}, key=lambda chip: (len(chip.id), chip.id))
            self.audit.leave(self.board.resource, ids, chips, answer=answers[number] if answers else {}, reason=reason,
                             seconds=seconds, preferred=preferred, gate=gate)


def by_gate(context):
    return any(key == GATE for key, _value in context.invocation_metadata() or ())


def fault_text(error):
    return f"a fault of npu-agent: {error!r}; its log on this node has more, and restarting it there may help"


def short(text):
    """What is wrong stands in front, what to do behind the last semicolon: where a text is too long, the middle goes."""
    if len(text) <= WORDS:
        return text
    front, _semicolon, advice = text.rpartition("; ")
    advice = f"…; {advice[:ADVICE]}" if front else "…"
    return text[:WORDS - len(advice)] + advice


def remove_if(path):
    try:
        os.unlink(path)
    except OSError:
        pass


async def register(kubelet_socket, endpoint, resource, timeout=30.0):
    """Tell kubelet about us. Inside this call kubelet dials back, so the server must run. Raises grpc.RpcError."""
    # A channel that is new in every way: gRPC would otherwise wait out the back-off of the last failed one.
    async with aio.insecure_channel(f"unix://{kubelet_socket}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=messages.RegisterRequest.SerializeToString, response_deserializer=messages.Empty.FromString,
        )
        request = messages.RegisterRequest(version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options())
        await call(request, timeout=timeout)
