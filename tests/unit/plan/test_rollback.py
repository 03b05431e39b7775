# SPDX-License-Identifier: GPL-3.0-or-later
"""The way back: which set, in which order, from which files; and what says that a driver does not work."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._packages._names import file_name
from ansible_collections.npu.fleet.plugins.plugin_utils import _rollback

from .observed import component, converged

# Rows of the public matrix: HDK 25.3.RC1 and 25.5.0, with the firmware of each.
OLD = {"driver": "25.3.rc1", "firmware": "7.8.0.2.212", "cann_toolkit": "8.3.RC1", "cann_kernels": "8.3.RC1", "docker_runtime": "7.2.RC1"}
NEW = {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann_toolkit": "8.5.0", "cann_kernels": "8.5.0", "docker_runtime": "7.3.0"}
SHA = "0123456789abcdef" * 4


def good(versions, time, cached=True):
    return {"time": time, "components": {
        name: {"version": version, "file": file_name(name, version, "a2", "x86_64"), "sha256": SHA, "cached": cached}
        for name, version in versions.items()
    }}


def node(running, current=None, previous=None, **changes):
    """A converged node with these versions, and these good sets."""
    npu = converged()
    for name, version in running.items():
        npu["components"][name] = component(version, running=version)
    npu["record"] = {"installed": {}, "good": {"current": current, "previous": previous}, "failed": [], "unlisted_reason": None}
    return dict(npu, **changes)


def dead(npu):
    """The driver is loaded and no chip answers: what a bad driver looks like after the reboot."""
    npu["components"]["driver"]["record"] = {"answers": False}
    npu["components"]["driver"]["running"] = npu["components"]["firmware"]["running"] = None
    npu["versions"]["driver"]["running"] = npu["versions"]["firmware"]["running"] = None
    npu["query"] = {"ok": False, "source": None, "error": {"code": "dcmi_failed", "message": "dcmi_init answered -8005"}}
    for chip in npu["chips"]:
        chip.update(device_node=None, health=None, firmware_version=None)
        chip["evidence"] = dict(chip["evidence"], device_node=False)
    return npu


def brief(steps):
    return [(step["component"], step["action"], step["from"], step["to"]) for step in steps]


def codes(plan):
    return [one["code"] for one in plan["refused"]]


# --- which set --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("running", "asked", "chosen"), [
    (NEW, "auto", "previous"), (NEW, "previous", "previous"), (NEW, "current", "current"),
    ({**NEW, "driver": "25.5.2"}, "auto", "current"), ({**NEW, "cann_toolkit": "8.5.1"}, "auto", "current"),
])
def test_the_set_that_it_goes_back_to(running, asked, chosen):
    plan = _rollback.make_rollback(node(running, good(NEW, "t2"), good(OLD, "t1")), {"set": asked})
    assert (plan["set"], plan["time"]) == (chosen, "t1" if chosen == "previous" else "t2")
    assert plan["versions"] == (OLD if chosen == "previous" else NEW)


def test_a_set_that_is_only_half_there_does_not_run():
    npu = node(NEW, good(NEW, "t2"), good(OLD, "t1"))
    npu["components"]["cann_toolkit"]["state"] = "half_installed"
    assert _rollback.make_rollback(npu)["set"] == "current"


@pytest.mark.parametrize(("current", "asked", "words"), [
    (None, "auto", "has passed the gates on this node yet"),
    (good(NEW, "t2"), "auto", "the only set that has passed"),
    (good(NEW, "t2"), "previous", "no previous good set, only the current one of t2"),
])
def test_without_a_set_it_says_so(current, asked, words):
    plan = _rollback.make_rollback(node(NEW, current), {"set": asked})
    assert codes(plan) == ["no_good_set"]
    assert plan["refused"][0]["component"] == "node"
    assert words in plan["refused"][0]["reason"]
    assert (plan["set"], plan["packages"], plan["changes"]) == (None, [], 0)
    assert words in "\n".join(_rollback.render(plan))


# --- steps ------------------------------------------------------------------------------------------------------------

def test_all_of_it_in_the_vendors_order_and_from_the_cache():
    plan = _rollback.make_rollback(node(NEW, good(NEW, "t2"), good(OLD, "t1")), {"accept_licence": True})
    assert [step["component"] for step in plan["packages"]][:3] == ["firmware", "driver", "cann_toolkit"]
    assert brief(plan["packages"])[0] == ("firmware", "downgrade", "7.8.0.5.216", "7.8.0.2.212")
    assert plan["refused"] == [] and plan["later"] == []
    assert plan["pins"] == {"driver": "25.3.rc1", "firmware": "7.8.0.2.212", "cann": "8.3.RC1", "docker_runtime": "7.2.RC1"}
    assert plan["leaving"] == NEW
    assert plan["reboot_expected"]
    for step in plan["packages"]:
        assert step["action"] == "switch" or step["source"] == f"/var/cache/npu-fleet/{SHA}/{step['file']}"
    lines = _rollback.render(plan)
    assert lines[0] == "back to the previous good set of t1"
    assert lines[1].startswith("firmware       downgrade  7.8.0.5.216 -> 7.8.0.2.212")


def test_a_dead_driver_is_replaced_before_firmware_is_written():
    bad = {"driver": "25.5.2", "firmware": "7.8.0.7.220"}
    plan = _rollback.make_rollback(dead(node({**NEW, **bad}, good(NEW, "t2"))), {"components": ["driver", "firmware"]})
    assert brief(plan["packages"]) == [("driver", "downgrade", "25.5.2", "25.5.0")]
    assert brief(plan["later"]) == [("firmware", "downgrade", "7.8.0.7.220", "7.8.0.5.216")]
    assert plan["leaving"] == bad
    assert plan["changes"] == 2


def test_after_its_reboot_the_firmware_is_what_is_left():
    plan = _rollback.make_rollback(node({**NEW, "firmware": "7.8.0.7.220"}, good(NEW, "t2")), {"components": ["driver", "firmware"]})
    assert brief(plan["packages"]) == [("firmware", "downgrade", "7.8.0.7.220", "7.8.0.5.216")]
    assert plan["leaving"] == {"firmware": "7.8.0.7.220"}


def test_only_the_components_that_were_asked_for():
    plan = _rollback.make_rollback(node(NEW, good(NEW, "t2"), good(OLD, "t1")), {"components": ["driver", "firmware"]})
    assert {step["component"] for step in plan["components"]} == {"driver", "firmware"}


def test_a_node_that_has_the_set_changes_nothing():
    plan = _rollback.make_rollback(node(NEW, good(NEW, "t2"), good(OLD, "t1")), {"set": "current"})
    assert (plan["changes"], plan["refused"], plan["leaving"]) == (0, [], {})


# --- what keeps it from it --------------------------------------------------------------------------------------------

def test_a_package_that_is_gone_from_the_cache_is_told_and_nothing_runs():
    previous = good(OLD, "t1")
    previous["components"]["firmware"]["cached"] = False
    plan = _rollback.make_rollback(node(NEW, good(NEW, "t2"), previous), {"accept_licence": True})
    assert codes(plan) == ["package_not_cached"]
    assert "firmware 7.8.0.2.212" in plan["refused"][0]["reason"]
    assert plan["packages"] == [] and plan["changes"] == 0


def test_chips_in_use_are_not_taken_away():
    busy = {"pid": 42, "comm": "python3", "device": "/dev/davinci0", "container": None, "pod_uid": None, "unit": None}
    npu = node(NEW, good(NEW, "t2"), good(OLD, "t1"), holders=[busy])
    assert codes(_rollback.make_rollback(npu, {"accept_licence": True})) == ["chips_in_use"]
    assert codes(_rollback.make_rollback(npu, {"accept_licence": True, "disruption": "allow"})) == []


def test_a_package_that_still_runs_is_left_alone():
    npu = node(NEW, good(NEW, "t2"), good(OLD, "t1"), running_packages=["firmware"])
    assert codes(_rollback.make_rollback(npu, {"accept_licence": True})) == ["package_running"]


def test_a_licence_is_not_agreed_to_by_going_back():
    npu = node(NEW, good(NEW, "t2"), good({**NEW, "docker_runtime": "26.1.0"}, "t1"))
    assert codes(_rollback.make_rollback(npu)) == ["licence_not_accepted"]
    assert codes(_rollback.make_rollback(npu, {"accept_licence": True})) == []


# --- what says that a driver does not work ----------------------------------------------------------------------------

def failed(npu, versions=NEW, seen=()):
    return " ".join(_rollback.driver_failures(npu, versions, seen))


def test_a_driver_that_works():
    assert failed(converged(), NEW, [chip["pci_address"] for chip in converged()["chips"]]) == ""


def test_a_driver_that_does_not_answer():
    text = failed(dead(converged()))
    assert "dcmi_init answered -8005" in text and "every chip has driver and node" in text


@pytest.mark.parametrize(("versions", "part"), [
    ({"driver": "25.5.2"}, "pinned 25.5.2"), ({"firmware": "7.8.0.7.220"}, "pinned 7.8.0.7.220"), ({"cann_toolkit": "9.0.0"}, ""),
    ({}, ""),
])
def test_only_versions_of_driver_and_firmware_count(versions, part):
    text = failed(converged(), versions)
    assert part in text and bool(text) is bool(part)


def test_a_chip_that_went_counts_and_a_sick_one_does_not():
    npu = converged()
    seen = [chip["pci_address"] for chip in npu["chips"]]
    npu["chips"][3]["health"] = "critical"
    assert failed(npu, NEW, seen) == ""
    del npu["chips"][3]
    assert "0000:c3:00.0" in failed(npu, NEW, seen)


# --- a way back that was cut ------------------------------------------------------------------------------------------

BAD = {"driver": "25.5.2", "firmware": "7.8.0.7.220"}


def cut(running, refused="failed_before", pins=BAD, cached=True, **states):
    """A node that noted BAD as failed, and the plan of a run with these pins."""
    npu = node({**NEW, **running}, good(NEW, "t2", cached))
    npu["record"]["failed"] = [{"components": dict(BAD), "reason": "no answer", "time": "t3"}]
    for name, state in states.items():
        npu["components"][name].update(state=state, version=None if state == "half_installed" else npu["components"][name]["version"])
    steps = [{"component": name, "to": version} for name, version in pins.items()]
    return npu, {"refused": [{"code": refused}], "components": steps}


@pytest.mark.parametrize(("npu", "plan"), [
    cut(BAD), cut({"firmware": "7.8.0.7.220"}), cut({"driver": "25.5.2"}), cut({}, driver="half_installed"),
    cut({}, firmware="reboot_pending"),
], ids=["nothing done yet", "driver is back", "firmware is back", "in the middle of the driver", "before the reboot"])
def test_a_cut_way_back_goes_on(npu, plan):
    assert _rollback.cut_way_back(npu, plan)["components"] == BAD


@pytest.mark.parametrize(("npu", "plan"), [
    cut({}), cut(BAD, refused="chips_in_use"), cut({"driver": "25.5.1"}), cut(BAD, pins={**BAD, "driver": "25.5.1"}),
    cut(BAD, cached=False),
], ids=["it is back", "refused for another reason", "a version of somebody else", "other pins", "no package to go back with"])
def test_nothing_was_cut(npu, plan):
    assert _rollback.cut_way_back(npu, plan) == {}


def test_a_node_without_memory_was_on_no_way_back():
    npu, plan = cut(BAD)
    assert _rollback.cut_way_back(dict(npu, record=None), plan) == {}
