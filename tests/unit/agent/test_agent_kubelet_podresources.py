# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet stand-in's PodResources keep to what was measured."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from agent_rig import until
from kubelet_standin import api
from kubelet_standin.podresources import Limiter
from odd_plugin import NAME, device


@pytest.fixture
def ready(odd):
    rig, plugin = odd
    plugin.push(device("a", numa=1), device("b"), device("c", "Unhealthy", numa=0))
    plugin.register()
    rig.serving(2, 3)
    return rig, plugin


def entry(name, node=None, resource=NAME):
    return {"resource_name": resource, "device_ids": [name], "topology": None if node is None else {"nodes": [{"ID": node}]}}


def listed(rig, **more):
    """{name: {container: devices}} of all pods."""
    pods = rig.monitor("List", **more)["pod_resources"]
    return {pod["name"]: {each["name"]: sorted(each["devices"], key=str) for each in pod["containers"]} for pod in pods}


def get(rig, name, namespace="default"):
    message = {"pod_name": name, "pod_namespace": namespace}
    return rig.monitor("Get", api.GET_REQUEST, api.GET_RESPONSE, message)["pod_resources"]


def test_one_entry_for_each_device(ready):
    rig, _plugin = ready
    assert listed(rig) == {}
    rig.allocate(2, "one")
    assert listed(rig) == {"one": {"main": sorted([entry("a", 1), entry("b")], key=str)}}
    assert get(rig, "one")["containers"] == rig.monitor("List")["pod_resources"][0]["containers"]


def test_a_pod_is_listed_while_it_is_admitted_and_named_soon_after(ready):
    rig, plugin = ready
    plugin.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        pod = pool.submit(rig.allocate, 1, "early")
        assert plugin.allocating.wait(20)
        assert listed(rig) == {"early": {"main": []}}
        went = time.monotonic()
        plugin.go_on.set()
        until(lambda: listed(rig)["early"]["main"])
        assert time.monotonic() - went >= 0.04
        assert listed(rig)["early"]["main"][0]["device_ids"] == pod.result(20)["devices"][NAME]


def test_a_pod_keeps_its_devices_in_the_list_while_its_container_cannot_be_created(ready):
    rig, plugin = ready
    absent = {"host_path": "/dev/no-such", "container_path": "/dev/x", "permissions": "rw"}
    plugin.response = {"container_responses": [{"devices": [absent]}]}
    assert rig.allocate(1, "stuck")["phase"] == "Pending"
    assert len(listed(rig)["stuck"]["main"]) == 1


def test_pods_that_have_ended_are_not_listed(ready):
    rig, plugin = ready
    rig.allocate(1, "done")
    rig.ask("finish", pod="done")
    plugin.refusal = "no"
    with pytest.raises(ValueError, match="UnexpectedAdmissionError"):
        rig.allocate(1, "failed")
    assert listed(rig) == {}
    assert get(rig, "done")["containers"] == get(rig, "failed")["containers"] == [{"name": "main", "devices": []}]


def test_a_pod_that_is_not_scheduled_is_unknown(ready):
    rig, _plugin = ready
    assert rig.allocate(5, "waiting", schedule=0)["phase"] == "Pending"
    assert listed(rig) == {}


def test_init_containers_that_end_are_not_listed(ready):
    rig, _plugin = ready
    init = [("init", {NAME: 1}, {}), ("side", {}, {"restartPolicy": "Always"})]
    rig.create("many", [("main", {NAME: 1}, {}), ("none", {}, {})], init=init)
    containers = listed(rig)["many"]
    assert list(containers) == ["side", "main", "none"] and [len(devices) for devices in containers.values()] == [0, 1, 0]


def test_pods_are_listed_after_a_restart(ready):
    rig, _plugin = ready
    rig.allocate(1, "kept")
    rig.restart()
    assert [each["device_ids"] for each in listed(rig)["kept"]["main"]] in ([["a"]], [["b"]])


def test_get_of_an_unknown_pod(ready):
    rig, _plugin = ready
    with pytest.raises(grpc.RpcError) as error:
        get(rig, "nope")
    assert error.value.code() == grpc.StatusCode.UNKNOWN and error.value.details() == "pod nope in namespace default not found"
    rig.allocate(1, "one")
    with pytest.raises(grpc.RpcError, match="pod one in namespace other not found"):
        get(rig, "one", "other")


def test_allocatable_has_all_healthy_devices_of_all_resources(ready):
    rig, _plugin = ready
    other = rig.plugin("other.sock", [device("x", numa=5)])  # a node that the host has not: no pod can use it
    other.register("example.com/other")
    rig.serving(1, 1, name="example.com/other")
    rig.allocate(1, "one")
    found = rig.monitor("GetAllocatableResources", answer=api.ALLOCATABLE_RESPONSE)["devices"]
    assert found == [entry("a", 1), entry("b"), entry("x", 5, "example.com/other")]


def test_the_old_service_has_no_topology(ready):
    rig, _plugin = ready
    rig.allocate(2, "one")
    assert listed(rig, service="v1alpha1.PodResourcesLister") == {"one": {"main": [entry("a"), entry("b")]}}


def test_a_burst_of_10_and_100_a_second():
    limiter = Limiter(0.0)
    assert [limiter.allow(0.0) for _unused in range(12)].count(True) == 10
    assert not limiter.allow(0.009) and limiter.allow(0.0101) and not limiter.allow(0.011)
    second = Limiter(0.0)
    assert sum(second.allow(call / 5000) for call in range(5000)) in (109, 110)
    idle = Limiter(0.0)
    assert [idle.allow(100.0) for _unused in range(12)].count(True) == 10


def test_all_methods_share_the_limit(ready):
    rig, _plugin = ready
    rig.allocate(1, "one")
    calls = [lambda: rig.monitor("List"), lambda: get(rig, "one"),
             lambda: rig.monitor("GetAllocatableResources", answer=api.ALLOCATABLE_RESPONSE)]
    refused = set()
    with ThreadPoolExecutor(8) as pool:
        for number, future in [(number % 3, pool.submit(calls[number % 3])) for number in range(600)]:
            error = future.exception(60)
            if error is not None:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and error.details() == "rejected by rate limit"
                refused.add(number)
    assert refused == {0, 1, 2}
