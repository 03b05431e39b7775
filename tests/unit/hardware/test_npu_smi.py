# SPDX-License-Identifier: GPL-3.0-or-later
"""Every parser of npu-smi's texts against fixtures of the shapes that are around, and against text that is none."""

import pytest
from hardware_samples import TESTS, sample
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _npu_smi
from ansible_collections.npu.fleet.plugins.module_utils._hardware._npu_smi import NpuSmiError

KEYS = (
    "npu_id", "chip_id", "device_id", "name", "health", "bus_id", "power_w", "temperature_c", "aicore_percent", "memory_used_mib",
    "memory_total_mib", "hbm_used_mib", "hbm_total_mib",
)
# fixture: (tool, driver), chips in the order of KEYS, processes (npu_id, chip_id, pid, name, memory_mib)
TABLES = {
    "info_310p_duo.txt": (("24.1.rc3", "24.1.rc3"), [
        (1, 0, 0, "310P3", "OK", "0000:01:00.0", None, 61, 0, 1311, 44280, None, None),
        (1, 1, 1, "310P3", "OK", "0000:01:00.0", None, 61, 0, 1702, 43693, None, None),
    ], []),
    "info_a3.txt": (("25.2.1", "25.2.1"), [
        (0, 0, 0, "Ascend910", "OK", "0000:8d:00.0", 171.2, 38, 0, 0, 0, 3140, 65536),
        (0, 1, 1, "Ascend910", "OK", "0000:8f:00.0", None, 37, 0, 0, 0, 2901, 65536),
        (1, 0, 2, "Ascend910", "OK", "0000:89:00.0", 169.4, 37, 0, 0, 0, 3118, 65536),
    ], []),
    "info_910b_gap.txt": (("24.1.0", "24.1.0"), [
        (0, 0, None, "910B1", "OK", "0000:c1:00.0", 90.4, 36, 0, 0, 0, 3402, 65536),
        (3, 0, None, "910B1", "Warning", "0000:01:00.0", 95.6, 37, 100, 0, 0, 60405, 65536),
    ], []),
    "info_310_four_chips.txt": (("21.0.4", "21.0.4.B777"), [
        (215, 0, 3, "310", "OK", "0000:8a:00.0", 12.8, 71, 0, 2703, 8192, None, None),
        (215, 1, 4, "310", "Alarm", "0000:8b:00.0", 12.8, 99, 100, 8191, 8192, None, None),
        (215, 2, 5, "310", "OK", "0000:8c:00.0", 12.8, 70, 0, 2867, 8192, None, None),
        (215, 3, 6, "310", "OK", "0000:8d:00.0", 12.8, 65, 0, 2867, 8192, None, None),
    ], []),
    "info_910a_no_hugepages.txt": (("21.0.2", "21.0.2"), [
        (7, 0, None, "910A", "UNKNOWN", "0000:3b:00.0", 64.3, -5, None, 1809, 15079, 0, 32768),
    ], []),
    "info_310b_soc.txt": (("23.0.rc1.b060", "23.0.rc1.b060"), [
        (0, 0, 0, "310B1", "Alarm", None, 0.0, 0, 0, 2376, 11578, None, None),
    ], []),
    "info_950.txt": (("25.7.rc1", "25.7.rc1.6"), [
        (0, None, None, "Ascend950PR", "Alarm", "0000:71:00.0", 205.7, 71, None, 0, 0, 90633, 114688),
        (1, None, None, "Ascend950PR", "OK", "0000:61:00.0", 207.7, 60, None, 0, 0, 130492, 131072),
    ], [(0, None, 4711, "python3", 86100)]),
    "info_processes.txt": (("23.0.rc3", "23.0.rc2.3"), [
        (0, 0, 0, "xxx", "OK", "0000:c1:00.0", 73.4, 44, 0, 4565, 15137, 30710, 32768),
        (7, 1, 15, "xxx", "OK", "0000:02:00.0", 69.1, 42, 0, 4690, 15039, 30710, 32768),
    ], [(0, 0, 139667, "sh -c a|b", 30780), (7, 1, 139090, "python", None)]),
    "info_wide.txt": (("26.0.rc1", "26.0.rc1"), [
        (0, 0, None, "910B4-1", "OK", "0000:c1:00.0", 82.6, 32, 0, 0, 0, 2871, 32768),
    ], []),
}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_table(name):
    versions, chips, processes = TABLES[name]
    assert _npu_smi.parse_info(sample(name)) == {
        "tool_version": versions[0],
        "driver_version": versions[1],
        "chips": [dict(zip(KEYS, chip, strict=True)) for chip in chips],
        "processes": [
            dict(zip(("npu_id", "chip_id", "pid", "name", "memory_mib"), process, strict=True)) for process in processes
        ],
    }


def test_every_fixture_has_a_test():
    tables = {path.name for path in (TESTS / "fixtures" / "npu_smi").glob("info_*.txt")}
    assert tables == set(TABLES)


def test_mapping_keeps_controllers_apart():
    rows = _npu_smi.parse_info_m(sample("info-m.txt"))
    assert [(row["npu_id"], row["chip_id"], row["logic_id"], row["phy_id"], row["name"]) for row in rows] == [
        (0, 0, 0, 8, "Ascend910"), (0, 1, 1, 9, "Ascend910"), (0, 2, None, None, "Mcu"),
    ]


def test_mapping_with_a_blank_in_the_name():
    assert _npu_smi.parse_info_m(sample("info-m_spaced_name.txt")) == [
        {"npu_id": 32, "chip_id": 0, "logic_id": 5, "phy_id": None, "name": "Ascend 910A"}
    ]


def test_list():
    assert _npu_smi.parse_info_l(sample("info-l.txt")) == {"total_count": 2, "npus": [
        {"npu_id": 8, "chip_count": 4, "product_name": "IT21DMPB01", "serial_number": None},
        {"npu_id": 32, "chip_count": 1, "product_name": None, "serial_number": None},
    ]}


def test_board():
    board = _npu_smi.parse_info_board(sample("info-t-board.txt"))
    expected = {
        "npu_id": 4, "product_name": None, "serial_number": "0000000000000001", "software_version": "25.5.0",
        "firmware_version": "7.8.0.5.216", "compatibility": "OK", "board_id": "0x34", "bus_id": "0000:c1:00.0", "pci_vendor_id": "19e5",
        "pci_device_id": "d802", "subsystem_vendor_id": "19e5", "subsystem_device_id": "3000", "chip_count": 1, "faulty_chip_count": None,
    }
    assert {key: board[key] for key in expected} == expected


def test_health():
    assert _npu_smi.parse_info_health(sample("info-t-health_ok.txt")) == {
        "npu_id": 0, "health": "OK", "error_codes": [], "error_information": None,
    }
    alarm = _npu_smi.parse_info_health(sample("info-t-health_alarm.txt"))
    assert (alarm["health"], alarm["error_codes"]) == ("Alarm", ["80E3A203", "80E18005"])
    assert alarm["error_information"].endswith("Chip Hardware, event state=The function of obtaining the current is abnormal")


def test_product():
    assert _npu_smi.parse_info_product(sample("info-t-product.txt")) == {
        "npu_id": 0, "chip_count": 1, "chips": [{"chip_id": 0, "product_type": "Atlas 200I A2"}],
    }


PARSERS = [
    _npu_smi.parse_info, _npu_smi.parse_info_m, _npu_smi.parse_info_l, _npu_smi.parse_info_board, _npu_smi.parse_info_health,
    _npu_smi.parse_info_product,
]


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(("name", "cause", "ret"), [
    ("err_dcmi_init.txt", "dcmi module initialize failed. ret is -8005", -8005),
    ("err_card.txt", "Invalid card id.", None),
])
def test_messages_of_the_vendor_are_errors_with_their_cause(parse, name, cause, ret):
    with pytest.raises(NpuSmiError) as caught:
        parse(sample(name))
    assert (caught.value.code, caught.value.cause, caught.value.ret) == ("npu_smi_failed", cause, ret)


@pytest.mark.parametrize(("text", "cause"), [
    ("dcmi model initialized failed, because the device is used. ret is -8020", "RESOURCE_OCCUPIED"),
    ("npu get board type failed. ret is -9005", "-9005"),
    ("There is no NPU card on this server.", "no NPU card"),
    ("This device does not support querying board.", "does not support"),
])
def test_other_messages(text, cause):
    with pytest.raises(NpuSmiError) as caught:
        _npu_smi.parse_info(text)
    assert cause in str(caught.value)
    assert caught.value.code == "npu_smi_failed"


GOOD = sample("info_910b_gap.txt")
BROKEN = {
    "nothing": ("", "no table"),
    "blank": (" \n\n", "no table"),
    "other words": ("Segmentation fault\n", "line 1"),
    "only the head": ("\n".join(GOOD.split("\n")[:6]), "before a chip is complete"),
    "half a chip": ("\n".join(GOOD.split("\n")[:7]), "before a chip is complete"),
    "half a chip, then a line": ("\n".join(GOOD.split("\n")[:7] + GOOD.split("\n")[5:6]), "second row of a chip is missing"),
    "cut in a row": (GOOD[: GOOD.index("60405")], "no row of the table"),
    "a value too many": (GOOD.replace("90.4 ", "90.4 1 "), "4 values where the header has 3"),
    "a value too few": (GOOD.replace("90.4", "    "), "2 values where the header has 3"),
    "a word for a number": (GOOD.replace("90.4", "hot "), "'hot' is no number"),
    "a pair without a slash": (GOOD.replace("3402 / 65536", "3402"), "is no pair"),
    "a bus id that is none": (GOOD.replace("0000:C1:00.0", "0000:C1:00  "), "is no PCI address"),
    "a health that is no word": (GOOD.replace("| OK  ", "| 100 "), "is no health word"),
    "no NPU id": (GOOD.replace("| 0     910B1", "| -     910B1"), "no NPU id"),
    "a header without Health": (GOOD.replace("Health", "State "), "names no NPU"),
    "no second header": (GOOD.replace("Bus-Id", "Bus   "), "no Bus-Id"),
    "no versions": (GOOD.replace("Version:", "        "), "versions of tool and driver"),
    "a cell too few": (GOOD.replace("| Warning       | ", "| "), "2 cells where the header has 3"),
    "a process without an id": (sample("info_processes.txt").replace("139667", "pid   "), "is no number"),
    "a process row cut": (sample("info_950.txt").replace("| python3                  | 86100                    |", "|"), "cells"),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_text_that_is_no_table_is_an_error_that_names_the_line(name):
    text, why = BROKEN[name]
    with pytest.raises(NpuSmiError) as caught:
        _npu_smi.parse_info(text)
    assert caught.value.code == "npu_smi_unreadable"
    assert why in str(caught.value)
    assert isinstance(caught.value.line, int)


def test_error_names_the_right_line():
    with pytest.raises(NpuSmiError) as caught:
        _npu_smi.parse_info(GOOD.replace("95.6", "soso"))
    assert caught.value.line == 10
    assert "line 10" in str(caught.value)
    assert "910B1" in str(caught.value)


@pytest.mark.parametrize(("parse", "text"), [
    (_npu_smi.parse_info_m, "NPU ID  Chip ID  Chip Name\n0  0\n"),
    (_npu_smi.parse_info_m, "NPU ID  Chip ID  Chip Name\n"),
    (_npu_smi.parse_info_m, "0  0  910B\n"),
    (_npu_smi.parse_info_m, "NPU ID  Chip ID  Chip Name\nx  0  910B\n"),
    (_npu_smi.parse_info_l, "NPU ID : 0\n"),
    (_npu_smi.parse_info_l, "Total Count : many\n"),
    (_npu_smi.parse_info_l, "Chip Count : 1\n"),
    (_npu_smi.parse_info_board, "Software Version : 1\n"),
    (_npu_smi.parse_info_board, "no colon\n"),
    (_npu_smi.parse_info_board, ""),
    (_npu_smi.parse_info_health, "Error Code : NA\n"),
    (_npu_smi.parse_info_product, "Product Type : x\n"),
])
def test_other_parsers_refuse_text_they_do_not_understand(parse, text):
    with pytest.raises(NpuSmiError):
        parse(text)


@pytest.mark.parametrize(("printed", "normal"), [
    ("0000:C1:00.0", "0000:c1:00.0"), ("c1:00.0", "0000:c1:00.0"), ("00000001:0A:1f.7", "0001:0a:1f.7"), (" 0000:0d:00.1 ", "0000:0d:00.1"),
    ("NA", None), ("-", None), ("0000:C1:00", None), ("0000:C1:00.8", None), ("", None),
])
def test_normal_bus_id(printed, normal):
    assert _npu_smi.normal_bus_id(printed) == normal


FIXTURES = [sample(name) for name in sorted(TABLES)]


@st.composite
def damaged(draw):
    """A good table with a piece cut out, doubled or replaced."""
    text = draw(st.sampled_from(FIXTURES))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 200)))
    return text[:start] + draw(st.one_of(st.just(""), st.just(text[start:end] * 2), st.text(max_size=20))) + text[end:]


@given(st.one_of(st.text(), damaged()))
def test_any_text_is_read_or_refused(text):
    for parse in PARSERS:
        try:
            answer = parse(text)
        except NpuSmiError:
            continue
        assert answer
    try:
        answer = _npu_smi.parse_info(text)
    except NpuSmiError:
        return
    assert answer["chips"]
    for chip in answer["chips"]:
        assert isinstance(chip["npu_id"], int)
        assert sorted(chip) == sorted(KEYS)
