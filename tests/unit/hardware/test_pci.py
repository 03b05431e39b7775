# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI ids against the vectors with their sources, and the scan against a made sysfs."""

import pytest
import yaml
from hardware_samples import TESTS

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _pci
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES, family_of_pci

VECTORS = yaml.safe_load((TESTS / "vectors" / "pci.yaml").read_text())
ROWS = VECTORS["rows"]


def ids(row):
    return "{vendor}:{device}-{sub_vendor}:{sub_device}".format(**row)


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_row(row, tree):
    sub = (row["sub_vendor"] or "19e5", row["sub_device"] or "9999")
    tree.function("0000:c1:00.0", row["device"], sub, vendor=row["vendor"], class_id=f"0x{row['class']}00")
    (function,) = _pci.scan(str(tree.sysfs))
    assert (function["kind"], function["family"], function["product"]) == (row["kind"], row["family"], row["product"])
    if row["kind"] == "chip":
        assert family_of_pci(row["device"].upper()) == row["family"]


@pytest.mark.parametrize("row", VECTORS["others"], ids=lambda row: row["why"])
def test_other_functions(row):
    assert _pci.classify(row["vendor"], row["device"], row["class"])[0] == row["kind"]


def test_each_row_has_a_known_source():
    assert all(set(row["sources"]) <= set(VECTORS["sources"]) and row["sources"] for row in ROWS)


def test_no_id_is_known_to_the_code_only():
    known = {(row["device"], row["sub_vendor"], row["sub_device"]) for row in ROWS if row["sub_vendor"]}
    assert set(_pci.PRODUCTS) == known
    assert set(_pci.DEVICES) | set(_pci.VIRTUAL_DEVICES) == {row["device"] for row in ROWS}
    assert {device for family in FAMILIES.values() for device in family["pci"]} == {key for key, family in _pci.DEVICES.items() if family}


def test_scan_sees_ids_node_and_driver(tree):
    tree.function("0000:c2:00.0", "d802", numa="1", driver="devdrv_device_driver")
    tree.function("0000:01:00.0", "d802", numa="-1")
    tree.function("0000:00:00.0", "1237", vendor="8086", class_id="0x060000")
    first, second = _pci.scan(str(tree.sysfs))
    assert first == {
        "address": "0000:01:00.0", "kind": "chip", "family": "a2", "vendor": "19e5", "device": "d802", "sub_vendor": "19e5",
        "sub_device": "3000", "class": "1200", "numa_node": None, "driver": None, "product": None,
    }
    assert (second["address"], second["numa_node"], second["driver"]) == ("0000:c2:00.0", 1, "devdrv_device_driver")


def test_virtual_function_is_no_chip(tree):
    tree.function("0000:c1:00.0", "d802")
    (tree.function("0000:c1:01.0", "d802") / "physfn").symlink_to("../0000:c1:00.0")
    tree.function("0000:c1:01.1", "d805")
    assert [function["kind"] for function in _pci.scan(str(tree.sysfs))] == ["chip", "virtual", "virtual"]


def test_function_that_vanishes_and_missing_tree(tree, tmp_path):
    (tree.sysfs / "bus/pci/devices/0000:c1:00.0").mkdir()
    assert _pci.scan(str(tree.sysfs)) == []
    assert _pci.scan(str(tmp_path / "nowhere")) == []
