# SPDX-License-Identifier: GPL-3.0-or-later
"""What the catalog says against a node: system, kernel, flash."""

from pathlib import Path

import pytest
import yaml

from ansible_collections.npu.fleet.plugins.plugin_utils import _catalog

CATALOG = _catalog.load()
VECTORS = yaml.safe_load((Path(__file__).parents[2] / "vectors" / "releases.yaml").read_text(encoding="utf-8"))
DUO, PRO = "Atlas 300I Duo", "Atlas 300I Pro / 300V / 300V Pro"
KERNEL = "5.10.0-60.18.0.50.oe2203.aarch64"


def problems(family, product, system, versions, kernel=KERNEL):
    os_id, os_version, arch = system.split()
    return _catalog.minimums(CATALOG, family, product, os_id, os_version.replace("_", " "), kernel, arch, versions)


# ascend-deployer 26.0.0, module_utils/compatibility_config.py
@pytest.mark.parametrize(("family", "product", "system", "least", "below"), [
    ("310p", PRO, "ctyunos 22.06 aarch64", ("24.1.0", "7.5.0.2.220"), ("24.1.rc3", "7.5.0.1.129")),
    ("310p", PRO, "ubuntu 22.04 aarch64", ("24.1.0", "7.5.0.2.220"), ("24.1.rc3", "7.5.0.1.129")),
    ("310p", PRO, "ubuntu 22.04 x86_64", ("24.1.0", "7.5.0.2.220"), ("24.1.rc3", "7.5.0.1.129")),
    ("310p", DUO, "openEuler 22.03 aarch64", ("24.1.rc2", "7.3.0.1.231"), ("24.1.rc1", "7.1.0.6.220")),
    ("310p", DUO, "openEuler 22.03 x86_64", ("24.1.rc2", "7.3.0.1.231"), ("24.1.rc1", "7.1.0.6.220")),
    ("310p", DUO, "ubuntu 22.04 x86_64", ("24.1.rc2", "7.3.0.1.231"), ("24.1.rc1", "7.1.0.6.220")),
    ("310p", DUO, "ctyunos 22.06 aarch64", ("24.1.0", "7.5.0.2.220"), ("24.1.rc3", "7.5.0.1.129")),
    ("a2", "Atlas 800I A2", "openEuler 24.03_(LTS-SP1) aarch64", ("25.2.0", "7.7.0.2.220"), ("25.0.rc1.1", "7.7.0.1.231")),
    ("a3", "Atlas 900 A3 Pod", "openEuler 24.03 aarch64", ("25.2.0", "7.7.0.2.220"), ("25.0.rc1.3", "7.7.0.1.231")),
])
def test_least_versions(family, product, system, least, below):
    assert problems(family, product, system, dict(zip(("driver", "firmware"), least, strict=True))) == []
    found = problems(family, product, system, dict(zip(("driver", "firmware"), below, strict=True)))
    assert [(entry["severity"], entry["code"], entry["object"]) for entry in found] == [
        ("error", "below_minimum", "driver"), ("error", "below_minimum", "firmware")]
    assert least[0] in found[0]["hint"]
    assert found[0]["sources"]


def test_a_board_that_is_not_known_for_certain_is_warned_only():
    found = problems("310p", None, "ubuntu 22.04 x86_64", {"driver": "24.1.rc1"})
    assert {entry["severity"] for entry in found} == {"warning"}


def test_another_board_has_no_minimum():
    assert problems("a2", "Atlas 300T A2", "openEuler 24.03 aarch64", {"driver": "24.1.0"}) == []


def test_a_system_that_the_vendor_does_not_name_is_a_warning():
    found = problems("a2", None, "debian 12 x86_64", {"driver": "25.5.0"})
    assert [(entry["severity"], entry["code"]) for entry in found] == [("warning", "system_unlisted")]
    assert "ubuntu 22.04" in found[0]["hint"]


@pytest.mark.parametrize(("family", "system", "listed"), [
    ("a2", "ubuntu 22.04 x86_64", True),
    ("a2", "ubuntu 24.04 aarch64", True),
    ("a2", "ubuntu 24.04 x86_64", False),
    ("a3", "openEuler 22.03_(LTS-SP4) aarch64", True),
    ("a3", "openEuler 22.03_(LTS-SP2) aarch64", False),
    ("a5", "openEuler 22.03_(LTS-SP4) x86_64", True),
    ("310b", "kylin V10 aarch64", True),
    ("310b", "kylin V10 x86_64", False),
    ("a2", "bclinux 21.10U4 aarch64", True),
    ("a2", "centos 7 x86_64", False),
    ("310", "ubuntu 18.04 aarch64", False),
])
def test_systems(family, system, listed):
    assert (problems(family, None, system, {}) == []) is listed


def test_a_kernel_that_breaks_a_driver():
    found = problems("a2", None, "openEuler 24.03 aarch64", {"driver": "25.5.1"}, "6.6.0-144.0.0.1.oe2403sp3.aarch64")
    assert [entry["code"] for entry in found] == ["bad_kernel"]
    assert problems("a2", None, "openEuler 24.03 aarch64", {"driver": "25.5.1"}, "6.6.0-72.0.0.1.oe2403.aarch64") == []
    assert problems("a2", None, "openEuler 24.03 aarch64", {"driver": "25.5.0"}, "6.6.0-144.0.0.1.oe2403sp3.aarch64") == []


@pytest.mark.parametrize(("base", "driver"), VECTORS["hw_base_910b"].items())
def test_flash_of_a_board(base, driver):
    assert _catalog.hw_base_minimum(CATALOG, "a2", base) == driver
    assert _catalog.hw_base_minimum(CATALOG, "a2", int(base)) == driver


@pytest.mark.parametrize(("family", "base"), [("a2", 0), ("a2", 233), ("a2", 241), ("a3", 240), (None, "240")])
def test_no_limit_of_the_flash_is_known(family, base):
    assert _catalog.hw_base_minimum(CATALOG, family, base) is None


def test_the_hint_names_a_few_systems_only():
    """The whole list, two dozen of them, says nothing to anybody."""
    (other,) = [one for one in problems("a3", None, "alpine 3.20 x86_64", {}) if one["code"] == "system_unlisted"]
    assert other["hint"].count(",") <= 2
    assert "and 12 more" in other["hint"]
    (own,) = [one for one in problems("a3", None, "openEuler 20.03 aarch64", {}) if one["code"] == "system_unlisted"]
    assert own["hint"].endswith(
        "Known of openEuler: openeuler 22.03-SP1 aarch64, openeuler 22.03-SP4 aarch64, openeuler 24.03-SP1 aarch64.")


# os-release of EulerOS V2: ID="euleros", VERSION_ID="2.0", VERSION="2.0 (SP10)"; the service pack is not in VERSION_ID.
@pytest.mark.parametrize(("family", "system"), [
    ("a2", "euleros 2.0 aarch64"), ("910", "euleros 2.0 aarch64"), ("a2", "openEuler 22.03 aarch64"), ("a2", "ubuntu 22.04 x86_64"),
    ("a2", "kylin V10 aarch64"), ("a2", "uos 20 aarch64"),
])
def test_ordinary_systems_are_known(family, system):
    assert not [one for one in problems(family, None, system, {}) if one["code"] == "system_unlisted"]
