# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet stand-in keeps to what was measured, with a plugin that has nothing of the agent."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from agent_rig import until
from kubelet_standin import api, registration as service, wire

NAME = "example.com/npu"


class OddPlugin:
    """A device plugin that sends what it is told to."""

    def __init__(self, folder, endpoint="odd.sock"):
        self.endpoint, self.devices, self.waits, self.allocated = endpoint, [], __import__("threading").Event(), []
        self.options = {"pre_start_required": False, "get_preferred_allocation_available": True}
        self.response = {"container_responses": [{"envs": {"A": "1"}}]}
        self.refusal = None
        self.preferred = []
        self.folder = folder
        self.server = grpc.server(ThreadPoolExecutor(8))

        def unary(method, request, answer):
            return grpc.unary_unary_rpc_method_handler(method, lambda data: wire.decode(request, data), lambda m: wire.encode(answer, m))

        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {
            "GetDevicePluginOptions": unary(lambda _r, _c: self.options, api.EMPTY, api.OPTIONS),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list_and_watch, None, lambda m: wire.encode(api.DEVICES, m)),
            "GetPreferredAllocation": unary(self.prefer, api.PREFERRED_REQUEST, api.PREFERRED_RESPONSE),
            "Allocate": unary(self.allocate, api.ALLOCATE_REQUEST, api.ALLOCATE_RESPONSE),
        }),))
        self.server.add_insecure_port(f"unix://{folder}/{endpoint}")
        self.server.start()

    def list_and_watch(self, _request, context):
        while context.is_active():
            devices = self.devices
            yield {"devices": devices}
            while self.devices is devices and context.is_active():
                if self.waits.wait(0.02):
                    return

    def prefer(self, request, _context):
        return {"container_responses": [{"deviceIDs": self.preferred}]}

    def allocate(self, request, context):
        if self.refusal:
            context.abort(grpc.StatusCode.INTERNAL, self.refusal)
        self.allocated.append(request["container_requests"][0]["devices_ids"])
        return self.response

    def register(self, name=NAME, version="v1beta1"):
        with grpc.insecure_channel(f"unix://{self.folder}/kubelet.sock", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary("/v1beta1.Registration/Register", lambda m: wire.encode(api.REGISTER, m))
            call({"version": version, "endpoint": self.endpoint, "resource_name": name, "options": self.options}, timeout=15)


def device(name, health="Healthy", numa=None):
    return {"ID": name, "health": health, "topology": None if numa is None else {"nodes": [{"ID": numa}]}}


@pytest.fixture
def odd(rig):
    rig.kubelet()
    plugin = OddPlugin(rig.plugins)
    plugin.devices = [device("a"), device("b"), device("c")]
    yield rig, plugin
    plugin.server.stop(0)


def numbers(rig, name=NAME):
    return rig.ask("allocatable").get(name), rig.ask("capacity").get(name)


@pytest.mark.parametrize(("name", "good"), [
    ("huawei.com/Ascend910", True), ("huawei.com/Ascend910-share", True), ("rocknpu.device/npu", True), ("Rockchip.device/npu", False),
    ("rock_npu/x", False), ("npu", False), ("kubernetes.io/npu", False), ("requests.x/npu", False),
])
def test_names(name, good):
    assert service.valid_name(name) is good


def test_refusal_in_the_measured_words(odd):
    _rig, plugin = odd
    with pytest.raises(grpc.RpcError) as error:
        plugin.register("Rockchip.device/npu")
    assert error.value.code() == grpc.StatusCode.UNKNOWN and error.value.details() == 'the ResourceName "Rockchip.device/npu" is invalid'
    with pytest.raises(grpc.RpcError):
        plugin.register(version="v1alpha")


def test_capacity_and_allocatable(odd):
    rig, plugin = odd
    plugin.register()
    until(lambda: numbers(rig) == (3, 3))
    plugin.devices = [device("a"), device("b", "Unhealthy"), device("c", "Degraded")]
    until(lambda: numbers(rig) == (1, 3))
    plugin.devices = [device("a"), device("a", "Unhealthy"), device("b")]
    until(lambda: numbers(rig) == (2, 3))  # three for two ids
    plugin.devices = []
    until(lambda: numbers(rig) == (0, 0))
    plugin.devices = [device("a")]
    until(lambda: numbers(rig) == (1, 1))
    until(lambda: rig.ask("nodes")["rig"] == {"allocatable": {NAME: 1}, "capacity": {NAME: 1}})
    plugin.waits.set()  # the plugin ends the stream
    until(lambda: numbers(rig) == (0, 1))


def test_a_list_over_4_mib_ends_the_stream(odd):
    rig, plugin = odd
    plugin.register()
    until(lambda: numbers(rig) == (3, 3))
    plugin.devices = [device("x" * 200 + str(n)) for n in range(30000)]
    until(lambda: numbers(rig) == (0, 3))
    assert "received message larger than max" in rig.processes[0].text().lower()


def test_second_registration_keeps_the_devices(odd):
    rig, plugin = odd
    plugin.register()
    until(lambda: numbers(rig) == (3, 3))
    plugin.register()
    until(lambda: numbers(rig) == (3, 3))
    assert len(rig.ask("registrations")) == 2


def test_restart_deletes_sockets_and_nothing_else(odd):
    rig, plugin = odd
    plugin.register()
    until(lambda: numbers(rig) == (3, 3))
    rig.ask("allocate", count=1, resource=NAME, pod="kept")
    (rig.plugins / "file").write_text("x")
    (rig.plugins / "folder").mkdir()
    stray = socket.socket(socket.AF_UNIX)
    stray.bind(str(rig.plugins / "stray.sock"))
    before = os.stat(rig.plugins / "kubelet.sock")
    rig.restart_kubelet()
    left = {path.name for path in rig.plugins.iterdir()}
    assert left == {"kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION", "file", "folder"}
    after = os.stat(rig.plugins / "kubelet.sock")
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)
    assert numbers(rig) == (0, 0) and "default/kept" in rig.ask("pods")
    stray.close()


def test_stop_changes_nothing_in_the_folder(odd):
    rig, plugin = odd
    plugin.register()
    until((rig.plugins / "kubelet_internal_checkpoint").exists)
    before = sorted(path.name for path in rig.plugins.iterdir())
    rig.processes[0].stop()
    assert sorted(path.name for path in rig.plugins.iterdir()) == before


def test_preferred_answers_are_cut_and_filled_up(odd):
    rig, plugin = odd
    plugin.register()
    until(lambda: numbers(rig) == (3, 3))
    plugin.preferred = ["c", "nobody"]
    pod = rig.ask("allocate", count=2, resource=NAME, pod="one")
    assert "c" in pod["devices"][NAME] and len(pod["devices"][NAME]) == 2
    assert sorted(plugin.allocated[0]) == pod["devices"][NAME]
    with pytest.raises(ValueError, match=r"Requested: 2, Available: 1"):
        rig.ask("allocate", count=2, resource=NAME, pod="two")
    rig.ask("delete", pod="one")
    assert rig.ask("allocate", count=3, resource=NAME, pod="three")["phase"] == "Running"


def test_failures_as_pods_show_them(odd):
    rig, plugin = odd
    plugin.register()
    until(lambda: numbers(rig) == (3, 3))
    plugin.refusal = "the driver is away"
    words = "UnexpectedAdmissionError: Allocate failed due to rpc error: code = Internal desc = the driver is away, which is unexpected"
    with pytest.raises(ValueError, match=words):
        rig.ask("allocate", count=1, resource=NAME, pod="refused")
    assert rig.ask("pods")["default/refused"]["phase"] == "Failed"
    plugin.refusal, plugin.response = None, {"container_responses": []}
    with pytest.raises(ValueError, match="no containers return in allocation response"):
        rig.ask("allocate", count=1, resource=NAME, pod="empty")
    absent = {"host_path": "/dev/no-such", "container_path": "/dev/x", "permissions": "rw"}
    plugin.response = {"container_responses": [{"devices": [absent]}]}
    pod = rig.ask("allocate", count=1, resource=NAME, pod="missing")
    assert pod["reason"] == "CreateContainerError" and pod["message"] == "lstat /dev/no-such: no such file or directory"


def test_restricted_topology(rig):
    rig.kubelet("--topology-policy", "restricted")
    plugin = OddPlugin(rig.plugins)
    plugin.devices = [device("a", numa=0), device("b", numa=0), device("c", numa=1), device("d", numa=1)]
    plugin.register()
    until(lambda: numbers(rig) == (4, 4))
    assert rig.ask("allocate", count=2, resource=NAME, pod="one")["devices"][NAME] == ["a", "b"]
    assert "GetPreferredAllocation" not in rig.ask("calls", resource=NAME)
    plugin.devices = [device("c", numa=5)]
    until(lambda: numbers(rig) == (1, 1))
    with pytest.raises(ValueError, match="TopologyAffinityError"):
        rig.ask("allocate", count=1, resource=NAME, pod="two")
    plugin.server.stop(0)


def test_pod_resources(odd):
    rig, plugin = odd
    plugin.devices = [device("a", numa=1), device("b")]
    plugin.register()
    until(lambda: numbers(rig) == (2, 2))
    rig.ask("allocate", count=2, resource=NAME, pod="one")
    with grpc.insecure_channel(f"unix://{rig.folder}/pods/kubelet.sock") as channel:
        def call(method, request, answer, message):
            name = f"/v1.PodResourcesLister/{method}"
            return channel.unary_unary(name, lambda m: wire.encode(request, m), lambda data: wire.decode(answer, data))(message, timeout=5)

        (pod,) = call("List", api.EMPTY, api.LIST_RESPONSE, {})["pod_resources"]
        assert pod["name"] == "one" and sorted(entry["device_ids"][0] for entry in pod["containers"][0]["devices"]) == ["a", "b"]
        assert len(call("GetAllocatableResources", api.EMPTY, api.ALLOCATABLE_RESPONSE, {})["devices"]) == 2
        one = call("Get", api.GET_REQUEST, api.GET_RESPONSE, {"pod_name": "one", "pod_namespace": "default"})
        assert one["pod_resources"]["name"] == "one"
        with pytest.raises(grpc.RpcError, match="pod nope in namespace default not found"):
            call("Get", api.GET_REQUEST, api.GET_RESPONSE, {"pod_name": "nope", "pod_namespace": "default"})
        with pytest.raises(grpc.RpcError) as limit:
            for _unused in range(2000):
                call("List", api.EMPTY, api.LIST_RESPONSE, {})
        assert limit.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_it_has_nothing_of_the_agent():
    for path in os.scandir(os.path.dirname(service.__file__)):
        if path.name.endswith(".py"):
            text = open(path).read()
            assert "npu_agent" not in text and "ansible_collections" not in text and "google.protobuf" not in text
