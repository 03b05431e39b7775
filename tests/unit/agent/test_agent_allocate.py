# SPDX-License-Identifier: GPL-3.0-or-later
"""What pods get, and which chips are preferred: the agent as a process, against the kubelet stand-in."""

import grpc
import pytest
from agent_rig import RESOURCE, SOCKET, until
from kubelet_standin import api, wire


def test_allocate_gives_nodes_and_physical_ids(pair):
    rig, _agent = pair
    pod = rig.ask("allocate", count=2, resource=RESOURCE, pod="one")
    numbers = sorted(int(name.rsplit("-", 1)[1]) for name in pod["devices"][RESOURCE])
    assert numbers in ([0, 1], [4, 5])
    response = pod["response"]
    assert response["envs"] == {"ASCEND_VISIBLE_DEVICES": ",".join(map(str, numbers))}
    names = [f"davinci{number}" for number in numbers] + ["davinci_manager", "devmm_svm", "hisi_hdc"]
    assert response["devices"] == [
        {"container_path": f"/dev/{name}", "host_path": f"{rig.dev}/{name}", "permissions": "rw"} for name in names
    ]
    assert response["mounts"] == [] and response["annotations"] == {} and response["cdi_devices"] == []


@pytest.mark.parametrize(("mode", "devices", "variables"), [("devices", True, False), ("env", False, True), ("both", True, True)])
def test_allocate_mode(rig, mode, devices, variables):
    rig.kubelet()
    rig.agent(allocate_mode=mode).await_state("serving")
    until(lambda: rig.numbers()[0], what="the first list in the kubelet")  # "serving" is the agent's word, the list comes after it
    response = rig.ask("allocate", count=1, resource=RESOURCE, pod="one")["response"]
    assert (bool(response["devices"]), bool(response["envs"])) == (devices, variables)


def call(rig, method, schema, request, answer):
    """One call as kubelet makes it."""
    with grpc.insecure_channel(f"unix://{rig.plugins / SOCKET}") as channel:
        rpc = channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", lambda m: wire.encode(schema, m), lambda data: wire.decode(answer, data)
        )
        return rpc(request, timeout=10)


def allocate(rig, *containers):
    request = {"container_requests": [{"devices_ids": list(ids)} for ids in containers]}
    return call(rig, "Allocate", api.ALLOCATE_REQUEST, request, api.ALLOCATE_RESPONSE)["container_responses"]


def test_allocate_answers_each_container_in_order(pair):
    rig, _agent = pair
    answers = allocate(rig, ["Ascend910-7"], ["Ascend910-10"[:-1], "Ascend910-0"])
    assert [answer["envs"]["ASCEND_VISIBLE_DEVICES"] for answer in answers] == ["7", "0,1"]


def test_allocate_refuses_in_words(pair):
    rig, agent = pair
    with pytest.raises(grpc.RpcError) as unknown:
        allocate(rig, ["Ascend910-0"], ["Ascend910-77"])
    assert "Ascend910-77 is no chip of this node" in unknown.value.details()
    (rig.dev / "davinci6").unlink()
    with pytest.raises(grpc.RpcError) as missing:
        allocate(rig, ["Ascend910-6"])
    assert "davinci6" in missing.value.details() and "driver" in missing.value.details()
    assert "npu_agent_allocations_refused_total 2" in agent.get("/metrics")[1]


def test_64_allocates_at_once(pair):
    rig, agent = pair
    with grpc.insecure_channel(f"unix://{rig.plugins / SOCKET}") as channel:
        rpc = channel.unary_unary("/v1beta1.DevicePlugin/Allocate", lambda m: wire.encode(api.ALLOCATE_REQUEST, m),
                                  lambda data: wire.decode(api.ALLOCATE_RESPONSE, data))
        calls = [(n % 8, rpc.future({"container_requests": [{"devices_ids": [f"Ascend910-{n % 8}"]}]})) for n in range(64)]
        for number, future in calls:
            (answer,) = future.result(20)["container_responses"]
            assert answer["envs"]["ASCEND_VISIBLE_DEVICES"] == str(number)
            assert answer["devices"][0]["container_path"] == f"/dev/davinci{number}"
    assert "npu_agent_allocations_total 64" in agent.get("/metrics")[1]


def test_preferred_keeps_to_one_numa_node(pair):
    rig, _agent = pair
    pod = rig.ask("allocate", count=3, resource=RESOURCE, pod="three")
    assert "GetPreferredAllocation" in rig.ask("calls", resource=RESOURCE)
    assert len({int(name.rsplit("-", 1)[1]) // 4 for name in pod["devices"][RESOURCE]}) == 1
    # One is left beside them, four on the other node: a request of four gets those four.
    four = rig.ask("allocate", count=4, resource=RESOURCE, pod="four")["devices"][RESOURCE]
    assert len({int(name.rsplit("-", 1)[1]) // 4 for name in four}) == 1


def test_unknown_numa_is_no_topology(rig):
    for function in (rig.sys / "bus/pci/devices").iterdir():
        (function / "numa_node").write_text("-1\n" if function.name != "0000:c1:00.0" else "5\n")  # a node that this host has not
    rig.kubelet("--topology-policy", "restricted")
    rig.agent().await_state("serving")
    assert all(device["numa"] == [] for device in rig.ask("devices")[RESOURCE].values())
    assert rig.ask("allocate", count=1, resource=RESOURCE, pod="one")["phase"] == "Running"
