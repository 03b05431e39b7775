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
import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import ProxyHandler, build_opener

from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import within
from ansible_collections.npu.fleet.plugins.module_utils._hardware._health import DEFAULT_LEVEL, fit
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import listed, read

#: A resource of the agent's own, by which its pod has the driver's nodes; who serves it has no chips.
ACCESS = "npu.fleet/agent"
#: Bytes of an answer of the agent; one of 64 chips has some 20 kB.
MOST_BYTES = 4 << 20
#: How many pods with an agent are asked, and for how many seconds all together: a node has one or two.
MOST_PODS, PODS_SECONDS = 4, 15.0
#: The number of the chip at the end of an id (`Ascend910-3`, `Ascend910-2c.1cpu-100-3`, `npu-rk3588-0`).
_NUMBER = re.compile(r"-([0-9]+)$")
#: A reason of the plugin that is about one chip: "ID: words".
#: The id of a slice (vNPU): its kind, then the number of its node (`Ascend910-2c.1cpu-100-3`).
_SLICE = re.compile(r"-[0-9]+c[0-9a-z.]*-([0-9]+)-[0-9]+$")
_OCTAL = re.compile(r"\\([0-7]{3})")
_ABOUT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*-[0-9]+): (.+)$", re.DOTALL)


# --- the look ------------------------------------------------------------------------------------------------------------

def ask_agent(url, timeout=5):
    """What the agent's /readyz says, ready or not: ``{"status": {...}}`` or ``{"error": text}``. Never through a proxy."""
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            body = answer.read(MOST_BYTES)
    except HTTPError as refusal:
        try:
            body = refusal.read(MOST_BYTES)  # 503 with the reasons in its body
        except (OSError, ValueError, HTTPException) as error:
            return {"error": "%s breaks off its answer: %s" % (url, repr(error)[:200])}
    except HTTPException as error:
        return {"error": "%s answers no HTTP: %s" % (url, repr(error)[:200])}
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
    answer, until = ask_both(url, timeout), time.monotonic() + PODS_SECONDS
    for pid in agents_in_pods(kubelet_dir)[:MOST_PODS] if "error" in answer else ():
        left = until - time.monotonic()
        if left <= 0:
            break
        found = within(min(left, 3.0 * timeout), lambda pid=pid: ask_in_pod(pid, url, timeout)).value
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
    """Numbers of the processes `npu-agent serve`, one for each network but ours, that have the folder of our kubelet mounted.

    Anybody can call a process so. Only who may mount that folder can serve devices there, so the kernel is asked which file system and
    which folder of it is mounted; no path of a container is followed, whose links are its own. An agent of another cluster on this machine
    (kind, a test node) has another folder.
    """
    found, own, places = {}, _network(proc_root, "self"), folders_of(kubelet_dir, proc_root)
    for name in listed(proc_root):
        words = (read(os.path.join(proc_root, name, "cmdline")) or "").split("\0") if name.isdigit() else []
        called = [one for one, then in zip(words, words[1:]) if one.endswith("/npu-agent") and then == "serve"]
        network = _network(proc_root, name)
        if called and network not in (None, own) and not places.isdisjoint(_mounted(proc_root, name)):
            found.setdefault(network, int(name))
    return sorted(found.values())


def folders_of(kubelet_dir, proc_root="/proc"):
    """{(device, path on it)} of kubelet's folder for plugins, and of kubelet's own, as a mount of it shows in mountinfo."""
    found = set()
    for path in sorted({os.path.realpath(os.path.join(kubelet_dir, "device-plugins")), os.path.realpath(kubelet_dir)}):
        over = [one for one in mounts_of(proc_root, "self") if (path + "/").startswith(one[2].rstrip("/") + "/")]
        if os.path.isdir(path) and over:
            # The longest, and of several at one place the last one, which hides the others.
            device, root, point = max(enumerate(over), key=lambda one: (len(one[1][2].rstrip("/")), one[0]))[1]
            found.add((device, os.path.normpath(root + "/" + path[len(point.rstrip("/")):])))
    return found


def _mounted(proc_root, name):
    return {(device, root) for device, root, unused in mounts_of(proc_root, name)}


def mounts_of(proc_root, name):
    """[(device, path on it, where it is mounted)] of a process, in their order; proc(5) writes blanks in paths as octal numbers."""
    rows = [line.split(" ") for line in (read(os.path.join(proc_root, name, "mountinfo")) or "").splitlines()]
    return [(row[2], _unquoted(row[3]), _unquoted(row[4])) for row in rows if len(row) > 4]


def _unquoted(text):
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


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


def slices_of(probe, resource):
    """Numbers of the nodes of a resource's slices, None of one with whole chips. ``probe``: as `probe_plugin`, with ``kubelet``."""
    rows = [one for one in (probe.get("status") or {}).get("resources") or [] if one["resource"] == resource]
    ids = [device["id"] for one in rows for device in one.get("devices") or []]
    ids += ((probe.get("kubelet") or {}).get("allocatable") or {}).get(resource, [])
    found = [_SLICE.search(one) for one in ids]
    return sorted({int(match.group(1)) for match in found if match}) if any(found) else None


def own_number(chip):
    """The number that ids carry at first: the physical one; of an SoC's NPU, which has none, its place."""
    return chip["phy_id"] if chip["phy_id"] is not None else chip["logic_id"]


def places_of(chips, status):
    """{id of a chip or slice: its place among the driver's chips}, None where it is not among them.

    Ids stay with the hardware when the driver numbers anew, so their numbers say nothing. The agent tells which chip has which id; one
    that does not is of before. A board's NPU has no physical id and no PCI address.
    """
    devices = [one for resource in status.get("resources") or [] for one in resource.get("devices") or []]
    if not devices:
        ids = list(unfit_of(status))
        return {one: _place(chips, lambda chip, one=one: own_number(chip) == number_of(one)) for one in ids}
    found = {}
    for one in devices:
        for same in (
            lambda chip, one=one: one["phy_id"] is not None and chip["phy_id"] == one["phy_id"],
            lambda chip, one=one: one["phy_id"] is None and one["pci_address"] and chip["pci_address"] == one["pci_address"],
            lambda chip, one=one: one["phy_id"] is None and chip["phy_id"] is None and chip["logic_id"] == number_of(one["id"]),
        ):
            found[one["id"]] = _place(chips, same)
            if found[one["id"]] is not None:
                break
    return found


def _place(chips, same):
    return next((place for place, chip in enumerate(chips) if same(chip)), None)


def name_of(chip):
    return chip.get("device_node") or chip.get("pci_address") or "chip %s" % chip.get("phy_id")


def compare(chips, status, unhealthy_from=DEFAULT_LEVEL):
    """``{"wrong": [texts], "explained": [texts], "unfit": n, "differ": n}``: what plugin and driver say of chips that take no work. Pure.

    ``chips``: as npu_info has them; ``status``: of /readyz. ``unfit``: how many take no work, by either; ``differ``: how many of them the
    driver calls fit.
    """
    told, out = unfit_of(status), (status.get("total") or 0) - (status.get("healthy") or 0)
    places, by_place = places_of(chips, status), {}
    for one, why in sorted(told.items()):
        place = places.get(one)
        by_place.setdefault(one if place is None else place, []).append("%s: %s" % (one, why))
    # Chips that it counts as unfit without a reason that names them.
    nameless = max(0, out - len(by_place))
    wrong, explained, unfit, differ = [], [], set(), 0
    for place, chip in enumerate(chips):
        why = by_place.pop(place, None)
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
    explained += ["the plugin does not offer %s" % "; ".join(why) for unused, why in sorted(by_place.items())]
    if nameless:
        wrong.append("the plugin does not offer %d chip(s), and no reason of it names them" % nameless)
    return {"wrong": wrong, "explained": explained, "unfit": len(unfit) + len(by_place), "differ": differ + len(by_place)}


def harmless(chips, status, unhealthy_from=DEFAULT_LEVEL):
    """Places of chips that the driver calls unfit and that the plugin offers all the same, by the codes that the driver tells of them."""
    if not status or status.get("total") != len(chips):
        return set()
    places = places_of(chips, status)
    taken = {places.get(one) for one in unfit_of(status)}
    bad = [(place, chip) for place, chip in enumerate(chips) if not fit(chip["health"], unhealthy_from)]
    found = {place for place, chip in bad if chip.get("error_codes") and place not in taken}
    # Its own count has to bear that out: a reason that could not be read must not pass for a healthy chip.
    return found if status.get("healthy", 0) >= len(chips) - len(taken) else set()


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
    """Chips that the plugin does not have at all: by what it tells of each; else by the ids that kubelet has of it and those that it calls
    unfit, where shares and slices do not say enough."""
    if status.get("total") == len(chips):
        return []
    if any(resource.get("devices") for resource in status.get("resources") or []):
        had = set(places_of(chips, status).values())
        return [chip for place, chip in enumerate(chips) if place not in had]
    if not kubelet or kubelet["error"]:
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
        # Not each kubelet has it, and the plugin's stream is open; so that is said, and no failure. One that hangs is one.
        excused = bool(kubelet.get("excused"))
        return "kubelet has the chips", excused, ("not compared: %s" if excused else "%s") % kubelet["error"]
    unfit, passed, words = unfit_of(status), True, []
    for resource in status.get("resources") or []:
        name, ids = resource["resource"], kubelet["allocatable"].get(resource["resource"], [])
        strange = [one for one in ids if one in unfit]
        good = len(ids) == resource["healthy"] and not strange
        passed = passed and good
        words.append("%s: kubelet %d, plugin %s" % (name, len(ids), resource["healthy"]) + (
            "; kubelet still has %s, which the plugin calls unfit" % ", ".join(strange) if strange else ""))
    return "kubelet has the chips", passed and bool(words), "; ".join(words) or "the plugin names no resource"
