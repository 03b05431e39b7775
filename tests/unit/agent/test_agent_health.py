# SPDX-License-Identifier: GPL-3.0-or-later
"""The health rule: what a chip's record says by itself, and what time adds to it. No process, no clock, no file but the levels."""

import copy
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Codes of the vendor's file, one for each level.
NOT_HANDLE, SUB_HEALTH, REQUEST, BUSINESS, FREE_RESET = "80E01805", "80DE0207", "80C98002", "A8028802", "8C044E00"
RESET, PRE_SEPARATE, SEPARATE, NOBODY_KNOWS = "8C1FA006", "8F180220", "A8028801", "12345678"
OFTEN, LINK = "80E18005", "81078603"  # by the vendor's rules: 3 times in a day, 5 times in a day and then away for two days
DAY = 86400


@pytest.fixture(scope="module")
def agent(package):
    import npu_agent.config
    import npu_agent.degraded
    import npu_agent.faults
    import npu_agent.health

    return npu_agent


@pytest.fixture(scope="module")
def levels(agent):
    return agent.faults.load()


def well(**changes):
    return {"health_code": 0, "error_codes": [], "driver_bound": True, "device_node_present": True, **changes}


def ill(*codes, number=2):
    return well(health_code=number, error_codes=list(codes))


def silent(cause="-8006"):
    return well(health_code=None, error_codes=None, error=cause)


def event(code, assertion="occur", severity=2):
    return {"phy_id": 0, "code": code, "assertion": assertion, "severity": severity}


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

SETTINGS = {
    "unhealthy_from": "major", "recovery_seconds": 10.0, "flap_count": 3, "flap_window": 3600.0, "flap_hold": 1800.0,
    "keep_last_state": 30.0, "degraded_temperature": 85.0, "degraded_seconds": 3600.0,
}


class Life:
    """One chip and what is said of it; `told` has the newest verdict."""

    def __init__(self, agent, levels, **settings):
        self.health = agent.health.Health(SimpleNamespace(**{**SETTINGS, **settings}), levels)
        self.told = self.record = None

    def see(self, now, record, *events, pressure=()):
        self.record = record
        self.told = self.health.judge("key", record, events, now, pressure)
        assert self.told.review is None or self.told.review >= now
        return self.told

    def wait(self, now):
        """Only time has passed."""
        return self.see(now, self.record)

    def state(self):
        return self.told.healthy, self.told.review


@pytest.fixture
def life(agent, levels):
    return lambda **settings: Life(agent, levels, **settings)


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
    chip.health = agent.health.Health(SimpleNamespace(**{**SETTINGS, "flap_count": 0}), levels, chip.health.memory)
    assert chip.wait(3).review == 12
    assert chip.wait(12).healthy


# --- events

def test_an_event_counts_before_the_poll_shows_it(life):
    chip = life()
    chip.see(0, well())
    told = chip.see(1, well(), event(BUSINESS))
    assert not told.healthy and "RestartBusiness" in told.reason and told.review is None
    assert not chip.wait(100).healthy  # the same record again is no newer answer
    assert not chip.see(101, ill(BUSINESS)).healthy
    assert chip.see(102, well()).review == 112


def test_a_recovery_event_has_to_be_confirmed(life):
    chip = life()
    chip.see(0, well())
    chip.see(1, ill(BUSINESS))
    assert chip.see(2, ill(BUSINESS), event(BUSINESS, "recover")).review is None
    assert not chip.wait(100).healthy
    assert chip.see(101, well()).review == 111


def test_an_answer_older_than_the_event_confirms_nothing(life):
    chip = life()
    chip.see(0, well(asked_at=0))
    chip.see(1, well(asked_at=0), event(BUSINESS))
    assert chip.see(2, well(asked_at=0.9)).review is None
    assert chip.see(3, well(asked_at=0.9), event(BUSINESS, "recover")).review is None
    assert chip.see(4, well(asked_at=3.5)).review == 14
    told = chip.see(5, well(asked_at=4.5), dict(event(BUSINESS), at=4.2), dict(event(BUSINESS, "recover"), at=4.4))
    assert told.review == 15  # asked after both


def test_a_fault_that_came_and_went_between_two_looks(life):
    chip = life()
    chip.see(0, well())
    assert not chip.see(5, well(), event(BUSINESS), event(BUSINESS, "recover")).healthy
    assert chip.see(6, well()).review == 16


@pytest.mark.parametrize(("code", "severity", "healthy"), [
    (BUSINESS, 0, False), (SEPARATE, 1, False), (NOT_HANDLE, 3, True), (SUB_HEALTH, 3, True),
    (NOBODY_KNOWS, 1, True), (NOBODY_KNOWS, 2, False), (NOBODY_KNOWS, 3, False),
])
@pytest.mark.parametrize("assertion", ["occur", "once"])
def test_what_an_event_does(life, code, severity, healthy, assertion):
    chip = life()
    chip.see(0, well())
    told = chip.see(1, well(), event(code, assertion, severity))
    assert told.healthy is healthy and (healthy or code in told.reason)


def test_an_unknown_code_is_told_with_its_severity(life):
    chip = life(unhealthy_from="minor")
    chip.see(0, well())
    told = chip.see(1, well(error_codes=[NOT_HANDLE]), event(NOBODY_KNOWS, severity=1))
    assert not told.healthy and told.reason == f"fault code {NOBODY_KNOWS}: minor, not a known one; also {NOT_HANDLE}"


def test_a_number_of_another_time_is_not_explained_by_an_event(life):
    chip = life()
    chip.see(0, ill())
    assert not chip.see(1, ill(), event(NOT_HANDLE)).healthy
    chip = life()
    assert chip.see(0, ill(NOT_HANDLE)).healthy
    assert not chip.see(1, ill(NOT_HANDLE), event(NOBODY_KNOWS, severity=1)).healthy  # it may be this one's


def test_the_worst_severity_of_a_code_counts(life):
    chip = life()
    chip.see(0, well())
    assert not chip.see(1, well(), event(NOBODY_KNOWS, severity=2), event(NOBODY_KNOWS, severity=0)).healthy
    assert not chip.see(2, ill(NOBODY_KNOWS, number=0), event(NOBODY_KNOWS, severity=1)).healthy


def test_one_off_events_take_a_chip_out_for_a_while(life):
    chip = life()
    record = well()
    chip.see(0, record)
    told = chip.see(5, record, event(BUSINESS, "once"))
    assert (told.healthy, told.review) == (False, 15) and "RestartBusiness" in told.reason
    assert not chip.wait(14.9).healthy
    assert chip.wait(15).healthy


def test_one_off_event_of_a_chip_that_does_not_answer(life):
    chip = life()
    chip.see(0, well())
    told = chip.see(1, silent(), event(BUSINESS, "once"))
    assert (told.healthy, told.review) == (False, 31)
    assert "no answer" in chip.wait(31).reason
    assert chip.see(40, well()).review == 50


def test_a_driver_that_cannot_list_codes(life):
    chip = life()
    chip.see(0, well(error_codes=None))
    chip.see(1, well(error_codes=None), event(BUSINESS))
    assert chip.see(2, well(error_codes=None, health_code=1)).review is None  # it may be this fault
    assert chip.see(3, well(error_codes=None)).review == 13


# --- codes that come too often

def test_a_code_that_comes_too_often_separates_the_chip(life):
    chip = life(flap_count=0)
    chip.see(0, well())
    now = 0
    for now in (1000, 2000, 3000):
        assert chip.told.healthy
        chip.see(now, ill(OFTEN))
        chip.see(now + 5, ill(OFTEN))  # still the same occurrence
        chip.see(now + 10, well())
        chip.wait(now + 20)
    assert not chip.told.healthy and chip.told.review is None
    assert f"{OFTEN}: ManuallySeparateNPU" in chip.told.reason and "3 times within 86400 s" in chip.told.reason
    assert "npu-agent starts anew" in chip.told.reason
    assert not chip.see(now + 30 * DAY, well()).healthy


def test_occurrences_outside_the_window_do_not_count(life):
    chip = life(flap_count=0)
    for now in (0, 1000, DAY + 1, 2 * DAY):
        chip.see(now, ill(OFTEN))
        chip.see(now + 5, well())
        assert chip.see(now + 15, well()).healthy


def test_a_poll_and_an_event_of_one_occurrence_count_once(life):
    chip = life(flap_count=0)
    for now in (0, 100):
        chip.see(now, ill(OFTEN), event(OFTEN))
        chip.see(now + 1, ill(OFTEN), event(OFTEN))
        chip.see(now + 2, ill(OFTEN), event(OFTEN, "recover"))
        chip.see(now + 3, ill(OFTEN))  # the driver's list lags behind
        chip.see(now + 4, well())
        assert chip.see(now + 14, well()).healthy
    chip.see(200, well(), event(OFTEN, "once"))
    assert chip.see(201, well()).review is None


def test_a_separated_chip_is_released_by_time(life):
    chip = life(flap_count=0)
    chip.see(0, well())
    for now in range(0, 500, 100):
        assert chip.told.healthy  # the code by itself is harmless
        chip.see(now, well(error_codes=[LINK]))
        chip.see(now + 1, well())
    assert not chip.told.healthy and "it came 5 times" in chip.told.reason and "away for 172800 s" in chip.told.reason
    assert chip.told.review == 4000  # the end of what degrades it
    assert chip.wait(4000).review == 400 + 2 * DAY  # it was seen last at 400
    assert chip.see(DAY, well(error_codes=[LINK])).review is None  # not in sight while it stands
    chip.see(DAY + 5, well())
    chip.wait(3 * DAY - 1)
    assert not chip.told.healthy and chip.told.review == 3 * DAY
    told = chip.wait(3 * DAY)
    assert not told.healthy and "without a fault for 10 s" in told.reason
    assert chip.see(3 * DAY + 1, well()).review == 3 * DAY + 11
    assert chip.wait(3 * DAY + 11).healthy


def test_a_separated_chip_is_not_released_while_the_code_stands(life):
    chip = life(flap_count=0, degraded_seconds=0)
    for now in range(0, 500, 100):
        chip.see(now, well(error_codes=[LINK]))
        chip.see(now + 1, well(error_codes=[LINK] if now == 400 else []))
    chip.see(900, well(error_codes=[LINK]))
    assert chip.see(1000, well()).review == 900 + 2 * DAY


def test_other_rules_release(agent, life):
    chip = life(flap_count=0)
    for now in range(0, 30, 10):
        chip.see(now, ill(OFTEN))
        chip.see(now + 5, well())
    assert chip.see(1000, well()).review is None
    chip.health = agent.health.Health(chip.health.settings, agent.faults.Levels({}), chip.health.memory)
    assert chip.see(1001, well()).review == 1011


# --- the order in preferred allocation

def hot(degrees, limit=None):
    return well(telemetry={"temperature_c": degrees, "temperature_limit_c": limit, "ecc": None})


def ecc(single=0, double=0, isolated=0):
    counters = {"single": single, "double": double, "isolated": isolated}
    return well(telemetry={"temperature_c": 40, "temperature_limit_c": None, "ecc": counters})


@pytest.mark.parametrize(("readings", "degraded"), [
    ([84.9], False), ([85], True), ([85, 80], True), ([85, 79.9], False), ([80], False), ([85, None], True), ([None], False),
])
def test_heat(life, readings, degraded):
    chip = life()
    for now, degrees in enumerate(readings):
        told = chip.see(now, hot(degrees) if degrees is not None else well())
        assert told.healthy and told.review is None
    assert (told.rank, told.degraded) == ((1, ("its temperature has reached 85 °C",)) if degraded else (0, ()))


@pytest.mark.parametrize(("degrees", "limit", "setting", "degraded"), [
    (70, 75, 85, True), (69, 75, 85, False), (85, 105, 85, True), (80, 105, 85, False), (99, 105, 0, False),
    (84, 0, 85, False), (20, 3, 85, False),
])
def test_the_chips_own_limit(life, degrees, limit, setting, degraded):
    assert bool(life(degraded_temperature=setting).see(0, hot(degrees, limit)).rank) is degraded


def test_ecc_errors_degrade_for_a_while(life):
    chip = life()
    assert chip.see(0, ecc(double=4, isolated=1)).rank == 0  # of old
    assert chip.see(1, ecc(single=99, double=4, isolated=1)).rank == 0
    told = chip.see(10, ecc(double=5, isolated=1))
    assert (told.healthy, told.rank, told.degraded, told.review) == (True, 2, ("ECC double-bit errors",), 3610)
    told = chip.see(20, ecc(double=5, isolated=2))
    assert told.rank == 4 and told.degraded == ("ECC double-bit errors", "memory pages were isolated") and told.review == 3610
    assert chip.wait(3610).degraded == ("memory pages were isolated",)
    assert chip.wait(3620).rank == 0 and chip.told.review is None
    assert chip.see(3700, ecc(double=0, isolated=0)).rank == 0  # a new driver counts anew
    assert chip.see(3701, ecc(double=1, isolated=0)).rank == 2
    assert life(degraded_seconds=0).see(0, ecc(double=1)).rank == 0


def test_a_link_that_flaps_degrades(life):
    chip = life()
    chip.see(0, well(error_codes=[LINK]))
    assert chip.told.rank == 0
    chip.see(5, well())
    assert chip.see(3600, well(error_codes=[LINK])).degraded == ("its link went down several times",)
    assert chip.told.healthy and chip.told.review == 7200
    chip.see(3700, well())
    assert chip.wait(7200).rank == 0
    chip.see(12000, well(error_codes=[LINK]))
    assert chip.told.rank == 0


def test_sub_health_degrades_while_it_lasts(life):
    chip = life()
    told = chip.see(0, ill(SUB_HEALTH))
    assert told.healthy and told.rank == 2 and told.degraded == (f"fault code {SUB_HEALTH}: SubHealthFault",) and told.review is None
    assert chip.see(1, well()).rank == 0
    told = chip.see(2, well(), event(SUB_HEALTH, "once"))
    assert told.healthy and told.rank == 2 and told.review == 3602
    assert chip.wait(3602).rank == 0
    assert chip.see(5000, well(), event(SUB_HEALTH)).rank == 2
    assert chip.see(5001, well()).rank == 0


def test_memory_pressure_and_heat_weigh_less_than_a_chip_that_is_ill(life):
    short = ("NUMA node 0 is short of memory (limit 5 %)",)
    assert life().see(0, well(), pressure=short)[2:4] == (1, short)
    assert life().see(0, hot(90), pressure=short).rank == 2
    chip = life()
    assert chip.see(0, well(error_codes=[SUB_HEALTH], telemetry=hot(90)["telemetry"]), pressure=short).rank == 4
    assert chip.told.healthy


# --- any life of a chip

RECORDS = [
    well(), well(health_code=1), ill(NOT_HANDLE), ill(SUB_HEALTH), ill(), ill(SEPARATE), ill(OFTEN), ill(NOBODY_KNOWS), ill(LINK, number=0),
    silent(), well(error_codes=None), well(hung=3), well(dropped=True), well(driver_bound=False), well(device_node_present=False),
    well(probe={"healthy": False, "text": "no"}), hot(90), hot(82), ecc(double=1), ecc(double=2), ill(LINK, SEPARATE, NOT_HANDLE, OFTEN),
]
EVENTS = st.builds(event, st.sampled_from([BUSINESS, NOT_HANDLE, SUB_HEALTH, NOBODY_KNOWS, LINK, OFTEN]),
                   st.sampled_from(["occur", "recover", "once"]), st.integers(0, 3))
PAUSES = st.sampled_from([0, 0.1, 1, 5, 9.9, 10, 31, 1000, 1800, 3601, DAY])
STEPS = st.lists(st.tuples(PAUSES, st.sampled_from(RECORDS), st.lists(EVENTS, max_size=2)), min_size=1, max_size=12)
CHANGES = st.fixed_dictionaries({
    "recovery_seconds": st.sampled_from([0, 0.1, 10, 300]), "flap_count": st.integers(0, 3), "flap_hold": st.sampled_from([1, 1800]),
    "keep_last_state": st.sampled_from([0, 30]), "degraded_seconds": st.sampled_from([0, 3600]),
})


def is_bad(agent, levels, record, events):
    """Whether something bad was said for sure, whatever was said before."""
    told = [one for one in events if one["assertion"] != "recover"]
    severe = [one for one in told if (levels.of(one["code"]) or ("NotHandleFault", "SeparateNPU")[one["severity"] > 1]) not in
              agent.faults.HEALTHY]
    return bool(severe) or agent.health.judge(record, "major", levels)[0] is False


def outcome(told):
    return told.healthy, told.reason, told.rank, told.degraded


@given(STEPS, CHANGES)
@settings(max_examples=400, deadline=None)
def test_any_life(agent, levels, steps, changes):
    chip = Life(agent, levels, **changes)
    now, bad_at, answered = 0.3, None, None
    for pause, record, events in steps:
        now += pause
        record = dict(record)
        before = chip.told
        chip.see(now, record, *events)
        bad = is_bad(agent, levels, record, events)
        if bad:
            bad_at = now
        if bad or agent.health.judge(record, "major", levels)[0]:
            answered = now
        if chip.told.healthy:
            assert not bad
            assert bad_at is None or now >= bad_at + changes["recovery_seconds"]
            assert answered is not None and (answered == now or now < answered + changes["keep_last_state"])
            assert before is None or before.healthy or answered == now  # nobody gets well unseen
    follow(chip, now, at_once=not changes["recovery_seconds"] or not changes["keep_last_state"])


def follow(chip, now, at_once):
    """Time alone leads to an end, by the times that the verdicts name and no others."""
    for _review in range(12):
        told, review = outcome(chip.told), chip.told.review
        if review is None:
            break
        assert review > now or (review == now and at_once)
        between = copy.deepcopy(chip)
        between.record = chip.record
        between.health.memory["key"].standing.polled = chip.record
        if review > now:
            assert outcome(between.wait(now + (review - now) / 2)) == told
        now = review
        chip.wait(now)
    assert chip.told.review is None
    assert outcome(chip.wait(now + 1e9)) == told


# --- NUMA nodes that are short of memory

def write_node(sysfs, number, **kilobytes):
    folder = sysfs / f"devices/system/node/node{number}"
    folder.mkdir(parents=True, exist_ok=True)
    values = {"MemTotal": 1000, "MemFree": 0, "Active(file)": 0, "Inactive(file)": 0, "SReclaimable": 0, **kilobytes}
    lines = [f"Node {number} {name}: {value:10} kB\n" for name, value in values.items()]
    (folder / "meminfo").write_text("".join(lines) + f"Node {number} HugePages_Total:     3\n")


@pytest.mark.parametrize(("values", "short"), [
    ({"MemFree": 50}, False), ({"MemFree": 49}, True), ({"MemFree": 20, "Inactive(file)": 30}, False), ({"Active(file)": 50}, False),
    ({"SReclaimable": 50}, False), ({"MemTotal": 0}, False), ({"Active": 900, "FilePages": 900}, True),
])
def test_memory_of_a_numa_node(agent, tmp_path, values, short):
    write_node(tmp_path, 0, MemFree=900)
    write_node(tmp_path, 12, **values)
    found = agent.degraded.memory_pressure(str(tmp_path), 5)
    assert found == ({12: "NUMA node 12 is short of memory (limit 5 %)"} if short else {})
    assert agent.degraded.memory_pressure(str(tmp_path), 0) == {}


@pytest.mark.parametrize(("percent", "free", "short"), [(5, 62, True), (5, 63, False), (90, 949, True), (90, 950, False)])
def test_memory_has_to_recover_for_good(agent, tmp_path, percent, free, short):
    write_node(tmp_path, 0, MemFree=free)
    assert (0 in agent.degraded.memory_pressure(str(tmp_path), percent, {0: "was short"})) is short
    assert agent.degraded.memory_pressure(str(tmp_path), percent) == {}


def test_memory_that_cannot_be_read_says_nothing(agent, tmp_path):
    assert agent.degraded.memory_pressure(str(tmp_path), 5) == {}
    (tmp_path / "devices/system/node/node0").mkdir(parents=True)
    (tmp_path / "devices/system/node/node1").mkdir()
    (tmp_path / "devices/system/node/node1/meminfo").write_text("Node 1 MemTotal: what\n")
    (tmp_path / "devices/system/node/nodes").write_text("")
    assert agent.degraded.memory_pressure(str(tmp_path), 5) == {}
    assert agent.degraded.memory_pressure("/sys", 0.001) == {}
