# SPDX-License-Identifier: GPL-3.0-or-later
"""What pods get, and which chips are preferred: the agent as a process, against the kubelet stand-in."""

import json
from pathlib import Path
from types import SimpleNamespace

import boards
import grpc
import pytest
from agent_rig import RESOURCE, SOCKET, make_node, private_folder, until
from kubelet_standin import api, wire

# --- the answer, by itself


@pytest.fixture
def allocate(package):
    import npu_agent.allocate

    return npu_agent.allocate


@pytest.fixture
def settings(tmp_path):
    """A node with three chips, two slices and one file of the driver, without the vendor's runtime."""
    for name in ("davinci0", "davinci1", "davinci10", "vdavinci100", "vdavinci101", "davinci_manager", "hisi_hdc"):
        make_node(tmp_path / name)
    (tmp_path / "driver/lib64").mkdir(parents=True)
    return SimpleNamespace(dev_root=str(tmp_path), allocate_mode="both", allocate_by="nodes", allocate_mounts="auto", cdi_links="family",
                           backend="ascend", install_path=str(tmp_path), cdi_mounts=f"{tmp_path}/base.list", host_root="/", host_paths=())


def chips(family="a2", **changes):
    return boards.board([boards.chip(number, family, **changes) for number in (0, 1, 10)])


def nodes(tmp_path, *names):
    return [(f"{tmp_path}/{name}", f"/dev/{name}") for name in names]


def test_only_nodes_that_exist_are_given(allocate, settings, tmp_path):
    given = allocate.answer(["c10", "c1"], chips(), settings)
    assert given == {
        "envs": {"ASCEND_VISIBLE_DEVICES": "1,10"},
        "devices": nodes(tmp_path, "davinci1", "davinci10", "davinci_manager", "hisi_hdc"),
        "mounts": [(f"{tmp_path}/driver/lib64", "/usr/local/Ascend/driver/lib64")], "cdi": [],
    }


def test_nodes_follow_the_numbers_of_now(allocate, settings, tmp_path):
    """The name stays when the driver numbers the chips anew; the node is that of the number."""
    given = allocate.answer(["c5"], boards.board([boards.chip(1, id="c5")]), settings)
    assert given["envs"] == {"ASCEND_VISIBLE_DEVICES": "1"} and given["devices"][0] == (f"{tmp_path}/davinci1", "/dev/davinci1")


def test_the_runtime_takes_logic_ids_of_the_family_950(allocate, settings, tmp_path):
    here = boards.board([boards.chip(10, "a5", logic_id=0), boards.chip(1, "a5", logic_id=1)])
    given = allocate.answer(["c10", "c1"], here, settings)
    assert given["envs"] == {"ASCEND_VISIBLE_DEVICES": "0,1"} and given["devices"][:2] == nodes(tmp_path, "davinci1", "davinci10")
    with pytest.raises(allocate.Refused, match="does not tell the logic id of c10 .*allocate_mode: devices"):
        allocate.answer(["c10"], boards.board([boards.chip(10, "a5")]), settings)
    settings.allocate_mode = "devices"
    assert allocate.answer(["c10"], boards.board([boards.chip(10, "a5")]), settings)["devices"][0] == nodes(tmp_path, "davinci10")[0]
    settings.allocate_mode = "both"
    assert allocate.answer(["c10"], boards.board([boards.chip(10, logic_id=0)]), settings)["envs"] == {"ASCEND_VISIBLE_DEVICES": "10"}


@pytest.mark.parametrize(("mode", "parts"), [
    ("devices", {"devices", "mounts"}), ("env", {"envs"}), ("both", {"envs", "devices", "mounts"}),
])
def test_what_each_mode_gives(allocate, settings, tmp_path, mode, parts):
    settings.allocate_mode = mode
    make_node(tmp_path / "davinci_manager_docker")
    given = allocate.answer(["c0"], chips("310b"), settings)
    assert {part for part, value in given.items() if value} == parts
    assert given["envs"].get("ASCEND_ALLOW_LINK") == ("True" if "envs" in parts else None)


def test_a_board_gets_its_manager_under_the_usual_name(allocate, settings, tmp_path):
    make_node(tmp_path / "davinci_manager_docker")
    assert allocate.answer(["c0"], chips("310b"), settings)["devices"] == [
        (f"{tmp_path}/davinci0", "/dev/davinci0"), (f"{tmp_path}/davinci_manager_docker", "/dev/davinci_manager"),
    ]


def test_nodes_in_a_folder_are_given_one_by_one(package, settings, tmp_path):
    from npu_agent.backends.ascend import manager_nodes

    (tmp_path / "ummu").mkdir()
    for name in ("b", "a"):
        make_node(tmp_path / "ummu" / name)
    (tmp_path / "ummu/c").touch()  # no device
    assert manager_nodes(["a5"], str(tmp_path)) == nodes(tmp_path, "davinci_manager", "hisi_hdc", "ummu/a", "ummu/b")


def test_one_node_for_each_name_inside(package, settings, tmp_path):
    from npu_agent.backends.ascend import manager_nodes

    make_node(tmp_path / "davinci_manager_docker")
    assert manager_nodes(["310", "310b"], str(tmp_path))[0] == (f"{tmp_path}/davinci_manager", "/dev/davinci_manager")


@pytest.mark.parametrize("case", [("auto", False, True), ("auto", True, False), ("always", True, True), ("never", False, False)])
def test_the_drivers_files_are_mounted_where_the_runtime_does_not(allocate, settings, tmp_path, case):
    settings.allocate_mounts, runtime, mounted = case
    if runtime:
        (tmp_path / "base.list").write_text(f"{tmp_path}/driver\n")
    wanted = [(f"{tmp_path}/driver", f"{tmp_path}/driver")] if runtime else [(f"{tmp_path}/driver/lib64", "/usr/local/Ascend/driver/lib64")]
    assert allocate.answer(["c0"], chips(), settings)["mounts"] == (wanted if mounted else [])


def test_shares_of_one_chip_are_that_chip(allocate, settings, tmp_path):
    here = boards.board([boards.chip(0), boards.chip(1)], shares=3)
    given = allocate.answer(["c0-2", "c1-0", "c0-0"], here, settings)
    assert given["envs"] == {"ASCEND_VISIBLE_DEVICES": "0,1"}
    assert given["devices"][:2] == nodes(tmp_path, "davinci0", "davinci1") and len(given["devices"]) == 4


def test_slices(allocate, settings, tmp_path):
    here = boards.board([boards.sliced(0, 101), boards.sliced(0, 100)])
    given = allocate.answer(["c-2c-101-0", "c-2c-100-0"], here, settings)
    assert given["envs"] == {"ASCEND_VISIBLE_DEVICES": "100,101", "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}
    assert given["devices"][:2] == [(f"{tmp_path}/vdavinci{vdev}", f"/dev/davinci{vdev}") for vdev in (100, 101)]


def test_odd_requests(allocate, settings):
    """Kubelet sends sets; a list that is none is taken for one."""
    assert allocate.answer([], chips(), settings) == {"envs": {}, "devices": [], "mounts": [], "cdi": []}
    assert allocate.answer(["c0", "c0"], chips(), settings) == allocate.answer(["c0"], chips(), settings)
    ill = chips(healthy=False, reason="critical")
    assert allocate.answer(["c0"], ill, settings)["devices"]  # kubelet decides, our state may be older than its list


@pytest.mark.parametrize(("ids", "changes", "words"), [
    (["c0", "c7"], {}, "c7 is no id of huawei.com/Ascend910 on this node (there are: c0, c1, c10); kubelet's list was older than a change"),
    (["c0-0"], {}, "c0-0 is no id of huawei.com/Ascend910"),
    (["x" * 5000], {}, "x" * 80 + " is no id"),
    (["c1"], {"gone": True, "reason": "not ready"}, "c1 (PCI 0000:01:00.0) is gone from this node: not ready; kubelet was told so"),
])
def test_refusals(allocate, settings, ids, changes, words):
    with pytest.raises(allocate.Refused) as refused:
        allocate.answer(ids, chips(**changes), settings)
    assert words in str(refused.value) and len(str(refused.value)) < 1000


def test_a_refusal_stays_short(allocate, settings):
    here = boards.board([boards.chip(number) for number in range(16)], shares=100)
    with pytest.raises(allocate.Refused, match="there are: 1600 others"):
        allocate.answer(["c99"], here, settings)


def test_a_missing_node_is_refused(allocate, settings, tmp_path):
    (tmp_path / "davinci1").unlink()
    (tmp_path / "vdavinci100").unlink()
    for ids, here in ((["c0", "c1"], chips()), (["c-2c-100-0"], boards.board([boards.sliced(0, 100)]))):
        with pytest.raises(allocate.Refused, match="does not exist on this node: the NPU driver is not loaded"):
            allocate.answer(ids, here, settings)


# --- against the kubelet stand-in


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


def ask(rig, *containers):
    request = {"container_requests": [{"devices_ids": list(ids)} for ids in containers]}
    return call(rig, "Allocate", api.ALLOCATE_REQUEST, request, api.ALLOCATE_RESPONSE)["container_responses"]


def test_allocate_answers_each_container_in_order(pair):
    rig, _agent = pair
    answers = ask(rig, ["Ascend910-7"], ["Ascend910-10"[:-1], "Ascend910-0"])
    assert [answer["envs"]["ASCEND_VISIBLE_DEVICES"] for answer in answers] == ["7", "0,1"]


def test_allocate_refuses_in_words(pair):
    rig, agent = pair
    with pytest.raises(grpc.RpcError) as unknown:
        ask(rig, ["Ascend910-0"], ["Ascend910-77"])
    assert "Ascend910-77 is no id of huawei.com/Ascend910 on this node" in unknown.value.details()
    (rig.dev / "davinci6").unlink()
    with pytest.raises(grpc.RpcError) as missing:
        ask(rig, ["Ascend910-6"])
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


def test_the_drivers_files_come_by_mounts(rig):
    with private_folder() as place:
        (Path(place) / "driver/lib64").mkdir(parents=True)
        rig.kubelet()
        rig.agent(install_path=place, cdi_mounts=rig.folder / "base.list").await_state("serving")
        until(lambda: rig.numbers()[0], what="the first list in the kubelet")
        assert rig.ask("allocate", count=1, resource=RESOURCE, pod="one")["response"]["mounts"] == [
            {"container_path": "/usr/local/Ascend/driver/lib64", "host_path": f"{place}/driver/lib64", "read_only": True}
        ]


def test_the_drivers_files_are_those_of_the_host_and_what_is_not_seen_is_told(rig):
    """As in a pod: the image has libraries of its own under paths of the list, the host has others, and of its /etc nothing is seen."""
    host = rig.folder / "host"
    for path in ("usr/local/bin", "etc"):
        (host / path).mkdir(parents=True)
    (host / "usr/local/bin/npu-smi").touch()
    (host / "etc/hccn.conf").touch()
    base = rig.folder / "own.list"
    base.write_text("/usr/local/bin/npu-smi\n/usr/bin\n/etc/hccn.conf\n")
    rig.kubelet()
    agent = rig.agent(cdi_mounts=base, allocate_mounts="always", host_root=host, host_paths="/usr/local/bin, /usr/bin")
    agent.await_state("serving")
    until(lambda: rig.numbers()[0], what="the first list in the kubelet")
    assert rig.ask("allocate", count=1, resource=RESOURCE, pod="one")["response"]["mounts"] == [
        {"container_path": "/usr/local/bin/npu-smi", "host_path": "/usr/local/bin/npu-smi", "read_only": True}
    ]
    (told,) = json.loads(agent.get("/readyz")[1])["reasons"]
    assert told.startswith("containers do not get /etc/hccn.conf, whether")


def test_shares(rig):
    rig.kubelet()
    rig.agent(shares=3).await_state("serving")
    until(lambda: rig.numbers() == (24, 24), what="24 of 24 at the kubelet")
    shares = rig.ask("allocate", count=4, resource=RESOURCE, pod="one")["devices"][RESOURCE]
    assert len({name.rpartition("-")[0] for name in shares}) == 4
    (answer,) = ask(rig, ["Ascend910-2-0", "Ascend910-2-2"])
    assert answer["envs"]["ASCEND_VISIBLE_DEVICES"] == "2"
    assert [device["host_path"] for device in answer["devices"]].count(f"{rig.dev}/davinci2") == 1


def test_names_outlive_a_renumbering(rig):
    rig.kubelet()
    agent = rig.agent()
    agent.await_state("serving")
    until((rig.folder / "state/names.json").exists)
    agent.stop()
    rig.change("chips.0.phy_id", 7)
    rig.change("chips.7.phy_id", 0)
    agent = rig.agent(name="later")
    agent.await_state("serving")
    until(lambda: rig.numbers() == (6, 8), what="two chips that kubelet may mistake for each other")
    assert ask(rig, ["Ascend910-1"])[0]["envs"] == {"ASCEND_VISIBLE_DEVICES": "1"}
    with pytest.raises(grpc.RpcError) as refused:
        ask(rig, ["Ascend910-0"])
    assert "Ascend910-0 (PCI 0000:c1:00.0) is given to nobody now: it was /dev/davinci0 and is /dev/davinci7" in refused.value.details()


def test_slices_of_a_chip(rig):
    """Two virtual devices that somebody made on a chip are a resource of their own, and the chip is not given out as a whole."""
    rig.change("chips.3.slices", [{"vdev_id": number, "template": "vir05_1c_8g"} for number in (100, 101)])
    for number in (100, 101):
        make_node(rig.dev / f"vdavinci{number}")
    rig.kubelet()
    rig.agent().await_state("serving")
    resource = f"{RESOURCE}-5c.1cpu.8g"
    until(lambda: rig.numbers() == (7, 7) and rig.numbers(resource) == (2, 2), what="7 chips and 2 slices at the kubelet")
    pod = rig.ask("allocate", count=2, resource=resource, pod="one")
    assert sorted(pod["devices"][resource]) == ["Ascend910-5c.1cpu.8g-100-3", "Ascend910-5c.1cpu.8g-101-3"]
    assert pod["response"]["envs"] == {"ASCEND_VISIBLE_DEVICES": "100,101", "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}
    assert pod["response"]["devices"][:2] == [
        {"container_path": f"/dev/davinci{number}", "host_path": f"{rig.dev}/vdavinci{number}", "permissions": "rw"}
        for number in (100, 101)
    ]
