# SPDX-License-Identifier: GPL-3.0-or-later
"""Families by the names that npu-smi and DCMI print."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES, device_id, family_of_name, family_of_pci


@pytest.mark.parametrize(("name", "family"), [
    ("310", "310"), ("MiniD", "310"), ("Ascend310", "310"),
    ("310P1", "310p"), ("310P3", "310p"), ("Ascend310P3", "310p"), ("I2", "310p"), ("310P3vir04", "310p"),
    ("310B", "310b"), ("310B1", "310b"), ("310B4", "310b"), ("Ascend310B4", "310b"),
    ("910A", "910"), ("Ascend 910A", "910"), ("910ProA", "910"), ("910ProB", "910"), ("910PremiumA", "910"), ("910", "910"),
    ("910B", "910"), ("Ascend 910B", "910"),  # without a digit: first generation
    ("910B1", "a2"), ("910B2", "a2"), ("910B2C", "a2"), ("910B3", "a2"), ("910B4", "a2"), ("910B4-1", "a2"), ("Ascend 910B3", "a2"),
    ("A2G3", "a2"), ("Ascend910B3-vir05_1c_16g", "a2"),
    ("Ascend910", "a3"), ("Ascend910_9392", "a3"), ("910_9362", "a3"),
    ("Ascend950PR", "a5"), ("Ascend950DT", "a5"), ("950PR", "a5"),
    ("Ascend950PR_9579", "a5"), ("Ascend950DT_95A1", "a5"), ("951PR", None),
    ("xxx", None), ("", None), (None, None), ("NA", None), ("Mcu", None), ("911B3", None), ("910C9", None), ("310Q", None),
])
def test_family_of_name(name, family):
    assert family_of_name(name) == family


def test_every_listed_name_leads_to_its_family():
    assert {name: family_of_name(name) for family in FAMILIES.values() for name in family["names"]} == {
        name: key for key, family in FAMILIES.items() for name in family["names"]
    }


def test_family_of_pci():
    assert (family_of_pci("d802"), family_of_pci("D500"), family_of_pci("d804"), family_of_pci(None)) == ("a2", "310p", None, None)


@pytest.mark.parametrize(("family", "resource", "identity"), [
    ("910", "huawei.com/Ascend910", "Ascend910-3"), ("a2", "huawei.com/Ascend910", "Ascend910-3"),
    ("a3", "huawei.com/Ascend910", "Ascend910-3"),
    ("310p", "huawei.com/Ascend310P", "Ascend310P-3"), ("310", "huawei.com/Ascend310", "Ascend310-3"),
    ("310b", "huawei.com/Ascend310", "Ascend310-3"), ("a5", "huawei.com/npu", "npu-3"),
])
def test_names_towards_kubernetes(family, resource, identity):
    assert (FAMILIES[family]["resource"], device_id(family, 3)) == (resource, identity)


def test_manager_nodes():
    hosts = {key: [node["host"] for node in family["managers"]] for key, family in FAMILIES.items()}
    assert hosts["a2"] == hosts["910"] == hosts["310p"] == ["davinci_manager", "devmm_svm", "hisi_hdc", "dvpp_cmdlist"]
    assert hosts["a5"] == ["davinci_manager", "hisi_hdc"]
    for key, family in FAMILIES.items():
        assert [node["container"] for node in family["managers"] if node["required"]] == ["davinci_manager"], key
    assert FAMILIES["310b"]["managers"][0] == {"host": "davinci_manager_docker", "container": "davinci_manager", "required": True}
