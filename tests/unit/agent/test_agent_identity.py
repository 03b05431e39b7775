# SPDX-License-Identifier: GPL-3.0-or-later
"""Lasting names: which chip is which after a renumbering, an exchange, a restart."""

import random

import pytest
from names_rig import chip, given


def test_first_names_are_the_vendors(names):
    table = names()
    found = table.assign([chip(3, "a"), chip(0, "b", family="310p"), chip(1, "c", family="a5")], True)
    assert [entry.name for entry in found] == ["Ascend910-3", "Ascend310P-0", "npu-1"]


@pytest.mark.parametrize("evidence", [
    {"vdie": "die{}"},
    {"serial": "card", "device_id": None},  # a Duo: one serial number, the place tells its chips apart
    {"serial": "card{}"},
    {},
], ids=["die", "duo", "serial", "address"])
def test_a_chip_keeps_its_name_and_has_its_new_number(names, evidence):
    def seen(number, phy_id):
        changes = {key: value.format(number) if value else number for key, value in evidence.items()}
        address = "0000:01:00.0" if "device_id" in evidence else f"0000:{number:02x}:00.0"
        return chip(phy_id, **{"pci_address": address, **changes})

    assert given(names(), seen(0, 0), seen(1, 1), seen(2, 2)) == [0, 1, 2]
    later = names()
    assert given(later, seen(0, 2), seen(2, 0), seen(1, 1)) == [0, 2, 1]
    assert later.assign([seen(0, 2), seen(2, 0), seen(1, 1)], True)[0].known["phy_id"] == 2


def test_new_numbers_while_it_runs(names):
    table = names()
    before = table.assign([chip(0, "a"), chip(1, "b")], True)
    after = table.assign([chip(0, "b"), chip(1, "a")], True)
    assert after == before[::-1]


def test_an_exchanged_card_takes_the_name_over(names):
    given(names(), chip(0, "a"), chip(1, "b"))
    table = names()
    (old,) = [entry for entry in table.entries if entry.name == "Ascend910-1"]
    first, second = table.assign([chip(0, "a"), chip(1, "new")], True)
    assert (first.name, second.name) == ("Ascend910-0", "Ascend910-1") and second.key != old.key
    assert [event for event, _level, _fields in table.events] == ["name taken over"]


def test_a_name_in_use_is_not_taken(names):
    table = names()
    given(table, chip(0, "a"), chip(1, "b"))
    # The driver numbers anew, with a card more: the new one is davinci0, which names the chip that is davinci2 now.
    assert given(table, chip(0, "new"), chip(1, "b"), chip(2, "a")) == [2, 1, 0]
    assert given(names(), chip(2, "new"), chip(0, "b"), chip(1, "a")) == [2, 1, 0]


def test_the_lowest_free_number_is_no_ones_natural_name(names):
    table = names()
    given(table, chip(0, "a"), chip(1, "b"))
    # Two new ones: davinci0's name is in use, so it needs a number; the other one is davinci2 and has a right to that name.
    assert given(table, chip(0, "x"), chip(1, "b"), chip(2, "y"), chip(3, "a")) == [3, 1, 2, 0]


def test_names_of_chips_that_are_away_are_not_the_lowest_free_ones(names):
    table = names()
    given(table, chip(0, "a"), chip(1, "b"), chip(2, "c"))
    assert given(table, chip(0, "x"), chip(3, "a"), complete=True) == [3, 0]  # 1 and 2 are away, and keep their names
    assert given(table, chip(0, "x"), chip(3, "a"), chip(1, "b"), chip(2, "c")) == [3, 0, 1, 2]


def test_nothing_is_taken_from_a_chip_that_may_be_there(names):
    table = names()
    given(table, chip(0, "a"), chip(1, "b"))
    assert given(table, chip(0, "a"), chip(1, "new"), complete=False) == [0, 2]
    assert given(table, chip(0, "a"), chip(1, "new"), chip(3, "b")) == [0, 2, 1]


def test_stronger_evidence_decides(names):
    table = names()
    given(table, chip(0, "a", serial="s0"), chip(1, "b", serial="s1"))
    assert given(table, chip(0, "b", serial="s0"), chip(1, "a", serial="s1")) == [1, 0]  # dies, whatever the cards say
    assert given(table, chip(0, None, serial="s0", pci_address="0000:01:00.0")) == [1]  # serial numbers before addresses
    assert given(table, chip(5, "a", serial=None, pci_address=None)) == [0]
    # One that is there by its address only does not get the name of one that is known by its die.
    table = names(folder=None)
    given(table, chip(0, "a"))
    assert given(table, chip(0), chip(1, "a")) == [1, 0]


def test_evidence_that_comes_late_is_of_the_same_chip(names):
    """The driver may not tell a die's id in each look, and without DCMI there is only PCI."""
    table = names()
    first = table.assign([chip(0), chip(1)], True)
    assert table.assign([chip(0, "a"), chip(1, "b", serial="s")], True) == first
    assert table.assign([chip(0), chip(1)], False) == first
    assert table.assign([chip(0, "b"), chip(1, "a")], True) == first[::-1]


def test_evidence_that_chips_share_says_nothing(names):
    """Serial numbers that were never set are all the same."""
    table = names()
    assert given(table, chip(0, serial="NA"), chip(1, serial="NA"), chip(2, serial="NA")) == [0, 1, 2]
    assert given(table, chip(2, serial="NA"), chip(0, serial="NA")) == [2, 0]


LAZY = {
    "zeros": {"serial": "0000000000"}, "F": {"serial": "FFFF-FFFF"}, "maker": {"serial": "To be filled by O.E.M."},
    "odd": {"serial": "SN12"}, "die of zeros": {"vdie": "-".join(["00000000"] * 5)}, "one die": {"vdie": "12-34"},
    "blank": {"serial": "  ", "vdie": "N/A"},
}


@pytest.mark.parametrize("lazy", LAZY.values(), ids=LAZY)
@pytest.mark.parametrize(("seen", "complete"), [((1,), True), ((1,), False), ((0,), True), ((1, 0), True)])
@pytest.mark.parametrize("again", [True, False], ids=["restart", "running"])
def test_evidence_of_several_chips_matches_none_of_them(names, lazy, seen, complete, again):
    """Also where only one of them is there: it is not the other one."""
    table = names()
    assert given(table, chip(0, **lazy), chip(1, **lazy)) == [0, 1]
    table = names() if again else table
    assert given(table, *(chip(number, **lazy) for number in seen), complete=complete) == list(seen)


def test_a_chip_that_hangs_does_not_lose_its_name_to_one_with_the_same_serial_number(names):
    given(names(), chip(0, serial="SN12"), chip(1, serial="SN12"))
    dumb = chip(0, pci_address=None, device_id=None)
    assert given(names(), dumb, chip(1, serial="SN12"), complete=False) == [0, 1]


def test_two_duos_with_one_serial_number(names):
    cards = [chip(number, family="310p", serial="SN12", device_id=number % 2, pci_address=f"0000:0{number // 2}:00.0")
             for number in range(4)]
    table = names()
    assert given(table, *cards) == [0, 1, 2, 3]
    assert given(table, *cards[2:]) == given(names(), *cards[2:]) == [2, 3]
    assert given(table, *cards) == [0, 1, 2, 3]


def test_a_value_that_was_never_set_is_no_evidence_of_a_single_chip(names):
    given(names(), chip(0, serial="0000000000"))
    assert given(names(), chip(5, serial="0000000000")) == [5]
    assert given(names(), chip(6, serial="0000000001"), chip(0, serial="0000000000")) == [6, 0]
    assert given(names(), chip(2, serial="0000000001"), chip(0, serial="0000000000")) == [6, 0]  # a real one, though it looks alike


def test_a_place_is_that_of_who_was_there_last(names):
    table = names()
    given(table, chip(0, "a"))
    given(table, chip(5, "b", pci_address="0000:00:00.0"))  # a went, b came into its slot
    assert given(table, chip(5, pci_address="0000:00:00.0")) == [5]
    assert given(table, chip(0, "a", pci_address="0000:09:00.0")) == [0]


def test_another_kind_of_name_is_another_chip(names):
    """A driver that tells another family: the name would be of the wrong resource."""
    table = names()
    assert [entry.name for entry in table.assign([chip(0, "a", family="310")], True)] == ["Ascend310-0"]
    assert [entry.name for entry in table.assign([chip(0, "a", family="310p")], True)] == ["Ascend310P-0"]


def test_many_turns(names):
    """Chips come, go, are exchanged and numbered anew, agents start anew: a chip that stays has its name, and none is there twice."""
    dice, table, known, serial = random.Random(7), names(), {}, 0
    for _turn in range(300):
        present = dice.sample(sorted(known), dice.randint(0, len(known))) if dice.random() < 0.3 else sorted(known)
        while len(present) < dice.randint(1, 8):
            serial += 1
            present.append(f"die{serial}")
        numbers = dice.sample(range(30), len(present)) if dice.random() < 0.5 else range(len(present))
        records = [chip(phy_id, vdie, pci_address=None) for phy_id, vdie in zip(numbers, present, strict=True)]
        if dice.random() < 0.2:
            table = names()
        for record, number in zip(records, given(table, *records), strict=True):
            assert known.get(record["vdie"], number) == number
            known = {vdie: other for vdie, other in known.items() if other != number}
            known[record["vdie"]] = number
    assert len(table.entries) < 50
