# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent makes of what the driver tells. No process, no gRPC call."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def agent(package):
    import npu_agent.look

    return npu_agent


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
