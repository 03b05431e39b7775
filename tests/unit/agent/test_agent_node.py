# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet is told of a node: which resources, which ids, which of them may take work."""

import os
import threading
from types import SimpleNamespace

import pytest
from agent_rig import make_node

MEMORY = {"keep_last_state": 30.0, "unhealthy_from": "major", "recovery_seconds": 0.0, "flap_count": 0, "flap_window": 1.0,
          "flap_hold": 1.0, "degraded_seconds": 60.0, "degraded_temperature": 85.0, "degraded_memory": 0.0}


@pytest.fixture
def agent(package):
    import npu_agent.faults
    import npu_agent.look
    import npu_agent.node
    import npu_agent.units

    return npu_agent


@pytest.fixture
def make(agent, tmp_path):
    """A Node, after the one before; its log is in `events`, a payload is the repr of what kubelet would get."""
    nodes = []

    def node(**settings):
        if nodes:
            nodes[-1].names.close()
        values = {**MEMORY, "resource_name": "", "shares": 1, "state_dir": "", "dev_root": str(tmp_path), "sysfs_root": str(tmp_path)}
        events = []
        made = agent.node.Node(
            SimpleNamespace(**{**values, **settings}), lambda event, level="info", **fields: events.append((event, fields)),
            lambda units: repr([(name, chip.healthy, chip.numa_node) for name, chip in units]).encode(), agent.faults.load(),
        )
        made.events = events
        nodes.append(made)
        return made

    return node


def record(phy_id, code=0, **changes):
    values = {"phy_id": phy_id, "card_id": phy_id, "device_id": 0, "name": "", "family": "a2", "pci_address": f"0000:{phy_id:02x}:00.0",
              "numa_node": 0, "serial": None, "vdie": f"die{phy_id}", "aicore_count": None, "driver_bound": True,
              "device_node": f"/dev/davinci{phy_id}", "device_node_present": True, "health_code": code, "error_codes": [],
              "dropped": False, "error": None, "hung": None, "unasked": False, "telemetry": None, "slices": []}
    return {**values, **changes}


def sight(agent, *records, present=True, problems=(), complete=True, events=()):
    return agent.look.Sight(present, list(records), list(problems), complete, list(events))


def state(board):
    return {name: chip.healthy for name, chip in board.units.items()}


A2, P310 = "huawei.com/Ascend910", "huawei.com/Ascend310P"


def test_changes_only_are_told(agent, make):
    node = make()
    assert node.update(sight(agent, record(0), record(1)), 0) == {A2}
    board = node.boards[A2]
    waiter = threading.Event()
    board.waiters.add(waiter)
    assert list(board.units) == ["Ascend910-0", "Ascend910-1"] and board.family == "a2" and board.version == 1
    assert node.update(sight(agent, record(0), record(1)), 1) == set() and not waiter.is_set()
    assert node.update(sight(agent, record(0), record(1, 3)), 2) == {A2}
    assert board.count() == (1, 2) and waiter.is_set() and board.version == 2
    assert node.update(sight(agent, record(0), record(1)), 3) == {A2}
    # What kubelet is not told makes no new list.
    hot = record(0, telemetry={"temperature_c": 95, "temperature_limit_c": None, "ecc": None})
    assert node.update(sight(agent, hot, record(1)), 4) == set()
    assert board.units["Ascend910-0"].rank > 0 and board.units["Ascend910-0"].degraded and board.version == 3


def test_each_change_is_logged_once(agent, make):
    node = make()
    for now in range(3):
        node.update(sight(agent, record(0), record(1, 3)), now)
    node.update(sight(agent, record(0), record(1)), 3)
    chips = [(fields["id"], fields["healthy"]) for event, fields in node.events if event == "chip"]
    assert chips == [("Ascend910-0", True), ("Ascend910-1", False), ("Ascend910-1", True)]


def test_no_id_twice(agent, make):
    node = make()
    node.update(sight(agent, record(0), record(0, 3, pci_address="0000:09:00.0", vdie="other"), record(1)), 0)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}
    assert node.problems == ["0000:09:00.0 has the physical id 0 of another chip and is left out"]


def test_a_failed_look_is_not_zero_chips(agent, make):
    node = make()
    node.update(sight(agent, record(0), record(1, 3)), 0)
    nothing = sight(agent, problems=["DCMI hangs"], complete=False)
    assert node.update(nothing, 10) == set() and node.next_review == 30
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": False}
    assert node.review(30) == {A2}
    board = node.boards[A2]
    assert state(board) == {"Ascend910-0": False, "Ascend910-1": False} and "DCMI hangs" in board.units["Ascend910-0"].reason
    assert not board.units["Ascend910-0"].gone


def test_a_chip_that_is_gone_stays_in_the_list(agent, make):
    node = make()
    node.update(sight(agent, record(0), record(1)), 0)
    assert node.update(sight(agent, record(0)), 1) == {A2}
    gone = node.boards[A2].units["Ascend910-1"]
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": False} and gone.gone
    node.update(sight(agent, record(0), problems=["no answer"], complete=False), 2)
    assert node.boards[A2].units["Ascend910-1"].gone  # what was certain stays so
    node.update(sight(agent, record(0), record(1)), 3)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True} and not node.boards[A2].units["Ascend910-1"].gone
    node.update(sight(agent, present=False), 4)
    assert node.present is False and node.boards[A2].count() == (0, 2)


def test_nothing_is_served_before_chips_are_known(agent, make):
    node = make()
    assert node.present is None
    assert node.update(sight(agent, problems=["no driver"], complete=False), 0) == set()
    assert node.boards == {} and node.problems == ["no driver"] and node.present


def test_an_event_counts_for_its_chip_only(agent, make):
    node = make()
    node.update(sight(agent, record(0), record(1)), 0)
    fault = {"phy_id": 1, "code": "80E01801", "assertion": "occur", "severity": 3}
    assert node.update(sight(agent, record(0), record(1), events=[fault]), 1) == {A2}
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": False}
    # A number that a chip had once is another's now.
    node = make()
    node.update(sight(agent, record(0), record(1)), 0)
    node.update(sight(agent, record(1, vdie="die0"), events=[fault]), 1)
    node.update(sight(agent, record(1, vdie="die0"), record(0, 1, vdie="die1", error_codes=None)), 2)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}


def test_time_alone_brings_a_chip_back(agent, make):
    node = make(recovery_seconds=10.0)
    node.update(sight(agent, record(0, 3)), 0)
    node.update(sight(agent, record(0)), 5)
    assert node.next_review == 15 and node.review(14) == set()
    assert node.review(15) == {A2} and state(node.boards[A2]) == {"Ascend910-0": True} and node.next_review is None


def test_what_is_remembered_survives_other_settings(agent, make):
    node = make(recovery_seconds=1000.0)
    node.update(sight(agent, record(0, 3)), 0)
    settings = SimpleNamespace(**{**vars(node.settings), "recovery_seconds": 20.0})
    node.reload(settings, agent.faults.load())
    node.update(sight(agent, record(0)), 1)
    assert state(node.boards[A2]) == {"Ascend910-0": False} and node.next_review == 21


def test_memory_pressure_lowers_the_rank(agent, make, tmp_path):
    folder = tmp_path / "devices/system/node/node1"
    folder.mkdir(parents=True)
    (folder / "meminfo").write_text("Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 10 kB\n")
    node = make(degraded_memory=5.0)
    node.update(sight(agent, record(0), record(1, numa_node=1)), 0)
    ranks = [chip.rank for chip in node.boards[A2].units.values()]
    assert ranks[0] == 0 < ranks[1]
    (folder / "meminfo").write_text("Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 900 kB\n")
    node.review(5)
    assert [chip.rank for chip in node.boards[A2].units.values()] == ranks  # not looked at with each judgement
    node.review(10)
    assert [chip.rank for chip in node.boards[A2].units.values()] == [0, 0]


# --- several kinds

def test_each_kind_is_a_resource(agent, make):
    node = make()
    assert node.update(sight(agent, record(0), record(1, family="310p")), 0) == {A2, P310}
    assert list(node.boards[A2].units) == ["Ascend910-0"] and list(node.boards[P310].units) == ["Ascend310P-1"]
    assert node.update(sight(agent, record(0, 3), record(1, family="310p")), 1) == {A2}


def test_one_resource_name_is_for_one_kind(agent, make):
    node = make(resource_name="example.com/npu")
    records = [record(0), record(1, family="310p"), record(2, family="910")]
    assert node.update(sight(agent, *records), 0) == {"example.com/npu"}
    assert list(node.boards["example.com/npu"].units) == ["Ascend310P-1"]
    assert len(node.problems) == 1 and "only 310p is registered, 910, a2 is not; set `family`" in node.problems[0]
    assert node.update(sight(agent, *records[::2]), 1) == {"example.com/npu"}  # the one that has the name keeps it
    assert state(node.boards["example.com/npu"]) == {"Ascend310P-1": False}


def test_a_kind_that_comes_later_does_not_get_the_name(agent, make):
    node = make(resource_name="example.com/npu")
    node.update(sight(agent, record(0)), 0)
    node.update(sight(agent, record(0), record(1, family="310p")), 1)
    assert list(node.boards["example.com/npu"].units) == ["Ascend910-0"] and "only a2 is registered" in node.problems[0]


def test_families_with_one_resource_are_one_kind(agent, make):
    node = make(resource_name="example.com/npu")
    node.update(sight(agent, record(0), record(2, family="910")), 0)
    assert list(node.boards["example.com/npu"].units) == ["Ascend910-0", "Ascend910-2"] and node.problems == []


# --- shares and slices

def slices(*entries):
    return [{"vdev_id": vdev_id, "template": template} for vdev_id, template in entries]


def test_shares(agent, make):
    node = make(shares=3)
    node.update(sight(agent, record(0), record(1, 3)), 0)
    board = node.boards[A2]
    assert list(board.units) == [f"Ascend910-{chip}-{share}" for chip in (0, 1) for share in range(3)] and board.count() == (3, 6)
    assert list(board.chips) == ["Ascend910-0", "Ascend910-1"]


@pytest.fixture
def nodes(tmp_path):
    for vdev_id in (100, 101, 102):
        make_node(tmp_path / f"vdavinci{vdev_id}")
    return tmp_path


def test_slices_are_resources_of_their_own(agent, make, nodes):
    node = make()
    mixed = record(0, family="310p", slices=slices((100, "vir02"), (101, "vir02_1c")))
    assert node.update(sight(agent, mixed, record(1, family="310p")), 0) == {P310, f"{P310}-2c", f"{P310}-2c.1cpu"}
    assert list(node.boards[P310].units) == ["Ascend310P-1"]  # the chip with slices is not there as a whole
    (piece,) = node.boards[f"{P310}-2c"].units.values()
    assert (piece.id, piece.device_node, piece.slice.vdev_id) == ("Ascend310P-2c-100-0", f"{nodes}/vdavinci100", 100)
    assert list(node.boards[f"{P310}-2c.1cpu"].units) == ["Ascend310P-2c.1cpu-101-0"]
    # They share the fate of their chip.
    assert node.update(sight(agent, dict(mixed, health_code=3), record(1, family="310p")), 1) == {f"{P310}-2c", f"{P310}-2c.1cpu"}
    assert node.boards[f"{P310}-2c"].count() == (0, 1)
    node.update(sight(agent, record(1, family="310p")), 2)
    assert node.boards[f"{P310}-2c"].units["Ascend310P-2c-100-0"].gone
    # The driver has no answer for a moment: what was known stays.
    node.update(sight(agent, mixed, record(1, family="310p")), 3)
    assert node.update(sight(agent, dict(mixed, slices=None), record(1, family="310p")), 4) == set()
    # Somebody has removed them: the chip is whole again.
    assert P310 in node.update(sight(agent, dict(mixed, slices=[]), record(1, family="310p")), 5)
    assert list(node.boards[P310].units) == ["Ascend310P-0", "Ascend310P-1"] and node.boards[f"{P310}-2c"].count() == (0, 0)
    assert node.boards[f"{P310}-2c"].payload == b"[]"


def test_slices_that_were_never_told(agent, make, nodes):
    """A driver that cannot tell is no reason to serve nothing, but a chip that may have slices is not given out as a whole."""
    node = make()
    unknown = record(0, family="310p", slices=None)
    assert node.update(sight(agent, unknown), 0) == set() and "does not tell which slices" in node.problems[0]
    for path in nodes.glob("vdavinci*"):
        path.unlink()
    assert node.update(sight(agent, unknown), 1) == {P310} and node.problems == []


def test_a_slice_without_its_node(agent, make):
    node = make()
    node.update(sight(agent, record(0, family="310p", slices=slices((100, "vir02")))), 0)
    (piece,) = node.boards[f"{P310}-2c"].units.values()
    assert not piece.healthy and "vdavinci100 is missing" in piece.reason


def test_an_unknown_template(agent, make, nodes):
    node = make()
    node.update(sight(agent, record(0, family="310p", slices=slices((100, "vir02"), (101, "vir99")))), 0)
    assert list(node.boards) == [f"{P310}-2c"]
    assert len(node.problems) == 1 and "'vir99'" in node.problems[0] and "neither that slice nor the whole chip" in node.problems[0]


def test_a_chip_is_not_shared_and_sliced(agent, make, nodes):
    node = make(shares=2)
    node.update(sight(agent, record(0, family="310p", slices=slices((100, "vir02"))), record(1, family="310p")), 0)
    assert list(node.boards[P310].units) == ["Ascend310P-1-0", "Ascend310P-1-1"] and list(node.boards) == [P310]
    assert len(node.problems) == 1 and "either shared or sliced" in node.problems[0]


@pytest.mark.parametrize(("family", "template", "kind"), [
    ("910", "vir16", "16c"), ("910", "vir02", "2c"), ("310p", "vir01", "1c"), ("310p", "vir04_4c_dvpp", "4c.4cpu.dvpp"),
    ("310p", "vir04_3c_ndvpp", "4c.3cpu.ndvpp"), ("a2", "vir03_1c_8g", "3c.1cpu.8g"), ("a2", "vir10_3c_16g_nm", "10c.3cpu.16g.ndvpp"),
    ("a2", "vir10_4c_16g_m", "10c.4cpu.16g.dvpp"), ("a3", "vir12_3c_32g", "12c.3cpu.32g"),
])
def test_templates(agent, family, template, kind):
    assert agent.units.KINDS[family][template] == kind


def test_1600_ids_cost_little(agent, make):
    """A look that changes nothing makes no list, and one that does makes one."""
    made = []
    node = make(shares=100)
    encode = node.encode
    node.encode = lambda units: made.append(1) or encode(units)
    records = [record(number) for number in range(16)]
    node.update(sight(agent, *records), 0)
    assert node.boards[A2].count() == (1600, 1600)
    for now in range(1, 6):
        node.update(sight(agent, *records), now)
    assert len(made) == 1
    node.update(sight(agent, record(0, 3), *records[1:]), 6)
    assert len(made) == 2 and node.boards[A2].count() == (1500, 1600)


# --- lasting names, seen from outside

def test_names_stay_with_the_hardware(agent, make, tmp_path):
    folder = tmp_path / "state"
    node = make(state_dir=str(folder))
    node.update(sight(agent, record(0), record(1, 3)), 0)
    node.names.file.writer.join(10)
    later = make(state_dir=str(folder))
    later.update(sight(agent, record(1, vdie="die0"), record(0, 3, vdie="die1")), 0)  # the driver has numbered them anew
    units = later.boards[A2].units
    assert {name: (chip.phy_id, chip.healthy) for name, chip in units.items()} == {"Ascend910-0": (1, True), "Ascend910-1": (0, False)}


def test_an_exchanged_card_takes_the_name_over(agent, make):
    node = make(flap_count=1, flap_hold=1000.0)
    node.update(sight(agent, record(0), record(1)), 0)
    node.update(sight(agent, record(0)), 1)
    assert node.update(sight(agent, record(0), record(1, vdie="new")), 2) == {A2}
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}  # nothing is held against the new one
    assert len(node.health.memory) == 2


def test_unseen_chip_whose_number_is_anothers_is_gone(agent, make):
    node = make()
    node.update(sight(agent, record(0), record(1)), 0)
    node.update(sight(agent, record(1, vdie="die0"), complete=False, problems=["no answer"]), 1)
    units = node.boards[A2].units
    assert units["Ascend910-0"].phy_id == 1 and units["Ascend910-1"].gone


def test_a_chip_that_tells_late_who_it_is_has_one_name(agent, make, tmp_path):
    """Numbered anew while it hangs, so that only its number is known: that one is another's name."""
    folder = tmp_path / "state"
    node = make(state_dir=str(folder))
    node.update(sight(agent, record(0), record(1)), 0)
    node.names.file.writer.join(10)
    later = make(state_dir=str(folder))
    dumb = record(1, None, vdie=None, pci_address=None, device_id=None, hung=10.0, error="hangs")
    later.update(sight(agent, record(0, vdie="die1", pci_address="0000:01:00.0"), dumb, complete=False), 0)
    assert state(later.boards[A2]) == {"Ascend910-1": True, "Ascend910-2": False}
    later.update(sight(agent, record(0, vdie="die1", pci_address="0000:01:00.0"),
                       record(1, vdie="die0", pci_address="0000:00:00.0")), 1)
    assert state(later.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}
    assert sorted(entry.name for entry in later.names.entries) == ["Ascend910-0", "Ascend910-1"]


def test_an_agent_that_stood_by_goes_by_the_names_of_the_other(agent, make, tmp_path):
    folder = tmp_path / "state"
    node, nodes = make(state_dir=str(folder), recovery_seconds=1000.0), sight(agent, record(0), record(1, 3), record(2))
    node.update(nodes, 0)
    node.names.file.writer.join(10)
    node.update(sight(agent, record(0), record(1), complete=False), 1)
    node.stand_by(True, 1)
    text = (folder / "names.json").read_text()
    (folder / "names.json").write_text(text.replace("Ascend910-0", "Ascend910-9"))
    node.update(sight(agent, record(0), record(1), complete=False), 2)
    assert "Ascend910-9" in (folder / "names.json").read_text() and "Ascend910-0" in node.boards[A2].units
    node.stand_by(False, 3)
    assert state(node.boards[A2]) == {"Ascend910-1": False, "Ascend910-2": True, "Ascend910-9": True}  # the hold-down of 1 goes on


def test_a_table_that_cannot_be_kept_is_a_problem_of_the_node(agent, make, tmp_path):
    (tmp_path / "names.json").write_text('{"schema": 2, "names": {}}')
    node = make(state_dir=str(tmp_path))
    node.update(sight(agent, record(0)), 0)
    assert len(node.problems) == 1 and "a newer npu-agent has written it" in node.problems[0]


def test_slow_disk_holds_nothing_up(agent, make, tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _descriptor: release.wait(60))
    node = make(state_dir=str(tmp_path / "state"))
    node.update(sight(agent, record(0)), 0)
    try:
        assert node.boards[A2].count() == (1, 1) and node.names.file.writer.is_alive()
    finally:
        release.set()
        node.names.file.writer.join(60)
