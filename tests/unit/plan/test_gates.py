# SPDX-License-Identifier: GPL-3.0-or-later
"""Gates: each way a node can be wrong fails exactly the gate that is about it."""


import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _gates, _gates_verdict
from ansible_collections.npu.fleet.plugins.module_utils import _gates_plugin as plugins

from .observed import converged

WANTED = {
    "gates": ["L0", "L1", "L2", "L3", "L4"],
    "runtime": "ascend",
    "unhealthy_allowed": 0,
    "versions": {
        "driver": "25.5.0",
        "firmware": "7.8.0.5.216",
        "cann_toolkit": "8.5.0",
        "cann_kernels": "8.5.0",
        "docker_runtime": "7.3.0",
    },
}
ONE = ["davinci0", "davinci_manager"]
CONTAINER = {
    "error": None, "whole": True, "left": [], "log": None,
    "rows": [
        {"name": "one", "value": "0", "expected": ONE, "seen": ONE, "passed": True, "error": None, "seconds": 0.5},
        {"name": "unset", "value": None, "expected": [], "seen": [], "passed": True, "error": None, "seconds": 0.5},
        {"name": "all", "value": "all", "expected": None, "seen": None, "passed": True, "error": "exit status 1", "seconds": 0.5},
    ],
}


def with_row(number, **changes):
    """The evidence with one row that did not pass."""
    rows = [dict(row, passed=False, **changes) if n == number else row for n, row in enumerate(CONTAINER["rows"])]
    return dict(CONTAINER, rows=rows)


RESOURCE = "huawei.com/Ascend910"
IDS = [f"Ascend910-{n}" for n in range(8)]


def told(*reasons, healthy=None, total=8, **more):
    """What /readyz says, with a reason for each chip that is not offered."""
    healthy = total - len(reasons) if healthy is None else healthy
    resource = {"resource": RESOURCE, "healthy": healthy, "total": total, "reasons": list(reasons)}
    return {"registered": True, "stream_open": True, "healthy": healthy, "total": total, "resource": RESOURCE, "reasons": list(reasons),
            "resources": [resource], **more}


def kubelet(ids=IDS, error=None, excused=False):
    return {"socket": "/k.sock", "allocatable": {RESOURCE: list(ids)}, "used": {}, "error": error, "excused": excused}


PLUGIN = {"status": told(), "kubelet": kubelet()}
POD = {
    "by": "admission", "why": None, "resource": RESOURCE, "id": "Ascend910-0", "error": None, "left": [], "not_mounted": [], "log": None,
    "answer": {"envs": {"ASCEND_VISIBLE_DEVICES": "0"}, "devices": [{}, {}], "mounts": [], "annotations": {}, "cdi_devices": []},
    "row": {"name": "pod", "value": "Ascend910-0", "expected": ONE, "seen": ONE, "passed": True, "error": None, "seconds": 0.5},
}


def judged(npu, wanted=None, container=None, plugin=None, pod=None):
    return _gates.judge(npu, wanted or WANTED, container=container or CONTAINER, plugin=plugin or PLUGIN, pod=pod or POD)


def failed(npu, wanted=None, container=None, plugin=None, pod=None):
    verdicts = judged(npu, wanted, container, plugin, pod)
    return {v["gate"] for v in verdicts if v["passed"] is False}, " | ".join(_gates_verdict.failures(verdicts))


def test_a_converged_node_passes_all():
    assert failed(converged()) == (set(), "")


def change(path, value):
    def spoil(npu):
        *way, last = path.split(".")
        place = npu
        for key in way:
            place = place[int(key)] if key.isdigit() else place[key]
        place[last] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "gate", "words"),
    [
        (change("present", False), "L0", "npu present"),
        (change("family", None), "L0", "one chip family"),
        (change("reboot_required", True), "L0", "reboot"),
        (change("running_packages", ["firmware"]), "L0", "firmware"),
        (change("engines.0.active", False), "L0", "container engine"),
        (change("query", {"ok": False, "source": None, "error": {"message": "npu-smi hangs"}}), "L1", "npu-smi hangs"),
        (change("versions.driver.running", "24.1.rc3"), "L1", "running 24.1.rc3"),
        (change("versions.firmware.running", None), "L1", "running None"),
        (change("components.driver.version", "24.1.rc3"), "L1", "on disk 24.1.rc3"),
        (change("components.cann_kernels.state", "half_installed"), "L1", "half_installed"),
        (change("components.docker_runtime.state", "absent"), "L1", "docker_runtime"),
        (change("chips.3.health", "Critical"), "L1", "/dev/davinci3 Critical"),
        (change("chips.3.health", None), "L1", "/dev/davinci3 None"),
        (change("chips.5.evidence.device_node", None), "L1", "0000:c5:00.0"),
        (change("agent.active", False), "L3", "not active"),
    ],
)
def test_one_fault_fails_its_gate(spoil, gate, words):
    npu = converged()
    spoil(npu)
    gates, text = failed(npu)
    assert gate in gates
    assert words in text


def test_every_check_has_a_hint_and_every_hint_a_check():
    """A component's name is the name of its check; all but firmware share one hint."""
    error = {"error": "no"}
    names = {"in time"} | {
        check["name"]
        for container in (CONTAINER, error, with_row(0, seen=None)) for plugin in (PLUGIN, error)
        for verdict in judged(converged(), None, container, plugin) for check in verdict["checks"]
    }
    assert names - set(_gates_verdict.HINTS) == set(WANTED["versions"]) - {"firmware"}
    assert set(_gates_verdict.HINTS) - names == set()


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("agent.active", False, "journalctl -u npu-agent"),
        ("engines.0.active", False, "systemctl start docker"),
        ("query", {"ok": False, "source": None, "error": {"message": "npu-smi hangs."}}, "npu-smi hangs. `npu-smi info`"),
        ("components.driver.version", "24.1.rc3", "/var/log/npu-fleet"),
    ],
)
def test_a_failure_ends_with_what_mends_it(path, value, words):
    npu = converged()
    change(path, value)(npu)
    assert words in failed(npu)[1]


def test_spelling_of_a_version_does_not_matter():
    npu = converged()
    for place in (npu["components"]["driver"], npu["versions"]["driver"]):
        place["version"] = place["running"] = "24.1.rc3"
    assert failed(npu, dict(WANTED, versions={"driver": "24.1.RC3"}))[0] == set()


@pytest.mark.parametrize(("container", "words"), [
    (with_row(0, seen=[*ONE, "davinci1"]), "DEVICES=0: expected davinci0 davinci_manager, saw davinci0 davinci_manager davinci1"),
    (with_row(1, seen=["davinci0"]), "ASCEND_VISIBLE_DEVICES not set: expected no chip, saw davinci0"),
    (with_row(2, seen=["davinci0"]), "ASCEND_VISIBLE_DEVICES=all: expected a refusal, saw davinci0"),
    (with_row(0, seen=None, error="unknown runtime"), "starts: ASCEND_VISIBLE_DEVICES=0: expected davinci0 davinci_manager, unknown"),
    (dict(with_row(0, seen=None, error="exit status 1"), log="dcmi init failed"), "(the runtime's log: dcmi init failed)"),
    (dict(CONTAINER, left=["container abc"]), "no container is left: container abc"),
    (dict(CONTAINER, rows=[]), "no container was tried"),
    ({"error": "docker import failed"}, "docker import failed"),
])
def test_each_way_a_container_can_be_wrong_fails_the_gate_in_words(container, words):
    gates, text = failed(converged(), container=container)
    assert gates == {"L2"}
    assert words in text


def test_an_engine_without_the_runtime_fails_whatever_a_container_saw():
    npu = converged()
    npu["engines"][0]["runtimes"] = {"runc": "runc"}
    gates, text = failed(npu)
    assert gates == {"L2"}
    assert "engine knows the runtime: docker has runc" in text


def test_a_runtime_that_is_no_handler_is_of_no_use_to_pods():
    npu = converged()
    npu["engines"][0].update(name="containerd", handlers=["runc", "ascend"])
    assert failed(npu)[0] == set()
    npu["engines"][0]["handlers"] = ["runc"]
    gates, text = failed(npu)
    assert gates == {"L2"}
    assert "CRI lists the handlers runc" in text


def test_the_host_gate_looks_at_the_engine_that_counts():
    npu = converged()
    npu["engines"].insert(0, dict(npu["engines"][0], name="containerd", active=False, kubelet=False))
    npu["engines"][1]["kubelet"] = True
    assert failed(npu)[0] == set()
    npu["engines"][0]["kubelet"], npu["engines"][1]["kubelet"] = None, None
    assert failed(npu)[0] == {"L0"}
    assert failed(npu, dict(WANTED, engine="docker"))[0] == set()


def test_a_chip_that_the_plugin_does_not_offer_is_named_with_its_reason():
    why = "Ascend910-3: went out of service 5 times within 600 s"
    seen = {"status": told(why), "kubelet": kubelet([one for one in IDS if one != "Ascend910-3"])}
    gates, text = failed(converged(), plugin=seen)
    assert gates == {"L3"}
    assert "plugin 7 of 8 healthy, driver 8 of 8" in text
    assert "/dev/davinci3: the driver calls it OK, the plugin does not offer it: " + why in text
    assert failed(converged(), dict(WANTED, unhealthy_allowed=1), plugin=seen)[0] == set()


def test_a_chip_that_is_missing_in_the_plugin_is_named():
    seen = {"status": told(total=7), "kubelet": kubelet(IDS[:7])}
    gates, text = failed(converged(), plugin=seen)
    assert gates == {"L3"}
    assert "/dev/davinci7 is not among its chips" in text


def test_a_count_without_reasons_is_no_explanation():
    gates, text = failed(converged(), plugin={"status": told(healthy=7)})
    assert gates == {"L3"}
    assert "does not offer 1 chip(s), and no reason of it names them" in text


def test_a_fault_code_that_the_plugin_knows_as_harmless_fails_no_gate():
    """The driver's number is the worst of what the codes may mean; the plugin goes by the codes."""
    npu = converged()
    npu["chips"][2].update(health="Alarm", error_codes=["80E01801"])
    verdicts = judged(npu)
    assert [v["gate"] for v in verdicts if v["passed"] is False] == []
    details = " ".join(check["detail"] for verdict in verdicts for check in verdict["checks"])
    assert "davinci2 Alarm (by fault codes that the plugin knows as harmless: 80E01801)" in details
    assert "/dev/davinci2: the driver calls it Alarm, the plugin offers it: it goes by the fault codes 80E01801" in details
    # The same code, and the plugin takes the chip out for it.
    gates, _text = failed(npu, plugin={"status": told("Ascend910-2: fault code 80E01801: RestartNPU")})
    assert gates == {"L1"}
    verdicts = judged(npu, plugin={"status": told("Ascend910-2: fault code 80E01801: RestartNPU")})
    assert "RestartNPU" in verdicts[3]["checks"][2]["detail"]


def test_without_a_code_the_driver_is_not_overruled():
    npu = converged()
    npu["chips"][2].update(health="Alarm", error_codes=[])
    gates, text = failed(npu)
    assert gates == {"L1", "L3"}
    assert "tells no fault code that would explain it" in text


@pytest.mark.parametrize(("seen", "passed", "words"), [
    (kubelet(), True, "kubelet 8, plugin 8"),
    (kubelet(error="there is no /k.sock", excused=True), True, "not compared: there is no /k.sock"),
    (kubelet([], "kubelet does not tell its devices at /k.sock: no answer within 5 s"), False, "no answer within 5 s"),
    (kubelet(IDS[:7]), False, "kubelet 7, plugin 8"),
    (kubelet([]), False, "kubelet 0, plugin 8"),
])
def test_kubelet_has_the_same_ids(seen, passed, words):
    verdict = judged(converged(), plugin={"status": told(), "kubelet": seen})[3]
    assert verdict["passed"] is passed
    assert words in verdict["checks"][-1]["detail"]


def test_kubelet_must_not_have_what_the_plugin_calls_unfit():
    seen = {"status": told("Ascend910-3: fault"), "kubelet": kubelet([one for one in IDS if one != "Ascend910-4"])}
    gates, text = failed(converged(), dict(WANTED, unhealthy_allowed=1), plugin=seen)
    assert gates == {"L3"}
    assert "kubelet still has Ascend910-3" in text


def renumbered(*unfit):
    """What the agent tells where the driver has turned its numbers round: names stay with the hardware."""
    status = told(*[f"Ascend910-{number}: DCMI health critical" for number in unfit])
    status["resources"][0]["devices"] = [
        {"id": f"Ascend910-{n}", "phy_id": 7 - n, "pci_address": f"0000:c{7 - n}:00.0", "healthy": n not in unfit} for n in range(8)]
    return {"status": status, "kubelet": kubelet([one for one in IDS if int(one[-1]) not in unfit])}


def test_ids_stay_with_the_hardware_and_are_no_physical_ids():
    npu = converged()
    npu["chips"][1]["health"] = "Critical"
    wanted = dict(WANTED, unhealthy_allowed=1)
    assert failed(npu, wanted, plugin=renumbered(6)) == (set(), "")
    found, text = failed(npu, wanted, plugin=renumbered(1))
    assert found == {"L3"}
    assert "/dev/davinci1: the driver calls it Critical and tells no fault code" in text
    assert "/dev/davinci6: the driver calls it OK, the plugin does not offer it: Ascend910-1" in text
    # A code that the plugin knows as harmless is of the chip, not of the one whose name has its number.
    npu["chips"][1]["error_codes"] = ["80E01801"]
    assert failed(npu, plugin=renumbered())[0] == set()
    assert "L1" in failed(npu, plugin=renumbered(6))[0]


def test_a_chip_is_known_by_its_address_and_a_board_by_its_place():
    seen = renumbered()
    devices = seen["status"]["resources"][0]["devices"]
    for one in devices:
        one["phy_id"] = None
    assert [plugins.places_of(converged()["chips"], seen["status"])[f"Ascend910-{n}"] for n in range(3)] == [7, 6, 5]
    # Gone: neither is told, and another chip may have its number.
    devices[0]["pci_address"] = None
    assert plugins.places_of(converged()["chips"], seen["status"])["Ascend910-0"] is None
    board = [dict(converged()["chips"][0], phy_id=None, pci_address=None, logic_id=n) for n in range(2)]
    rows = [{"id": f"npu-rk3588-{n}", "phy_id": None, "pci_address": f"fda{n}0000.npu", "healthy": True} for n in range(2)]
    assert plugins.places_of(board, {"resources": [{"resource": "r", "devices": rows}]}) == {"npu-rk3588-0": 0, "npu-rk3588-1": 1}


def test_a_chip_that_is_missing_is_named_by_what_the_agent_tells():
    seen = renumbered()
    del seen["status"]["resources"][0]["devices"][0]
    seen["status"]["total"] = seen["status"]["healthy"] = 7
    found, text = failed(converged(), plugin=seen)
    assert found == {"L3"}
    assert "/dev/davinci7 is not among its chips" in text


def test_numbers_of_slices():
    def seen(*ids):
        return {"status": {"resources": [{"resource": RESOURCE, "devices": [{"id": one} for one in ids]}]}}

    assert plugins.slices_of(seen("Ascend910-2c.1cpu-101-3", "Ascend910-2c.1cpu-100-0"), RESOURCE) == [100, 101]
    assert plugins.slices_of(seen(*IDS), RESOURCE) is None
    assert plugins.slices_of(seen("Ascend910-2c-100-0"), "other") is None
    assert plugins.slices_of({"error": "x"}, RESOURCE) is None


def test_in_daemonset_mode_there_is_no_unit():
    npu = converged()
    npu["agent"].update(active=False, unit_sha256=None, version=None)
    assert failed(npu, plugin={"status": told(version="0.1.0"), "kubelet": kubelet()})[0] == set()
    assert failed(npu, plugin={"error": "refused"})[0] == {"L3"}


@pytest.mark.parametrize(("pod", "words"), [
    (dict(POD, error="Allocate: /dev/davinci0 does not exist"), "plugin allocates: Allocate: /dev/davinci0 does not exist"),
    (dict(POD, row=dict(POD["row"], passed=False, seen=["davinci0"])), "expected davinci0 davinci_manager, saw davinci0"),
    (dict(POD, row=dict(POD["row"], passed=False, seen=None, error="exit status 1")), "davinci_manager, no container: exit status 1"),
    (dict(POD, left=["container abc"]), "no container is left: container abc"),
])
def test_each_way_an_admission_can_be_wrong(pod, words):
    gates, text = failed(converged(), pod=pod)
    assert gates == {"L4"}
    assert words in text


def test_values_of_variables_are_not_told():
    answer = dict(POD["answer"], envs={"TOKEN": "canary", "ASCEND_VISIBLE_DEVICES": "0", "NPU_FLEET_X": "y"})
    detail = judged(converged(), pod=dict(POD, answer=answer))[4]["checks"][0]["detail"]
    assert "ASCEND_VISIBLE_DEVICES=0, NPU_FLEET_X=y, TOKEN" in detail
    assert "canary" not in detail


def test_what_cannot_be_judged_says_why_and_fails_nothing():
    verdict = judged(converged(), pod={"why": "no id is free: Ascend910-0 by default/job"})[4]
    assert (verdict["passed"], verdict["judged"], verdict["why"]) == (None, False, "no id is free: Ascend910-0 by default/job")


@pytest.mark.parametrize(("spoil", "first", "not_judged"), [
    (("present", False), ("L0", "npu present"), ["L1", "L2", "L3", "L4"]),
    (("running_packages", ["firmware"]), ("L0", "no package runs"), ["L2", "L4"]),
    (("engines.0.active", False), ("L0", "container engine"), ["L2", "L4"]),
    (("versions.driver.running", "24.1"), ("L1", "driver"), []),
    (("agent.active", False), ("L3", "agent runs"), ["L4"]),
])
def test_the_first_gate_decides_and_what_makes_no_sense_after_it_is_not_judged(spoil, first, not_judged):
    npu = converged()
    change(*spoil)(npu)
    verdicts = judged(npu)
    found = _gates_verdict.first_failed(verdicts)
    assert (found["gate"], found["check"]) == first
    assert found["reason"] == _gates_verdict.failures(verdicts)[0]
    assert [v["gate"] for v in verdicts if not v["judged"]] == not_judged
    assert all(v["why"] and v["passed"] is None for v in verdicts if not v["judged"])


def test_the_summary_is_one_line():
    npu = converged()
    npu["agent"]["active"] = False
    assert _gates_verdict.summary(judged(npu)) == (
        "L0 passed, L1 passed, L2 passed, L3 failed, L4 not judged (no plugin is there to ask)")


def test_a_board_is_on_no_bus():
    npu = converged()
    npu.update(backend="rockchip", family="rk3588", families=["rk3588"])
    npu["chips"] = [dict(npu["chips"][0], pci_address=None, phy_id=None, logic_id=0, evidence={
        "pci": None, "driver": "RKNPU", "device_node": True})]
    wanted = dict(WANTED, versions={}, runtime="")
    seen = {"status": told(total=1), "kubelet": kubelet(["npu-rk3588-0"])}
    assert failed(npu, wanted, plugin=seen)[0] == set()
    npu["chips"][0]["evidence"]["driver"] = None
    gates, text = failed(npu, wanted, plugin=seen)
    assert gates == {"L1"}
    assert "/dev/rknpu" in text
    assert "davinci" not in text
    assert set(_gates_verdict.BOARD_HINTS) <= set(_gates_verdict.HINTS)


def test_a_broken_chip_may_be_allowed_and_the_plugin_must_know_it():
    npu = converged()
    npu["chips"][0]["health"] = "Alarm"
    wanted = dict(WANTED, unhealthy_allowed=1)
    assert failed(npu, wanted)[0] == {"L3"}
    assert failed(npu, wanted, plugin={"status": told("Ascend910-0: DCMI health major")})[0] == set()
    assert failed(npu, wanted, plugin={"status": told(healthy=7)})[0] == set()


def test_a_warning_keeps_a_chip_in_service_as_the_agent_does():
    npu = converged()
    npu["chips"][0]["health"] = "Warning"
    assert failed(npu)[0] == set()
    assert failed(npu, dict(WANTED, unhealthy_from="minor"))[0] == {"L1", "L3"}


def test_a_chip_that_went_during_the_run_fails_the_host_gate():
    npu = converged()
    gone = npu["chips"].pop(3)["pci_address"]
    agreeing = {"status": told(total=7)}
    assert failed(npu, plugin=agreeing)[0] == set()
    wanted = dict(WANTED, seen_before=[c["pci_address"] for c in converged()["chips"]])
    gates, text = failed(npu, wanted, plugin=agreeing)
    assert gates == {"L0"}
    assert gone in text


def test_number_of_chips_where_the_fleet_knows_it():
    assert failed(converged(), dict(WANTED, chips=8))[0] == set()
    gates, text = failed(converged(), dict(WANTED, chips=16))
    assert gates == {"L0"}
    assert "8, expected 16" in text


def test_no_chips_is_never_a_pass():
    npu = converged()
    npu["chips"] = []
    assert "L1" in failed(npu)[0]
