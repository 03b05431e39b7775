# SPDX-License-Identifier: GPL-3.0-or-later
"""Health from the driver, the fault file and the probe as far as kubelet: each link of that chain once. The rules have their own tests."""

import time
from pathlib import Path

import pytest
from agent_rig import RESOURCE, private_folder, until

HOLD = 1.5  # seconds, `recovery_seconds` of these agents


@pytest.fixture
def serving(rig):
    """An agent with the settings of the test, and a kubelet that has taken in its list."""
    rig.kubelet()

    def start(**settings):
        agent = rig.agent(recovery_seconds=HOLD, **settings)
        agent.await_state("serving")
        until(lambda: rig.numbers() == (8, 8), what="8 of 8 at the kubelet")
        return agent

    return start


def fault(rig, number, *codes, health=2):
    rig.change(f"chips.{number}.error_codes", list(codes))
    rig.change(f"chips.{number}.health", health if codes else 0)


def healthy(rig, number):
    return rig.ask("devices")[RESOURCE][f"Ascend910-{number}"]["healthy"]


def said(agent, number, words):
    """The newest thing that the agent logged of a chip, once it has these words."""
    def look():
        events = [event for event in agent.events("chip") if event["id"] == f"Ascend910-{number}"]
        return events and words in events[-1]["reason"] and events[-1]

    return until(look, what=f"{words!r} said of chip {number}")


def test_the_level_of_a_code_decides_and_recovery_takes_its_time(rig, serving):
    agent = serving()
    fault(rig, 3, "80E01805")  # NotHandleFault
    assert said(agent, 3, "80E01805")["healthy"]
    fault(rig, 4, "8C1FA006", health=0)  # RestartNPU
    until(lambda: not healthy(rig, 4), what="the fault at the kubelet")
    assert agent.report()["reasons"] == [
        "Ascend910-4: fault code 8C1FA006: RestartNPU, the chip has to be reset and the job started again"]
    gone = time.monotonic()
    fault(rig, 4)
    said(agent, 4, f"has to be without a fault for {HOLD:g} s")
    until(lambda: healthy(rig, 4), what="the chip in service again")
    assert time.monotonic() - gone >= HOLD
    assert healthy(rig, 3)


def test_an_operators_file_moves_codes(rig, serving):
    file = rig.folder / "faults.yaml"
    file.write_text("NotHandleFaultCodes: [8C1FA006]\nSeparateNPUCodes: [80E01805]\n")
    agent = serving(fault_file=file)
    fault(rig, 3, "80E01805", health=1)
    fault(rig, 4, "8C1FA006")
    until(lambda: not healthy(rig, 3), what="the fault at the kubelet")
    assert said(agent, 4, "8C1FA006")["healthy"] and healthy(rig, 4)
    assert "80E01805: SeparateNPU" in agent.report()["reasons"][0]


def test_a_faulty_fault_file_is_refused_at_start(rig):
    file = rig.folder / "faults.json"
    file.write_text('{"NotHandleFaultCodes": ["8C1FA006"],\n "SeparateNPUCodes": ["8C1FA00G", "1"]}\n')
    agent = rig.agent(command=("check",), fault_file=file)
    assert agent.process.wait(60) == 2
    assert f"{file} line 2: SeparateNPUCodes: '8C1FA00G' is no fault code" in agent.text() and "'1' is no fault code" in agent.text()


def test_what_the_probe_says_reaches_kubelet(rig, serving):
    with private_folder() as folder:
        program = Path(folder) / "probe"
        program.write_text(f"#!/bin/sh\n[ -e {rig.folder}/bad-$2 ] || exit 0\necho \"$4 of $6 gave 3 instead of 4\"\nexit 1\n")
        program.chmod(0o755)
        agent = serving(probe=program, probe_period=1, probe_timeout=1, poll_seconds=3600)
        address = rig.chips()[3]["pci_address"]
        (rig.folder / "bad-3").touch()
        until(lambda: not healthy(rig, 3), what="the probe's verdict at the kubelet")
        assert agent.report()["reasons"] == [f"Ascend910-3: the probe says: {address} of a2 gave 3 instead of 4"]
        assert rig.numbers()[1] == 8
        (rig.folder / "bad-3").unlink()
        until(lambda: healthy(rig, 3), what="the chip in service again")
        program.chmod(0o777)
        problem = until(lambda: agent.events("probe failed"), what="a refusal")[0]["problem"]
        assert "has mode 0777" in problem and healthy(rig, 3)
