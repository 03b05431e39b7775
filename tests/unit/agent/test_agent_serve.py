# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a process, against the kubelet stand-in and the simulated DCMI library."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from agent_rig import RESOURCE, SOCKET, until


def serving(rig, healthy=8, total=8, seconds=60):
    until(lambda: rig.numbers() == (healthy, total), seconds, f"{healthy} of {total} at the kubelet, it has {rig.numbers()}")


def test_registers_soon_with_options_ids_and_topology(rig):
    rig.kubelet()
    agent = rig.agent()
    report = agent.await_state("serving")
    assert report["ready"] and report["stream_open"] and (report["healthy"], report["total"]) == (8, 8)
    (request,) = rig.ask("registrations")
    assert request["resource_name"] == RESOURCE and request["version"] == "v1beta1" and request["endpoint"] == SOCKET
    assert request["options"] == {"pre_start_required": False, "get_preferred_allocation_available": True}
    devices = rig.ask("devices")[RESOURCE]
    assert devices == {f"Ascend910-{n}": {"healthy": True, "numa": [n // 4]} for n in range(8)}
    assert (os.stat(rig.plugins / SOCKET).st_mode & 0o777) == 0o600


def test_a_fault_reaches_kubelet_and_goes_again(pair):
    rig, agent = pair
    started = time.monotonic()
    rig.change("chips.3.health", 3)
    serving(rig, healthy=7)
    assert time.monotonic() - started < 2
    assert rig.ask("devices")[RESOURCE]["Ascend910-3"]["healthy"] is False
    assert agent.report()["reasons"] == ["Ascend910-3: DCMI health critical"]
    rig.change("chips.3.health", 1)  # a minor fault is no reason to take a chip out
    serving(rig)
    assert agent.events("registered") and len(agent.events("registered")) == 1


def test_a_chip_that_leaves_stays_in_the_capacity(pair):
    rig, agent = pair
    rig.change("chips.5.present", False)
    serving(rig, healthy=7)
    assert "gone or not ready" in agent.report()["reasons"][0]


def test_a_lost_device_node_takes_the_chip_out(pair):
    rig, agent = pair
    (rig.dev / "davinci2").unlink()
    serving(rig, healthy=7)
    assert "davinci2 is missing" in agent.report()["reasons"][0]


def test_dcmi_that_hangs_keeps_the_last_state_for_a_while(rig):
    rig.kubelet()
    agent = rig.agent(query_timeout=0.5, keep_last_state=2)
    agent.await_state("serving")
    rig.change("behaviour.dcmi", "hang")
    until(lambda: agent.metric("looks_failed_total") == 1, 5)
    assert rig.numbers() == (8, 8)
    assert "did not answer" in " ".join(agent.report()["reasons"])
    # The service itself goes on: a pod that comes now gets its chips.
    assert rig.ask("allocate", count=1, resource=RESOURCE, pod="during")["phase"] == "Running"
    serving(rig, healthy=0, seconds=8)
    assert "no answer for more than 2 s" in " ".join(agent.report()["reasons"])
    rig.change("behaviour.dcmi", "ok")
    serving(rig)
    children = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True, check=False).stdout.split()
    assert len(children) == 1


def test_a_failed_query_is_never_zero_chips(pair):
    rig, agent = pair
    rig.change("behaviour.dcmi", "fail")
    until(lambda: agent.metric("looks_failed_total") > 0, 5)
    time.sleep(0.5)
    assert rig.numbers() == (8, 8)
    assert agent.report()["total"] == 8


@pytest.mark.parametrize("down", [0.0, 1.5])
def test_kubelet_restart(pair, down):
    rig, agent = pair
    rig.ask("allocate", count=2, resource=RESOURCE, pod="before")
    checkpoint = (rig.plugins / "kubelet_internal_checkpoint").read_bytes()
    rig.restart_kubelet(down)
    serving(rig, seconds=2)
    assert (rig.plugins / "kubelet_internal_checkpoint").read_bytes() == checkpoint
    assert rig.ask("allocate", count=6, resource=RESOURCE, pod="after")["phase"] == "Running"
    assert len(agent.events("registered")) == 2
    assert len(agent.events("waiting for kubelet")) <= 1


def test_kubelet_restarts_many_times(pair):
    rig, agent = pair
    for _unused in range(5):
        rig.restart_kubelet()
        serving(rig, seconds=3)
    assert agent.report()["ready"]


def test_the_folder_is_replaced_while_kubelet_is_away(pair):
    rig, _agent = pair
    kubelet = rig.processes[0]
    kubelet.stop(signal.SIGKILL)
    # Moved away in one step: an agent that puts its socket back while a folder is being emptied would keep it from going.
    rig.plugins.rename(rig.folder / "old-plugins")
    time.sleep(0.3)
    rig.kubelet()
    serving(rig)


def test_own_socket_removed_by_hand(pair):
    rig, agent = pair
    (rig.plugins / SOCKET).unlink()
    until(lambda: len(agent.events("registered")) == 2 and (rig.plugins / SOCKET).exists())
    serving(rig)


def test_kubelet_comes_later(rig):
    agent = rig.agent()
    report = agent.await_state("waiting_for_kubelet")
    assert not report["ready"] and "there is no folder" in report["reasons"][0] and str(rig.plugins) in report["reasons"][0]
    time.sleep(1.5)
    assert len(agent.events("waiting for kubelet")) == 1
    rig.kubelet()
    agent.await_state("serving", 3)
    serving(rig)


def test_a_dead_kubelet_socket_is_waited_for(rig):
    rig.plugins.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(rig.plugins / "kubelet.sock"))
    agent = rig.agent()
    assert "nobody listens" in agent.await_state("waiting_for_kubelet")["reasons"][0]
    rig.kubelet()
    serving(rig)


def test_another_resource_name(rig):
    rig.kubelet()
    name = "npu.example.com/Ascend-A2"
    assert rig.agent(resource_name=name).await_state("serving")["resource"] == name


class MuteKubelet:
    """Takes the registration and never asks for the devices, as one whose dial back got lost."""

    def __init__(self, path, answer=None):
        self.count, self.answer = 0, answer
        self.server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(self.register)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),))
        self.server.add_insecure_port(f"unix://{path}")
        self.server.start()

    def register(self, request, context):
        self.count += 1
        if self.answer:
            context.abort(grpc.StatusCode.UNKNOWN, self.answer)
        return b""


def test_registration_without_a_stream_is_made_again(rig):
    rig.plugins.mkdir(parents=True)
    kubelet = MuteKubelet(rig.plugins / "kubelet.sock")
    agent = rig.agent()
    until(lambda: kubelet.count >= 2, 15)
    assert "did not ask for the devices" in agent.text()
    assert not agent.report()["ready"]
    kubelet.server.stop(0)


def test_a_new_kubelet_socket_is_enough(pair):
    """Also when our own socket and the old stream are still there."""
    rig, _agent = pair
    kubelet = MuteKubelet(rig.plugins / "other.sock")
    os.rename(rig.plugins / "other.sock", rig.plugins / "kubelet.sock")
    until(lambda: kubelet.count >= 1, 5)
    kubelet.server.stop(0)


def test_refusal_is_shown_in_kubelets_words(rig):
    rig.plugins.mkdir(parents=True)
    kubelet = MuteKubelet(rig.plugins / "kubelet.sock", 'the ResourceName "x" is invalid')
    agent = rig.agent()
    until(lambda: kubelet.count >= 3)
    assert len(agent.events("not registered, trying again")) == 1
    assert 'the ResourceName "x" is invalid' in agent.report()["reasons"][0]
    kubelet.server.stop(0)


def test_stop_leaves_the_capacity_and_takes_the_socket(pair):
    rig, agent = pair
    started = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - started < 3
    assert rig.numbers() == (0, 8)
    assert not (rig.plugins / SOCKET).exists()
    assert (rig.plugins / "kubelet.sock").exists() and (rig.plugins / "DEPRECATION").exists()
    assert sorted(path.name for path in rig.plugins.iterdir() if path.name.startswith(".")) == []


def test_a_kill_is_recovered_by_the_next_start(pair):
    rig, agent = pair
    agent.stop(signal.SIGKILL)
    assert (rig.plugins / SOCKET).exists()
    until(lambda: rig.numbers() == (0, 8))
    rig.agent(name="second").await_state("serving")
    serving(rig)


def test_two_agents_do_not_fight(pair):
    """The old one stops some time after the new one has registered."""
    rig, old = pair
    new = rig.agent(name="new")
    new.await_state("serving")
    old.await_state("standby")
    time.sleep(1)
    serving(rig)
    registrations = len(rig.ask("registrations"))
    time.sleep(1)
    assert len(rig.ask("registrations")) == registrations  # nobody flaps
    old.stop()
    time.sleep(0.5)
    assert new.report()["ready"] and (rig.plugins / SOCKET).exists()
    assert rig.ask("allocate", count=8, resource=RESOURCE, pod="all")["phase"] == "Running"


def test_the_one_that_stands_by_takes_over(pair):
    rig, old = pair
    new = rig.agent(name="new")
    new.await_state("serving")
    old.await_state("standby")
    # The names are the new one's meanwhile, and the old one goes on with those.
    table = rig.folder / "state/names.json"
    rig.change("chips.0.serial", "NEW")
    os.utime(rig.dev / "davinci0")  # the driver has made its nodes anew
    until(lambda: json.loads(table.read_text())["names"]["Ascend910-0"]["serial"] == "NEW", what="what the new one has seen in the table")
    until(lambda: not any("another agent keeps" in reason for reason in new.report()["reasons"]), what="a table that is the new one's")
    new.stop()
    old.await_state("serving")
    serving(rig)


@pytest.mark.parametrize("driver", [False, True])
def test_a_node_without_npu_is_quiet(rig, driver):
    shutil.rmtree(rig.sys / "bus/pci/devices")
    shutil.rmtree(rig.dev)
    rig.dev.mkdir()
    rig.change("chips", [])
    rig.kubelet()
    agent = rig.agent() if driver else rig.agent(dcmi_library=rig.folder / "none.so")
    report = agent.await_state("no_npu")
    assert not report["ready"] and report["reasons"] == ["this node has no NPU"]
    time.sleep(1)
    assert rig.ask("registrations") == []
    assert [event["event"] for event in agent.events()] == ["backend", "started", "no NPU on this node; looking again from time to time"]


def test_npu_with_a_driver_that_cannot_be_asked(rig):
    rig.change("behaviour.dcmi", "fail")
    rig.kubelet()
    agent = rig.agent()
    report = agent.await_state("driver_unusable")
    assert "8 NPUs on PCI" in report["reasons"][0] and not report["ready"]
    assert rig.ask("registrations") == []
    rig.change("behaviour.dcmi", "ok")
    agent.await_state("serving")


def test_npu_without_a_driver(rig):
    rig.kubelet()
    agent = rig.agent(dcmi_library=rig.folder / "none.so")
    report = agent.await_state("driver_unusable")
    assert "none.so" in report["reasons"][0]


def test_a_taken_port_does_not_stop_the_service(rig):
    rig.kubelet()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        agent = rig.agent(listen=f"127.0.0.1:{other.getsockname()[1]}")
        serving(rig)
        (event,) = agent.events("no status address")
        assert event["listen"] == f"127.0.0.1:{other.getsockname()[1]}"
        assert "ss -ltnp" in event["hint"]


def answers(host, port):
    with socket.create_connection((host, port), timeout=10) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        return client.recv(100).startswith(b"HTTP/1.1 200 OK")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("form", [":{}", "[::]:{}", "0.0.0.0:{}", "{}"])
def test_forms_of_the_status_address(rig, form):
    """Where all addresses are meant, those of IPv4 are among them, also on a host without IPv6."""
    port = rig.free_port()
    agent = rig.agent(listen=form.format(port))
    agent.port = port
    until(agent.report)
    assert answers("127.0.0.1", port)
    if has_ipv6() and form in (":{}", "[::]:{}"):
        assert answers("::1", port)


def test_status_pages(pair):
    _rig, agent = pair
    assert agent.get("/healthz") == (200, "ok\n")
    assert agent.get("/readyz")[0] == 200
    assert agent.get("/nothing")[0] == 404
    status, text = agent.get("/metrics")
    assert status == 200
    assert 'npu_agent_chip_healthy{chip="Ascend910-0",pci_address="0000:c1:00.0",resource="huawei.com/Ascend910"} 1' in text
    assert 'npu_agent_registered{resource="huawei.com/Ascend910"} 1' in text and "npu_agent_inotify 1" in text
    for line in text.splitlines():
        assert line.startswith(("# HELP npu_agent_", "# TYPE npu_agent_", "npu_agent_")) or "process_start_time_seconds" in line


def test_status_pages_survive_odd_clients(pair):
    _rig, agent = pair
    for data in (b"", b"GET\r\n\r\n", b"POST /readyz HTTP/1.1\r\n\r\n", b"\xff" * 20000, b"GET /healthz HTTP/1.1\r\n"):
        with socket.create_connection(("127.0.0.1", agent.port)) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            try:
                client.recv(1000)
            except ConnectionResetError:
                pass
    assert agent.get("/healthz") == (200, "ok\n")
    assert "Traceback" not in agent.text()


def sent(agent):
    return agent.metric("lists_sent_total")


def test_bad_news_goes_out_at_once(pair):
    """Each fault has a list of its own, although they follow each other closely."""
    rig, agent = pair
    before = sent(agent)
    for number in range(4):
        rig.change(f"chips.{number}.health", 3)
        serving(rig, healthy=7 - number)
    assert sent(agent) - before == 4


def test_good_news_is_batched(pair):
    """At most one list a second, and the last state always arrives."""
    rig, agent = pair
    rig.change("chips", [dict(chip, health=3) for chip in rig.chips()])
    serving(rig, healthy=0)
    before, started = sent(agent), time.monotonic()
    for number in range(8):
        rig.change(f"chips.{number}.health", 0)
        time.sleep(0.12)
    serving(rig)
    assert sent(agent) - before <= 1 + (time.monotonic() - started)


def test_discover(rig):
    rig.change("chips.3.health", 1)
    (rig.sys / "bus/pci/devices/0000:c1:00.0/numa_node").write_text("-1\n")
    agent = rig.agent(name="discover", command=("discover", "--json"))
    assert agent.process.wait(20) == 0
    found = json.loads(agent.text())
    assert found["families"] == ["a2"] and [chip["phy_id"] for chip in found["chips"]] == list(range(8))
    assert found["resources"] == {RESOURCE: {"healthy": 8, "total": 8}} and found["problems"] == []
    (form,) = found["chips"][3]["offered"]
    assert form == {"id": "Ascend910-3", "resource": RESOURCE, "healthy": True, "reason": "DCMI health minor", "rank": 0, "degraded": []}
    assert "NUMA node" in found["chips"][0]["unknown"] and "NUMA node" not in found["chips"][1]["unknown"]
    assert not (rig.folder / "state").exists()
    shown = rig.agent(name="shown", command=("discover",))
    assert shown.process.wait(20) == 0
    assert "8 chips, a2\n  huawei.com/Ascend910: 8 of 8 healthy\n" in shown.text()
    assert "       huawei.com/Ascend910  Ascend910-3  healthy: DCMI health minor\n" in shown.text()
    rig.change("behaviour.dcmi", "fail")
    failed = rig.agent(name="failed", command=("discover",))
    assert failed.process.wait(20) == 1 and "cannot be asked" in failed.text()


def test_check(rig):
    rig.config.write_text("allocate_mode: devices\npool: 3\n")
    agent = rig.agent(name="check", command=("check",))
    assert agent.process.wait(20) == 2
    assert f"{rig.config} line 2: there is no setting 'pool'" in agent.text()
    rig.config.write_text(f"fault_file: {rig.folder}/faults.yaml\n")
    (rig.folder / "faults.yaml").write_text("NotHandleFaultCodes: [x]\n")
    agent = rig.agent(name="faults", command=("check",))
    assert agent.process.wait(20) == 2 and "faults.yaml line 1: NotHandleFaultCodes: 'x' is no fault code" in agent.text()
    (rig.folder / "faults.yaml").write_text("NotHandleFaultCodes: [80E01801]\nGraceTolerance: {}\n")
    agent = rig.agent(name="good", command=("check",))
    assert agent.process.wait(20) == 0 and "GraceTolerance is not used" in agent.text() and "is good" in agent.text()


def test_no_event_twice_in_a_row(pair):
    _rig, agent = pair
    time.sleep(0.5)
    names = [event["event"] for event in agent.events() if event["event"] != "chip"]
    assert {"started", "registered"} <= set(names) and len(names) == len(set(names))
    assert threading.active_count() < 50
