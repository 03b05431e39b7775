# SPDX-License-Identifier: GPL-3.0-or-later
"""The gRPC service that kubelet calls, on one socket, from one registration to the next."""

import asyncio
import os

import grpc
from grpc import aio

from . import allocate, health, messages
from .prefer import prefer

API_VERSION = "v1beta1"
PAUSE = 1.0  # at most one list a second; the first change after a quiet second goes out at once
SERVER_OPTIONS = [("grpc.so_reuseport", 0)]


def options():
    """The same in RegisterRequest and GetDevicePluginOptions: kubelet versions differ in which one they read."""
    return messages.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)


def encode(numa_nodes):
    """A function that makes kubelet's message of chips. A topology is only given for a NUMA node that this host has: with any other
    number every pod is refused with TopologyAffinityError (measured)."""

    def encoder(chips):
        message = messages.ListAndWatchResponse()
        for chip in chips:
            device = message.devices.add(ID=chip.id, health=health.HEALTHY if chip.healthy else health.UNHEALTHY)
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


class Plugin:
    """One server on one socket. `stream_changed` is set when a ListAndWatch begins or ends."""

    def __init__(self, board, settings, log, counters):
        self.board, self.settings, self.log, self.counters = board, settings, log, counters
        self.server = None
        self.path = None
        self.own = None
        self.streams = 0
        self.streamed = False
        self.closing = False
        self.stream_changed = asyncio.Event()

    async def open(self, path):
        """Serve on `path`, which may be another agent's: the new one takes its place in one step.

        gRPC removes its socket by name when it stops, whoever's it is by then; so it binds a name of its own, and the file is renamed.
        """
        scratch = os.path.join(os.path.dirname(path), f".npu-agent-{os.getpid()}.sock")
        self.server = aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers((self.handlers(),))
        remove_if(scratch)
        self.server.add_insecure_port(f"unix://{scratch}")
        await self.server.start()
        os.chmod(scratch, 0o600)
        self.path, self.own = path, file_id(scratch)
        os.rename(scratch, path)

    def owned(self):
        return self.own is not None and file_id(self.path) == self.own

    async def close(self):
        """End the stream first: kubelet's clean-up of a late one would hit the next registration. No empty list: it would take the
        capacity away as well. The socket file goes only if it is still ours."""
        self.closing = True
        for waiter in self.board.waiters:
            waiter.set()
        if self.path and self.owned():
            remove_if(self.path)
        if self.server is not None:
            await self.server.stop(0.5)

    def handlers(self):
        def unary(method, request, answer):
            return grpc.unary_unary_rpc_method_handler(method, request.FromString, answer.SerializeToString)

        m = messages
        return grpc.method_handlers_generic_handler(f"{API_VERSION}.DevicePlugin", {
            "GetDevicePluginOptions": unary(self.get_options, m.Empty, m.DevicePluginOptions),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch, m.Empty.FromString, None),
            "GetPreferredAllocation": unary(self.get_preferred, m.PreferredAllocationRequest, m.PreferredAllocationResponse),
            "Allocate": unary(self.allocate, m.AllocateRequest, m.AllocateResponse),
            "PreStartContainer": unary(self.pre_start, m.PreStartContainerRequest, m.PreStartContainerResponse),
        })

    async def get_options(self, request, context):
        return options()

    async def pre_start(self, request, context):
        return messages.PreStartContainerResponse()

    async def list_and_watch(self, request, context):
        self.streams, self.streamed = self.streams + 1, True
        self.stream_changed.set()
        clock = asyncio.get_running_loop().time
        last = clock() - PAUSE
        try:
            while not self.closing:
                version = self.board.version
                yield self.board.payload
                self.counters["lists_sent"] += 1
                await self.newer(version)
                wait = last + PAUSE - clock()
                if wait > 0 and not self.closing:
                    await asyncio.sleep(wait)
                last = clock()
        finally:
            self.streams -= 1
            self.stream_changed.set()

    async def newer(self, version):
        waiter = asyncio.Event()
        self.board.waiters.add(waiter)
        try:
            while self.board.version == version and not self.closing:
                await waiter.wait()
                waiter.clear()
        finally:
            self.board.waiters.discard(waiter)

    async def get_preferred(self, request, context):
        response = messages.PreferredAllocationResponse()
        for container in request.container_requests:
            chosen = prefer(self.board, container.available_deviceIDs, container.must_include_deviceIDs, container.allocation_size,
                            self.settings.shares)
            response.container_responses.add(deviceIDs=chosen)
        return response

    async def allocate(self, request, context):
        response = messages.AllocateResponse()
        try:
            for container in request.container_requests:
                given = allocate.answer(container.devices_ids, self.board, self.settings)
                one = response.container_responses.add(envs=given["envs"])
                for host, inside in given["devices"]:
                    one.devices.add(host_path=host, container_path=inside, permissions="rw")
                for host, inside in given["mounts"]:
                    one.mounts.add(host_path=host, container_path=inside, read_only=True)
                for name in given["cdi"]:
                    one.cdi_devices.add(name=name)
        except allocate.Refused as refused:
            self.counters["allocations_refused"] += 1
            self.log("allocation refused", "error", reason=str(refused))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
        self.counters["allocations"] += len(request.container_requests)
        self.log("allocated", containers=[sorted(container.devices_ids) for container in request.container_requests])
        return response


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
