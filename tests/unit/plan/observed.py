# SPDX-License-Identifier: GPL-3.0-or-later
"""Observations to plan and judge over: a converged node, and ways to spoil it."""

import copy


def chip(i, **changes):
    values = {
        "logic_id": i,
        "phy_id": i,
        "card_id": i,
        "device_id": 0,
        "pci_address": f"0000:c{i}:00.0",
        "pci_device": "d802",
        "numa_node": i // 4,
        "name": "910B3",
        "health": "OK",
        "device_node": f"/dev/davinci{i}",
        "firmware_version": "7.8.0.5.216",
        "serial": None,
        "evidence": {"pci": True, "driver": "devdrv_device_driver", "device_node": True},
    }
    return dict(values, **changes)


def component(version, state="present", running=None):
    return {"state": state, "version": version, "running": running, "path": "/usr/local/Ascend", "reason": None, "record": {}}


CONVERGED = {
    "hostname": "n1",
    "os": {"id": "debian", "version_id": "12", "pretty_name": "Debian 12"},
    "arch": "x86_64",
    "kernel": "6.1",
    "boot_id": "b",
    "python": "3.11.2",
    "present": True,
    "family": "a2",
    "families": ["a2"],
    "product": "Atlas 800T A2",
    "chips": [chip(i) for i in range(8)],
    "query": {"ok": True, "source": "dcmi", "error": None},
    "versions": {
        "driver": {"on_disk": "25.5.0", "running": "25.5.0"},
        "firmware": {"on_disk": "7.8.0.5.216", "running": "7.8.0.5.216", "per_chip": ["7.8.0.5.216"] * 8},
        "cann_toolkit": {"on_disk": "8.5.0"},
        "cann_kernels": {"on_disk": "8.5.0"},
        "docker_runtime": {"on_disk": "7.3.0"},
    },
    "components": {
        "driver": component("25.5.0", running="25.5.0"),
        "firmware": component("7.8.0.5.216", running="7.8.0.5.216"),
        "cann_toolkit": component("8.5.0"),
        "cann_kernels": component("8.5.0"),
        "cann_nnrt": component(None, "absent"),
        "nnal": component(None, "absent"),
        "docker_runtime": component("7.3.0"),
    },
    "engines": [
        {
            "name": "docker",
            "version": "20.10.24",
            "active": True,
            "config_path": "/etc/docker/daemon.json",
            "config_sha256": "x",
            "runtimes": {"runc": "runc", "ascend": "/opt/ascend-docker-runtime"},
            "default_runtime": "runc",
            "live_restore": False,
            "containers_running": 0,
            "configured": {"runtimes": {"ascend": "/opt/ascend-docker-runtime"}, "default_runtime": None, "error": None},
            "error": None,
        }
    ],
    "agent": {
        "version": "0.1.0",
        "archive_sha256": "a",
        "config_sha256": "c",
        "unit_sha256": "u",
        "active": True,
        "enabled": True,
        "started_after_files": True,
    },
    "holders": [],
    "users": {"HwHiAiUser": True},
    "running_packages": [],
    "reboot_required": False,
    "reboot_reasons": [],
}
WANTED = {
    "versions": {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "8.5.0", "docker_runtime": "7.3.0"},
    "checksums": {},
    "depot": "http://depot/",
    "allow_downgrade": False,
    "accept_licence": True,
    "runtime": {"engine": "auto", "name": "ascend", "path": "/opt/ascend-docker-runtime", "set_default": False},
}


def converged():
    return copy.deepcopy(CONVERGED)


def bare():
    """A server as it came: chips on the bus, nothing installed."""
    npu = converged()
    npu["chips"] = [
        chip(
            i,
            name=None,
            health=None,
            device_node=None,
            phy_id=None,
            firmware_version=None,
            evidence={"pci": True, "driver": None, "device_node": None},
        )
        for i in range(8)
    ]
    npu["query"] = {"ok": False, "source": None, "error": {"code": "npu_smi_missing", "message": "no npu-smi"}}
    npu["components"] = {name: component(None, "absent") for name in npu["components"]}
    npu["versions"] = {
        "driver": {"on_disk": None, "running": None},
        "firmware": {"on_disk": None, "running": None, "per_chip": []},
        "cann_toolkit": {"on_disk": None},
        "cann_kernels": {"on_disk": None},
        "docker_runtime": {"on_disk": None},
    }
    npu["engines"][0]["runtimes"] = {"runc": "runc"}
    npu["engines"][0]["configured"]["runtimes"] = {}
    return npu
