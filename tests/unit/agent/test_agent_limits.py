# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent does when there is too much of something: connections, descriptors, lines."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from agent_rig import until
from node_rig import A2, record, sight, state


def connect(stack, agent):
    return stack.enter_context(socket.create_connection(("127.0.0.1", agent.port)))


def closed(client):
    with contextlib.suppress(ConnectionResetError):
        return bool(select.select([client], [], [], 0)[0]) and client.recv(1) == b""
    return True


def test_so_many_connections_and_no_more(pair):
    rig, agent = pair
    with contextlib.ExitStack() as stack:
        clients = [connect(stack, agent) for _unused in range(100)]
        refused = set()

        def count():
            refused.update(client for client in clients if client not in refused and closed(client))
            return len(refused)

        until(lambda: count() >= 68)
        assert count() == 68
    until(lambda: agent.get("/healthz") == (200, "ok\n"))
    assert rig.numbers() == (8, 8)


def test_who_says_nothing_or_reads_nothing_is_not_waited_for(pair):
    _rig, agent = pair
    with contextlib.ExitStack() as stack:
        silent, deaf = connect(stack, agent), stack.enter_context(socket.socket())
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        deaf.connect(("127.0.0.1", agent.port))
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        until(lambda: closed(silent), 15)
    assert agent.get("/healthz") == (200, "ok\n")


def test_no_descriptors_left_is_one_line(pair):
    _rig, agent = pair
    room = len(os.listdir(f"/proc/{agent.pid}/fd")) + 3
    subprocess.run(["prlimit", "--pid", str(agent.pid), f"--nofile={room}:"], check=True)
    with contextlib.ExitStack() as stack:
        for _unused in range(20):
            connect(stack, agent)
        (event,) = until(lambda: agent.events("a fault of npu-agent"))
        assert "out of system resource" in event["cause"] and "Too many open files" in event["trace"][-1]
    subprocess.run(["prlimit", "--pid", str(agent.pid), "--nofile=1024:"], check=True)
    until(lambda: agent.get("/healthz") == (200, "ok\n"))
    assert "\nTraceback" not in agent.text() and len(agent.events("a fault of npu-agent")) == 1


def test_a_server_is_closed_whatever_fails_before(package, tmp_path, monkeypatch):
    from npu_agent import session

    class Plugin:
        own, closed = (1, 1), 0

        def __init__(self, *_unused):
            pass

        def owned(self):
            raise MemoryError

        async def open(self, path):
            raise OSError("no room")

        async def close(self):
            Plugin.closed += 1

    async def run():
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(tmp_path / "kubelet.sock"))
            kubelet.listen()
            one = session.Session(SimpleNamespace(kubelet_dir=str(tmp_path)), SimpleNamespace(resource="a/b"), None,
                                  lambda *_unused, **_more: None, {}, holders=None, standing_by=None)
            with pytest.raises(MemoryError):
                await one.once()

    monkeypatch.setattr(session.Session, "plugin_class", Plugin)
    asyncio.run(run())
    assert Plugin.closed == 1


def test_nobody_listens_where_no_socket_can_be_made(package, monkeypatch):
    from npu_agent import plugin

    def none_left(*_unused):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(plugin.socket, "socket", none_left)
    assert not plugin.alive("/x")


def test_lines_about_a_chip_are_one_a_second(make):
    node = make()

    def lines():
        return [(fields["id"], fields["reason"], fields.get("left_out", 0)) for event, fields in node.events if event == "chip"]

    for number in range(100):  # a fault comes and goes a hundred times a second
        node.update(sight(record(0, code=3 * (number % 2)), record(1)), number / 100)
    assert lines() == [("Ascend910-0", "", 0), ("Ascend910-1", "", 0)] and state(node.boards[A2])["Ascend910-0"] is False
    assert node.next_review == 1  # the last state has not been told
    node.review(1)
    assert lines()[2:] == [("Ascend910-0", "DCMI health critical", 98)] and node.boards[A2].due is None
    node.update(sight(record(0), record(1)), 1.2)
    node.update(sight(record(0, code=3), record(1)), 1.4)  # as it was told, so there is nothing to say
    assert node.boards[A2].due is None
    node.update(sight(record(0, code=3), record(1, code=2)), 1.5)  # another chip has lines of its own
    assert lines()[3:] == [("Ascend910-1", "DCMI health major", 0)]
    node.update(sight(record(0), record(1, code=2)), 5)
    assert lines()[4:] == [("Ascend910-0", "", 2)]


@pytest.fixture
def service(package):
    """A Service with no more than an end and another configuration need."""
    from npu_agent import serve

    made = serve.Service.__new__(serve.Service)
    made.stopping, made.execute, made.status, made.faults, made.counters, made.lines = asyncio.Event(), True, 0, [], Counter(), []
    made.log = lambda event, level="info", **fields: made.lines.append((event, fields))
    return made


def test_it_ends_where_no_thread_can_be_made(service, monkeypatch):
    def none_left(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    service.stop()
    assert service.stopping.is_set() and not service.execute


def test_a_fault_in_reading_the_configuration_is_a_refusal(service):
    def load():
        raise FileNotFoundError(2, "No such file or directory", "fault_codes.json")

    service.source = SimpleNamespace(load=load, asked=True)
    service.reload()
    ((event, fields),) = service.lines
    assert "refused" in event and fields["faults"] == service.faults
    assert "FileNotFoundError" in service.faults[0] and service.counters["reloads_refused"] == 1
    assert not service.stopping.is_set() and not service.source.asked


def test_a_part_that_has_ended_by_a_fault_is_told_once(service):
    from npu_agent.log import Seldom

    async def part(error=None):
        await asyncio.sleep(0 if error else 60)
        raise error

    async def run():
        service.tasks, service.say_fault = [], Seldom(service.log, 60)
        service.start(part(ZeroDivisionError("x")))
        service.start(part())
        await asyncio.sleep(0.05)
        service.tasks[1].cancel()
        await asyncio.wait(service.tasks)

    asyncio.run(run())
    ((event, fields),) = service.lines
    assert event == "a fault of npu-agent" and "part has ended for good: ZeroDivisionError('x')" in fields["cause"] and fields["trace"]


def test_when_memory_runs_out_children_go_first(pair):
    _rig, agent = pair
    children = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True, check=True).stdout.split()
    scores = [int(open(f"/proc/{pid}/oom_score_adj").read()) for pid in (agent.pid, *children)]
    assert len(scores) == 2 and scores[1] > scores[0]
    os.kill(int(children[0]), signal.SIGKILL)
    until(lambda: children[0] not in subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True, check=False).stdout)
    until(lambda: agent.get("/readyz")[0] == 200)


def test_lines_of_a_kind_are_seldom(package):
    from npu_agent.log import Seldom

    lines, time = [], [0.0]
    say = Seldom(lambda event, level="info", **fields: lines.append((event, fields)), 10, lambda: time[0])
    for now, kind in ((0, "a"), (1, "a"), (2, "b"), (9, "a"), (10, "a"), (20, "a")):
        time[0] = now
        say(kind, kind, at=now)
    assert lines == [("a", {"at": 0}), ("b", {"at": 2}), ("a", {"at": 10, "left_out": 2}), ("a", {"at": 20})]
