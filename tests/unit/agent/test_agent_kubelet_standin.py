# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet stand-in keeps to what was measured: registration, capacity and allocatable. Its plugin has nothing of the agent.
tests/kubelet/README.md says which row of the measurements is shown by which test."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from agent_rig import REPO, until
from kubelet_standin import registration
from kubelet_standin.devices import GRACE_SECONDS
from odd_plugin import NAME, THREE, device

# Registration.


def test_options_are_asked_for_inside_register_and_the_list_follows(odd):
    rig, plugin = odd
    begun = time.monotonic()
    plugin.register()
    assert plugin.called("GetDevicePluginOptions") and begun < plugin.when("GetDevicePluginOptions")
    rig.serving(3, 3)
    assert [name for name, _time, _asked in plugin.calls] == ["GetDevicePluginOptions", "ListAndWatch"]
    (request,) = rig.ask("registrations")
    assert request["endpoint"] == "odd.sock" and request["options"] == plugin.options


@pytest.mark.parametrize("seconds", [0.5, pytest.param(12.0, marks=pytest.mark.long)])
def test_register_takes_as_long_as_the_options(odd, seconds):
    rig, plugin = odd
    plugin.options_seconds = seconds
    begun = time.monotonic()
    plugin.register()
    assert time.monotonic() - begun >= seconds
    rig.serving(3, 3)


@pytest.mark.parametrize("seconds", [0.5, pytest.param(15.0, marks=pytest.mark.long)])
def test_capacity_appears_with_the_first_list(odd, seconds):
    rig, plugin = odd
    plugin.first_list_seconds = seconds
    plugin.register()
    assert rig.numbers() == (None, None)
    rig.serving(3, 3)
    (first,) = rig.ask("history", kind="list")
    assert first["time"] - plugin.when("ListAndWatch") >= seconds
    assert "refused" not in rig.text() and rig.ask("plugins")[NAME]["streams"] == 1


@pytest.mark.parametrize(("name", "good"), [
    ("huawei.com/Ascend910", True), ("huawei.com/Ascend910-share", True), ("rocknpu.device/npu", True), ("Rockchip.device/npu", False),
    ("rock_npu/x", False), ("npu", False), ("kubernetes.io/npu", False), ("requests.x/npu", False), ("x.kubernetes.io/npu", False),
    ("a/" + "b" * 63, True), ("a/" + "b" * 64, False), ("a/b/c", False), ("a/-b", False), ("/b", False), ("a/", False),
    ("a." * 121 + "a/b", True), ("a." * 122 + "a/b", False), ("huawei.com/Ascend910\n", False),
])
def test_names(name, good):
    assert registration.valid_name(name) is good


@pytest.mark.parametrize("name", ["Rockchip.device/npu", "rock_npu/x", "npu", "kubernetes.io/npu", "requests.x/npu"])
def test_refusal_in_the_measured_words(odd, name):
    _rig, plugin = odd
    with pytest.raises(grpc.RpcError) as error:
        plugin.register(name)
    assert error.value.code() == grpc.StatusCode.UNKNOWN and error.value.details() == f'the ResourceName "{name}" is invalid'


def test_other_refusals(kubelet):
    rig, plugin = kubelet("--dial-seconds", "0.3")
    with pytest.raises(grpc.RpcError, match=r'API version \\?"v1alpha\\?" is not supported by kubelet'):
        plugin.register(version="v1alpha")
    plugin.server.stop(0).wait()
    with pytest.raises(grpc.RpcError, match="failed to dial device plugin: context deadline exceeded"):
        plugin.register()
    assert rig.numbers() == (None, None)


def test_a_second_registration_leaves_no_gap(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    plugin.register()
    until(lambda: len(rig.ask("history", kind="list")) == 2)
    assert {(entry["healthy"], entry["total"]) for entry in rig.ask("history", kind="list")} == {(3, 3)}
    assert rig.ask("history", kind="end") == [] and rig.ask("plugins")[NAME]["streams"] == 2 and rig.numbers() == (3, 3)


def test_the_late_end_of_the_first_stream_takes_the_second(odd):
    rig, plugin = odd
    plugin.register()
    plugin.register()
    until(lambda: plugin.streams == 2)
    plugin.end(1)
    rig.serving(0, 3)
    until(lambda: 2 in plugin.ended, what="the plugin sees the end of its second stream")
    assert rig.ask("plugins")[NAME]["streams"] == 0
    plugin.register()
    rig.serving(3, 3)


def test_an_old_stream_that_ended_first_does_no_harm(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    plugin.end(1)
    rig.serving(0, 3)
    plugin.register()
    rig.serving(3, 3)


def test_lists_of_both_streams_count(kubelet):
    rig, old = kubelet()
    old.register()
    new = rig.plugin("new.sock", [device("x")])
    new.register()
    rig.serving(1, 1)
    old.push(*THREE, device("d"))
    rig.serving(4, 4)
    assert rig.allocate(1, "one")["phase"] == "Running"
    assert new.called("Allocate") and not old.called("Allocate")  # the newest one answers


# Capacity and allocatable.


def test_only_healthy_counts(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    plugin.push(device("a"), device("b", "Unhealthy"), device("c", "Degraded"))
    rig.serving(1, 3)
    plugin.push(device("a"), device("b", "healthy"), device("c", ""))
    rig.serving(1, 3)


def test_an_id_that_is_sent_twice(odd):
    rig, plugin = odd
    plugin.push(device("a"), device("a", "Unhealthy"), device("b", "Unhealthy"))
    plugin.register()
    rig.serving(1, 3)  # three for two ids
    assert rig.allocate(1, "one")["devices"] == {NAME: ["a"]}


def test_the_node_object_is_late(kubelet):
    rig, plugin = kubelet("--status-seconds", "3600")
    plugin.register()
    rig.serving(3, 3)
    assert rig.ask("nodes")["rig"] == {"allocatable": {}, "capacity": {}}
    rig.ask("report")
    assert rig.ask("nodes")["rig"] == {"allocatable": {NAME: 3}, "capacity": {NAME: 3}}
    plugin.push(device("a"), device("b"), device("c", "Unhealthy"))
    rig.serving(2, 3)
    assert rig.ask("nodes")["rig"]["allocatable"] == {NAME: 3}
    rig.ask("report")
    assert rig.ask("nodes")["rig"] == {"allocatable": {NAME: 2}, "capacity": {NAME: 3}}


def test_the_node_object_follows_by_itself(odd):
    rig, plugin = odd
    plugin.register()
    until(lambda: rig.ask("nodes")["rig"] == {"allocatable": {NAME: 3}, "capacity": {NAME: 3}})


def test_a_plugin_that_is_killed_and_comes_back(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    rig.allocate(1, "running")
    plugin.server.stop(None)
    rig.serving(0, 3)
    assert rig.ask("pods")["default/running"]["phase"] == "Running"
    plugin.serve()
    plugin.register()
    rig.serving(3, 3)
    assert rig.allocate(2, "next")["phase"] == "Running"


def test_an_empty_list(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    plugin.push()
    rig.serving(0, 0)
    plugin.stop()
    until(lambda: rig.ask("plugins")[NAME]["streams"] == 0)
    assert rig.numbers() == (0, 0)


def test_a_plugin_that_is_gone_for_long(kubelet):
    rig, plugin = kubelet("--grace-seconds", "0.5", "--status-seconds", "3600")
    plugin.register()
    rig.serving(3, 3)
    plugin.end(1)
    until(lambda: rig.ask("history", kind="end"))
    (end,) = rig.ask("history", kind="end")
    rig.serving(0, 0)
    assert time.monotonic() - end["time"] > 0.5 and GRACE_SECONDS == 300
    assert rig.ask("report")["capacity"] == {NAME: 0}  # the Node object keeps the name
    plugin.register()
    rig.serving(3, 3)


def test_a_stream_that_the_plugin_ends_is_not_called_again(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    plugin.end(1)
    rig.serving(0, 3)
    time.sleep(1)
    assert len(plugin.called("ListAndWatch")) == 1 and rig.numbers() == (0, 3)
    plugin.register()
    rig.serving(3, 3)


LONG = [device("x" * 200 + str(n)) for n in range(30000)]


def test_a_first_list_over_4_mib_ends_the_stream(odd):
    rig, plugin = odd
    plugin.push(*LONG)
    plugin.register()
    rig.serving(0, 0)
    assert re.search(r"code = ResourceExhausted desc = .*eceived message larger than max \(\d+ vs. 4194304\)", rig.text())
    plugin.push(*THREE)
    time.sleep(0.5)
    assert rig.numbers() == (0, 0)  # and stays so until the plugin registers again
    plugin.register()
    rig.serving(3, 3)


def test_a_later_list_over_4_mib(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    plugin.push(*LONG)
    rig.serving(0, 3)


def test_1600_ids(odd):
    rig, plugin = odd
    ids = [f"npu-{chip}-{share}" for chip in range(16) for share in range(100)]
    plugin.push(*map(device, ids))
    plugin.register()
    rig.serving(1600, 1600)
    plugin.preferred = ["npu-15-99"]
    assert rig.allocate(1, "one")["devices"] == {NAME: ["npu-15-99"]}
    assert sorted(plugin.called("GetPreferredAllocation")[0]["available_deviceIDs"]) == sorted(ids)


# What it tells of plugins.


def test_history_and_counts(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    begun = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rig.ask, "history", kind="list", resource=NAME, after=rig.ask("history")[-1]["n"], seconds=60)
        time.sleep(0.3)  # so that it does wait
        plugin.push(device("a"), device("b", "Unhealthy"))
        (second,) = waiting.result(20)
    (first,) = rig.ask("history", kind="list")[:-1]
    assert first["changed"] == {"a": "Healthy", "b": "Healthy", "c": "Healthy"} and (first["healthy"], first["total"]) == (3, 3)
    assert (first["sent"], second["sent"]) == (3, 2)
    assert second["changed"] == {"b": "Unhealthy", "c": None} and (second["healthy"], second["total"]) == (1, 2)
    assert begun < second["time"] < time.monotonic()
    assert rig.ask("history", kind="list", after=second["n"], seconds=0.1) == []
    plugin.end(1)
    assert [entry["kind"] for entry in rig.ask("history", kind="end", seconds=10)] == ["end"]
    assert [entry["kind"] for entry in rig.ask("history")] == ["register", "stream", "list", "list", "end"]
    plugin.register()
    rig.serving(1, 2)
    rig.allocate(1, "one")
    told = rig.ask("plugins")[NAME]
    assert told["streams"] == 1 and told["options"] == told["registered_options"] == plugin.options
    assert told["calls"] == {"Register": 2, "GetDevicePluginOptions": 2, "ListAndWatch": 2, "GetPreferredAllocation": 1, "Allocate": 1}


def test_it_has_nothing_of_the_agent():
    for path in (REPO / "tests/kubelet/kubelet_standin").glob("*.py"):
        text = path.read_text()
        assert "npu_agent" not in text and "ansible_collections" not in text and "google.protobuf" not in text


def test_the_list_of_rules_names_tests_that_exist():
    found, here = 0, Path(__file__).parent
    for line in (REPO / "tests/kubelet/README.md").read_text().splitlines():
        for subject, names in re.findall(r"(standin|restart|pods|podresources|topology): ((?:`\w+`(?:, )?)+)", line):
            text = (here / f"test_agent_kubelet_{subject}.py").read_text()
            for name in re.findall(r"\w+", names):
                found += 1
                assert f"def test_{name}(" in text, f"{subject}: {name}"
    assert found > 60
