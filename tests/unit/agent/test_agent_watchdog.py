# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet is told when the part that looks at the chips, or the one that judges them, fails."""

from pathlib import Path

import pytest
from agent_rig import until
from node_rig import A2, record, sight, state

# Puts faults into the thread that looks, when a file says so.
SITE = """
import os, time
try:
    from npu_agent import look
except ImportError:  # another program
    look = None
if look:
    sound, fault = look.Looker.look, os.environ["FAULT"]
    def faulty(self):
        while os.path.exists(fault + "/hang"):
            time.sleep(0.02)
        if os.path.exists(fault + "/end"):
            raise SystemExit
        sight = sound(self)
        return sight._replace(chips=[{"family": "a2"}]) if os.path.exists(fault + "/nonsense") else sight
    look.Looker.look = faulty
"""
SHORT = {"query_timeout": 0.5, "keep_last_state": 0.5}  # 2.1 s with the rig's poll_seconds


@pytest.fixture
def faulty(rig, monkeypatch):
    """(rig, agent, fault): `fault(name, there=True)` makes the fault begin or end."""
    site = rig.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("FAULT", str(rig.folder))
    rig.package = f"{rig.package}:{site}"
    rig.kubelet()
    agent = rig.agent(**SHORT)
    agent.await_state("serving")
    until(lambda: rig.numbers() == (8, 8))

    def fault(name, there=True):
        path = Path(rig.folder) / name
        path.touch() if there else path.unlink()

    return rig, agent, fault


@pytest.mark.parametrize(("name", "words"), [("hang", "hangs"), ("end", "has ended")])
def test_a_thread_that_looks_no_more_takes_the_chips_out_and_ends_the_process(faulty, name, words):
    rig, agent, fault = faulty
    fault(name)
    until(lambda: rig.numbers() == (0, 8))
    code, text = agent.get("/healthz")
    assert code == 503 and f"the thread that looks at them {words}" in text
    assert f"Ascend910-0: {text.strip()}" in agent.report()["reasons"]
    assert agent.process.wait(30) == 1
    assert words in agent.events("cannot go on, ending")[0]["cause"] and len(agent.events("no chip may take work")) == 1
    fault(name, False)
    rig.agent(name="again", **SHORT)
    until(lambda: rig.numbers() == (8, 8))


def test_a_thread_that_hung_and_goes_on_has_the_chips_back(faulty):
    rig, agent, fault = faulty
    fault("hang")
    until(lambda: rig.numbers() == (0, 8))
    fault("hang", False)
    until(lambda: rig.numbers() == (8, 8))
    assert agent.get("/healthz") == (200, "ok\n")
    assert agent.process.poll() is None


def test_a_sight_that_cannot_be_judged_takes_the_chips_out(faulty):
    rig, agent, fault = faulty
    fault("nonsense")
    until(lambda: rig.numbers() == (0, 8))
    assert "a fault of npu-agent: KeyError('phy_id')" in agent.get("/healthz")[1]
    (event,) = agent.events("no chip may take work")
    assert any('["phy_id"]' in line for line in event["trace"]) and event["trace"][-1] == "KeyError: 'phy_id'"
    fault("nonsense", False)
    until(lambda: rig.numbers() == (8, 8))
    assert "Traceback" not in agent.text() and agent.get("/healthz") == (200, "ok\n")


def test_silence_lasts_until_the_next_update(make):
    node = make()
    node.update(sight(record(0), record(1, code=3)), 0)
    assert node.silence("nobody looks", 0) == {A2}
    assert state(node.boards[A2]) == {"Ascend910-0": False, "Ascend910-1": False}
    assert node.boards[A2].chips["Ascend910-0"].reason == "nobody looks"
    node.review(1)
    assert state(node.boards[A2])["Ascend910-0"] is False
    node.update(sight(record(0), record(1)), 2)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": True}


@pytest.mark.parametrize(("ticks", "trouble", "over"), [
    # (now, alive, idle); a limit of 20 s, so a tick is due every 5 s
    ([(5, True, 1), (10, True, 1), (15, True, 1)], "", False),
    ([(n, True, n) for n in (5, 10, 15, 20)], "hangs", False),
    ([(n, True, n) for n in range(5, 41, 5)], "hangs", True),
    ([(n, True, 1) for n in range(5, 101, 5)], "still busy", False),
    ([(5, False, 5)], "has ended", False),
    ([(n, False, n) for n in (5, 10, 15, 20, 25)], "has ended", True),
    ([(1000, True, 1000)], "", False),  # the process was stopped meanwhile
])
def test_when_silence_is_trouble(package, ticks, trouble, over):
    from npu_agent.watchdog import Watchdog

    dog = Watchdog(0)
    for now, alive, idle in ticks:
        last = dog.tick(now, alive, idle, 20)
    assert last == over and (trouble in dog.trouble if trouble else dog.trouble == "")
    dog.heard()
    assert dog.trouble == "" and not dog.tick(now + 5, True, 0, 20)


def test_time_for_a_look(package):
    from npu_agent import config, watchdog

    settings = config.load(None, {})
    assert watchdog.limit(settings, True) == 50
    settings.poll_seconds = 1
    assert (watchdog.limit(settings, None), watchdog.limit(settings, False)) == (46, 50)
