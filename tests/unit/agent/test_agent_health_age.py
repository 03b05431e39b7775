# SPDX-License-Identifier: GPL-3.0-or-later
"""A chip that nobody asks any more takes no work, whoever should have asked it."""

import pytest
from chip_life import Life, ill, silent, well


@pytest.fixture
def life(package):
    import npu_agent.faults
    import npu_agent.health

    levels = npu_agent.faults.load()
    return lambda **settings: Life(npu_agent, levels, **{"poll_seconds": 5.0, **settings})


@pytest.mark.parametrize(("settings", "good"), [
    ({}, 45), ({"poll_seconds": 3600.0}, 3640), ({"keep_last_state": 60.0}, 75), ({"keep_last_state": 0.0, "query_timeout": 0.5}, 36),
])
def test_time_alone_takes_a_chip_out_whose_answer_is_too_old(life, settings, good):
    chip = life(**settings)
    assert chip.see(100, well()).healthy and chip.told.review == 100 + good
    assert chip.wait(100 + good - 0.1).healthy and chip.told.review == 100 + good
    told = chip.wait(100 + good)
    assert (told.healthy, told.review) == (False, None) and f"for more than {good} s" in told.reason
    assert chip.wait(10000).healthy is False


def test_only_another_answer_brings_it_back(life):
    chip = life(flap_count=1)
    chip.see(0, well(asked_at=0))
    chip.wait(45)
    assert chip.see(50, well(asked_at=0)).healthy is False and chip.told.review is None  # told again what is known: no look
    assert chip.see(60, well(asked_at=59)).review == 70
    assert chip.wait(70).healthy  # it was no fault of the chip's, so that it does not flap


def test_looks_put_it_off(life):
    chip = life(poll_seconds=3600.0)
    for now in range(0, 360000, 3600):
        assert chip.see(now, well(asked_at=now)).healthy and chip.told.review == now + 3640


def test_other_settings_take_nobody_out(life):
    chip = life(poll_seconds=3600.0)
    chip.see(0, well())
    chip.health.settings.poll_seconds = 5.0
    assert chip.wait(2000).healthy and chip.see(2001, well()).review == 2046  # it is to be looked at at once, but was not yet
    chip.health.settings.poll_seconds = 3600.0
    assert chip.wait(2046).healthy and chip.told.review == 2001 + 3640


def test_a_process_that_was_held_up_asks_first(life):
    """Stopped and continued, or frozen with its machine: who looks was as well."""
    chip = life()
    chip.see(0, well())
    assert chip.wait(1000).healthy and chip.told.review == 1045
    assert chip.wait(1045).healthy is False


def test_a_chip_that_is_out_needs_no_review_for_its_age(life):
    chip = life()
    assert chip.see(0, ill("80C98002")).review is None
    chip = life()
    chip.see(0, well())
    assert chip.see(5, silent()).review == 30  # keep_last_state
    assert chip.wait(30).healthy is False and chip.told.review is None
