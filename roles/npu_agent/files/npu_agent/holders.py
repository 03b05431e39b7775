# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks kubelet which pod has which chip (PodResources v1), when somebody has to know: before anything is registered with a kubelet, and
again and again while a chip is barred for what pods may have (claims.py).

No answer is never "nobody". What kubelet does not tell: devices of init containers (its source).
"""

import asyncio
import errno
import os
from collections import namedtuple

import grpc
from grpc import aio

from . import messages
from .claims import GIVEN_SECONDS, SURE_SECONDS
from .log import Once, Seldom
from .plugin import until

DEADLINE = 1.0
LIMIT = 16 << 20  # bytes of an answer; 500 pods with 16 chips each need a tenth of one
PERIOD, LONG_PERIOD = 3.0, 15.0  # between two questions, the longer one after a while; kubelet allows 100 a second for all who ask
FAULT_SECONDS = 60.0  # between two lines about the same fault
METHOD = "/v1.PodResourcesLister/List"


# What one container has of one resource.
Row = namedtuple("Row", "namespace pod container resource ids")


class NoAnswer(Exception):
    """Kubelet did not tell; the text says why."""


async def ask(path):
    """{(resource, id): "namespace/pod"}; None and NoAnswer as containers()."""
    rows = await containers(path)
    return None if rows is None else {(row.resource, unit): f"{row.namespace}/{row.pod}" for row in rows for unit in row.ids}


async def containers(path):
    """[Row]; None where there is nobody to ask: no such socket, or a kubelet that is too old. NoAnswer."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise NoAnswer(f"{path}: {error.strerror}") from None
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", LIMIT)]
    try:
        async with aio.insecure_channel(f"unix://{path}", options=options) as channel:
            call = channel.unary_unary(
                METHOD, request_serializer=messages.ListPodResourcesRequest.SerializeToString,
                response_deserializer=messages.ListPodResourcesResponse.FromString,
            )
            answer = await call(messages.ListPodResourcesRequest(), timeout=DEADLINE)
    except grpc.RpcError as error:  # also for bytes that are no message
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return None
        raise NoAnswer(f"{path}: {error.details() or error.code().name}") from None
    if answer is None:
        raise NoAnswer(f"{path}: what came is no message")
    found: dict = {}  # kubelet has an entry for each device (measured)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                key = pod.namespace, pod.name, container.name, devices.resource_name
                found.setdefault(key, set()).update(devices.device_ids)
    return [Row(namespace, pod, container, resource, frozenset(ids)) for (namespace, pod, container, resource), ids in found.items()]


class Holders:
    """`tell(held, asked, sure)` gets each answer, as Claims.take() does; `failed(text)` hears why there is none ("": there is one again).

    Call `need` when it begins or ends that somebody has to know.
    """

    def __init__(self, path, tell, failed, log):
        self.path, self.tell, self.failed = path, tell, failed
        self.say, self.say_fault = Once(log), Seldom(log, FAULT_SECONDS)
        self.kubelet = None  # stamp of the socket of the kubelet that was asked last
        self.since = None  # when something was registered with it first
        self.answered = self.proved = False  # it has told; it has told when that was sure
        self.needed, self.need_since, self.due = False, 0.0, 0.0
        self.up = None  # whether the last question was answered; None: nobody has asked
        self.wake, self.lock = asyncio.Event(), asyncio.Lock()

    async def before(self, kubelet):
        """Before something is registered with the kubelet whose socket has this stamp: ask it once."""
        async with self.lock:
            if kubelet == self.kubelet:
                return
            self.kubelet, self.since, self.answered, self.proved = kubelet, None, False, False
            await self.question()

    def registered(self, kubelet):
        if kubelet == self.kubelet and self.since is None:
            self.since = asyncio.get_running_loop().time()
            self.wake.set()

    def need(self, needed):
        if needed != self.needed:
            self.needed, self.need_since = needed, asyncio.get_running_loop().time()
            self.due = self.need_since + GIVEN_SECONDS  # not at once: what was allocated just before is not told yet
            self.wake.set()

    async def question(self):
        asked = asyncio.get_running_loop().time()
        self.due = asked + (PERIOD if asked < self.need_since + SURE_SECONDS else LONG_PERIOD)
        try:
            held = await ask(self.path) if self.path else None
            self.up = held is not None
        except NoAnswer as error:
            self.up = False
            self.failed(f"kubelet does not tell which pods have chips: {error}")
            return
        self.failed("")
        if held is None:
            self.say("kubelet tells nobody which pods have chips", "warning", cause=f"there is no PodResources v1 on {self.path or '-'}: "
                     f"a chip whose number or form has changed is given out again after {SURE_SECONDS:g} s, whoever has it")
        self.answered = True
        sure = self.since is not None and asked >= self.since + SURE_SECONDS
        self.proved = self.proved or sure
        self.tell(held, asked, sure)

    async def containers(self):
        """[Row], for others who want to know: as containers() above."""
        try:
            rows = await containers(self.path)
        except NoAnswer:
            self.up = False
            raise
        self.up = rows is not None
        return rows

    def left(self, now):
        """Seconds until the next question, None: not by time alone."""
        if self.since is None:
            return None
        dues = [self.due] if self.needed or not self.answered else []
        if not self.proved:
            dues.append(max(self.due, self.since + SURE_SECONDS))
        return max(0.0, min(dues) - now) if dues else None

    async def run(self):
        while True:
            try:
                await self.turn()
            except Exception as error:  # a fault of ours must not be the last question
                await self.fault(error)

    async def turn(self):
        self.wake.clear()
        left = self.left(asyncio.get_running_loop().time())
        if left == 0:
            async with self.lock:
                await self.question()
        else:
            await until(self.wake, left)

    async def fault(self, error):
        """As a question without an answer."""
        self.up = False
        self.say_fault(repr(error), "a fault of npu-agent", "error", cause=f"asking kubelet which pods have chips: {error!r}")
        self.failed(f"kubelet was not asked which pods have chips, by a fault of npu-agent: {error!r}")
        await asyncio.sleep(PERIOD)
