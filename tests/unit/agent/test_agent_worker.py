# SPDX-License-Identifier: GPL-3.0-or-later
"""driver.py with real processes that ask the simulated library, which hangs, crashes and tells events."""

import subprocess
import time
from types import SimpleNamespace

import pytest
from agent_rig import npu_sim, until
from simulated_world import column, driver_processes


@pytest.fixture
def agent(package):
    import npu_agent.driver

    return npu_agent.driver


class Real:
    def __init__(self, rig, agent, monkeypatch, **settings):
        from npu_agent.signals import Watch

        monkeypatch.setenv("NPU_SIM_STATE", str(rig.state))
        self.rig, self.told = rig, []
        values = {"query_timeout": 1.0, "stuck_retry": 60.0, "install_path": "/nowhere", **settings}
        self.driver = agent.Driver(str(rig.library), SimpleNamespace(**values), Watch(), meanwhile=self.take)

    def take(self):
        self.told += self.driver.take_events()


@pytest.fixture
def real(rig, agent, monkeypatch):
    made = []

    def make(**settings):
        made.append(Real(rig, agent, monkeypatch, **settings))
        return made[-1]

    yield make
    for one in made:
        one.driver.close()
        assert driver_processes() == set()


def phy_ids(answer):
    return sorted(record["phy_id"] for record in answer.records.values())


def test_hang_and_return(real, rig):
    one = real()
    assert phy_ids(one.driver.ask("health")) == list(range(8))
    (worker,) = driver_processes()
    rig.change("chips.3.dcmi", {"get_device_health": "hang"})
    assert phy_ids(one.driver.ask("health")) == [0, 1, 2, 4, 5, 6, 7]
    pids = driver_processes()
    assert len(pids) == 2 and worker in pids
    for _unused in range(100):
        assert phy_ids(one.driver.ask("health")) == [0, 1, 2, 4, 5, 6, 7]
    assert driver_processes() == pids
    rig.change("chips.3.dcmi", {})
    until(lambda: one.driver.wait(1) or one.driver.back, what="the chip's return")
    assert phy_ids(one.driver.ask("health")) == list(range(8))
    assert driver_processes() == pids - {worker}


def test_a_captive_is_replaced(real, rig):
    one = real(stuck_retry=1.0)
    rig.change("chips.3.dcmi", {"get_device_health": "hang"})
    one.driver.ask("health")
    first = one.driver.apart[3, 0].worker.child.pid
    until(lambda: one.driver.wait(1) or one.driver.apart[3, 0].worker.child.pid != first, what="a new captive")
    until(lambda: len(driver_processes()) == 2, what="the captive and the worker")  # a process has no command line in its first moment
    assert first not in driver_processes()
    rig.change("chips.3.dcmi", {})
    until(lambda: one.driver.wait(1) or one.driver.back, what="the chip's return")
    assert phy_ids(one.driver.ask("health")) == list(range(8)) and len(driver_processes()) == 1


def test_a_captive_of_the_image_before_is_waited_for(world):
    """It stands for one that cannot be killed: a child of this process that is just there. Its chip is not asked while it is."""
    from npu_agent import captives

    one = world("a2", chips=3)
    before = one.looker(stuck_retry=600)
    before.look()
    one.set({"chips.1.dcmi": {"get_device_health": "hang"}})
    before.look()
    until(lambda: before.driver.hung() or before.wait(1), what="a query that is late")
    found, environ = captives.of(before), {}
    left = subprocess.Popen(["sleep", "600"])
    try:
        captives.put([dict(found[0], pid=left.pid)], environ)
        one.set({"chips.1.dcmi": {"get_device_health": "crash"}})  # nobody asks it
        looker = one.looker(stuck_retry=600)
        looker.captives = captives.take(environ)
        sight = looker.look()
        assert environ == {} and sight.complete and sorted(column(sight, "phy_id")) == [0, 1, 2] and len(looker.driver.workers) == 1
        (hung,) = [chip for chip in sight.chips if chip["hung"]]
        assert hung["phy_id"] == 1 and hung["hung"] >= 1 and hung["serial"]
        assert [known["pid"] for known in captives.of(looker)] == [left.pid]  # for yet another image
    finally:
        left.kill()
        left.wait()
    one.set({"chips.1.dcmi": {}})
    until(lambda: looker.wait(0.1) or not looker.driver.hung(), what="its return")
    assert column(looker.look(), "hung") == [None] * 3


@pytest.mark.parametrize("text", ["", "{", "5", "[5]", '[{"pid": 1}]', '[{"pid": 1, "place": [0, 0], "since": 0, "chips": []}]'])
def test_what_is_no_captive_is_left_out(agent, text):
    """Process 1 is no child of this one."""
    from npu_agent import captives

    assert captives.take({captives.VARIABLE: text}) == []


def test_crash(real, rig):
    one = real()
    rig.change("chips.5.dcmi", {"get_device_errorcode_v2": "crash"})
    for _unused in range(4):
        answer = one.driver.ask("health")
        assert phy_ids(answer) == [0, 1, 2, 3, 4, 6, 7] and "signal 6" in answer.errors[5, 0]
    assert one.driver.apart[5, 0].crashes


def test_list_that_hangs(real, rig, agent):
    one = real()
    rig.change("behaviour.dcmi", {"get_card_list": "hang"})
    for _unused in range(2):
        with pytest.raises(agent.DcmiError, match="'health' in time"):
            one.driver.ask("health")
        assert driver_processes() == set()
    rig.change("behaviour.dcmi", "ok")
    assert phy_ids(one.driver.ask("health")) == list(range(8))


def test_events_are_heard_while_a_chip_hangs(real, rig):
    """The query has 20 s; the event is there before it is over."""
    one = real(query_timeout=20.0)
    one.driver.ask("health")
    rig.change("chips.3.dcmi", {"get_device_health": "hang"})
    changes = [{"chips.6.health": 2, "chips.6.error_codes": ["80E18005"]}, {"chips.3.dcmi": {}}]

    def meanwhile():
        one.take()
        if len(changes) == 2 or (one.told and changes):
            npu_sim.set_values(changes.pop(0), rig.state)  # first the fault; the hang ends when it was told

    one.driver.meanwhile, began = meanwhile, time.monotonic()
    assert phy_ids(one.driver.ask("health")) == list(range(8))  # it came back before it was late
    assert time.monotonic() - began < 20
    (event,) = one.told
    assert (event["code"], event["logic_id"], event["assertion"], event["severity"]) == ("80E18005", 6, "occur", 2)


def test_a_library_that_others_may_write_to_is_not_loaded(real, rig, agent):
    one = real()
    rig.library.chmod(0o666)
    try:
        with pytest.raises(agent.DcmiError, match=f"{rig.library} has mode 0666.*chmod go-w") as caught:
            one.driver.ask("health")
    finally:
        rig.library.chmod(0o644)
    assert caught.value.code == "dcmi_library_unsafe" and driver_processes() == set()


def test_the_worker_is_small(real):
    """RSS with the library loaded; 8.7 MB of it are a Python without anything. A bound for what got out of hand, not a measure."""
    one = real()
    one.driver.ask("health")
    with open(f"/proc/{next(iter(driver_processes()))}/status") as stream:
        size = next(int(line.split()[1]) for line in stream if line.startswith("VmRSS"))
    assert size < 14000


def test_good_chips_are_seen_at_once_where_others_hang_from_the_start(world):
    """Three of eight hang at the first look: five are told of after one deadline, the others join when theirs is over."""
    one = world("a2", chips=8)
    one.set({f"chips.{number}.dcmi": {"get_device_chip_info_v2": "hang", "get_device_health": "hang"} for number in (0, 3, 6)})
    looker = one.looker(query_timeout=3, stuck_retry=600)
    began = time.monotonic()
    sight = looker.look()
    assert time.monotonic() - began < 2 * 3 + 3  # one deadline and a bit; three of them, one after the other, would take longer
    assert sorted(column(sight, "phy_id")) == list(range(8)) and sight.complete
    assert [number for number, code in column(sight, "phy_id", "health_code") if code == 0] == [1, 2, 4, 5, 7]
    until(lambda: looker.wait(1) or len(looker.driver.hung()) == 3, what="the others")
    assert sum(hung is not None for hung in column(one.told[-1], "hung")) == 3


def test_a_chip_that_has_not_answered_yet_is_as_it_was(world):
    one = world("a2", chips=3)
    looker = one.looker(query_timeout=3, stuck_retry=600)
    before = {chip["phy_id"]: chip["asked_at"] for chip in looker.look().chips}
    one.set({f"chips.{number}.dcmi": {"get_device_health": "hang"} for number in (0, 2)})
    sight = looker.look()
    (slow,) = [chip for chip in sight.chips if chip["phy_id"] == 2]
    assert (slow["health_code"], slow["hung"], slow["error"], slow["asked_at"]) == (0, None, None, before[2])
    one.set({"chips.2.dcmi": {}})
    until(lambda: looker.wait(1) or looker.news, what="its return")
    until(lambda: looker.driver.hung() or looker.wait(1), what="a query that is late")
    assert [hung is not None for hung in column(looker.look(), "hung")] == [True, False, False]
