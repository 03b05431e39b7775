# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a Rockchip board: nothing of what is pinned for servers, no finding that is only about them, what is worth saying of it."""

import copy

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import KNOWN, decide
from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_settings, _findings, _plan, _plan_checks, _plan_pins, _rollback

from .observed import WANTED, bare, chip, component
from .test_findings import GOOD


def board(preflight=None, driver="0.9.8", **changes):
    one = {
        "stack": "rknpu-drm", "cores": 3, "name": "RK3588", "family": "rk3588", "error": None, "error_codes": [], "card_id": None,
        "device_id": None, "phy_id": None, "pci_address": None, "pci_device": None, "firmware_version": None,
        "device_node": "/dev/dri/renderD129", "device_nodes": ["/dev/dri/card1", "/dev/dri/renderD129"], "device_groups": None,
        "evidence": {"pci": None, "driver": "RKNPU", "device_node": True},
    }
    npu = bare()
    npu.update(
        backend="rockchip", family="rk3588", families=["rk3588"], product="Radxa ROCK 5B", chips=[chip(0, **dict(one, **changes))],
        notes=[],
        query={"ok": True, "source": "sysfs", "error": None, "errors": []}, components={name: component(None, "absent") for name in KNOWN},
        arch="aarch64", preflight=preflight or copy.deepcopy(GOOD),
    )
    npu["versions"]["driver"]["running"] = driver
    return npu


def test_a_board_has_nothing_to_go_back_from():
    """A fleet of both goes back in one play: a board has no good set, and needs none."""
    plan = _rollback.make_rollback(board())
    assert (plan["packages"], plan["refused"], plan["changes"]) == ([], [], 0)
    assert _rollback.make_rollback(bare())["refused"]


FLEETS = {
    "versions": WANTED,
    "release": dict(WANTED, versions={}, release="7.3.0"),
    # A lock that is not there is an error of the fleet for a server; a board never looks into it.
    "lock": dict(WANTED, versions={}, lock="/nowhere/npu-lock.yml"),
    "all": dict(WANTED, release="7.3.0", lock="/nowhere/npu-lock.yml", accept_licence=False, depot=""),
    "nothing": dict(WANTED, versions={}),
}


@pytest.mark.parametrize("fleet", FLEETS)
def test_what_is_pinned_for_servers_is_not_for_a_board(fleet):
    plan = _plan.make_plan(board(), FLEETS[fleet])
    assert (plan["packages"], plan["components"], plan["refused"], plan["changes"]) == ([], [], [], 0)
    assert (plan["versions"], plan["engine"]["action"], plan["reboot_expected"], plan["verdict"]) == ({}, "none", False, None)
    assert [one["code"] for one in plan["findings"]] == ([] if fleet == "nothing" else ["no_layers"])


def test_the_note_names_what_does_not_apply():
    [note] = _plan.make_plan(board(), FLEETS["all"])["findings"]
    assert note["severity"] == "note"
    assert note["message"].endswith("npu_fleet_lock and npu_fleet_release and npu_fleet_versions do not apply here.")
    assert _plan.render(_plan.make_plan(board(), WANTED)) == ["packages and engine: nothing to change"]


def test_a_typing_error_in_the_versions_is_one_on_every_node():
    with pytest.raises(Exception, match="unknown key drivers"):
        _plan.make_plan(board(), dict(WANTED, versions={"drivers": "25.5.0"}))


@pytest.mark.parametrize("name", KNOWN)
def test_a_package_is_refused_where_there_is_no_such_layer(name):
    observed = {"arch": "aarch64", "family": "rk3588", "families": ["rk3588"], "components": {}}
    [step] = decide(observed, {name: {"version": "8.5.0"}})
    assert (step["action"], step["code"]) == ("refuse", "no_layer")
    assert step["reason"] == f"There is no {name} for rk3588: nothing of it is installed by packages."


@pytest.mark.parametrize("family", ["rv1126", "rk9999", "unknown"])
def test_a_soc_that_no_table_has_gets_no_packages_either(family):
    npu = dict(board(family=family), family=family, families=[family])
    plan = _plan.make_plan(npu, WANTED)
    assert (plan["packages"], plan["refused"]) == ([], [])
    assert [one["code"] for one in plan["findings"]] == ["soc_unknown", "no_layers"]
    assert decide(npu, {"driver": {"version": "25.5.0"}})[0]["code"] == "no_layer"


def test_findings_about_servers_are_not_made():
    facts = copy.deepcopy(GOOD)
    facts["kernel"]["build"] = {"makefile": False, "release": None, "others": []}
    facts["kernel"]["next"] = {"release": "9.9", "source": "x", "build": GOOD["kernel"]["build"], "npu_modules": False}
    facts["tools"] = {"missing": ["pciutils"], "build_missing": ["gcc"]}
    facts.update(secure_boot={"enabled": True, "lockdown": None, "signing_key": False}, virtual="KVM", bundle_record=True,
                 directories=["/usr/local/bin/npu-smi"])
    assert _plan.make_plan(board(facts), dict(WANTED, versions={}))["findings"] == []


def test_another_plugin_is_one_on_a_board_too():
    facts = copy.deepcopy(GOOD)
    facts["foreign"]["programs"] = [{"pid": 7, "name": "rknpu-device-plugin", "product": "rknpu device plugin"}]
    facts["selinux"] = {"mode": "enforcing", "bindings": False, "python": "/usr/bin/python3"}
    plan = _plan.make_plan(board(facts), WANTED)
    assert [one["code"] for one in plan["refused"]] == ["foreign_program"]
    assert "selinux_bindings" in [one["code"] for one in plan["findings"]]


NO_DRIVER = {"source": "sysfs", "code": "npu_driver_missing", "message": "the NPU fdab0000.npu has no driver"}
BROKEN = {"source": "sysfs", "code": "npu_broken", "message": "the NPU fdab0000.npu does not work"}


@pytest.mark.parametrize(("changes", "driver", "code", "words"), [
    ({}, "0.9.8", None, ""), ({}, "0.9.0", None, ""),
    ({}, "0.8.8", "driver_old", "librknnrt 2.3"), ({}, "0.7.2", "driver_old", "librknnrt 2.3"),
    ({}, "0.7.1", "driver_old", "does not tell how busy"), ({}, "0.4.2", "driver_old", "does not tell how busy"),
    ({"stack": "rocket"}, None, "rocket", "rockchip.com/rocket instead of rockchip.com/rknpu"),
    ({"error": NO_DRIVER}, None, "npu_driver_missing", "fdab0000.npu has no driver."),
    ({"error": BROKEN}, "0.9.8", "npu_broken", "does not work."),
])
def test_what_is_worth_saying_of_a_board(changes, driver, code, words):
    plan = _plan.make_plan(board(None, driver, **changes), dict(WANTED, versions={}))
    assert [(one["severity"], one["code"]) for one in plan["findings"]] == ([("warning", code)] if code else [])
    assert plan["refused"] == []
    assert not code or (words in plan["findings"][0]["message"] and plan["findings"][0]["hint"])


def test_a_driver_of_unknown_version_is_a_note():
    [one] = _plan.make_plan(board(driver=None), dict(WANTED, versions={}))["findings"]
    assert (one["severity"], one["code"]) == ("note", "driver_version_unknown")


def test_the_other_npu_of_a_board_with_a_card_is_a_note():
    npu = dict(bare(), preflight=copy.deepcopy(GOOD), notes=["The RK3588 of this board has an NPU of its own."], backend="ascend")
    found = [one for one in _findings.judge(npu, WANTED, []) if one["code"] == "hardware"]
    assert [(one["severity"], one["message"]) for one in found] == [("note", npu["notes"][0])]


def test_the_backend_is_written_for_a_board_only():
    assert _agent_settings.agent_settings({"log_level": "debug"}, [], backend="rockchip") == {"backend": "rockchip", "log_level": "debug"}
    assert _agent_settings.agent_settings({"backend": "paths"}, [], backend="rockchip") == {"backend": "paths"}
    for backend in ("ascend", "", None):
        assert _agent_settings.agent_settings({}, [], backend=backend) == {}


def test_a_board_needs_no_depot_for_its_pins():
    pins = _plan_pins.pins_of(board(), dict(WANTED, depot=""))
    assert (pins.components, pins.packages) == ({}, None)


# --- who may open the nodes ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("groups", "words"), [
    ([44, 106], "supplementalGroups: [44, 106]"), ([0, 106], "supplementalGroups: [106]"), ([0], "Only root may open"),
    ([], "Only root may open"),
])
def test_the_groups_of_the_nodes_are_told(groups, words):
    [one] = _plan.make_plan(board(device_groups=groups), dict(WANTED, versions={}))["findings"]
    assert (one["severity"], one["code"]) == ("note", "device_groups")
    assert words in one["message"]


def test_nodes_that_are_not_there_belong_to_nobody():
    assert _plan.make_plan(board(device_groups=[], device_nodes=[]), dict(WANTED, versions={}))["findings"] == []


@pytest.mark.parametrize(("now", "wanted", "action"), [
    (0, 0, "none"), (0, None, "none"), (0, 990, "write"), (990, 990, "none"), (990, 991, "write"), (990, 0, "remove"), (None, 990, "write"),
    (None, 0, "none"), (0, "990", "write"),
])
def test_the_rule_of_the_nodes_follows_the_option(now, wanted, action):
    plan = _plan.make_plan(dict(board(), device_group=now), dict(WANTED, versions={}, device_group=wanted))
    assert (plan["device_group"]["action"], plan["changes"]) == (action, int(action != "none"))
    assert any("device group" in line for line in _plan.render(plan)) is (action != "none")
    assert bool(_plan_checks.beyond_approved(plan, dict(plan, device_group={"action": "none", "group": 0}))) is (action == "write")


@pytest.mark.parametrize(("now", "wanted", "told"), [(None, 0, True), (None, 990, False), (0, 0, False), (990, 0, False)])
def test_a_rule_that_was_changed_by_hand_and_is_not_wanted_is_told(now, wanted, told):
    plan = _plan.make_plan(dict(board(), device_group=now), dict(WANTED, versions={}, device_group=wanted))
    found = [one for one in plan["findings"] if one["code"] == "device_group_changed"]
    assert bool(found) is told and all(one["severity"] == "warning" and "stays" in one["message"] for one in found)


def test_a_card_has_its_own_way():
    npu = dict(bare(), backend="ascend", device_group=0)
    assert _plan.make_plan(npu, dict(WANTED, versions={}, device_group=990))["device_group"]["action"] == "none"
