# SPDX-License-Identifier: GPL-3.0-or-later
"""look.py: what is seen of nodes of all kinds, through the simulated library, PCI tree and device nodes."""

import os
import re
import shutil
import time

import pytest
from agent_rig import make_node, private_folder, until
from simulated_world import column

# --- products

@pytest.mark.parametrize(("product", "places", "functions", "cores"), [
    ("310", [(0, 0), (0, 1), (0, 2), (0, 3)], 4, 2.0),
    ("310b", [(0, 0)], 1, 1.0),
    ("310p", [(1, 0), (2, 0), (4, 0), (5, 0)], 4, 8.0),
    ("310p-duo", [(card, device) for card in (1, 2, 4, 5) for device in (0, 1)], 4, 8.0),
    ("910", [(card, 0) for card in range(8)], 8, 32.0),
    ("a2", [(card, 0) for card in range(8)], 8, 20.0),
    ("a3", [(card, device) for card in range(8) for device in (0, 1)], 16, 24.0),
    ("a5", [(dev_id, 0) for dev_id in range(4)], 4, 32.0),
])
def test_each_product(world, product, places, functions, cores):
    one = world(product)
    sight = one.looker().look()
    assert (sight.present, sight.complete, sight.problems, list(sight.events)) == (True, True, [], [])
    assert column(sight, "card_id", "device_id") == places
    assert column(sight, "phy_id") == list(range(len(places)))
    assert {chip["family"] for chip in sight.chips} == {product.replace("-duo", "")}
    assert len(set(column(sight, "pci_address"))) == functions
    assert set(column(sight, "aicore_count")) == {cores}
    vdies = column(sight, "vdie")
    assert len(set(vdies)) == len(places) and None not in vdies
    assert set(column(sight, "numa_node")) <= {0, 1}
    for chip in sight.chips:
        wanted = {"health_code": 0, "error_codes": [], "dropped": False, "error": None, "hung": None, "unasked": False,
                  "driver_bound": True, "device_node_present": True, "slices": [], "device_node": f"{one.dev}/davinci{chip['phy_id']}"}
        assert {key: chip[key] for key in wanted} == wanted
    assert (one.lookers[0].driver.unsubscribed is None) == (product != "310")


def test_one_ai_core_is_no_fault(world):
    """Seen in the field: a 310B1 says 1.000000, and the vendor's plugin refuses whatever has fewer than 8."""
    one = world("310b")
    one.set({"chips.0.aicore_total": 1.0, "chips.0.name": "310B1"})
    (chip,) = one.looker().look().chips
    assert (chip["aicore_count"], chip["name"], chip["family"]) == (1.0, "310B1", "310b")


def test_the_second_look_brings_the_condition(world):
    one = world("a2", chips=2)
    one.set({"chips.1.temperature_limit_c": 90, "chips.1.ecc": {"single": 2, "double": 1, "isolated_double": 3}})
    looker = one.looker()
    assert column(looker.look(), "telemetry") == [None, None]
    telemetry = column(looker.look(), "telemetry")[1]
    assert telemetry == {"temperature_c": 35, "temperature_limit_c": 90, "ecc": {"single": 2, "double": 1, "isolated": 3}}


def test_virtual_devices(world):
    one = world("310p")
    one.set({"chips.2.slices": [{"vdev_id": 100, "template": "vir02_1c"}], "chips.3.dcmi": {"get_device_info": -8006}})
    assert column(one.looker().look(), "slices") == [[], [], [{"vdev_id": 100, "template": "vir02_1c"}], None]


def test_numbers_and_names_are_of_the_chip_not_of_its_place(world):
    one = world("a2", chips=3)
    one.set({"chips.0.phy_id": 6, "chips.1.phy_id": 0, "chips.2.card_id": 9})
    sight = one.looker().look()
    assert column(sight, "phy_id", "card_id", "pci_address") == [(6, 0, "0000:c1:00.0"), (0, 1, "0000:c2:00.0"), (2, 9, "0000:81:00.0")]
    assert sight.chips[0]["device_node"].endswith("/davinci6")


def test_several_kinds_stay_in_one_sight(world):
    one = world("a2", chips=3)
    pci = {"vendor": "0x19e5", "device": "0xd500", "subsystem_vendor": "0x0200", "subsystem_device": "0x0100"}
    one.set({"chips.2.name": "310P3", "chips.2.pci": pci})
    sight = one.looker().look()
    assert (column(sight, "family"), sight.problems, sight.complete) == (["a2", "a2", "310p"], [], True)
    sight = one.looker(family="310p").look()
    assert (column(sight, "family", "phy_id"), sight.problems, sight.complete) == ([("310p", 2)], [], True)


def test_a_physical_id_that_two_have(world):
    one = world("a2", chips=3)
    one.set({"chips.2.phy_id": 0})
    sight = one.looker().look()
    assert column(sight, "phy_id", "card_id") == [(0, 0), (1, 1)]
    assert sight.problems == ["the NPU 0000:81:00.0 has the physical id 0 of the NPU 0000:c1:00.0 and is left out"]


# --- chips that come, go and do not answer

def test_health_is_asked_anew_and_a_chip_that_goes_is_gone(world):
    one = world("a2", chips=4)
    looker = one.looker()
    looker.look()
    one.set({"chips.1.health": 3, "chips.1.error_codes": ["80E01801"], "chips.2.dcmi": {"get_device_health": -8012}})
    sight = looker.look()
    wanted = [(0, [], False), (3, ["80E01801"], False), (None, [], True), (0, [], False)]
    assert column(sight, "health_code", "error_codes", "dropped") == wanted
    assert "-8012" in sight.chips[2]["error"]
    one.set({"chips.3.present": False})
    sight = looker.look()
    assert (column(sight, "phy_id"), sight.complete, sight.problems) == ([0, 1, 2], True, [])
    one.set({"chips.3.present": True})
    assert column(looker.look(), "phy_id") == [0, 1, 2, 3]


def test_a_chip_that_comes_is_seen_by_the_next_look(world):
    """Also when nothing but the driver tells of it."""
    one = world("a2", chips=4)
    one.set({"chips.2.present": False}, show=False)
    looker = one.looker()
    assert column(looker.look(), "phy_id") == [0, 1, 3]
    one.set({"chips.2.present": True}, show=False)
    assert column(looker.look(), "phy_id") == [0, 1, 2, 3]


def test_a_chip_keeps_its_identity_when_it_cannot_be_read_again(world):
    one = world("a2", chips=3)
    looker = one.looker()
    before = looker.look().chips[1]
    names = ("get_device_logic_id", "get_device_pcie_info_v2", "get_device_chip_info_v2", "get_device_die_v2", "get_device_elabel_info")
    one.set({"chips.1.dcmi": dict.fromkeys(names, -8006)})
    looker.found_at = float("-inf")  # the time for another detection has come
    after = looker.look().chips[1]
    keys = ("phy_id", "pci_address", "name", "family", "vdie", "serial", "health_code")
    assert {key: after[key] for key in keys} == {key: before[key] for key in keys} and "-8006" in after["error"]


def test_a_function_that_the_driver_never_told_of_is_a_problem(world):
    one = world("a2", chips=3)
    one.set({"chips.1.present": False}, show=False)
    sight = one.looker().look()
    assert column(sight, "phy_id") == [0, 2]
    assert sight.problems == ["the NPU 0000:c2:00.0 is left out: the driver does not know it"]


def test_a_driver_that_is_unbound(world):
    one = world("a2", chips=2)
    looker = one.looker()
    looker.look()
    (one.sys / "bus/pci/devices/0000:c2:00.0/driver").unlink()
    assert column(looker.look(), "driver_bound") == [True, False]


def test_a_new_chip_that_is_slow_at_first_says_who_it_is_soon(world):
    one = world("a2", chips=3)
    one.set({"chips.2.present": False})
    looker = one.looker(query_timeout=20)
    looker.look()
    one.set({"chips.2.present": True, "chips.2.dcmi": {"get_device_chip_info_v2": "hang"}})
    began = time.monotonic()
    assert [chip["serial"] for chip in looker.look().chips if chip["phy_id"] == 2] in ([], [None])
    assert time.monotonic() - began < 15
    one.set({"chips.2.dcmi": {}})
    until(lambda: [chip["serial"] for chip in looker.look().chips if chip["phy_id"] == 2 and chip["serial"]], what="its serial number")


def test_a_hang_shows_at_its_chip_alone(world):
    one = world("a2", chips=4)
    looker = one.looker()
    looker.look()
    one.set({"chips.1.dcmi": {"get_device_errorcode_v2": "hang"}})
    looker.look()
    until(lambda: looker.driver.hung() or looker.wait(1), what="a query that is late")
    sight = one.told[-1]
    assert [chip["hung"] is not None and chip["hung"] >= 1 for chip in sight.chips] == [False, True, False, False]
    hung = sight.chips[1]
    assert (hung["health_code"], hung["error_codes"], hung["dropped"]) == (None, None, False) and "does not come back" in hung["error"]
    assert (hung["phy_id"], hung["serial"]) == (1, looker.identities[1, 0]["serial"]) and sight.complete and sight.problems == []
    assert column(looker.look(), "health_code") == [0, None, 0, 0]
    one.set({"chips.1.dcmi": {}})
    until(lambda: looker.wait(1) or looker.news, what="the chip's return")
    assert column(looker.look(), "health_code", "hung") == [(0, None)] * 4


@pytest.mark.parametrize(("function", "known"), [
    ("get_device_chip_info_v2", {"phy_id": 2, "family": "a2", "pci_address": "0000:81:00.0", "numa_node": 0, "serial": None, "name": None}),
    # Not even its number is known; it is the only device node that is left.
    ("get_device_logic_id", {"phy_id": 2, "family": "a2", "pci_address": "0000:81:00.0", "serial": None}),
    ("get_device_num_in_card", None),
])
def test_a_chip_that_hangs_from_the_start(world, function, known):
    """The agent starts anew while a chip hangs: nobody tells what it is, and what is certain all the same is told."""
    one = world("a2", chips=4)
    one.set({"chips.2.dcmi" if known else "behaviour.dcmi": {function: "hang"}})
    sight = one.looker().look()
    if known is None:
        assert (sight.chips, sight.complete) == ([], False) and len(sight.problems) == 4 and "card 2 is left out" in sight.problems[2]
        return
    chips = {chip["phy_id"]: chip for chip in sight.chips}
    assert sorted(chips) == [0, 1, 2, 3] and sight.complete and sight.problems == []
    assert {key: chips[2][key] for key in known} == known and chips[2]["hung"] >= 1


def test_two_that_hang_from_the_start_are_left_out(world):
    one = world("a2", chips=4)
    one.set({f"chips.{number}.dcmi": {"get_device_logic_id": "hang"} for number in (1, 2)})
    sight = one.looker().look()
    assert (column(sight, "phy_id"), sight.complete) == ([0, 3], False)  # nobody may conclude that they are gone
    assert len(sight.problems) == 2 and "does not come back" in sight.problems[0]


def test_a_crash_is_an_error_of_its_chip(world):
    one = world("a2", chips=3)
    one.set({"chips.0.dcmi": {"get_device_health": "crash"}})
    sight = one.looker().look()
    assert column(sight, "health_code") == [None, 0, 0]
    assert "signal 6" in sight.chips[0]["error"] and sight.chips[0]["hung"] is None


@pytest.mark.parametrize(("behaviour", "words"), [
    ("fail", "8 NPUs on PCI .*, but the chips cannot be asked: dcmi_init answered -8005"), ("hang", "did not answer 'open' in time"),
    ({"get_card_list": "hang"}, "did not answer 'list' in time"), ("crash", "signal 6"),
])
def test_a_driver_that_answers_nothing(world, behaviour, words):
    one = world("a2")
    one.set({"behaviour.dcmi": behaviour})
    looker = one.looker()
    for _unused in range(2):
        sight = looker.look()
        assert (sight.present, sight.chips, sight.complete, len(sight.problems)) == (True, [], False, 1)
        assert re.search(words, sight.problems[0])
    one.set({"behaviour.dcmi": "ok"})
    assert column(looker.look(), "phy_id") == list(range(8))


def test_a_card_that_does_not_tell_its_chips(world):
    one = world("a2", chips=3)
    one.set({"behaviour.dcmi": {"get_device_num_in_card": -8005}})
    looker = one.looker()
    sight = looker.look()
    assert (sight.chips, sight.complete) == ([], False) and "card 0" in sight.problems[0]
    found_at = looker.found_at
    looker.look()
    assert looker.found_at == found_at  # no reason to detect anew with each look


# --- virtual devices

def test_slices_are_asked_for_as_soon_as_a_node_changes(world):
    one = world("310p", chips=2)
    one.set({"chips.0.slices": []})
    looker = one.looker()
    assert column(looker.look(), "slices", "strange_slices") == [([], []), ([], [])]
    one.set({"chips.0.slices": [{"vdev_id": 100, "template": "vir02"}]})
    looker.wait(10)
    assert column(one.told[-1], "slices", "strange_slices") == [([], [100]), ([], [100])]  # known at once: there is one more
    assert column(looker.look(), "slices", "strange_slices") == [([{"vdev_id": 100, "template": "vir02"}], []), ([], [])]
    one.set({"chips.0.slices": []})
    looker.wait(10)
    assert column(looker.look(), "slices") == [[], []]


def test_a_node_that_no_chip_tells_of_is_nobodys_after_a_while(world):
    """One that is just being made may have a node before the driver tells of it; one that was left over must not cost capacity."""
    one = world("310p", chips=2)
    one.set({"chips.0.slices": []})
    looker, late = one.looker(), [0.0]
    looker.clock = lambda: time.monotonic() + late[0]
    looker.look()
    one.set({"chips.1.dcmi": {"get_device_info": -8003}}, show=False)
    make_node(one.dev / "vdavinci150")
    looker.wait(10)
    assert column(looker.look(), "strange_slices") == [[150], [150]]  # asked, but perhaps too early
    assert looker.slices_due - looker.clock() <= 5
    late[0] += 5
    assert column(looker.look(), "slices", "strange_slices") == [([], []), ([], [150])]  # the other one does not answer
    one.set({"chips.1.dcmi": {}}, show=False)
    late[0] += 5
    assert column(looker.look(), "strange_slices") == [[], []]
    assert looker.slices_due - looker.clock() > 25
    (one.dev / "vdavinci150").unlink()
    looker.wait(10)
    make_node(one.dev / "vdavinci150")  # a new one with the number of an old one
    looker.wait(10)
    assert column(one.told[-1], "strange_slices") == column(looker.look(), "strange_slices") == [[150], [150]]
    looker.slices[min(looker.slices)]["slices"] = [{"vdev_id": 150, "template": "vir02"}]
    assert column(looker.sight(), "strange_slices") == [[], []]  # one chip tells of it


# --- nobody to ask

def test_a_node_without_npu(world):
    one = world("a2", chips=0)
    one.set({"kernel.driver_loaded": False})
    for library in (one.variables["NPU_AGENT_DCMI_LIBRARY"], one.dev / "none.so"):
        sight = one.looker(dcmi_library=library).look()
        assert (sight.present, sight.chips, sight.problems, sight.complete) == (False, [], [], True)


def test_a_driver_that_refuses_where_there_was_an_npu_once(world, tmp_path):
    """A board without PCI whose driver is dead looks like a server without NPU with a library left behind."""
    from npu_agent.names_file import render

    one = world("a2", chips=0)
    one.set({"kernel.driver_loaded": False})
    known = {"phy_id": 0, "pci_address": None, "device_id": 0, "serial": None, "vdie": "d"}
    (tmp_path / "names.json").write_text(render([("Ascend910-0", known, None, None)]))
    sight = one.looker(state_dir=str(tmp_path)).look()
    assert (sight.present, sight.chips, sight.complete) == (None, [], False) and "it refuses: dcmi_init answered -8005" in sight.problems[0]


def test_a_board_without_pci_whose_driver_dies(world):
    """Nothing shows any more that there is an NPU, but that there was one."""
    one = world("310b")
    one.tree.make_equal(one.sys / "bus/pci", {"devices": None})
    looker = one.looker()
    assert column(looker.look(), "phy_id", "device_node_present") == [(0, True)]
    one.set({"kernel.driver_loaded": False}, show=False)
    for node in one.dev.iterdir():
        node.unlink()
    sight = looker.look()
    assert (sight.present, sight.complete) == (True, False) and "it refuses" in sight.problems[0]
    assert column(sight, "phy_id", "driver_bound", "device_node_present", "health_code") == [(0, None, False, None)]
    assert one.looker().look().present is False  # who has not seen it cannot know


def test_a_driver_that_goes_takes_its_chips_out_at_once(world):
    """That their nodes are gone is known, though nobody answers: kubelet must not place another pod there."""
    one = world("a2", chips=2)
    looker = one.looker()
    looker.look()
    one.set({"kernel.driver_loaded": False})
    for _look in range(2):
        sight = looker.look()
        assert (sight.present, sight.complete) == (True, False) and "the driver is not loaded" in sight.problems[0]
        assert column(sight, "phy_id", "driver_bound", "device_node_present", "health_code") == [
            (0, False, False, None), (1, False, False, None)]
        assert all("the driver is not loaded" in chip["error"] for chip in sight.chips)
    one.set({"kernel.driver_loaded": True})
    assert column(looker.look(), "phy_id", "driver_bound", "device_node_present", "health_code") == [(0, True, True, 0), (1, True, True, 0)]


def test_a_library_that_comes_back_at_another_place(world, library, monkeypatch, tmp_path):
    from npu_agent import look

    one = world("a2", chips=2)
    with private_folder() as out:
        places = [os.path.join(out, name) for name in ("a.so", "b.so")]
        shutil.copy(library, places[0])
        monkeypatch.setattr(look, "find_library", lambda _install: next(filter(os.path.exists, places), places[0]))
        looker = one.looker(dcmi_library="", dcmi="optional")
        assert column(looker.look(), "health_code") == [0, 0]
        os.rename(*places)
        assert column(looker.look(), "health_code") == [0, 0] and looker.driver.library == places[1]
        one.set({"chips.1.health": 3})
        os.remove(places[1])
        for _look in range(2):
            assert column(looker.look(), "health_code") == [0, 3]  # by the worker that has it still
        looker.driver.worker.child.kill()
        until(lambda: looker.look().chips[0]["health_code"] is None)
        # What was asked once is not taken for well because nobody can be asked.
        sight = looker.look()
        assert column(sight, "health_code", "unasked") == [(None, False)] * 2 and "there is no" in sight.problems[0]
        assert not looker.driver.events


def test_events_are_told_though_the_driver_does_not_answer_any_more(world):
    one = world("a2", chips=2)
    looker = one.looker()
    looker.look()
    one.set({"kernel.driver_loaded": False})
    looker.look()
    looker.driver.hear({"logic_id": 1, "code": "80E01801", "assertion": "occur", "severity": 2, "serial": 5, "at": 1.0})
    assert [(event["phy_id"], event["code"]) for event in looker.look().events] == [(1, "80E01801")]
    assert looker.look().events == [] and not looker.driver.events


def test_a_node_that_may_be_of_two_is_of_none(world):
    """One chip does not tell its number and has no node; another one is gone for the driver and has left its node."""
    one = world("a2", chips=4)
    one.set({"chips.1.dcmi": {"get_device_logic_id": -8012}, "chips.3.present": False}, show=False)
    (one.dev / "davinci1").unlink()
    sight = one.looker().look()
    assert column(sight, "phy_id") == [0, 2] and any("-8012" in problem for problem in sight.problems)


def test_a_name_that_nobody_knows_is_told(world):
    one = world("a2", chips=2)
    one.set({"chips.1.name": "Ascend999X", "chips.1.pci": {"device": "0xd999"}})
    sight = one.looker().look()
    assert column(sight, "phy_id") == [0] and any("its name, Ascend999X, is of no family" in problem for problem in sight.problems)


def test_a_driver_that_is_not_loaded(world):
    one = world("a2")
    one.set({"kernel.driver_loaded": False})
    for how in ("required", "optional"):
        sight = one.looker(dcmi_library=one.dev / "none.so", dcmi=how).look()
        assert (sight.present, sight.chips, sight.complete) == (True, [], False)
        assert "8 NPUs on PCI" in sight.problems[0] and "the driver is not loaded" in sight.problems[0] and "none.so" in sight.problems[0]


@pytest.mark.parametrize(("product", "chips", "change", "expected"), [
    ("a2", 1, {}, {"family": "a2", "pci_address": "0000:c1:00.0", "numa_node": 0, "driver_bound": True}),
    ("a2", 8, {}, {"family": "a2", "pci_address": None, "numa_node": None, "driver_bound": True}),
    ("310p-duo", 2, {}, {"family": "310p", "pci_address": None, "numa_node": None, "driver_bound": True}),  # two behind one function
    ("a2", 2, {"chips.1.pci": {"device": "0xd500"}}, None),  # whose node is whose?
])
def test_without_a_library(world, product, chips, change, expected):
    one = world(product, chips=chips)
    one.set({"chips.0.slices": [], **change})
    refused = one.looker(dcmi_library=one.dev / "none.so").look()
    assert (refused.chips, refused.complete) == ([], False) and "none.so" in refused.problems[0]
    sight = one.looker(dcmi_library=one.dev / "none.so", dcmi="optional").look()
    if expected is None:
        assert (sight.chips, sight.complete) == ([], False) and "310p, a2" in sight.problems[0] and "`family`" in sight.problems[0]
        return
    assert column(sight, "phy_id") == list(range(chips)) and (sight.present, sight.complete, sight.problems) == (True, True, [])
    unknown = ("health_code", "error_codes", "serial", "vdie", "name", "card_id", "device_id", "telemetry", "hung", "error", "aicore_count")
    for chip in sight.chips:
        assert {key: chip[key] for key in expected} == expected
        assert {chip[key] for key in unknown} == {None}
        assert (chip["unasked"], chip["dropped"], chip["slices"], chip["device_node_present"]) == (True, False, [], True)
    assert set(sight.chips[0]) >= set(one.looker().look().chips[0])  # no key is missing


def test_without_a_library_nobody_tells_whose_virtual_devices_are(world):
    one = world("310p", chips=2)
    one.set({"chips.0.slices": [{"vdev_id": 100, "template": "vir01"}]})
    assert column(one.looker(dcmi_library=one.dev / "none.so", dcmi="optional").look(), "slices") == [None, None]


def test_a_board_without_pci_and_without_a_library(world):
    one = world("310b")
    one.tree.make_equal(one.sys / "bus/pci", {"devices": None})
    settings = {"dcmi_library": one.dev / "none.so", "dcmi": "optional"}
    assert "PCI shows no NPU" in one.looker(**settings).look().problems[0]
    assert column(one.looker(**settings, family="310b").look(), "family", "phy_id", "driver_bound") == [("310b", 0, None)]
