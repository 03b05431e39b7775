# SPDX-License-Identifier: GPL-3.0-or-later
"""Hardware that a simulated node can be: ids, names and places of the chips. Sources stand beside the values (README.md, last table).

A card is a slot; a chip is what has a logic id, a node /dev/davinciN and a health. "layout" is the shape of npu-smi's table.
"""

from __future__ import annotations

import hashlib
from typing import Any

HUAWEI = "0x19e5"
#: Vendors under which the open driver binds 310P and 910B too (devdrv_adapt.c): cards of other makers.
VENDORS = (HUAWEI, "0x20c6", "0x203f", "0x20e9")

# Bus addresses in logic order: npu-smi of an eight-chip 910B3 server (vllm-project/vllm-ascend issue 6512), of a sixteen-die A3 server
# with driver 25.0.rc1 and of a server with four 300I Duo cards with 25.5.1 (both public reports).
A2_BUSES = ("c1", "c2", "81", "82", "01", "02", "41", "42")
A3_BUSES = ("9d", "9f", "99", "9b", "95", "97", "91", "93", "8d", "8f", "89", "8b", "85", "87", "81", "83")
PCIE_BUSES = ("01", "02", "81", "82")
# npu-smi of an eight-chip 910ProB server (public report).
A800_BUSES = ("c1", "81", "41", "01", "c2", "82", "42", "02")


#: Nodes beside the chips; the second list is what 310B boards have more (mounts of the vendor's ascend-docker-runtime).
SERVER_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
BOARD_NODES = (
    "davinci_manager_docker", "svm0", "ts_aisle", "upgrade", "sys", "vdec", "vpc", "pngd", "venc", "log_drv", "acodec", "ai", "ao", "vo",
    "hdmi",
)  # fmt: skip


def _pci(device: str, sub_vendor: str, sub_device: str) -> dict[str, str]:
    return {"vendor": HUAWEI, "device": device, "subsystem_vendor": sub_vendor, "subsystem_device": sub_device}


#: Ascend 310 answers no call about events (dcmi_fault_manage_intf.c of the open driver) or virtual devices.
_NO_EVENTS = ["subscribe_fault_event", "get_device_info"]
#: DCMI calls that a chip without own power sensor, or without HBM, answers with -8255; "mcu" is where 310P cards measure (DCMI manuals).
_NO_HBM = ["get_device_network_health"]
_CARDS_310P = {
    "server": "Simulated server",
    "board_id": 0xC8,
    "name": "310P3",
    "layout": "cards",
    "power_on": "card",
    "aicore_count": 8,
    "topo": {"other": 2},
    "unsupported": ["get_device_power_info", *_NO_HBM],
}

# Board ids: source tables of the open driver. PCI ids: processing table of the vendor's ascend-deployer 26.0.0.
PRODUCTS: dict[str, dict[str, Any]] = {
    "310": {
        "product": "Atlas 300I (Model 3000)",
        "server": "Simulated server",
        "board_id": 0x1,
        "pci": _pci("0xd100", "0x0200", "0x0100"),
        "name": "310",
        "layout": "cards",
        "chips_per_card": 4,
        "buses": ("01", "02", "03", "04", "81", "82", "83", "84"),
        "aicore_count": 2,
        "topo": {"other": 2},
        "unsupported": [*_NO_HBM, *_NO_EVENTS],
        "ddr_total_mib": 8192,
        "default": 4,
    },
    "910": {
        "product": "Atlas 800 (Model 9000)",
        "board_id": 0x2,
        "pci": _pci("0xd801", "0x0200", "0x0100"),
        "name": "910A",
        "buses": A800_BUSES,
        "aicore_count": 32,
        # HCCS joins the chips of a ring of four; 1 = across the processors
        "topo": {"other": 3, "ring": 4, "rings": 1},
        "hbm_total_mib": 32768,
        "ddr_total_mib": 15665,
        "default": 8,
    },
    "a5": {
        "product": "Atlas 350",
        "server": "Simulated server",
        "api": "v2",
        "board_id": 0x68,
        "pci": _pci("0xd806", HUAWEI, "0x4004"),
        "name": "Ascend950PR",
        "managers": ("davinci_manager", "hisi_hdc"),
        "aicore_count": 32,
        "topo": {"other": 8},
        "unsupported": ["get_device_info"],
        "buses": PCIE_BUSES,
        "hbm_total_mib": 114688,
        "default": 4,
    },
    "a2": {
        "product": "Atlas 800T A2",
        "board_id": 0x30,
        "pci": _pci("0xd802", HUAWEI, "0x3000"),
        "name": "910B3",
        "buses": A2_BUSES,
        "hbm_total_mib": 65536,
        "default": 8,
    },
    "a3": {
        "product": "Atlas 800I A3",
        "board_id": 0xB0,
        "pci": _pci("0xd803", HUAWEI, "0x3003"),
        "name": "Ascend910",
        "chips_per_card": 2,
        "layout": "dies",
        "power_on": "first",
        "aicore_count": 24,
        # 6 = SIO between the two dies of a card, 7 = HCCS through a switch (DCMI header; npu-smi info -t topo of an A3)
        "topo": {"card": 6, "other": 7},
        "buses": A3_BUSES,
        "hbm_total_mib": 65536,
        "default": 16,
    },
    "310p": {
        **_CARDS_310P,
        "product": "Atlas 300I Pro",
        "pci": _pci("0xd500", "0x0200", "0x0100"),
        "cards": (1, 2, 4, 5),
        "buses": PCIE_BUSES,
        "ddr_total_mib": 44280,
        "default": 4,
    },
    "310p-duo": {
        **_CARDS_310P,
        "product": "Atlas 300I Duo",
        "board_id": 0x97,
        "pci": _pci("0xd500", "0x0200", "0x0110"),
        "cards": (1, 2, 4, 5),
        "chips_per_card": 2,
        # Both chips of a card are behind one PCI function and show one Bus-Id.
        "buses": tuple(bus for bus in PCIE_BUSES for _ in range(2)),
        "ddr_total_mib": 44280,
        "default": 8,
    },
    "310b": {
        "product": "Atlas 200I A2",
        "server": "Simulated server",
        "board_id": 0x42,
        "pci": _pci("0xd105", "0x0200", "0x0100"),
        "name": "310B4",
        "layout": "cards",
        "mcu": False,
        "managers": (*SERVER_NODES, *BOARD_NODES),
        "aicore_count": 1,
        "topo": {"other": 2},
        "unsupported": _NO_HBM,
        "buses": PCIE_BUSES,
        "ddr_total_mib": 3514,
        "default": 1,
    },
}


def place(kind: dict[str, Any], index: int) -> tuple[int, int]:
    """Card id and id inside the card of the chip with this logic id. Cards have slot numbers, with gaps where a slot is wide."""
    card, inside = divmod(index, kind.get("chips_per_card", 1))
    return (kind["cards"][card] if "cards" in kind else card), inside


class StateError(Exception):
    """A request that the state cannot follow, in words."""


def initial(product: str = "a2", chips: int | None = None, firmware: str = "7.3.0.1.231", vendor: str | None = None) -> dict[str, Any]:
    """A node as it comes from the factory: chips with firmware, no driver."""
    kind = PRODUCTS[product]
    chips = kind["default"] if chips is None else chips
    per_card = kind.get("chips_per_card", 1)
    if not 0 <= chips <= len(kind["buses"]) or chips % per_card:
        step = f", {per_card} on each card" if per_card > 1 else ""
        raise StateError(f"product {product} has 0 to {len(kind['buses'])} chips{step}, not {chips}")
    if vendor not in (None, *VENDORS):
        raise StateError(f"PCI vendor {vendor} makes no such cards; known: {', '.join(VENDORS)}")
    return {
        "schema": 1,
        "api": kind.get("api", "v1"),
        "generation": 0,
        "node": None,
        "time_scale": 0.01,
        "product": kind["product"],
        "server": kind.get("server", kind["product"]),
        "virtual": False,
        "hw_base_version": 0,
        "board_id": kind["board_id"],
        "layout": kind.get("layout", "server"),
        "mcu": kind.get("mcu", True),
        "managers": list(kind.get("managers", SERVER_NODES)),
        "topo": dict(kind.get("topo", {"other": 3})),
        "unsupported": list(kind.get("unsupported", [])),
        "pci": dict(kind["pci"], **({"vendor": vendor} if vendor else {})),
        "kernel": {
            "driver_loaded": False,
            "driver_version": None,
            "modules": [],
            "node_mode": "0660",
            "node_owner": "HwHiAiUser",
            "node_group": "HwHiAiUser",
            "npu_nodes_appear": True,
            "driver_dead": False,
            "boot_id": None,
        },
        "package": {"pause_at": None},
        "chips": [_chip(kind, index, firmware) for index in range(chips)],
        "error_texts": {},
        "behaviour": {"npu_smi": "ok", "dcmi": "ok"},
    }


def _chip(kind: dict[str, Any], index: int, firmware: str) -> dict[str, Any]:
    card, inside = place(kind, index)
    numa = int(index >= len(kind["buses"]) // 2)
    hbm = kind.get("hbm_total_mib", 0)
    memory = {"hbm_used_mib": 3400 + index, "hbm_total_mib": hbm} if hbm else {"hbm_used_mib": 0, "hbm_total_mib": 0}
    if "ddr_total_mib" in kind:
        memory.update(ddr_used_mib=1300 + index, ddr_total_mib=kind["ddr_total_mib"])
    # A3 measures the power of a card at its first die, 310P cards at the card's own controller.
    measured = {"card": False, "first": inside == 0}.get(kind.get("power_on", ""), True)
    return {
        "card_id": card,
        "device_id": inside,
        "phy_id": index,
        "name": kind["name"],
        "pci_address": f"0000:{kind['buses'][index]}:00.0",
        "numa_node": numa,
        "affinity_cpu": "0-47" if numa == 0 else "48-95",
        "serial": "",
        "vdie": [],
        "ndie": [],
        "present": True,
        "health": 0,
        "error_codes": [],
        "temperature_c": 34 + index % 4,
        "power_w": 89.5 + index if measured else None,
        "aicore_percent": 0,
        **memory,
        **({"aicore_count": kind["aicore_count"]} if "aicore_count" in kind else {}),
        "firmware_flash": firmware,
        "firmware_running": firmware,
        "processes": [],
    }


def personalise(state: dict[str, Any], node: str) -> None:
    """Serial numbers and die ids of this node: stable for a node name, different between nodes. Filled in once."""
    if state.get("node"):
        return
    state["node"] = node
    for index, chip in enumerate(state["chips"]):
        card = hashlib.sha256(f"{node}/{chip['card_id']}".encode()).hexdigest()
        digest = hashlib.sha256(f"{node}/{index}".encode()).hexdigest()
        words = [f"0x{digest[at : at + 8].upper()}" for at in range(0, 64, 8)]
        chip["serial"] = chip.get("serial") or "SIM" + card[40:57].upper()  # of the card: its chips share it
        chip["vdie"] = chip.get("vdie") or words[:5]
        chip["ndie"] = chip.get("ndie") or words[3:]
