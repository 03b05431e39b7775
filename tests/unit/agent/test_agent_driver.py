# SPDX-License-Identifier: GPL-3.0-or-later
"""driver.py with children that are none: each step of theirs is decided here, and time goes on when nobody has anything to say."""

import pytest
from driver_rig import RETRY, TIMEOUT, chips


@pytest.fixture
def agent(package):
    import npu_agent.driver

    return npu_agent.driver


@pytest.fixture
def node(fake_node):
    return fake_node


@pytest.fixture
def driver(fake_driver):
    return fake_driver


def test_one_worker_answers_for_all(driver, node):
    for _unused in range(3):
        answer = driver.ask("health")
        assert (chips(answer), answer.hung, answer.errors) == ([0, 1, 2, 3], {}, {})
    assert [len(node.children), driver.starts, driver.unsubscribed] == [1, 1, None]
    assert set(answer.asked) == set(answer.records)


def test_a_chip_that_hangs_keeps_its_worker_and_nobody_elses_answer(driver, node):
    node.hang.add((1, 0))
    began = node.now
    answer = driver.ask("health")
    assert (chips(answer), answer.hung, driver.new_hang) == ([0, 2, 3], {(1, 0): TIMEOUT}, True)
    assert node.now == began + TIMEOUT
    captive, worker = node.children
    assert captive.asked[-1] == {"cmd": "end"} and worker.asked[-1]["skip"] == [(1, 0)]
    for _unused in range(20):
        node.now += 1
        assert chips(driver.ask("health")) == [0, 2, 3]
    assert len(node.children) == 2 and driver.hung() == {(1, 0): TIMEOUT + 20}


def test_two_that_hang_are_told_apart(driver, node):
    node.hang |= {(0, 0), (3, 0)}
    answer = driver.ask("health")
    assert chips(answer) == [1, 2] and set(answer.hung) == {(0, 0)} and set(answer.errors) == {(3, 0)}
    driver.wait(TIMEOUT)
    assert set(driver.hung()) == {(0, 0), (3, 0)} and len(node.alive()) == 3
    answer = driver.ask("health")
    assert chips(answer) == [1, 2] and set(answer.hung) == {(0, 0), (3, 0)} and not answer.errors


def test_many_that_hang_are_not_waited_for_one_after_the_other(driver, node):
    node.chips = [(card, 0) for card in range(16)]
    node.hang |= {(card, 0) for card in range(1, 16)}
    began = node.now
    answer = driver.ask("health")
    assert chips(answer) == [0] and {*answer.hung, *answer.errors} == node.hang
    assert node.now - began == TIMEOUT + 14 * 0.5
    driver.new_hang = False
    while len(driver.hung()) < 15:
        driver.wait(TIMEOUT)
    assert node.now - began == TIMEOUT + 13 * 0.5 + TIMEOUT and driver.new_hang
    assert all(seconds >= TIMEOUT for seconds in driver.hung().values()) and len(node.alive()) == 16


@pytest.mark.parametrize("command", ["health", "chips"])
def test_a_slow_chip_behind_one_that_hangs_does_not_hang(driver, node, command):
    node.hang |= {(0, 0), (2, 0)}
    answer = driver.ask(command)
    assert chips(answer) == [1, 3] and answer.errors == {(2, 0): "the driver has not answered for this chip yet"}
    assert driver.slow() == [(2, 0)]
    driver.new_hang = False
    node.hang.remove((2, 0))  # it answers after 2 s
    driver.wait(2)
    assert driver.back and not driver.new_hang and set(driver.hung()) == {(0, 0)} and driver.slow() == []
    answer = driver.ask(command)
    assert chips(answer) == [1, 2, 3] and not answer.errors and len(node.alive()) == 2


def test_less_time_is_for_chips_only(driver, node):
    """A list of cards that takes its time behind a chip that hangs: without it there is no answer at all."""
    node.hang.add((0, 0))
    wait, stopped = node.wait, []

    def late_list(seconds):
        if len(node.children) == 2 and node.children[1].at is None and not stopped:
            node.hang.add(None)
            stopped.append(node.now)
        if stopped and node.now >= stopped[0] + 2:
            node.hang.discard(None)
        return wait(min(seconds, 1))

    node.wait = late_list
    assert chips(driver.ask("health")) == [1, 2, 3] and len(node.children) == 2


def test_chips_that_crash_and_then_hang_do_not_wait_for_each_other(driver, node):
    node.crash |= {(1, 0), (2, 0), (3, 0)}
    for _unused in range(3):
        driver.ask("health")
    assert len(driver.apart) == 3
    node.crash.clear()
    node.hang |= {(1, 0), (2, 0), (3, 0)}
    node.now += RETRY
    began = node.now
    answer = driver.ask("health")
    assert node.now - began == 3 * 0.5 and set(answer.errors) == node.hang and not answer.hung
    driver.wait(TIMEOUT)
    while len(driver.hung()) < 3:
        driver.wait(TIMEOUT)
    assert node.now - began == 2 * 0.5 + TIMEOUT


def test_events_are_kept_up_to_a_number(driver, node, agent):
    driver.ask("health")
    for number in range(agent.EVENTS):
        driver.hear({"code": number})
    assert not driver.lost
    driver.hear({"code": "newest"})
    taken = driver.take_events()
    assert driver.lost and len(taken) == agent.EVENTS and (taken[0], taken[-1]) == ({"code": 1}, {"code": "newest"})
    assert driver.take_events() == []


def test_an_error_of_any_kind_is_no_reason_to_try_no_more(driver, node):
    node.hang.add((1, 0))
    driver.ask("health")
    start = driver.start
    driver.start = lambda *_unused: 1 / 0
    node.now += RETRY
    for _unused in range(3):
        driver.wait(RETRY)
    driver.start = start
    for _unused in range(3):
        driver.wait(RETRY)
    assert len(node.children) == 3 and driver.apart[1, 0].worker.child is node.children[2]


def test_a_chip_whose_call_comes_back_is_asked_with_the_others_again(driver, node):
    node.hang.add((1, 0))
    driver.ask("health")
    node.hang.clear()
    driver.wait(30)
    assert driver.back and driver.hung() == {}
    assert chips(driver.ask("health")) == [0, 1, 2, 3]
    assert len(node.alive()) == 1 and len(node.children) == 2


def test_a_captive_is_given_up_in_the_end_and_one_new_one_tries(driver, node):
    node.hang.add((1, 0))
    driver.ask("health")
    captive = node.children[0]
    while node.now < 1000 + TIMEOUT + 2 * RETRY + 30:
        driver.wait(7)
        assert chips(driver.ask("health")) == [0, 2, 3]
    assert not captive.alive and len(node.children) == 4 and len(node.alive()) == 2
    assert node.children[-1].asked[-1] == {"id": 1, "cmd": "health", "progress": True, "only": [(1, 0)]}
    assert driver.hung()[1, 0] >= 2 * RETRY  # since the first query that hung
    node.hang.clear()
    driver.wait(7)
    assert driver.back and chips(driver.ask("health")) == [0, 1, 2, 3] and len(node.alive()) == 1


def test_a_captive_that_cannot_be_killed_stays_the_only_one(driver, node):
    node.hang.add((1, 0))
    driver.ask("health")
    node.immortal = True
    for _unused in range(100):
        driver.wait(10)
        assert chips(driver.ask("health")) == [0, 2, 3]
    assert len(node.children) == 2 and node.children[0].killed
    assert driver.hung()[1, 0] > 900
    node.immortal = False
    driver.wait(10)
    driver.wait(10)
    assert len(node.children) == 3 and not node.children[0].alive


def test_a_query_that_ends_the_worker_costs_one_answer(driver, node):
    node.crash.add((2, 0))
    for looks in (1, 2):
        answer = driver.ask("health")
        assert chips(answer) == [0, 1, 3] and "ended" in answer.errors[2, 0]
        assert len(node.alive()) == 1 and len(node.children) == 1 + looks
    node.crash.clear()
    assert chips(driver.ask("health")) == [0, 1, 2, 3]


def test_a_chip_that_crashes_three_times_in_a_row_is_asked_alone(driver, node):
    node.crash.add((2, 0))
    for _unused in range(3):
        driver.ask("health")
    count = len(node.children)
    for _unused in range(5):
        answer = driver.ask("health")
        assert chips(answer) == [0, 1, 3] and (2, 0) in answer.errors
    assert len(node.children) == count  # the others' worker lives on; the chip is tried again after a while
    node.now += RETRY
    driver.ask("health")
    assert len(node.children) == count + 1 and node.children[-1].asked[-1]["only"] == [(2, 0)]
    node.crash.clear()
    node.now += RETRY
    for _unused in range(3):
        assert chips(driver.ask("health")) == [0, 1, 2, 3]
    assert len(node.children) == count + 2 and len(node.alive()) == 2  # it keeps its own for a while
    for _unused in range(20):
        assert chips(driver.ask("health")) == [0, 1, 2, 3]
    assert len(node.children) == count + 2 and len(node.alive()) == 1  # and is asked with the others again


def test_crashes_are_counted_in_a_row_only(driver, node):
    for _unused in range(4):
        node.crash.add((2, 0))
        driver.ask("health")
        node.crash.clear()
        driver.ask("health")
    assert driver.apart == {}


@pytest.mark.parametrize("where", [None, "open"])
def test_a_list_that_hangs_leaves_nobody_to_ask(agent, driver, node, where):
    node.hang.add(where)
    for count in (1, 2, 3):
        with pytest.raises(agent.DcmiError, match="in time") as caught:
            driver.ask("health")
        assert caught.value.code == "dcmi_timeout" and (len(node.children), node.alive()) == (count, [])
    node.hang.clear()
    assert chips(driver.ask("health")) == [0, 1, 2, 3]


def test_of_those_that_cannot_be_killed_there_is_one(agent, driver, node):
    node.hang.add(None)
    node.immortal = True
    for _unused in range(5):
        with pytest.raises(agent.DcmiError):
            driver.ask("health")
        node.now += 10
    assert len(node.children) == 1
    with pytest.raises(agent.DcmiError, match=f"process {node.children[0].pid} hangs in the driver for .* cannot be killed"):
        driver.ask("health")
    node.hang.clear()
    node.immortal = False
    assert chips(driver.ask("health")) == [0, 1, 2, 3]


def test_a_subscription_that_hangs_is_tried_again_much_later(agent, driver, node):
    node.hang.add("subscribe")
    assert chips(driver.ask("health")) == [0, 1, 2, 3]
    assert "subscribe" in driver.unsubscribed and len(node.children) == 2
    assert [request["cmd"] for request in node.children[1].asked] == ["open", "health"]
    node.now += agent.SUBSCRIBE_SECONDS - 10
    assert driver.ask("health") and len(node.children) == 2
    node.now += 10
    assert chips(driver.ask("health")) == [0, 1, 2, 3] and driver.unsubscribed  # in vain: the old worker goes on
    assert len(node.children) == 3 and node.alive() == [node.children[1]]
    node.hang.clear()
    node.now += agent.SUBSCRIBE_SECONDS + 5
    assert chips(driver.ask("health")) == [0, 1, 2, 3] and driver.unsubscribed is None
    assert node.alive() == [node.children[3]] and driver.worker.child is node.children[3]
    node.now += 2 * agent.SUBSCRIBE_SECONDS
    assert driver.ask("health") and len(node.children) == 4


def test_of_subscribers_that_cannot_be_killed_there_is_one(agent, driver, node):
    node.hang.add("subscribe")
    node.immortal = True
    for _unused in range(4):
        assert chips(driver.ask("health")) == [0, 1, 2, 3]
        node.now += agent.SUBSCRIBE_SECONDS + 5
    assert len(node.children) == 2


def test_a_library_that_refuses_is_started_anew_next_time(agent, driver, node):
    node.refuse = {"code": "dcmi_failed", "message": "dcmi_init answered -8005", "return": -8005}
    for count in (1, 2):
        with pytest.raises(agent.DcmiError, match="-8005") as caught:
            driver.ask("health")
        assert caught.value.details["return"] == -8005 and (len(node.children), node.alive()) == (count, [])


def test_a_card_that_does_not_tell_its_chips_is_left_to_its_captive(driver, node):
    node.hang.add((1, None))
    answer = driver.ask("list")
    assert chips(answer) == [0, 2, 3] and set(answer.hung) == {(1, None)}
    node.now += RETRY
    driver.wait(1)
    driver.wait(1)
    assert node.children[-1].asked[-1]["cmd"] == "list" and "only" not in node.children[-1].asked[-1]
    node.hang.clear()
    while not driver.back:
        driver.wait(1)
    assert chips(driver.ask("list")) == [0, 1, 2, 3]


def test_an_answer_that_is_there_counts_however_late_it_is_read(driver, node):
    """This process may have been held up, not the other one."""
    driver.ask("health")

    def held_up(seconds):
        node.now += 3 * TIMEOUT
        for child in node.alive():
            child.step()  # it goes on meanwhile, and nobody has heard of it when the time is over
        return False

    node.wait = held_up
    assert chips(driver.ask("health")) == [0, 1, 2, 3] and driver.hung() == {}


def test_events_are_kept_until_they_are_taken(driver, node):
    driver.ask("health")
    event = {"code": "80E01801", "logic_id": 1, "severity": 2, "assertion": "occur", "serial": 1}
    node.children[0].waiting.append({"event": event})
    driver.wait(0)
    assert driver.take_events() == [dict(event, at=node.now)] and driver.take_events() == []
    node.hang.add((1, 0))
    driver.ask("health")
    node.children[0].waiting.append({"event": event})  # of the captive: the new worker tells the same
    driver.wait(0)
    assert driver.take_events() == []


def test_close_ends_all(driver, node):
    node.hang |= {(0, 0), (3, 0)}
    driver.ask("health")
    driver.close()
    assert node.alive() == [] and node.takers == {}
