# SPDX-License-Identifier: GPL-3.0-or-later
"""Vendor file names, against tests/vectors/file_names.yaml."""

from pathlib import Path

import pytest
import yaml

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _names

VECTORS = yaml.safe_load((Path(__file__).parents[2] / "vectors" / "file_names.yaml").read_text(encoding="utf-8"))
CASES = [dict(entry, naming=naming) for naming, group in VECTORS.items() for entry in group["names"]]


def test_the_vectors_are_whole():
    assert len(CASES) == 56


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_parse(case):
    for spelling in (case["name"], case["name"].upper(), case["name"].lower()):
        found = _names.parse(spelling)
        assert found["version"].lower() == case["version"].lower()
        for field in ("component", "family", "arch", "naming"):
            assert found[field] == case[field], field
        assert (found["soc"], found["custom"]) == (case.get("soc", False), case.get("custom", False))
    assert _names.parse(case["name"])["version"] == case["version"]


@pytest.mark.parametrize("case", [case for case in CASES if case["again"]], ids=lambda case: case["name"])
def test_back_again(case):
    assert _names.file_name(case["component"], case["version"], case["family"], case["arch"] or "x86_64") == case["name"]


FAMILIES = ("310", "310p", "310b", "910", "a2", "a3", "a5")
VERSIONS = {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann_toolkit": "8.5.0", "nnal": "8.5.0", "docker_runtime": "7.3.0"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("component", sorted(VERSIONS))
def test_every_name_we_make_is_read(component, family, arch):
    found = _names.parse(_names.file_name(component, VERSIONS[component], family, arch))
    assert (found["component"], found["version"]) == (component, VERSIONS[component])
    assert found["family"] in ((family,) if component in ("driver", "firmware") else (None,))
    assert found["arch"] in ((None,) if component == "firmware" else (arch,))


@pytest.mark.parametrize(
    ("component", "version", "family", "arch", "name"),
    [
        ("driver", "25.5.0", "a2", "x86_64", "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"),
        ("driver", "25.5.0", "a3", "aarch64", "Atlas-A3-hdk-npu-driver_25.5.0_linux-aarch64.run"),
        ("driver", "24.1.0", "310", "x86_64", "A300-3010-npu-driver_24.1.0_linux-x86_64.run"),
        ("firmware", "7.8.0.5.216", "a2", "x86_64", "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run"),
        ("cann_toolkit", "8.5.0", None, "x86_64", "Ascend-cann-toolkit_8.5.0_linux-x86_64.run"),
        ("cann_kernels", "8.0.RC2", "a2", "x86_64", "Ascend-cann-kernels-910b_8.0.RC2_linux.run"),
        ("cann_kernels", "8.5.0.alpha001", "a2", "x86_64", "Ascend-cann-kernels-910b_8.5.0.alpha001_linux-x86_64.run"),
        ("cann_kernels", "8.5.0-beta.1", "a3", "aarch64", "Ascend-cann-A3-ops_8.5.0-beta.1_linux-aarch64.run"),
        ("cann_kernels", "8.5.0", "a2", "x86_64", "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run"),
        ("cann_nnrt", "8.3.RC1", None, "aarch64", "Ascend-cann-nnrt_8.3.RC1_linux-aarch64.run"),
        ("docker_runtime", "7.3.0", None, "x86_64", "Ascend-docker-runtime_7.3.0_linux-x86_64.run"),
    ],
)
def test_file_name(component, version, family, arch, name):
    assert _names.file_name(component, version, family, arch) == name


@pytest.mark.parametrize(
    ("component", "version", "family", "arch"),
    [
        ("driver", "25.5.0", None, "x86_64"),
        ("driver", "25.5.0", "a9", "x86_64"),
        ("driver", "25.5.0", "a2", None),
        ("driver", "25.5.0", "a2", "riscv64"),
        ("cann_nnrt", "8.5.0", None, "x86_64"),
        ("cann_kernels", "8.5.0", "310", "x86_64"),
        ("mindspeed", "1.0", None, "x86_64"),
    ],
)
def test_no_such_package(component, version, family, arch):
    with pytest.raises(FleetError) as caught:
        _names.file_name(component, version, family, arch)
    assert caught.value.code == "package_name_unknown"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "driver.run",
        "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run.part",
        "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run\n",
        "Ascend-hdk-910z-npu-driver_25.5.0_linux-x86-64.run",
        "Ascend-hdk-910b-npu-driver__linux-x86-64.run",
        "../Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run",
        "Ascend-cann-toolkit_8.5.0;id_linux-x86_64.run",
        "Ascend-hdk-910b-npu-driver_25.5.0_linux-riscv64.run",
    ],
)
def test_unknown_name(name):
    with pytest.raises(FleetError) as caught:
        _names.parse(name)
    assert caught.value.code == "package_unknown"
