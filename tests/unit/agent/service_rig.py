# SPDX-License-Identifier: GPL-3.0-or-later
"""A node in a folder with a runner that answers as systemd does, for tests of the agent's service."""

import time

import pytest
from delivery_rig import Result

from ansible_collections.npu.fleet.plugins.module_utils import _agent_service


class Systemd:
    """Answers systemctl and journalctl like a systemd with one unit, and keeps what it was told."""

    def __init__(self, root, active=False, enabled=False):
        self.root, self.active, self.enabled = root, active, enabled
        self.started = time.monotonic() if active else 0
        self.calls, self.fail = [], None

    def __call__(self, argv, timeout, **_unused):
        self.calls.append(argv)
        words = argv[1:]
        if argv[0].endswith("npu-agent"):
            text = open(argv[-1]).read()
            bad = "bad" in text
            return Result(argv, 2 if bad else 0, "", f"{argv[-1]} line 1: there is no setting 'bad'" if bad else "", False, 0)
        if argv[0] == "journalctl":
            return Result(argv, 0, "last words\n", "", False, 0)
        if self.fail in words:
            return Result(argv, 1, "", "Job failed.", False, 0)
        if words[0] == "show":
            lines = {"ActiveState": "active" if self.active else "inactive", "UnitFileState": "enabled" if self.enabled else "disabled",
                     "ExecMainStartTimestampMonotonic": str(int(self.started * 1e6)), "NeedDaemonReload": "no"}
            return Result(argv, 0, "".join(f"{key}={value}\n" for key, value in lines.items()), "", False, 0)
        if words[0] in ("start", "restart"):
            self.active, self.started = True, time.monotonic()
        if words[0] == "enable":
            self.enabled = True
        if words[0] == "disable":
            self.active = self.enabled = False
        return Result(argv, 0, "", "", False, 0)

    def verbs(self):
        return [argv[1] for argv in self.calls if argv[0] == "systemctl" and argv[1] not in ("show", "reset-failed")]


@pytest.fixture
def node(tmp_path, monkeypatch):
    program = tmp_path / "opt/npu-agent/current/bin/npu-agent"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(_agent_service, "ask_ready", lambda _url: {"state": "serving", "reasons": []})
    monkeypatch.setattr(_agent_service.wait_settled, "__kwdefaults__", {**_agent_service.wait_settled.__kwdefaults__,
                                                                       "ask": lambda _url: {"state": "serving", "reasons": []}})
    time.sleep(0.01)
    return tmp_path


def present(node, systemd, config="poll_seconds: 1\n", unit="[Service]\n", check=False):
    return _agent_service.present(str(node), systemd, config, unit, url="x", ready_seconds=1, check_mode=check)
