# SPDX-License-Identifier: GPL-3.0-or-later
"""decide(): one table of what is there, what is wanted and what follows."""

import copy

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import decide

RELEASE = {
    "driver": {"version": "25.5.0", "file": "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"},
    "firmware": {"version": "7.8.0.5.216", "file": "/srv/Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run"},
    "cann_toolkit": {"version": "8.5.0", "file": "Ascend-cann-toolkit_8.5.0_linux-x86_64.run"},
    "cann_kernels": {"version": "8.5.0", "file": "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run"},
    "docker_runtime": {"version": "7.3.0", "file": "Ascend-docker-runtime_7.3.0_linux-x86_64.run"},
}


def entry(state, version=None, reason=None, **record):
    return {"state": state, "version": version, "running": None, "path": None, "reason": reason, "record": record}


def host(family="a2", arch="x86_64", families=None, **components):
    return {"family": family, "arch": arch, "families": families or ([family] if family else []), "components": components}


CONVERGED = {name: entry("present", wish["version"]) for name, wish in RELEASE.items()}


def only(steps):
    assert len(steps) == 1
    return steps[0]


def brief(steps):
    return [(step["component"], step["action"]) for step in steps]


def test_fresh():
    steps = decide(host(), RELEASE)
    names = ("driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime")
    assert brief(steps) == [(name, "install") for name in names]
    assert [step["reboot"] for step in steps] == [False, True, False, False, False]
    assert steps[0] == {
        "component": "driver", "action": "install", "from": None, "to": "25.5.0", "reason": "Nothing is installed.", "reboot": False,
        "code": None,
    }  # fmt: skip


def test_the_order_of_wishes_does_not_matter():
    backwards = dict(reversed(RELEASE.items()))
    assert brief(decide(host(), backwards)) == brief(decide(host(), RELEASE))


def test_converged():
    steps = decide(host(**CONVERGED), RELEASE)
    assert {step["action"] for step in steps} == {"none"}
    assert not any(step["reboot"] or step["reason"] for step in steps)


def test_converged_in_another_spelling():
    assert only(decide(host(driver=entry("present", "24.1.rc2")), {"driver": {"version": "24.1.RC2"}}))["action"] == "none"


def test_driver_whose_file_name_has_another_version():
    now = host("310p", driver=entry("present", "22.0.4", package_version="6.0.0"))
    wish = {"driver": {"version": "6.0.0", "file": "Ascend-hdk-310p-npu-driver_6.0.0_linux-x86-64.run"}}
    assert only(decide(now, wish))["action"] == "none"


@pytest.mark.parametrize(
    ("state", "first"),
    [("absent", "driver"), ("half_installed", "driver"), ("present", "firmware"), ("reboot_pending", "firmware")],
)
def test_order_by_state(state, first):
    version = "25.3.rc1" if state in ("present", "reboot_pending") else None
    now = host(driver=entry(state, version), firmware=entry("present", "7.8.0.2.212"))
    steps = decide(now, RELEASE)
    assert steps[0]["component"] == first


@pytest.mark.parametrize(
    ("state", "answers", "first"),
    [
        ("present", True, "firmware"), ("present", None, "firmware"), ("present", False, "driver"), ("mismatched", True, "firmware"),
        ("mismatched", False, "driver"), ("reboot_pending", True, "firmware"),
    ],
)
def test_firmware_is_written_by_a_driver_that_works(state, answers, first):
    """Also on the way back from a driver that is complete on disk and does not come up."""
    now = host(driver=entry(state, "25.5.2", "x", answers=answers), firmware=entry("present", "7.8.0.7.220"))
    steps = decide(now, {name: RELEASE[name] for name in ("driver", "firmware")}, allow_downgrade=True)
    assert (steps[0]["component"], [step["action"] for step in steps]) == (first, ["downgrade", "downgrade"])


def test_firmware_is_not_tried_with_a_driver_that_does_not_answer():
    now = host(driver=entry("present", "25.5.0", answers=False), firmware=entry("present", "7.8.0.2.212"))
    steps = {step["component"]: step for step in decide(now, {name: RELEASE[name] for name in ("driver", "firmware")})}
    assert (steps["driver"]["action"], steps["firmware"]["code"]) == ("none", "driver_silent")
    assert only(decide(now, {"firmware": RELEASE["firmware"]}))["code"] == "driver_silent"


@pytest.mark.parametrize(
    ("now", "component", "allow", "expected"),
    [
        (entry("present", "25.3.rc1"), "driver", False, ("upgrade", None, False)),
        (entry("present", "25.5.2"), "driver", False, ("refuse", "downgrade_refused", False)),
        (entry("present", "25.5.2"), "driver", True, ("downgrade", None, False)),
        (entry("half_installed", "25.5.0", "No mark."), "driver", False, ("repair", None, True)),
        (entry("half_installed", None, "No mark."), "driver", False, ("repair", None, True)),
        (entry("half_installed", "26.0.rc1", "No mark."), "driver", False, ("repair", None, True)),
        (entry("foreign", "25.5.0", "No record."), "driver", False, ("refuse", "foreign", False)),
        (entry("foreign", None, "No record."), "driver", True, ("refuse", "foreign", False)),
        (entry("reboot_pending", "25.5.0", "Not loaded."), "driver", False, ("none", None, True)),
        (entry("mismatched", "25.5.0", "Not loaded."), "driver", False, ("repair", None, True)),
        (entry("mismatched", "25.3.rc1", "Not loaded."), "driver", False, ("upgrade", None, False)),
        (entry("mismatched", "25.5.2", "Not loaded."), "driver", False, ("refuse", "downgrade_refused", False)),
        (entry("mismatched", "25.5.2", "Not loaded."), "driver", True, ("downgrade", None, False)),
        (entry("mismatched", "7.8.0.5.216", "Chips run x."), "firmware", False, ("repair", None, True)),
        (entry("reboot_pending", "25.3.rc1", "Not loaded."), "driver", False, ("upgrade", None, False)),
        (entry("reboot_pending", None, "Loaded only."), "driver", False, ("refuse", "reboot_first", False)),
        (entry("present", "7.8.0.2.212"), "firmware", False, ("upgrade", None, True)),
        (entry("present", "7.8.0.7.220"), "firmware", False, ("refuse", "downgrade_refused", False)),
        (entry("reboot_pending", "7.8.0.5.216", "Chips run x."), "firmware", False, ("none", None, True)),
        (entry("present", "8.3.RC1"), "cann_toolkit", False, ("upgrade", None, False)),
        (entry("present", "7.2.RC1"), "docker_runtime", False, ("upgrade", None, False)),
        (entry("foreign", None, "No record."), "docker_runtime", False, ("refuse", "foreign", False)),
    ],
)
def test_one_component(now, component, allow, expected):
    components = {"driver": entry("present", "25.5.0")}
    components[component] = now
    step = only(decide(host(**components), {component: RELEASE[component]}, allow_downgrade=allow))
    assert (step["action"], step["code"], step["reboot"]) == expected
    assert (step["from"], step["to"]) == (now["version"], RELEASE[component]["version"])
    if step["action"] != "none":
        assert step["reason"]


@pytest.mark.parametrize(
    ("family", "arch", "file", "code", "words"),
    [
        ("310p", "x86_64", RELEASE["driver"]["file"], "wrong_family", ("a2", "310p")),
        ("a2", "aarch64", RELEASE["driver"]["file"], "wrong_arch", ("x86_64", "aarch64")),
        ("a2", "x86_64", "Ascend-hdk-910b-npu-driver_25.5.2_linux-x86-64.run", "wrong_version", ("25.5.2", "25.5.0")),
        ("a2", "x86_64", "Ascend-hdk-910b-npu-firmware_25.5.0.run", "wrong_component", ("firmware", "driver")),
        ("a2", "x86_64", "driver.run", "package_unknown", ("driver.run",)),
        ("a2", "x86_64", "Ascend-hdk-910b-npu-driver-25.5.0-1.x86_64.rpm", "wrong_format", (".rpm",)),
        (None, "x86_64", RELEASE["driver"]["file"], "npu_missing", ("No NPU",)),
    ],
)
def test_refused_package(family, arch, file, code, words):
    step = only(decide(host(family, arch), {"driver": {"version": "25.5.0", "file": file}}))
    assert (step["action"], step["code"]) == ("refuse", code)
    for word in words:
        assert word in step["reason"]


def test_wrong_arch_of_cann():
    wish = {"cann_toolkit": {"version": "8.5.0", "file": "Ascend-cann-toolkit_8.5.0_linux-aarch64.run"}}
    assert only(decide(host(), wish))["code"] == "wrong_arch"


def test_several_families():
    steps = decide(host(None, families=["a2", "310p"]), RELEASE)
    by_name = {step["component"]: step for step in steps}
    for name in ("driver", "firmware", "cann_kernels"):
        assert by_name[name]["code"] == "several_families"
        assert "310p, a2" in by_name[name]["reason"]
    assert by_name["docker_runtime"]["action"] == "install"


def test_no_npu():
    steps = {step["component"]: step for step in decide(host(None), RELEASE)}
    assert steps["driver"]["code"] == steps["firmware"]["code"] == steps["cann_kernels"]["code"] == "npu_missing"
    assert steps["cann_toolkit"]["action"] == "install"


@pytest.mark.parametrize(
    ("toolkit_now", "toolkit_wish", "kernels", "action", "code"),
    [
        ("8.5.0", None, "8.5.0", "install", None),
        ("8.5.0", None, "8.5.2", "refuse", "toolkit_differs"),
        ("8.3.RC1", "8.5.0", "8.5.0", "install", None),
        ("8.5.0", "8.5.2", "8.5.0", "refuse", "toolkit_differs"),
        (None, None, "8.5.0", "refuse", "toolkit_missing"),
        (None, "8.5.0", "8.5.0", "install", None),
        # the toolkit itself is refused, so the one that stays counts
        ("9.0.0", "8.5.0", "8.5.0", "refuse", "toolkit_differs"),
    ],
)
def test_kernels_need_their_toolkit(toolkit_now, toolkit_wish, kernels, action, code):
    now = host(cann_toolkit=entry("present", toolkit_now) if toolkit_now else entry("absent"))
    wanted = {"cann_kernels": {"version": kernels}}
    if toolkit_wish:
        wanted["cann_toolkit"] = {"version": toolkit_wish}
    step = decide(now, wanted)[-1]
    assert (step["component"], step["action"], step["code"]) == ("cann_kernels", action, code)


def test_kernels_for_another_chip_are_repaired():
    now = host(cann_toolkit=entry("present", "8.5.0"), cann_kernels=entry("present", "8.5.0", package_name="Ascend-cann-310p-ops"))
    step = only(decide(now, {"cann_kernels": RELEASE["cann_kernels"]}))
    assert step["action"] == "repair"
    assert "310p" in step["reason"]
    now["components"]["cann_kernels"]["record"]["package_name"] = "Ascend-cann-910b-ops"
    assert only(decide(now, {"cann_kernels": RELEASE["cann_kernels"]}))["action"] == "none"


@pytest.mark.parametrize(
    ("driver", "wanted", "action", "code"),
    [
        (entry("absent"), ("firmware",), "refuse", "driver_missing"),
        (entry("absent"), ("firmware", "driver"), "install", None),
        (entry("half_installed"), ("firmware",), "refuse", "driver_missing"),
        (entry("foreign", "25.5.0", "No record."), ("firmware", "driver"), "refuse", "driver_missing"),
        (entry("present", "25.5.0"), ("firmware",), "install", None),
    ],
)
def test_firmware_needs_a_driver(driver, wanted, action, code):
    steps = {step["component"]: step for step in decide(host(driver=driver), {name: RELEASE[name] for name in wanted})}
    assert (steps["firmware"]["action"], steps["firmware"]["code"]) == (action, code)


@pytest.mark.parametrize("wanted", [{"driver": {"version": "latest"}}, {"driver": {"version": None}}, {"gpu": {"version": "1.0"}}])
def test_bad_wish(wanted):
    step = only(decide(host(), wanted))
    assert step["action"] == "refuse"
    assert step["code"] in ("version_unknown", "component_unknown")


def test_nothing_wanted():
    assert decide(host(), {}) == []


def test_pure():
    now, wanted = host(**CONVERGED), copy.deepcopy(RELEASE)
    before = copy.deepcopy((now, wanted))
    decide(now, wanted)
    assert (now, wanted) == before
