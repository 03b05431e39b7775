# SPDX-License-Identifier: GPL-3.0-or-later
"""What the gates ask kubelet and the plugin, with the agent itself and the kubelet stand-in behind it. The node has no grpcio."""

import json
import os
import socket
import threading
from types import SimpleNamespace

import pytest
from agent_rig import until

from ansible_collections.npu.fleet.plugins.module_utils import _gates_admission as admission
from ansible_collections.npu.fleet.plugins.module_utils import _gates_kubelet as kubelet
from ansible_collections.npu.fleet.plugins.module_utils import _gates_plugin as plugin
from ansible_collections.npu.fleet.plugins.module_utils import _grpc
from ansible_collections.npu.fleet.plugins.module_utils._gates_container import device_number
from ansible_collections.npu.fleet.plugins.module_utils._grpc import GrpcError

RESOURCE = "huawei.com/Ascend910"
IDS = [f"Ascend910-{number}" for number in range(8)]


class Engine:
    """Starts a container that sees what it is given, but for what `odd` changes."""

    def __init__(self, odd=None):
        self.odd, self.given, self.cleaned = odd or (lambda nodes: nodes), None, 0

    def prepare(self):
        return None

    def start(self, _number, given, _timeout):
        self.given = given
        nodes = {one["container_path"][len("/dev/"):]: device_number(one["host_path"]) for one in given["devices"]}
        return {"started": True, "nodes": self.odd({**nodes, "null": "1:3"}), "timed_out": False, "error": None, "seconds": 0.1}

    def clean(self):
        self.cleaned += 1
        return []


@pytest.fixture
def served(rig):
    """An agent that has registered eight chips with a kubelet; `place` is the kubelet's folder as nodes have it."""
    rig.kubelet()
    agent = rig.agent()
    until(lambda: rig.numbers() == (8, 8), what="eight chips at the kubelet")
    place = rig.folder / "kubelet"
    (place / "pod-resources").symlink_to(rig.folder / "pods")
    return SimpleNamespace(rig=rig, agent=agent, place=str(place), host={f"davinci{n}": "1:1" for n in range(8)})


def admit(served, seen=None, engine=None, tmp=None):
    engine = engine or Engine()
    found = admission.admit(lambda _vendor: engine, seen or kubelet.ask_kubelet(served.place), [RESOURCE], served.place,
                            str(served.rig.folder / "state-of-gates"), root=str(served.rig.folder), host=served.host, managers=[])
    return found, engine


def test_kubelets_own_word_on_ids_and_who_has_them(served):
    seen = kubelet.ask_kubelet(served.place)
    assert seen["error"] is None
    assert seen["allocatable"] == {RESOURCE: IDS}
    assert seen["used"] == {}
    pod = served.rig.ask("allocate", count=2, resource=RESOURCE, pod="job")
    ids = pod["devices"][RESOURCE]
    until(lambda: kubelet.ask_kubelet(served.place)["used"] == {RESOURCE: dict.fromkeys(ids, "default/job")}, what="the pod's ids")
    free = kubelet.free_ids(kubelet.ask_kubelet(served.place), RESOURCE)
    assert sorted(free + ids) == IDS


def test_no_socket_is_said(tmp_path):
    seen = kubelet.ask_kubelet(str(tmp_path))
    assert (seen["error"], seen["excused"]) == (f"there is no {tmp_path}/pod-resources/kubelet.sock", True)


@pytest.mark.parametrize("said", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", "refused"])
def test_a_kubelet_that_ought_to_tell_and_does_not_is_not_excused(tmp_path, said):
    """It hangs, closes, talks something else, or has left its socket behind."""
    (tmp_path / "pod-resources").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "pod-resources/kubelet.sock"))
        if said != "refused":
            server.listen(5)
            threading.Thread(target=answer, args=(server, said), daemon=True).start()
        seen = kubelet.ask_kubelet(str(tmp_path), 0.5)
    assert not seen["excused"]
    assert "kubelet does not tell its devices" in seen["error"]
    choice = admission.choose(seen, [RESOURCE])
    assert choice.why is None
    assert "nobody tells which ids are free" in choice.failure


def answer(server, said):
    connection = server.accept()[0]
    with connection:
        if said is None:
            while connection.recv(1 << 16):
                pass
            return
        connection.recv(1 << 16)
        connection.sendall(said)


@pytest.mark.parametrize(("status", "words", "excused"), [
    (_grpc.UNIMPLEMENTED, "unknown service v1.PodResourcesLister", True),
    (_grpc.UNKNOWN, "Pod Resources API GetAllocatableResources disabled", True),
    (_grpc.UNKNOWN, "failed", False), (_grpc.DEADLINE_EXCEEDED, "no answer", False), (_grpc.INTERNAL, "no gRPC", False),
])
def test_which_words_of_a_kubelet_are_an_excuse(tmp_path, monkeypatch, status, words, excused):
    (tmp_path / "pod-resources").mkdir()
    (tmp_path / "pod-resources/kubelet.sock").touch()

    def unary(*_args):
        raise GrpcError(status, words)

    monkeypatch.setattr(_grpc, "unary", unary)
    assert kubelet.ask_kubelet(str(tmp_path))["excused"] is excused


def test_a_pods_admission_without_a_pod(served):
    before = served.rig.ask("history")
    found, engine = admit(served)
    assert found["error"] is None
    assert found["row"]["passed"], found
    assert found["id"] in IDS
    number = found["id"].rpartition("-")[2]
    assert found["answer"]["envs"]["ASCEND_VISIBLE_DEVICES"] == number
    assert f"davinci{number}" in found["row"]["seen"]
    assert "davinci_manager" in found["row"]["seen"]
    assert engine.cleaned == 1
    # Kubelet has not heard of it, and the plugin keeps nothing.
    assert served.rig.ask("pods") == {}
    assert served.rig.numbers() == (8, 8)
    assert served.rig.ask("history") == before
    assert all(passed for _name, passed, _detail in admission.checks(found))


def audit_lines(rig):
    try:
        return [json.loads(line) for line in (rig.folder / "audit.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def test_the_audit_takes_a_gate_for_no_pod(served):
    """A pod that gets the same id a moment later has its own line and its own name, and the gate's line waits for nobody."""
    served.rig.ask("allocate", count=7, resource=RESOURCE, pod="others")
    free = until(lambda: len(ids := kubelet.free_ids(kubelet.ask_kubelet(served.place), RESOURCE)) == 1 and ids, what="one free id")
    found, _engine = admit(served)
    assert found["id"] == free[0]
    served.rig.ask("allocate", count=1, resource=RESOURCE, pod="job")
    lines = until(lambda: len(lines := audit_lines(served.rig)) == 3 and lines, what="three lines")
    told = {line["pod"]: line for line in lines}
    assert set(told) == {"others", None, "job"}
    assert (told[None]["note"], told[None]["ids"], told[None]["namespace"]) == ("a gate of npu.fleet", free, None)
    assert "note" not in told["job"]
    assert served.agent.metric("audit_lines_without_pod_total") == 0
    # One that is refused is a gate's, too.
    (socket_path,) = kubelet.plugin_sockets(served.place, RESOURCE)
    with pytest.raises(GrpcError) as refusal:
        kubelet.allocate(socket_path, "nothing")
    assert refusal.value.status == _grpc.FAILED_PRECONDITION
    lines = until(lambda: len(lines := audit_lines(served.rig)) == 4 and lines, what="four lines")
    assert (lines[3]["outcome"], lines[3]["note"]) == ("refused", "a gate of npu.fleet")


def test_a_gates_question_between_two_calls_of_kubelet_changes_nothing(package):
    """What kubelet said to be free is about its own next Allocate."""
    import asyncio

    from npu_agent.plugin import GATE, Plugin

    said = []
    made = Plugin(SimpleNamespace(resource=RESOURCE, units={}), None, None, {}, None)
    made.audit = SimpleNamespace(leave=lambda *_args, **more: said.append((more["preferred"], more["gate"])))
    made.preferred = (["a"], [])
    request = SimpleNamespace(container_requests=[SimpleNamespace(devices_ids=["a"])])
    made.tell(request, 0.0, "no", gate=True)
    made.tell(request, 0.0, "no")
    assert said == [(None, True), ((["a"], []), False)]
    assert (GATE, "1") in kubelet.MARK

    class Context:
        def invocation_metadata(self):
            return kubelet.MARK

    made.counters, made.settings = {"preferred": 0}, SimpleNamespace(shares=1)
    made.board.chips = {}
    asyncio.run(made.get_preferred(SimpleNamespace(container_requests=[]), Context()))
    assert made.preferred is None


def test_a_refusal_says_more_than_a_socket_that_nobody_listens_at(tmp_path, monkeypatch):
    problems = iter([GrpcError(_grpc.UNAVAILABLE, "connection refused"), GrpcError(_grpc.FAILED_PRECONDITION, "davinci3 is missing"),
                     GrpcError(_grpc.UNAVAILABLE, "connection refused")])
    monkeypatch.setattr(kubelet, "plugin_sockets", lambda *_args: ["/a.sock", "/b.sock", "/c.sock"])

    def preferred(*_args):
        raise next(problems)

    monkeypatch.setattr(kubelet, "preferred", preferred)
    assert admission.ask_plugin(str(tmp_path), RESOURCE, ["a"])["error"] == "/b.sock: davinci3 is missing"


def test_values_of_variables_stay_between_plugin_and_container(tmp_path, monkeypatch):
    """An operator reads the outcome, and it lies in logs."""
    nothing = {"devices": [], "mounts": [], "annotations": {}, "cdi_devices": []}
    answer = {"envs": {"PASS": "canary-1", "ASCEND_VISIBLE_DEVICES": "0"}, **nothing}
    monkeypatch.setattr(admission, "ask_plugin", lambda *_args: {"id": "Ascend910-0", "socket": "/s", "answer": answer})
    engine = Engine()
    found = admission.admit(lambda _vendor: engine, {"error": None, "allocatable": {RESOURCE: IDS}, "used": {}}, [RESOURCE], str(tmp_path),
                            str(tmp_path / "state"), root=str(tmp_path), host={}, managers=[])
    assert engine.given["env"] == answer["envs"]
    assert "canary" not in json.dumps([found, list(admission.checks(found))])
    assert found["answer"]["envs"] == {"PASS": "(not shown)", "ASCEND_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(("odd", "words"), [
    (lambda nodes: {name: number for name, number in nodes.items() if name != "davinci_manager"}, "saw davinci"),
    (lambda nodes: {**nodes, "davinci99": "1:1"}, "davinci99"),
    (lambda nodes: {**nodes, "davinci_manager": "9:9"}, "davinci_manager is device 9:9 there"),
])
def test_a_container_that_gets_something_else_fails(served, odd, words):
    found, _engine = admit(served, engine=Engine(odd))
    failed = [detail for _name, passed, detail in admission.checks(found) if not passed]
    assert len(failed) == 1
    assert words in failed[0]


def test_what_the_plugin_refuses_is_told_in_its_words(served):
    seen = kubelet.ask_kubelet(served.place)
    os.unlink(served.rig.dev / "davinci3")
    seen["used"] = {RESOURCE: {one: "default/job" for one in IDS if one != "Ascend910-3"}}
    found, engine = admit(served, seen)
    assert "Ascend910-3" in found["error"]
    assert "davinci3" in found["error"]
    assert engine.given is None
    assert [name for name, passed, _detail in admission.checks(found) if not passed] == ["plugin allocates"]


def test_without_a_free_id_nothing_is_judged(served):
    served.rig.ask("allocate", count=8, resource=RESOURCE, pod="job")
    until(lambda: len(kubelet.ask_kubelet(served.place)["used"].get(RESOURCE, ())) == 8, what="all ids taken")
    found, engine = admit(served)
    assert found["why"].startswith("no id is free: Ascend910-0 of huawei.com/Ascend910 by default/job")
    assert engine.given is None


def test_a_plugin_that_is_away(served):
    seen = kubelet.ask_kubelet(served.place)
    served.agent.stop()
    found, _engine = admit(served, seen)
    assert "there is no socket of our plugin" in found["error"]
    with pytest.raises(GrpcError):
        kubelet.allocate(f"{served.place}/device-plugins/npu-agent-Ascend910.sock", "Ascend910-0")


def test_sockets_of_the_agent_are_found_by_the_resource(package):
    """The names are the agent's; the gates know how they begin."""
    from npu_agent.session import endpoint_of

    for resource in (RESOURCE, "huawei.com/Ascend910-2c.1cpu.3g.ndvpp", "rockchip.com/rknpu", "huawei.com/npu"):
        assert endpoint_of(resource).startswith(kubelet.SOCKETS + resource.rpartition("/")[2][:15])


def test_a_chip_that_the_plugin_takes_out_is_named_by_its_own_words(served):
    served.rig.change("chips.3.health", 3)
    until(lambda: served.rig.numbers() == (7, 8), what="seven chips")
    seen = plugin.probe_plugin(f"http://127.0.0.1:{served.agent.port}/readyz", served.place)
    assert list(plugin.unfit_of(seen["status"])) == ["Ascend910-3"]
    chips = [{"phy_id": n, "logic_id": n, "device_node": f"/dev/davinci{n}", "health": "OK", "error_codes": []} for n in range(8)]
    found = plugin.compare(chips, seen["status"])
    assert (found["differ"], found["unfit"], found["wrong"]) == (1, 1, [])
    assert found["explained"][0].startswith("/dev/davinci3: the driver calls it OK, the plugin does not offer it: Ascend910-3: ")
    assert seen["node"]["chips"] == 8
    # Which chip has which id, so that nobody has to go by the number in it.
    (resource,) = seen["status"]["resources"]
    wanted = {chip["phy_id"]: chip["pci_address"] for chip in served.rig.chips()}
    assert [(one["id"], one["pci_address"], one["healthy"]) for one in sorted(resource["devices"], key=lambda one: one["phy_id"])] == [
        (f"Ascend910-{number}", wanted[number], number != 3) for number in range(8)]


def test_readyz_stays_small_however_many_shares_there_are(rig):
    rig.kubelet()
    agent = rig.agent(shares=100)
    until(lambda: rig.numbers() == (800, 800), what="all shares")
    assert len(agent.report()["resources"][0]["devices"]) == 8
    assert len(agent.get("/readyz")[1]) < 4000


CDI = {"k/npu=0": ({"env": ["A=1"], "deviceNodes": [{"path": "/dev/davinci_manager"}]},
                   {"deviceNodes": [{"path": "/dev/davinci0", "hostPath": "/dev/zero", "permissions": "rw"}],
                    "mounts": [{"hostPath": "/opt/d", "containerPath": "/opt/d", "options": ["ro", "bind"]}]})}


def test_cdi_names_are_resolved_as_an_engine_does():
    answer = {"envs": {"B": "2"}, "devices": [], "mounts": [], "cdi_devices": ["k/npu=0", "k/npu=9"]}
    given, missing = admission.given_of(answer, CDI)
    assert given["env"] == {"A": "1", "B": "2"}
    assert [one["container_path"] for one in given["devices"]] == ["/dev/davinci_manager", "/dev/davinci0"]
    assert given["mounts"] == [{"container_path": "/opt/d", "host_path": "/opt/d", "read_only": True}]
    assert len(missing) == 1
    assert "k/npu=9" in missing[0]


def test_the_vendors_variable_alone_says_the_nodes():
    given = {"env": {"ASCEND_VISIBLE_DEVICES": "3"}, "devices": [], "mounts": []}
    assert admission.expected_of(given, {"davinci3": "1:3"}, ["davinci_manager"])[0] == ["davinci3", "davinci_manager"]
