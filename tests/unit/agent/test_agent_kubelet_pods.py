# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet stand-in keeps to what was measured: which devices pods get, which of them fail, and how."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from agent_rig import until
from odd_plugin import NAME, device

UNEXPECTED = "UnexpectedAdmissionError: Allocate failed due to {}, which is unexpected"


def answer(**fields):
    return {"container_responses": [fields]}


def spec(path, inside="/dev/x"):
    return {"host_path": str(path), "container_path": inside, "permissions": "rw"}


# Which ids.


def test_the_preference_is_asked_first_and_kept(ready):
    rig, plugin = ready
    plugin.preferred = ["c", "a"]
    pod = rig.allocate(2, "one")
    assert pod["phase"] == "Running" and pod["devices"] == {NAME: ["a", "c"]}
    assert [method for method, _time, _asked in plugin.calls[-2:]] == ["GetPreferredAllocation", "Allocate"]
    (asked,) = plugin.called("GetPreferredAllocation")
    assert sorted(asked["available_deviceIDs"]) == ["a", "b", "c"]
    assert asked["must_include_deviceIDs"] == [] and asked["allocation_size"] == 2
    assert sorted(plugin.called("Allocate")[0]) == ["a", "c"]
    assert min(plugin.deadlines.values()) > 1e9  # no call has a deadline


def test_the_order_of_ids_is_not_stable(ready):
    rig, plugin = ready
    names = [f"n{number:02}" for number in range(40)]
    plugin.push(*map(device, names))
    rig.serving(40, 40)
    rig.allocate(40, "all")
    (asked,) = plugin.called("GetPreferredAllocation")
    assert asked["available_deviceIDs"] != names and plugin.called("Allocate")[0] != names
    assert asked["available_deviceIDs"] != plugin.called("Allocate")[0]


def test_no_preference_is_asked_for_where_none_is_offered(odd):
    rig, plugin = odd
    plugin.options = {"pre_start_required": False, "get_preferred_allocation_available": False}
    plugin.register()
    rig.serving(3, 3)
    assert len(rig.allocate(2, "one")["devices"][NAME]) == 2 and not plugin.called("GetPreferredAllocation")


@pytest.mark.parametrize("preferred", [["c", "nobody"], ["c"], ["c", "c"]])
def test_a_short_preference_is_filled_up(ready, preferred):
    rig, plugin = ready
    plugin.preferred = preferred
    ids = rig.allocate(2, "one")["devices"][NAME]
    assert "c" in ids and len(ids) == 2 and "nobody" not in ids


def test_a_long_preference_is_cut(ready):
    rig, plugin = ready
    plugin.preferred = ["a", "b"]
    (one,) = rig.allocate(1, "one")["devices"][NAME]
    assert one in plugin.preferred


def test_a_device_is_given_once_and_free_after_its_pod(ready):
    rig, plugin = ready
    plugin.preferred = ["a", "b", "c"]
    taken = rig.allocate(2, "one")["devices"][NAME]
    with pytest.raises(ValueError) as refused:
        rig.allocate(2, "two")
    text = f"requested number of devices unavailable for {NAME}. Requested: 2, Available: 1"
    assert str(refused.value) == UNEXPECTED.format(text)
    assert rig.allocate(1, "three")["devices"][NAME][0] not in taken
    rig.ask("delete", pod="one")
    rig.ask("finish", pod="three")
    assert rig.allocate(3, "four")["phase"] == "Running" and rig.ask("pods")["default/three"]["phase"] == "Succeeded"


def test_unhealthy_devices_are_given_to_nobody(ready):
    rig, plugin = ready
    plugin.push(device("a", "Unhealthy"), device("b"), device("c", "Degraded"))
    rig.serving(1, 3)
    plugin.preferred = ["a"]
    assert rig.allocate(1, "one")["devices"] == {NAME: ["b"]}
    plugin.push(device("b", "Unhealthy"))
    rig.serving(0, 1)
    with pytest.raises(ValueError, match=f"no healthy devices present; cannot allocate unhealthy devices {NAME}"):
        rig.allocate(1, "two")
    pods = rig.ask("pods")
    assert pods["default/one"]["phase"] == "Running" and pods["default/one"]["health"] == {NAME: {"b": "Unhealthy"}}
    plugin.push()
    rig.serving(0, 0)
    assert rig.ask("pods")["default/one"]["health"] == {NAME: {"b": "Healthy"}}  # no list names it any more


def test_a_resource_that_nobody_registered(ready):
    rig, _plugin = ready
    with pytest.raises(ValueError, match="cannot allocate unregistered device example.com/other"):
        rig.ask("allocate", count=1, resource="example.com/other", pod="one")


# Pods with several containers.


def test_one_allocate_for_each_container(ready):
    rig, plugin = ready
    pod = rig.create("two", [("one", {NAME: 1}, {}), ("two", {NAME: 2}, {}), ("none", {"cpu": "2"}, {})])
    assert [len(ids) for ids in plugin.called("Allocate")] == [1, 2] and pod["devices"] == {NAME: ["a", "b", "c"]}
    assert pod["containers"]["none"]["devices"] == {} and pod["containers"]["none"]["state"] == "running"


def test_a_container_that_fails_gives_back_what_the_one_before_it_got(ready):
    rig, plugin = ready
    with pytest.raises(ValueError, match="Requested: 3, Available: 2"):
        rig.create("two", [("one", {NAME: 1}, {}), ("two", {NAME: 3}, {})])
    assert len(plugin.called("Allocate")) == 1
    assert rig.allocate(3, "next")["phase"] == "Running"


def test_devices_of_an_init_container_are_used_again(ready):
    rig, plugin = ready
    pod = rig.create("both", [("main", {NAME: 2}, {})], init=[("init", {NAME: 2}, {})])
    first, second = plugin.called("Allocate")
    assert sorted(first) == sorted(second) and len(plugin.called("GetPreferredAllocation")) == 1
    assert [pod["containers"][name]["state"] for name in ("init", "main")] == ["exited", "running"]
    assert rig.allocate(1, "other")["phase"] == "Running"


def test_reused_ids_must_be_in_the_preference(ready):
    rig, plugin = ready
    plugin.preferred = ["b"]
    pod = rig.create("grows", [("main", {NAME: 2}, {})], init=[("init", {NAME: 1}, {})])
    first, second = plugin.called("GetPreferredAllocation")
    assert first["must_include_deviceIDs"] == [] and second["must_include_deviceIDs"] == ["b"] and second["allocation_size"] == 2
    assert sorted(second["available_deviceIDs"]) == ["a", "b", "c"]
    assert "b" in pod["containers"]["main"]["devices"][NAME] and len(pod["containers"]["main"]["devices"][NAME]) == 2


def test_what_an_init_container_had_more_stays_taken(ready):
    rig, _plugin = ready
    rig.create("shrinks", [("main", {NAME: 1}, {})], init=[("init", {NAME: 3}, {})])
    with pytest.raises(ValueError, match="Requested: 1, Available: 0"):
        rig.allocate(1, "other")


def test_a_second_container_does_not_share_what_was_reused(ready):
    rig, plugin = ready
    pod = rig.create("three", [("one", {NAME: 1}, {}), ("two", {NAME: 1}, {})], init=[("init", {NAME: 1}, {})])
    init, one, two = plugin.called("Allocate")
    assert init == one and one != two and len(pod["devices"][NAME]) == 2


def test_a_sidecar_keeps_its_devices(ready):
    rig, plugin = ready
    pod = rig.create("beside", [("main", {NAME: 1}, {})], init=[("side", {NAME: 1}, {"restartPolicy": "Always"})])
    side, main = plugin.called("Allocate")
    assert side != main and pod["containers"]["side"]["state"] == "running"


def test_two_resources_in_one_container(ready):
    rig, plugin = ready
    plugin.response = answer(envs={"A": "1", "B": "first"}, devices=[spec("/dev/null")], annotations={"x": "1"})
    other = rig.plugin("other.sock")
    devices = [spec("/dev/zero"), spec("/dev/zero", "/dev/y")]
    other.response = answer(envs={"B": "second", "C": "3"}, devices=devices, annotations={"x": "2"})
    other.register("example.com/other")
    rig.serving(3, 3, name="example.com/other")
    pod = rig.create("two", [("main", {NAME: 1, "example.com/other": 1}, {})])
    given = pod["container"]
    assert given["env"] == {"A": "1", "B": "first", "C": "3"} and given["annotations"] == {"x": "1"}
    assert [(each["container_path"], each["host_path"]) for each in given["devices"]] == [("/dev/x", "/dev/null"), ("/dev/y", "/dev/zero")]
    assert len(plugin.called("Allocate")) == len(other.called("Allocate")) == 1


# What a container gets.


def test_a_container_gets_what_was_asked_for(ready):
    rig, plugin = ready
    mount = {"container_path": "/inside", "host_path": str(rig.folder), "read_only": True}
    devices = [spec("/dev/null", "/dev/other")]
    plugin.response = answer(envs={"A": "plugin", "B": "plugin"}, devices=devices, mounts=[mount], annotations={"k": "v"})
    pod = rig.allocate(1, "one", env={"B": "pod"})
    assert pod["container"] == {
        "env": {"A": "plugin", "B": "pod"}, "annotations": {"k": "v"}, "cdi_devices": [], "mounts": [mount],
        "devices": [{**spec("/dev/null", "/dev/other"), "type": "c", "major": 1, "minor": 3, "mode": 0o666}],
    }
    assert "annotations" not in pod and pod["response"]["envs"] == {"A": "plugin", "B": "plugin"}


@pytest.mark.parametrize("what", ["devices", "mounts"])
def test_a_path_that_is_missing_is_tried_again_for_ever(kubelet, what):
    rig, plugin = kubelet("--sync-seconds", "0.1")
    plugin.register()
    rig.serving(3, 3)
    path = rig.folder / "late"
    entry = {"host_path": str(path), "container_path": "/x"}
    plugin.response = answer(**{what: [{**entry, "permissions": "rw"} if what == "devices" else entry]})
    pod = rig.allocate(1, "late")
    assert (pod["phase"], pod["reason"]) == ("Pending", "CreateContainerError")
    assert pod["message"] == f"{'lstat' if what == 'devices' else 'stat'} {path}: no such file or directory"
    time.sleep(0.5)
    assert rig.ask("pods")["default/late"]["reason"] == "CreateContainerError"
    path.mkdir()
    until(lambda: rig.ask("pods")["default/late"]["phase"] == "Running")
    assert len(plugin.called("Allocate")) == 1


def test_cdi_on_an_engine_without_it(ready):
    rig, plugin = ready
    plugin.response = answer(envs={"A": "1"}, cdi_devices=[{"name": "example.com/npu=0"}])
    pod = rig.allocate(1, "blind")
    assert pod["phase"] == "Running" and pod["reason"] == ""
    assert pod["container"] == {"env": {"A": "1"}, "devices": [], "mounts": [], "annotations": {}, "cdi_devices": []}


def test_cdi_on_an_engine_with_it(kubelet, tmp_path):
    folder = tmp_path / "cdi"
    folder.mkdir()
    edits = {"env": ["A=cdi"], "deviceNodes": [{"path": "/dev/npu0", "hostPath": "/dev/null", "permissions": "rw"}]}
    common = {"mounts": [{"hostPath": str(tmp_path), "containerPath": "/inside", "options": ["ro"]}]}
    document = {"kind": "example.com/npu", "devices": [{"name": "0", "containerEdits": edits}], "containerEdits": common}
    (folder / "npu.json").write_text(json.dumps(document))
    (folder / "broken.json").write_text("{")
    rig, plugin = kubelet("--cdi-folders", f"/nowhere,{folder}")
    plugin.register()
    rig.serving(3, 3)
    plugin.response = answer(envs={"A": "plugin"}, cdi_devices=[{"name": "example.com/npu=0"}])
    given = rig.allocate(1, "seeing")["container"]
    assert given["env"] == {"A": "cdi"} and given["cdi_devices"] == ["example.com/npu=0"]
    assert [(each["container_path"], each["host_path"], each["minor"]) for each in given["devices"]] == [("/dev/npu0", "/dev/null", 3)]
    assert given["mounts"] == [{"container_path": "/inside", "host_path": str(tmp_path), "read_only": True}]
    plugin.response = answer(cdi_devices=[{"name": "example.com/npu=7"}])
    pod = rig.allocate(1, "wrong")
    assert pod["reason"] == "CreateContainerError" and "unresolvable CDI devices example.com/npu=7" in pod["message"]


# Errors.


def test_an_error_of_allocate_ends_the_pod(kubelet):
    rig, plugin = kubelet("--sync-seconds", "0.1")
    plugin.register()
    rig.serving(3, 3)
    plugin.refusal = "the driver is away"
    with pytest.raises(ValueError) as refused:
        rig.allocate(1, "refused")
    assert str(refused.value) == UNEXPECTED.format("rpc error: code = Internal desc = the driver is away")
    time.sleep(0.5)
    pod = rig.ask("pods")["default/refused"]
    assert (pod["phase"], pod["reason"], pod["devices"]) == ("Failed", "UnexpectedAdmissionError", {})
    assert len(plugin.called("Allocate")) == 1
    plugin.refusal = None
    assert rig.allocate(3, "next")["phase"] == "Running"  # the devices are free again


def test_no_container_response(ready):
    rig, plugin = ready
    plugin.response = {"container_responses": []}
    with pytest.raises(ValueError) as refused:
        rig.allocate(1, "empty")
    assert str(refused.value) == UNEXPECTED.format("no containers return in allocation response")


def test_an_error_of_the_preference_ends_the_pod(ready):
    rig, plugin = ready
    plugin.preferred_refusal = "no idea"
    with pytest.raises(ValueError) as refused:
        rig.allocate(1, "refused")
    words = "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = no idea"
    assert str(refused.value) == UNEXPECTED.format(words) and not plugin.called("Allocate")


def test_a_pod_is_admitted_after_the_other(ready):
    rig, plugin = ready
    plugin.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(rig.allocate, 1, "first")
        assert plugin.allocating.wait(20)
        second = pool.submit(rig.allocate, 1, "second")
        until(lambda: "default/second" in rig.ask("pods"))
        time.sleep(0.2)
        assert len(plugin.called("Allocate")) == 1 and not second.done()
        plugin.go_on.set()
        assert first.result(20)["phase"] == second.result(20)["phase"] == "Running"


# PreStartContainer.


@pytest.fixture
def pre_start(kubelet):
    rig, plugin = kubelet("--sync-seconds", "0.1")
    plugin.options = {"pre_start_required": True, "get_preferred_allocation_available": False}
    plugin.register()
    rig.serving(3, 3)
    return rig, plugin


def test_pre_start_comes_after_the_sandbox(pre_start):
    rig, plugin = pre_start
    pod = rig.allocate(2, "one")
    ((ids),) = plugin.called("PreStartContainer")
    assert sorted(ids) == pod["devices"][NAME]
    assert plugin.when("Allocate") + 0.5 <= pod["sandbox"] <= plugin.when("PreStartContainer")
    assert 25 < plugin.deadlines["PreStartContainer"] < 31


def test_pre_start_of_each_container_in_turn(pre_start):
    rig, plugin = pre_start
    rig.create("two", [("main", {NAME: 1}, {}), ("none", {}, {})], init=[("init", {NAME: 1}, {})])
    assert [method for method, _time, _asked in plugin.calls[2:]] == ["Allocate", "Allocate", "PreStartContainer", "PreStartContainer"]


def test_an_error_of_pre_start_holds_the_container_up(pre_start):
    rig, plugin = pre_start
    plugin.pre_start_refusal = "not yet"
    pod = rig.allocate(1, "one")
    assert (pod["phase"], pod["reason"]) == ("Pending", "CreateContainerConfigError")
    assert pod["message"] == "device plugin PreStartContainer rpc failed with err: rpc error: code = Internal desc = not yet"
    plugin.pre_start_refusal = None
    until(lambda: rig.ask("pods")["default/one"]["phase"] == "Running")
    assert len(plugin.called("Allocate")) == 1


# The scheduler.


def test_a_pod_that_comes_before_the_node_tells_of_the_resource(kubelet):
    rig, plugin = kubelet("--status-seconds", "3600")
    plugin.register()
    rig.serving(3, 3)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(rig.allocate, 2, "early", schedule=30)
        until(lambda: rig.ask("pods").get("default/early", {}).get("events"))
        rig.ask("report")
        pod = early.result(30)
    failed = f"FailedScheduling: 0/1 nodes are available: 1 Insufficient {NAME}."
    assert pod["phase"] == "Running" and pod["events"] == [failed, "Scheduled"]
    never = rig.allocate(2, "never", schedule=0.1)  # one is left
    assert never["phase"] == "Pending" and never["events"] == [failed] and len(plugin.called("Allocate")) == 1
    assert rig.allocate(1, "fits", schedule=0)["events"] == ["Scheduled"]
