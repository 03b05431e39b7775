# SPDX-License-Identifier: GPL-3.0-or-later
"""The health rule: what fault events do, and codes that come too often or last too long."""

import functools

import pytest
from chip_life import BUSINESS, DAY, LINK, NOBODY_KNOWS, NOT_HANDLE, OFTEN, SEPARATE, SUB_HEALTH, Life, event, ill, silent, well

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


@pytest.fixture
def brief(agent, levels):
    """life() with an operator's `FaultDuration: []`: a link that was down for a moment counts."""
    return functools.partial(Life, agent, agent.faults.Levels(levels.levels, levels.rules))


def test_a_separated_chip_is_released_by_time(brief):
    chip = brief(flap_count=0)
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


def test_a_separated_chip_is_not_released_while_the_code_stands(brief):
    chip = brief(flap_count=0, degraded_seconds=0)
    for now in range(0, 500, 100):
        chip.see(now, well(error_codes=[LINK]))
        chip.see(now + 1, well(error_codes=[LINK] if now == 400 else []))
    chip.see(900, well(error_codes=[LINK]))
    assert chip.see(1000, well()).review == 900 + 2 * DAY


@pytest.fixture
def lasts(agent, levels):
    """life() with the rules of a link that is down for another code."""
    rules = {kind: {NOT_HANDLE: found[LINK]} for kind, found in (("rules", levels.rules), ("lasting", levels.lasting))}
    return functools.partial(Life, agent, agent.faults.Levels(levels.levels, **rules))


@pytest.fixture
def linked(lasts):
    """A chip that has been looked at, without a hold-down of its own."""
    chip = lasts(flap_count=0, degraded_seconds=0, recovery_seconds=0)
    chip.see(0, well())
    return chip


def test_a_code_that_lasts_gets_another_level(linked):
    assert linked.see(100, well(error_codes=[NOT_HANDLE])).healthy and linked.told.review == 120
    assert linked.wait(119.99).healthy
    told = linked.wait(120)
    assert not told.healthy and "PreSeparateNPU" in told.reason and "stood for 20 s" in told.reason and told.review is None
    assert linked.see(300, well()).review == 360
    assert not linked.see(359.99, well()).healthy and linked.see(360, well()).healthy and linked.told.review is None


def test_one_that_comes_and_goes_does_not(linked):
    for start in range(100, 400, 30):
        linked.see(start, well(error_codes=[NOT_HANDLE]))
        assert linked.see(start + 19, well(error_codes=[NOT_HANDLE])).healthy
        assert linked.see(start + 20, well()).healthy


def test_one_that_comes_back_too_soon_begins_its_absence_anew(linked):
    linked.see(100, well(error_codes=[NOT_HANDLE]))
    linked.wait(121)
    linked.see(130, well())
    assert not linked.see(180, well(error_codes=[NOT_HANDLE])).healthy
    assert not linked.see(181, well()).healthy and linked.told.review == 241
    assert linked.see(242, well()).healthy
    # The next time it has to last again.
    assert linked.see(300, well(error_codes=[NOT_HANDLE])).healthy and not linked.wait(321).healthy


def test_one_that_is_there_at_the_first_look_counts_as_having_lasted(lasts):
    """Nobody knows since when; to offer such a chip for a moment after each start would be worse than to wait."""
    chip = lasts(recovery_seconds=0)
    assert not chip.see(0, well(error_codes=[NOT_HANDLE])).healthy
    chip.see(1, well())
    assert not chip.see(60.99, well()).healthy and chip.see(61, well()).healthy


def test_events_begin_it_too(linked):
    linked.see(100, well(), event(NOT_HANDLE))
    assert linked.told.healthy and not linked.wait(120).healthy
    linked.see(130, well(), event(NOT_HANDLE, "recover"))  # an answer that was asked for after that is without it
    assert linked.see(131, well()).review == pytest.approx(190, abs=1.1)


def test_it_comes_for_its_rule_when_it_has_lasted(linked):
    """Five times in a day, then away for two days."""
    for start in range(0, 1000, 50):
        linked.see(start, well(error_codes=[NOT_HANDLE]))
        assert linked.see(start + 10, well()).healthy
    for start in range(1000, 1500, 100):
        linked.see(start, well(error_codes=[NOT_HANDLE]))
        linked.wait(start + 21)
        linked.see(start + 22, well())
        assert linked.see(start + 90, well()).healthy is (start < 1400)
    assert "it came 5 times" in linked.told.reason and linked.told.review == 1421 + 2 * DAY


def test_a_rule_that_is_taken_out_of_the_file_counts_no_more(agent, linked):
    linked.see(100, well(error_codes=[NOT_HANDLE]))
    assert not linked.wait(121).healthy
    linked.health = agent.health.Health(linked.health.settings, agent.faults.Levels({NOT_HANDLE: "NotHandleFault"}), linked.health.memory)
    assert linked.see(122, well(error_codes=[NOT_HANDLE])).healthy


def with_rules(agent, **rules):
    """A chip's levels: NOT_HANDLE with these rules, and nothing else."""
    return agent.faults.Levels({NOT_HANDLE: "NotHandleFault"}, **{kind: {NOT_HANDLE: rule} for kind, rule in rules.items()})


def test_a_rule_that_comes_later_counts_nothing_a_second_time(agent, life):
    """Nor does one that goes and comes back."""
    often, lasts = agent.faults.Rule("ManuallySeparateNPU", DAY, 2, None), agent.faults.Duration("SubHealthFault", 20, 60)
    for kinds in (["rules"], ["rules", "lasting"]), (["rules", "lasting"], ["rules"], ["rules", "lasting"]):
        chip = life(flap_count=0)
        chip.see(0, well())
        for number, names in enumerate(kinds):
            every = {"rules": often, "lasting": lasts}
            levels = with_rules(agent, **{name: every[name] for name in names})
            chip.health = agent.health.Health(chip.health.settings, levels, chip.health.memory)
            chip.see(100 * number + 1, well(error_codes=[NOT_HANDLE]))
            assert chip.wait(100 * number + 90).healthy, kinds


def test_a_rule_that_comes_later_knows_since_when_a_code_stands(agent, life):
    chip = life(flap_count=0)
    chip.see(0, well())
    chip.see(10, well(error_codes=[NOT_HANDLE]))
    levels = with_rules(agent, lasting=agent.faults.Duration("PreSeparateNPU", 20, 60))
    chip.health = agent.health.Health(chip.health.settings, levels, chip.health.memory)
    assert not chip.wait(31).healthy


def test_one_that_came_twice_at_once_counts_twice(agent, life):
    chip = life(flap_count=0)
    chip.health.levels = with_rules(agent, rules=agent.faults.Rule("ManuallySeparateNPU", DAY, 2, None))
    chip.see(0, well())
    chip.see(100, well(), *(event(NOT_HANDLE, kind) for kind in ("occur", "recover", "occur")))
    assert not chip.told.healthy and "it came 2 times" in chip.told.reason


def test_the_worse_of_two_rules_counts(agent, life):
    chip = life(flap_count=0, recovery_seconds=0)
    chip.health.levels = with_rules(agent, rules=agent.faults.Rule("SubHealthFault", DAY, 2, DAY),
                                    lasting=agent.faults.Duration("SeparateNPU", 20, 60))
    chip.see(0, well())
    for start in (100, 300, 500):
        assert chip.see(start, well(error_codes=[NOT_HANDLE])).healthy
        assert not chip.wait(start + 21).healthy and "SeparateNPU" in chip.told.reason
        chip.see(start + 30, well())
        chip.see(start + 91, well())


def test_a_first_look_without_an_answer_is_none(lasts):
    chip = lasts(flap_count=0)
    chip.see(0, silent())
    assert not chip.see(5, well(error_codes=[NOT_HANDLE])).healthy and not chip.wait(16).healthy


def test_a_code_that_is_over_by_an_event_lasts_no_longer(linked):
    linked.see(100, well(), event(NOT_HANDLE))
    linked.see(101, linked.record, event(NOT_HANDLE, "recover"))  # and no answer since
    assert linked.wait(130).healthy and linked.told.review is None
    # An answer that was asked for later still has it: the event was wrong.
    assert not linked.see(131, well(error_codes=[NOT_HANDLE])).healthy


def test_one_that_flaps_faster_than_it_is_asked_about_does_not_last(linked):
    stale = well(error_codes=[NOT_HANDLE], asked_at=99)
    for start in range(100, 160, 4):
        linked.see(start, stale, {**event(NOT_HANDLE), "at": start})
        assert linked.see(start + 2, stale, {**event(NOT_HANDLE, "recover"), "at": start + 2}).healthy


def test_one_that_came_and_went_at_once_begins_its_absence_anew(linked):
    linked.see(100, well(error_codes=[NOT_HANDLE]))
    linked.wait(121)
    linked.see(130, well())
    both = [{**event(NOT_HANDLE, kind), "at": 188} for kind in ("occur", "recover")]
    linked.see(189, well(asked_at=188.9), *both)
    assert linked.told.review == 249


def test_an_unknown_code_gets_no_milder_by_lasting(agent, life):
    chip = life(flap_count=0)
    chip.health.levels = agent.faults.Levels({}, lasting={NOBODY_KNOWS: agent.faults.Duration("SubHealthFault", 20, 60)})
    chip.see(0, well())
    assert not chip.see(100, ill(NOBODY_KNOWS, number=3), event(NOBODY_KNOWS, severity=3)).healthy
    for now in (130, 145):
        assert not chip.see(now, ill(NOBODY_KNOWS, number=3)).healthy


def test_a_link_that_stays_down_degrades(life):
    """Chips of a server whose network ports have no cable still do work. The chip is chosen last."""
    chip = life(flap_count=0)
    chip.see(0, well())
    assert chip.see(100, well(error_codes=[LINK])).rank == 0
    told = chip.wait(121)
    assert told.healthy and told.rank == 2 and told.degraded == (f"fault code {LINK}: SubHealthFault",)
    chip.see(130, well())
    assert chip.wait(189).rank == 2 and chip.wait(191).rank == 0 and chip.told.healthy


def test_other_rules_release(agent, life):
    chip = life(flap_count=0)
    for now in range(0, 30, 10):
        chip.see(now, ill(OFTEN))
        chip.see(now + 5, well())
    assert chip.see(1000, well()).review is None
    chip.health = agent.health.Health(chip.health.settings, agent.faults.Levels({}), chip.health.memory)
    assert chip.see(1001, well()).review == 1011


def test_a_driver_that_lists_no_codes_and_is_not_quite_well(life):
    """Its number is all there is: an event's end counts when the driver was asked after it."""
    chip = life(flap_count=0, recovery_seconds=0)
    blind = {"health_code": 1, "error_codes": None}
    assert chip.see(0, well(error_codes=None)).healthy and chip.see(2, well(**blind)).healthy
    assert not chip.see(5, well(asked_at=5, **blind), event(SEPARATE)).healthy
    assert not chip.see(8, well(asked_at=8, **blind)).healthy
    assert not chip.see(10, chip.record, {**event(SEPARATE, "recover"), "at": 10}).healthy
    assert chip.see(15, well(asked_at=15, **blind)).healthy


def test_a_list_of_codes_that_fails_once_ends_none(life):
    chip = life(flap_count=0, recovery_seconds=0)
    chip.see(0, well())
    chip.see(5, ill(SEPARATE))
    assert not chip.see(10, well(health_code=1, error_codes=None, asked_at=10), {**event(SEPARATE, "recover"), "at": 9}).healthy
    assert chip.see(15, well(health_code=1, asked_at=15)).healthy
