# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent access`: lets the agent's own pod have the driver's device nodes without being privileged.

Kubelet gives device nodes to a container for a resource that it asks for, and for nothing else. So this small service, which opens no
device and needs no right, serves the resource `npu.fleet/agent`: one id, and with it the nodes that DCMI asks through. It looks at the
host's /dev by a mount of its own, and answers with the paths that the host has.

Only for DaemonSet mode; as a systemd service the agent is on the host.
"""

import asyncio
import collections
import re
from types import SimpleNamespace

from . import health, messages, nodes, stop
from ._hardware import _rknpu
from ._hardware._families import FAMILIES
from .backends.base import in_container
from .backends.rockchip import extras
from .log import Log
from .plugin import Plugin
from .session import Session
from .watch import GONE, Folder

RESOURCE = "npu.fleet/agent"
ID = "node"
LOOK_SECONDS = 2.0
CHIP, SLICE = re.compile(r"davinci([0-9]+)\Z"), re.compile(r"vdavinci([0-9]+)\Z")
# Beside the chips': the kernel's log, from which the audit takes the lines about a failure; read only.
KERNEL_LOG = "kmsg"


class Access:
    """The one id in the form of board.Board, as far as a stream and a session ask."""

    def __init__(self):
        self.resource, self.version, self.payload, self.waiters = RESOURCE, 0, b"", set()
        self.units = {}

    def publish(self, present):
        """Say whether the driver's nodes are there. True when that is news."""
        if self.units and self.units[ID].healthy == present:
            return False
        self.units = {ID: SimpleNamespace(healthy=present)}
        message = messages.ListAndWatchResponse()
        message.devices.add(ID=ID, health=health.HEALTHY if present else health.UNHEALTHY)
        self.payload, self.version = message.SerializeToString(deterministic=True), self.version + 1
        for waiter in self.waiters:
            waiter.set()
        return True

    def count(self):
        """(healthy, all)"""
        return sum(unit.healthy for unit in self.units.values()), len(self.units)


def wanted(settings):
    """[(path on the host, path in the container, permissions)] of what the agent asks or opens, as far as it is there: managers, chips, the
    folders of a bus, and the nodes of a Rockchip NPU's driver; and of what it only looks for, which is what else containers get with them.

    On boards with a 310B containers see another manager under the usual name; the agent looks for it under its own one too.
    """
    root, families = settings.dev_root, FAMILIES.values()
    boards = [path for one in _rknpu.find(settings.sysfs_root, root) for path in one["device_nodes"]]
    found = [*(f"{root}/{node['host']}" for family in families for node in family["managers"]), *numbered(root, CHIP), *boards]
    found = [path for path in found if nodes.number_of(path) is not None]
    if not found:
        return []
    # On such boards the driver speaks with its chips through it.
    found += [path for family in families for folder in family.get("folders", ()) for path in below(f"{root}/{folder}")]
    seen = [*numbered(root, SLICE), *(extras(settings) if boards else ()), f"{root}/{KERNEL_LOG}"]
    given = {**dict.fromkeys(seen, "r"), **dict.fromkeys(found, "rw")}
    given = {path: given[path] for path in [*found, *seen] if nodes.number_of(path) is not None}
    return [(in_container(path, settings), in_container(path, settings), permissions) for path, permissions in given.items()]


def numbered(folder, pattern):
    """Paths of the names that match, by the number at their end."""
    found = sorted((int(match.group(1)), match.group()) for match in map(pattern.match, _rknpu.listed(folder)) if match)
    return [f"{folder}/{name}" for _number, name in found]


def below(folder):
    return [f"{folder}/{name}" for name in _rknpu.listed(folder)]


class AccessPlugin(Plugin):
    """Answers Allocate with the nodes of the moment."""

    async def get_preferred(self, request, context):
        response = messages.PreferredAllocationResponse()
        for container in request.container_requests:
            response.container_responses.add(deviceIDs=container.available_deviceIDs[:container.allocation_size])
        return response

    async def allocate(self, request, context):
        response, given = messages.AllocateResponse(), wanted(self.settings)
        strange = [name for container in request.container_requests for name in container.devices_ids if name != ID]
        if strange or not given:
            from grpc import StatusCode  # noqa: PLC0415

            why = f"{strange[0][:80]} is no id of {RESOURCE}" if strange else (
                "there is no device node of an NPU driver in /dev of this node: install or load the driver; the DaemonSet makes a new pod")
            await self.refuse(context, StatusCode.FAILED_PRECONDITION, why)
        for container in request.container_requests:
            one = response.container_responses.add()
            for host, inside, permissions in given if container.devices_ids else ():
                one.devices.add(host_path=host, container_path=inside, permissions=permissions)
        self.counters["allocations"] += len(request.container_requests)
        self.log("access given", nodes=[host for host, _inside, _permissions in given])
        return response


class AccessSession(Session):
    """As for chips; but there is no pod whose claims have to be known first."""

    plugin_class = AccessPlugin


class Nobody:
    """In the place of holders.Holders: nothing is asked."""

    async def before(self, stamp):
        """Before a registration."""

    def registered(self, stamp):
        """After one."""


async def run(settings, log):
    """Serve until a signal."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in stop.NUMBERS:
        loop.add_signal_handler(number, stopping.set)
    board, folder = Access(), Folder(settings.kubelet_dir, log)
    session = AccessSession(settings, board, folder, log, collections.Counter(), holders=Nobody(), standing_by=lambda _standby: None)
    board.publish(bool(wanted(settings)))
    folder.look()
    task = asyncio.ensure_future(session.run())
    while not stopping.is_set():
        found = wanted(settings)
        if board.publish(bool(found)):
            log("device nodes of an NPU driver are there" if found else "there is no device node of an NPU driver",
                nodes=[host for host, _inside, _permissions in found])
        if folder.gone():
            log("cannot go on, ending", "error", cause=GONE)
            break
        try:
            await asyncio.wait_for(stopping.wait(), LOOK_SECONDS)
        except asyncio.TimeoutError:
            continue
    task.cancel()
    await asyncio.wait([task], timeout=2)
    folder.close()
    return 0 if stopping.is_set() else 1


def access(settings):
    """The command."""
    log = Log(settings.log_level)
    log("started", what="access", kubelet_dir=settings.kubelet_dir, dev_root=settings.dev_root)
    return asyncio.run(run(settings, log))
