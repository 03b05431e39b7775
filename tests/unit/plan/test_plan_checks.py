# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan refuses or warns of: holders, versions that nobody lists or that failed, a plan that somebody approved."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _plan, _plan_checks, _plan_pins

from .observed import WANTED, bare, component, converged
from .test_plan import READY

POD = "6263c610-a21e-45a3-bb48-cc367c370f76"
BOX = "a" * 64


def codes(plan, severity="error"):
    return [one["code"] for one in plan["findings"] if one["severity"] == severity]


def older(**versions):
    """A converged node with older components, whose packages lie in its cache."""
    npu = converged()
    for name, version in versions.items():
        npu["components"][name] = component(version, running=version)
    good = {
        name: {"version": part["version"], "file": "x.run", "sha256": "0" * 64, "cached": True} for name, part in npu["components"].items()
    }
    npu["record"] = {"installed": {}, "good": {"current": {"components": good, "time": "t"}, "previous": None}, "failed": []}
    return npu


def holder(**changes):
    values = {"pid": 42, "comm": "python3", "device": "/dev/davinci0", "container": None, "pod_uid": None, "unit": None}
    return dict(values, **changes)


# --- steps ------------------------------------------------------------------------------------------------------------

def test_every_pinned_component_has_a_step_also_when_it_stays():
    plan = _plan.make_plan(older(driver="25.3.rc1"), READY)
    assert {step["component"]: step["action"] for step in plan["components"]} == {
        "firmware": "none", "driver": "upgrade", "cann_toolkit": "none", "cann_kernels": "none", "docker_runtime": "none",
    }
    assert [step["component"] for step in plan["packages"]] == ["driver"]
    assert plan["reboot_expected"] is False
    assert "cann_kernels   none" in "\n".join(_plan.render(plan, everything=True))


def components(plan):
    return [step["component"] for step in plan["components"]]


def test_rows_stand_in_one_order_but_where_the_order_of_work_matters():
    """Over a driver that works firmware comes first."""
    rows = ["driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime"]
    for npu in (bare(), converged(), older(firmware="7.8.0.2.212")):
        assert components(_plan.make_plan(npu, READY)) == rows
    plan = _plan.make_plan(older(driver="25.3.rc1", firmware="7.8.0.2.212"), READY)
    assert components(plan)[:2] == [step["component"] for step in plan["packages"]] == ["firmware", "driver"]


def test_firmware_expects_a_reboot_and_says_so():
    plan = _plan.make_plan(older(firmware="7.8.0.2.212"), READY)
    assert plan["reboot_expected"] is True
    assert "Needs a reboot." in _plan.render(plan)[0]


def test_a_driver_that_does_not_answer_refuses_no_firmware_that_stays():
    """The gates have to say what is wrong with such a node; a plan that refuses would keep them from it."""
    npu = converged()
    npu["components"]["driver"].update(running=None, record={"answers": False})
    assert _plan.make_plan(npu, READY)["refused"] == []
    npu["components"]["firmware"] = component("7.8.0.2.212")
    assert codes(_plan.make_plan(npu, READY)) == ["driver_silent"]


def test_a_mismatched_component_shows_with_its_reason():
    npu = converged()
    reason = "Driver 25.5.0 is on disk, 25.3.rc1 is loaded, and a reboot since then has not changed that."
    npu["components"]["driver"].update(state="mismatched", running="25.3.rc1", reason=reason)
    npu["preflight"] = None
    plan = _plan.make_plan(npu, READY)
    assert [(step["component"], step["action"]) for step in plan["packages"]] == [("driver", "repair")]
    assert reason in _plan.render(plan)[0]


def test_a_switch_needs_no_package(monkeypatch):
    def decided(observed, wanted, allow_downgrade):
        return [{"component": "cann_toolkit", "action": "switch", "from": "8.3.RC1", "to": "8.5.0", "reason": "It is there.",
                 "reboot": False, "code": None}]

    monkeypatch.setattr(_plan, "decide", decided)
    plan = _plan.make_plan(converged(), dict(WANTED, depot="", accept_licence=False))
    assert plan["refused"] == []
    assert [(step["action"], step["file"], step["sha256"]) for step in plan["packages"]] == [("switch", None, None)]


def test_what_was_measured_is_estimated_and_the_rest_is_named():
    plan = _plan.make_plan(bare(), READY)
    # A minute for the driver, 12 s of firmware for each of eight cards (docs/facts.md, P 2).
    assert (plan["estimate"]["seconds"], plan["estimate"]["unknown"]) == (60 + 8 * 12, ["cann_toolkit", "cann_kernels", "docker_runtime"])


# --- holders ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("seen", "known", "words"), [
    ({}, {}, "python3 (pid 42) on /dev/davinci0;"),
    ({"container": BOX}, {}, "in container aaaaaaaaaaaa;"),
    ({"container": BOX}, {BOX: {"name": "jobs", "image": "i", "pod": None, "namespace": None}}, "in container jobs;"),
    ({"container": BOX, "pod_uid": POD}, {}, f"in the pod with uid {POD};"),
    ({"container": BOX, "pod_uid": POD}, {BOX: {"name": "c", "image": "i", "pod": "train-0", "namespace": "ml"}}, "in pod ml/train-0;"),
])
def test_a_holder_is_named_with_its_owner(seen, known, words):
    npu = older(driver="25.3.rc1")
    npu["holders"] = [holder(**seen)]
    npu["preflight"] = {"containers": known} if known else None
    (refused,) = _plan_checks.chips_in_use(_plan_checks.holders(npu), [{"component": "driver"}], READY)
    assert words in refused["message"]


def test_our_own_pod_is_no_holder_by_namespace_and_name():
    npu = older(driver="25.3.rc1")
    npu["holders"] = [holder(container=BOX)]
    for namespace, pod, wanted, ours in (
        ("npu-fleet", "npu-agent-310b-x7xqk", {}, True), ("npu-fleet", "train-0", {}, False), ("ml", "npu-agent-x7xqk", {}, False),
        ("ml", "npu-agent-x7xqk", {"agent_namespace": "ml"}, True), (None, None, {}, False),
    ):
        npu["preflight"] = {"containers": {BOX: {"name": "agent", "image": "i", "pod": pod, "namespace": namespace}}}
        assert (_plan_checks.holders(npu, wanted) == []) is ours


def test_one_process_on_many_chips_is_one_holder():
    npu = older(driver="25.3.rc1")
    npu["holders"] = [holder(device=f"/dev/davinci{number}") for number in range(8)]
    plan = _plan.make_plan(npu, READY)
    assert [len(one["devices"]) for one in plan["holders"]] == [8]
    assert codes(plan) == ["chips_in_use"]


def test_holders_lose_their_chips_only_when_the_operator_allows_it():
    npu = older(driver="25.3.rc1")
    npu["holders"] = [holder()]
    assert _plan.make_plan(npu, dict(READY, disruption="refuse"))["packages"] == []
    plan = _plan.make_plan(npu, dict(READY, disruption="allow"))
    assert [step["component"] for step in plan["packages"]] == ["driver"]
    assert "they lose them when driver changes" in next(one["message"] for one in plan["findings"] if one["code"] == "chips_in_use")


# --- versions ---------------------------------------------------------------------------------------------------------

FAILED = {"components": {"driver": "25.5.0", "firmware": "7.8.0.5.216"}, "reason": "L1: no chip answers", "time": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(("now", "pins", "wanted", "refused"), [
    ({"driver": "25.3.rc1", "firmware": "7.8.0.2.212"}, {}, {}, ["failed_before"]),
    ({"driver": "25.3.rc1", "firmware": "7.8.0.2.212"}, {}, {"retry_failed": True}, []),
    ({"driver": "25.3.rc1", "firmware": "7.8.0.2.212"}, {}, {"retry_failed": "no"}, ["failed_before"]),
    # Nothing of it changes, or it is another set.
    ({}, {}, {}, []),
    ({"cann_toolkit": None}, {}, {}, []),
    ({"driver": "25.5.0"}, {"driver": "25.5.1", "firmware": "7.8.0.6.201"}, {}, []),
])
def test_a_set_that_failed_here_is_not_tried_again_by_itself(now, pins, wanted, refused):
    npu = older(**{name: version for name, version in now.items() if version})
    npu["record"]["failed"] = [FAILED]
    versions = dict(READY["versions"], **pins)
    plan = _plan.make_plan(npu, dict(READY, versions=versions, **wanted))
    assert [code for code in codes(plan) if code == "failed_before"] == refused


# Pairs of the public matrix (rows 25.5.0 and 24.1.RC2), and one that nobody lists: CANN 8.0.RC3 came with HDK 24.1.RC3.
@pytest.mark.parametrize(("pins", "reason", "verdict", "refused"), [
    ({"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "8.5.0"}, None, "matched", []),
    ({"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "7.0.0"}, None, "unlisted", ["unlisted"]),
    ({"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "7.0.0"}, "tried on rack 7", "unlisted", []),
])
def test_an_unlisted_pair_needs_a_reason(pins, reason, verdict, refused):
    npu = bare()
    sums = {"Ascend-cann-toolkit_7.0.0_linux-x86_64.run": "0" * 64, "Ascend-cann-kernels-910b_7.0.0_linux.run": "0" * 64}
    wanted = dict(READY, versions=pins, unlisted_reason=reason, checksums=dict(READY["checksums"], **sums))
    plan = _plan.make_plan(npu, wanted)
    assert (plan["verdict"], codes(plan)) == (verdict, refused)
    assert plan["unlisted_reason"] == (reason if verdict == "unlisted" else None)


def test_an_unlisted_pair_that_stays_as_it_is_is_only_a_warning():
    npu = converged()
    npu["components"]["cann_toolkit"]["version"] = npu["components"]["cann_kernels"]["version"] = "7.0.0"
    npu["components"]["docker_runtime"] = component(None, "absent")
    plan = _plan.make_plan(npu, dict(READY, versions={"driver": "25.5.0", "firmware": "7.8.0.5.216"}))
    assert (plan["verdict"], plan["refused"], codes(plan, "warning")) == ("unlisted", [], ["unlisted"])


# The first is field case B01: driver 24.1.rc3 came with CANN 8.0.RC3. The second driver is in no row of this family at all.
@pytest.mark.parametrize("driver", ["24.1.rc3", "23.0.rc1"])
def test_an_old_driver_under_a_new_cann_is_seen_although_only_cann_is_pinned(driver):
    npu = older(driver=driver, firmware="7.5.0.1.129")
    for name in ("cann_toolkit", "cann_kernels", "docker_runtime"):
        npu["components"][name] = component(None, "absent")
    plan = _plan.make_plan(npu, dict(READY, versions={"cann": "8.5.0"}))
    assert set(codes(plan)) == {"unlisted"}
    assert driver in plan["refused"][0]["reason"]


# --- pins -------------------------------------------------------------------------------------------------------------

def test_a_release_pins_every_component_of_the_family():
    plan = _plan.make_plan(bare(), dict(READY, versions={}, release="25.5.0"))
    assert plan["versions"]["driver"] == "25.5.0"
    assert plan["versions"]["firmware"] == "7.8.0.5.216"
    assert plan["release"] == "25.5.0"


@pytest.mark.parametrize(("given", "name"), [
    ({"release": "25.5.0", "versions": {"driver": "25.3.rc1"}}, "npu_fleet_versions.driver is 25.3.rc1, release 25.5.0 says 25.5.0"),
])
def test_pins_that_contradict_each_other_are_an_error_of_the_variables(given, name):
    with pytest.raises(FleetError, match=name):
        _plan.make_plan(bare(), dict(READY, **given))


def test_a_release_for_a_node_of_two_families_is_refused():
    npu = bare()
    npu.update(family=None, families=["310p", "a2"])
    plan = _plan.make_plan(npu, dict(READY, versions={}, release="25.5.0"))
    assert codes(plan) == ["family_unknown"]
    assert "310p, a2" in plan["refused"][0]["reason"]


# --- the way back, and what was approved ------------------------------------------------------------------------------

@pytest.mark.parametrize(("spoil", "missing"), [
    (lambda good: None, []),
    (lambda good: good["driver"].update(cached=False), ["driver"]),
    (lambda good: good.pop("driver"), ["driver"]),
    (lambda good: good["cann_toolkit"].update(cached=False), []),
])
def test_the_way_back_needs_the_good_packages_in_the_cache(spoil, missing):
    npu = older(driver="25.3.rc1")
    spoil(npu["record"]["good"]["current"]["components"])
    plan = _plan.make_plan(npu, READY)
    assert plan["way_back"] == {"ok": not missing, "missing": missing}
    assert [code for code in codes(plan, "warning") if code == "no_way_back"] == ["no_way_back"] * bool(missing)


def test_a_first_install_has_nothing_to_go_back_to():
    assert _plan.make_plan(bare(), READY)["way_back"] == {"ok": True, "missing": []}


def approved(npu, wanted=READY):
    return _plan.make_plan(npu, wanted)


@pytest.mark.parametrize(("before", "fresh", "beyond"), [
    (bare, bare, []),
    (bare, converged, []),
    (converged, bare, ["driver -> 25.5.0", "firmware -> 7.8", "cann_toolkit", "cann_kernels", "docker_runtime", "engine", "a reboot"]),
    (lambda: older(driver="25.3.rc1"), lambda: older(driver="25.3.rc1", firmware="7.8.0.2.212"), ["firmware", "a reboot"]),
])
def test_an_approved_plan_is_a_ceiling(before, fresh, beyond):
    plan = _plan.make_plan(fresh(), dict(READY, ceiling=approved(before())))
    texts = [one["reason"] for one in plan["refused"]]
    assert len(texts) == len(beyond)
    for text, part in zip(texts, beyond, strict=True):
        assert f"does not have this: {part}" in text


def test_another_file_of_the_same_version_was_not_approved():
    plan = _plan.make_plan(bare(), dict(READY, ceiling=approved(bare()), checksums=dict.fromkeys(READY["checksums"], "1" * 64)))
    assert codes(plan) == ["beyond_approved"] * 5


def test_a_way_down_was_not_approved_by_a_way_up():
    downgrade = dict(READY, allow_downgrade=True)
    up, down = older(driver="25.3.rc1"), older(driver="26.0.rc1")
    assert codes(_plan.make_plan(down, dict(downgrade, ceiling=approved(up, downgrade)))) == ["beyond_approved"]
    assert codes(_plan.make_plan(up, dict(downgrade, ceiling=approved(down, downgrade)))) == []


# --- a lock -----------------------------------------------------------------------------------------------------------

def locked(**changes):
    """A lock of release 25.5.0 for a2 on x86_64."""
    versions = {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "8.5.0", "docker_runtime": "7.3.0"}
    places = {
        "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run": ("driver", "25.5.0", "a2", "x86_64"),
        "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run": ("firmware", "7.8.0.5.216", "a2", None),
        "Ascend-cann-toolkit_8.5.0_linux-x86_64.run": ("cann_toolkit", "8.5.0", None, "x86_64"),
        "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run": ("cann_kernels", "8.5.0", "a2", "x86_64"),
        "Ascend-docker-runtime_7.3.0_linux-x86_64.run": ("docker_runtime", "7.3.0", None, "x86_64"),
    }
    packages = [
        {"family": family, "arch": arch, "component": name, "version": version, "file": file, "size": 200 << 20, "sha256": "5" * 64,
         "source": f"http://depot.example.com/{file}", "signature": None}
        for file, (name, version, family, arch) in places.items()
    ]
    return dict({"lock": 1, "release": "25.5.0", "unlisted_reason": None, "sets": {"a2": versions}, "packages": packages}, **changes)


LOCKED = dict(WANTED, versions={}, checksums={}, depot="", lock=locked())


def test_a_lock_has_versions_files_sums_sizes_and_places():
    plan = _plan.make_plan(bare(), LOCKED)
    assert (plan["refused"], plan["release"], plan["verdict"]) == ([], "25.5.0", "matched")
    assert [(step["component"], step["sha256"], step["size"]) for step in plan["packages"]] == [
        (name, "5" * 64, 200 << 20) for name in ("driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime")
    ]
    assert plan["packages"][0]["source"].endswith("/Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run")
    assert plan["engine"]["action"] == "register"  # its version comes from the lock as well


def test_a_lock_that_is_not_there_says_what_it_must_have():
    with pytest.raises(FleetError) as caught:
        _plan.make_plan(bare(), dict(LOCKED, lock="/nowhere/npu.lock.yml"))
    assert "This node is a2/x86_64, which npu_fleet_lock_for must have." in caught.value.hint


def test_another_release_than_the_lock_has_wants_a_new_lock():
    with pytest.raises(FleetError) as caught:
        _plan.make_plan(bare(), dict(LOCKED, release="25.5.2"))
    assert caught.value.message == "npu_fleet_release is 25.5.2, the lock says 25.5.0."
    assert caught.value.hint == "Run `ansible-playbook npu.fleet.lock` to lock 25.5.2, or set npu_fleet_release back."


def test_a_lock_without_this_family_refuses_the_node_in_words():
    npu = bare()
    npu.update(family="310p", families=["310p"])
    (refused,) = _plan.make_plan(npu, LOCKED)["refused"]
    assert (refused["code"], refused["component"]) == ("lock_family", "driver")
    assert "310p/x86_64" in refused["hint"]


def test_the_reason_in_the_lock_counts_and_is_handed_on():
    sets = {"a2": {"driver": "25.5.0", "cann": "7.0.0"}}
    packages = [dict(one) for one in locked()["packages"] if one["component"] in ("driver", "cann_toolkit")]
    kernels = dict(packages[1], component="cann_kernels", family="a2", arch=None, file="Ascend-cann-kernels-910b_7.0.0_linux.run")
    packages[1].update(file="Ascend-cann-toolkit_7.0.0_linux-x86_64.run")
    packages.append(kernels)
    for one in packages[1:]:
        one["version"] = "7.0.0"
    reason = "tried on rack 7"
    lock = locked(release=None, sets=sets, packages=packages, unlisted_reason=reason)
    plan = _plan.make_plan(bare(), dict(LOCKED, lock=lock))
    assert (codes(plan), plan["verdict"], plan["unlisted_reason"]) == ([], "unlisted", reason)
    assert codes(_plan.make_plan(bare(), dict(LOCKED, lock=dict(lock, unlisted_reason=None)))) == ["unlisted"]


@pytest.mark.parametrize(("given", "words"), [
    ({"versions": {"cann": "8.3.RC1"}}, "npu_fleet_versions.cann is 8.3.RC1, the lock says 8.5.0"),
    ({"release": "25.3.RC1"}, "npu_fleet_release is 25.3.RC1, the lock says 25.5.0"),
    ({"lock": "/nowhere/npu.lock.yml"}, "/nowhere/npu.lock.yml is not there"),
])
def test_a_lock_that_contradicts_or_is_not_there_stops_the_run(given, words):
    with pytest.raises(FleetError, match=words):
        _plan.make_plan(bare(), dict(LOCKED, **given))


def test_what_agrees_with_the_lock_may_stand_beside_it():
    plan = _plan.make_plan(bare(), dict(LOCKED, release="25.5.0", versions={"driver": "25.5.0"}))
    assert (plan["refused"], len(plan["packages"])) == ([], 5)


def test_what_the_row_of_a_release_does_not_know_may_be_given_beside_it():
    """The error says so, and nothing else would help."""
    wanted = {"release": "26.1.0", "unlisted_reason": "our lab", "versions": {"firmware": "9.1.0.1.220"}}
    pins = _plan_pins.pins_of(converged(), wanted)
    assert (pins.problems, pins.versions["firmware"], pins.versions["driver"]) == ((), "9.1.0.1.220", "26.1.0")
    assert [one["code"] for one in _plan_pins.pins_of(converged(), {"release": "26.1.0"}).problems] == ["release_incomplete"]
    assert [one["code"] for one in _plan_pins.pins_of(converged(), dict(wanted, unlisted_reason="")).problems] == ["unlisted"]


def test_one_folder_of_the_catalog_may_be_a_text(tmp_path):
    (tmp_path / "x.yml").write_text("sources: {ours: our lab}")
    pins = _plan_pins.pins_of(converged(), {"release": "25.5.0", "catalog_dirs": str(tmp_path)})
    assert pins.versions["driver"] == "25.5.0"
