# SPDX-License-Identifier: GPL-3.0-or-later
"""Random calls to a running agent, 200 at a time: each answer is right or a clear refusal, and the agent is as well afterwards as before.

The judge here knows nothing of the agent's code: chip N is /dev/davinciN, the variable has the physical ids in order.
"""

import asyncio
import json
import os
import random
import socket
import time

import grpc
import pytest
from agent_rig import MANAGERS, RESOURCE, SOCKET, until
from kubelet_standin import api, wire

PARALLEL = 200
CHIPS = 8
SERVICE = "/v1beta1.DevicePlugin/"
REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
# Bytes that may come after the warm-up: pages that Python's and gRPC's allocators keep for the greatest load that there was. What leaks
# in each of a thousand calls is far more: one kept request is half a KiB, and some calls have a MiB.
GROWTH = 4 << 20


class Judge:
    def __init__(self, dev, shares):
        self.dev, self.shares = dev, shares
        self.ids = [f"Ascend910-{chip}" + (f"-{share}" if shares > 1 else "") for chip in range(CHIPS) for share in range(shares)]

    def chips(self, ids):
        return sorted({int(name.split("-")[1]) for name in ids})

    def container(self, ids):
        """The whole response for these ids; None: it has to be refused."""
        if not set(ids) <= set(self.ids):
            return None
        if not ids:
            return {"envs": {}, "mounts": [], "devices": [], "annotations": {}, "cdi_devices": []}
        nodes = [f"davinci{chip}" for chip in self.chips(ids)] + list(MANAGERS)
        devices = [{"host_path": f"{self.dev}/{node}", "container_path": f"/dev/{node}", "permissions": "rw"} for node in nodes]
        envs = {"ASCEND_VISIBLE_DEVICES": ",".join(str(chip) for chip in self.chips(ids))}
        return {"envs": envs, "mounts": [], "devices": devices, "annotations": {}, "cdi_devices": []}

    def allocated(self, requests, answer):
        wanted = [self.container(request["devices_ids"]) for request in requests]
        if None in wanted:
            return answer is None
        if answer is None or len(answer) != len(wanted):
            return False
        for one, other in zip(wanted, answer, strict=True):
            for part in (one, other):
                part["devices"].sort(key=lambda device: device["host_path"])
        return wanted == answer

    def preferred(self, request, answer):
        """Of a request that kubelet could make, all of it; of any other only that nothing is made up."""
        free, must, size = request["available_deviceIDs"], request["must_include_deviceIDs"], request["allocation_size"]
        known = set(free) & set(self.ids)
        if len(set(answer)) != len(answer) or not set(answer) <= (set(free) | set(must)) & set(self.ids) or len(answer) > max(size, 0):
            return False
        if set(must) <= known and len(set(must)) <= size <= len(known):
            return len(answer) == size and set(must) <= set(answer) <= known
        return True


class Caller:
    def __init__(self, channel, judge, seed):
        self.channel, self.judge, self.chance = channel, judge, random.Random(seed)
        self.counts = {"right": 0, "refused": 0}
        self.wrong = []

    def some(self, most):
        """Ids, mostly good ones."""
        ids = self.chance.choices(self.judge.ids, k=self.chance.randrange(most))
        if self.chance.random() < 0.8:
            ids = list(dict.fromkeys(ids))
        if self.chance.random() < 0.1:
            ids.append(self.chance.choice(["", "Ascend910-8", "Ascend910-0-", "x" * 100000, "Ascend910-0\n", "ü", "Ascend910--1"]))
        return ids

    def allocate(self):
        return "Allocate", api.ALLOCATE_REQUEST, api.ALLOCATE_RESPONSE, [
            {"devices_ids": self.some(10)} for _unused in range(self.chance.choice([1, 1, 1, 0, 2, 5]))]

    def prefer(self):
        free = self.some(len(self.judge.ids) * 2)
        must = self.chance.sample(free, self.chance.randrange(min(len(free), 4) + 1)) if self.chance.random() < 0.9 else self.some(3)
        size = self.chance.choice([len(must), len(free), self.chance.randrange(len(free) + 1), -1, 0, 1 << 31, -(1 << 31)])
        request = {"available_deviceIDs": free, "must_include_deviceIDs": must, "allocation_size": min(size, (1 << 31) - 1)}
        return "GetPreferredAllocation", api.PREFERRED_REQUEST, api.PREFERRED_RESPONSE, [request] * self.chance.choice([1, 1, 2])

    async def call(self):
        name, schema, answer_schema, requests = self.chance.choice([self.allocate, self.prefer])()
        data = wire.encode(schema, {"container_requests": requests})
        if self.chance.random() < 0.15:
            await self.garbage(name, answer_schema, data)
            return
        answer = await self.ask(name, answer_schema, data)
        if name == "Allocate":
            good = self.judge.allocated(requests, answer)
        else:
            good = answer is not None and len(answer) == len(requests) and all(
                self.judge.preferred(request, one["deviceIDs"]) for request, one in zip(requests, answer, strict=True))
        if not good:
            self.wrong.append((name, requests, answer))

    async def garbage(self, name, schema, data):
        """Cut, changed or random bytes: refused, or by chance another request."""
        kind = self.chance.randrange(3)
        if kind == 0:
            data = data[:self.chance.randrange(len(data) + 1)]
        elif kind == 1 and data:
            at = self.chance.randrange(len(data))
            data = data[:at] + self.chance.randbytes(self.chance.randrange(1, 9)) + data[at + 1:]
        else:
            data = self.chance.randbytes(self.chance.randrange(1, 2000))
        await self.ask(self.chance.choice([name, "PreStartContainer", "GetDevicePluginOptions"]), None, data)

    async def ask(self, name, schema, data):
        """The container responses (raw with schema None), None when it was refused in words."""
        try:
            answer = await self.channel.unary_unary(SERVICE + name)(data, timeout=60)
        except grpc.aio.AioRpcError as error:
            if error.code() not in REFUSALS or not error.details() or len(error.details()) > 1000:
                self.wrong.append((name, data[:200], error))
            self.counts["refused"] += 1
            return None
        self.counts["right"] += 1
        return answer if schema is None else wire.decode(schema, answer)["container_responses"]


async def calls(path, judge, seed, count):
    async with grpc.aio.insecure_channel(f"unix://{path}") as channel:
        caller, left = Caller(channel, judge, seed), iter(range(count))

        async def worker():
            for _number in left:
                await caller.call()

        await asyncio.gather(*(worker() for _unused in range(PARALLEL)))
        return caller


def used(pid):
    """(bytes of memory, open descriptors)"""
    with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))


def settled(pid):
    """The same once the last connections are closed."""
    last = used(pid)
    for _unused in range(50):
        time.sleep(0.1)
        now = used(pid)
        if now == last:
            break
        last = now
    return last


@pytest.mark.parametrize(("shares", "count"), [
    (1, 1000), (4, 1000), pytest.param(1, 5000, marks=pytest.mark.long), pytest.param(4, 5000, marks=pytest.mark.long),
])
def test_random_calls(rig, shares, count):
    rig.kubelet()
    agent = rig.agent(shares=shares, allocate_mounts="never", log_level="error")
    agent.await_state("serving")
    seed, judge = random.randrange(1 << 32), Judge(rig.dev, shares)
    print(f"seed {seed}")
    asyncio.run(calls(rig.plugins / SOCKET, judge, seed, count))  # memory has its greatest extent now
    before = settled(agent.pid)
    caller = asyncio.run(calls(rig.plugins / SOCKET, judge, seed + 1, count))
    after = settled(agent.pid)
    print(f"before {before}, after {after}, {caller.counts}")
    assert caller.wrong == [], f"seed {seed}"
    assert min(caller.counts.values()) > count / 10
    assert after[0] - before[0] < GROWTH and after[1] <= before[1] + 1, (before, after)
    assert agent.report()["ready"] and len(agent.events("registered")) == 0  # at log level error
    until(lambda: rig.numbers() == (CHIPS * shares, CHIPS * shares))
    assert "Traceback" not in agent.text()


def test_bytes_that_are_no_grpc(pair):
    """Connections that say nothing, something else, or end in the middle."""
    rig, agent = pair
    before = settled(agent.pid)
    chance = random.Random(7)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    beginnings = [b"", b"GET / HTTP/1.1\r\n\r\n", preface, preface + b"\0\0\0\4\0\0\0\0\0"]
    for number in range(200):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(rig.plugins / SOCKET))
            client.sendall(chance.choice(beginnings) + chance.randbytes(chance.randrange(300)))
            if number % 2:
                client.shutdown(socket.SHUT_WR)
    assert settled(agent.pid)[1] <= before[1] + 1
    assert agent.report()["ready"] and rig.numbers() == (CHIPS, CHIPS)
    assert len(agent.events("registered")) == 1


def test_huge_and_unknown_calls(pair):
    rig, agent = pair
    with grpc.insecure_channel(f"unix://{rig.plugins}/{SOCKET}") as channel:
        for name, data, code in (
            ("Allocate", b"x" * (5 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED),
            ("Allocate", wire.encode(api.ALLOCATE_REQUEST, {"container_requests": [{"devices_ids": ["y" * 4000000]}]}),
             grpc.StatusCode.FAILED_PRECONDITION),
            ("Allocate", wire.encode(api.ALLOCATE_REQUEST, {"container_requests": [{"devices_ids": ["Ascend910-9"] * 200000}]}),
             grpc.StatusCode.FAILED_PRECONDITION),
            ("Deallocate", b"", grpc.StatusCode.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(SERVICE + name)(data, timeout=60)
            assert error.value.code() == code and len(error.value.details()) < 1000
    assert agent.report()["ready"] and rig.numbers() == (CHIPS, CHIPS)


class Pods:
    """Pods that come and go at the kubelet stand-in, with several containers and init containers, each with some chips."""

    def __init__(self, rig, seed):
        self.rig, self.chance = rig, random.Random(seed)
        self.alive, self.expected, self.number = [], [], 0
        self.most_nameless = 0  # of pods that kubelet did not take

    def create(self):
        self.number += 1
        name, namespace = f"pod-{self.number}", self.chance.choice(["default", "team-a", "team-b"])
        parts = [[(f"{kind}{number}", self.chance.randrange(1, 3)) for number in range(self.chance.choice(counts))]
                 for kind, counts in (("init", (0, 0, 1)), ("c", (1, 1, 2)))]
        made = [[{"name": each, "resources": {"limits": {RESOURCE: count}}} for each, count in part] for part in parts]
        try:
            self.rig.ask("create", manifest={
                "metadata": {"name": name, "namespace": namespace}, "spec": {"initContainers": made[0], "containers": made[1]}})
        except ValueError:  # there are too few for one of its containers
            self.most_nameless += sum(map(len, parts)) - 1
            return
        self.alive.append((namespace, name))
        # An init container that ends is not shown: its line has the pod alone.
        self.expected += [(namespace, name, None if each in dict(parts[0]) else each, count) for part in parts for each, count in part]

    def named(self, names):
        """Kubelet has shown these pods: one that is gone before, nobody can name."""
        for name in names:
            until(lambda: f'"pod": "{name}"' in self.text(), what=f"a line of {name}")  # noqa: B023  it is called here

    def text(self):
        path = self.rig.folder / "audit.jsonl"
        return path.read_text() if path.exists() else ""

    def delete(self):
        if self.alive:
            namespace, name = self.alive.pop(self.chance.randrange(len(self.alive)))
            self.named([name])
            self.rig.ask("delete", pod=f"{namespace}/{name}" if namespace != "default" else name)


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.long)])
def test_each_allocation_has_a_line_with_its_pod(pair, count):
    rig, agent = pair
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    pods = Pods(rig, seed)
    while pods.number < count:
        if pods.chance.random() < 0.55:
            pods.create()
        else:
            pods.delete()
        if pods.chance.random() < 0.05:
            pods.named(name for _namespace, name in pods.alive)
            rig.restart_kubelet()
            until(lambda: rig.numbers()[1] == CHIPS and agent.report()["ready"])
    until(lambda: pods.text().count('"pod": "') >= len(pods.expected), what="all lines")
    until(lambda: agent.metric("audit_pending") <= pods.most_nameless)
    asked = agent.metric("allocations_total")
    assert agent.metric("audit_lines_lost_total") == 0 and agent.stop() == 0
    found = [json.loads(line) for line in pods.text().splitlines()]
    named = [line for line in found if line["pod"]]
    assert sorted(map(str, pods.expected)) == sorted(
        str((line["namespace"], line["pod"], line["container"], len(line["ids"]))) for line in named), f"seed {seed}"
    assert {line["outcome"] for line in found} == {"given"} and len({line["allocation"] for line in found}) == len(found) == asked
    assert len(found) - len(named) <= pods.most_nameless and all(line["pod"] or line["note"] for line in found)
    assert "a fault of npu-agent" not in agent.text()
