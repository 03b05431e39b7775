# SPDX-License-Identifier: GPL-3.0-or-later
"""The thread that looks at the chips outlives whatever goes wrong in it, and says so."""

import queue
from types import SimpleNamespace

import pytest

LONG = 30  # seconds, for what must not hang
CHIP = {"phy_id": 0, "pci_address": "0000:01:00.0", "family": "a2"}


class Looker:
    """Sees one chip; `broken` has the steps that fail once each."""

    broken: list = []

    def __init__(self, _settings, watch, *, signals, tell, meanwhile):
        self.fail("init")
        self.watch, self.meanwhile, self.driver, self.news = watch, meanwhile, None, False

    @classmethod
    def fail(cls, step):
        if step in cls.broken:
            cls.broken.remove(step)
            raise OSError(24, f"too many open files at {step}")

    def look(self):
        from npu_agent.look import Sight

        self.fail("look")
        return Sight(True, [CHIP], [], True)

    def wait(self, seconds):
        self.fail("wait")
        self.watch.wait(seconds)
        self.meanwhile()

    def close(self):
        pass


@pytest.fixture
def eyes(package, tmp_path, monkeypatch):
    import npu_agent.backends.ascend
    import npu_agent.config
    import npu_agent.eyes

    monkeypatch.setattr(npu_agent.backends.ascend.BACKEND, "looker", Looker, raising=False)
    monkeypatch.setattr(npu_agent.eyes, "FAILED_SECONDS", 0.05)
    values = {"probe": "", "probe_period": 60.0, "probe_timeout": 5.0, "poll_seconds": 0.05, "cdi_folder": "", "dev_root": str(tmp_path)}
    logged, defaults = [], {key: default for key, (default, *_rest) in npu_agent.config.SETTINGS.items()}
    one = npu_agent.eyes.Eyes(SimpleNamespace(**{**defaults, **values}), lambda *words, **fields: logged.append((words, fields)))
    one.logged, one.told = logged, queue.Queue()
    one.notify = lambda: one.told.put(one.inbox.get()[0])
    yield one
    one.stop()
    one.join(LONG)
    assert not one.is_alive()


@pytest.mark.parametrize("step", ["init", "look", "wait", "keep", "follow"])
def test_whatever_fails_it_looks_again(eyes, monkeypatch, step):
    monkeypatch.setattr(Looker, "broken", [step])
    import npu_agent.signals

    keep, follow = eyes.keeper.keep, npu_agent.signals.Signals.follow
    monkeypatch.setattr(eyes.keeper, "keep", lambda sight: Looker.fail("keep") or keep(sight))
    monkeypatch.setattr(npu_agent.signals.Signals, "follow", lambda self: Looker.fail("follow") or follow(self))
    eyes.start()
    failed = eyes.told.get(timeout=LONG)
    while failed.complete:
        failed = eyes.told.get(timeout=LONG)
    assert failed.present and not failed.chips and f"too many open files at {step}" in failed.problems[0]
    assert eyes.told.get(timeout=LONG).complete and eyes.told.get(timeout=LONG).complete
    ((words, fields),) = [one for one in eyes.logged if one[0][0] == "a look failed"]
    assert words[1] == "error" and f"too many open files at {step}" in fields["cause"] and "Traceback" in fields["cause"]


def test_a_folder_that_came_during_a_look_is_looked_at_soon(eyes, monkeypatch):
    """What came into it before it was watched is told by no event; the next look by itself would be in an hour."""
    import npu_agent.backends.ascend
    import npu_agent.signals
    from npu_agent.backends.base import Looker as Plain
    from npu_agent.backends.base import Sight

    def looker(settings, watch, **more):
        return Plain(lambda clock: Sight(True, [CHIP], [], True), settings, watch, **more)

    real, came = npu_agent.signals.Signals.follow, [1]

    def follow(self):
        real(self)
        if eyes.looker is not None and eyes.last is not None and came:
            self.count += came.pop()

    monkeypatch.setattr(npu_agent.backends.ascend.BACKEND, "looker", looker, raising=False)
    monkeypatch.setattr(npu_agent.signals.Signals, "follow", follow)
    eyes.settings.poll_seconds = 3600.0
    eyes.start()
    assert eyes.told.get(timeout=LONG).complete and eyes.told.get(timeout=LONG).complete


def test_what_cannot_be_read_is_no_node_without_chips(package, tmp_path, monkeypatch):
    """Without a free descriptor every folder looks empty to the detector."""
    from npu_agent import look

    settings = SimpleNamespace(dev_root=str(tmp_path / "dev"), sysfs_root=str(tmp_path / "sys"))
    found = {"present": False, "device_nodes": [], "query": {"error": None}}
    assert look.unusable(found, settings) == look.Sight(False, [], [], True)

    def refuse(path):
        raise OSError(24, "Too many open files", path)

    monkeypatch.setattr(look.os, "listdir", refuse)
    sight = look.unusable(found, settings)
    assert (sight.present, sight.complete, len(sight.problems)) == (True, False, 2) and "Too many open files" in sight.problems[0]
