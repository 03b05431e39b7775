# SPDX-License-Identifier: GPL-3.0-or-later
"""isulad: what can be seen of it, and a change that it takes over by a restart."""

import base64
import json
import os

import pytest
from conftest import RUNTIME

from ansible_collections.npu.fleet.plugins.module_utils import _engine, _engine_isulad
from ansible_collections.npu.fleet.plugins.module_utils import _engine_steps as steps
from ansible_collections.npu.fleet.plugins.module_utils._command import Result
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.modules.oci_runtime_node import argument_spec

# After the documentation of `isula info` (openEuler, "Querying Information"), its spelling included.
INFO = """\
Containers: 2
 Running: 1
 Paused: 0
 Stopped: 1
Images: 8
Server Version: 2.1.3
Logging Driver: json-file
Cgroup Driverr: cgroupfs
iSulad Root Dir: /var/lib/isulad
"""
OLD = '{\n    "group": "isula",\n    "default-runtime": "runc",\n    "registry-mirrors": ["https://me:canary-5@mirror.example"]\n}\n'
NEW = OLD.replace("\n}", f',\n    "runtimes": {{"ascend": {{"path": "{RUNTIME}", "runtimeArgs": []}}}}\n}}')
EXPECT = {"state": "present", "name": "ascend", "path": RUNTIME, "args": [], "default": None}


class Host:
    """A host with isulad; its clock is that of the files: boot was at 1000."""

    def __init__(self, root):
        self.root = root
        self.active, self.refuses, self.kill_mode, self.calls, self.clock = True, "", "process", [], 2000.0
        for folder in ("usr/bin", "etc/isulad", "proc/42"):
            (root / folder).mkdir(parents=True)
        for name in ("isulad", "isula", "systemctl"):
            (root / "usr/bin" / name).write_text("#!/bin/sh\n")
            (root / "usr/bin" / name).chmod(0o755)
        self.config = root / "etc/isulad/daemon.json"
        self.write(OLD, 1500)
        self.start(1600)

    def write(self, text, at):
        self.config.write_text(text)
        os.utime(self.config, (at, at))

    def start(self, at):
        """isulad was started at this time of its clock."""
        (self.root / "proc/42/stat").write_text("42 (isula d) S " + " ".join(["0"] * 18) + f" {int((at - 1000) * 100)} 0 0\n")
        (self.root / "proc/uptime").write_text(f"{self.clock - 1000} 0\n")

    def run(self, argv, _timeout, **_options):
        words = [os.path.basename(argv[0])] + argv[1:]
        if words[:2] == ["systemctl", "show"]:
            state, pid = ("active", 42) if self.active else ("failed", 0)
            text = f"LoadState=loaded\nActiveState={state}\nMainPID={pid}\nKillMode={self.kill_mode}\nCanReload=yes\n"
            return Result(argv, 0, text, "", False, 0.1)
        if words[0] == "systemctl":
            self.calls.append(words[1])
            if words[1] in ("start", "restart"):
                self.active = not self.refuses or self.refuses not in self.config.read_text()
                self.clock = max(self.clock, self.config.stat().st_mtime) + 1
                self.start(self.clock)
                return Result(argv, 0 if self.active else 1, "", "Job for isulad.service failed\n", False, 0.1)
            return Result(argv, 0, "", "", False, 0.1)
        if words == ["isula", "info"]:
            answer = (0, INFO, "") if self.active else (1, "", "Can not connect with server.\n")
            return Result(argv, *answer, False, 0.1)
        if words[:2] == ["isula", "ps"]:
            return Result(argv, 0, "aaaabbbbccccdddd\nffff000011112222\n" if "--all" in words else "aaaabbbbccccdddd\n", "", False, 0.1)
        if words[:2] == ["isula", "inspect"]:
            shown = {"aaaabbbbccccdddd": ("train", "ascend"), "ffff000011112222": ("web", "runc")}
            found = [{"Name": shown[word][0], "HostConfig": {"Runtime": shown[word][1]}} for word in words[2:]]
            return Result(argv, 0, json.dumps(found), "", False, 0.1)
        if words == ["isulad", "--version"]:
            return Result(argv, 0, "iSulad version: 2.1.3, commit: 0\n", "", False, 0.1)
        raise AssertionError(argv)

    def params(self, **values):
        params = {name: option.get("default") for name, option in argument_spec().items()}
        params.update(name="ascend", path=RUNTIME, root=str(self.root), timeout=1, engine="isulad")
        params.update(values)
        return params

    def read(self, **values):
        return steps.read(self.params(**values), self.run)

    def commit(self, text, **values):
        (file,) = self.read()["files"]
        given = {"expected": {file["path"]: file["sha256"] or ""}, "expect": EXPECT, "content": base64.b64encode(text.encode()).decode()}
        return steps.commit(self.params(**{**given, **values}), self.run)


@pytest.fixture()
def host(tmp_path, monkeypatch):
    host = Host(tmp_path)
    monkeypatch.setattr(_engine_isulad.time, "time", lambda: host.clock)
    return host


def test_read(host):
    found = host.read()
    assert (found["engine"], found["version"], found["active"], found["containers_running"]) == ("isulad", "2.1.3", True, 1)
    assert (found["config_path"], found["takes_over_by"], found["restart_kills"]) == ("/etc/isulad/daemon.json", "restart", [])
    assert found["effective"] == {"runtimes": {}, "default_runtime": "runc", "handlers": None}
    assert [(file["path"], file["role"]) for file in found["files"]] == [("/etc/isulad/daemon.json", "main")]


def test_auto_finds_it(host):
    assert _engine.choose("auto", host.run, str(host.root)) == (_engine_isulad, False)


def test_observe(host):
    (entry,) = _engine.observe(host.run, str(host.root))
    assert (entry["name"], entry["active"], entry["default_runtime"]) == ("isulad", True, "runc")
    assert (entry["kubelet"], entry["cdi"]) == (False, None)
    assert entry["configured"] == {"runtimes": {}, "default_runtime": "runc", "error": None}


def test_a_file_that_is_newer_than_the_process_has_not_been_read(host):
    host.write(NEW, 1500)
    assert host.read()["effective"]["runtimes"]["ascend"] == {"path": RUNTIME, "args": [], "type": None}
    host.write(NEW, 1700)
    assert host.read()["effective"] == {"runtimes": {}, "default_runtime": None, "handlers": None}


def test_a_change_is_taken_over_by_a_restart_and_says_what_was_not_seen(host):
    result = host.commit(NEW)
    assert (host.config.read_text(), host.calls, result["actions"]) == (NEW, ["restart"], ["restart"])
    assert result["effective"]["runtimes"]["ascend"]["path"] == RUNTIME
    assert "no mode that only checks its file" in result["not_checked"]
    assert "does not list its runtimes" in result["not_checked"]
    assert host.commit(NEW)["changed"] is False


def test_it_is_given_back_when_it_does_not_start(host):
    host.refuses = "ascend"
    with pytest.raises(FleetError, match="Job for isulad.service failed.*byte for byte; isulad answers"):
        host.commit(NEW)
    assert (host.config.read_text(), host.active) == (OLD, True)


def test_what_is_no_json_is_not_written(host):
    with pytest.raises(FleetError, match="daemon.json, line 2: it is not JSON") as caught:
        host.commit("{\n canary-5\n}")
    assert caught.value.code == "parser_refused"
    assert "canary" not in str(caught.value) + str(caught.value.as_dict())
    assert host.calls == []


@pytest.mark.parametrize(("mode", "kills"), [("process", []), ("control-group", ["train"]), ("mixed", ["train"])])
def test_containers_live_on_with_their_own_processes_only(host, mode, kills):
    host.kill_mode = mode
    assert host.read()["restart_kills"] == kills


def test_users_of_the_runtime(host):
    assert host.read(state="absent")["users"] == ["train"]


def test_down(host):
    host.active = False
    found = host.read()
    assert (found["active"], found["error"], found["version"]) == (False, "Can not connect with server.", "2.1.3")
    assert host.commit(NEW)["actions"] == ["start"]


def test_another_path_is_refused(host):
    with pytest.raises(FleetError, match="reads /etc/isulad/daemon.json, not /etc/docker/daemon.json"):
        host.read(config_path="/etc/docker/daemon.json")


def test_no_client(host):
    (host.root / "usr/bin/isula").unlink()
    assert "isula was not found" in host.read()["error"]
    with pytest.raises(FleetError) as caught:
        host.commit(NEW)
    assert (caught.value.code, host.config.read_text()) == ("client_missing", OLD)


def test_text_that_is_no_info():
    with pytest.raises(ValueError, match="not that of isula info"):
        _engine_isulad.parse_info("Can not connect with server.\n")
