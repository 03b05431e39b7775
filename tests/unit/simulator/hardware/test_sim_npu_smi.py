# SPDX-License-Identifier: GPL-3.0-or-later
"""npu-smi: texts compared with public captures (re-typed), errors, modes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import npu_sim
import pytest

NPU_SMI = Path(__file__).resolve().parents[3] / "simulator/hardware/npu-smi"
NO_DRIVER = "DrvMngGetConsoleLogLevel failed. (ret=4)\ndcmi module initialize failed. ret is -8005\n"
USAGE = "Usage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]\n"

# npu-smi info of an eight-chip 910B3 server, driver 25.2.0 (vllm-project/vllm-ascend issue 6512), two chips of it
CAPTURE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 97.9        34                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3408 / 65536         |
+===========================+===============+====================================================+
| 2     910B3               | OK            | 92.3        32                0    / 0             |
| 0                         | 0000:81:00.0  | 0           0    / 0          41052/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 2       0                 | 1333928       |                          | 37709                   |
+===========================+===============+====================================================+
"""


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    record = tmp_path / "ascend_install.info"
    record.write_text("UserName=HwHiAiUser\nDriver_Install_Status=complete\n")
    monkeypatch.setenv("NPU_SIM_INSTALL_INFO", str(record))
    return record


def run(*words, program=NPU_SMI):
    done = subprocess.run([str(program), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False)
    return done.returncode, done.stdout.decode()


def fields(text):
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines()) if value}


def test_table_equals_a_real_capture(state):
    def change(content):
        content["kernel"]["driver_version"] = "25.2.0"
        content["chips"] = [content["chips"][0], content["chips"][2]]
        content["chips"][0].update(power_w=97.9, temperature_c=34, hbm_used_mib=3408)
        content["chips"][1].update(power_w=92.3, temperature_c=32, hbm_used_mib=41052)
        content["chips"][1]["processes"] = [{"pid": 1333928, "name": "", "memory_mib": 37709}]

    npu_sim.update(change, state)
    assert run("info") == (0, CAPTURE)


# Chip tables of other products, re-typed from public captures: an A3 server with driver 25.0.rc1 (vllm-ascend bug report), a 300I Pro
# with 24.1.0.1 (public notes), a 300I Duo with 24.1.rc3 (public field report), a 910B4 with 26.0.rc1 (triton-ascend FAQ).
OTHERS = {
    ("a3", "25.0.rc1"): """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.0.rc1                 Version: 25.0.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 160.7       45                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3103 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           45                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          2886 / 65536         |
+===========================+===============+====================================================+
""",
    ("310p", "24.1.0.1"): """\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0.1                                 Version: 24.1.0.1                                     |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 1       310P3                 | OK              | NA           47                0     / 0             |
| 0       0                     | 0000:01:00.0    | 0            1894 / 44215                            |
+===============================+=================+======================================================+
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
| No running processes found in NPU 1                                                                    |
+===============================+=================+======================================================+
""",
    ("310p-duo", "24.1.rc3"): """\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                                 Version: 24.1.rc3                                     |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 1       310P3                 | OK              | NA           61                0     / 0             |
| 0       0                     | 0000:01:00.0    | 0            1311 / 44280                            |
+-------------------------------+-----------------+------------------------------------------------------+
| 1       310P3                 | OK              | NA           61                0     / 0             |
| 1       1                     | 0000:01:00.0    | 0            1702 / 43693                            |
+===============================+=================+======================================================+
""",
    ("a2", "26.0.rc1"): """\
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc1                            Version: 26.0.rc1                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip                      | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| 0     910B4               | OK            | 82.6                 32                      0    / 0                |
| 0                         | 0000:C1:00.0  | 0                    0    / 0                2871 / 32768            |
+===========================+===============+======================================================================+
""",
}
VALUES = {
    "a3": [{"power_w": 160.7, "temperature_c": 45, "hbm_used_mib": 3103}, {"temperature_c": 45, "hbm_used_mib": 2886}],
    "310p": [{"temperature_c": 47, "ddr_used_mib": 1894, "ddr_total_mib": 44215}],
    "310p-duo": [
        {"temperature_c": 61, "ddr_used_mib": 1311, "ddr_total_mib": 44280},
        {"temperature_c": 61, "ddr_used_mib": 1702, "ddr_total_mib": 43693},
    ],
    "a2": [{"name": "910B4", "power_w": 82.6, "temperature_c": 32, "hbm_used_mib": 2871, "hbm_total_mib": 32768}],
}


@pytest.mark.parametrize(("product", "version"), OTHERS)
def test_tables_of_other_products_equal_captures(state, product, version):
    content = npu_sim.initial(product)
    content["chips"] = content["chips"][: len(VALUES[product])]
    for chip, values in zip(content["chips"], VALUES[product], strict=True):
        chip.update(values)
    content["kernel"].update(driver_loaded=True, driver_version=version)
    npu_sim.save(content, state)
    code, text = run("info")
    assert code == 0 and text.startswith(OTHERS[product, version])


def test_mapping_of_an_a3_card(state):
    # Columns of a public test file whose layout agrees with the vendor's npu_info_print.c
    content = npu_sim.initial("a3", 4)
    content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
    npu_sim.save(content, state)
    lines = [line.split("  ") for line in run("info", "-m")[1].splitlines()]
    rows = [[word.strip() for word in line if word.strip()] for line in lines]
    assert rows[:5] == [
        ["NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name"],
        ["0", "0", "0", "0", "Ascend910"],
        ["0", "1", "1", "1", "Ascend910"],
        ["0", "2", "-", "-", "Mcu"],
        ["1", "0", "2", "2", "Ascend910"],
    ]  # fmt: skip
    topo = [line.split() for line in run("info", "-t", "topo")[1].splitlines()[:3]]
    assert topo[0][:2] == ["Phy-ID0", "Phy-ID1"] and topo[1][:4] == ["Phy-ID0", "X", "SIO", "HCCS_SW"]


def test_tool_version_is_a_constant_that_the_package_replaces(state, tmp_path):
    packed = tmp_path / "npu-smi"
    packed.write_text(NPU_SMI.read_text().replace("@NPU_SMI_VERSION@", "25.5.1"))
    packed.chmod(0o755)
    assert "| npu-smi 25.5.1                   Version: 25.5.0 " in run("info", program=packed)[1]
    assert run("-v", program=packed) == (0, "npu-smi version: 25.5.1\n")
    assert run("-v") == (0, "npu-smi version: 25.5.0\n")


def test_warning_of_a_half_done_install(state, installed):
    assert "[WARNING]" not in run("info")[1]
    installed.write_text("Driver_Install_Type=full\n")
    text = run("info")[1]
    assert text.splitlines()[-1].startswith("[WARNING]The driver package may not be completely installed")
    installed.unlink()
    assert "[WARNING]" in run("info")[1]


def test_mapping_and_listing(state):
    lines = run("info", "-m")[1].splitlines()
    assert lines[0] == "\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name" + " " * 21
    assert lines[1] == "\t0                              0                              0                              Ascend 910B3"
    assert lines[2] == "\t0                              1                              -                              Mcu" + " " * 27
    assert len(lines) == 17
    text = run("info", "-l")[1]
    assert text.startswith(
        "\tTotal Count                    : 8\n\n\tNPU ID                         : 0\n\tChip Count                     : 1\n"
    )


def test_board_of_card_and_chip(state):
    npu_sim.set_values({"chips.1.firmware_running": "7.8.0.5.216", "chips.1.firmware_flash": "9.9"}, state)
    rc, text = run("info", "-t", "board", "-i", "1")
    found = fields(text)
    assert rc == 0
    assert (found["Software Version"], found["Firmware Version"], found["Compatibility"]) == ("25.5.0", "7.8.0.5.216", "OK")
    assert (found["PCIe Bus Info"], found["PCI Device ID"], found["Subsystem Vendor ID"]) == ("0000:C2:00.0", "0xD802", "0x19E5")
    assert all(line.startswith("\t") for line in text.splitlines())
    found = fields(run("info", "-c", "0", "-i", "1", "-t", "board")[1])
    assert (found["Chip Name"], found["Firmware Version"], found["Chip Type"]) == ("910B3", "7.8.0.5.216", "Ascend")
    assert [int(word, 16) for word in found["VDie ID"].split()] == [int(word, 16) for word in npu_sim.load(state)["chips"][1]["vdie"]]


@pytest.mark.parametrize(("health", "word"), [(0, "OK"), (1, "Warning"), (2, "Alarm"), (3, "Critical"), (9, "UNKNOWN")])
def test_health_words(state, health, word):
    npu_sim.set_values({"chips.3.health": health, "chips.3.error_codes": [0x80E3A203]}, state)
    assert fields(run("info", "-t", "health", "-i", "3", "-c", "0")[1])["Health Status"] == word
    assert f"| 3     910B3               | {word:<14}|" in run("info")[1]
    assert fields(run("info", "-t", "health", "-i", "3")[1])["Error Code"] == "80E3A203"


def test_product(state):
    assert fields(run("info", "-t", "product", "-i", "0")[1])["Product Type"] == "Atlas 800T A2"


def test_lost_chip_disappears_and_is_refused(state):
    npu_sim.set_values({"chips.3.present": False}, state)
    assert "0000:82:00.0" not in run("info")[1]
    assert run("info", "-t", "board", "-i", "3") == (1, f"Invalid card id.\nError parameter of -i\n{USAGE}")
    npu_sim.set_values({"chips.*.present": False}, state)
    assert run("info") == (1, "There is no NPU card on this server.\n")


@pytest.mark.parametrize(
    "words", [("info", "-t", "board"), ("info", "-i", "0"), ("info", "-t"), ("info", "--wrong"), ("info", "-t", "nothing", "-i", "0")]
)
def test_wrong_use(state, words):
    rc, text = run(*words)
    assert rc == 1
    assert "Error parameter" in text or text.startswith("This device does not support querying")


def test_no_driver_no_state_and_mode_fail_give_the_vendors_error(state):
    npu_sim.set_values({"behaviour.npu_smi": "fail"}, state)
    assert run("info") == (1, NO_DRIVER)
    npu_sim.set_values({"behaviour.npu_smi": "ok", "kernel.driver_loaded": False}, state)
    assert run("info", "-l") == (1, NO_DRIVER)
    assert run("info", "-h")[0] == 0
    state.unlink()
    assert run("info") == (1, NO_DRIVER)


def test_garbage_looks_like_success(state):
    npu_sim.set_values({"behaviour.npu_smi": "garbage"}, state)
    rc, text = run("info")
    assert rc == 0
    assert "910B3" not in text


def test_hang_lasts_until_the_state_says_otherwise(state):
    npu_sim.set_values({"behaviour.npu_smi": "hang"}, state)
    with subprocess.Popen([str(NPU_SMI), "info", "-l"], stdout=subprocess.PIPE) as process:
        time.sleep(0.3)
        assert process.poll() is None
        npu_sim.set_values({"behaviour.npu_smi": "ok"}, state)
        assert process.communicate(timeout=5)[0].startswith(b"\tTotal Count")
