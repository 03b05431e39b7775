# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels of a Node with NPUs: from facts to labels, and from a Node as it is to the patch that it needs. Pure.

The controller (systemd mode) and the agent (DaemonSet mode) use it, one of them at a time, so that both write the same.

Facts are a dict; what nobody knows is None or missing, and gives no label:
  backend, families, chips (how many), chip_names, products, driver_version, firmware_version, cann_version, aicores, memory_mib, link,
  serial_hash, ready, arch (as uname -m has it), stack (which driver of a Rockchip NPU).

Sources of the vendor's labels: mind-cluster, ascend-device-plugin, pkg/server/manager.go (getNewNodeLabel, updateChipNameToNode),
pkg/common/constants.go; its documents on node labels; values as public listings of nodes show them.
"""

import re

RECORD = "npu.fleet/labels"  # annotation: which labels we wrote, and their values
TAINT = "npu.fleet/not-ready"
EFFECT = "NoSchedule"
SITE, AGENT = "site", "agent"  # values of the taint: who has put it, and alone takes it off

_VALUE_LENGTH = 63
# Serial numbers and die ids that were never set.
_UNSET = re.compile(r"[0\W_]*|[F\W_]*|N/?A|NONE|NULL|UNKNOWN|DEFAULT( STRING)?|NOT (SPECIFIED|AVAILABLE)|TO BE FILLED BY O\.?E\.?M\.?")

# The vendor's plugin gives 310B none, so a selector for it has to go by npu.fleet/family.
_ACCELERATORS = {
    "310": "huawei-Ascend310", "310p": "huawei-Ascend310P", "910": "huawei-Ascend910", "a2": "huawei-Ascend910",
    "a3": "huawei-Ascend910", "a5": "huawei-npu",
}
# Of servertype, before the number of AI cores. An A2 node has Ascend910B-20; what an A3 or 950 has, no public listing shows.
_SERVERS = {"310p": "Ascend310P", "910": "Ascend910", "a2": "Ascend910B"}
_HBM = ("910", "a2", "a3")  # families whose on-chip memory the vendor's plugin tells
_ARCHITECTURES = {"aarch64": "huawei-arm", "arm64": "huawei-arm", "x86_64": "huawei-x86", "amd64": "huawei-x86"}
# What the vendor's plugin finds out by the board's id (0x28, 0x29). All other values of accelerator-type name a server and a way of
# scheduling, which administrators choose.
_TYPES = {"Atlas 300I A2": "card-910b-infer"}
_DUO = "Atlas 300I Duo"
_LINKS = (
    (re.compile(r"Atlas 300"), "pcie"),
    (re.compile(r"Atlas (800T|800I|900) A[23]\b"), "hccs"),
    (re.compile(r"Atlas 800 \(Model 90[01]0\)"), "hccs"),
)


def value_of(text):
    """A text as a legal label value, None where nothing of it is left."""
    if text is None:
        return None
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", str(text))[:_VALUE_LENGTH]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", words) or None


def is_set(text):
    """Whether somebody has set this serial number or die id."""
    return bool(text) and not _UNSET.fullmatch(text.strip().upper())


def serial_hash(serials):
    """A short name for the set of serial numbers, which shows none; who knows them all can tell. None unless all are known."""
    if not serials or not all(map(is_set, serials)):
        return None
    known = [serial.strip() for serial in serials]
    import hashlib  # noqa: PLC0415  it takes OpenSSL along, 3.6 MB of memory, and the agent's service needs it for nothing else

    return hashlib.sha256("\n".join(sorted(set(known))).encode("utf-8")).hexdigest()[:12]


def link_of(families, products, chips):
    """What links the chips of a node with each other: hccs, pcie, or none where there is only one. None where that is not certain."""
    if chips == 1:
        return "none"
    if not chips or len(families or ()) != 1:
        return None
    if families[0] in ("310", "310p", "310b"):
        return "pcie"
    found = {link for product in products or () for pattern, link in _LINKS if pattern.match(product)}
    return found.pop() if len(found) == 1 else None


def _only(values):
    """The one value there is, else None."""
    return values[0] if values and len(values) == 1 else None


def _memory(facts, family):
    memory = facts.get("memory_mib")
    return "%dG" % (memory // 1024) if memory and family in _HBM else None


def _servertype(facts, family):
    cores = facts.get("aicores")
    return "%s-%d" % (_SERVERS[family], cores) if cores and family in _SERVERS else None


def _ready(facts, _family):
    return {True: "true", False: "false"}.get(facts.get("ready"))


def _rockchip(key):
    return lambda facts, _family: facts.get(key) if facts.get("backend") == "rockchip" else None


def _ascend(value):
    return lambda facts, family: value(facts, family) if facts.get("backend") in (None, "ascend") else None


#: key: what gives its value, of the facts and the node's only family.
LABELS = (
    ("npu.fleet/backend", lambda facts, family: facts.get("backend")),
    ("npu.fleet/family", lambda facts, family: family),
    ("npu.fleet/product", lambda facts, family: _only(facts.get("products"))),
    ("npu.fleet/chips", lambda facts, family: facts.get("chips") or None),
    ("npu.fleet/driver-version", lambda facts, family: facts.get("driver_version")),
    ("npu.fleet/firmware-version", lambda facts, family: facts.get("firmware_version")),
    ("npu.fleet/cann-version", lambda facts, family: facts.get("cann_version")),
    ("npu.fleet/link", lambda facts, family: facts.get("link")),
    ("npu.fleet/serial-hash", lambda facts, family: facts.get("serial_hash")),
    ("npu.fleet/soc", _rockchip("soc")),
    ("npu.fleet/cores", _rockchip("aicores")),
    ("npu.fleet/stack", _rockchip("stack")),
    ("npu.fleet/ready", _ready),
    ("node.kubernetes.io/npu.chip.name", _ascend(lambda facts, family: _only(facts.get("chip_names")))),
    ("accelerator", _ascend(lambda facts, family: _ACCELERATORS.get(family))),
    ("huawei.com/driver.version", _ascend(lambda facts, family: facts.get("driver_version"))),
    ("mind-cluster/npu-chip-memory", _ascend(_memory)),
    ("infer-card-type", _ascend(lambda facts, family: "card-300i-duo" if _only(facts.get("products")) == _DUO else None)),
    ("servertype", _ascend(_servertype)),
    ("accelerator-type", _ascend(lambda facts, family: _TYPES.get(_only(facts.get("products"))))),
    ("host-arch", _ascend(lambda facts, family: _ARCHITECTURES.get(facts.get("arch")) if family else None)),
)
#: Ours by name: nobody else has a reason to write them.
OWN = tuple(key for key, _value in LABELS if key.startswith("npu.fleet/"))
#: Those that administrators set by the vendor's documents (servertype=soc, accelerator-type=module-a3-16 …): ours only where nobody has.
SHARED = ("servertype", "accelerator-type", "host-arch")


def labels_of(facts):
    """{key: value} that a node with these facts should carry; none without an NPU."""
    if facts.get("present") is False:
        return {}
    family = _only([family for family in facts.get("families") or () if family != "unknown"])
    if facts.get("backend") == "rockchip":
        facts = dict(facts, soc=family)
    found = ((key, value_of(value(facts, family))) for key, value in LABELS)
    return {key: value for key, value in found if value is not None}


# --- a Node as it is, and what it should be


def read_record(text):
    """{key: value} of the annotation; what is not in its form counts as not there."""
    pairs = (pair.partition("=") for pair in (text or "").split(","))
    return {key: value for key, equals, value in pairs if key and equals}


def write_record(labels):
    return ",".join("%s=%s" % (key, labels[key]) for key in sorted(labels))


def decide(have, record, wanted, shared=(), drop=()):
    """What has to change in a Node's labels: (changes, record, others).

    have: its labels now. record: {key: value} that we wrote. wanted: labels as they should be. shared: keys that are ours only where
    nobody else has set them. drop: keys that go when they are not wanted, whoever wrote them.

    changes: {key: value, None to take it off}. record: the new one. others: {key: value of somebody else} that differ and stay.
    A label that we wrote and that is not wanted any more goes while it has the value that we gave it. One that had the wanted value
    before we came is nobody's of ours, and stays when we go; so is one whose value somebody else has changed to the wanted one.
    """
    changes, ours, others = {}, {}, {}
    for key, value in wanted.items():
        mine = key in record and have.get(key) == record[key]
        if have.get(key) == value:
            if record.get(key) == value:
                ours[key] = value
        elif key in shared and key in have and not mine:
            others[key] = have[key]
        else:
            changes[key] = ours[key] = value
    for key, value in have.items():
        if key not in wanted and (key in drop or record.get(key) == value):
            changes[key] = None
    return changes, ours, others


def decide_taint(taints, put, value=AGENT):
    """The new list of taints, None where nothing changes. put: whether ours should be there; None leaves it as it is.

    A Node has one taint per key and effect, so the values share it: one with another value belongs to another writer and stays.
    Those of others stay as they are, and where they are.
    """
    mine = [taint for taint in taints if (taint.get("key"), taint.get("effect")) == (TAINT, EFFECT)]
    if put is True and not mine:
        return taints + [{"key": TAINT, "value": value, "effect": EFFECT}]
    if put is False and mine and (mine[0].get("value") or "") == value:
        return [taint for taint in taints if taint is not mine[0]]
    return None


def patch_of(node, wanted, put, keep=(), *, remove=False, only=None):
    """What the agent has to send for its Node: (patch or None, others as in decide()).

    wanted: labels, None to leave them as they are. put: see decide_taint(). keep: keys that are left alone. remove: take off all of ours.
    only: the keys that are looked at, None for all; what the record says of others stays in it.
    Labels are merged by key at the server. Taints are one list that is replaced as a whole, so the patch names the version that was read.
    """
    metadata = node.get("metadata") or {}
    annotations, patch, others = metadata.get("annotations") or {}, {}, {}
    if wanted is not None or remove:
        noted = read_record(annotations.get(RECORD))
        beside = {key: value for key, value in noted.items() if only is not None and key not in only}
        have, wanted, noted = (
            {key: value for key, value in labels.items() if key not in keep and (only is None or key in only)}
            for labels in (metadata.get("labels") or {}, {} if remove else wanted, noted))
        changes, record, others = decide(have, noted, wanted, SHARED, OWN)
        text = write_record(dict(beside, **record)) or None
        if changes:
            patch["metadata"] = {"labels": changes}
        if text != annotations.get(RECORD):
            patch.setdefault("metadata", {})["annotations"] = {RECORD: text}
    taints = decide_taint((node.get("spec") or {}).get("taints") or [], put)
    if taints is not None:
        patch.setdefault("metadata", {})["resourceVersion"] = metadata.get("resourceVersion")
        patch["spec"] = {"taints": taints}
    return patch or None, others
