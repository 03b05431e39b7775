# SPDX-License-Identifier: GPL-3.0-or-later
"""driver.py and chips that are slow, or seem to hang and do not: nobody waits for them, and nothing is lost. See test_agent_driver.py."""

import itertools
from types import SimpleNamespace

from driver_rig import RETRY, TIMEOUT, chips


def test_a_driver_that_answered_is_not_waited_for_when_all_its_chips_hang(fake_driver, fake_node):
    """The last one is told of a deadline after it was asked, and that is half a second after the one before."""
    fake_node.chips = [(card, 0) for card in range(8)]
    fake_driver.ask("health")
    fake_node.hang |= set(fake_node.chips)
    began = fake_node.now
    answer = fake_driver.ask("health")
    assert set(answer.errors) == fake_node.hang and not answer.hung and fake_node.now - began == 8 * 0.5
    told = []
    while len(told) < 8:
        fake_driver.wait(TIMEOUT)
        told += [fake_node.now - began] * (len(fake_driver.hung()) - len(told))
    assert told == [TIMEOUT + number * 0.5 for number in range(8)]


def test_nor_when_all_its_cards_do(fake_driver, fake_node):
    fake_node.chips = [(card, 0) for card in range(16)]
    for _look in range(2):
        fake_driver.ask("health")
    fake_node.hang = {(card, None) for card in range(16)}
    began, told = fake_node.now, []
    fake_driver.meanwhile = lambda: told.append((len(fake_driver.hung()), fake_node.now))
    fake_driver.ask("health")
    while len(fake_driver.hung()) < 16:
        fake_driver.wait(TIMEOUT)
    assert fake_node.now - began == 15 * 0.5 + TIMEOUT


def test_a_driver_that_takes_its_time_gets_it(fake_driver, fake_node):
    """Chips that take 2 s each, from one look to the next: they are set apart once, and given five times that from then on."""
    fake_driver.ask("health")
    wait, steps, turns = fake_node.wait, [], itertools.count()

    def slow(seconds):
        """Each chip's query comes back 2 s after it began."""
        assert next(turns) < 1000
        for child in fake_node.alive():
            if child.at in fake_node.chips and (child.pid, child.at) not in steps:
                steps.append((child.pid, child.at))
                fake_node.hang.add(child.at)
                due[child.at] = fake_node.now + 2
        for place in [place for place, when in due.items() if when <= fake_node.now]:
            fake_node.hang.discard(place)
            del due[place]
        return wait(min([seconds, *(when - fake_node.now for when in due.values())]))

    due = {}
    fake_node.wait = slow
    fake_driver.ask("health")
    while fake_driver.slow():
        fake_driver.wait(1)
    children = len(fake_node.children)
    assert not fake_driver.hung() and not fake_driver.apart
    for _unused in range(3):
        steps.clear()
        answer = fake_driver.ask("health")
        assert (chips(answer), answer.hung, answer.errors) == ([0, 1, 2, 3], {}, {})
    assert len(fake_node.children) == children


def slowly(fake_node, times):
    """Have the query of the child with this index (in the order of their starts) at a place take so many seconds."""
    wait, due = fake_node.wait, {}

    def step(seconds):
        for (index, place), lasts in list(times.items()):
            if len(fake_node.children) > index and fake_node.children[index].at == place:
                del times[index, place]
                fake_node.hang.add(place)
                due[place] = fake_node.now + lasts
        for place in [place for place, when in due.items() if when <= fake_node.now]:
            fake_node.hang.discard(place)
            del due[place]
        return wait(min(seconds, 0.05))

    fake_node.wait = step


def test_one_whose_query_comes_back_while_the_others_are_asked_is_not_missing(fake_driver, fake_node):
    """It would pass for a chip that is gone."""
    fake_driver.ask("health")
    slowly(fake_node, {(0, (0, 0)): 0.7, (1, (1, 0)): 0.4})
    answer = fake_driver.ask("health")
    assert chips(answer) == [1, 2, 3] and set(answer.errors) == {(0, 0)} and not answer.hung and fake_driver.back and not fake_driver.apart
    assert chips(fake_driver.ask("health")) == [0, 1, 2, 3]


def test_events_are_heard_while_a_new_worker_comes(fake_driver, fake_node):
    """And once, where both the one that waits and the new one tell."""
    fake_driver.ask("health")
    fake_node.hang.add((1, 0))
    start, event = fake_driver.start, {"code": "80E18005", "logic_id": 2, "severity": 2, "assertion": "once", "serial": 7}

    def begin(*arguments):
        fake_node.children[0].waiting.append({"event": dict(event)})
        made = start(*arguments)
        made.waiting.append({"event": dict(event)})
        return made

    fake_driver.start = begin
    fake_driver.ask("health")
    assert [(told["code"], told["serial"]) for told in fake_driver.take_events()] == [("80E18005", 7)]
    fake_node.children[0].waiting.append({"event": dict(event, serial=8)})  # the new one tells from now on
    fake_driver.wait(1)
    assert fake_driver.take_events() == []


def test_one_that_hangs_at_another_chip_by_now_is_no_witness_of_the_first(fake_driver, fake_node):
    """It was told to end a moment too late, and went on to the next chip."""
    fake_node.hang = {(1, 0)}
    assert set(fake_driver.ask("health").hung) == {(1, 0)}
    fake_node.hang = {(2, 0)}
    fake_node.children[0].waiting.append({"id": fake_node.children[0].asked[0]["id"] + 2, "at": [2, 0]})
    fake_driver.wait(1)
    assert not fake_driver.apart and fake_driver.back
    answer = fake_driver.ask("health")
    assert chips(answer) == [0, 1, 3] and fake_driver.slow() == [(2, 0)] and len(fake_node.alive()) == 2


def test_one_that_tries_a_card_again_may_pass_others_on_its_way(fake_driver, fake_node):
    fake_node.hang = {(2, None)}
    assert set(fake_driver.ask("health").hung) == {(2, None)}
    fake_driver.wait(RETRY)
    fake_driver.wait(RETRY)
    for _turn in range(9):
        fake_driver.wait(1)
    assert set(fake_driver.hung()) == {(2, None)} and len(fake_node.alive()) == 2
    fake_node.hang = set()
    for _turn in range(9):
        fake_driver.wait(1)
    assert not fake_driver.apart and chips(fake_driver.ask("health")) == [0, 1, 2, 3]


def test_a_slow_chip_does_not_cost_the_others_where_no_second_process_starts(fake_driver, fake_node):
    fake_driver.ask("health")
    slowly(fake_node, {(0, (1, 0)): 2})
    fake_node.refuse = {"code": "dcmi_failed", "message": "-8005"}
    wait = fake_node.wait

    def later(seconds):
        fake_node.refuse = None if fake_node.now > 1001 else fake_node.refuse
        return wait(seconds)

    fake_node.wait = later
    assert chips(fake_driver.ask("health")) == [0, 2, 3]


def test_a_captive_of_the_image_before_hangs_after_its_full_time(fake_driver, fake_node):
    left = SimpleNamespace(has_left=lambda place: False, fault=None, dropped=False, child=SimpleNamespace(ended=False), take=lambda: None)
    fake_driver.inherit((1, 0), left, fake_node.now - 0.6)
    assert fake_driver.hung() == {} and fake_driver.slow() == [(1, 0)]
    fake_driver.wait(TIMEOUT)
    fake_driver.wait(1)
    assert set(fake_driver.hung()) == {(1, 0)}
