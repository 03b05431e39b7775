# SPDX-License-Identifier: GPL-3.0-or-later
"""A node whose processes are none: what they say, and when, is decided by the test, and time is its own."""

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
def fake_node():
    return Node()


@pytest.fixture
def fake_driver(package, fake_node, monkeypatch):
    """A Driver on it."""
    from npu_agent import driver

    monkeypatch.setattr(driver, "load_faults", lambda library, install_path: [])
    return driver.Driver("/x/libdcmi.so", SETTINGS, fake_node, clock=fake_node.clock, pause=lambda seconds: None, start=fake_node.start)


def chips(answer):
    return sorted(card for card, _device in answer.records)
