# SPDX-License-Identifier: GPL-3.0-or-later
"""The health rule in any life of a chip: what must hold whatever is said of it, in whatever order."""

import copy

from chip_life import BUSINESS, DAY, LINK, NOBODY_KNOWS, NOT_HANDLE, OFTEN, SEPARATE, SUB_HEALTH, Life, ecc, event, hot, ill, silent, well
from hypothesis import given
from hypothesis import strategies as st

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
    assert outcome(chip.wait(now + 1000 * DAY)) == told
