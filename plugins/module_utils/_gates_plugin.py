# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L3: what the plugin says of its chips, held against the driver and against kubelet, chip by chip. Private to the collection.

The driver's own word for a chip is the worst of what its fault codes stand for; the plugin goes by the codes, and knows which of them are
harmless. So the two may differ and both be right: a difference that a code explains is no failure, any other is one, with the reason.
"""

import ctypes
import json
import os
import re
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import ProxyHandler, build_opener

from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import within
from ansible_collections.npu.fleet.plugins.module_utils._hardware._health import DEFAULT_LEVEL, fit
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import listed, read

#: A resource of the agent's own, by which its pod has the driver's nodes; who serves it has no chips.
ACCESS = "npu.fleet/agent"
USUAL = "/var/lib/kubelet/device-plugins"
#: The number of the chip at the end of an id (`Ascend910-3`, `Ascend910-2c.1cpu-100-3`, `npu-rk3588-0`).
_NUMBER = re.compile(r"-([0-9]+)$")
#: A reason of the plugin that is about one chip: "ID: words".
_ABOUT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*-[0-9]+): (.+)$", re.DOTALL)


# --- the look ------------------------------------------------------------------------------------------------------------

def ask_agent(url, timeout=5):
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
        status = json.loads(body.decode("utf-8"))
    except ValueError:
        status = None
    if not isinstance(status, dict):
        return {"error": "%s answered something that is not JSON" % url}
    return {"status": status}


def node_url(url):
    """Where the same agent tells of its node: /node beside /readyz."""
    return urlunsplit(urlsplit(url)._replace(path="/node", query=""))


def probe_plugin(url, kubelet_dir, timeout=5):
    """`ask_agent` of /readyz, with ``node``: what /node says, None where this agent does not tell.

    In DaemonSet mode the agent is in the network of its pod. Where nobody answers here, it is asked there.
    """
    answer = ask_both(url, timeout)
    for pid in agents_in_pods(kubelet_dir) if "error" in answer else ():
        found = within(3.0 * timeout, lambda pid=pid: ask_in_pod(pid, url, timeout)).value
        if found and "error" not in found and found["status"].get("resource") != ACCESS:
            return found
    return answer


def ask_both(url, timeout):
    """/readyz and /node of one agent."""
    answer = ask_agent(url, timeout)
    if "error" in answer:
        return answer
    node = ask_agent(node_url(url), timeout).get("status")
    return dict(answer, node=node if node and "chip_names" in node else None)


def agents_in_pods(kubelet_dir, proc_root="/proc"):
    """Numbers of the processes `npu-agent serve` that have another network than ours, and the folder of our kubelet: an agent of another
    cluster on this machine (kind, a test node) has another one."""
    found, own, place = [], _network(proc_root, "self"), os.path.join(kubelet_dir, "device-plugins")
    for name in listed(proc_root):
        words = (read(os.path.join(proc_root, name, "cmdline")) or "").split("\0") if name.isdigit() else []
        called = [one for one, then in zip(words, words[1:]) if one.endswith("/npu-agent") and then == "serve"]
        if not called or _network(proc_root, name) in (None, own):
            continue
        # In the pod it has its usual name, wherever it is here.
        if any(_same_folder(place, os.path.join(proc_root, name, "root", one[1:])) for one in (place, USUAL)):
            found.append(int(name))
    return sorted(found)


def _same_folder(one, other):
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _network(proc_root, name):
    try:
        return os.readlink(os.path.join(proc_root, name, "ns", "net"))
    except OSError:
        return None


def ask_in_pod(pid, url, timeout):
    """`ask_both` from within the network of a process. Only for a process of its own: it does not come back from there."""
    network = os.open("/proc/%d/ns/net" % pid, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # os.setns is there since Python 3.12.
        if ctypes.CDLL(None, use_errno=True).setns(network, 0) != 0:
            return {"error": "the network of process %d cannot be entered: %s" % (pid, os.strerror(ctypes.get_errno()))}
    finally:
        os.close(network)
    return ask_both(url, timeout)


# --- chip by chip --------------------------------------------------------------------------------------------------------

def unfit_of(status):
    """{id of a chip: why the plugin does not offer it}."""
    found = {}
    for text in [reason for resource in status.get("resources") or [{}] for reason in resource.get("reasons") or []] \
            or status.get("reasons") or []:
        match = _ABOUT.match(text)
        if match:
            found[match.group(1)] = match.group(2)
    return found


def number_of(one):
    match = _NUMBER.search(one)
    return int(match.group(1)) if match else None


def own_number(chip):
    """The number that ids carry: the physical one; of an SoC's NPU, which has none, its place."""
    return chip["phy_id"] if chip["phy_id"] is not None else chip["logic_id"]


def name_of(chip):
    return chip.get("device_node") or chip.get("pci_address") or "chip %s" % chip.get("phy_id")


def compare(chips, status, unhealthy_from=DEFAULT_LEVEL):
    """``{"wrong": [texts], "explained": [texts], "unfit": n, "differ": n}``: what plugin and driver say of chips that take no work. Pure.

    ``chips``: as npu_info has them; ``status``: of /readyz. ``unfit``: how many take no work, by either; ``differ``: how many of them the
    driver calls fit.
    """
    told, out = unfit_of(status), (status.get("total") or 0) - (status.get("healthy") or 0)
    by_number = {}
    for one, why in sorted(told.items()):
        by_number.setdefault(number_of(one), []).append("%s: %s" % (one, why))
    # Chips that it counts as unfit without a reason that names them.
    nameless = max(0, out - len(by_number))
    wrong, explained, unfit, differ = [], [], set(), 0
    for place, chip in enumerate(chips):
        why = by_number.pop(own_number(chip), None)
        good = fit(chip["health"], unhealthy_from)
        if why:
            unfit.add(place)
            differ += good
            explained.append("%s: the driver calls it %s, the plugin does not offer it: %s" % (
                name_of(chip), chip["health"], "; ".join(why)))
        elif not good and nameless:
            nameless -= 1
            unfit.add(place)
        elif not good:
            codes = ", ".join(str(code) for code in chip.get("error_codes") or [])
            text = "%s: the driver calls it %s" % (name_of(chip), chip["health"])
            if codes:
                explained.append("%s, the plugin offers it: it goes by the fault codes %s, and calls them harmless" % (text, codes))
            else:
                unfit.add(place)
                wrong.append("%s and tells no fault code that would explain it, the plugin offers it" % text)
    explained += ["the plugin does not offer %s" % "; ".join(why) for unused, why in sorted(by_number.items())]
    if nameless:
        wrong.append("the plugin does not offer %d chip(s), and no reason of it names them" % nameless)
    return {"wrong": wrong, "explained": explained, "unfit": len(unfit) + len(by_number), "differ": differ + len(by_number)}


def harmless(chips, status, unhealthy_from=DEFAULT_LEVEL):
    """Places of chips that the driver calls unfit and that the plugin offers all the same, by the codes that the driver tells of them."""
    if not status or status.get("total") != len(chips):
        return set()
    numbers = {number_of(one) for one in unfit_of(status)}
    bad = [(place, chip) for place, chip in enumerate(chips) if not fit(chip["health"], unhealthy_from)]
    found = {place for place, chip in bad if chip.get("error_codes") and own_number(chip) not in numbers}
    # Its own count has to bear that out: a reason that could not be read must not pass for a healthy chip.
    return found if status.get("healthy", 0) >= len(chips) - len(numbers) else set()


def checks(npu, wanted, probe):
    """Rows ``(name, passed, detail)`` of the gate. Pure. ``probe``: as `probe_plugin`, with ``kubelet`` as `_gates_kubelet.ask_kubelet`."""
    agent = npu["agent"]
    # In DaemonSet mode there is no unit, and who answers at the agent's address runs.
    runs = agent["active"] or (agent["unit_sha256"] is None and not probe.get("error"))
    yield ("agent runs", runs, "version %s" % (agent["version"] or (probe.get("status") or {}).get("version")) if runs
           else "npu-agent.service is not active")
    if probe.get("error"):
        yield "plugin ready", False, probe["error"]
        return
    status = probe["status"]
    yield ("registered with the kubelet", status.get("registered") and status.get("stream_open"),
           "%s, %s" % (status.get("resource"), "; ".join(status.get("reasons") or []) or "kubelet listens"))
    yield _agreement(npu["chips"], wanted, probe)
    told = _kubelet(status, probe)
    if told:
        yield told


def _agreement(chips, wanted, probe):
    status = probe["status"]
    level, allowed = wanted.get("unhealthy_from", DEFAULT_LEVEL), wanted.get("unhealthy_allowed", 0)
    seen = compare(chips, status, level)
    counts = "plugin %s of %s healthy, driver %d of %d" % (
        status.get("healthy"), status.get("total"), sum(fit(c["health"], level) for c in chips), len(chips))
    missing = ["%s is not among its chips" % name_of(c) for c in _missing(chips, status, probe.get("kubelet"))]
    known = status.get("healthy") is not None and status.get("total") is not None
    passed = known and status["total"] == len(chips) and not seen["wrong"] and (not seen["differ"] or seen["unfit"] <= allowed)
    return "plugin and driver agree", passed, "; ".join([counts] + missing + seen["wrong"] + seen["explained"])


def _missing(chips, status, kubelet):
    """Chips that the plugin does not have at all, by the ids that kubelet has of it and those that it calls unfit. Of shares and slices an
    id does not say enough."""
    if status.get("total") == len(chips) or not kubelet or kubelet["error"]:
        return []
    ids = [one for resource in status.get("resources") or [] for one in kubelet["allocatable"].get(resource["resource"], [])]
    if len(ids) != status.get("healthy"):
        return []
    offered = {number_of(one) for one in ids + list(unfit_of(status))}
    return [chip for chip in chips if own_number(chip) not in offered]


def _kubelet(status, probe):
    """Kubelet's own list against the plugin's count of each resource."""
    kubelet = probe.get("kubelet")
    if not kubelet:
        return None
    if kubelet["error"]:
        # Not each kubelet has it, and the plugin's stream is open; so this is said, and no failure.
        return "kubelet has the chips", True, "not compared: %s" % kubelet["error"]
    unfit, passed, words = unfit_of(status), True, []
    for resource in status.get("resources") or []:
        name, ids = resource["resource"], kubelet["allocatable"].get(resource["resource"], [])
        strange = [one for one in ids if one in unfit]
        good = len(ids) == resource["healthy"] and not strange
        passed = passed and good
        words.append("%s: kubelet %d, plugin %s" % (name, len(ids), resource["healthy"]) + (
            "; kubelet still has %s, which the plugin calls unfit" % ", ".join(strange) if strange else ""))
    return "kubelet has the chips", passed and bool(words), "; ".join(words) or "the plugin names no resource"
