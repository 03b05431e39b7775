# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts of the gates, and how an operator reads them. Pure. Private to the collection."""

#: Gate, what it proves. L5 (a baseline of speed) is not part of this release.
GATES = (("L0", "host"), ("L1", "driver"), ("L2", "container"), ("L3", "plugin"), ("L4", "pod"))

#: How the names of a board's device nodes begin below /dev, by the drivers that `_rknpu.py` knows.
BOARD_KINDS = ("dri/", "accel/", "rknpu")

#: A check that did not pass, the gates that make no sense then, and why. The rest is judged all the same: an operator sees all at once.
BLOCKS = (
    ("npu present", ("L1", "L2", "L3", "L4"), "there is no NPU to look at"),
    ("no package runs", ("L2", "L4"), "no container is started while a package is at work"),
    ("container engine", ("L2", "L4"), "no container engine is there to start one"),
    ("agent runs", ("L4",), "no plugin is there to ask"),
    ("plugin ready", ("L4",), "no plugin is there to ask"),
    ("registered with the kubelet", ("L4",), "kubelet does not know the plugin"),
)

#: What an operator does about a check that did not pass, by its name. A component that has no line of its own has COMPONENT_HINT.
HINTS = {
    "npu present": "`lspci -nn -d 19e5:` on the node shows what the PCI bus has.",
    "no chip lost": "`lspci -nn -d 19e5:` and `dmesg | grep -i -e aer -e devdrv` on the node; a power cycle may bring a chip back.",
    "number of chips": "Look for the missing ones with `lspci -nn -d 19e5:`, or set npu_fleet_chips to what the node really has.",
    "one chip family": "`lspci -nn -d 19e5:` shows the ids; a node with several families cannot be managed.",
    "no package runs": "Wait for its end; do not reboot or power off the node. Its log: /var/log/npu-fleet on the node.",
    "no reboot pending": "Run npu.fleet.site with npu_fleet_reboot: auto, or reboot the node.",
    "container engine": "Start it (`systemctl start docker`, `containerd` or the like), install one, or name it by npu_runtime_engine.",
    "driver answers": "`npu-smi info` and `dmesg | grep -i -e davinci -e devdrv` on the node tell more.",
    "firmware": "Run npu.fleet.site; firmware runs after a reboot. Logs: /var/log/npu-fleet on the node.",
    "every chip has driver and node": "`ls /dev/davinci*` and `dmesg | grep -i devdrv` on the node; a chip may come back after a reboot.",
    "chip health": "`npu-smi info` shows them; npu_verify_unhealthy_allowed: N lets the node work with N fewer.",
    "engine knows the runtime": "The role npu_runtime (--tags npu_runtime) registers it; `docker info` or `crictl info` shows it.",
    "container starts": "On the node: the runtime's logs in /var/log/ascend-docker-runtime, the engine's by `journalctl -u ENGINE -n 50`.",
    "container sees exactly what it asked for": "The runtime's logs on the node: /var/log/ascend-docker-runtime; `ls -l /dev/davinci*`.",
    "wrong requests are refused": "Is the program really the vendor's runtime? Its logs on the node: /var/log/ascend-docker-runtime.",
    "no container is left": "`docker ps -a --filter label=npu.fleet=gate` or `ctr -n npu-fleet-gate containers list` on the node.",
    "agent runs": "`journalctl -u npu-agent -n 50` on the node tells why (DaemonSet: `kubectl -n npu-fleet get pods -o wide`); "
                  "--tags npu_agent,npu_device_plugin brings it.",
    "plugin ready": "`journalctl -u npu-agent -n 50` on the node (DaemonSet: the log of its pod); npu_verify_agent_url must agree with the "
                    "agent's setting listen.",
    "registered with the kubelet": "`systemctl status kubelet` and `journalctl -u npu-agent -n 50` on the node tell why.",
    "plugin and driver agree": "`npu-smi info` and `/opt/npu-agent/current/bin/npu-agent discover` on the node show both sides.",
    "kubelet has the chips": "`journalctl -u npu-agent -u kubelet -n 50` on the node; `systemctl restart npu-agent` registers anew.",
    "plugin allocates": "`journalctl -u npu-agent -n 50` on the node tells what was refused; `ls -l /dev` shows which nodes there are.",
    "container gets what was allocated": "`ls -l /dev` on the node; the engine's log by `journalctl -u ENGINE -n 50`.",
    "in time": "Something hangs: `dmesg | tail` on the node. Where it is only slow, npu_verify_limits gives the gate more seconds.",
}
#: The same for the NPU of a board's SoC, which has no tools and no packages of its vendor.
BOARD_HINTS = {
    "npu present": "`ls /sys/bus/platform/devices` and `dmesg | grep -i -e rknpu -e rocket` on the node.",
    "no chip lost": "`dmesg | grep -i -e rknpu -e rocket` on the node.",
    "number of chips": "`dmesg | grep -i -e rknpu -e rocket` on the node, or set npu_fleet_chips to what the board really has.",
    "driver answers": "`dmesg | grep -i -e rknpu -e rocket` on the node: the NPU needs a kernel with its driver.",
    "every chip has driver and node": "`ls -l /dev/dri /dev/rknpu /dev/accel` and `dmesg | grep -i -e rknpu -e rocket` on the node.",
    "chip health": "`dmesg | grep -i -e rknpu -e rocket` on the node tells why its device node does not open.",
    "container starts": "The engine's log on the node: `journalctl -u ENGINE -n 50`.",
    "container sees exactly what it asked for": "`ls -l /dev/dri /dev/rknpu /dev/accel` on the node; `journalctl -u ENGINE -n 50`.",
    "plugin and driver agree": "`/opt/npu-agent/current/bin/npu-agent discover` on the node shows what the plugin sees.",
}
COMPONENT_HINT = "Run npu.fleet.site; logs of the packages: /var/log/npu-fleet on the node."


def check(name, passed, detail):
    """One check of a gate."""
    return {"name": name, "passed": bool(passed), "detail": detail}


def line_of(verdict, one):
    """One check that did not pass, for an operator: what was seen, and what to do about it."""
    return "%s %s: %s: %s. %s" % (verdict["gate"], verdict["name"], one["name"], one["detail"].rstrip("."),
                                  one.get("hint") or HINTS.get(one["name"], COMPONENT_HINT))


def failures(verdicts):
    """One line for each check that did not pass; those of the first gate that failed come first."""
    return [line_of(v, c) for v in verdicts for c in v["checks"] if not c["passed"]]


def first_failed(verdicts):
    """``{"gate", "name", "check", "reason"}`` of the first gate that did not pass, None where none failed."""
    for verdict in verdicts:
        for one in verdict["checks"]:
            if not one["passed"]:
                return {"gate": verdict["gate"], "name": verdict["name"], "check": one["name"], "reason": line_of(verdict, one)}
    return None


def summary(verdicts):
    """One line for a node: each gate with how it ended."""
    ends = {True: "passed", False: "failed", None: "not judged"}
    return ", ".join("%s %s%s" % (
        v["gate"], ends[v["passed"]], " (%s)" % v["why"] if v["why"] else " (by %s)" % v["by"] if v.get("by") else "") for v in verdicts)


def blocked(gate, verdicts):
    """Why a gate is not judged, by what has failed before it; None where it is."""
    failed = {one["name"] for verdict in verdicts for one in verdict["checks"] if not one["passed"]}
    return next((why for name, gates, why in BLOCKS if gate in gates and name in failed), None)


def verdict_of(gate, checks, *, why=None, **more):
    """``{"gate", "name", "passed" (None: not judged), "judged", "why", "checks", "seconds", "limit", "evidence"}``."""
    name = dict(GATES)[gate]
    passed = all(one["passed"] for one in checks) if why is None else None
    verdict = {"gate": gate, "name": name, "passed": passed, "judged": why is None, "why": why, "checks": checks,
               "seconds": None, "limit": None, "evidence": {}}
    return dict(verdict, **more)


def too_late(gate, looked, limit, what):
    """The verdict on a gate whose look had to be given up."""
    text = "%s was not over within %g s and was given up" % (what, limit)
    return verdict_of(gate, [check("in time", False, text)], seconds=round(looked.seconds, 1), limit=limit)
