# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates that a node must pass before it may take work. Private to the collection.

`judge` is pure: observation, pins and the two probes in, verdicts out. The looks from outside are `_gates_container.probe`, what
containers really see, and `probe_plugin`, what the plugin says of its stream to the kubelet.
"""

import json
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import engine_of
from ansible_collections.npu.fleet.plugins.module_utils._gates_container import words
from ansible_collections.npu.fleet.plugins.module_utils._hardware._health import DEFAULT_LEVEL, fit
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import compare

#: Gate, what it proves. L4 (a pod) and L5 (a baseline of speed) need a cluster and are not part of this release.
GATES = (("L0", "host"), ("L1", "driver"), ("L2", "container"), ("L3", "plugin"))

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
    "agent runs": "`journalctl -u npu-agent -n 50` on the node tells why; --tags npu_agent,npu_device_plugin brings it.",
    "plugin ready": "`journalctl -u npu-agent -n 50` on the node; npu_verify_agent_url must agree with the agent's setting listen.",
    "registered with the kubelet": "`systemctl status kubelet` and `journalctl -u npu-agent -n 50` on the node tell why.",
    "plugin and driver agree": "`npu-smi info` and `/opt/npu-agent/current/bin/npu-agent discover` on the node show both counts.",
}
COMPONENT_HINT = "Run npu.fleet.site; logs of the packages: /var/log/npu-fleet on the node."


def _check(name, passed, detail):
    return {"name": name, "passed": bool(passed), "detail": detail}


def same_version(left, right):
    """Whether two version texts mean the same version (24.1.RC1 and 24.1.rc1 do); None equals nothing."""
    return bool(left) and bool(right) and compare(left, right) == 0


def _host_checks(npu, wanted):
    yield _check("npu present", npu["present"], "%d PCI function(s)" % len(npu["chips"]))
    lost = sorted(set(wanted.get("seen_before") or []) - {c["pci_address"] for c in npu["chips"]})
    yield _check("no chip lost", not lost, "gone since this run began: %s" % ", ".join(lost) if lost else "all that this run began with")
    expected, number = wanted.get("chips") or 0, len(npu["chips"])
    yield _check("number of chips", expected in (0, number), "%d, expected %s" % (number, expected or "any"))
    yield _check("one chip family", npu["family"] is not None, npu["family"] or ", ".join(npu["families"]) or "none")
    running = npu.get("running_packages") or []
    yield _check("no package runs", not running, ", ".join(running) or "none")
    yield _check("no reboot pending", not npu["reboot_required"], "; ".join(npu["reboot_reasons"]) or "nothing pending")
    if wanted.get("runtime"):
        engine, why = engine_of(npu["engines"], wanted.get("engine", "auto"))
        yield _check("container engine", engine and engine["active"],
                     "%s %s" % (engine["name"], engine.get("error") or "active") if engine else why)


def _driver_checks(npu, wanted):
    query = npu["query"]
    error = query.get("error") or {}
    yield _check("driver answers", query["ok"], "by %s" % query["source"] if query["ok"] else error.get("message", "no answer"))
    for component, version in sorted(wanted["versions"].items()):
        seen = npu["components"].get(component) or {"state": "absent", "version": None}
        detail = "pinned %s, on disk %s (%s)" % (version, seen["version"], seen["state"])
        good = seen["state"] == "present" and same_version(seen["version"], version)
        if component in ("driver", "firmware"):
            running = npu["versions"][component]["running"]
            detail += ", running %s" % running
            good = good and same_version(running, version)
        yield _check(component, good, detail)
    dark = [c["pci_address"] for c in npu["chips"] if not all(c["evidence"].values())]
    yield _check("every chip has driver and node", npu["chips"] and not dark,
                 "missing on %s" % ", ".join(dark) if dark else "%d chips" % len(npu["chips"]))
    odd = ["%s %s" % (c["device_node"] or c["pci_address"], c["health"]) for c in npu["chips"] if c["health"] != "OK"]
    unfit = len(npu["chips"]) - _fit_chips(npu, wanted)
    yield _check("chip health", unfit <= wanted.get("unhealthy_allowed", 0), ", ".join(odd) or "all OK")


def _fit_chips(npu, wanted):
    """How many chips may take work, by the same levels as the agent's."""
    return sum(fit(c["health"], wanted.get("unhealthy_from", DEFAULT_LEVEL)) for c in npu["chips"])


def _container_checks(npu, wanted, probe):
    """From the rows of `_gates_container.probe`: what started, what it saw, what was refused."""
    engine, why = engine_of(npu["engines"], wanted.get("engine", "auto"))
    runtime = wanted.get("runtime")
    if engine is None:
        yield _check("engine knows the runtime", False, why)
        return
    # A CRI that does not tell its handlers leaves only what the file says.
    known = sorted(engine.get("runtimes") or (engine.get("configured") or {}).get("runtimes") or {})
    # What kubelet asks for is a handler; docker has none.
    handlers = engine.get("handlers") or known
    told = "" if runtime in handlers else "; CRI lists the handlers %s" % ", ".join(handlers) if known else ""
    yield _check("engine knows the runtime", runtime in known and runtime in handlers,
                 "%s has %s%s" % (engine["name"], ", ".join(known) or engine.get("error") or "none", told))
    rows = probe.get("rows") or []
    good = [row for row in rows if row["expected"] is not None]
    if probe.get("error") or not good:
        yield _check("container starts", False, probe.get("error") or "no container was tried")
    else:
        still = [row for row in good if row["seen"] is None]
        yield _check("container starts", not still, _told(still, probe.get("log"), "runtime %s of %s, %s" % (
            runtime, engine["name"], "%d requests" % len(rows) if probe["whole"] else "1 request; nothing changed since all passed")))
        other = [row for row in good if row["seen"] is not None and not row["passed"]]
        yield _check("container sees exactly what it asked for", not other, _told(other, None, "; ".join(words(row) for row in good[:2])))
        wrong = [row for row in rows if row["expected"] is None]
        if wrong:
            taken = [row for row in wrong if not row["passed"]]
            yield _check("wrong requests are refused", not taken, _told(taken, None, ", ".join(row["value"] for row in wrong)))
    left = probe.get("left") or []
    yield _check("no container is left", not left, ", ".join(left) or "all removed")


def _told(rows, log, otherwise):
    if not rows:
        return otherwise
    told = "; ".join(words(row) for row in rows[:4]) + ("; and %d more" % (len(rows) - 4) if len(rows) > 4 else "")
    return told + (" (the runtime's log: %s)" % " / ".join(log.splitlines()) if log else "")


def _plugin_checks(npu, wanted, probe):
    agent = npu["agent"]
    yield _check("agent runs", agent["active"], "version %s" % agent["version"] if agent["active"] else "npu-agent.service is not active")
    if probe.get("error"):
        yield _check("plugin ready", False, probe["error"])
        return
    status = probe["status"]
    yield _check("registered with the kubelet", status.get("registered") and status.get("stream_open"),
                 "%s, %s" % (status.get("resource"), "; ".join(status.get("reasons") or []) or "kubelet listens"))
    healthy = _fit_chips(npu, wanted)
    yield _check("plugin and driver agree", status.get("healthy") == healthy and status.get("total") == len(npu["chips"]),
                 "plugin %s of %s healthy, driver %d of %d" % (status.get("healthy"), status.get("total"), healthy, len(npu["chips"])))


def failures(verdicts):
    """One line for each check that did not pass, for an operator: what was seen, and what to do about it."""
    return [
        "%s %s: %s: %s. %s" % (v["gate"], v["name"], c["name"], c["detail"].rstrip("."), HINTS.get(c["name"], COMPONENT_HINT))
        for v in verdicts for c in v["checks"] if not c["passed"]
    ]


def judge(npu, wanted, container=None, plugin=None):
    """Verdicts of the gates named in ``wanted["gates"]``.

    ``npu``: as npu_info returns it. ``wanted``: ``{"gates": ["L0"...], "versions": {component: version}, "runtime": name or None,
    "engine": name or "auto", "unhealthy_allowed": int, "unhealthy_from": level, "chips": expected number or 0,
    "seen_before": [PCI address]}``.
    ``container``: as `_gates_container.probe` returns it; ``plugin``: as `probe_plugin` does. Returns a list of
    ``{"gate", "name", "passed", "checks": [{"name", "passed", "detail"}]}``; a gate after a failed one is judged too, so that an
    operator sees everything at once.
    """
    of = {
        "L0": lambda: _host_checks(npu, wanted),
        "L1": lambda: _driver_checks(npu, wanted),
        "L2": lambda: _container_checks(npu, wanted, container or {"error": "no container was tried"}),
        "L3": lambda: _plugin_checks(npu, wanted, plugin or {"error": "the plugin was not asked"}),
    }
    verdicts = []
    for gate, name in GATES:
        if gate in wanted["gates"]:
            checks = list(of[gate]())
            verdicts.append({"gate": gate, "name": name, "passed": all(c["passed"] for c in checks), "checks": checks})
    return verdicts


def probe_plugin(url, timeout=5):
    """What the agent's /readyz says, ready or not: ``{"status": {...}}`` or ``{"error": text}``. Never through a proxy."""
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            body = answer.read()
    except HTTPError as error:
        body = error.read()  # 503 with the reasons in its body
    except (OSError, ValueError) as error:
        return {"error": "%s does not answer: %s" % (url, error)}
    try:
        return {"status": json.loads(body.decode("utf-8"))}
    except ValueError:
        return {"error": "%s answered something that is not JSON" % url}
