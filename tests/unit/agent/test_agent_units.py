# SPDX-License-Identifier: GPL-3.0-or-later
"""In which form a chip is offered: whole, in shares, in slices; and when nobody knows which."""

import pytest
from agent_rig import make_node
from node_rig import A2, P310, record, sight, slices_of, state


def test_shares(make):
    node = make(shares=3)
    node.update(sight(record(0), record(1, 3)), 0)
    board = node.boards[A2]
    assert list(board.units) == [f"Ascend910-{chip}-{share}" for chip in (0, 1) for share in range(3)] and board.count() == (3, 6)
    assert list(board.chips) == ["Ascend910-0", "Ascend910-1"]


@pytest.fixture
def nodes(tmp_path):
    for vdev_id in (100, 101, 102):
        make_node(tmp_path / f"vdavinci{vdev_id}")
    return tmp_path


def test_slices_are_resources_of_their_own(make, nodes):
    node = make()
    mixed = record(0, family="310p", slices=slices_of((100, "vir02"), (101, "vir02_1c")))
    assert node.update(sight(mixed, record(1, family="310p")), 0) == {P310, f"{P310}-2c", f"{P310}-2c.1cpu"}
    assert list(node.boards[P310].units) == ["Ascend310P-1"]  # the chip with slices is not there as a whole
    (piece,) = node.boards[f"{P310}-2c"].units.values()
    assert (piece.id, piece.device_node, piece.slice.vdev_id) == ("Ascend310P-2c-100-0", f"{nodes}/vdavinci100", 100)
    assert list(node.boards[f"{P310}-2c.1cpu"].units) == ["Ascend310P-2c.1cpu-101-0"]
    # They share the fate of their chip.
    assert node.update(sight(dict(mixed, health_code=3), record(1, family="310p")), 1) == {f"{P310}-2c", f"{P310}-2c.1cpu"}
    assert node.boards[f"{P310}-2c"].count() == (0, 1)
    node.update(sight(record(1, family="310p")), 2)
    assert node.boards[f"{P310}-2c"].units["Ascend310P-2c-100-0"].gone
    # The driver has no answer for a moment: what was known stays.
    node.update(sight(mixed, record(1, family="310p")), 3)
    assert node.update(sight(dict(mixed, slices=None), record(1, family="310p")), 4) == set()
    # Somebody has removed them: the chip is whole again.
    assert P310 in node.update(sight(dict(mixed, slices=[]), record(1, family="310p")), 5)
    assert list(node.boards[P310].units) == ["Ascend310P-0", "Ascend310P-1"] and node.boards[f"{P310}-2c"].count() == (0, 0)
    assert node.boards[f"{P310}-2c"].payload == b"[]"


def test_slices_that_were_never_told(make, nodes):
    """A driver that cannot tell is no reason to serve nothing, but a chip that may have slices is not given out as a whole."""
    node = make()
    unknown = record(0, family="310p", slices=None)
    assert node.update(sight(unknown), 0) == {P310}
    (chip,) = node.boards[P310].units.values()
    assert not chip.healthy and "does not tell which slices" in chip.barred == chip.reason
    for path in nodes.glob("vdavinci*"):
        path.unlink()
    assert node.update(sight(unknown), 1) == {P310} and state(node.boards[P310]) == {"Ascend310P-0": True}


def test_slices_that_are_remembered_count_more_than_a_node_that_is_not_seen(make, nodes):
    """A pod does not have nodes that came after it, and a whole chip beside its slices would be given out twice."""
    known, names = record(0, family="310p", slices=slices_of((100, "vir02"))), str(nodes / "state")
    node = make(state_dir=names)
    node.update(sight(known), 0)
    node.names.file.writer.join(10)
    for path in nodes.glob("vdavinci*"):
        path.unlink()
    later = make(state_dir=names)
    later.update(sight(dict(known, slices=None)), 1)
    assert list(later.boards) == [f"{P310}-2c"]
    (piece,) = later.boards[f"{P310}-2c"].units.values()
    assert not piece.healthy and "does not tell which slices" in piece.reason and "delete that pod" in piece.reason


@pytest.mark.parametrize("case", [
    (slices_of((100, "vir02"), (101, "vir02")), f"{P310}-2c", ["Ascend310P-2c-100-0", "Ascend310P-2c-101-0"]),
    ([], P310, ["Ascend310P-0"]), (None, P310, ["Ascend310P-0"]),
])
def test_a_chip_that_hangs_at_the_start_keeps_its_place(make, nodes, case):
    """In the form that it had last, so that no capacity is lost, and for nobody: the form may have changed."""
    (known, resource, ids), tmp_path = case, nodes
    node, other = make(state_dir=str(tmp_path / "state")), record(1, family="310p", slices=slices_of((102, "vir02")))
    if known is not None:
        node.update(sight(record(0, family="310p", slices=known), other), 0)
        node.names.file.writer.join(10)
    later = make(state_dir=str(tmp_path / "state"))
    hangs = record(0, None, family="310p", slices=None, hung=9.0, error="hangs")
    later.update(sight(hangs, other), 1)
    found = {name: chip for name, chip in later.boards[resource].units.items() if chip.phy_id == 0}
    assert list(found) == ids and not any(chip.healthy for chip in found.values())
    assert all("has not come back" in chip.reason and "does not tell which slices" in chip.reason for chip in found.values())
    later.update(sight(record(0, family="310p", slices=None), other), 2)
    assert later.boards[resource].count() == (0 if resource == P310 else 1, len(later.boards[resource].units))
    later.update(sight(record(0, family="310p", slices=known or []), other), 3)
    assert all(chip.healthy for chip in later.boards[resource].units.values())


def test_a_node_of_a_slice_that_nobody_knows_bars_whole_chips(make, nodes):
    node = make()
    mixed = record(0, family="310p", slices=slices_of((100, "vir02")), strange_slices=[101])
    node.update(sight(mixed, record(1, family="310p", strange_slices=[101]), record(2, family="310p", strange_slices=[])), 0)
    (chip,) = (chip for chip in node.boards[P310].chips.values() if chip.phy_id == 1)
    assert state(node.boards[P310]) == {"Ascend310P-1": False, "Ascend310P-2": True} and f"{nodes}/vdavinci101" in chip.barred
    assert state(node.boards[f"{P310}-2c"]) == {"Ascend310P-2c-100-0": True}
    node.update(sight(mixed, record(1, family="310p", strange_slices=[])), 1)
    assert node.boards[P310].units["Ascend310P-1"].healthy


def test_a_name_that_would_be_too_long_for_a_slice(make, nodes):
    node = make(resource_name="example.com/" + "x" * 59)
    node.update(sight(record(0, family="310p", slices=slices_of((100, "vir02"), (101, "vir04_4c_dvpp")))), 0)
    assert list(node.boards) == ["example.com/" + "x" * 59 + "-2c"]
    assert len(node.problems) == 1 and "with more than 63 characters" in node.problems[0] and "slice 101" in node.problems[0]


@pytest.mark.parametrize(("family", "shares", "warned"), [
    ("a2", 2, True), ("310", 2, True), ("310p", 2, False), ("310b", 9, False), ("a2", 1, False),
])
def test_what_shares_need_is_said_once(make, family, shares, warned):
    node = make(shares=shares)
    for now in range(3):
        node.update(sight(record(0, family=family), record(1, family=family)), now)
    told = [fields["cause"] for event, fields in node.events if event == "shares"]
    assert len(told) == warned and all("-8020" in cause and "npu-smi set -t device-share" in cause for cause in told)


def test_a_slice_without_its_node(make):
    node = make()
    node.update(sight(record(0, family="310p", slices=slices_of((100, "vir02")))), 0)
    (piece,) = node.boards[f"{P310}-2c"].units.values()
    assert not piece.healthy and "vdavinci100 is missing" in piece.reason


def test_an_unknown_template(make, nodes):
    node = make()
    node.update(sight(record(0, family="310p", slices=slices_of((100, "vir02"), (101, "vir99")))), 0)
    assert list(node.boards) == [f"{P310}-2c"]
    assert len(node.problems) == 1 and "'vir99'" in node.problems[0] and "neither that slice nor the whole chip" in node.problems[0]


def test_a_chip_is_not_shared_and_sliced(make, nodes):
    node = make(shares=2)
    node.update(sight(record(0, family="310p", slices=slices_of((100, "vir02"))), record(1, family="310p")), 0)
    assert list(node.boards[P310].units) == ["Ascend310P-1-0", "Ascend310P-1-1"] and list(node.boards) == [P310]
    assert len(node.problems) == 1 and "either shared or sliced" in node.problems[0]


@pytest.mark.parametrize(("family", "template", "kind"), [
    ("910", "vir16", "16c"), ("910", "vir02", "2c"), ("310p", "vir01", "1c"), ("310p", "vir04_4c_dvpp", "4c.4cpu.dvpp"),
    ("310p", "vir04_3c_ndvpp", "4c.3cpu.ndvpp"), ("a2", "vir03_1c_8g", "3c.1cpu.8g"), ("a2", "vir10_3c_16g_nm", "10c.3cpu.16g.ndvpp"),
    ("a2", "vir10_4c_16g_m", "10c.4cpu.16g.dvpp"), ("a3", "vir12_3c_32g", "12c.3cpu.32g"),
])
def test_templates(package, family, template, kind):
    from npu_agent import units

    assert units.KINDS[family][template] == kind


def test_1600_ids_cost_little(make):
    """A look that changes nothing makes no list, and one that does makes one."""
    made = []
    node = make(shares=100)
    encode = node.encode
    node.encode = lambda units: made.append(1) or encode(units)
    records = [record(number) for number in range(16)]
    node.update(sight(*records), 0)
    assert node.boards[A2].count() == (1600, 1600)
    for now in range(1, 6):
        node.update(sight(*records), now)
    assert len(made) == 1
    node.update(sight(record(0, 3), *records[1:]), 6)
    assert len(made) == 2 and node.boards[A2].count() == (1500, 1600)


