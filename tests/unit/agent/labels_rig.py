# SPDX-License-Identifier: GPL-3.0-or-later
"""What `npu-agent labels` talks to, made by a test: a node that tells of itself, a Node at an API, and time."""

import copy
import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_rig import REPO

sys.path.insert(0, str(REPO / "tests/kube"))
from api_server import ApiServer
from kube_rules import ApiError  # noqa: F401

FACTS = {
    "backend": "ascend", "present": True, "ready": True, "state": "serving", "reasons": [], "families": ["a2"], "chips": 8, "healthy": 8,
    "chip_names": ["910B3"], "products": ["Atlas 800T A2"], "driver_version": "25.5.0", "firmware_version": None, "cann_version": None,
    "aicores": 20, "memory_mib": None, "link": "hccs", "serial_hash": "0123456789ab", "arch": "aarch64", "stack": None,
}
LOST = {**FACTS, "ready": False, "healthy": 0, "driver_version": None, "reasons": ["Ascend910-0: the driver is not loaded"]}
NO_NPU = {**dict.fromkeys(FACTS), "present": False, "ready": False, "reasons": [], "families": []}
STARTING = {**NO_NPU, "present": None, "state": "starting"}
OTHER_TAINT = {"key": "other", "value": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
AGENT_TAINT = {"key": "npu.fleet/not-ready", "value": "agent", "effect": "NoSchedule"}
SITE_TAINT = {**AGENT_TAINT, "value": "site"}


class Api:
    """A Node with the merge rules of the server. `fail`, `refuse`: what the next gets and patches raise, one after the other."""

    def __init__(self):
        self.name, self.host = "node-01", "https://192.0.2.1"
        self.labels, self.annotations, self.taints = {"rack": "r7"}, {}, []
        self.requests, self.fail, self.refuse = [], [], []

    def get(self):
        self.requests.append("get")
        if self.fail:
            raise self.fail.pop(0)
        return copy.deepcopy({"metadata": {"resourceVersion": "7", "labels": self.labels, "annotations": self.annotations},
                              "spec": {"taints": self.taints}})

    def patch(self, body):
        self.requests.append("patch")
        if self.refuse:
            raise self.refuse.pop(0)
        metadata = body.get("metadata", {})
        for what in ("labels", "annotations"):
            for key, value in metadata.get(what, {}).items():
                getattr(self, what)[key] = value
                if value is None:
                    del getattr(self, what)[key]
        if "spec" in body:
            assert metadata["resourceVersion"] == "7"
            self.taints = body["spec"]["taints"]


class World:
    """A Writer whose node says what `facts` has (a text: why it says nothing), and whose time is its own."""

    def __init__(self, **changes):
        from npu_agent import labels

        self.now, self.facts, self.api, self.lines = 1000.0, FACTS, Api(), []
        settings = SimpleNamespace(**{"label_poll": 5.0, "label_period": 40.0, "label_keep": (), "taint_after": 20.0, **changes})
        self.writer = labels.Writer(settings, self.api, self.log, asks=self.asks, clock=lambda: self.now, pause=self.pass_time,
                                    spread=lambda low, high: (low + high) / 2)
        self.silent = labels.Silent

    def log(self, event, level="info", **fields):
        self.lines.append({"event": event, "level": level, **fields})

    def events(self, level=None):
        return [line["event"] for line in self.lines if level in (None, line["level"])]

    def asks(self):
        if isinstance(self.facts, str):
            raise self.silent(self.facts)
        return copy.deepcopy(self.facts)

    def pass_time(self, seconds):
        self.now += seconds

    def go(self, seconds):
        """So much time passes."""
        end = self.now + seconds
        while self.now < end:
            self.writer.guarded()
            self.pass_time(self.writer.settings.label_poll)

    def taint_within(self, seconds, taints):
        """After how long the Node has these taints."""
        start = self.now
        while self.api.taints != taints:
            assert self.now - start <= seconds, self.api.taints
            self.go(self.writer.settings.label_poll)
        return self.now - start


TOKEN = "canary-2f7d1b9e4a6c8d03"  # noqa: S105
RIGHTS = {"nodes": ("get", "patch")}


@pytest.fixture
def kube_api(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ApiServer() as server:
        server.add_user("agent", RIGHTS, TOKEN)
        server.add_node("node-01", labels={"rack": "r7"})
        yield server


@pytest.fixture
def kubeconfig(kube_api, tmp_path):
    return str(kube_api.kubeconfig(tmp_path / "kubeconfig", TOKEN))


@pytest.fixture
def node_api(package, kubeconfig):
    from npu_agent.labels_api import NodeApi

    return lambda name="node-01", path=kubeconfig: NodeApi(name, path)


class Deaf:
    """An API that takes connections and says nothing."""

    def __init__(self, kubeconfig, path):
        self.socket, self.kubeconfig = socket.socket(), str(path)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(5)
        made = json.loads(Path(kubeconfig).read_text())
        made["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        path.write_text(json.dumps(made))

    def close(self):
        self.socket.close()


@pytest.fixture
def deaf(kubeconfig, tmp_path):
    made = Deaf(kubeconfig, tmp_path / "deaf")
    yield made
    made.close()


def metadata(api, name="node-01"):
    return api.store.get(name)["metadata"]


def taints(api, name="node-01"):
    return api.store.get(name)["spec"].get("taints", [])
