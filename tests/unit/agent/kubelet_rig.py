# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet stand-in in a folder, with plugins that do as they are told: fixtures for the tests of the stand-in itself."""

import os
import sys
from pathlib import Path

import grpc
import pytest
from agent_rig import REPO, Process, until
from kubelet_standin import api, control, wire
from odd_plugin import NAME, THREE, OddPlugin


class KubeletRig:
    """KUBELET_PYTHON: another interpreter for the stand-in, one that has grpcio."""

    def __init__(self, folder):
        self.folder, self.plugins, self.pod_resources = folder, folder / "device-plugins", folder / "pods"
        self.control, self.made, self.process = folder / "control", [], None

    def start(self, *arguments):
        python = os.environ.get("KUBELET_PYTHON") or sys.executable
        argv = [python, "-m", "kubelet_standin", "--plugins", str(self.plugins), "--pod-resources",
                str(self.pod_resources), "--control", str(self.control), "--node", "rig", "--status-seconds", "0.1", *arguments]
        self.process = Process(argv, self.folder / "kubelet.log", {"PYTHONPATH": str(REPO / "tests/kubelet")})
        control.wait(str(self.control))

    def plugin(self, endpoint="odd.sock", devices=THREE):
        self.made.append(OddPlugin(self.plugins, endpoint))
        self.made[-1].push(*devices)
        return self.made[-1]

    def ask(self, name, **arguments):
        return control.ask(str(self.control), name=name, **arguments)

    def text(self):
        return self.process.text()

    def started_at(self):
        try:
            return self.ask("info")["start"]
        except OSError:
            return None

    def restart(self, **how):
        before = self.started_at()
        self.ask("restart", **how)
        until(lambda: self.started_at() not in (None, before), 30 + how.get("down", 0), "a new kubelet")

    def numbers(self, name=NAME):
        """(allocatable, capacity) at this moment."""
        return self.ask("allocatable").get(name), self.ask("capacity").get(name)

    def serving(self, *expected, name=NAME):
        until(lambda: self.numbers(name) == expected, what=f"{expected} at the kubelet, it has {self.numbers(name)}")

    def allocate(self, count, pod, **more):
        return self.ask("allocate", count=count, resource=NAME, pod=pod, **more)

    def create(self, name, containers, init=(), **more):
        """A pod from (name of container, {resource: count}, more fields of its manifest)."""
        made = [[{"name": each, "resources": {"limits": limits}, **fields} for each, limits, fields in part] for part in (init, containers)]
        manifest = {"metadata": {"name": name}, "spec": {"initContainers": made[0], "containers": made[1]}}
        return self.ask("create", manifest=manifest, **more)

    def monitor(self, method, request=api.EMPTY, answer=api.LIST_RESPONSE, message=None, service="v1.PodResourcesLister"):
        """One call of PodResources."""
        with grpc.insecure_channel(f"unix://{self.pod_resources}/kubelet.sock", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(f"/{service}/{method}", lambda m: wire.encode(request, m), lambda data: wire.decode(answer, data))
            return call(message or {}, timeout=10)

    def close(self):
        for plugin in self.made:
            plugin.stop()
        if self.process and self.process.process.poll() is None:
            self.process.process.kill()
            self.process.process.wait()


@pytest.fixture
def kubelet_rig(tmp_path_factory):
    made = KubeletRig(Path(tmp_path_factory.mktemp("kubelet")))
    yield made
    made.close()


@pytest.fixture
def kubelet(kubelet_rig):
    """Starts a kubelet with options: (rig, a plugin that serves three devices and has not registered)."""
    def start(*arguments):
        kubelet_rig.start(*arguments)
        return kubelet_rig, kubelet_rig.plugin()

    return start


@pytest.fixture
def odd(kubelet):
    return kubelet()


@pytest.fixture
def ready(odd):
    """A kubelet and a plugin that has registered three devices."""
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    return rig, plugin
