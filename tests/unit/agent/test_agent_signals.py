# SPDX-License-Identifier: GPL-3.0-or-later
"""What tells at once that something changed (signals.py, look.py), and the thread that waits for it (eyes.py)."""

import errno
import re
import threading

import pytest
from agent_rig import until
from simulated_world import column, driver_processes


@pytest.fixture
def agent(package):
    import npu_agent.config
    import npu_agent.eyes
    import npu_agent.look
    import npu_agent.signals

    return npu_agent


# --- what tells at once

def test_a_fault_event_is_told_before_the_driver_is_asked(world):
    one = world("a2", chips=4)
    looker = one.looker()
    asked = column(looker.look(), "asked_at")
    one.set({"chips.2.health": 2, "chips.2.error_codes": ["80E18005"]}, show=False)
    until(lambda: looker.wait(1) or one.told, what="the event")
    (event,) = one.told[0].events
    assert (event["phy_id"], event["code"], event["assertion"], event["severity"]) == (2, "80E18005", "occur", 2)
    assert column(one.told[0], "asked_at") == asked and event["at"] > asked[2]  # an older answer does not deny it
    assert looker.news
    sight = looker.look()
    assert (sight.chips[2]["error_codes"], sight.chips[2]["asked_at"] > event["at"], list(sight.events)) == (["80E18005"], True, [])
    one.set({"chips.2.once": [{"serial": 1, "code": "81078603", "severity": 1}], "chips.2.error_codes": []}, show=False)
    until(lambda: looker.wait(1) or sum(len(sight.events) for sight in one.told) == 3, what="two more events")
    assert sorted((event["code"], event["assertion"]) for sight in one.told for event in sight.events)[0] == ("80E18005", "occur")


def test_event_numbers_are_those_of_the_driver(world):
    """deviceid is a logic id; kubelet's names are made of physical ones."""
    one = world("a2", chips=2)
    one.set({"chips.0.phy_id": 1, "chips.1.phy_id": 0})
    looker = one.looker()
    looker.look()
    one.set({"chips.0.error_codes": ["80E18005"]}, show=False)
    until(lambda: looker.wait(1) or one.told, what="the event")
    assert [event["phy_id"] for event in one.told[0].events] == [1]


def test_a_device_node_that_goes_is_told_before_the_driver_is_asked(world):
    one = world("a2", chips=4)
    looker = one.looker()
    looker.look()
    (one.dev / "davinci2").unlink()
    until(lambda: looker.wait(1) or one.told, what="the removal")
    assert column(one.told[0], "device_node_present") == [True, True, False, True] and looker.news


def test_other_names_in_the_folder_are_of_no_interest(world):
    one = world("a2", chips=1)
    looker = one.looker()
    looker.look()
    (one.dev / "tty0").touch()
    looker.wait(0.2)
    assert one.told == [] and not looker.news
    (one.dev / "vdavinci100").touch()
    until(lambda: looker.wait(1) or looker.news, what="the new name")


def test_removal_and_hang_at_once(world):
    """The device node of one chip goes while another one hangs: nobody waits for the other one's deadline to hear of it."""
    one = world("a2", chips=4)
    looker = one.looker(query_timeout=20)
    looker.look()
    one.set({"chips.1.dcmi": {"get_device_health": "hang"}}, show=False)
    threading.Timer(0.3, (one.dev / "davinci3").unlink).start()

    def tell(sight):
        if not one.told:
            one.set({"chips.1.dcmi": {}}, show=False)
        one.told.append(sight)

    looker.tell = tell
    sight = looker.look()
    assert column(one.told[0], "device_node_present") == [True, True, True, False]
    assert column(sight, "hung") == [None] * 4  # the query came back before it was late: the sight between was told during it


class Uevents:
    """The lines of a kernel event."""

    def __init__(self, *messages):
        self.messages = list(messages)

    def recvfrom(self, _size):
        if not self.messages:
            raise BlockingIOError
        message = self.messages.pop(0)
        if isinstance(message, Exception):
            raise message
        return message


def uevent(action, **fields):
    path = "/devices/pci0000:00/0000:c1:00.0"
    lines = [f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", *(f"{key}={value}" for key, value in fields.items())]
    return "".join(line + "\0" for line in lines).encode()


@pytest.mark.parametrize(("messages", "changed"), [
    ([(uevent("remove", SUBSYSTEM="pci", PCI_ID="19E5:D802"), (0, 1))], True),
    ([(uevent("unbind", SUBSYSTEM="pci", PCI_CLASS="120000", PCI_ID="20C6:D802"), (0, 1))], True),
    ([(uevent("add", SUBSYSTEM="devdrv-class", DEVNAME="davinci3"), (0, 1))], True),
    ([(uevent("add", SUBSYSTEM="net", INTERFACE="veth1"), (0, 1)), (uevent("change", SUBSYSTEM="block", DEVNAME="sda"), (0, 1))], False),
    ([(uevent("add", SUBSYSTEM="pci", PCI_CLASS="20000", PCI_ID="8086:1521"), (0, 1))], False),
    ([(uevent("remove", SUBSYSTEM="pci", PCI_ID="19E5:D802"), (4242, 1))], False),  # not from the kernel
    ([OSError(errno.ENOBUFS, "too many")], True),
])
def test_kernel_events(agent, tmp_path, messages, changed):
    signals = agent.signals.Signals(agent.signals.Watch(), str(tmp_path), lambda *_words, **_fields: None)
    real, signals.netlink = signals.netlink, Uevents(*messages)
    signals.hear()
    signals.netlink = real
    assert (signals.count > 0) is changed
    signals.close()


def test_without_an_inotify_instance_the_folder_is_looked_at(agent, tmp_path):
    said, now, left = [], [100.0], [errno.EMFILE, errno.EMFILE]

    class Scarce(agent.signals.Inotify):
        def __init__(self):
            if left:
                raise OSError(left.pop(), "Too many open files")
            super().__init__()

    signals = agent.signals.Signals(
        agent.signals.Watch(), str(tmp_path), lambda *words, **fields: said.append(words[0]), clock=lambda: now[0], inotify=Scarce)
    assert "max_user_instances" in signals.trouble and signals.left(now[0]) == 1.0
    (tmp_path / "davinci0").touch()
    now[0] += 0.5
    assert (signals.left(now[0]), signals.count) == (0.5, 0)
    now[0] += 0.6
    assert (signals.left(now[0]), signals.count) == (1.0, 1)
    now[0] += 1.1
    assert (signals.left(now[0]), signals.count) == (1.0, 1)
    signals.follow()
    assert said == ["device nodes are not watched by inotify"]  # once
    signals.follow()
    assert signals.trouble is None and signals.left(now[0]) is None and said[1:] == ["device nodes are watched by inotify again"]
    signals.close()


def test_a_folder_that_is_replaced_is_watched_again(agent, tmp_path):
    watch, dev = agent.signals.Watch(), tmp_path / "dev"
    dev.mkdir()
    signals = agent.signals.Signals(watch, str(dev), lambda *_words, **_fields: None)
    dev.rename(tmp_path / "old")
    dev.mkdir()
    signals.follow()
    watch.wait(0.1)
    before = signals.count
    (dev / "davinci0").touch()
    until(lambda: watch.wait(1) and signals.count > before, what="the name in the new folder")
    signals.close()


def test_a_folder_that_comes_later(agent, tmp_path):
    """What came into it before it was watched is told as well; names of others are not."""
    watch, places = agent.signals.Watch(), [(str(tmp_path), re.compile(r"dri\Z")), (f"{tmp_path}/dri", re.compile(r"card[0-9]+\Z"))]
    signals = agent.signals.Signals(watch, str(tmp_path), lambda *_words, **_fields: None, places=places, uevents=None)
    assert signals.trouble is None and signals.netlink is None
    (tmp_path / "davinci0").touch()
    (tmp_path / "dri").mkdir()
    until(lambda: watch.wait(1) and signals.count, what="the folder's name")
    assert signals.count == 1
    (tmp_path / "dri/card0").touch()
    signals.follow()
    assert signals.count == 2
    signals.follow()
    assert signals.count == 2
    (tmp_path / "dri/by-path").mkdir()
    (tmp_path / "dri/card1").touch()
    until(lambda: watch.wait(1) and signals.count > 2, what="the second card")
    assert signals.count == 3
    signals.close()


# --- the thread

def test_eyes_look_at_once_when_something_happens_and_rest_otherwise(world, agent):
    one = world("a2", chips=2)
    one.looker(poll_seconds=3600)
    said = []
    eyes = agent.eyes.Eyes(one.lookers[0].settings, lambda event, *_words, **fields: said.append((event, fields)))
    eyes.start()
    try:
        sight, _when = eyes.inbox.get(timeout=60)
        assert column(sight, "health_code") == [0, 0]
        one.set({"chips.1.health": 3, "chips.1.error_codes": ["80E01801"]}, show=False)
        sight, _when = eyes.inbox.get(timeout=60)
        assert [event["code"] for event in sight.events] == ["80E01801"]
        sight, _when = eyes.inbox.get(timeout=60)
        assert column(sight, "health_code") == [0, 3] and not sight.events
        assert eyes.inbox.empty() and said == []
    finally:
        eyes.stop()
        eyes.join(20)
    assert not eyes.is_alive()


def test_eyes_look_every_second_where_the_driver_tells_no_events(agent, world):
    one = world("a2", chips=1)
    settings = one.looker(poll_seconds=30).settings
    eyes = agent.eyes.Eyes(settings, lambda *_words, **_fields: None)
    sight = agent.look.Sight(True, [], [], True)
    assert [eyes.period(sight, why) for why in (None, "dcmi_subscribe_fault_event answered -8255")] == [30, 1.0]
    assert eyes.period(sight._replace(present=False), None) == 30
    settings.poll_seconds = 0.5
    assert (eyes.period(sight, "none"), eyes.period(sight._replace(present=False), None)) == (0.5, 5.0)


def test_eyes_end_in_the_middle_of_a_query(world, agent):
    one = world("a2", chips=2)
    one.set({"behaviour.dcmi": "hang"})
    eyes = agent.eyes.Eyes(one.looker(query_timeout=600, stuck_retry=600).settings, lambda *_words, **_fields: None)
    eyes.start()
    until(driver_processes, what="the worker")
    eyes.stop()
    eyes.join(20)
    assert not eyes.is_alive() and eyes.inbox.empty() and driver_processes() == set()


def test_a_storm_of_events_is_told_in_turns_and_its_losses_are_said(world, agent):
    one = world("a2", chips=2)
    looker = one.looker()
    looker.look()
    now = looker.clock()
    looker.clock = lambda: now

    def storm(count):
        for _event in range(count):
            looker.driver.hear({"logic_id": 1, "code": "80E01801", "assertion": "once", "severity": 2, "at": now})
        looker.meanwhile()
        return [len(sight.events) for sight in one.told]

    assert storm(1) == [1] and looker.news
    assert storm(1) == [1] and storm(1) == [1]  # no more so soon
    now += agent.driver.EVENT_SECONDS
    assert storm(1) == [1, 3] and not one.told[-1].problems
    now += agent.driver.EVENT_SECONDS
    assert storm(1) == [1, 3, 1] and storm(agent.driver.EVENTS + 1)[3:] == []
    sight = looker.look()
    assert len(sight.events) == agent.driver.EVENTS and "more fault events came at once" in sight.problems[0] and sight.complete
    now += 61
    assert not looker.look().problems
