# SPDX-License-Identifier: GPL-3.0-or-later
"""The thread in which the operator's program is asked: it cannot be started, fails, ends."""

import threading
import time
from types import SimpleNamespace

import pytest

LONG = 30  # seconds, for what must not hang
CHIP = {"phy_id": 0, "pci_address": "0000:01:00.0", "family": "a2", "driver_bound": True, "device_node_present": True,
        "dropped": False, "hung": None}


@pytest.fixture(scope="module")
def agent(package):
    import npu_agent.look
    import npu_agent.probe

    return npu_agent


@pytest.fixture
def prober(agent):
    """One that is not started; its program says of each chip that it is well. `events`: what it logged."""
    events = []
    settings = SimpleNamespace(probe="/x/probe", probe_period=60.0, probe_timeout=5.0)
    one = agent.probe.Prober(settings, lambda event, level="info", **fields: events.append((event, level, fields)))
    one.ask, one.events, one.sight = lambda key, record: {"healthy": True, "text": ""}, events, agent.look.Sight(True, [CHIP], [], True)
    yield one
    one.stop()


def see(prober):
    return [chip["probe"] for chip in prober.attach(prober.sight).chips]


def test_a_thread_that_cannot_be_started_is_tried_with_each_sight(prober, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "probe":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    prober.start()
    assert see(prober) == [None] and see(prober) == [None]
    assert [(event, fields["cause"]) for event, _level, fields in prober.events] == [("the probe cannot be run", "can't start new thread")]
    monkeypatch.undo()
    see(prober)
    assert wait_until(lambda: see(prober) == [{"healthy": True, "text": ""}])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_noticed_and_one_that_fails_goes_on(agent, prober, monkeypatch):
    monkeypatch.setattr(agent.probe, "FAILED_SECONDS", 0.05)
    errors = [KeyError("ran"), SystemExit()]  # the first is a fault of ours, with the second a thread ends
    pick = agent.probe.pick

    def fail(*arguments):
        if errors:
            raise errors.pop(0)
        return pick(*arguments)

    monkeypatch.setattr(agent.probe, "pick", fail)
    assert wait_until(lambda: see(prober) == [{"healthy": True, "text": ""}])
    assert [event for event, _level, _fields in prober.events] == ["probing failed", "the probe's thread has ended and is started anew"]


def test_a_run_may_be_forgotten_while_the_next_one_is_picked(agent):
    class Ran(dict):
        """Another thread takes the key away between two looks at it."""

        def __contains__(self, key):
            return True

    assert agent.probe.pick({"a": {}}, Ran(), 100.0, 60.0) == ("a", 0)


def wait_until(check):
    deadline = time.monotonic() + LONG
    while not (answer := check()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer
