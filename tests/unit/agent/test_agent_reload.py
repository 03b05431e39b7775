# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a process that reads its configuration again: in place, as a new image of itself, or not at all."""

import signal
import subprocess
import time

import pytest
from agent_rig import RESOURCE, until

HUP_LIMIT = 20


def serving(rig, healthy=8, total=8, seconds=60):
    until(lambda: rig.numbers() == (healthy, total), seconds, f"{healthy} of {total}, there is {rig.numbers()}")


def hup(agent):
    before = agent.metric("reloads_total")
    agent.process.send_signal(signal.SIGHUP)
    until(lambda: agent.metric("reloads_total") == before + 1, HUP_LIMIT)


def test_settings_that_change_in_place(pair):
    rig, agent = pair
    rig.change("chips.3.health", 1)
    rig.config.write_text("log_level: debug\nunhealthy_from: minor\n")
    hup(agent)
    serving(rig, 7)
    (event,) = agent.events("configuration read again")
    assert event["changed"] == {"log_level": ["info", "debug"], "unhealthy_from": ["major", "minor"]}
    rig.config.write_text("allocate_mode: devices\n")
    hup(agent)
    serving(rig)
    answer = rig.ask("allocate", count=1, resource=RESOURCE, pod="one")["response"]
    assert answer["envs"] == {} and answer["devices"]
    hup(agent)  # nothing is different
    assert agent.events("configuration read again")[-1]["changed"] == {}
    assert len(agent.events("registered")) == 1 and len(rig.ask("registrations")) == 1


def test_the_time_of_the_next_look_changes_in_place(rig):
    rig.config.write_text("poll_seconds: 3600\n")
    rig.kubelet()
    agent = rig.agent(poll_seconds=None)
    agent.await_state("serving")
    rig.change("behaviour.dcmi", "fail")
    rig.config.write_text("poll_seconds: 0.2\n")
    hup(agent)
    until(lambda: agent.metric("looks_failed_total") > 0)
    assert len(agent.events("registered")) == 1


def test_a_faulty_configuration_changes_nothing(pair):
    rig, agent = pair
    rig.config.write_text("log_level: loud\nshares: 0\nnothing: 1\n")
    hup(agent)
    (event,) = agent.events("the new configuration is refused, the old one stays")
    assert event["level"] == "error" and len(event["faults"]) == 3
    report = agent.report()
    assert report["ready"] and f"the new configuration is refused: {event['faults'][0]}" in report["reasons"]
    rig.config.write_text("fault_file: /nowhere\n")
    hup(agent)
    assert "/nowhere: there is no such file" in agent.report()["reasons"][0]
    rig.config.write_text("")
    hup(agent)
    assert agent.report()["reasons"] == []
    assert len(agent.events("registered")) == 1


@pytest.mark.parametrize("explicit", [True, False])
def test_a_configuration_that_is_lost_changes_nothing(package, monkeypatch, tmp_path, explicit):
    """Not even where the file is the default one, without which the defaults hold at the start."""
    from npu_agent import config, reload

    path = tmp_path / "config.yaml"
    path.write_text("poll_seconds: 7\n")
    monkeypatch.setattr(config, "PATH", str(path))
    monkeypatch.delenv("NPU_AGENT_CONFIG", raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_unused: None)
    source = reload.Source(str(path) if explicit else None)
    assert source.load()[0].poll_seconds == 7
    for change, words in ((lambda: path.write_text(" \n"), "is empty now"), (path.unlink, "there is no such file")):
        change()
        for _unused in range(2):
            with pytest.raises(config.ConfigError, match=words):
                source.load()
    path.write_text("# the defaults\n")
    assert source.load()[0].poll_seconds == 5
    if not explicit:
        path.unlink()
        with pytest.raises(config.ConfigError):
            source.load()
        assert reload.Source(None).load()[0].poll_seconds == 5


def test_a_lost_configuration_is_told_and_refused(pair):
    rig, agent = pair
    rig.config.write_text("degraded_seconds: 5\n")
    hup(agent)
    rig.config.unlink()
    hup(agent)
    assert "there is no such file" in agent.report()["reasons"][0] and agent.report()["ready"]
    assert len(agent.events("registered")) == 1


def test_other_settings_start_it_anew_as_the_same_process(pair):
    rig, agent = pair
    rig.ask("allocate", count=2, resource=RESOURCE, pod="before")
    rig.config.write_text("shares: 2\n")
    agent.process.send_signal(signal.SIGHUP)
    serving(rig, 0, 16, seconds=HUP_LIMIT)  # kubelet tells for certain in a minute that no pod has them whole
    assert agent.process.poll() is None
    assert [event["event"] for event in agent.events() if event["event"] in ("started", "stopped")] == ["started", "started"]
    assert agent.events("configuration changed, starting anew")[0]["changed"] == {"shares": [1, 2]}
    until(lambda: agent.report()["ready"])
    children = subprocess.run(["ps", "--no-headers", "-o", "stat", "--ppid", str(agent.pid)], capture_output=True, text=True, check=False)
    assert not [line for line in children.stdout.split() if line.startswith("Z")]
    agent.process.send_signal(signal.SIGHUP)  # nothing is different now
    until(lambda: agent.events("configuration read again"), HUP_LIMIT)
    assert agent.stop(seconds=30) == 0
    assert sorted(path.name for path in rig.plugins.iterdir() if path.name.startswith(".")) == []


def test_many_signals_with_a_setting_that_starts_it_anew(pair):
    """Whenever one comes, while it ends or begins: none ends the process, and the last configuration holds."""
    rig, agent = pair
    for number in range(3):
        rig.config.write_text(f"probe_period: {70 + number}\n")
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            agent.process.send_signal(signal.SIGHUP)
            time.sleep(0.001)
        assert agent.process.poll() is None
    rig.config.write_text("probe_period: 80\n")
    agent.process.send_signal(signal.SIGHUP)
    until(lambda: any(event["changed"]["probe_period"][1] == 80 for event in agent.events("configuration changed, starting anew")))
    until(lambda: agent.events()[-1]["event"] == "registered")
    serving(rig)
    assert agent.stop(seconds=30) == 0


def catches(pid, number):
    line = next(line for line in open(f"/proc/{pid}/status") if line.startswith("SigCgt"))
    return int(line.split()[1], 16) >> (number - 1) & 1


def test_a_signal_while_it_starts(rig):
    """It is not lost, and does not end the process."""
    rig.kubelet()
    for number in range(20):  # until it comes early enough
        agent = rig.agent(name=f"agent-{number}")
        until(lambda agent=agent: catches(agent.pid, signal.SIGHUP))
        early = not agent.events("started")
        agent.process.send_signal(signal.SIGHUP)
        agent.await_state("serving")
        until(lambda agent=agent: agent.events("configuration read again"))
        agent.stop()
        if early:
            break
    assert early
