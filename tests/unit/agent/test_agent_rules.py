# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's decisions: preference, allocation, list, configuration. No process, no gRPC call."""

from collections import namedtuple
from types import SimpleNamespace

import pytest

Chip = namedtuple("Chip", "id phy_id numa_node card_id pci_address", defaults=("0000:c1:00.0",))


@pytest.fixture
def agent(package):
    import npu_agent.allocate
    import npu_agent.board
    import npu_agent.config
    import npu_agent.look
    import npu_agent.prefer

    return npu_agent


# --- preference

def chips(*numa, cards=None):
    return {f"c{n}": Chip(f"c{n}", n, node, n if cards is None else cards[n]) for n, node in enumerate(numa)}


@pytest.mark.parametrize("case", [
    (chips(0, 0, 0, 0, 1, 1, 1, 1), "01234567", "", 4, ("numa",), "0123"),
    (chips(0, 0, 0, 0, 1, 1, 1, 1), "124567", "", 2, ("numa",), "12"),  # the node where it just fits
    (chips(0, 0, 0, 0, 1, 1, 1, 1), "34567", "", 4, ("numa",), "4567"),
    (chips(0, 0, 0, 0, 1, 1, 1, 1), "034567", "", 6, ("numa",), "034567"),
    (chips(0, 0, 0, 0, 1, 1, 1, 1), "0124567", "", 5, ("numa",), "04567"),  # all of the bigger one, the rest beside
    (chips(0, 0, 0, 0, 1, 1, 1, 1), "01234567", "6", 3, ("numa",), "456"),  # drawn to what must be in
    (chips(0, 0, 0, 0, cards=[0, 0, 1, 1]), "123", "", 2, ("numa", "card"), "23"),  # a whole pair
    (chips(0, 0, 0, 0, cards=[0, 0, 1, 1]), "123", "", 1, ("numa", "card"), "1"),  # the broken pair first
    (chips(*[None] * 8), "01234567", "", 2, ("ring4",), "01"),
    (chips(*[None] * 8), "0124567", "", 4, ("ring4",), "4567"),
    (chips(None, None), "01", "", 3, ("numa",), "01"),  # too few: kubelet fills up
    (chips(0, 0), "019", "", 2, ("numa",), "01"),  # an id that nobody knows
])
def test_prefer(agent, case):
    known, free, must, size, near, wanted = case
    answer = agent.prefer.prefer(known, [f"c{n}" for n in free], [f"c{n}" for n in must], size, near)
    assert sorted(answer) == [f"c{n}" for n in wanted]
    assert len(set(answer)) == len(answer)


def test_prefer_knows_every_family(agent):
    from npu_agent._hardware._families import FAMILIES

    assert set(agent.prefer.NEAR) == set(FAMILIES)


# --- allocation

def test_only_nodes_that_exist_are_given(agent, tmp_path):
    for name in ("davinci0", "davinci1", "davinci_manager", "hisi_hdc"):
        (tmp_path / name).touch()
    settings = SimpleNamespace(dev_root=str(tmp_path), allocate_mode="both", allocate_by="nodes")
    managers = [{"host": "davinci_manager", "container": "davinci_manager"}, {"host": "devmm_svm", "container": "devmm_svm"},
                {"host": "hisi_hdc", "container": "renamed"}]
    given = agent.allocate.answer(["c1", "c0"], chips(0, 0), managers, settings)
    assert given == {"envs": {"ASCEND_VISIBLE_DEVICES": "0,1"}, "devices": [
        (f"{tmp_path}/davinci0", "/dev/davinci0"), (f"{tmp_path}/davinci1", "/dev/davinci1"),
        (f"{tmp_path}/davinci_manager", "/dev/davinci_manager"), (f"{tmp_path}/hisi_hdc", "/dev/renamed"),
    ], "cdi": []}


# --- what is told to kubelet

def sight(agent, *found, family="a2", problems=(), complete=True):
    records = [{"phy_id": phy, "pci_address": f"0000:{phy:02x}:00.0", "numa_node": 0, "card_id": phy, "device_node": f"/dev/davinci{phy}",
                "health_code": code} for phy, code in found]
    return agent.look.Sight(True, family, records, list(problems), complete)


def make_board(agent, **settings):
    values = {"keep_last_state": 30, "unhealthy_from": "major", "resource_name": "", **settings}
    return agent.board.OldBoard(SimpleNamespace(**values), lambda *_words, **_fields: None,
                             lambda found: repr([(chip.id, chip.healthy) for chip in found]).encode())


def state(board):
    return {chip.phy_id: chip.healthy for chip in board.chips.values()}


def test_board_tells_changes_only(agent):
    board = make_board(agent)
    assert board.update(sight(agent, (0, 0), (1, 0)), 0) is True
    assert board.resource == "huawei.com/Ascend910" and list(board.chips) == ["Ascend910-0", "Ascend910-1"]
    assert board.update(sight(agent, (0, 0), (1, 0)), 1) is False
    assert board.update(sight(agent, (0, 0), (1, 3)), 2) is True
    assert board.count() == (1, 2)


def test_board_never_sends_an_id_twice(agent):
    board = make_board(agent)
    board.update(sight(agent, (0, 0), (0, 3), (1, 0)), 0)
    assert state(board) == {0: True, 1: True}
    assert "physical id 0 of another chip" in board.problems[0]


def test_a_failed_look_is_not_zero_chips(agent):
    board = make_board(agent)
    board.update(sight(agent, (0, 0), (1, 3)), 0)
    assert board.update(agent.look.Sight(True, None, [], ["DCMI hangs"], False), 10) is False
    assert state(board) == {0: True, 1: False}
    assert board.update(agent.look.Sight(True, None, [], ["DCMI hangs"], False), 31) is True
    assert state(board) == {0: False, 1: False} and "DCMI hangs" in board.chips["Ascend910-0"].reason


def test_a_chip_that_is_gone_stays_in_the_list(agent):
    board = make_board(agent)
    board.update(sight(agent, (0, 0), (1, 0)), 0)
    board.update(sight(agent, (0, 0)), 1)
    assert state(board) == {0: True, 1: False}
    board.update(sight(agent, (0, 0), (1, 0)), 2)
    assert state(board) == {0: True, 1: True}


def test_nothing_is_served_before_chips_are_known(agent):
    board = make_board(agent)
    assert board.update(agent.look.Sight(True, None, [], ["no driver"], False), 0) is False
    assert board.resource is None and board.payload == b""


# --- configuration

@pytest.mark.parametrize(("text", "words"), [
    ("allocate_mod: env\n", "line 1: there is no setting 'allocate_mod' (did you mean allocate_mode?)"),
    ("\nallocate_mode: cdi\n", "line 2: allocate_mode is 'cdi'; allowed: devices, env, both"),
    ("poll_seconds: 0\n", "allowed: seconds from 0.1 to 3600"),
    ("poll_seconds: true\n", "poll_seconds is True"),
    ("poll_seconds: [1]\n", "poll_seconds is [1]"),
    ("listen: 8083\n", "listen is 8083; allowed: HOST:PORT"),
    ("listen: 'x:99999'\n", "allowed: HOST:PORT"),
    ("resource_name: Rockchip.device/npu\n", "allowed: empty (by family), or domain/name"),
    ("resource_name: a.kubernetes.io/npu\n", "resource_name is"),
    ("resource_name: npu\n", "resource_name is"),
    ("kubelet_dir: relative\n", "kubelet_dir is 'relative'; allowed: an absolute path"),
    ("kubelet_dir: /" + "x" * 80 + "\n", "at most 67 bytes"),
    ("poll_seconds: 1\npoll_seconds: 2\n", "line 2: poll_seconds is set a second time"),
    ("- a\n", "must be a list of 'key: value' lines"),
    ("a: [\n", "is not YAML"),
    ("a: \x01\n", "is not YAML"),
])
def test_bad_configuration(agent, tmp_path, text, words):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(agent.config.ConfigError) as error:
        agent.config.load(str(file), {})
    assert words in str(error.value) and str(file) in str(error.value)


def test_all_faults_are_told_at_once(agent, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a: 1\nlog_level: loud\n")
    with pytest.raises(agent.config.ConfigError) as error:
        agent.config.load(str(file), {"NPU_AGENT_B": "1", "NPU_AGENT_POLL_SECONDS": "x"})
    assert len(error.value.faults) == 4
    assert "environment variable NPU_AGENT_B" in str(error.value)


def test_good_configuration(agent, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("resource_name: huawei.com/Ascend910-share\nlisten: '[::1]:9'\npoll_seconds: 2\n")
    settings = agent.config.load(str(file), {"NPU_AGENT_POLL_SECONDS": "3", "OTHER": "x"})
    assert settings.resource_name == "huawei.com/Ascend910-share" and settings.listen == ("::1", 9)
    assert settings.poll_seconds == 3.0 and settings.allocate_mode == "both"
    assert agent.config.load(None, {}).kubelet_dir == "/var/lib/kubelet/device-plugins"
    with pytest.raises(agent.config.ConfigError, match="there is no such file"):
        agent.config.load(str(tmp_path / "none"), {})


# --- what is seen of the chips

def found(*records):
    keys = {"logic_id": 0, "name": "910B3", "family": "a2", "numa_node": 0, "serial": None, "error": None, "evidence": {"pci": True}}
    return {"present": True, "chips": [{**keys, **record} for record in records], "query": {"ok": True, "errors": []}}


def health_of(card, code=0, error=None):
    return {"card_id": card, "device_id": 0, "health_code": code, "error_codes": [], "dropped": False, "error": error}


def test_a_chip_without_an_id_is_a_problem_not_a_guess(agent, tmp_path):
    settings = SimpleNamespace(family="auto", dev_root=str(tmp_path), sysfs_root=str(tmp_path))
    known = found({"phy_id": 0, "card_id": 0, "device_id": 0, "pci_address": "0000:01:00.0"},
                  {"phy_id": None, "card_id": 1, "device_id": 0, "pci_address": "0000:02:00.0", "error": {"message": "-8006"}})
    sight = agent.look.combine(known, [health_of(0), health_of(1)], settings)
    assert [chip["phy_id"] for chip in sight.chips] == [0]
    assert sight.problems == ["the NPU 0000:02:00.0 is left out: -8006"]


def test_two_families_need_a_choice(agent, tmp_path):
    settings = SimpleNamespace(family="auto", dev_root=str(tmp_path), sysfs_root=str(tmp_path))
    known = found({"phy_id": 0, "card_id": 0, "device_id": 0, "pci_address": "0000:01:00.0"},
                  {"phy_id": 1, "card_id": 1, "device_id": 0, "pci_address": "0000:02:00.0", "family": "310p"})
    states = [health_of(0), health_of(1)]
    sight = agent.look.combine(known, states, settings)
    assert sight.family is None and sight.chips == [] and "several families (310p, a2)" in sight.problems[0]
    settings.family = "310p"
    sight = agent.look.combine(known, states, settings)
    assert sight.family == "310p" and [chip["phy_id"] for chip in sight.chips] == [1]
