# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking kubelet which pod has which chip: what counts as an answer, when it is asked, and a chip that changes under a pod."""

import asyncio
import os
import shutil
import signal
import socket
import time
from concurrent import futures

import grpc
import pytest
from agent_rig import RESOURCE, make_node, until
from kubelet_standin import api, wire


@pytest.fixture
def holders(package):
    import npu_agent.holders

    return npu_agent.holders


@pytest.fixture
def serve(tmp_path):
    """A server on a socket whose List answers with these bytes, or does as the function says; the path."""
    servers = []

    def start(answer, service="v1.PodResourcesLister"):
        path = f"{tmp_path}/kubelet.sock"
        server = grpc.server(futures.ThreadPoolExecutor(2))
        method = grpc.unary_unary_rpc_method_handler(answer if callable(answer) else lambda _request, _context: answer)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"List": method}),))
        server.add_insecure_port(f"unix://{path}")
        server.start()
        servers.append(server)
        return path

    yield start
    for server in servers:
        server.stop(None)


def pod(name, *devices, namespace="default"):
    entries = [{"resource_name": resource, "device_ids": list(ids)} for resource, *ids in devices]
    containers = [{"name": "a", "devices": entries[:1]}, {"name": "b", "devices": entries[1:]}]
    return {"name": name, "namespace": namespace, "containers": containers}


def encoded(*pods):
    return wire.encode(api.LIST_RESPONSE, {"pod_resources": list(pods)})


# --- one question

def test_what_kubelet_tells(holders, serve):
    path = serve(encoded(pod("one", (RESOURCE, "Ascend910-0", "Ascend910-1"), ("example.com/x", "y")), pod("none"),
                         pod("two", (RESOURCE, "Ascend910-2"), namespace="other")))
    assert asyncio.run(holders.ask(path)) == {
        (RESOURCE, "Ascend910-0"): "default/one", (RESOURCE, "Ascend910-1"): "default/one", ("example.com/x", "y"): "default/one",
        (RESOURCE, "Ascend910-2"): "other/two",
    }
    assert asyncio.run(holders.ask(serve(encoded()))) == {}


def test_nobody_to_ask(holders, serve, tmp_path):
    assert asyncio.run(holders.ask(f"{tmp_path}/none/kubelet.sock")) is None
    (tmp_path / "file").touch()
    assert asyncio.run(holders.ask(f"{tmp_path}/file/kubelet.sock")) is None
    assert asyncio.run(holders.ask(serve(encoded(), service="v1alpha1.PodResourcesLister"))) is None  # a kubelet before 1.20


def refuse(_request, context):
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


@pytest.mark.parametrize(("answer", "words"), [
    (refuse, "rejected by rate limit"), (b"\xff\xff\xff", "kubelet.sock: "), (encoded(pod("x" * 3000)), "larger than max"),
    (lambda _request, _context: time.sleep(2) or encoded(), "Deadline Exceeded"),
])
def test_no_answer_is_not_nobody(holders, serve, monkeypatch, answer, words):
    monkeypatch.setattr(holders, "LIMIT", 2000)
    path, began = serve(answer), time.monotonic()
    with pytest.raises(holders.NoAnswer, match=words):
        asyncio.run(holders.ask(path))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("kind", ["left over", "file", "deaf", "folder"])
def test_a_socket_that_nobody_serves_is_no_answer(holders, tmp_path, kind):
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind in ("left over", "deaf"):
            listener.bind(str(path))
        if kind == "deaf":
            listener.listen()
        elif kind == "file":
            path.touch()
        elif kind == "folder":
            path.mkdir()
        with pytest.raises(holders.NoAnswer, match="kubelet.sock: ."):
            asyncio.run(holders.ask(str(path)))


# --- when it is asked

class Kubelet:
    """In place of ask(): what it says, and when it was asked."""

    def __init__(self, module, monkeypatch):
        self.answer, self.asked, self.told, self.troubles, self.module = {}, [], [], [], module
        monkeypatch.setattr(module, "ask", self.ask)

    async def ask(self, _path):
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def holders(self):
        self.events = []
        return self.module.Holders("/kubelet.sock", lambda held, asked, sure: self.told.append((held, sure)), self.troubles.append,
                                   lambda event, level="info", **fields: self.events.append(event))


@pytest.fixture
def kubelet(holders, monkeypatch):
    return Kubelet(holders, monkeypatch)


def test_each_kubelet_is_asked_once_before_a_registration(kubelet):
    async def go():
        one = kubelet.holders()
        await asyncio.gather(*(one.before("first") for _unused in range(3)))  # several resources
        assert len(kubelet.asked) == 1 and kubelet.told == [({}, False)]
        await one.before("second")
        kubelet.answer = kubelet.module.NoAnswer("no")
        await one.before("third")
        assert len(kubelet.asked) == 3 and len(kubelet.told) == 2  # it is registered with all the same
        assert kubelet.troubles == ["", "", "kubelet does not tell which pods have chips: no"]

    asyncio.run(go())


@pytest.mark.parametrize(("since", "state", "left"), [
    (None, {"needed": True}, None),  # nothing is registered: nobody could allocate
    (100, {"answered": True, "proved": True}, None), (100, {"answered": True, "proved": True, "needed": True, "due": 205}, 5),
    (100, {"due": 203}, 3), (100, {"answered": True, "due": 3}, 0), (180, {"answered": True, "due": 3}, 40),
    (180, {"answered": True, "needed": True, "due": 201}, 1), (100, {"answered": True, "due": 202}, 2), (180, {"due": 199}, 0),
])
def test_when_it_is_asked_again(kubelet, since, state, left):
    async def go():
        one = kubelet.holders()
        vars(one).update(since=since, **state)
        assert one.left(200) == left

    asyncio.run(go())


def test_a_life(kubelet, monkeypatch):
    for name, value in (("SURE_SECONDS", 0.6), ("GIVEN_SECONDS", 0.05), ("PERIOD", 0.1), ("LONG_PERIOD", 0.1)):
        monkeypatch.setattr(kubelet.module, name, value)

    async def go():
        one = kubelet.holders()
        task = asyncio.ensure_future(one.run())
        kubelet.answer = kubelet.module.NoAnswer("no")
        await one.before("first")
        one.registered("another")
        one.registered("first")
        while len(kubelet.asked) < 3:
            await asyncio.sleep(0.01)
        kubelet.answer = {}
        while not any(sure for _held, sure in kubelet.told):
            await asyncio.sleep(0.01)
        before = len(kubelet.asked)
        await asyncio.sleep(0.4)
        assert len(kubelet.asked) == before  # nobody has to know
        one.need(True)
        while len(kubelet.asked) < before + 3:
            await asyncio.sleep(0.01)
        one.need(False)
        before = len(kubelet.asked)
        await asyncio.sleep(0.4)
        assert len(kubelet.asked) <= before + 1
        assert kubelet.told[0] == ({}, False) and kubelet.told[-1] == ({}, True)
        task.cancel()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_fault_of_ours_is_not_the_last_question(kubelet, monkeypatch):
    """It counts as no answer, and is told once while it lasts."""
    for name in ("GIVEN_SECONDS", "PERIOD"):
        monkeypatch.setattr(kubelet.module, name, 0.01)

    async def go():
        one = kubelet.holders()
        await one.before("first")
        task = asyncio.ensure_future(one.run())
        kubelet.answer = ZeroDivisionError("x")
        one.registered("first")
        one.need(True)
        while len(kubelet.asked) < 4:
            await asyncio.sleep(0.01)
        assert one.up is False and kubelet.events == ["a fault of npu-agent"] and "ZeroDivisionError" in kubelet.troubles[-1]
        kubelet.answer = {}
        while kubelet.troubles[-1]:
            await asyncio.sleep(0.01)
        assert one.up and len(kubelet.told) >= 2
        task.cancel()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_kubelet_that_tells_nobody_is_said_once(kubelet):
    async def go():
        kubelet.answer, one = None, kubelet.holders()
        for number in range(3):
            await one.before(number)
        assert kubelet.events == ["kubelet tells nobody which pods have chips"] and kubelet.told == [(None, False)] * 3

    asyncio.run(go())


def test_a_question_is_no_failure_while_it_lasts(holders, monkeypatch):
    """`up` is a metric: scraped during a question it tells of the last one."""
    answers, during = [[], None, [], holders.NoAnswer("no")], []

    async def containers(_path):
        during.append(one.up)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def go():
        after = []
        while answers:
            try:
                await one.containers()
            except holders.NoAnswer:
                pass
            after.append(one.up)
        return after

    monkeypatch.setattr(holders, "containers", containers)
    one = holders.Holders("/x", None, None, None)
    assert asyncio.run(go()) == [True, False, True, False] and during == [None, True, False, True]


# --- a chip that changes under a pod

def first_list(rig, resource):
    return rig.ask("history", kind="list", resource=resource)[0]


def test_a_pods_chip_is_not_offered_under_another_name(rig):
    """Also by an agent that knows nothing of the one before, and not for a moment: kubelet is asked before anything is registered."""
    rig.kubelet()
    agent = rig.agent()
    agent.await_state("serving")
    until(lambda: rig.numbers() == (8, 8))
    (unit,) = rig.ask("allocate", count=1, resource=RESOURCE, pod="one")["devices"][RESOURCE]
    agent.stop()
    shutil.rmtree(rig.folder / "state")
    agent = rig.agent(name="other", resource_name="example.com/npu")
    agent.await_state("serving")
    until(lambda: rig.numbers("example.com/npu") == (7, 8), what="7 of 8 under the other name")
    assert first_list(rig, "example.com/npu")["healthy"] == 7
    reason = f"{unit}: pod default/one still has {unit} of {RESOURCE}, which is this chip in another form"
    assert any(text.startswith(reason) for text in agent.report()["reasons"])
    rig.ask("allocate", count=7, resource="example.com/npu", pod="seven")
    rig.ask("delete", pod="one")
    # Kubelet is asked every few seconds while a chip waits, and else once a minute after the registration.
    until(lambda: rig.numbers("example.com/npu") == (8, 8), 40, "the chip is free")


def test_no_answer_holds_up_nothing_but_what_has_changed(rig):
    """A kubelet whose socket for PodResources is not served: chips that are what they were are offered, at once."""
    with socket.socket(socket.AF_UNIX) as listener:
        (rig.folder / "deaf").mkdir()
        listener.bind(str(rig.folder / "deaf/kubelet.sock"))
        listener.listen()
        rig.kubelet()
        agent = rig.agent(pod_resources=rig.folder / "deaf/kubelet.sock")
        agent.await_state("serving")
        until(lambda: rig.numbers() == (8, 8))
        agent.stop()
        rig.put({"chips.0.phy_id": 7, "chips.7.phy_id": 0})
        agent = rig.agent(name="later", pod_resources=rig.folder / "deaf/kubelet.sock")
        until(lambda: rig.numbers() == (6, 8))
        words = "kubelet does not tell which pods have chips: "
        until(lambda: any(reason.startswith(words) for reason in agent.await_state("serving")["reasons"]))


def test_slices_that_are_made_while_a_pod_has_the_chip(tmp_path_factory, package, library):
    from agent_rig import Rig

    rig, resource = Rig(tmp_path_factory.mktemp("node"), package, library, chips=1, product="310p"), "huawei.com/Ascend310P"
    try:
        rig.change("chips.0.slices", [])
        rig.kubelet()
        agent = rig.agent()
        agent.await_state("serving")
        until(lambda: rig.numbers(resource) == (1, 1))
        rig.ask("allocate", count=1, resource=resource, pod="whole")
        make_node(rig.dev / "vdavinci100")
        rig.change("chips.0.slices", [{"vdev_id": 100, "template": "vir02"}])
        os.utime(rig.dev / "vdavinci100")
        until(lambda: rig.numbers(f"{resource}-2c") == (0, 1), what="the slice, for nobody")
        assert first_list(rig, f"{resource}-2c")["healthy"] == 0
        until(lambda: any("pod default/whole still has Ascend310P-0" in reason for reason in agent.report()["reasons"]))
    finally:
        rig.close()


@pytest.mark.long
def test_chips_with_other_numbers_come_back_when_kubelet_knows_its_pods(rig):
    """A minute after the registration: one that a pod has then stays out until that pod is gone."""
    rig.kubelet()
    agent = rig.agent()
    agent.await_state("serving")
    until(lambda: rig.numbers() == (8, 8))
    rig.ask("allocate", count=8, resource=RESOURCE, pod="all")
    agent.stop()
    rig.put({"chips.0.phy_id": 7, "chips.7.phy_id": 0})
    agent = rig.agent(name="later")
    until(lambda: rig.numbers() == (6, 8))
    time.sleep(62)
    assert rig.numbers() == (6, 8)
    assert any("delete pod default/all, which has Ascend910-0" in reason for reason in agent.report()["reasons"])
    rig.ask("delete", pod="all")
    until(lambda: rig.numbers() == (8, 8), what="nobody has them any more")
    answer = rig.ask("allocate", count=8, resource=RESOURCE, pod="new")["response"]
    assert answer["envs"] == {"ASCEND_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    agent.process.send_signal(signal.SIGHUP)
    agent.stop()
    rig.agent(name="last")
    until(lambda: rig.numbers() == (8, 8), 20, "what was settled stays so")
