# SPDX-License-Identifier: GPL-3.0-or-later
"""kubelet-ctl, as people and playbooks call it."""

import json
import os
import signal
import subprocess
import sys

import pytest
from agent_rig import REPO
from kubelet_standin import ctl
from odd_plugin import NAME, device


def call(rig, capsys, *words):
    code = ctl.main(["--socket", str(rig.control), *map(str, words)])
    out, err = capsys.readouterr()
    return json.loads(out) if code == 0 else err


def test_answers_are_json(ready, capsys, tmp_path):
    rig, plugin = ready
    assert call(rig, capsys, "allocatable") == call(rig, capsys, "capacity") == {NAME: 3}
    assert call(rig, capsys, "report") == call(rig, capsys, "nodes")["rig"] == {"allocatable": {NAME: 3}, "capacity": {NAME: 3}}
    assert call(rig, capsys, "devices") == {NAME: {name: {"healthy": True, "numa": []} for name in "abc"}}
    assert call(rig, capsys, "registrations")[0]["resource_name"] == NAME and call(rig, capsys, "plugins")[NAME]["streams"] == 1
    pod = call(rig, capsys, "allocate", 1, NAME, "--pod", "one", "--env", "A=2=3")
    assert pod["phase"] == "Running" and pod["container"]["env"] == {"A": "2=3"}
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps({"metadata": {"name": "two"}, "spec": {"containers": [
        {"name": "main", "resources": {"limits": {NAME: "1", "memory": "1Gi"}}}]}}))
    assert call(rig, capsys, "create", manifest, "--schedule", 10)["events"] == ["Scheduled"]
    assert call(rig, capsys, "finish", "two") == "two" and call(rig, capsys, "delete", "default/one") == "default/one"
    assert list(call(rig, capsys, "pods")) == ["default/two"]
    assert [entry["kind"] for entry in call(rig, capsys, "history", "--resource", NAME)] == ["register", "stream", "list"]
    assert call(rig, capsys, "rough", "dial_delay=0")["list"] == 1
    assert call(rig, capsys, "end-stream", NAME) == 1 and call(rig, capsys, "drop-socket").endswith("kubelet.sock")
    start = rig.started_at()
    assert call(rig, capsys, "restart", "--down", "0.2", "--reboot", "--replace-folder")["start"] > start


def test_refusals_end_with_1_and_words(ready, capsys):
    rig, _plugin = ready
    assert "UnexpectedAdmissionError: Allocate failed due to requested number of" in call(rig, capsys, "allocate", 9, NAME)
    assert "there is no pod default/nobody" in call(rig, capsys, "delete", "nobody")
    rig.process.stop()
    assert "refused" in call(rig, capsys, "nodes")


@pytest.fixture
def heeded():
    """Tests that a shell has started in the background ignore SIGINT, and so would what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_watch_prints_a_line_for_each_entry(ready, heeded):
    rig, plugin = ready
    argv = [sys.executable, "-m", "kubelet_standin.ctl", "--socket", str(rig.control), "watch", "--kind", "list"]
    environment = {**os.environ, "PYTHONPATH": str(REPO / "tests/kubelet")}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert json.loads(process.stdout.readline())["total"] == 3
            plugin.push(device("a", "Unhealthy"))
            assert json.loads(process.stdout.readline())["changed"] == {"a": "Unhealthy", "b": None, "c": None}
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
