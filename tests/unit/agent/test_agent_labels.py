# SPDX-License-Identifier: GPL-3.0-or-later
"""What `npu-agent labels` writes, and when: the time is the test's own."""

import json

import labels_rig
import pytest
from labels_rig import AGENT_TAINT, FACTS, LOST, NO_NPU, OTHER_TAINT, SITE_TAINT, STARTING


@pytest.fixture
def world(package):
    return labels_rig.World()


def trouble(code, text="x", wait=0.0):
    from npu_agent.labels_api import Trouble

    return Trouble(code, text, wait)


def test_a_ready_node_is_labelled_once_and_read_now_and_then(world):
    world.go(600)
    assert world.api.requests.count("patch") == 1 and 13 <= world.api.requests.count("get") <= 16
    assert world.api.labels["npu.fleet/ready"] == "true" and world.api.labels["rack"] == "r7" and world.api.taints == []
    assert world.events() == ["ready", "labels written"]


def test_labels_that_somebody_changed_or_a_node_made_anew_are_right_within_a_minute(world):
    world.go(10)
    right = dict(world.api.labels)
    world.api.labels.update({"accelerator": "huawei-Ascend310", "npu.fleet/family": "x", "npu.fleet/soc": "stale"})
    world.go(60)
    assert world.api.labels == right
    world.api.labels, world.api.annotations, world.api.taints = {"rack": "r8"}, {}, [OTHER_TAINT]
    world.go(60)
    assert world.api.labels == {**right, "rack": "r8"} and world.api.taints == [OTHER_TAINT]


def test_a_label_that_is_not_known_any_more_goes_and_foreign_ones_stay(world):
    world.api.labels["accelerator-type"] = "module-910b-8"
    world.go(10)
    world.facts = {**FACTS, "products": ["Atlas 300I A2"], "link": None, "chip_names": []}
    world.go(10)
    assert world.api.labels["accelerator-type"] == "module-910b-8" and "npu.fleet/link" not in world.api.labels
    assert "node.kubernetes.io/npu.chip.name" not in world.api.labels
    told = [line for line in world.lines if line["level"] == "warning"]
    assert [line["labels"] for line in told] == [{"accelerator-type": "module-910b-8"}] and "accelerator-type-" in told[0]["hint"]


@pytest.mark.parametrize("facts", [LOST, "connection refused"])
def test_the_taint_comes_within_a_minute_and_goes_when_the_node_is_ready(world, facts):
    world.api.taints = [OTHER_TAINT]
    world.go(30)
    world.facts = facts
    assert 20 <= world.taint_within(60, [OTHER_TAINT, AGENT_TAINT]) <= 30
    assert world.api.labels["npu.fleet/ready"] == "false" and world.api.labels["npu.fleet/family"] == "a2"
    # The version of a driver that is lost is not known; who says nothing has not said that it is lost.
    assert ("npu.fleet/driver-version" in world.api.labels) == (facts is not LOST)
    assert world.events("warning").count("taint put") == 1
    world.facts = FACTS
    assert world.taint_within(10, [OTHER_TAINT]) <= 10
    assert world.api.labels["npu.fleet/ready"] == "true"


@pytest.mark.parametrize("facts", [LOST, "no answer", STARTING])
@pytest.mark.parametrize("seconds", [5, 10, 15])
def test_a_slow_answer_or_a_restart_changes_nothing(world, facts, seconds):
    world.go(30)
    before = list(world.api.requests)
    for _again in range(20):
        world.facts = facts
        world.go(seconds)
        world.facts = FACTS
        world.go(20)
    assert world.api.requests.count("patch") == before.count("patch") and world.api.taints == []
    assert world.api.labels["npu.fleet/ready"] == "true"


def test_while_nobody_tells_nothing_of_an_admins_becomes_ours(world):
    world.go(10)
    world.facts = "no answer"
    world.api.labels["servertype"] = "soc"
    world.go(60)
    assert world.api.labels["npu.fleet/ready"] == "false" and "servertype=soc" not in world.api.annotations["npu.fleet/labels"]
    world.facts = FACTS
    world.go(60)
    assert world.api.labels["servertype"] == "soc" and world.api.labels["npu.fleet/ready"] == "true"


def test_a_taint_of_a_play_is_not_touched(world):
    world.api.taints = [SITE_TAINT]
    world.go(60)
    assert world.api.taints == [SITE_TAINT]
    world.facts = LOST
    world.go(120)
    assert world.api.taints == [SITE_TAINT] and world.api.labels["npu.fleet/ready"] == "false"
    world.api.taints = []
    world.taint_within(60, [AGENT_TAINT])


@pytest.mark.parametrize("facts", [NO_NPU, "no answer", STARTING])
def test_a_node_without_npu_gets_neither_taint_nor_label(world, facts):
    world.facts = facts
    world.go(300)
    assert world.api.taints == [] and world.api.labels == {"rack": "r7"}


def test_a_node_that_has_lost_all_its_npus_for_good_is_given_back(world):
    world.api.taints = [OTHER_TAINT]
    world.go(10)
    world.facts = LOST
    world.go(60)
    world.facts = NO_NPU
    world.go(10)
    assert world.api.taints == [OTHER_TAINT] and world.api.labels == {"rack": "r7"} and world.api.annotations == {}


def test_a_node_that_was_labelled_is_known_to_have_npus_after_a_restart(world):
    world.go(10)
    again = labels_rig.World()
    again.api, again.writer.api, again.facts = world.api, world.api, "no answer"
    again.taint_within(60, [AGENT_TAINT])
    assert again.api.labels["npu.fleet/ready"] == "false"


def test_a_failing_api_is_told_once_and_tried_less_and_less_often(world):
    world.api.fail = [trouble("unreachable", "cannot be reached") for _one in range(100)]
    world.go(600)
    tries = len(world.api.requests)
    assert 15 <= tries <= 40 and "patch" not in world.api.requests
    assert [line["cause"] for line in world.lines if line["level"] == "error"] == ["cannot be reached"]
    world.api.fail = []
    world.go(60)
    assert world.api.labels["npu.fleet/ready"] == "true"


def test_a_right_that_is_missing_ends_nothing(world):
    world.api.fail = [trouble("forbidden", "the right to get the resource nodes is missing")] * 3
    world.go(120)
    assert world.api.labels["npu.fleet/ready"] == "true" and world.events("error") == ["the Node is not written: forbidden"]


def test_the_server_may_ask_for_a_longer_pause(world):
    world.api.fail = [trouble("busy", wait=45.0)]
    world.go(40)
    assert world.api.requests == ["get"]
    world.go(20)
    assert "patch" in world.api.requests


def test_conflicts_are_tried_again_at_once_but_not_for_ever(world):
    world.api.refuse = [trouble("conflict")] * 4
    world.go(5)
    assert world.api.requests == ["get", "patch"] * 5 and world.events("error") == []
    other = labels_rig.World()
    other.api.refuse = [trouble("conflict")] * 5
    other.go(5)
    assert other.api.requests == ["get", "patch"] * 5 and other.events("error") == ["the Node is not written: conflict"]


def test_keys_of_the_setting_are_left_alone(package):
    world = labels_rig.World(label_keep=("accelerator", "npu.fleet/link"))
    world.api.labels["npu.fleet/link"] = "mine"
    world.go(10)
    assert world.api.labels["npu.fleet/link"] == "mine" and "accelerator" not in world.api.labels
    world.writer.remove()
    assert world.api.labels == {"rack": "r7", "npu.fleet/link": "mine"}


def test_the_label_that_plays_go_by_is_never_left_alone(package):
    from npu_agent.config import label_keys

    assert label_keys("accelerator, npu.fleet/link") == ("accelerator", "npu.fleet/link")
    with pytest.raises(ValueError, match="without npu.fleet/ready"):
        label_keys("accelerator,npu.fleet/ready")


def test_removal_takes_ours_off_and_nothing_else(world):
    world.api.taints, world.api.labels["host-arch"] = [OTHER_TAINT], "huawei-arm"
    world.go(10)
    world.facts = LOST
    world.go(60)
    world.writer.remove()
    assert world.api.labels == {"rack": "r7", "host-arch": "huawei-arm"}
    assert world.api.annotations == {} and world.api.taints == [OTHER_TAINT]
    world.api.requests.clear()
    world.writer.remove()
    assert world.api.requests == ["get"]


def test_nothing_is_written_for_what_serve_says_beside_the_facts(world):
    world.facts = {**FACTS, "reasons": ["token=abc"], "new": {"key": "value"}}
    world.go(10)
    assert "abc" not in json.dumps([world.api.labels, world.api.annotations])


def test_a_fault_of_ours_does_not_end_the_only_writer(world):
    world.facts = {**FACTS, "families": 5}
    world.go(120)
    told = [line for line in world.lines if line["event"] == "a fault of npu-agent"]
    assert 1 <= len(told) <= 3 and "TypeError" in told[0]["cause"] and told[0]["trace"]
    world.facts = FACTS
    world.go(10)
    assert world.api.labels["npu.fleet/ready"] == "true"
