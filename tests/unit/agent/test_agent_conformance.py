# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as kubelet sees it: what it must do, and never do, through each thing that was measured on a kubelet and concerns a plugin.
tests/kubelet/README.md has the list; what the agent does for its own sake stands in the other files."""

import os
import signal
import time

import pytest
from agent_rig import RESOURCE, SOCKET, Rig, until
from kubelet_standin import api, wire


def serving(rig, healthy=8, total=8, seconds=60):
    until(lambda: rig.numbers() == (healthy, total), seconds, f"{healthy} of {total} at the kubelet, it has {rig.numbers()}")


def again(rig, **how):
    """Restart kubelet in a certain way."""
    before = rig.started_at()
    rig.ask("restart", **how)
    until(lambda: rig.started_at() not in (None, before), 30 + how.get("down", 0), "a new kubelet")


def settled(rig, streams=1):
    """Served, by so many streams, and it stays so for longer than the agent or the stand-in needs to think better of it."""
    serving(rig)
    until(lambda: rig.ask("plugins")[RESOURCE]["streams"] == streams, what=f"{streams} open stream")
    calls = rig.ask("plugins")[RESOURCE]["calls"]
    time.sleep(1.5)
    assert rig.ask("plugins")[RESOURCE]["calls"] == calls and rig.numbers() == (8, 8)


def lists(rig):
    return rig.ask("history", kind="list", resource=RESOURCE)


def kinds(rig):
    return [entry["kind"] for entry in rig.ask("history", resource=RESOURCE)]


@pytest.fixture(autouse=True)
def lists_are_sound(rig):
    """Whatever a test did: no id twice, no health that kubelet does not know, nothing but our own files touched."""
    yield
    if rig.started_at():
        for entry in rig.ask("history", kind="list"):
            assert entry["sent"] == entry["total"], entry
            assert set(entry["changed"].values()) <= {"Healthy", "Unhealthy", None}, entry


# Registration.


def test_options_are_the_same_in_both_places(pair):
    rig, _agent = pair
    told = rig.ask("plugins")[RESOURCE]
    assert told["options"] == told["registered_options"] == {"pre_start_required": False, "get_preferred_allocation_available": True}
    assert told["calls"] == {"Register": 1, "GetDevicePluginOptions": 1, "ListAndWatch": 1}


def test_the_first_list_is_complete_and_comes_at_once(pair):
    rig, _agent = pair
    (first,) = lists(rig)
    assert (first["healthy"], first["total"]) == (8, 8)
    (stream,) = rig.ask("history", kind="stream")
    assert first["time"] - stream["time"] < 1


def test_kubelet_that_writes_beside_the_socket_wakes_nobody_for_good(pair):
    """Kubelet writes its checkpoint into the folder after each list: that must not lead to the next list."""
    rig, agent = pair
    for number in range(20):
        (rig.plugins / "kubelet_internal_checkpoint.new").write_text(str(number))
        os.rename(rig.plugins / "kubelet_internal_checkpoint.new", rig.plugins / "kubelet_internal_checkpoint")
    rig.change("chips.3.health", 3)
    serving(rig, 7)
    time.sleep(1.5)
    assert len(lists(rig)) == 2 and kinds(rig).count("register") == 1 and agent.report()["ready"]


def test_the_old_stream_ends_before_the_next_registration(pair):
    """Otherwise kubelet's clean-up takes the new one."""
    rig, _agent = pair
    (rig.plugins / SOCKET).unlink()
    until(lambda: kinds(rig).count("list") == 2)
    assert kinds(rig) == ["register", "stream", "list", "end", "register", "stream", "list"]
    settled(rig)


def test_refused_for_a_while(rig):
    rig.kubelet("--rough", "refuse=1")
    agent = rig.agent()
    until(lambda: len(rig.ask("registrations")) >= 3)
    assert "refused on purpose" in agent.report()["reasons"][0] and not agent.report()["ready"]
    times = [request["monotonic"] for request in rig.ask("registrations")]
    assert len(times) < 20 * (times[-1] - times[0] + 1)  # no storm
    rig.ask("rough", refuse=0)
    settled(rig)
    assert agent.report()["ready"]


@pytest.mark.long
def test_kubelet_never_asks_for_the_list(rig):
    rig.kubelet("--rough", "list=0")
    agent = rig.agent()
    until(lambda: len(rig.ask("registrations")) >= 2)
    assert not agent.report()["ready"]
    rig.ask("rough", list=1)
    settled(rig)


@pytest.mark.long
def test_kubelet_dials_late(rig):
    """A registration that takes long is waited for, not made twice at a time."""
    rig.kubelet("--rough", "dial_delay=3")
    agent = rig.agent()
    agent.await_state("serving")
    assert len(rig.ask("registrations")) == 1
    settled(rig)


def test_kubelet_restarts_while_it_dials(rig):
    rig.kubelet()
    rig.ask("rough", dial_delay=60)
    agent = rig.agent()
    until(lambda: rig.ask("registrations"))
    again(rig)
    settled(rig)
    assert agent.report()["ready"]


# Streams.


def test_kubelet_ends_the_stream(pair):
    rig, _agent = pair
    ended = time.monotonic()
    assert rig.ask("end_stream", resource=RESOURCE) == 1
    until(lambda: kinds(rig).count("list") == 2)
    assert lists(rig)[-1]["time"] - ended < 5
    settled(rig)


def test_the_socket_of_kubelet_is_taken_away(pair):
    """The stream goes on, so nothing is lost; the next kubelet is noticed."""
    rig, agent = pair
    rig.ask("drop_socket")
    rig.change("chips.0.health", 3)
    serving(rig, 7)
    assert rig.ask("allocate", count=2, resource=RESOURCE, pod="one")["phase"] == "Running" and agent.report()["ready"]
    rig.change("chips.0.health", 0)
    serving(rig)
    again(rig)
    settled(rig)


# The life of kubelet.


@pytest.mark.parametrize("how", [{"same_inode": True}, {"replace_folder": True}, {"reboot": True}, {"same_inode": True, "down": 1.0}])
def test_restarts_of_all_kinds(pair, how):
    rig, agent = pair
    rig.ask("allocate", count=2, resource=RESOURCE, pod="before")
    again(rig, **how)
    settled(rig)
    assert sorted(name for name in os.listdir(rig.plugins) if name.endswith(".sock")) == ["kubelet.sock", SOCKET]
    assert (rig.plugins / SOCKET).stat().st_mode & 0o777 == 0o600
    assert rig.ask("allocate", count=1, resource=RESOURCE, pod="after")["phase"] == "Running"
    assert agent.report()["ready"]


def test_kubelet_restarts_over_and_over_without_a_pause(pair):
    rig, _agent = pair
    for number in range(8):
        again(rig, same_inode=bool(number % 2))
    settled(rig)


def test_a_pod_keeps_its_devices_through_restarts_of_both(pair):
    rig, agent = pair
    devices = rig.ask("allocate", count=3, resource=RESOURCE, pod="long")["devices"]
    agent.stop(signal.SIGKILL)
    serving(rig, 0)
    again(rig)
    rig.agent(name="second").await_state("serving")
    serving(rig)
    pod = rig.ask("pods")["default/long"]
    assert pod["phase"] == "Running" and pod["devices"] == devices
    rest = rig.ask("allocate", count=5, resource=RESOURCE, pod="rest")
    assert set(rest["devices"][RESOURCE]) & set(devices[RESOURCE]) == set()


def test_a_normal_stop_sends_no_empty_list(pair):
    rig, agent = pair
    assert agent.stop() == 0
    serving(rig, 0, 8)
    assert [entry["total"] for entry in lists(rig)] == [8] and kinds(rig)[-1] == "end"


def test_one_agent_after_the_other(pair):
    """A successor registers when kubelet is done with its predecessor: otherwise kubelet forgets the new one with the old one's end."""
    rig, agent = pair
    for number in range(6):
        new = rig.agent(name=f"new-{number}")
        new.await_state("serving")
        agent.stop()
        agent = new
    settled(rig)
    assert kinds(rig) == ["register", "stream", "list", *["end", "register", "stream", "list"] * 6]
    assert {entry["total"] for entry in lists(rig)} == {8}
    agent.stop()
    serving(rig, 0)


# Devices.


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_aligned_sets_need_no_preference(rig, policy):
    rig.kubelet("--topology-policy", policy)
    rig.agent().await_state("serving")
    serving(rig)
    pod = rig.ask("allocate", count=4, resource=RESOURCE, pod="four")
    assert pod["devices"][RESOURCE] in ([f"Ascend910-{n}" for n in range(4)], [f"Ascend910-{n}" for n in range(4, 8)])
    assert "GetPreferredAllocation" not in rig.ask("plugins")[RESOURCE]["calls"]
    assert rig.ask("allocate", count=2, resource=RESOURCE, pod="two")["phase"] == "Running"
    assert rig.ask("plugins")[RESOURCE]["calls"]["GetPreferredAllocation"] == 1


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_host_with_fewer_nodes_than_the_driver_says(rig, policy):
    """Chips of a NUMA node that the host has not would have every pod rejected."""
    (rig.sys / "devices/system/node/node1").rmdir()
    rig.kubelet("--topology-policy", policy, "--numa-nodes", "0")
    rig.agent().await_state("serving")
    serving(rig)
    numa = {name: device["numa"] for name, device in rig.ask("devices")[RESOURCE].items()}
    assert numa == {f"Ascend910-{n}": [0] if n < 4 else [] for n in range(8)}
    assert rig.ask("allocate", count=1, resource=RESOURCE, pod="one")["phase"] == "Running"


def test_init_containers_and_several_containers(pair):
    rig, _agent = pair
    limits = {"resources": {"limits": {RESOURCE: 2}}}
    more = {"resources": {"limits": {RESOURCE: 3}}}
    containers = [{"name": "main", **more}, {"name": "other", **limits}]
    manifest = {"metadata": {"name": "many"}, "spec": {"initContainers": [{"name": "init", **limits}], "containers": containers}}
    pod = rig.ask("create", manifest=manifest)
    assert pod["phase"] == "Running" and len(pod["devices"][RESOURCE]) == 5
    init, main, other = (pod["containers"][name]["devices"][RESOURCE] for name in ("init", "main", "other"))
    assert set(init) < set(main) and not set(main) & set(other)
    for name, ids in (("main", main), ("other", other)):
        paths = {device["container_path"] for device in pod["containers"][name]["given"]["devices"]}
        assert {path for path in paths if path[len("/dev/davinci"):].isdigit()} == {f"/dev/davinci{each.rsplit('-', 1)[1]}" for each in ids}


def test_a_chip_that_fails_between_the_scheduler_and_allocate(rig):
    """Kubelet itself refuses what it was told in time; the agent is asked only for what it called healthy."""
    rig.kubelet("--status-seconds", "3600")  # the scheduler shall go on with what it knows
    rig.agent().await_state("serving")
    serving(rig)
    rig.ask("report")
    rig.ask("allocate", count=7, resource=RESOURCE, pod="seven")
    last = next(iter(set(rig.ask("devices")[RESOURCE]) - set(rig.ask("pods")["default/seven"]["devices"][RESOURCE])))
    rig.change(f"chips.{last.rsplit('-', 1)[1]}.health", 3)
    serving(rig, 7)
    with pytest.raises(ValueError, match="requested number of devices unavailable"):
        rig.ask("allocate", count=1, resource=RESOURCE, pod="late", schedule=5)
    assert rig.ask("pods")["default/seven"]["phase"] == "Running"


def test_1600_ids(tmp_path_factory, package, library):
    rig = Rig(tmp_path_factory.mktemp("node"), package, library, chips=16, product="a3")
    try:
        many_ids(rig)
    finally:
        rig.close()


def many_ids(rig):
    rig.kubelet()
    rig.agent(shares=100).await_state("serving")
    serving(rig, 1600, 1600)
    (first,) = lists(rig)
    assert first["sent"] == 1600
    names = list(rig.ask("devices")[RESOURCE])
    message = {"devices": [{"ID": name, "health": "Unhealthy", "topology": {"nodes": [{"ID": 1}]}} for name in names]}
    assert len(wire.encode(api.DEVICES, message)) < 4 << 20
    assert rig.ask("allocate", count=1, resource=RESOURCE, pod="one")["phase"] == "Running"
    assert rig.ask("plugins")[RESOURCE]["calls"]["GetPreferredAllocation"] == 1
