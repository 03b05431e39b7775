# SPDX-License-Identifier: GPL-3.0-or-later
"""One chip (or one slice of a chip) as kubelet and operators hear of it."""

from typing import NamedTuple, Optional


class Slice(NamedTuple):
    """A static vNPU: part of a chip, with a device node of its own."""

    vdev_id: int  # N of /dev/vdavinciN
    template: str  # as the driver calls it: vir02_1c
    kind: str  # as the resource calls it: 2c.1cpu


class Chip(NamedTuple):
    """`id` is the name towards kubelet, without the number of a share; it stays with the hardware (identity.py)."""

    id: str
    phy_id: int  # N of /dev/davinciN now
    family: str
    pci_address: Optional[str]
    numa_node: Optional[int]
    card_id: Optional[int]
    device_node: Optional[str]
    slice: Optional[Slice]
    healthy: bool
    reason: str
    rank: int  # 0 is best; what is degraded has more and comes last in preferred allocation
    degraded: tuple  # why, one text each
    gone: bool = False  # it was there once; its number may be another chip's by now
    logic_id: Optional[int] = None  # its place in the driver's own order
    barred: str = ""  # why nobody may get it, whatever kubelet asks for; it is not healthy then
    places: tuple = ()  # what containers get of it, where that is not told by phy_id: device nodes as they see them, an address
