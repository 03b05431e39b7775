# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes made of what a look would see, for tests of what kubelet is told: the fixture `make`."""

from types import SimpleNamespace

import pytest

MEMORY = {"backend": "ascend", "poll_seconds": 5.0, "query_timeout": 5.0, "keep_last_state": 30.0, "unhealthy_from": "major",
          "recovery_seconds": 0.0, "flap_count": 0, "flap_window": 1.0, "flap_hold": 1.0, "degraded_seconds": 60.0,
          "degraded_temperature": 85.0, "degraded_memory": 0.0}


@pytest.fixture
def make(package, tmp_path):
    """A Node, after the one before; its log is in `events`, a payload is the repr of what kubelet would get."""
    import npu_agent.faults
    import npu_agent.node

    nodes = []

    def node(**settings):
        if nodes:
            nodes[-1].names.close()
            nodes[-1].kept.close()
        values = {**MEMORY, "resource_name": "", "shares": 1, "state_dir": "", "dev_root": str(tmp_path), "sysfs_root": str(tmp_path)}
        events = []
        made = npu_agent.node.Node(
            SimpleNamespace(**{**values, **settings}), lambda event, level="info", **fields: events.append((event, fields)),
            lambda units: repr([(name, chip.healthy, chip.numa_node) for name, chip in units]).encode(), npu_agent.faults.load(),
        )
        made.events = events
        nodes.append(made)
        return made

    return node


def record(phy_id, code=0, **changes):
    values = {"phy_id": phy_id, "card_id": phy_id, "device_id": 0, "name": "", "family": "a2", "pci_address": f"0000:{phy_id:02x}:00.0",
              "numa_node": 0, "serial": None, "vdie": f"die{phy_id}", "aicore_count": None, "driver_bound": True,
              "device_node": f"/dev/davinci{phy_id}", "device_node_present": True, "health_code": code, "error_codes": [],
              "dropped": False, "error": None, "hung": None, "unasked": False, "telemetry": None, "slices": []}
    return {**values, **changes}


def slices_of(*entries):
    return [{"vdev_id": vdev_id, "template": template} for vdev_id, template in entries]


def sight(*records, present=True, problems=(), complete=True, events=()):
    from npu_agent.look import Sight

    return Sight(present, list(records), list(problems), complete, list(events))


def told(node, now, held=(), sure=True):
    """Kubelet tells which pods have chips: [(resource, id, pod)]."""
    return node.hold({(resource, unit): pod for resource, unit, pod in held}, now, asked=now, sure=sure)


def state(board):
    return {name: chip.healthy for name, chip in board.units.items()}


A2, P310 = "huawei.com/Ascend910", "huawei.com/Ascend310P"
