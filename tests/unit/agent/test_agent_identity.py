# SPDX-License-Identifier: GPL-3.0-or-later
"""Lasting names: which chip is which after a renumbering, an exchange, a restart, and what becomes of the file."""

import json
import os
import random
import shutil
import stat
from pathlib import Path

import pytest


@pytest.fixture
def identity(package):
    import npu_agent.identity

    return npu_agent.identity


@pytest.fixture
def names(identity, tmp_path):
    """A function that makes a table of names; each one is an agent that starts anew. Its log is in `events`."""

    def make(folder=tmp_path / "state"):
        events = []
        made = identity.Names(str(folder) if folder else "", lambda event, level="info", **fields: events.append((event, level, fields)))
        made.events = events
        return made

    return make


def chip(phy_id, vdie=None, family="a2", **changes):
    values = {"phy_id": phy_id, "family": family, "vdie": vdie, "serial": None, "device_id": 0, "pci_address": f"0000:{phy_id:02x}:00.0"}
    return {**values, **changes}


def given(table, *records, complete=True):
    """The numbers of the names, in the order of the records."""
    found = [entry.name for entry in table.assign(list(records), complete)]
    if table.writer is not None:
        table.writer.join(60)
    assert len(set(found)) == len(found)
    return [int(name.rpartition("-")[2]) for name in found]


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


# --- the file

def path(tmp_path):
    return tmp_path / "state/names.json"


def test_the_file_is_ours_alone_and_whole(names, tmp_path):
    given(names(), chip(0, "a"))
    assert stat.S_IMODE(os.stat(path(tmp_path)).st_mode) == 0o600 and stat.S_IMODE(os.stat(tmp_path / "state").st_mode) == 0o700
    assert json.loads(path(tmp_path).read_text()) == {"schema": 1, "names": {"Ascend910-0": {
        "vdie": "a", "serial": None, "device_id": 0, "pci_address": "0000:00:00.0", "phy_id": 0}}}
    assert os.listdir(tmp_path / "state") == ["names.json"]


def test_written_only_when_it_says_something_else(names, tmp_path):
    table = names()
    given(table, chip(0, "a"))
    before = os.stat(path(tmp_path)).st_mtime_ns
    given(table, chip(0, "a"))
    given(names(), chip(0, "a"))
    assert os.stat(path(tmp_path)).st_mtime_ns == before
    given(table, chip(1, "a"))
    assert os.stat(path(tmp_path)).st_mtime_ns != before


GOOD = {"vdie": "a", "serial": None, "device_id": 0, "pci_address": None, "phy_id": 5}


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"schema": 2, "names": {}}', b'{"names": {}}', b'{"schema": 1, "names": []}',
    json.dumps({"schema": 1, "names": {"Ascend910-x": GOOD}}).encode(), json.dumps({"schema": 1, "names": {"Ascend910-0": {}}}).encode(),
    json.dumps({"schema": 1, "names": {"../x-0": GOOD}}).encode(), json.dumps({"schema": 1, "names": {"Ascend910-00": GOOD}}).encode(),
    json.dumps({"schema": 1, "names": {"Ascend910-0": {**GOOD, "phy_id": "5"}}}).encode(),
    json.dumps({"schema": 1, "names": {"Ascend910-0": {**GOOD, "vdie": 5}}}).encode(), b" " * (2 << 20), b"[" * 100000,
])
def test_a_broken_file_is_neither_trusted_nor_lost(names, tmp_path, content):
    path(tmp_path).parent.mkdir()
    path(tmp_path).write_bytes(content)
    for number in ("", "1"):
        table = names()
        assert given(table, chip(3, "a")) == [3]
        assert [(event, level) for event, level, _fields in table.events] == [("names of chips are started anew", "error")]
        aside = Path(f"{path(tmp_path)}.broken{number}")
        assert aside.read_bytes() == content and str(aside) in table.events[0][2]["cause"]
        path(tmp_path).write_bytes(content)


def test_a_file_that_cannot_be_moved_away_stays(names, tmp_path, identity, monkeypatch):
    path(tmp_path).parent.mkdir()
    path(tmp_path).write_text("{")

    def refuse(*_words):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(identity.os, "rename", refuse)
    table = names()
    given(table, chip(0, "a"))
    given(table, chip(1, "a"))
    assert path(tmp_path).read_text() == "{" and len(table.events) == 1 and "Read-only file system" in table.events[0][2]["cause"]


def test_no_folder_is_said_once(names):
    table = names(folder=None)
    assert given(table, chip(0, "a")) == [0] and given(table, chip(1, "a")) == [0]
    assert [(event, fields["cause"]) for event, _level, fields in table.events] == [
        ("names of chips are not kept", "`state_dir` is empty: after a renumbering chips get other names"),
    ]


def test_a_folder_that_cannot_be_written_is_said_once_and_tried_again(names, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    table = names(folder=blocked / "state")
    for number in range(3):
        assert given(table, chip(number, "a")) == [0]
    assert [event for event, _level, _fields in table.events] == ["names of chips are not kept"]
    assert "Not a directory" in table.events[0][2]["cause"]
    blocked.unlink()
    given(table, chip(2, "a"))
    assert json.loads((blocked / "state/names.json").read_text())["names"]["Ascend910-0"]["phy_id"] == 2
    shutil.rmtree(blocked)
    blocked.write_text("")
    given(table, chip(3, "a"))
    assert len(table.events) == 2  # a new time, said again


def test_a_crash_leaves_the_old_file(names, tmp_path, identity, monkeypatch):
    given(names(), chip(0, "a"))
    before = path(tmp_path).read_text()

    def full(*_words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(identity.os, "fsync", full)
    table = names()
    given(table, chip(1, "a"))
    assert path(tmp_path).read_text() == before and os.listdir(tmp_path / "state") == ["names.json"]
    assert "No space left on device" in table.events[0][2]["cause"]
