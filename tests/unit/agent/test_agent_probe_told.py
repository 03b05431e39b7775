# SPDX-License-Identifier: GPL-3.0-or-later
"""How the probe's answers get into what the eyes tell."""

import queue
from types import SimpleNamespace

LONG = 30  # seconds, for what must not hang
CHIP = {"phy_id": 0, "pci_address": "0000:01:00.0", "family": "a2", "driver_bound": True, "device_node_present": True,
        "dropped": False, "hung": None}


class Looker:
    """Sees one chip, and nothing new; counts how often it was asked."""

    looks = 0

    def __init__(self, _settings, watch, *, signals, tell, meanwhile):
        self.watch, self.meanwhile, self.driver, self.news = watch, meanwhile, None, False

    def look(self):
        type(self).looks += 1
        return sight()

    def wait(self, seconds):
        self.watch.wait(seconds)
        self.meanwhile()

    def close(self):
        pass


def sight():
    from npu_agent.look import Sight

    return Sight(True, [CHIP], [], True, ({"phy_id": 0, "code": "80E01801", "assertion": "once", "severity": 2},))


def test_a_new_answer_is_told_without_another_look(package, tmp_path, monkeypatch):
    import npu_agent.backends.ascend
    import npu_agent.config
    import npu_agent.eyes

    monkeypatch.setattr(npu_agent.backends.ascend.BACKEND, "looker", Looker, raising=False)
    values = {"probe": str(tmp_path / "probe"), "probe_period": 3600.0, "probe_timeout": 5.0, "poll_seconds": 3600.0, "cdi_folder": "",
              "dev_root": str(tmp_path)}
    logged, defaults = [], {key: default for key, (default, *_rest) in npu_agent.config.SETTINGS.items()}
    eyes = npu_agent.eyes.Eyes(SimpleNamespace(**{**defaults, **values}), lambda *words, **fields: logged.append((words, fields)))
    asked, answers, told = queue.Queue(), queue.Queue(), queue.Queue()

    def ask(key, _record):
        asked.put(key)
        return answers.get(timeout=LONG)

    eyes.prober.ask = ask
    eyes.notify = lambda: told.put(eyes.inbox.get()[0])
    eyes.start()
    try:
        first = told.get(timeout=LONG)
        assert first.chips[0]["probe"] is None and len(first.events) == 1
        assert asked.get(timeout=LONG) == (0, CHIP["pci_address"])
        answers.put({"healthy": False, "text": "bad"})
        second = told.get(timeout=LONG)
        assert second.chips == [dict(first.chips[0], probe={"healthy": False, "text": "bad"})] and not second.events
        assert Looker.looks == 1 and told.empty()
    finally:
        eyes.stop()
    eyes.join(LONG)
    assert not eyes.is_alive() and not eyes.prober.thread.is_alive()
