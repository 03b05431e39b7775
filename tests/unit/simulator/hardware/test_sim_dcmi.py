# SPDX-License-Identifier: GPL-3.0-or-later
"""libdcmi.so through ctypes: layouts, numbers, and that a changed state file shows in the next call."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
import time
from ctypes import byref, c_int, c_uint
from pathlib import Path

import npu_sim
import pytest
from dcmi_binding import (
    BoardInfo,
    ChipInfo,
    ChipInfoV2,
    Dcmi,
    DieId,
    EccInfo,
    Elabel,
    HbmInfo,
    IpAddr,
    MemoryInfo,
    PcieInfo,
    PcieInfoAll,
    ProcMem,
)

PROMISED = """
    init get_card_list get_card_num_list get_device_num_in_card get_device_id_in_card get_all_device_count get_device_type
    get_device_logic_id get_device_phyid_from_logicid get_device_logicid_from_phyid get_card_id_device_id_from_logicid
    get_card_id_device_id_from_phyid get_dcmi_version get_driver_version get_device_chip_info get_device_chip_info_v2
    get_device_board_info get_product_type get_card_elabel_v2 get_device_elabel_info get_device_die_v2 get_device_pcie_info
    get_device_pcie_info_v2 get_device_health get_device_errorcode_v2 get_device_errorcode_string get_driver_health
    get_device_network_health get_device_boot_status get_device_power_info get_device_temperature get_device_voltage
    get_device_frequency get_device_utilization_rate get_device_hbm_info get_device_memory_info_v3 get_device_ecc_info
    get_device_resource_info get_affinity_cpu_info_by_device_id get_topo_info_by_device_id get_device_ip
    get_device_compatibility get_device_sensor_info get_device_info subscribe_fault_event
"""
INNER, BAD_ID, GONE, UNSUPPORTED, INVALID = -8005, -8007, -8008, -8255, -8001


@pytest.fixture
def dcmi(library, state):
    binding = Dcmi(library)
    assert binding.call("init") == 0
    return binding


@pytest.mark.parametrize(
    ("kind", "size"),
    [(ChipInfo, 100), (ChipInfoV2, 132), (BoardInfo, 16), (PcieInfo, 28), (PcieInfoAll, 64), (Elabel, 1280), (DieId, 20), (HbmInfo, 32)]
    + [(MemoryInfo, 112), (EccInfo, 28), (ProcMem, 16), (IpAddr, 20)],
)
def test_binding_has_the_published_sizes(kind, size):
    """The header asserts the same sizes at compile time; here they guard the binding that the other tests trust."""
    assert ctypes.sizeof(kind) == size


def test_exports_every_promised_function(library):
    shown = subprocess.run(["nm", "-D", "--defined-only", str(library)], stdout=subprocess.PIPE, check=True).stdout.decode()
    exported = {line.split()[-1] for line in shown.splitlines()}
    assert {f"dcmi_{name}" for name in PROMISED.split()} <= exported
    assert all(name.startswith(("dcmi_", "dcmiv2_")) for name in exported)


def test_lists_cards_and_converts_ids(dcmi, state):
    npu_sim.set_values({"chips.2.card_id": 7, "chips.2.phy_id": 9}, state)
    assert dcmi.cards() == (0, [0, 1, 7, 3, 4, 5, 6])  # chips 2 and 7 are two chips of one card now
    npu_sim.set_values({"chips.7.device_id": 1}, state)
    assert dcmi.one("get_device_num_in_card", c_int, 7) == (0, 2)
    assert dcmi.one("get_all_device_count", c_int) == (0, 8)
    logic = c_int()
    assert dcmi.call("get_device_logic_id", byref(logic), 7, 1) == 0
    assert logic.value == 7
    assert dcmi.one("get_device_phyid_from_logicid", c_uint, 2) == (0, 9)
    assert dcmi.one("get_device_logicid_from_phyid", c_uint, 9) == (0, 2)
    card, device = c_int(), c_int()
    assert dcmi.call("get_card_id_device_id_from_phyid", byref(card), byref(device), 9) == 0
    assert (card.value, device.value) == (7, 0)
    assert dcmi.call("get_card_id_device_id_from_logicid", byref(card), byref(device), 7) == 0
    assert (card.value, device.value) == (7, 1)
    assert dcmi.one("get_device_phyid_from_logicid", c_uint, 8)[0] == BAD_ID


def test_tells_the_mcu_from_the_chip(dcmi):
    most, mcu, cpu = c_int(), c_int(), c_int()
    assert dcmi.call("get_device_id_in_card", 3, byref(most), byref(mcu), byref(cpu)) == 0
    assert (most.value, mcu.value, cpu.value) == (1, 1, -1)
    assert dcmi.one("get_device_type", c_int, 3, 0) == (0, 0)
    assert dcmi.one("get_device_type", c_int, 3, 1) == (0, 1)
    assert dcmi.one("get_device_type", c_int, 3, 2)[0] == GONE


def test_identity_of_a_chip(dcmi, state):
    chip = npu_sim.load(state)["chips"][1]
    code, info = dcmi.one("get_device_chip_info_v2", ChipInfoV2, 1, 0)
    assert code == 0
    assert bytes(info.name).rstrip(b"\0") == b"910B3"
    assert bytes(info.npu_name).rstrip(b"\0") == b"910B3"
    code, pcie = dcmi.one("get_device_pcie_info_v2", PcieInfoAll, 1, 0)
    assert (pcie.vendor, pcie.device, pcie.sub_vendor, pcie.sub_device) == (0x19E5, 0xD802, 0x19E5, 0x3000)
    assert (pcie.domain, pcie.bdf_bus, pcie.bdf_device, pcie.bdf_function) == (0, 0xC2, 0, 0)
    code, old = dcmi.one("get_device_pcie_info", PcieInfo, 1, 0)
    assert (old.device, old.vendor, old.bdf_bus) == (0xD802, 0x19E5, 0xC2)
    code, die = dcmi.one("get_device_die_v2", DieId, 1, 0, 1)
    assert [f"0x{word:08X}" for word in die.soc_die] == chip["vdie"]
    assert dcmi.one("get_device_die_v2", DieId, 1, 0, 2)[0] == UNSUPPORTED
    code, label = dcmi.one("get_device_elabel_info", Elabel, 1, 0)
    assert label.serial.decode() == chip["serial"]
    assert dcmi.text("get_driver_version") == (0, "25.5.0")
    assert dcmi.text("get_driver_version", size=4)[0] == INVALID
    assert dcmi.text("get_product_type", 1, 0) == (0, "Atlas 800T A2")


def test_every_change_of_the_file_shows_in_the_next_call(dcmi, state):
    """In-place edits of the same length within one clock tick are the hard case for a cache."""
    text = state.read_text()
    for value in [1, 2, 3, 0] * 25:
        with open(state, "r+") as stream:
            stream.write(text.replace('"health": 0', f'"health": {value}', 1))
        assert dcmi.one("get_device_health", c_uint, 0, 0) == (0, value)
    for value in range(20):
        npu_sim.set_values({"chips.0.temperature_c": 40 + value}, state)
        assert dcmi.one("get_device_temperature", c_int, 0, 0) == (0, 40 + value)


def test_waits_for_a_writer_who_is_half_done(dcmi, state):
    text = state.read_text()
    state.write_text(text[: len(text) // 2])
    timer = threading.Timer(0.1, lambda: state.write_text(text.replace('"health": 0', '"health": 2', 1)))
    timer.start()
    assert dcmi.one("get_device_health", c_uint, 0, 0) == (0, 2)
    timer.join()
    state.write_text("{")
    assert dcmi.one("get_device_health", c_uint, 0, 0)[0] == INNER


def test_absent_chip(dcmi, state):
    npu_sim.set_values({"chips.3.present": False}, state)
    assert dcmi.cards() == (0, [0, 1, 2, 4, 5, 6, 7])
    assert dcmi.one("get_device_temperature", c_int, 3, 0)[0] == GONE
    assert dcmi.one("get_device_health", c_uint, 3, 0) == (0, 0xFFFFFFFF)
    assert dcmi.one("get_device_health", c_uint, 12, 0)[0] == GONE
    assert dcmi.one("get_device_temperature", c_int, -2, 0)[0] == INVALID
    npu_sim.set_values({"chips.3.present": True, "chips.3.dcmi": {"get_device_health": -8012}}, state)
    assert dcmi.one("get_device_health", c_uint, 3, 0)[0] == -8012


def test_nothing_answers_without_init_or_driver(library, state):
    dcmi = Dcmi(library)
    assert dcmi.cards()[0] == INNER
    npu_sim.set_values({"kernel.driver_loaded": False}, state)
    assert dcmi.call("init") == INNER
    npu_sim.set_values({"kernel.driver_loaded": True, "kernel.npu_nodes_appear": False}, state)
    assert dcmi.call("init") == INNER
    npu_sim.set_values({"kernel.npu_nodes_appear": True, "kernel.driver_dead": True}, state)
    assert dcmi.call("init") == INNER
    npu_sim.set_values({"kernel.driver_dead": False}, state)
    assert dcmi.call("init") == 0
    assert dcmi.cards()[0] == 0
    state.unlink()
    assert dcmi.cards()[0] == INNER


def test_faults_on_demand(dcmi, state):
    npu_sim.set_values({"behaviour.dcmi": "fail"}, state)
    assert dcmi.one("get_device_temperature", c_int, 0, 0)[0] == INNER
    npu_sim.set_values({"behaviour.dcmi": {"dcmi_get_device_temperature": -8006, "get_card_list": -8017}}, state)
    assert dcmi.one("get_device_temperature", c_int, 0, 0)[0] == -8006
    assert dcmi.cards()[0] == -8017
    assert dcmi.one("get_device_power_info", c_int, 0, 0) == (0, 895)
    npu_sim.set_values({"behaviour.dcmi": "ok", "chips.1.dcmi": {"get_device_power_info": -8020}}, state)
    assert dcmi.one("get_device_power_info", c_int, 1, 0)[0] == -8020
    assert dcmi.one("get_device_power_info", c_int, 0, 0)[0] == 0


def test_a_hang_blocks_one_call_and_ends_with_the_state(dcmi, state):
    npu_sim.set_values({"chips.0.dcmi": {"get_device_health": "hang"}}, state)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(dcmi.one("get_device_health", c_uint, 0, 0)))
    thread.start()
    time.sleep(0.2)
    assert answers == []
    assert dcmi.one("get_device_health", c_uint, 1, 0) == (0, 0)  # others are not held up
    npu_sim.set_values({"chips.0.dcmi": {}}, state)
    thread.join(2)
    assert answers == [(0, 0)]


def test_many_threads_read_while_somebody_writes(dcmi, state):
    wrong = []

    def read():
        for _ in range(300):
            code, value = dcmi.one("get_device_temperature", c_int, 0, 0)
            if code != 0 or not 40 <= value <= 60:
                wrong.append((code, value))

    npu_sim.set_values({"chips.0.temperature_c": 40}, state)
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for value in range(41, 61):
        npu_sim.set_values({"chips.0.temperature_c": value}, state)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_error_codes_above_two_to_the_31(dcmi, state):
    npu_sim.set_values({"chips.5.error_codes": [0x80E3A203, "40F84E00"], "error_texts": {"80E3A203": "node type=LPM"}}, state)
    count, codes = c_int(), (c_uint * 128)()
    assert dcmi.call("get_device_errorcode_v2", 5, 0, byref(count), codes, 128) == 0
    assert list(codes[: count.value]) == [0x80E3A203, 0x40F84E00]
    assert dcmi.text("get_device_errorcode_string", 5, 0, c_uint(0x80E3A203)) == (0, "node type=LPM")


def test_telemetry_units(dcmi, state):
    values = {
        "power_w": 101.7,
        "voltage_v": 0.92,
        "hbm_used_mib": 32768,
        "aicore_percent": 70,
        "vector_percent": 12,
        "hbm_temperature_c": 51,
    }
    npu_sim.set_values({f"chips.0.{key}": value for key, value in values.items()}, state)
    assert dcmi.one("get_device_power_info", c_int, 0, 0) == (0, 1017)
    assert dcmi.one("get_device_voltage", c_uint, 0, 0) == (0, 92)
    rates = {kind: dcmi.one("get_device_utilization_rate", c_uint, 0, 0, kind) for kind in (2, 6, 10, 12, 13)}
    assert rates == {2: (0, 70), 6: (0, 50), 10: (0, 0), 12: (0, 12), 13: (0, 70)}
    assert dcmi.one("get_device_utilization_rate", c_uint, 0, 0, 1)[0] == UNSUPPORTED
    assert dcmi.one("get_device_frequency", c_uint, 0, 0, 1)[0] == UNSUPPORTED
    assert dcmi.one("get_device_frequency", c_uint, 0, 0, 7) == (0, 1800)
    code, hbm = dcmi.one("get_device_hbm_info", HbmInfo, 0, 0)
    assert (code, hbm.size, hbm.usage, hbm.temp) == (0, 65536, 32768, 51)
    assert dcmi.one("get_device_memory_info_v3", MemoryInfo, 0, 0)[0] == UNSUPPORTED
    assert dcmi.one("get_device_boot_status", c_int, 0, 0) == (0, 16)
    assert dcmi.one("get_device_network_health", c_int, 0, 0) == (0, 0)
    assert dcmi.one("get_device_compatibility", c_int, 0, 0) == (0, 1)
    assert dcmi.one("get_driver_health", c_uint) == (0, 0)


def test_ecc_processes_affinity_and_topology(dcmi, state):
    npu_sim.set_values({"chips.4.ecc": {"double": 2, "total_double": 5}, "chips.4.processes": [{"pid": 77, "memory_mib": 30780}]}, state)
    code, ecc = dcmi.one("get_device_ecc_info", EccInfo, 4, 0, 2)
    assert (code, ecc.enable, ecc.double, ecc.total_double) == (0, 1, 2, 5)
    assert dcmi.one("get_device_ecc_info", EccInfo, 4, 0, 0)[0] == UNSUPPORTED
    processes, count = (ProcMem * 32)(), c_int()
    assert dcmi.call("get_device_resource_info", 4, 0, processes, byref(count)) == 0
    assert [(one.pid, one.usage) for one in processes[: count.value]] == [(77, 30780 << 20)]
    buffer, length = ctypes.create_string_buffer(256), c_int(256)
    assert dcmi.call("get_affinity_cpu_info_by_device_id", 4, 0, buffer, byref(length)) == 0
    assert (buffer.value, length.value) == (b"48-95", 5)
    assert dcmi.one("get_topo_info_by_device_id", c_int, 0, 0, 0, 0) == (0, 0)
    assert dcmi.one("get_topo_info_by_device_id", c_int, 0, 0, 1, 0) == (0, 3)
    address, mask = IpAddr(), IpAddr()
    assert dcmi.call("get_device_ip", 0, 0, 1, 0, byref(address), byref(mask)) == UNSUPPORTED


def test_null_pointers_are_refused(dcmi):
    for name in ("get_device_health", "get_device_temperature", "get_device_hbm_info", "get_device_pcie_info_v2"):
        assert dcmi.call(name, 0, 0, None) == INVALID


def test_default_path_is_the_one_of_a_node(library, tmp_path):
    """Without the variable the library must not fall back to anything but the node's file."""
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).dcmi_init())"
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env={}, check=True)
    if not Path("/var/lib/npu-sim/state.json").exists():
        assert json.loads(run.stdout) == INNER


NOT_SUPPORT = -8255


def test_cards_of_310p_measure_power_at_their_controller(library, state):
    content = npu_sim.initial("310p-duo")
    content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
    npu_sim.save(content, state)
    dcmi = Dcmi(library)
    assert dcmi.call("init") == 0
    assert dcmi.cards() == (0, [1, 2, 4, 5])
    assert dcmi.one("get_device_power_info", c_int, 1, 0)[0] == NOT_SUPPORT
    assert dcmi.one("mcu_get_power_info", c_int, 1) == (0, 725)
    assert dcmi.one("get_device_num_in_card", c_int, 4) == (0, 2)


def test_second_die_of_an_a3_card_measures_no_power(library, state):
    content = npu_sim.initial("a3", 4)
    content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
    npu_sim.save(content, state)
    dcmi = Dcmi(library)
    assert dcmi.call("init") == 0
    assert dcmi.one("get_device_power_info", c_int, 0, 0)[0] == 0
    assert dcmi.one("get_device_power_info", c_int, 0, 1)[0] == NOT_SUPPORT
    topo = [dcmi.one("get_topo_info_by_device_id", c_int, 0, 0, card, die) for card, die in ((0, 0), (0, 1), (1, 0))]
    assert topo == [(0, 0), (0, 6), (0, 7)]
