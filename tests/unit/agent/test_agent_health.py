# SPDX-License-Identifier: GPL-3.0-or-later
"""The health rule: what a chip's record says by itself, and what time adds to it."""

from types import SimpleNamespace

import pytest
from chip_life import (
    BUSINESS,
    FREE_RESET,
    NOBODY_KNOWS,
    NOT_HANDLE,
    PRE_SEPARATE,
    REQUEST,
    RESET,
    SEPARATE,
    SETTINGS,
    SUB_HEALTH,
    ill,
    silent,
    well,
)

# --- one record by itself

@pytest.mark.parametrize(("record", "level", "healthy", "words"), [
    ({"health_code": 0}, "major", True, ""),
    ({"health_code": 1}, "major", True, "minor"),
    ({"health_code": 1}, "minor", False, "minor"),
    ({"health_code": 2}, "major", False, "major"),
    ({"health_code": 2}, "critical", True, "major"),
    ({"health_code": 3, "error_codes": [BUSINESS]}, "critical", False, f"critical, error codes {BUSINESS}"),
    ({"health_code": 7}, "critical", False, "0x7"),
    ({"health_code": 0xFFFFFFFF, "dropped": True}, "critical", False, "gone"),
    ({"health_code": None, "dropped": True, "error": "-8012"}, "critical", False, "gone"),
    ({"health_code": None, "error": "dcmi_get_device_health returned -8006"}, "major", None, "-8006"),
    ({"health_code": None}, "major", None, "no health"),
    ({"health_code": 0, "device_node_present": False, "device_node": "/dev/davinci3"}, "major", False, "/dev/davinci3 is missing"),
    ({"health_code": 0, "driver_bound": False}, "major", False, "no driver"),
])
def test_record_without_levels(agent, record, level, healthy, words):
    found, reason = agent.health.judge(record, level)
    assert found is healthy and words in reason


@pytest.mark.parametrize(("codes", "number", "wanted", "words"), [
    ([NOT_HANDLE], 3, True, f"DCMI health critical, error codes {NOT_HANDLE}"),  # the level says better than the number
    ([SUB_HEALTH], 2, True, SUB_HEALTH),
    ([NOT_HANDLE, SUB_HEALTH], 1, True, NOT_HANDLE),
    ([REQUEST], 0, False, "RestartRequest, the job has to repeat its request"),
    ([BUSINESS], 1, False, "RestartBusiness, the job has to be started again"),
    ([FREE_RESET], 2, False, "FreeRestartNPU, the chip has to be reset once no job uses it"),
    ([RESET], 0, False, "RestartNPU, the chip has to be reset and the job started again"),
    ([PRE_SEPARATE], 0, False, "PreSeparateNPU, no new job may start"),
    ([SEPARATE], 0, False, "SeparateNPU, the chip has to be taken out"),
    ([NOT_HANDLE, REQUEST, SEPARATE, RESET, SUB_HEALTH], 2, False, f"{SEPARATE}: SeparateNPU, the chip has to be taken out; also {RESET}, "
                                                                   f"{REQUEST}, {SUB_HEALTH} and 1 more"),
    ([NOBODY_KNOWS], 0, True, NOBODY_KNOWS),
    ([NOBODY_KNOWS], 1, True, "minor"),
    ([NOBODY_KNOWS], 2, False, f"DCMI health major, error codes {NOBODY_KNOWS}"),
    ([NOT_HANDLE, NOBODY_KNOWS], 2, False, "DCMI health major"),  # the number may be the unknown one's
    ([NOT_HANDLE, NOBODY_KNOWS], 1, True, "minor"),
    ([BUSINESS, NOBODY_KNOWS], 0, False, BUSINESS),
    ([NOT_HANDLE], 4, False, "0x4"),
    ([], 2, False, "DCMI health major"),
    ([], 0, True, ""),
    ([BUSINESS], None, False, BUSINESS),  # the health number could not be read, the codes could
    ([NOT_HANDLE], None, None, "no health"),
])
def test_codes_decide_by_their_level(agent, codes, number, wanted, words):
    found, reason = agent.health.judge(ill(*codes, number=number), "major", agent.faults.load())
    assert found is wanted and words in reason


REASONS = [  # each wins over those below it
    ("driver_bound", False, "no driver is bound"),
    ("device_node_present", False, "its device node is missing"),
    ("not_described", "the CDI specification cannot be kept", "the CDI specification"),
    ("dropped", True, "gone or not ready"),
    ("hung", 12.5, "has not come back from a query for more than 10 s"),
    ("probe", {"healthy": False, "text": "matmul gave 3 instead of 4"}, "the probe says: matmul gave 3 instead of 4"),
    ("error_codes", [SEPARATE], "SeparateNPU"),
    ("health_code", 3, "DCMI health critical"),
]


@pytest.mark.parametrize("first", range(len(REASONS)))
def test_order_of_reasons(agent, levels, first):
    record = well(**{key: value for key, value, _words in REASONS[first:]})
    assert agent.health.judge(record, "major", levels)[0] is False
    assert REASONS[first][2] in agent.health.judge(record, "major", levels)[1]


@pytest.mark.parametrize(("changes", "healthy", "words"), [
    ({"probe": {"healthy": True, "text": ""}}, True, ""),
    ({"probe": {"healthy": False, "text": ""}}, False, "the probe says: unhealthy"),
    ({"probe": None}, True, ""),
    ({"hung": 0.2}, False, "for more than 0 s"),
    ({"hung": 4000}, False, "for more than 3600 s"),
    ({"health_code": None, "error_codes": None, "unasked": True}, True, "nobody tells its health: no DCMI library"),
    ({"health_code": None, "error_codes": None, "unasked": True, "driver_bound": False}, False, "no driver"),
    ({"health_code": None, "error_codes": None, "unasked": True, "error": "it was not seen"}, None, "not seen"),
])
def test_other_sources(agent, levels, changes, healthy, words):
    found, reason = agent.health.judge(well(**changes), "major", levels)
    assert found is healthy and words in reason


# --- what time adds

def test_settings_have_these_names(agent):
    assert set(SETTINGS) <= set(agent.config.SETTINGS)
    assert {key: agent.config.SETTINGS[key][0] for key in SETTINGS} == SETTINGS


@pytest.mark.parametrize(("first", "healthy", "words"), [
    (well(), True, ""), (ill(SEPARATE), False, "SeparateNPU"), (silent(), False, "-8006"), (well(hung=3), False, "not come back"),
])
def test_first_sight_is_taken_at_its_word(life, first, healthy, words):
    told = life().see(5, first)
    assert told.healthy is healthy and words in told.reason and told.review is None


@pytest.mark.parametrize("bad", [
    ill(SEPARATE), ill(), well(hung=9), well(dropped=True), well(driver_bound=False), well(device_node_present=False),
    well(not_described="no"), well(probe={"healthy": False, "text": "no"}),
])
def test_recovery_has_a_hold_down(life, bad):
    chip = life()
    chip.see(0, well())
    assert chip.see(1, bad).healthy is False
    told = chip.see(2, well())
    assert (told.healthy, told.review) == (False, 12) and "has to be without a fault for 10 s" in told.reason
    assert chip.see(7, well()).review == 12
    chip.see(11, bad)  # from the start
    assert chip.see(12, well()).review == 22
    text = chip.told.reason
    assert chip.wait(21.9) == chip.told and chip.told.reason == text and not chip.told.healthy
    assert chip.wait(22).healthy and chip.told.review is None


@pytest.mark.parametrize("bad", [{"hung": 6}, {"driver_bound": False}, {"device_node_present": False}])
@pytest.mark.parametrize("recovery", [0, 10])
def test_an_answer_from_before_the_fault_does_not_end_it(life, bad, recovery):
    """The chip is told of again before the driver has been asked."""
    chip = life(recovery_seconds=recovery)
    chip.see(0, well(asked_at=0))
    chip.see(5, well(asked_at=0, **bad))
    told = chip.see(6, well(asked_at=0))
    assert (told.healthy, told.review) == (False, None) and "has to be without a fault" in told.reason
    told = chip.see(7, well(asked_at=6.5))
    assert told.healthy is (recovery == 0) and told.review == (17 if recovery else None)


@pytest.mark.parametrize("bad", [{"probe": {"healthy": False, "text": "no"}}, {"not_described": "no"}])
def test_what_others_said_needs_no_newer_answer_of_the_driver(life, bad):
    chip = life()
    chip.see(0, well(asked_at=0))
    chip.see(5, well(asked_at=0, **bad))
    assert chip.see(6, well(asked_at=0)).review == 16


def test_hold_down_of_nothing(life):
    chip = life(recovery_seconds=0, flap_count=0)
    chip.see(0, ill(SEPARATE))
    assert chip.see(1, well()).healthy


def test_what_is_not_known_is_not_being_well(life):
    chip = life()
    chip.see(0, ill(SEPARATE))
    chip.see(5, well())
    assert chip.see(12, silent()).healthy is False
    assert chip.see(15, well()).review == 25


def test_last_state_holds_for_its_time_only(life):
    chip = life()
    chip.see(100, well())
    told = chip.see(110, silent())
    assert (told.healthy, told.review, told.reason) == (True, 130, "last known state; -8006")
    assert chip.wait(129.9).healthy
    told = chip.wait(130)
    assert not told.healthy and told.review is None and told.reason == "no answer for more than 30 s: -8006"
    assert chip.see(131, well()).review == 141
    assert chip.see(141, well()).healthy
    chip.see(142, ill(SEPARATE))
    told = chip.see(143, silent())  # the last state, also a bad one
    assert not told.healthy and "SeparateNPU" in told.reason


def test_no_credit_for_a_chip_that_never_answered(life):
    chip = life()
    assert chip.see(0, silent()).healthy is False
    assert chip.see(1, well()).review == 11


def test_flapping(life):
    chip = life()
    chip.see(0, well())
    for now in (1, 13, 25):
        assert chip.told.healthy
        chip.see(now, ill(SEPARATE))
        chip.see(now + 1, well())
        chip.wait(now + 11)
    assert not chip.told.healthy and chip.told.review == 25 + 1800
    assert "went out of service 3 times within 3600 s" in chip.told.reason
    assert "for 1800 s" in chip.told.reason and SEPARATE in chip.told.reason
    assert chip.wait(1824.9) == chip.told and not chip.told.healthy
    chip.see(1000, well(hung=7))  # the hold begins anew with each fault
    assert chip.see(1001, well()).review == 2800
    assert chip.wait(2800).healthy
    chip.see(3600, ill(SEPARATE))  # the losses at 13 and 25 are not forgotten, and this is within the window of the one at 13
    assert chip.see(3601, well()).review == 3600 + 1800
    assert chip.wait(5400).healthy
    chip.see(9999, ill(SEPARATE))
    assert chip.see(10000, well()).review == 10010  # now they are


def test_losses_that_are_old_do_not_count(life):
    chip = life()
    for now in (0, 2000, 4000, 6000):
        chip.see(now, well())
        chip.see(now + 1, ill(SEPARATE))
        chip.see(now + 2, well())
        assert chip.wait(now + 12).healthy


@pytest.mark.parametrize(("bad", "counts"), [
    (ill(SEPARATE), True), (ill(), True), (well(hung=9), True), (well(dropped=True), True),
    (well(probe={"healthy": False, "text": "no"}), True),
    (well(driver_bound=False), False), (well(device_node_present=False), False), (well(not_described="no"), False),
])
def test_which_losses_count(life, bad, counts):
    chip = life(flap_count=1)
    chip.see(0, well())
    chip.see(1, bad)
    assert chip.see(2, well()).review == (1801 if counts else 12)


def test_no_answer_is_no_loss(life):
    chip = life(flap_count=1)
    chip.see(0, well())
    assert not chip.see(31, silent()).healthy
    assert chip.see(32, well()).review == 42


def test_flapping_can_be_switched_off(agent, levels, life):
    chip = life(flap_count=1)
    chip.see(0, well())
    chip.see(1, ill(SEPARATE))
    assert chip.see(2, well()).review == 1801
    chip.health = agent.health.Health(SimpleNamespace(**{**vars(chip.health.settings), "flap_count": 0}), levels, chip.health.memory)
    assert chip.wait(3).review == 12
    assert chip.wait(12).healthy
