# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a process: several resources, streams, signals, and what hangs around it."""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import agent_rig as rigs
import grpc
import pytest
from agent_rig import RESOURCE, SOCKET, make_node, until
from kubelet_standin import api, wire

OTHER = "huawei.com/Ascend310P"
SLICES = "huawei.com/Ascend310P-2c"


def serving(rig, healthy=8, total=8, resource=RESOURCE, seconds=60):
    until(lambda: rig.numbers(resource) == (healthy, total), seconds, f"{healthy} of {total} {resource}, there is {rig.numbers(resource)}")


@pytest.fixture
def mixed(tmp_path_factory, package, library):
    """Five 910B and three 310P."""
    made = rigs.Rig(tmp_path_factory.mktemp("node"), package, library, other=3)
    yield made
    made.close()


class Kubelet:
    """Takes registrations and asks for the devices `delay` seconds later; or has Register wait for ever."""

    def __init__(self, folder, answers=True, delay=0.0):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.answers, self.delay, self.count, self.streams = folder, answers, delay, 0, []
        self.server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(self.register)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),))
        self.server.add_insecure_port(f"unix://{folder}/kubelet.sock")
        self.server.start()
        self.over = threading.Event()

    def register(self, request, context):
        self.count += 1
        if not self.answers:
            self.over.wait(60)
        threading.Thread(target=self.watch, daemon=True).start()
        return b""

    def watch(self):
        self.over.wait(self.delay)
        stream = listen(self.folder / SOCKET)
        self.streams.append(stream)
        with contextlib.suppress(grpc.RpcError):
            for _message in stream:
                pass

    def close(self):
        self.over.set()
        self.server.stop(0)


def listen(path):
    return grpc.insecure_channel(f"unix://{path}").unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")


# --- several resources

def test_each_resource_has_a_registration_of_its_own(mixed):
    mixed.kubelet()
    agent = mixed.agent()
    report = agent.await_state("serving")
    assert report["ready"] and (report["healthy"], report["total"]) == (8, 8)
    assert {item["resource"]: (item["ready"], item["total"]) for item in report["resources"]} == {RESOURCE: (True, 5), OTHER: (True, 3)}
    serving(mixed, 5, 5)
    serving(mixed, 3, 3, OTHER)
    assert {request["endpoint"] for request in mixed.ask("registrations")} == {SOCKET, "npu-agent-Ascend310P.sock"}
    before = agent.metric("lists_sent_total")
    mixed.change("chips.6.health", 3)
    serving(mixed, 2, 3, OTHER)
    assert mixed.numbers() == (5, 5)
    assert agent.metric("lists_sent_total") - before == 1
    report = agent.report()
    assert [item["reasons"] != [] for item in report["resources"]] == [False, True] and report["healthy"] == 7
    mixed.restart_kubelet()
    serving(mixed, 5, 5, seconds=20)
    serving(mixed, 2, 3, OTHER)


def test_a_resource_that_comes_while_the_agent_runs(mixed):
    mixed.change("chips", [dict(chip, present=chip["phy_id"] < 5) for chip in mixed.chips()])
    for number in (5, 6, 7):
        (mixed.dev / f"davinci{number}").unlink()
    mixed.kubelet()
    agent = mixed.agent()
    agent.await_state("serving")
    assert [item["resource"] for item in agent.report()["resources"]] == [RESOURCE]
    for number in (5, 6, 7):
        make_node(mixed.dev / f"davinci{number}")
    mixed.change("chips", [dict(chip, present=True) for chip in mixed.chips()])
    serving(mixed, 3, 3, OTHER)
    serving(mixed, 5, 5)
    assert len(agent.events("registered")) == 2  # nothing happened to the first one


def test_slices_are_a_resource_of_their_own(mixed):
    mixed.put({"chips.6.slices": [{"vdev_id": 100, "template": "vir02"}, {"vdev_id": 101, "template": "vir02"}]})
    for number in (100, 101):
        make_node(mixed.dev / f"vdavinci{number}")
    mixed.kubelet()
    agent = mixed.agent()
    agent.await_state("serving")
    serving(mixed, 2, 2, OTHER)
    serving(mixed, 2, 2, SLICES)
    assert agent.report()["total"] == 8  # chips, not ids
    assert set(mixed.ask("devices")[SLICES]) == {"Ascend310P-2c-100-6", "Ascend310P-2c-101-6"}
    discover = mixed.agent(name="discover", command=("discover",))
    assert discover.process.wait(20) == 0
    text = discover.text()
    assert "8 chips, 310p and a2\n" in text and f"  {SLICES}: 2 of 2 healthy\n" in text
    assert f"       {SLICES}  Ascend310P-2c-101-6  healthy\n" in text


# --- streams

def test_a_second_stream_ends_the_first_and_kubelet_is_asked_anew(pair):
    """Kubelet's clean-up after the first one may have made it forget the resource."""
    rig, agent = pair
    with grpc.insecure_channel(f"unix://{rig.plugins}/{SOCKET}") as channel:
        stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
        assert next(stream)  # somebody else gets the list, too
        until(lambda: rig.numbers() == (0, 8), what="the first stream ended")
        until(lambda: len(agent.events("registered")) == 2)
        with pytest.raises((StopIteration, grpc.RpcError)):
            while True:
                next(stream)
    serving(rig)
    assert agent.metric("streams_replaced_total") == 1
    assert "a second time" in agent.events("registration ended")[0]["cause"]


def test_never_two_streams(pair):
    rig, agent = pair
    streams = [listen(rig.plugins / SOCKET) for _unused in range(20)]
    for stream in streams:
        with contextlib.suppress(grpc.RpcError, StopIteration):
            next(stream)
    assert "npu_agent_streams{" in agent.get("/metrics")[1]
    ended = sum(stream.code() is not None for stream in streams if not stream.is_active())
    assert ended >= 19
    serving(rig)
    until(lambda: agent.report()["ready"])


def test_a_stream_that_kubelet_ended_is_registered_again(rig):
    kubelet = Kubelet(rig.plugins)
    agent = rig.agent()
    agent.await_state("serving")
    for number in range(3):
        until(lambda number=number: len(kubelet.streams) == number + 1 and agent.report()["ready"])
        kubelet.streams[-1].cancel()
    until(lambda: kubelet.count >= 4 and agent.report()["ready"])
    assert agent.events("registration ended")[0]["cause"] == "kubelet ended the stream"
    kubelet.close()


@pytest.mark.long
def test_a_kubelet_that_asks_late_for_the_devices_is_waited_for(rig):
    """Each of its streams is for a registration that had been given up meanwhile, until there is time enough."""
    kubelet = Kubelet(rig.plugins, delay=7.0)
    agent = rig.agent()
    until(lambda: len(kubelet.streams) == 3 and agent.report()["ready"], what="the third registration holds")
    assert kubelet.count == 3  # nothing is on its way that would end the stream
    kubelet.close()


# --- the folder

def test_a_folder_behind_a_link_that_is_led_elsewhere(rig):
    """/var/lib/kubelet as a link, as some distributions have it."""
    real = rig.folder / "real"
    real.mkdir()
    (rig.folder / "kubelet").symlink_to("real")
    rig.kubelet()
    agent = rig.agent()
    agent.await_state("serving")
    serving(rig)
    rig.processes[0].stop(signal.SIGKILL)
    (rig.folder / "elsewhere").mkdir()
    (rig.folder / "new").symlink_to("elsewhere")
    os.rename(rig.folder / "new", rig.folder / "kubelet")
    rig.kubelet()
    serving(rig)
    assert (rig.folder / "elsewhere/device-plugins" / SOCKET).exists()


def test_all_inotify_instances_are_taken(rig):
    """For real: in a user namespace of its own the agent may have none."""
    limit = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\""
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", limit, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no user namespaces")
    rig.kubelet()
    agent = rig.agent(prefix=prefix)
    report = agent.await_state("serving")
    assert report["ready"]
    (event,) = agent.events("kubelet's folder is not watched by inotify")
    assert event["level"] == "warning" and "all inotify instances of this user are taken" in event["cause"]
    assert event["cause"] in report["reasons"]
    assert "npu_agent_inotify 0" in agent.get("/metrics")[1]
    serving(rig)
    for _unused in range(3):
        rig.restart_kubelet()
        serving(rig)
    (rig.plugins / SOCKET).unlink()
    until(lambda: len(agent.events("registered")) == 5)
    serving(rig)


def test_a_rolling_restart_leaves_no_gap(pair):
    """The new process is there before the old one goes, and the other way round, again and again."""
    rig, agent = pair
    worst, over = [], threading.Event()

    def watch():
        last = time.monotonic()
        while not over.wait(0.02):
            now = time.monotonic()
            if rig.numbers() == (8, 8):
                worst.append(now - last)
                last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(4):
        if number % 2:
            agent.stop()
        new = rig.agent(name=f"new{number}")
        new.await_state("serving")
        agent.stop()
        until(lambda new=new: new.report()["ready"])
        agent = new
    serving(rig)
    over.set()
    watcher.join()
    assert max(worst) < 10


# --- the end

def ended_in_time(agent, seconds=2.0):
    started = time.monotonic()
    assert agent.stop(seconds=30) == 0
    assert time.monotonic() - started < seconds


def test_it_ends_in_time_whatever_hangs(pair):
    """A driver call, the streams of kubelet and of a client that does not read, HTTP clients that say nothing."""
    rig, agent = pair
    rig.change("behaviour.dcmi", "hang")
    time.sleep(0.5)
    clients = [socket.create_connection(("127.0.0.1", agent.port)) for _unused in range(3)]
    clients[1].sendall(b"GET /metrics HTTP/1.1\r\n")
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(str(rig.plugins / SOCKET))
    ended_in_time(agent)
    assert rig.numbers() == (0, 8)
    for client in (*clients, raw):
        client.close()
    assert agent.events("stopped")


def test_it_ends_in_time_while_kubelet_does_not_answer(rig):
    kubelet = Kubelet(rig.plugins, answers=False)
    agent = rig.agent()
    until(lambda: kubelet.count == 1)
    ended_in_time(agent)
    kubelet.close()


def test_a_kubelet_that_does_not_accept_holds_up_nothing(rig):
    rig.plugins.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(rig.plugins / "kubelet.sock"))
        listener.listen(0)
        for _unused in range(3):  # its queue is full
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(str(rig.plugins / "kubelet.sock"))
        agent = rig.agent()
        agent.await_state("registering")
        started = time.monotonic()
        for _unused in range(20):
            agent.get("/healthz")
        assert time.monotonic() - started < 5
        ended_in_time(agent)


def test_drain_takes_the_capacity_away(rig):
    rig.kubelet()
    agent = rig.agent(on_stop="drain")
    agent.await_state("serving")
    serving(rig)
    ended_in_time(agent)
    until(lambda: rig.numbers() == (0, 0))


def test_nobody_reads_the_log(rig):
    """A journal that hangs must not hold up kubelet's calls, nor the end."""
    rig.kubelet()
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    agent = rig.agent(output=writer, log_level="debug")
    os.close(writer)
    agent.await_state("serving")
    with grpc.insecure_channel(f"unix://{rig.plugins}/{SOCKET}") as channel, os.fdopen(reader, "rb") as lines:
        call = channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
        request = wire.encode(api.ALLOCATE_REQUEST, {"container_requests": [{"devices_ids": [f"Ascend910-{n}" for n in range(8)]}]})
        for _unused in range(500):
            call(request, timeout=30)
        text = b""
        os.set_blocking(lines.fileno(), False)

        def told():
            nonlocal text
            text += lines.read(1 << 20) or b""
            call(request, timeout=30)
            return b"lines_lost" in text

        until(told)
        ended_in_time(agent)
