# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's configuration, and what it makes of what the driver tells. No process, no gRPC call."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def agent(package):
    import npu_agent.config
    import npu_agent.look

    return npu_agent


# --- configuration

@pytest.mark.parametrize(("text", "words"), [
    ("allocate_mod: env\n", "line 1: there is no setting 'allocate_mod' (did you mean allocate_mode?)"),
    ("\nallocate_mode: cdi\n", "line 2: allocate_mode is 'cdi'; allowed: devices, env, both"),
    ("poll_seconds: 0\n", "allowed: seconds from 0.1 to 3600"),
    ("poll_seconds: true\n", "poll_seconds is True"),
    ("poll_seconds: [1]\n", "poll_seconds is [1]"),
    ("listen: 8083\n", "listen is 8083; allowed: HOST:PORT"),
    ("listen: 'x:99999'\n", "allowed: HOST:PORT"),
    ("resource_name: Rockchip.device/npu\n", "allowed: empty (by family), or domain/name"),
    ("resource_name: a.kubernetes.io/npu\n", "resource_name is"),
    ("resource_name: npu\n", "resource_name is"),
    ("kubelet_dir: relative\n", "kubelet_dir is 'relative'; allowed: an absolute path"),
    ("kubelet_dir: /" + "x" * 80 + "\n", "at most 67 bytes"),
    ("poll_seconds: 1\npoll_seconds: 2\n", "line 2: poll_seconds is set a second time"),
    ("- a\n", "must be a list of 'key: value' lines"),
    ("a: [\n", "is not YAML"),
    ("a: \x01\n", "is not YAML"),
])
def test_bad_configuration(agent, tmp_path, text, words):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(agent.config.ConfigError) as error:
        agent.config.load(str(file), {})
    assert words in str(error.value) and str(file) in str(error.value)


def test_all_faults_are_told_at_once(agent, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a: 1\nlog_level: loud\n")
    with pytest.raises(agent.config.ConfigError) as error:
        agent.config.load(str(file), {"NPU_AGENT_B": "1", "NPU_AGENT_POLL_SECONDS": "x"})
    assert len(error.value.faults) == 4
    assert "environment variable NPU_AGENT_B" in str(error.value)


def test_good_configuration(agent, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("resource_name: huawei.com/Ascend910-share\nlisten: '[::1]:9'\npoll_seconds: 2\n")
    settings = agent.config.load(str(file), {"NPU_AGENT_POLL_SECONDS": "3", "OTHER": "x"})
    assert settings.resource_name == "huawei.com/Ascend910-share" and settings.listen == ("::1", 9)
    assert settings.poll_seconds == 3.0 and settings.allocate_mode == "both"
    assert agent.config.load(None, {}).kubelet_dir == "/var/lib/kubelet/device-plugins"
    with pytest.raises(agent.config.ConfigError, match="there is no such file"):
        agent.config.load(str(tmp_path / "none"), {})


# --- what is seen of the chips

def found(*records):
    keys = {"logic_id": 0, "name": "910B3", "family": "a2", "numa_node": 0, "serial": None, "error": None, "evidence": {"pci": True}}
    return {"present": True, "chips": [{**keys, **record} for record in records], "query": {"ok": True, "errors": []}}


def health_of(card, code=0, error=None):
    return {"card_id": card, "device_id": 0, "health_code": code, "error_codes": [], "dropped": False, "error": error}


def test_a_chip_without_an_id_is_a_problem_not_a_guess(agent, tmp_path):
    settings = SimpleNamespace(family="auto", dev_root=str(tmp_path), sysfs_root=str(tmp_path))
    known = found({"phy_id": 0, "card_id": 0, "device_id": 0, "pci_address": "0000:01:00.0"},
                  {"phy_id": None, "card_id": 1, "device_id": 0, "pci_address": "0000:02:00.0", "error": {"message": "-8006"}})
    sight = agent.look.combine(known, [health_of(0), health_of(1)], settings)
    assert [chip["phy_id"] for chip in sight.chips] == [0]
    assert sight.problems == ["the NPU 0000:02:00.0 is left out: -8006"]
