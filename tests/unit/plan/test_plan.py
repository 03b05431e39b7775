# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of one node, from what it has and what the fleet pins."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _plan, _plan_engine, _plan_pins

from .observed import WANTED, bare, component, converged

FILES = (
    "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run",
    "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run",
    "Ascend-cann-toolkit_8.5.0_linux-x86_64.run",
    "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run",
    "Ascend-docker-runtime_7.3.0_linux-x86_64.run",
)
READY = dict(WANTED, checksums=dict.fromkeys(FILES, "0" * 64))


def test_a_converged_node_needs_nothing_and_not_even_checksums():
    plan = _plan.make_plan(converged(), WANTED)
    assert plan["packages"] == []
    assert plan["refused"] == []
    assert plan["changes"] == 0
    assert _plan.render(plan) == ["packages and engine: nothing to change"]


def test_a_bare_node_gets_everything_in_order_with_file_source_and_sum():
    plan = _plan.make_plan(bare(), READY)
    assert [s["component"] for s in plan["packages"]] == ["driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime"]
    assert [s["file"] for s in plan["packages"]] == list(FILES)
    assert "depot" not in str(plan)  # a plan is printed, and the depot's address may hold a password
    assert plan["engine"]["action"] == "register"
    assert plan["engine"]["reason"] == "docker does not know the runtime ascend; it will be registered as /opt/ascend-docker-runtime"
    assert plan["changes"] == 6
    assert "driver         install    - -> 25.5.0" in _plan.render(plan)[0]


def test_all_missing_checksums_are_named_at_once():
    plan = _plan.make_plan(bare(), dict(READY, checksums={FILES[0]: "0" * 64}))
    (refused,) = plan["refused"]
    assert (plan["packages"], refused["code"]) == ([], "checksum_missing")
    assert f"`sha256sum {' '.join(FILES[1:])}`" in refused["hint"]


def test_an_unpinned_component_is_not_managed():
    plan = _plan.make_plan(bare(), dict(READY, versions={"driver": "25.5.0", "cann": ""}, runtime=None))
    assert [s["component"] for s in plan["packages"]] == ["driver"]
    assert plan["engine"]["action"] == "none"


def test_an_unknown_key_of_the_versions_is_refused_with_the_known_ones():
    with pytest.raises(FleetError, match="firmwares.*driver, firmware, cann, docker_runtime"):
        _plan.make_plan(converged(), dict(WANTED, versions={"firmwares": "1"}))


@pytest.mark.parametrize(
    ("depot", "source"),
    [
        ("http://h/d", "http://h/d/x.run"),
        ("https://h/d/", "https://h/d/x.run"),
        ("HTTP://h/d", "http://h/d/x.run"),
        # A token goes with each file.
        ("https://h/d?token=1", "https://h/d/x.run?token=1"),
        ("http://user:a%2Fb@h", "http://user:a%2Fb@h/x.run"),
        ("/srv/ascend", "/srv/ascend/x.run"),
    ],
)
def test_depots(depot, source):
    assert _plan_pins.package_source(depot, "x.run") == source


@pytest.mark.parametrize("depot", ["", None, "relative/path", "ftp://h/d"])
def test_no_depot_to_speak_of(depot):
    with pytest.raises(FleetError, match="npu_fleet_depot"):
        _plan_pins.package_source(depot, "x.run")


def test_a_downgrade_is_refused_in_words_and_nothing_else_runs():
    npu = converged()
    npu["components"]["driver"] = component("26.0.rc1", running="26.0.rc1")
    npu["components"]["cann_toolkit"] = component(None, "absent")
    plan = _plan.make_plan(npu, READY)
    assert plan["packages"] == []
    assert "26.0.rc1 is installed" in plan["refused"][0]["reason"]
    assert "npu_fleet_allow_downgrade" in plan["refused"][0]["hint"]


def test_a_false_that_comes_as_text_is_false():
    npu = converged()
    npu["components"]["driver"] = component("26.0.rc1", running="26.0.rc1")
    assert _plan.make_plan(npu, dict(READY, allow_downgrade="false"))["refused"]
    assert _plan.make_plan(npu, dict(READY, allow_downgrade="true"))["packages"][0]["action"] == "downgrade"
    assert _plan.make_plan(bare(), dict(READY, accept_licence="no"))["refused"]
    assert _plan_engine.engine_step(converged(), dict(WANTED["runtime"], set_default="False"))["action"] == "none"


def test_chips_in_use_stop_driver_and_firmware_but_not_cann():
    npu = bare()
    npu["holders"] = [{"pid": 42, "comm": "python3", "device": "/dev/davinci0", "container": None}]
    refused = _plan.make_plan(npu, READY)["refused"]
    assert "python3 (pid 42) on /dev/davinci0" in refused[0]["reason"]
    npu = converged()
    npu["components"]["cann_kernels"] = component(None, "absent")
    npu["holders"] = [{"pid": 42, "comm": "python3", "device": "/dev/davinci0", "container": None}]
    assert [s["component"] for s in _plan.make_plan(npu, READY)["packages"]] == ["cann_kernels"]


def test_our_own_agent_does_not_stop_driver_and_firmware():
    npu = bare()
    agent = {"pid": 7, "comm": "npu-agent", "device": "/dev/davinci_manager", "container": None, "unit": "npu-agent.service"}
    npu["holders"] = [agent]
    assert _plan.make_plan(npu, READY)["refused"] == []
    npu["holders"] = [agent, dict(agent, pid=42, comm="python3", unit="training.service")]
    (refused,) = _plan.make_plan(npu, READY)["refused"]
    assert "in use by python3 (pid 42) on /dev/davinci_manager;" in refused["reason"]


@pytest.mark.parametrize("node", [converged, bare])
def test_a_package_that_still_runs_stops_the_node(node):
    npu = node()
    npu["running_packages"] = ["firmware"]
    plan = _plan.make_plan(npu, READY)
    assert plan["packages"] == []
    assert plan["refused"] == [
        {
            "component": "firmware",
            "reason": "The package of firmware still runs on this node.",
            "hint": "Do not reboot or power off the node. Run the playbook again later.",
            "code": "package_running",
        }
    ]


def said(path="/opt/ascend-docker-runtime", default=None, error=None):
    """What the engine's file says."""
    return {"runtimes": {"ascend": path} if path else {}, "default_runtime": default, "error": error}


def test_an_entry_that_is_only_in_the_memory_of_the_engine_is_named():
    npu = converged()
    npu["engines"][0]["configured"] = said(path=None)
    reason = _plan_engine.engine_step(npu, WANTED["runtime"])["reason"]
    assert reason == "/etc/docker/daemon.json has ascend as nothing, wanted /opt/ascend-docker-runtime"


@pytest.mark.parametrize(
    ("engine", "wanted", "action"),
    [
        ({}, {}, "none"),
        ({"runtimes": {}}, {}, "register"),
        ({"runtimes": {"ascend": "/elsewhere"}}, {}, "register"),
        ({}, {"set_default": True}, "register"),
        ({"default_runtime": "ascend", "configured": said(default="ascend")}, {"set_default": True}, "none"),
        ({"default_runtime": "ascend", "configured": said()}, {"set_default": True}, "register"),
        ({"configured": said(path=None)}, {}, "register"),
        ({"configured": said(path="/elsewhere")}, {}, "register"),
        ({"configured": said(error="/d.json, line 2: it is not JSON.")}, {}, "register"),
        ({"configured": None}, {}, "none"),
        ({"error": "is down"}, {}, "register"),
        ({}, {"engine": "docker"}, "none"),
        ({}, {"engine": "containerd"}, "register"),
    ],
)
def test_engine(engine, wanted, action):
    npu = converged()
    npu["engines"][0].update(engine)
    assert _plan_engine.engine_step(npu, dict(WANTED["runtime"], **wanted))["action"] == action


def test_ceiling_lets_less_through_but_not_more():
    approved = _plan.make_plan(bare(), READY)
    less = dict(approved, packages=approved["packages"][2:])
    assert _plan.beyond_ceiling(less, approved) == []
    assert len(_plan.beyond_ceiling(approved, less)) == 2


def test_a_licence_is_accepted_by_the_operator_alone():
    plan = _plan.make_plan(bare(), dict(READY, accept_licence=False))
    assert plan["packages"] == []
    assert [r["component"] for r in plan["refused"]] == ["cann_toolkit", "cann_kernels"]
    assert "npu_fleet_accept_licence" in plan["refused"][0]["hint"]
    assert _plan.make_plan(converged(), dict(WANTED, accept_licence=False))["refused"] == []


def test_an_accelerator_that_nobody_knows_stops_the_node():
    npu = bare()
    npu["unknown"] = [{"address": "0000:c1:00.0", "vendor": "19e5", "device": "d999", "kind": "unknown"}]
    plan = _plan.make_plan(npu, READY)
    assert plan["packages"] == []
    assert "19e5:d999 at 0000:c1:00.0" in plan["refused"][-1]["reason"]
