# SPDX-License-Identifier: GPL-3.0-or-later
"""The detector: what each source knows, joined; what one of them does not know, told."""

import pytest
from hardware_samples import sample

from ansible_collections.npu.fleet.plugins.module_utils._hardware._dcmi_client import DcmiError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._detect import detect
from ansible_collections.npu.fleet.plugins.module_utils._hardware._query import QueryError, find_npu_smi

ADDRESSES = ["0000:c1:00.0", "0000:01:00.0"]
BOARD = sample("info-t-board.txt")
ANSWERS = {
    "info": sample("info_910b_gap.txt"),
    "info -m": "NPU ID  Chip ID  Chip Logic ID  Chip Name\n0  0  0  Ascend 910B1\n3  0  1  Ascend 910B1\n",
    "info -t board -i 0": BOARD,
    "info -t board -i 3": BOARD.replace("7.8.0.5.216", "7.5.0.1.129").replace("0000000000000001", "NA"),
}


class Dcmi:
    """Stands for a DcmiClient."""

    def __init__(self, chips=None, health=None, error=None):
        self.chips, self.health, self.error = chips, health, error

    def call(self, command, timeout):
        if self.error:
            raise self.error
        return {"open": {"driver_version": "24.1.0", "api": "v1"}, "chips": self.chips, "health": self.health}[command]


def dcmi_chip(card, logic, phy, address, **more):
    chip = {
        "logic_id": logic, "phy_id": phy, "card_id": card, "device_id": 0, "name": "910B1", "pci_address": address, "serial": None,
        "vdie": "V", "product_name": None, "error": None,
    }
    chip.update(more)
    return chip


def two_chips(**second):
    chips = [dcmi_chip(0, 0, 0, ADDRESSES[0]), dcmi_chip(3, 1, 1, ADDRESSES[1], **second)]
    states = [
        {"card_id": chip["card_id"], "device_id": chip["device_id"], "health": "OK", "error_codes": [], "error": None} for chip in chips
    ]
    return Dcmi(chips, states)


@pytest.fixture
def server(tree):
    tree.function(ADDRESSES[0], "d802", numa="0", driver="devdrv_device_driver")
    tree.function(ADDRESSES[1], "d802", numa="1", driver="devdrv_device_driver")
    tree.node(0)
    tree.node(1)
    return tree


def look(tree, run=None, **more):
    return detect(run, str(tree.sysfs), str(tree.dev), **more)


def test_host_without_npu_says_so(tree):
    missing = [QueryError("npu-smi", "npu_smi_missing", "not there"), QueryError("dcmi", "dcmi_library_missing", "not there")]
    found = look(tree, missing=missing)
    assert (found["present"], found["chips"], found["family"], found["families"]) == (False, [], None, [])
    assert found["query"] == {"ok": True, "source": "pci", "error": None, "errors": []}


def test_before_a_driver_there_is_one_chip_for_each_function(tree):
    for address in ADDRESSES:
        tree.function(address, "d802")
    found = look(tree, missing=[QueryError("npu-smi", "npu_smi_missing", "not there")])
    assert [(chip["pci_address"], chip["family"], chip["logic_id"], chip["health"]) for chip in found["chips"]] == [
        ("0000:01:00.0", "a2", None, None), ("0000:c1:00.0", "a2", None, None),
    ]
    assert found["chips"][0]["evidence"] == {"pci": True, "driver": None, "device_node": None}
    assert (found["present"], found["family"], found["driver"]["loaded"]) == (True, "a2", False)
    assert (found["query"]["ok"], found["query"]["error"]["code"], found["query"]["source"]) == (False, "npu_smi_missing", None)


def test_all_sources_together(server, runner):
    run = runner(ANSWERS)
    found = look(server, run, dcmi=two_chips(), npu_smi="/x/npu-smi", boards=True)
    first, second = found["chips"]
    assert (first["logic_id"], first["phy_id"], first["card_id"], first["device_id"]) == (0, 0, 0, 0)
    assert (first["pci_address"], first["pci_device"], first["numa_node"], first["name"]) == (ADDRESSES[0], "d802", 0, "910B1")
    assert (first["health"], first["firmware_version"], first["serial"]) == ("OK", "7.8.0.5.216", "0000000000000001")
    assert first["device_node"] == str(server.dev / "davinci0")
    assert first["evidence"] == {"pci": True, "driver": "devdrv_device_driver", "device_node": True}
    assert (second["firmware_version"], second["serial"], second["numa_node"]) == ("7.5.0.1.129", None, 1)
    assert found["query"] == {"ok": True, "source": "dcmi,npu-smi", "error": None, "errors": []}
    assert found["driver"] == {"loaded": True, "version": "24.1.0"}
    assert run.asked == ["info", "info -t board -i 0", "info -t board -i 3"]  # DCMI has the ids: no need of -m
    assert run.environments[0]["LD_LIBRARY_PATH"].startswith("/usr/local/Ascend/driver/lib64:")


def test_npu_smi_alone(server, runner):
    found = look(server, runner(ANSWERS), npu_smi="/x/npu-smi")
    assert [(chip["card_id"], chip["logic_id"], chip["phy_id"], chip["health"]) for chip in found["chips"]] == [
        (0, 0, None, "OK"), (3, 1, None, "Warning"),
    ]
    # This table prints no physical id, so nobody may guess which node belongs to which chip.
    assert [chip["device_node"] for chip in found["chips"]] == [None, None]
    assert [chip["evidence"]["device_node"] for chip in found["chips"]] == [None, None]
    assert found["query"]["ok"]


def test_a_failed_mapping_loses_no_chip(server, runner):
    found = look(server, runner({**ANSWERS, "info -m": "soup"}), npu_smi="/x/npu-smi")
    assert [chip["logic_id"] for chip in found["chips"]] == [None, None]
    assert (found["query"]["ok"], found["query"]["error"]["code"]) == (False, "npu_smi_unreadable")


@pytest.mark.parametrize(("answer", "code", "why"), [
    ({"rc": 1, "stdout": "dcmi module initialize failed. ret is -8005\n"}, "npu_smi_failed", "driver is not loaded"),
    ({"rc": 1, "stderr": "npu-smi: error while loading shared libraries: libc_sec.so\n"}, "npu_smi_failed", "libc_sec.so"),
    ({"rc": 3}, "npu_smi_failed", "no text"),
    ({"rc": -9, "timed_out": True}, "npu_smi_timeout", "did not answer"),
    ("dcmi module initialize failed. ret is -8005\n", "npu_smi_failed", "-8005"),  # status 0 proves nothing
    ({"rc": 9, "stdout": sample("info_910b_gap.txt")}, "npu_smi_failed", "status 9"),  # and a table is no data with another status
    ("soup", "npu_smi_unreadable", "soup"),
    ("", "npu_smi_unreadable", "no table"),
])
def test_npu_smi_that_does_not_answer_never_means_no_chips(server, runner, answer, code, why):
    found = look(server, runner({"info": answer}), npu_smi="/x/npu-smi")
    assert found["present"] is True
    assert sorted(chip["pci_address"] for chip in found["chips"]) == sorted(ADDRESSES)
    assert {chip["health"] for chip in found["chips"]} == {None}
    assert (found["query"]["ok"], found["query"]["error"]["code"], found["query"]["error"]["source"]) == (False, code, "npu-smi")
    assert why in found["query"]["error"]["message"]


def test_command_that_cannot_be_started(server, runner):
    class Missing(Exception):
        code = "command_missing"

    found = look(server, runner({"info": Missing("there is no /x/npu-smi")}), npu_smi="/x/npu-smi")
    assert found["query"]["error"]["code"] == "npu_smi_missing"
    with pytest.raises(ZeroDivisionError):  # a fault of ours is not a state of the node
        look(server, runner({"info": ZeroDivisionError()}), npu_smi="/x/npu-smi")


def test_dcmi_answers_although_npu_smi_hangs(server, runner):
    found = look(server, runner({"info": {"rc": -9, "timed_out": True}}), dcmi=two_chips(), npu_smi="/x/npu-smi")
    assert [chip["health"] for chip in found["chips"]] == ["OK", "OK"]
    assert (found["query"]["ok"], found["query"]["source"], found["query"]["error"]["code"]) == (False, "dcmi", "npu_smi_timeout")


def test_npu_smi_answers_although_dcmi_fails(server, runner):
    dcmi = Dcmi(error=DcmiError("dcmi_init answered -8005 (INNER_ERR)", "dcmi_failed"))
    found = look(server, runner(ANSWERS), dcmi=dcmi, npu_smi="/x/npu-smi")
    assert [chip["health"] for chip in found["chips"]] == ["OK", "Warning"]
    assert (found["query"]["ok"], found["query"]["source"]) == (False, "npu-smi")
    assert (found["query"]["error"]["source"], found["query"]["error"]["code"]) == ("dcmi", "dcmi_failed")


def test_a_lost_chip_stays_in_the_list(server):
    dcmi = two_chips()
    dcmi.chips.pop()
    found = look(server, dcmi=dcmi)
    assert [(chip["pci_address"], chip["logic_id"], chip["health"]) for chip in found["chips"]] == [
        (ADDRESSES[0], 0, "OK"), (ADDRESSES[1], None, None),
    ]


def test_a_chip_off_the_bus_has_no_pci_evidence(server):
    found = look(server, dcmi=Dcmi(two_chips().chips + [dcmi_chip(5, 2, 2, "0000:41:00.0")], two_chips().health))
    assert [chip["evidence"]["pci"] for chip in found["chips"]] == [True, True, False]
    assert [chip["evidence"]["device_node"] for chip in found["chips"]] == [True, True, False]


def test_a_card_that_tells_nothing_is_an_error_and_no_extra_chip(server):
    dcmi = two_chips(logic_id=None, phy_id=None, pci_address=None, device_id=None, error={"message": "answered -8012 (NOT_READY)"})
    found = look(server, dcmi=dcmi)
    assert [chip["pci_address"] for chip in found["chips"]] == ADDRESSES
    assert (found["query"]["ok"], found["query"]["error"]["card_id"]) == (False, 3)


def test_chips_without_an_address_are_not_counted_twice(server):
    dcmi = Dcmi([dcmi_chip(0, 0, 0, None), dcmi_chip(3, 1, 1, None)], [])
    assert [chip["logic_id"] for chip in look(server, dcmi=dcmi)["chips"]] == [0, 1]


def test_two_chips_behind_one_function(tree, runner):
    tree.function("0000:01:00.0", "d500", ("0200", "0110"), driver="devdrv_device_driver")
    tree.node(0)
    tree.node(1)
    found = look(tree, runner({"info": sample("info_310p_duo.txt"), "info -m": "soup"}), npu_smi="/x/npu-smi")
    assert [(chip["card_id"], chip["device_id"], chip["phy_id"], chip["device_node"]) for chip in found["chips"]] == [
        (1, 0, 0, str(tree.dev / "davinci0")), (1, 1, 1, str(tree.dev / "davinci1")),
    ]
    assert {chip["pci_address"] for chip in found["chips"]} == {"0000:01:00.0"}
    assert (found["family"], found["product"]) == ("310p", "Atlas 300I Duo")


def test_the_last_function_is_that_of_the_only_chip_without_an_address(tree):
    class Client:
        def call(self, command, _timeout):
            keys = ("phy_id", "name", "serial", "vdie", "product_name", "error")
            chips = [{"logic_id": n, "card_id": n, "device_id": 0, "pci_address": address, **dict.fromkeys(keys)}
                     for n, address in enumerate(["0000:01:00.0", None, *self.more])]
            return {"open": {"driver_version": "1"}, "chips": chips, "health": []}[command]

    for address in ("0000:01:00.0", "0000:02:00.0"):
        tree.function(address, "d802", numa="1", driver="devdrv")
    client = Client()
    client.more = []
    second = detect(None, str(tree.sysfs), str(tree.dev), dcmi=client)["chips"][1]
    assert (second["pci_address"], second["numa_node"], second["family"]) == ("0000:02:00.0", 1, "a2")
    assert second["evidence"] == {"pci": True, "driver": "devdrv", "device_node": None}
    client.more = [None]  # two of them, and nobody knows which one has it
    found = detect(None, str(tree.sysfs), str(tree.dev), dcmi=client)["chips"]
    assert [chip["pci_address"] for chip in found] == ["0000:01:00.0", None, None]


def test_board_in_root_complex_mode_is_one_chip(tree, runner):
    tree.function("0000:00:00.0", "d107", ("0000", "0000"), class_id="0x060400", driver="pcieport")
    found = look(tree, runner({"info": sample("info_310b_soc.txt"), "info -m": "soup"}), npu_smi="/x/npu-smi")
    assert [(chip["name"], chip["pci_address"], chip["family"]) for chip in found["chips"]] == [("310B1", None, "310b")]
    assert found["driver"]["loaded"] is False


def test_950_has_no_chip_id(tree, runner):
    for number, address in enumerate(("0000:71:00.0", "0000:61:00.0")):
        tree.function(address, "d806", ("19e5", "4004"))
        tree.node(number)
    dcmi = Dcmi([dcmi_chip(0, 0, 1, "0000:71:00.0"), dcmi_chip(1, 1, 0, "0000:61:00.0")], [])
    found = look(tree, runner({"info": sample("info_950.txt")}), dcmi=dcmi, npu_smi="/x/npu-smi")
    assert [(chip["card_id"], chip["phy_id"], chip["health"], chip["device_node"]) for chip in found["chips"]] == [
        (0, 1, "Alarm", str(tree.dev / "davinci1")), (1, 0, "OK", str(tree.dev / "davinci0")),
    ]
    assert (found["family"], found["product"]) == ("a5", "Atlas 350")
    assert found["processes"][0]["pid"] == 4711


def test_several_families_and_unknown_accelerators(tree):
    tree.function("0000:01:00.0", "d802")
    tree.function("0000:02:00.0", "d500", ("0200", "0100"))
    found = look(tree)
    assert (found["family"], found["families"]) == (None, ["310p", "a2"])


def test_unknown_accelerator_stops_the_guess(tree):
    tree.function("0000:01:00.0", "d802")
    tree.function("0000:02:00.0", "d900")
    tree.function("0000:01:00.1", "d805")
    found = look(tree)
    assert (found["family"], found["families"], len(found["chips"]), found["virtual_functions"]) == (None, ["a2"], 1, 1)
    assert [function["device"] for function in found["unknown"]] == ["d900"]


def test_only_an_unknown_accelerator_is_not_no_npu(tree):
    tree.function("0000:02:00.0", "d900")
    found = look(tree)
    assert (found["present"], found["chips"]) == (True, [])


def test_health_that_nobody_knows_is_none(server):
    dcmi = two_chips()
    dcmi.health[1]["health"] = "UNKNOWN"
    assert [chip["health"] for chip in look(server, dcmi=dcmi)["chips"]] == ["OK", None]


def test_board_query_that_hangs_ends_the_others(server, runner):
    run = runner({**ANSWERS, "info -t board -i 0": {"rc": -9, "timed_out": True}})
    found = look(server, run, dcmi=two_chips(), npu_smi="/x/npu-smi", boards=True)
    assert run.asked == ["info", "info -t board -i 0"]
    assert [chip["firmware_version"] for chip in found["chips"]] == [None, None]
    assert found["query"]["error"]["code"] == "npu_smi_timeout"


def test_board_query_that_fails_leaves_the_others(server, runner):
    run = runner({**ANSWERS, "info -t board -i 0": {"rc": 1, "stdout": "Invalid card id.\n"}})
    found = look(server, run, dcmi=two_chips(), npu_smi="/x/npu-smi", boards=True)
    assert [chip["firmware_version"] for chip in found["chips"]] == [None, "7.5.0.1.129"]
    assert found["query"]["error"]["cause"] == "Invalid card id."


@pytest.mark.parametrize(("server_name", "printed", "product"), [
    ("Atlas 800T A2\n", "Atlas 900 A2", "Atlas 800T A2"),
    ("Some Machine\n", "Atlas 900 A2 PoD", "Atlas 900 A2 PoD"),
    ("Some Machine\n", "IT21DMPB01", None),
    (None, None, None),
])
def test_product(server, server_name, printed, product):
    if server_name:
        (server.sysfs / "class/dmi/id").mkdir(parents=True)
        (server.sysfs / "class/dmi/id/product_name").write_text(server_name)
    assert look(server, dcmi=two_chips(product_name=printed))["product"] == product


def test_driver_by_its_module_and_not_by_another_owner(tree):
    tree.function(ADDRESSES[0], "d802", driver="vfio-pci")
    assert look(tree)["driver"]["loaded"] is False
    (tree.sysfs / "module/drv_pcie_host").mkdir(parents=True)
    assert look(tree)["driver"]["loaded"] is True


def test_npu_smi_is_looked_up(tmp_path):
    path, error = find_npu_smi(str(tmp_path))
    assert (path, error.code) == (None, "npu_smi_missing")
    (tmp_path / "usr/local/sbin/npu-smi").mkdir(parents=True)
    path, error = find_npu_smi(str(tmp_path))
    assert path is None
    assert "rmdir" in error.message
    tool = tmp_path / "usr/local/bin/npu-smi"
    tool.parent.mkdir()
    tool.touch()
    assert find_npu_smi(str(tmp_path))[0] is None
    tool.chmod(0o755)
    assert find_npu_smi(str(tmp_path)) == (str(tool), None)
