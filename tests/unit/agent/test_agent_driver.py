# SPDX-License-Identifier: GPL-3.0-or-later
"""driver.py with children that are none: each step of theirs is decided here, and time goes on when nobody has anything to say."""

import itertools
from types import SimpleNamespace

import pytest

TIMEOUT, RETRY = 5.0, 60.0
SETTINGS = SimpleNamespace(query_timeout=TIMEOUT, stuck_retry=RETRY, install_path="/nowhere")


class Node:
    """A driver with four chips. hang, crash: places where a query does so; None for the list of cards. immortal: SIGKILL does nothing."""

    def __init__(self):
        self.now = 1000.0
        self.chips = [(card, 0) for card in range(4)]
        self.hang, self.crash, self.immortal, self.refuse = set(), set(), False, None
        self.children, self.takers = [], {}

    def clock(self):
        return self.now

    def start(self, library, install_path):
        self.children.append(Child(self))
        return self.children[-1]

    def alive(self):
        return [child for child in self.children if child.alive]

    # the watch: time goes on only when nobody has anything to say

    def add(self, descriptor, taker):
        self.takers[descriptor] = taker

    def remove(self, descriptor):
        self.takers.pop(descriptor, None)

    def wait(self, seconds):
        ready = [taker for descriptor, taker in list(self.takers.items()) if descriptor.step()]
        for taker in ready:
            taker()
        if not ready:
            self.now += seconds
        return bool(ready)


class Child:
    pids = itertools.count(100)

    def __init__(self, node):
        self.node, self.pid, self.output = node, next(self.pids), self
        self.alive, self.ended, self.killed = True, False, False
        self.asked, self.waiting, self.said = [], [{"ready": 1}], []
        self.at, self.work = None, iter(())

    def send(self, request):
        self.asked.append(request)
        if request["cmd"] != "end":
            self.work = self.answer(request)

    def answer(self, request):
        if request["cmd"] in ("open", "subscribe"):
            if request["cmd"] in self.node.hang:
                yield "hang", request["cmd"]
            error = self.node.refuse if request["cmd"] == "open" else None
            yield "say", {"id": request["id"], **({"error": error} if error else {"result": {"why": None}})}
            return
        places = [tuple(place) for place in request.get("only", ())]
        if not places:
            yield "at", None
            for card in {place[0]: None for place in self.node.chips}:
                if [card, None] not in [list(place) for place in request.get("skip", ())]:
                    yield "at", (card, None)
                    places += [place for place in self.node.chips if place[0] == card]
        places = [place for place in places if place not in [tuple(one) for one in request.get("skip", ())]]
        for place in places:
            yield "at", place
        yield "say", {"id": request["id"], "result": [{"card_id": card, "device_id": device} for card, device in places]}

    def step(self):
        """Go on until there is something to say. False when it hangs or has nothing to do."""
        if self.killed and not self.node.immortal:
            self.alive = False
        if not self.alive:
            return not self.ended
        while not self.waiting:
            if self.at in self.node.hang and self.at != "free":
                return False
            if self.asked and self.asked[-1] == {"cmd": "end"}:
                self.waiting.append({"ended": True})
                continue
            self.at = "free"
            kind, what = next(self.work, ("idle", None))
            if kind == "idle":
                return False
            if kind == "hang":
                self.at = what
            elif kind == "at":
                self.at = what
                self.waiting.append({"id": self.asked[-1]["id"], "at": what})
                if what in self.node.crash:
                    self.alive = False
            else:
                self.waiting.append(what)
        return True

    def read(self):
        self.said += self.waiting
        self.waiting = []
        self.ended = not self.alive
        return not self.ended

    def line(self, command):
        return self.said.pop(0) if self.said else None

    def broken(self, what, command):
        return RuntimeError(f"{what} during {command}")

    def heard(self):
        return ""

    def kill(self):
        self.killed = True
        if not self.node.immortal:
            self.alive = False

    def reap(self, seconds=0.0):
        return not self.alive

    def close(self):
        self.ended = True


@pytest.fixture
def agent(package):
    import npu_agent.driver

    return npu_agent.driver


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def driver(agent, node, monkeypatch):
    monkeypatch.setattr(agent, "load_faults", lambda library, install_path: [])
    return agent.Driver("/x/libdcmi.so", SETTINGS, node, clock=node.clock, start=node.start)


def chips(answer):
    return sorted(card for card, _device in answer.records)


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
    assert chips(answer) == [1, 2] and set(answer.hung) == {(0, 0), (3, 0)}
    assert len(node.alive()) == 3


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


def test_a_subscription_that_hangs_is_not_tried_again(driver, node):
    node.hang.add("subscribe")
    assert chips(driver.ask("health")) == [0, 1, 2, 3]
    assert "subscribe" in driver.unsubscribed and len(node.children) == 2
    assert [request["cmd"] for request in node.children[1].asked] == ["open", "health"]


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
