# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet stand-in's Topology Manager: tables for its pure part, what was measured by whole pods."""

import pytest
from kubelet_standin import topology
from odd_plugin import NAME, device

FOUR = {"a": [0], "b": [0], "c": [1], "d": [1]}
LOW, HIGH, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


@pytest.mark.parametrize(("numa", "available", "reusable", "request_size", "expected"), [
    ({"a": [], "b": []}, "ab", "", 1, None),
    (FOUR, "abcd", "", 1, [(LOW, True), (HIGH, True), (BOTH, False)]),
    (FOUR, "abcd", "", 3, [(BOTH, True)]),
    (FOUR, "acd", "", 2, [(HIGH, True), (BOTH, False)]),
    (FOUR, "ac", "", 2, [(BOTH, False)]),  # one node would be enough if nothing was taken
    (FOUR, "abcd", "", 5, []),
    (FOUR, "bcd", "a", 2, [(LOW, True), (BOTH, False)]),  # what is reused must be in the mask
    ({"a": [-1], "b": [5]}, "ab", "", 1, []),
    ({"a": [0], "b": []}, "ab", "", 2, []),  # a device without topology is in no mask
    ({"a": [0, 1]}, "a", "", 1, [(LOW, True), (HIGH, True), (BOTH, False)]),
])
def test_hints(numa, available, reusable, request_size, expected):
    assert topology.hints({0, 1}, numa, set(available), set(reusable), request_size) == expected


EITHER = [(LOW, True), (HIGH, True), (BOTH, False)]


@pytest.mark.parametrize(("policy", "offers", "expected"), [
    ("none", [[]], (None, True)),
    ("best-effort", [], (BOTH, True)),
    ("restricted", [None], (BOTH, True)),
    ("single-numa-node", [None], (None, True)),
    ("best-effort", [[]], (BOTH, True)),
    ("restricted", [[]], (BOTH, False)),
    ("single-numa-node", [[]], (None, False)),
    ("restricted", [EITHER], (LOW, True)),
    ("restricted", [EITHER, [(HIGH, True), (BOTH, False)]], (HIGH, True)),
    ("restricted", [[(LOW, True)], [(HIGH, True)]], (BOTH, False)),
    ("best-effort", [[(LOW, True)], [(HIGH, True)]], (BOTH, True)),
    ("restricted", [[(BOTH, True)]], (BOTH, True)),
    ("single-numa-node", [[(BOTH, True)]], (None, False)),
    ("restricted", [[(BOTH, False)]], (BOTH, False)),
    ("single-numa-node", [EITHER, None], (LOW, True)),
])
def test_merge(policy, offers, expected):
    assert topology.merge(policy, {0, 1}, offers) == expected


def test_one_numa_node_is_anywhere_for_single_numa_node():
    assert topology.merge("single-numa-node", {0}, [[(LOW, True)]]) == (None, True)
    assert topology.merge("restricted", {0}, [[(LOW, True)]]) == (LOW, True)


@pytest.mark.parametrize(("mask", "expected"), [
    (None, ("", "", "abcde")), (LOW, ("ab", "cd", "e")), (BOTH, ("abcd", "", "e")), (frozenset({7}), ("", "abcd", "e")),
])
def test_split(mask, expected):
    assert topology.split(set("abcde"), {**FOUR, "e": [-1]}, mask) == tuple(map(set, expected))


def started(kubelet, policy, *devices, nodes="0"):
    rig, plugin = kubelet("--topology-policy", policy, "--numa-nodes", nodes)
    plugin.push(*devices)
    plugin.register()
    rig.serving(len(devices), len(devices))
    return rig, plugin


TWO_NODES = [device(name, numa=nodes[0]) for name, nodes in FOUR.items()]


@pytest.mark.parametrize("node", [-1, 5])
@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_node_that_the_host_has_not_rejects_every_pod(kubelet, policy, node):
    rig, plugin = started(kubelet, policy, device("a", numa=node), device("b", numa=node))
    with pytest.raises(ValueError, match="TopologyAffinityError: Resources cannot be allocated with Topology locality"):
        rig.allocate(1, "one")
    pod = rig.ask("pods")["default/one"]
    assert (pod["phase"], pod["reason"]) == ("Failed", "TopologyAffinityError") and not plugin.called("Allocate")


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_other_policies_reject_nothing(kubelet, policy):
    rig, plugin = started(kubelet, policy, device("a", numa=5), device("b", numa=-1))
    plugin.preferred = ["b"]
    assert rig.allocate(1, "one")["devices"] == {NAME: ["b"]}


@pytest.mark.parametrize("policy", topology.POLICIES)
def test_topology_without_nodes_is_none(kubelet, policy):
    rig, plugin = started(kubelet, policy, device("a", numa=[]), device("b"))
    plugin.preferred = ["b"]
    assert rig.allocate(1, "one")["devices"] == {NAME: ["b"]}


@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
def test_an_aligned_set_of_the_wanted_size_is_taken_without_asking(kubelet, policy):
    rig, plugin = started(kubelet, policy, *TWO_NODES)
    plugin.preferred = ["c", "d"]
    assert rig.allocate(2, "one")["devices"] == {NAME: ["a", "b"]}
    assert not plugin.called("GetPreferredAllocation")


def test_a_larger_aligned_set_is_what_is_asked_about(kubelet):
    rig, plugin = started(kubelet, "restricted", *TWO_NODES, nodes="0,1")
    plugin.preferred = ["d", "b"]
    assert rig.allocate(1, "one")["devices"] == {NAME: ["b"]}
    (asked,) = plugin.called("GetPreferredAllocation")
    assert sorted(asked["available_deviceIDs"]) == ["a", "b"]
    # Node 0 has one left, so a request of two goes to node 1, and of one, then, to what is left.
    assert rig.allocate(2, "two")["devices"] == {NAME: ["c", "d"]}
    assert rig.allocate(1, "three")["devices"] == {NAME: ["a"]}
    assert len(plugin.called("GetPreferredAllocation")) == 1


def test_restricted_rejects_what_could_have_been_on_one_node(kubelet):
    rig, plugin = started(kubelet, "restricted", *TWO_NODES, nodes="0,1")
    plugin.preferred = ["a", "c"]
    plugin.push(TWO_NODES[0], device("b", "Unhealthy", numa=0), TWO_NODES[2], device("d", "Unhealthy", numa=1))
    rig.serving(2, 4)
    with pytest.raises(ValueError, match="TopologyAffinityError"):
        rig.allocate(2, "one")


def test_restricted_spreads_what_no_node_can_hold_and_single_numa_node_does_not(kubelet, kubelet_rig):
    rig, plugin = started(kubelet, "restricted", *TWO_NODES, nodes="0,1")
    assert len(rig.allocate(3, "three")["devices"][NAME]) == 3
    rig.process.stop()
    rig.start("--topology-policy", "single-numa-node", "--numa-nodes", "0,1")
    plugin.stop()
    plugin.serve()
    plugin.register()
    rig.serving(4, 4)
    rig.ask("delete", pod="three")
    with pytest.raises(ValueError, match="TopologyAffinityError"):
        rig.allocate(3, "again")
    assert rig.allocate(2, "two")["phase"] == "Running"


def test_best_effort_takes_the_aligned_ones_first(kubelet):
    rig, plugin = started(kubelet, "best-effort", *TWO_NODES)  # the host has node 0 only
    plugin.preferred = ["d"]
    assert rig.allocate(3, "three")["devices"] == {NAME: ["a", "b", "d"]}
    (asked,) = plugin.called("GetPreferredAllocation")
    assert sorted(asked["available_deviceIDs"]) == ["a", "b", "c", "d"] and sorted(asked["must_include_deviceIDs"]) == ["a", "b"]
