# SPDX-License-Identifier: GPL-3.0-or-later
"""The parsers against a folder of public npu-smi output: `make test-shared SHARED=DIR` (DIR/npu-smi/*.txt, or one folder deeper).

The samples are other people's texts and stay outside this repository; the first line of each names its source.
"""

import os
import pathlib

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _npu_smi
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import family_of_name

SHARED = pathlib.Path(os.environ["NPU_SHARED"])
FOLDER = next(folder for folder in (SHARED / "npu-smi", SHARED / "samples" / "npu-smi", SHARED) if any(folder.glob("info_*.txt")))
PARSERS = {
    "info_": _npu_smi.parse_info, "info-m": _npu_smi.parse_info_m, "info-l": _npu_smi.parse_info_l,
    "info-t-board": _npu_smi.parse_info_board, "info-t-health": _npu_smi.parse_info_health, "info-t-product": _npu_smi.parse_info_product,
}
# Queries that nothing here makes: topo, usages, memory, common, proc-mem, current-fault-event, help.
NOT_READ = ("info-t-topo", "info-t-usages", "info-t-memory", "info-t-common", "info-t-proc-mem", "info-t-current-fault-event", "info-h")


def text(name):
    first, rest = (FOLDER / name).read_text(encoding="utf-8").split("\n", 1)
    assert first.startswith("# source:")
    return rest


def names(start):
    return sorted(path.name for path in FOLDER.glob(start + "*.txt"))


# file: tool, driver, number of chips, number of processes, some chip: its place in the list and its values
TABLES = {
    "info_310B4_23.0.0_Alarm.txt": ("23.0.0", "23.0.0", 1, 0, 0, {
        "npu_id": 0, "chip_id": 0, "device_id": 0, "name": "310B4", "health": "Alarm", "bus_id": None, "power_w": 0.0, "temperature_c": 65,
        "aicore_percent": 0, "memory_used_mib": 3628, "memory_total_mib": 15609, "hbm_used_mib": None, "hbm_total_mib": None}),
    "info_310B4_25.0.rc1.1_OK.txt": ("25.0.rc1.1", "25.0.rc1.1", 1, 0, 0, {
        "name": "310B4", "health": "OK", "bus_id": None, "power_w": 7.4, "memory_used_mib": 1331, "memory_total_mib": 3514}),
    "info_310B_23.0.rc1.b060_fixture.txt": ("23.0.rc1.b060", "23.0.rc1.b060", 1, 0, 0, {"name": "310B", "memory_total_mib": 11578}),
    "info_310P3_22.0.2_hw23054.txt": ("22.0.0", "22.0.2", 1, 0, 0, {
        "bus_id": "0000:af:00.0", "power_w": 17.0, "memory_used_mib": 934, "memory_total_mib": 23054}),
    "info_310P3_22.0.3.txt": ("22.0.0", "22.0.3", 1, 0, 0, {"power_w": 17.1, "memory_used_mib": 3292, "memory_total_mib": 21527}),
    "info_310P3_22.0.4_power-NA_npuid2144.txt": ("22.0.2", "22.0.4", 1, 0, 0, {
        "npu_id": 2144, "power_w": None, "temperature_c": 47, "bus_id": "0000:86:00.0"}),
    "info_310P3_24.1.0.1_1npu.txt": ("24.1.0.1", "24.1.0.1", 1, 0, 0, {"npu_id": 1, "device_id": 0, "memory_total_mib": 44215}),
    "info_310P3_25.2.1_npuid-0-32-32768_cut.txt": ("25.2.1", "25.2.1", 3, 0, 2, {
        "npu_id": 32768, "chip_id": 0, "device_id": 2, "bus_id": "0000:81:00.0", "memory_used_mib": 19562, "memory_total_mib": 21527}),
    "info_310P3_25.2.3_npuid224.txt": ("25.2.3", "25.2.3", 1, 0, 0, {"npu_id": 224, "temperature_c": 71, "memory_used_mib": 1263}),
    "info_310P3_300IDuo_25.5.1_4npu_8chip_dash.txt": ("25.5.1", "25.5.1", 8, 0, 5, {
        "npu_id": 4, "chip_id": 1, "device_id": 5, "bus_id": "0000:81:00.0", "temperature_c": 48, "memory_used_mib": 1105}),
    "info_310_21.0.4_B030_4chip.txt": ("21.0.4", "21.0.4.B030", 4, 0, 1, {
        "npu_id": 6, "chip_id": 1, "device_id": 4, "name": "310", "bus_id": "0000:8a:00.0", "power_w": 12.8, "memory_used_mib": 2867}),
    "info_910A_21.0.2_2npu.txt": ("21.0.2", "21.0.2", 2, 0, 1, {
        "npu_id": 4, "device_id": None, "name": "910A", "power_w": 65.6, "memory_used_mib": 1809, "hbm_used_mib": 0,
        "hbm_total_mib": 32768}),
    "info_910A_23.0.5_masked-name_elided.txt": ("23.0.5", "23.0.5", 2, 0, 1, {"npu_id": 7, "name": "xxx", "bus_id": "0000:3d:00.0"}),
    "info_910A_24.1.rc1_masked-name_elided.txt": ("24.1.rc1", "24.1.rc1", 1, 0, 0, {"npu_id": 7, "memory_used_mib": 2505}),
    "info_910A_tool23.0.rc3_drv23.0.rc2.3_8npu_procs.txt": ("23.0.rc3", "23.0.rc2.3", 8, 8, 3, {
        "npu_id": 3, "memory_used_mib": 3845, "memory_total_mib": 15039, "hbm_used_mib": 30709, "hbm_total_mib": 32768}),
    "info_910B2C_25.5.2_16npu-cut.txt": ("25.5.2", "25.5.2", 3, 0, 2, {"npu_id": 15, "name": "910B2C", "hbm_used_mib": 3401}),
    "info_910B4-1_25.0.rc1.1_cut.txt": ("25.0.rc1.1", "25.0.rc1.1", 3, 0, 0, {"name": "910B4-1", "hbm_used_mib": 3403}),
    "info_910B4-1_25.2.0_cut.txt": ("25.2.0", "25.2.0", 2, 0, 1, {"bus_id": "0000:c2:00.0", "power_w": 89.4, "hbm_used_mib": 3436}),
    "info_910B4_26.0.rc1_wide.txt": ("26.0.rc1", "26.0.rc1", 1, 0, 0, {"name": "910B4", "power_w": 82.6, "hbm_used_mib": 2871}),
    "info_950PR_25.7.rc1.6_1npu_excerpt.txt": ("25.7.rc1.6", "25.7.rc1.6", 1, 0, 0, {
        "npu_id": 0, "chip_id": None, "device_id": None, "name": "Ascend950PR", "power_w": 195.6, "hbm_used_mib": 5239,
        "hbm_total_mib": 131072}),
    "info_950PR_25.7.rc1_Alarm_cut.txt": ("25.7.rc1", "25.7.rc1", 2, 0, 1, {"npu_id": 1, "health": "Alarm", "hbm_used_mib": 30492}),
    "info_950_doc_placeholder.txt": ("x.x.x", "x.x.x", 1, 0, 0, {"name": "xxx", "power_w": 204.4, "hbm_total_mib": 86016}),
    "info_A3_Ascend910_25.0.rc1_16die_idle.txt": ("25.0.rc1", "25.0.rc1", 16, 0, 15, {
        "npu_id": 7, "chip_id": 1, "device_id": 15, "power_w": None, "temperature_c": 48, "bus_id": "0000:83:00.0", "hbm_used_mib": 2883}),
    "info_A3_Ascend910_25.2.0_busy_cut.txt": ("25.2.0", "25.2.0", 2, 0, 0, {
        "aicore_percent": 7, "power_w": 211.3, "hbm_used_mib": 61609, "hbm_total_mib": 65536}),
    "info_A3_Ascend910_25.5.1_npu4-only.txt": ("25.5.1", "25.5.1", 2, 0, 1, {"npu_id": 4, "chip_id": 1, "device_id": 9}),
    "info_A3_two-dies_masked_doc.txt": ("xxx.xxx.xxx", "xxx.xxx.xxx", 2, 0, 1, {
        "npu_id": 0, "chip_id": 1, "device_id": 0, "power_w": None, "hbm_used_mib": 3130}),
}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_info(name):
    tool, driver, chips, processes, place, values = TABLES[name]
    answer = _npu_smi.parse_info(text(name))
    assert (answer["tool_version"], answer["driver_version"]) == (tool, driver)
    assert (len(answer["chips"]), len(answer["processes"])) == (chips, processes)
    assert {key: answer["chips"][place][key] for key in values} == values
    ids = [(chip["npu_id"], chip["chip_id"]) for chip in answer["chips"]]
    assert len(set(ids)) == len(ids)
    if processes:
        assert answer["processes"][3] == {"npu_id": 3, "chip_id": 0, "pid": 139372, "name": "python", "memory_mib": 30780}


@pytest.mark.parametrize(("word", "family"), [
    ("310B", "310b"), ("310P3", "310p"), ("310_", "310"), ("910A", "910"), ("910B", "a2"), ("A3", "a3"), ("950", "a5"),
])
def test_family_by_the_printed_name(word, family):
    found = {
        family_of_name(chip["name"])
        for name in names("info_" + word) for chip in _npu_smi.parse_info(text(name))["chips"] if chip["name"] != "xxx"
    }
    assert found == {family}


def test_mappings():
    read = {name: _npu_smi.parse_info_m(text(name)) for name in names("info-m")}
    rows = {name: [(row["npu_id"], row["chip_id"], row["logic_id"], row["phy_id"]) for row in table] for name, table in read.items()}
    assert rows["info-m_310_20.2.0_MiniD.txt"] == [(215, chip, chip, None) for chip in range(4)]
    assert rows["info-m_910A_23.0.5_8npu.txt"] == [(npu, 0, npu, None) for npu in range(8)]
    assert rows["info-m_910B3_with-Mcu_cut.txt"] == [(0, 0, 0, None), (0, 1, None, None), (1, 0, 1, None)]
    assert rows["info-m_A3_Ascend910_fixture.txt"] == [(0, 0, 0, 0), (0, 1, 1, 1), (0, 2, None, None), (1, 0, 2, 2)]
    families = {name: {family_of_name(row["name"]) for row in table if row["logic_id"] is not None} for name, table in read.items()}
    assert families == {
        "info-m_310_20.2.0_MiniD.txt": {"310"}, "info-m_910A_23.0.5_8npu.txt": {"910"}, "info-m_910B3_25.5.1_short.txt": {"a2"},
        "info-m_910B3_with-Mcu_cut.txt": {"a2"}, "info-m_A3_Ascend910_fixture.txt": {"a3"},
    }


def test_lists():
    read = {name: _npu_smi.parse_info_l(text(name)) for name in names("info-l")}
    assert {name: (answer["total_count"], len(answer["npus"])) for name, answer in read.items()} == {
        "info-l_310_A300-3010_doc.txt": (1, 1), "info-l_910B3_25.5.1_short.txt": (8, 2), "info-l_950_doc.txt": (1, 1),
    }
    assert read["info-l_310_A300-3010_doc.txt"]["npus"][0]["npu_id"] == 8
    assert read["info-l_310_A300-3010_doc.txt"]["npus"][0]["chip_count"] == 4


def test_boards():
    read = {name: _npu_smi.parse_info_board(text(name)) for name in names("info-t-board")}
    keys = ("software_version", "firmware_version", "bus_id", "pci_device_id", "subsystem_device_id", "compatibility")
    assert {name: tuple(board[key] for key in keys) for name, board in read.items()} == {
        "info-t-board_310_SoC_22.0.4.txt": ("22.0.4", "1.84.15.1.310", None, None, None, None),
        "info-t-board_910A_23.0.5.txt": ("23.0.5", "7.1.0.7.220", "0000:61:00.0", "d801", "0100", "OK"),
        "info-t-board_950_doc.txt": ("xxx", "xxx", "0000:f1:00.0", "d806", "4004", "OK"),
    }


def test_health():
    read = {name: _npu_smi.parse_info_health(text(name)) for name in names("info-t-health")}
    assert {name: (answer["health"], answer["error_codes"]) for name, answer in read.items()} == {
        "info-t-health-c0_910A_23.0.5_OK.txt": ("OK", []),
        "info-t-health_310B4_23.0.0_Alarm_reformatted.txt": ("Alarm", ["80E3A203"]),
        "info-t-health_950_doc.txt": ("OK", []),
    }


def test_product():
    answer = _npu_smi.parse_info_product(text("info-t-product_310B_fixture.txt"))
    assert answer["chips"] == [{"chip_id": 0, "product_type": "Atlas 500 A2"}]


@pytest.mark.parametrize(("name", "ret"), [("err_dcmi_-8005_no-device.txt", -8005), ("err_invalid-card-id_910A_23.0.x.txt", None)])
def test_error_texts(name, ret):
    with pytest.raises(_npu_smi.NpuSmiError) as caught:
        _npu_smi.parse_info(text(name))
    assert (caught.value.code, caught.value.ret) == ("npu_smi_failed", ret)
    assert caught.value.cause


def test_no_sample_is_left_out():
    assert set(names("info_")) == set(TABLES)
    for name in names("info-"):
        assert name.startswith(NOT_READ) or any(name.startswith(start) for start in PARSERS), name


@pytest.mark.parametrize("start", sorted(PARSERS))
def test_a_parser_refuses_the_samples_of_the_others(start):
    for other in PARSERS:
        for name in [] if other == start else names(other):
            with pytest.raises(_npu_smi.NpuSmiError):
                print(name, PARSERS[start](text(name)))
