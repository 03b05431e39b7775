# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels, annotations and taints of one Node: the rules of their names and what has to change. Pure. Private to the collection."""

import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware import _labels

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

# Rules as in k8s.io/apimachinery/pkg/util/validation: an optional DNS prefix, a slash, a name; values as names or empty.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_NAME_LENGTH = 63
_PREFIX_LENGTH = 253
_ANNOTATIONS_BYTES = 256 * 1024

_NAME_RULE = "1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"
_PREFIX_RULE = "a lower-case DNS name of at most 253 characters before the '/'"


def node_name(text):
    """Return the name of a Node, or say which rule it breaks."""
    if not text or len(text) > _PREFIX_LENGTH or not _SUBDOMAIN.match(text):
        raise FleetError(
            "'%s' cannot be the name of a Kubernetes Node: a Node's name is a lower-case DNS name of at most 253 characters." % text,
            code="invalid_node_name", object=text, hint="See 'kubectl get nodes' for the names in this cluster.")
    return text


def _broken_key(key):
    """Return the rule that a qualified name breaks, or None."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _PREFIX_LENGTH or not _SUBDOMAIN.match(prefix)):
        return _PREFIX_RULE
    if len(name) > _NAME_LENGTH or not _NAME.match(name):
        return _NAME_RULE
    return None


def _broken_value(value):
    if value and (len(value) > _NAME_LENGTH or not _NAME.match(value)):
        return "empty, or " + _NAME_RULE
    return None


def _text(value, what, key):
    """Kubernetes takes text only. A whole number has one spelling; true, 1.10 and null have several, so they are refused."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FleetError(
            "The value of %s '%s' is %s, not text." % (what, key, "null" if value is None else "a " + type(value).__name__),
            code="invalid_" + what, object=key, observed=repr(value), hint="Write it in quotes, for example %s: \"true\"." % key)
    return str(value)


def _refuse(what, key, part, value, rule):
    place = "%s %s '%s'" % (what, part, value) if part == "key" else "%s '%s' of %s '%s'" % (part, value, what, key)
    raise FleetError(
        "The %s is not allowed. The rule: %s." % (place, rule),
        code="invalid_" + what, object=key, observed=value)


def _check_key(what, key):
    if not isinstance(key, str):
        _refuse(what, key, "key", key, "text: " + _NAME_RULE)
    rule = _broken_key(key)
    if rule:
        _refuse(what, key, "key", key, rule)


def labels(given, with_values):
    """Return labels as text by key; values count only where with_values is true (a removal goes by key)."""
    result = {}
    for key, value in (given or {}).items():
        _check_key("label", key)
        if not with_values:
            result[key] = ""
            continue
        text = _text(value, "label", key)
        rule = _broken_value(text)
        if rule:
            _refuse("label", key, "value", text, rule)
        result[key] = text
    return result


def annotations(given, with_values):
    """Return annotations as text by key. Their values are free text; only the sum is limited."""
    result = {}
    for key, value in (given or {}).items():
        _check_key("annotation", key)
        result[key] = _text(value, "annotation", key) if with_values else ""
    size = sum(len(key.encode("utf-8")) + len(value.encode("utf-8")) for key, value in result.items())
    if size > _ANNOTATIONS_BYTES:
        raise FleetError("The annotations are %d bytes long together; Kubernetes takes at most %d." % (size, _ANNOTATIONS_BYTES),
                         code="invalid_annotation", observed=size)
    return result


def taints(given, with_values):
    """Return taints as a list of key, value, effect, gone, replace. To put one on, its effect is needed; to take off, None stands for
    every one."""
    result = {}
    for item in given or []:
        key, effect, value = item["key"], item.get("effect"), item.get("value")
        gone = (item.get("state") or ("present" if with_values else "absent")) == "absent"
        _check_key("taint", key)
        if effect is not None and effect not in EFFECTS:
            _refuse("taint", key, "effect", effect, "one of " + ", ".join(EFFECTS))
        if not gone and effect is None:
            raise FleetError("The taint '%s' has no effect." % key, code="invalid_taint", object=key,
                             hint="Add effect: one of %s." % ", ".join(EFFECTS))
        rule = _broken_value(value)
        if rule:
            _refuse("taint", key, "value", value, rule)
        if not gone and (key, effect, None) in result:
            raise FleetError("The taint '%s' is given twice with effect %s; a Node has one value for both together." % (key, effect),
                             code="invalid_taint", object=key)
        whole = {"key": key, "value": value if gone else value or "", "effect": effect, "gone": gone,
                 "replace": item.get("replace") is not False}
        result[(key, effect, (value or "any") if gone else None)] = whole
    return list(result.values())


def wanted(params):
    """Return what the user owns, checked: {"state", "labels", "annotations", "taints", "record", "only_missing", "keep", "unless"}."""
    with_values = params["state"] == "present"
    record, keep = params.get("record"), list(params.get("keep") or [])
    if record:
        _check_key("annotation", record)
    return {
        "state": params["state"],
        "labels": {key: value for key, value in labels(params.get("labels"), with_values).items() if key not in keep},
        "annotations": annotations(params.get("annotations"), with_values),
        "taints": taints(params.get("taints"), with_values),
        "record": record,
        "only_missing": list(params.get("only_missing") or []),
        "keep": keep,
        "unless": labels(params.get("unless_labels"), True),
    }


def _meta(node, what):
    return (node.get("metadata") or {}).get(what) or {}


def _taints_of(node):
    return (node.get("spec") or {}).get("taints") or []


def _wish(taint, want):
    """Return what is wanted of a taint of the Node, None for one that is not ours. One to take off may be owned by its value too."""
    for item in want["taints"]:
        same = taint.get("key") == item["key"] and item["effect"] in (None, taint.get("effect"))
        if same and (not item["gone"] or item["value"] in (None, taint.get("value") or "")):
            return item
    return None


def _noted(node, want):
    """Return the labels that the record on the Node names; those to be left alone are in it no more."""
    noted = _labels.read_record(_meta(node, "annotations").get(want["record"])) if want["record"] else {}
    return {key: value for key, value in noted.items() if key not in want["keep"]}


def view(node, want, noted=()):
    """Return the part of a Node that the user owns: the given keys, as they are now. noted: keys of labels that are owned by the record."""
    notes, record = _meta(node, "annotations"), want["record"]
    return {
        "labels": {key: value for key, value in _meta(node, "labels").items() if key in want["labels"] or key in noted},
        "annotations": {key: value for key, value in notes.items() if key in want["annotations"] or key == record},
        "taints": sorted(
            ({"key": taint.get("key"), "value": taint.get("value") or "", "effect": taint.get("effect")}
             for taint in _taints_of(node) if _wish(taint, want)),
            key=lambda taint: (taint["key"], taint["effect"])),
    }


def _labels_after(node, before, want):
    """Return (labels of the view as they should be, the record, what others have set and keeps its value)."""
    noted = _noted(node, want)
    have = _meta(node, "labels")
    if want["state"] == "absent":
        changes, record, others = _labels.decide(have, noted, {}, (), want["labels"])
    else:
        changes, record, others = _labels.decide(have, noted, want["labels"], want["only_missing"])
    after = {key: value for key, value in before.items() if key not in changes}
    after.update({key: value for key, value in changes.items() if value is not None})
    return after, _labels.write_record(record), others


def _annotations_after(before, want, record):
    after = dict(want["annotations"]) if want["state"] == "present" else {}
    if want["record"] and record:
        after[want["record"]] = record
    return after


def _map_patch(before, after):
    """Return what a merge patch has to say about one map: new and changed values, null for keys that go."""
    patch = {key: value for key, value in after.items() if before.get(key) != value}
    patch.update({key: None for key in before if key not in after})
    return patch


def _taint(item):
    return {key: item[key] for key in ("key", "value", "effect")}


def _taints_after(node, want):
    """Return ours as they should be. One that must not be replaced has the value that the Node has."""
    have = {(taint.get("key"), taint.get("effect")): taint.get("value") or "" for taint in _taints_of(node)}
    ours = [_taint(item) if item["replace"] else dict(_taint(item), value=have.get((item["key"], item["effect"]), item["value"]))
            for item in want["taints"] if not item["gone"]]
    return sorted(ours, key=lambda taint: (taint["key"], taint["effect"]))


def _new_taints(node, want):
    """Return the whole list: others' taints exactly as they are and where they are (timeAdded too), ours after them."""
    keep = []
    missing = {(taint["key"], taint["effect"]): taint for taint in _taints_after(node, want)}
    for taint in _taints_of(node):
        if _wish(taint, want) is None:
            keep.append(taint)
            continue
        new = missing.pop((taint.get("key"), taint.get("effect")), None)
        if new is not None:
            keep.append(taint if (taint.get("value") or "") == new["value"] else new)
    return keep + [missing[key] for key in sorted(missing)]


def plan(node, want):
    """Return {"before", "after", "patch", "kept", "noted"}; patch is None where the Node already is as wanted, or has the labels that
    spare it. kept: labels of others that are not overwritten. noted: keys of labels that the record names.

    Labels and annotations are merged by key at the server, so two writers cannot hurt each other. Taints are one list that is replaced
    as a whole (listType=atomic in the API), so the patch names the version of the Node that was read: a second writer gets a 409.
    """
    noted = list(_noted(node, want))
    before = view(node, want, noted)
    have = _meta(node, "labels")
    if want["unless"] and all(have.get(key) == value for key, value in want["unless"].items()):
        return {"before": before, "after": before, "patch": None, "kept": {}, "noted": noted}
    after_labels, record, kept = _labels_after(node, before["labels"], want)
    after = {
        "labels": after_labels,
        "annotations": _annotations_after(before["annotations"], want, record),
        "taints": _taints_after(node, want),
    }
    patch = {}
    for what in ("labels", "annotations"):
        changes = _map_patch(before[what], after[what])
        if changes:
            patch.setdefault("metadata", {})[what] = changes
    if before["taints"] != after["taints"]:
        patch.setdefault("metadata", {})["resourceVersion"] = _meta(node, "resourceVersion")
        patch["spec"] = {"taints": _new_taints(node, want)}
    return {"before": before, "after": after, "patch": patch or None, "kept": kept, "noted": noted}


def status(node):
    """Return what the scheduler counts on: {"allocatable", "capacity", "ready", "unschedulable"}; ready is None where nobody reports it."""
    reported = node.get("status") or {}
    ready = [condition.get("status") for condition in reported.get("conditions") or [] if condition.get("type") == "Ready"]
    return {
        "allocatable": dict(reported.get("allocatable") or {}),
        "capacity": dict(reported.get("capacity") or {}),
        "ready": {"True": True, "False": False}.get(ready[0]) if ready else None,
        "unschedulable": bool((node.get("spec") or {}).get("unschedulable")),
    }
