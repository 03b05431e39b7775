# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet is told of a node: which resources, which ids, which of them may take work."""

import os
import threading
from types import SimpleNamespace

from node_rig import A2, P310, record, sight, state, told


def test_changes_only_are_told(make):
    node = make()
    assert node.update(sight(record(0), record(1)), 0) == {A2}
    board = node.boards[A2]
    waiter = threading.Event()
    board.waiters.add(waiter)
    assert list(board.units) == ["Ascend910-0", "Ascend910-1"] and board.family == "a2" and board.version == 1
    assert node.update(sight(record(0), record(1)), 1) == set() and not waiter.is_set()
    assert node.update(sight(record(0), record(1, 3)), 2) == {A2}
    assert board.count() == (1, 2) and waiter.is_set() and board.version == 2
    assert node.update(sight(record(0), record(1)), 3) == {A2}
    # What kubelet is not told makes no new list.
    hot = record(0, telemetry={"temperature_c": 95, "temperature_limit_c": None, "ecc": None})
    assert node.update(sight(hot, record(1)), 4) == set()
    assert board.units["Ascend910-0"].rank > 0 and board.units["Ascend910-0"].degraded and board.version == 3


def test_each_change_is_logged_once(make):
    node = make()
    for now in range(3):
        node.update(sight(record(0), record(1, 3)), now)
    node.update(sight(record(0), record(1)), 3)
    chips = [(fields["id"], fields["healthy"]) for event, fields in node.events if event == "chip"]
    assert chips == [("Ascend910-0", True), ("Ascend910-1", False), ("Ascend910-1", True)]


def test_no_id_twice(make):
    node = make()
    node.update(sight(record(0), record(0, 3, pci_address="0000:09:00.0", vdie="other"), record(1)), 0)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}
    assert node.problems == ["0000:09:00.0 has the physical id 0 of another chip and is left out"]


def test_a_failed_look_is_not_zero_chips(make):
    node = make()
    node.update(sight(record(0), record(1, 3)), 0)
    nothing = sight(problems=["DCMI hangs"], complete=False)
    assert node.update(nothing, 10) == set() and node.next_review == 30
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": False}
    assert node.review(30) == {A2}
    board = node.boards[A2]
    assert state(board) == {"Ascend910-0": False, "Ascend910-1": False} and "DCMI hangs" in board.units["Ascend910-0"].reason
    assert not board.units["Ascend910-0"].gone


def test_a_chip_that_is_gone_stays_in_the_list(make):
    node = make()
    node.update(sight(record(0), record(1)), 0)
    assert node.update(sight(record(0)), 1) == {A2}
    gone = node.boards[A2].units["Ascend910-1"]
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": False} and gone.gone
    node.update(sight(record(0), problems=["no answer"], complete=False), 2)
    assert node.boards[A2].units["Ascend910-1"].gone  # what was certain stays so
    node.update(sight(record(0), record(1)), 3)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True} and not node.boards[A2].units["Ascend910-1"].gone
    node.update(sight(present=False), 4)
    assert node.present is False and node.boards[A2].count() == (0, 2)


def test_nothing_is_served_before_chips_are_known(make):
    node = make()
    assert node.present is None
    assert node.update(sight(problems=["no driver"], complete=False), 0) == set()
    assert node.boards == {} and node.problems == ["no driver"] and node.present


def test_an_event_counts_for_its_chip_only(make):
    node = make()
    node.update(sight(record(0), record(1)), 0)
    fault = {"phy_id": 1, "code": "80E01801", "assertion": "occur", "severity": 3}
    assert node.update(sight(record(0), record(1), events=[fault]), 1) == {A2}
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": False}
    # A number that a chip had once is another's now.
    node = make()
    node.update(sight(record(0), record(1)), 0)
    node.update(sight(record(1, vdie="die0"), events=[fault]), 1)
    node.update(sight(record(1, vdie="die0"), record(0, 1, vdie="die1", error_codes=None)), 2)
    told(node, 4)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}


def test_time_alone_brings_a_chip_back(make):
    node = make(recovery_seconds=10.0)
    node.update(sight(record(0, 3)), 0)
    node.update(sight(record(0)), 5)
    assert node.next_review == 15 and node.review(14) == set()
    assert node.review(15) == {A2} and state(node.boards[A2]) == {"Ascend910-0": True}
    assert node.next_review == 50  # then the answer is too old


def test_what_is_remembered_survives_other_settings(make):
    node = make(recovery_seconds=1000.0)
    node.update(sight(record(0, 3)), 0)
    settings = SimpleNamespace(**{**vars(node.settings), "recovery_seconds": 20.0})
    node.reload(settings, node.health.levels)
    node.update(sight(record(0)), 1)
    assert state(node.boards[A2]) == {"Ascend910-0": False} and node.next_review == 21


def test_memory_pressure_lowers_the_rank(make, tmp_path):
    folder = tmp_path / "devices/system/node/node1"
    folder.mkdir(parents=True)
    (folder / "meminfo").write_text("Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 10 kB\n")
    node = make(degraded_memory=5.0)
    node.update(sight(record(0), record(1, numa_node=1)), 0)
    ranks = [chip.rank for chip in node.boards[A2].units.values()]
    assert ranks[0] == 0 < ranks[1]
    (folder / "meminfo").write_text("Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 900 kB\n")
    node.review(5)
    assert [chip.rank for chip in node.boards[A2].units.values()] == ranks  # not looked at with each judgement
    node.review(10)
    assert [chip.rank for chip in node.boards[A2].units.values()] == [0, 0]


# --- several kinds

def test_each_kind_is_a_resource(make):
    node = make()
    assert node.update(sight(record(0), record(1, family="310p")), 0) == {A2, P310}
    assert list(node.boards[A2].units) == ["Ascend910-0"] and list(node.boards[P310].units) == ["Ascend310P-1"]
    assert node.update(sight(record(0, 3), record(1, family="310p")), 1) == {A2}


def test_one_resource_name_is_for_one_kind(make):
    node = make(resource_name="example.com/npu")
    records = [record(0), record(1, family="310p"), record(2, family="910")]
    assert node.update(sight(*records), 0) == set() and node.boards == {}  # nobody could know what it gets
    assert len(node.problems) == 1 and "none of 310p, 910, a2 has it; set `family`" in node.problems[0]
    assert node.update(sight(*records[::2]), 1) == set()  # a chip that is gone may come back
    node = make(resource_name="example.com/npu")
    assert node.update(sight(*records[::2]), 1) == {"example.com/npu"} and node.problems == []


def test_a_kind_that_comes_later_does_not_get_the_name(make):
    node = make(resource_name="example.com/npu")
    node.update(sight(record(0)), 0)
    node.update(sight(record(0), record(1, family="310p")), 1)
    assert list(node.boards["example.com/npu"].units) == ["Ascend910-0"]
    assert "a2 has it until npu-agent starts anew, but not 310p" in node.problems[0]


def test_families_with_one_resource_are_one_kind(make):
    node = make(resource_name="example.com/npu")
    node.update(sight(record(0), record(2, family="910")), 0)
    assert list(node.boards["example.com/npu"].units) == ["Ascend910-0", "Ascend910-2"] and node.problems == []


# --- lasting names, seen from outside

def test_names_stay_with_the_hardware(make, tmp_path):
    folder = tmp_path / "state"
    node = make(state_dir=str(folder))
    node.update(sight(record(0), record(1, 3)), 0)
    node.names.file.writer.join(10)
    later = make(state_dir=str(folder))
    later.update(sight(record(1, vdie="die0"), record(0, 3, vdie="die1")), 0)  # the driver has numbered them anew
    told(later, 60)
    units = later.boards[A2].units
    assert {name: (chip.phy_id, chip.healthy) for name, chip in units.items()} == {"Ascend910-0": (1, True), "Ascend910-1": (0, False)}


def test_an_exchanged_card_takes_the_name_over(make):
    node = make(flap_count=1, flap_hold=1000.0)
    node.update(sight(record(0), record(1)), 0)
    node.update(sight(record(0)), 1)
    assert node.update(sight(record(0), record(1, vdie="new")), 2) == {A2}
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}  # nothing is held against the new one
    assert len(node.health.memory) == 2


def test_unseen_chip_whose_number_is_anothers_is_gone(make):
    node = make()
    node.update(sight(record(0), record(1)), 0)
    node.update(sight(record(1, vdie="die0"), complete=False, problems=["no answer"]), 1)
    units = node.boards[A2].units
    assert units["Ascend910-0"].phy_id == 1 and units["Ascend910-1"].gone


def test_a_chip_that_tells_late_who_it_is_has_one_name(make, tmp_path):
    """Numbered anew while it hangs, so that only its number is known: that one is another's name."""
    folder = tmp_path / "state"
    node = make(state_dir=str(folder))
    node.update(sight(record(0), record(1)), 0)
    node.names.file.writer.join(10)
    later = make(state_dir=str(folder))
    dumb = record(1, None, vdie=None, pci_address=None, device_id=None, hung=10.0, error="hangs")
    later.update(sight(record(0, vdie="die1", pci_address="0000:01:00.0"), dumb, complete=False), 0)
    assert state(later.boards[A2]) == {"Ascend910-1": False, "Ascend910-2": False}
    assert "waiting for kubelet" in later.boards[A2].units["Ascend910-1"].reason
    later.update(sight(record(0, vdie="die1", pci_address="0000:01:00.0"),
                       record(1, vdie="die0", pci_address="0000:00:00.0")), 1)
    told(later, 60)
    assert state(later.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}
    assert sorted(entry.name for entry in later.names.entries) == ["Ascend910-0", "Ascend910-1"]


def test_an_agent_that_stood_by_goes_by_the_names_of_the_other(make, tmp_path):
    folder = tmp_path / "state"
    node, nodes = make(state_dir=str(folder), recovery_seconds=1000.0), sight(record(0), record(1, 3), record(2))
    node.update(nodes, 0)
    node.names.file.writer.join(10)
    node.update(sight(record(0), record(1), complete=False), 1)
    node.stand_by(True, 1)
    text = (folder / "names.json").read_text()
    (folder / "names.json").write_text(text.replace("Ascend910-0", "Ascend910-9"))
    node.update(sight(record(0), record(1), complete=False), 2)
    assert "Ascend910-9" in (folder / "names.json").read_text() and "Ascend910-0" in node.boards[A2].units
    node.stand_by(False, 3)
    assert state(node.boards[A2]) == {"Ascend910-1": False, "Ascend910-2": True, "Ascend910-9": True}  # the hold-down of 1 goes on


def test_a_table_that_cannot_be_kept_is_a_problem_of_the_node(make, tmp_path):
    (tmp_path / "names.json").write_text('{"schema": 2, "names": {}}')
    node = make(state_dir=str(tmp_path))
    node.update(sight(record(0)), 0)
    assert len(node.problems) == 1 and "a newer npu-agent has written it" in node.problems[0]


def test_slow_disk_holds_nothing_up(make, tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _descriptor: release.wait(60))
    node = make(state_dir=str(tmp_path / "state"))
    node.update(sight(record(0)), 0)
    try:
        assert node.boards[A2].count() == (1, 1) and node.names.file.writer.is_alive()
    finally:
        release.set()
        node.names.file.writer.join(60)
