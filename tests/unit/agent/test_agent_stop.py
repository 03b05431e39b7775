# SPDX-License-Identifier: GPL-3.0-or-later
"""A signal that ends the agent ends it, whenever it comes: while it starts, and while it is about to execute itself anew. As the first
process of a process namespace, as in a container, where the kernel drops a signal that nobody has a handler for."""

import os
import re
import signal
import subprocess
import sys

import pytest
from agent_rig import REPO, until

CONTAINER = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")
SCRIPT = str(REPO / "tests/unit/agent/signalled.py")


@pytest.fixture
def start(rig):
    """An agent in a process namespace that gets the signal at a moment, see signalled.py."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no process namespaces")

    def started(moment, command="serve"):
        # What the rig gives as a command is the interpreter and "-m npu_agent": the shell puts the script in their place.
        return rig.agent(prefix=(*CONTAINER, "sh", "-c", f'exec {sys.executable} {SCRIPT} {moment} {command}'))

    return started


def inner(agent):
    """The process id of the agent itself."""
    return int(until(lambda: subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True, check=False).stdout))


@pytest.mark.parametrize("moment", ["service_ended", "loop_ended", "eyes_stopped", "started_again"])
def test_a_stop_while_it_is_about_to_start_anew(rig, start, moment):
    rig.kubelet()
    agent = start(moment)
    until(lambda: agent.events("registered"))
    rig.config.write_text("shares: 2\n")
    os.kill(inner(agent), signal.SIGHUP)
    assert agent.process.wait(20) == 0
    assert agent.events("configuration changed, starting anew") and len(agent.events("started")) == 1


@pytest.mark.parametrize("command", ["serve", "access", "labels"])
def test_a_stop_in_the_first_moment(start, command):
    agent = start("loading", command)
    assert agent.process.wait(20) == 0 and agent.events() == []


def test_a_new_image_hears_signals_and_blocks_none(pair):
    rig, agent = pair
    rig.config.write_text("shares: 2\n")
    agent.process.send_signal(signal.SIGHUP)
    until(lambda: len(agent.events("registered")) == 2)
    children = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True, check=True).stdout.split()
    assert children
    for pid in (agent.pid, *children):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as stream:
                assert re.search(r"^SigBlk:\t0+$", stream.read(), re.MULTILINE)
    assert agent.stop() == 0


def test_the_capacity_goes_with_a_stop_that_takes_the_place_of_a_new_start(package):
    """Asked when a stream is to end, not before."""
    from types import SimpleNamespace

    from npu_agent.serve import Service

    service = SimpleNamespace(settings=SimpleNamespace(on_stop="drain"), execute=True, end=lambda: None)
    assert not Service.draining(service)
    Service.asked(service, signal.SIGTERM, None)
    assert Service.draining(service)
    service.settings.on_stop = "keep"
    assert not Service.draining(service)
