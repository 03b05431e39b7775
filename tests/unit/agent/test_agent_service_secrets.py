# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's configuration on a node may have tokens in it: who may read the file, and what of it is told."""

import json
import os

import pytest
from ansible.module_utils.testing import patch_module_args
from service_rig import Systemd, present

from ansible_collections.npu.fleet.plugins.module_utils import _agent, _agent_service


def test_tokens_of_containers_are_shown_to_nobody(node):
    text = 'backend: "remote"\nendpoints: [{"name": "a-0", "address": "h:1", "envs": {"TOKEN": "%s", "N": 1}}]\n'
    first = present(node, Systemd(node), config=text % "s3cr3t")
    assert os.stat(node / "etc/npu-agent/config.yaml").st_mode & 0o777 == 0o600
    second = present(node, Systemd(node), config=text % "t0k3n" + "devices: nonsense s3cr3t\n")
    assert second["actions"] and "s3cr3t" in (node / "etc/npu-agent/config.yaml").read_text()
    assert "s3cr3t" not in json.dumps([first, second]) and "t0k3n" not in json.dumps([first, second])
    assert '"TOKEN": "(not shown)"' in second["diff"][0]["after"] and "h:1" in second["diff"][0]["after"]


TOKENS = [
    'endpoints: [{"name": "a-0", "envs": {"T": "s3cr3t-t0ken"}}]\n',
    "endpoints:\n- name: a-0\n  envs:\n    T: s3cr3t-t0ken\n\n    # s3cr3t\n", "endpoints:\n  - {name: a-0,\n   envs: {T: s3cr3t-t0ken}}\n",
    '"devices":\n  - envs: {T: s3cr3t}', "'endpoints' : [\n{envs: {T: s3cr3t}}\n]\n", "{endpoints: [{envs: {T: s3cr3t}}]}\n",
    "endpoints: [{envs: {T: s3cr3t}},\n]\n",
]


@pytest.mark.parametrize("text", TOKENS)
def test_tokens_in_a_file_of_an_admin_are_not_shown_either(node, text):
    """Neither when another configuration takes its place, nor when it goes."""
    config = node / "etc/npu-agent/config.yaml"
    config.parent.mkdir(parents=True)
    for around in ("", "poll_seconds: 1\n"):
        config.write_text(around + text + around)
        found = present(node, Systemd(node), config="poll_seconds: 2\n", check=True)
        gone = _agent_service.absent(str(node), Systemd(node), True)
        assert found["actions"] and gone["actions"] and "s3cr3t" not in json.dumps([found, gone])
        assert found["diff"][0]["before"].count("poll_seconds: 1") >= bool(around)


def test_a_configuration_that_others_may_read_is_closed_and_nothing_else(node):
    systemd = Systemd(node)
    present(node, systemd)
    config = node / "etc/npu-agent/config.yaml"
    config.chmod(0o644)
    assert present(node, systemd, check=True)["changed"] and config.stat().st_mode & 0o777 == 0o644
    systemd.calls.clear()
    result = present(node, systemd)
    assert result["actions"] == ["mode 0600 of /etc/npu-agent/config.yaml"] and systemd.verbs() == [] and result["changed"]
    assert config.stat().st_mode & 0o777 == 0o600 and result["after"]["started_after_files"] is True
    assert not present(node, systemd)["changed"]
    other = node / "other"
    other.write_text(config.read_text())
    config.unlink()
    config.symlink_to(other)
    assert present(node, systemd)["actions"] == ["restart"] and not present(node, systemd)["changed"]


@pytest.fixture
def run_module(node, monkeypatch, capsys):
    """Run the module as Ansible does; returns (result, what went into the system's log)."""
    from ansible.module_utils import basic

    from ansible_collections.npu.fleet.plugins.modules import agent_service

    logged = []
    monkeypatch.setattr(basic.AnsibleModule, "log", lambda _self, message, log_args=None: logged.append(f"{message} {log_args}"))
    monkeypatch.setattr(agent_service, "run", Systemd(node))

    def run(**options):
        with patch_module_args({"root": str(node), "unit": "[Service]\n", **options}), pytest.raises(SystemExit):
            agent_service.main()
        return json.loads(capsys.readouterr().out), " ".join(logged)

    return run


def test_ansible_hears_no_token(run_module):
    """Not in the log of each call ("Invoked with"), not in what -vvv prints of it, not in a failure."""
    config = 'poll_seconds: 1\nendpoints: [{"name": "a-0", "envs": {"T": "s3cr3t-t0ken", "MODE": "one", "N": 1}}]\n'
    result, logged = run_module(config=config)
    failed, _logged = run_module(config=config + "bad: s3cr3t-t0ken\n")
    assert result["changed"] and failed["failed"] and "Invoked with" in logged
    assert "s3cr3t" not in json.dumps([result, failed]) + logged
    # What tells nothing stays readable.
    assert result["invocation"]["module_args"]["config"].startswith("poll_seconds: 1\nendpoints: ")
    assert result["diff"][0]["after"] == result["invocation"]["module_args"]["config"] and '"name": "a-0"' in result["diff"][0]["after"]
    assert (result["actions"], result["state"]) == ([f"write {_agent.CONFIG}", f"write {_agent.UNIT}", "enable", "start"], "serving")


def test_a_diff_without_secrets_is_whole(run_module):
    result, _logged = run_module(config="poll_seconds: 1\n")
    assert result["diff"][0]["after"] == "poll_seconds: 1\n"
