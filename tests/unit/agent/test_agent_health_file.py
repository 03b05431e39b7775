# SPDX-License-Identifier: GPL-3.0-or-later
"""A restart releases no chip: what is kept of codes that came too often, and of flapping."""

import functools
import json

import pytest
from chip_life import DAY, LINK, OFTEN, SEPARATE
from node_rig import A2, record, sight, state

FLAPS = {"poll_seconds": 86400.0, "flap_count": 2, "flap_window": 3600.0, "flap_hold": 1800.0}


@pytest.fixture
def life(make, tmp_path, monkeypatch):
    """A function that starts an agent anew on two chips; `see(now, *codes)` is a look, with codes on chip 0."""
    import npu_agent.health_file
    import npu_agent.node

    folder, clock = tmp_path / "state", [0.0]
    monkeypatch.setattr(npu_agent.node, "HealthFile", functools.partial(npu_agent.health_file.HealthFile, clock=lambda: clock[0]))
    monkeypatch.setattr(npu_agent.health_file, "PAUSE_SECONDS", 0.0)

    class Agent:
        path = folder / "health.json"

        def __init__(self, **settings):
            self.node = make(state_dir=str(folder), **settings)

        def see(self, now, *codes, chips=None):
            clock[0] = now
            first = record(0, 2 if codes else 0, error_codes=list(codes))
            self.node.update(sight(*([first, record(1)] if chips is None else chips)), now)
            self.node.kept.close()
            return state(self.node.boards[A2])["Ascend910-0"]

        def reason(self):
            return self.node.boards[A2].chips["Ascend910-0"].reason

        def separate(self, code, times):
            for number in range(times):
                self.see(2 * number, code)
                self.see(2 * number + 1)
            return 2 * times

    return Agent


def test_a_code_that_came_too_often_keeps_the_chip_out_over_a_restart(life):
    agent = life()
    now = agent.separate(OFTEN, 2)
    assert agent.see(now) is True and not agent.path.exists()
    agent.separate(OFTEN, 3)
    assert agent.see(10) is False and f"this ends when {agent.path} is removed and then npu-agent started anew" in agent.reason()
    for _restart in range(3):
        agent = life()
        assert agent.see(20) is False and OFTEN in agent.reason() and state(agent.node.boards[A2])["Ascend910-1"] is True
    agent.path.unlink()
    assert life().see(30) is True


def test_release_by_time_goes_on_over_a_restart(life):
    """The newest time at which the code was there counts, not that at which the file was written first."""
    agent = life()
    for start in range(0, 500, 100):  # a link counts as down when it has been so for 20 s, and a minute later as up
        agent.see(start, LINK)
        agent.see(start + 21, LINK)
        agent.see(start + 22)
    agent.see(DAY, LINK)
    agent.see(DAY + 1)
    agent = life()
    assert agent.see(DAY + 2) is False and "for 172800 s" in agent.reason()
    assert agent.see(DAY + 172700) is False
    assert life().see(3 * DAY + 10) is True
    assert json.loads(agent.path.read_text())["chips"] == []


def test_flapping_goes_on_over_a_restart(life):
    agent = life(**FLAPS)
    for now in (0, 10):
        agent.see(now)
        agent.see(now + 1, SEPARATE)
    assert agent.see(20) is False
    agent = life(**FLAPS)
    assert agent.see(30) is False and "went out of service 2 times" in agent.reason() and SEPARATE in agent.reason()
    assert agent.node.next_review == 11 + 1800
    agent.node.review(1811)
    assert state(agent.node.boards[A2])["Ascend910-0"] is True


def test_another_chip_in_the_place_is_another_chip(life):
    agent = life()
    agent.separate(OFTEN, 3)
    other = record(0, vdie="another")
    assert life().see(30, chips=[other, record(1)]) is True


@pytest.mark.parametrize("ill", range(4))
def test_what_two_chips_share_says_nothing(life, ill):
    """The serial number of a board, where chips have none of their own."""
    def look(agent, now, *codes):
        chips = [record(number, vdie=None, serial="BOARD") for number in range(4)]
        chips[ill].update(error_codes=list(codes), health_code=2 if codes else 0)
        agent.see(now, chips=chips)
        return [name for name, healthy in state(agent.node.boards[A2]).items() if not healthy]

    agent = life()
    for number in range(3):
        look(agent, 2 * number, OFTEN)
        assert look(agent, 2 * number + 1) == ([f"Ascend910-{ill}"] if number == 2 else [])
    assert look(life(), 30) == [f"Ascend910-{ill}"]


def test_who_comes_back_to_serve_goes_on_with_what_the_other_has_found(life, make):
    agent = life(**FLAPS)
    agent.see(0)
    agent.node.stand_by(True, 1)
    other = life(**FLAPS)
    for now in (2, 10):
        other.see(now)
        other.see(now + 1, SEPARATE)
    agent.node.stand_by(False, 20)
    assert agent.see(21) is False and "went out of service 2 times" in agent.reason() and agent.node.next_review == 11 + 1800
    agent.node.review(1811)
    assert state(agent.node.boards[A2])["Ascend910-0"] is True


def test_a_flap_that_is_over_meanwhile_is_not_brought_back(life):
    """The other agent may keep no such file; then it says what held before."""
    agent = life(**FLAPS)
    for now in (0, 10):
        agent.see(now)
        agent.see(now + 1, SEPARATE)
    agent.see(20)
    agent.node.stand_by(True, 21)
    agent.node.review(1811)
    assert state(agent.node.boards[A2])["Ascend910-0"] is True
    agent.node.stand_by(False, 2000)
    assert agent.see(2001) is True


def test_a_file_that_was_removed_meanwhile_holds_nobody(life):
    agent = life()
    agent.separate(OFTEN, 3)
    agent = life()
    agent.node.stand_by(True, 20)
    agent.path.unlink()
    agent.node.stand_by(False, 21)
    assert agent.see(30) is True


def test_a_chip_that_is_away_for_a_while_is_not_forgotten(life):
    life().separate(OFTEN, 3)
    agent = life()
    agent.node.update(sight(record(1)), 20)
    agent.node.kept.close()
    assert life().see(30) is False


def test_a_reboot_goes_by_the_wall_clock(package):
    from npu_agent import health_file as kept

    entries = [({"vdie": "die", "phy_id": 0}, {OFTEN: 900.0}, (950.0, "a fault"))]
    text = kept.render(entries, 1000.0, 5e8, "before").encode()
    assert kept.parse(text, 1200.0, 0.0, "before") == entries  # the same boot: whatever the clock says
    ((known, separated, flap),) = kept.parse(text, 50.0, 5e8 + 400, "after")
    assert (known, separated, flap) == (entries[0][0], {OFTEN: -450.0}, (-400.0, "a fault"))  # 500 s and 450 s ago
    ((_known, separated, flap),) = kept.parse(text, 50.0, 0.0, "after")  # a clock that was set back: no less than at that time
    assert (separated, flap[0]) == ({OFTEN: -50.0}, 0.0)


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", "{}", '{"schema": 2}', "\ud800", '{"schema": 1, "boot_id": "", "monotonic": "x", "time": 0, "chips": []}',
    '{"schema": 1, "boot_id": "", "monotonic": 0, "time": 0, "chips": [{"known": 5, "separated": {}, "flap": null}]}',
    '{"schema": 1, "boot_id": "", "monotonic": 0, "time": 0, "chips": [{"known": {"vdie": 5}, "separated": {}, "flap": null}]}',
    '{"schema": 1, "boot_id": "", "monotonic": 0, "time": 0, "chips": [{"known": {}, "separated": {"a": NaN}, "flap": null}]}',
    '{"schema": 1, "boot_id": "", "monotonic": 0, "time": 0, "chips": [{"known": {}, "separated": [], "flap": null}]}',
    '{"schema": 1, "boot_id": "", "monotonic": 0, "time": 0, "chips": [{"known": {}, "separated": {}, "flap": [1]}]}',
    "[" * 100000,
])
def test_a_broken_file_is_told_and_not_used(life, text):
    life.path.parent.mkdir()
    life.path.write_bytes(text.encode("utf-8", "surrogatepass"))
    agent = life()
    ((event, fields),) = [one for one in agent.node.events if "health" in one[0]]
    assert event == "what was kept of the chips' health is not used" and str(agent.path) in fields["cause"]
    assert agent.see(0) is True
    agent.separate(OFTEN, 3)
    assert life().see(30) is False


def test_it_is_written_when_something_changes_only(life, monkeypatch):
    import npu_agent.health_file

    texts = []
    monkeypatch.setattr(npu_agent.health_file, "replace", lambda path, text, mode: texts.append((text, mode)))
    agent = life()
    now = agent.separate(OFTEN, 3)
    count = len(texts)
    assert 0 < count <= 3 and texts[-1][1] == 0o600
    for look in range(50):
        agent.see(now + look)
    assert len(texts) == count
    agent.node.kept.idle = True
    agent.separate(OFTEN, 1)
    assert len(texts) == count


def test_a_folder_that_cannot_be_written_is_told_once(life, monkeypatch):
    import npu_agent.health_file

    def refuse(*_unused):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(npu_agent.health_file, "replace", refuse)
    agent = life()
    agent.separate(OFTEN, 6)
    assert [event for event, _fields in agent.node.events].count("the chips' health is not kept") == 1
    assert agent.see(20) is False


def test_without_a_folder_nothing_is_kept(make):
    node = make()
    for number in range(3):
        node.update(sight(record(0, 2, error_codes=[OFTEN])), 2 * number)
        node.update(sight(record(0)), 2 * number + 1)
    assert "this ends when npu-agent starts anew" in node.boards[A2].chips["Ascend910-0"].reason
