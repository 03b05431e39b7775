# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gates that a node must pass before it may take work. Private to the collection.

`judge` is pure: observation, pins and what the looks saw in, verdicts out. The looks are in `_gates_run.py`.
"""

from ansible_collections.npu.fleet.plugins.module_utils import _gates_admission, _gates_plugin
from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import engine_of
from ansible_collections.npu.fleet.plugins.module_utils._gates_container import words
from ansible_collections.npu.fleet.plugins.module_utils._gates_verdict import BOARD_HINTS, GATES, blocked, check, verdict_of
from ansible_collections.npu.fleet.plugins.module_utils._hardware._health import DEFAULT_LEVEL, fit
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import compare

#: The backend of boards with an NPU in their SoC.
BOARD = "rockchip"


def same_version(left, right):
    """Whether two version texts mean the same version (24.1.RC1 and 24.1.rc1 do); None equals nothing."""
    return bool(left) and bool(right) and compare(left, right) == 0


def _host_checks(npu, wanted):
    yield check("npu present", npu["present"], "%d chip(s)" % len(npu["chips"]))
    lost = sorted(set(wanted.get("seen_before") or []) - {c["pci_address"] for c in npu["chips"]})
    yield check("no chip lost", not lost, "gone since this run began: %s" % ", ".join(lost) if lost else "all that this run began with")
    expected, number = wanted.get("chips") or 0, len(npu["chips"])
    yield check("number of chips", expected in (0, number), "%d, expected %s" % (number, expected or "any"))
    yield check("one chip family", npu["family"] is not None, npu["family"] or ", ".join(npu["families"]) or "none")
    running = npu.get("running_packages") or []
    yield check("no package runs", not running, ", ".join(running) or "none")
    yield check("no reboot pending", not npu["reboot_required"], "; ".join(npu["reboot_reasons"]) or "nothing pending")
    if wanted.get("runtime"):
        engine, why = engine_of(npu["engines"], wanted.get("engine", "auto"))
        yield check("container engine", engine and engine["active"],
                    "%s %s" % (engine["name"], engine.get("error") or "active") if engine else why)


def _driver_checks(npu, wanted, plugin):
    query = npu["query"]
    error = query.get("error") or {}
    yield check("driver answers", query["ok"], "by %s" % query["source"] if query["ok"] else error.get("message", "no answer"))
    for component, version in sorted(wanted["versions"].items()):
        seen = npu["components"].get(component) or {"state": "absent", "version": None}
        detail = "pinned %s, on disk %s (%s)" % (version, seen["version"], seen["state"])
        good = seen["state"] == "present" and same_version(seen["version"], version)
        if component in ("driver", "firmware"):
            running = npu["versions"][component]["running"]
            detail += ", running %s" % running
            good = good and same_version(running, version)
        yield check(component, good, detail)
    # The NPU of an SoC is on no PCI bus (None); what is only not known of a card is missing.
    board = npu.get("backend") == BOARD
    dark = [c["pci_address"] or c["name"] or "a chip" for c in npu["chips"]
            if not all(there for kind, there in c["evidence"].items() if not (board and kind == "pci"))]
    yield check("every chip has driver and node", npu["chips"] and not dark,
                "missing on %s" % ", ".join(dark) if dark else "%d chips" % len(npu["chips"]))
    level = wanted.get("unhealthy_from", DEFAULT_LEVEL)
    known = _gates_plugin.harmless(npu["chips"], (plugin or {}).get("status"), level)
    odd = ["%s %s%s" % (
        c["device_node"] or c["pci_address"] or c["name"], c["health"],
        " (by fault codes that the plugin knows as harmless: %s)" % ", ".join(map(str, c["error_codes"])) if place in known else "",
    ) for place, c in enumerate(npu["chips"]) if c["health"] != "OK"]
    unfit = sum(not fit(c["health"], level) and place not in known for place, c in enumerate(npu["chips"]))
    yield check("chip health", unfit <= wanted.get("unhealthy_allowed", 0), ", ".join(odd) or "all OK")


def _container_checks(npu, wanted, probe):
    """From the rows of `_gates_container.probe`: what started, what it saw, what was refused."""
    engine, why = engine_of(npu["engines"], wanted.get("engine", "auto"))
    runtime = wanted.get("runtime")
    if engine is None:
        yield check("engine knows the runtime", False, why)
        return
    if runtime:
        yield _runtime_check(engine, runtime)
    rows = probe.get("rows") or []
    good = [row for row in rows if row["expected"] is not None]
    if probe.get("error") or not good:
        yield check("container starts", False, probe.get("error") or "no container was tried")
    else:
        still = [row for row in good if row["seen"] is None]
        yield check("container starts", not still, _told(still, probe.get("log"), "%s of %s, %s" % (
            "runtime %s" % runtime if runtime else "its own runtime", engine["name"],
            "%d requests" % len(rows) if probe["whole"] else "1 request; nothing changed since all passed")))
        other = [row for row in good if row["seen"] is not None and not row["passed"]]
        yield check("container sees exactly what it asked for", not other, _told(other, None, "; ".join(words(row) for row in good[:2])))
        wrong = [row for row in rows if row["expected"] is None]
        if wrong:
            taken = [row for row in wrong if not row["passed"]]
            yield check("wrong requests are refused", not taken, _told(taken, None, ", ".join(row["value"] for row in wrong)))
    left = probe.get("left") or []
    yield check("no container is left", not left, ", ".join(left) or "all removed")


def _runtime_check(engine, runtime):
    # A CRI that does not tell its handlers leaves only what the file says.
    known = sorted(engine.get("runtimes") or (engine.get("configured") or {}).get("runtimes") or {})
    # What kubelet asks for is a handler; docker has none.
    handlers = engine.get("handlers") or known
    told = "" if runtime in handlers else "; CRI lists the handlers %s" % ", ".join(handlers) if known else ""
    return check("engine knows the runtime", runtime in known and runtime in handlers,
                 "%s has %s%s" % (engine["name"], ", ".join(known) or engine.get("error") or "none", told))


def _told(rows, log, otherwise):
    if not rows:
        return otherwise
    told = "; ".join(words(row) for row in rows[:4]) + ("; and %d more" % (len(rows) - 4) if len(rows) > 4 else "")
    return told + (" (the runtime's log: %s)" % " / ".join(log.splitlines()) if log else "")


def _named(rows):
    return [check(*row) for row in rows]


def checks_of(gate, npu, wanted, *, container=None, plugin=None, pod=None):
    """The checks of one gate. Pure."""
    of = {
        "L0": lambda: _host_checks(npu, wanted),
        "L1": lambda: _driver_checks(npu, wanted, plugin),
        "L2": lambda: _container_checks(npu, wanted, container or {"error": "no container was tried"}),
        "L3": lambda: _named(_gates_plugin.checks(npu, wanted, plugin or {"error": "the plugin was not asked"})),
        "L4": lambda: _named(_gates_admission.checks(pod)),
    }
    checks = list(of[gate]())
    if npu.get("backend") == BOARD:
        checks = [dict(one, hint=BOARD_HINTS[one["name"]]) if one["name"] in BOARD_HINTS else one for one in checks]
    return checks


def judge(npu, wanted, *, container=None, plugin=None, pod=None):
    """Verdicts of the gates named in ``wanted["gates"]``, see `verdict_of`.

    ``npu``: as npu_info returns it. ``wanted``: ``{"gates": ["L0"...], "versions": {component: version}, "runtime": name or None,
    "engine": name or "auto", "unhealthy_allowed": int, "unhealthy_from": level, "chips": expected number or 0,
    "seen_before": [PCI address]}``. What the looks of `_gates_run.py` saw: ``container``, ``plugin``, ``pod``.
    A gate after a failed one is judged too, so that an operator sees everything at once, but for those that BLOCKS names.
    """
    verdicts = []
    for gate, _name in GATES:
        if gate in wanted["gates"]:
            why = blocked(gate, verdicts) or ((pod or {"why": "no pod was tried"}).get("why") if gate == "L4" else None)
            checks = [] if why else checks_of(gate, npu, wanted, container=container, plugin=plugin, pod=pod)
            verdicts.append(verdict_of(gate, checks, why=why))
    return verdicts
