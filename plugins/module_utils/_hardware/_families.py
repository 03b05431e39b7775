# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chip families: what a driver package is built for, and what follows from it.

Sources: npu-smi names from the vendor's open driver (npu_info_print.c, dcmi_inner_info_get.c) and public output; resource names and ids
from mind-cluster's device plugin; device nodes from mind-cluster's ascend-docker-runtime. "managers" are the device nodes a container
needs beside its chips, "folders" those below /dev of which it needs all nodes. What file names of packages call a chip stands in
``_packages/_names.py``.

A family belongs to a backend, which says what the vendor of its chips has of layers: components that packages bring. A Rockchip SoC is a
family of its own; its driver is part of its kernel, and nothing is installed for it (source: the vendor's kernel).
"""

import re

from ._rknpu import ROCKET

ASCEND, ROCKCHIP = "ascend", "rockchip"
# As `_rknpu.find` names a SoC, also one that its table does not have (yet): packages of another vendor are for none of them.
SOC = re.compile(r"(?:r[kv][0-9]{4}|unknown)\Z")
LAYERS = {
    ASCEND: ("driver", "firmware", "cann_toolkit", "cann_kernels", "cann_nnrt", "nnal", "docker_runtime"),
    ROCKCHIP: (),
}


def _node(name, container=None, required=False):
    """required: no container can use a chip without it; SoC boards (Atlas 200I SoC A1, 200 Model 3000) have no other one."""
    return {"host": name, "container": container or name, "required": required}


# dvpp_cmdlist is newer than the rest; the vendor's runtime only warns when it is missing.
_SERVER = [_node("davinci_manager", required=True)] + [_node(name) for name in ("devmm_svm", "hisi_hdc", "dvpp_cmdlist")]
# 310B boards share their SoC's own nodes, and containers get another manager node under the usual name.
_BOARD_310B = [_node("davinci_manager_docker", "davinci_manager", required=True)] + [
    _node(name)
    for name in ("svm0", "ts_aisle", "upgrade", "sys", "vdec", "vpc", "pngd", "venc", "log_drv", "acodec", "ai", "ao", "vo", "hdmi")
]

FAMILIES = {
    "310": {
        "names": ["310", "MiniD"], "pci": ["d100"],
        "resource": "huawei.com/Ascend310", "device_prefix": "Ascend310-", "managers": _SERVER,
    },
    "310p": {
        "names": ["310P1", "310P3"], "pci": ["d500", "d501"],
        "resource": "huawei.com/Ascend310P", "device_prefix": "Ascend310P-", "managers": _SERVER,
    },
    "310b": {
        "names": ["310B", "310B1", "310B4"], "pci": ["d105", "d107"],
        "resource": "huawei.com/Ascend310", "device_prefix": "Ascend310-", "managers": _BOARD_310B,
    },
    "910": {
        "names": ["910A", "910B", "910ProA", "910ProB", "910PremiumA"], "pci": ["d801"],
        "resource": "huawei.com/Ascend910", "device_prefix": "Ascend910-", "managers": _SERVER,
    },
    "a2": {
        "names": ["910B1", "910B2", "910B2C", "910B3", "910B4", "910B4-1"], "pci": ["d802"],
        "resource": "huawei.com/Ascend910", "device_prefix": "Ascend910-", "managers": _SERVER,
    },
    "a3": {
        "names": ["Ascend910"], "pci": ["d803"],
        "resource": "huawei.com/Ascend910", "device_prefix": "Ascend910-", "managers": _SERVER,
    },
    "a5": {
        "names": ["Ascend950PR", "Ascend950DT"], "pci": ["d806"],
        "resource": "huawei.com/npu", "device_prefix": "npu-",
        "managers": [_node("davinci_manager", required=True), _node("hisi_hdc")], "folders": ["uburma", "ummu"],
    },
}

# Order matters. A bare "Ascend910" is what an A3 prints, a bare "910B" is a first-generation chip, not an A2. "I2" and "A2G" are the
# names of a build for the domestic market. A virtual chip has the name of its template behind the chip's.
_NAMES = [
    (re.compile(pattern + r"(?:[-_ ]?vir.*)?$"), key)
    for pattern, key in (
        (r"^Ascend ?910(?:[_C ]?93[0-9]*)?", "a3"),
        (r"^910_93[0-9]*", "a3"),
        (r"^(?:Ascend ?)?950[0-9A-Z]*(?:_[0-9A-Z]+)?", "a5"),
        (r"^(?:Ascend ?)?(?:910B[0-9][0-9A-Z]*(?:-[0-9])?|A2G[0-9A-Z]*)", "a2"),
        (r"^(?:Ascend ?)?910(?:A|B|ProA|ProB|PremiumA)?", "910"),
        (r"^(?:Ascend ?)?(?:310P[0-9]?|I2[0-9]*)", "310p"),
        (r"^(?:Ascend ?)?310B[0-9]*", "310b"),
        (r"^(?:(?:Ascend ?)?310|MiniD)", "310"),
    )
]
_BY_PCI = {device: key for key, family in FAMILIES.items() for device in family["pci"]}


def family_of_name(name):
    """Family key for a chip name of npu-smi or DCMI; None for a name that is masked, absent or unknown."""
    for pattern, key in _NAMES:
        if pattern.match((name or "").strip()):
            return key
    return None


def family_of_pci(device):
    """Family key for a PCI device id such as d802; None for an id that no package is known for."""
    return _BY_PCI.get((device or "").lower())


def device_id(family, phy_id):
    """The id of a chip towards Kubernetes, as the vendor's device plugin names it."""
    return "%s%d" % (FAMILIES[family]["device_prefix"], phy_id)


def backend_of(family):
    """Which kind of chips a family is of; None for a family that no table names."""
    return ASCEND if family in FAMILIES else ROCKCHIP if SOC.match(family or "") else None


def layers_of(family):
    """Components that there are for a family. Of an unknown one nothing is known to be missing."""
    return LAYERS[backend_of(family) or ASCEND]


def resource_of(family, stack=None):
    """Extended resource name of a family; None for an unknown one. ``stack`` is a Rockchip chip's: mainline's driver cannot run what is
    made for the vendor's runtime, so it has a resource of its own."""
    if backend_of(family) == ROCKCHIP:
        return "rockchip.com/rocket" if stack == ROCKET else "rockchip.com/rknpu"
    return FAMILIES[family]["resource"] if family in FAMILIES else None
