# SPDX-License-Identifier: GPL-3.0-or-later
"""Chips and boards for tests of what decides about them. Only for tests with the fixture `package`."""

from types import SimpleNamespace


def chip(phy_id, family="a2", **changes):
    """A chip that is well, c0 for davinci0."""
    from npu_agent.chip import Chip

    values = {"id": f"c{phy_id}", "phy_id": phy_id, "family": family, "pci_address": f"0000:{phy_id:02x}:00.0", "numa_node": None,
              "card_id": phy_id, "device_node": None, "slice": None, "healthy": True, "reason": "", "rank": 0, "degraded": ()}
    return Chip(**{**values, **changes})


def sliced(phy_id, vdev_id, template="vir02", kind="2c", family="310p", **changes):
    from npu_agent.chip import Slice

    return chip(phy_id, family, id=f"c-{kind}-{vdev_id}-{phy_id}", slice=Slice(vdev_id, template, kind), **changes)


def board(chips, shares=1, resource="huawei.com/Ascend910", forms=None):
    from npu_agent import units

    named = {chip.id: chip for chip in chips}
    family = chips[0].family if chips else None
    return SimpleNamespace(resource=resource, family=family, chips=named, units=units.ids(named, shares), forms=forms or {})
