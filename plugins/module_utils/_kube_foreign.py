# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Other device plugins for NPUs in a cluster, and how a node is taken from one and given back. Pure. Private to the collection.

Names are those of images and programs: mind-cluster's `ascend-k8sdeviceplugin` (program `device-plugin`) and HAMi's `ascend-device-plugin`
(facts of the device plugins). Two plugins for one resource take the chips from each other at each registration.
"""

import copy
import json
import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

MODE_LABEL = "npu.fleet/agent"
BEFORE = "npu.fleet/affinity-before"
_IMAGES = re.compile(r"(^|/)(ascend-k8sdeviceplugin|ascend-device-plugin|huawei-npu-device-plugin)([:@]|$)")
_NAMES = re.compile(r"^(ascend-device-plugin|ascend-k8sdeviceplugin|hami-ascend-device-plugin)")


def matches(expression, labels):
    """One expression of a node selector."""
    key, operator, values = expression.get("key"), expression.get("operator"), expression.get("values") or []
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator in ("Gt", "Lt"):
        try:
            there, asked = int(labels[key]), int(values[0])
        except (KeyError, ValueError, IndexError):
            return False
        return there > asked if operator == "Gt" else there < asked
    return (key in labels) == (operator == "Exists")


def selects(spec, node):
    """Whether nodeSelector and required affinity of a pod's spec let it on a Node."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms")
    if terms is None:
        return True
    name = {"metadata.name": node["metadata"]["name"]}
    return any(all(matches(one, labels) for one in term.get("matchExpressions") or ())
               and all(matches(one, name) for one in term.get("matchFields") or ()) for term in terms)


def is_plugin(daemon):
    """Whether a DaemonSet is another's device plugin for NPUs: by its image, or its name where the image was renamed in a mirror."""
    images = [one.get("image") or "" for one in daemon["spec"]["template"]["spec"].get("containers") or ()]
    return any(_IMAGES.search(image) for image in images) or bool(_NAMES.match(daemon["metadata"]["name"]))


def found(daemons, nodes):
    """[{"namespace", "name", "nodes"}] of such DaemonSets that may have a pod on one of these Nodes."""
    result = []
    for daemon in daemons:
        if is_plugin(daemon):
            on = sorted(node["metadata"]["name"] for node in nodes if selects(daemon["spec"]["template"]["spec"], node))
            if on:
                result.append({"namespace": daemon["metadata"]["namespace"], "name": daemon["metadata"]["name"], "nodes": on})
    return result


def refusal(others):
    """The error that says what is there and how to remove it."""
    shown = "; ".join("DaemonSet %s/%s on %s" % (one["namespace"], one["name"], ", ".join(one["nodes"])) for one in others)
    commands = "; ".join("kubectl -n %s delete daemonset %s" % (one["namespace"], one["name"]) for one in others)
    return FleetError(
        "Another device plugin for NPUs serves these nodes: %s. Two of them would take the chips from each other. Nothing was changed."
        % shown, code="foreign_plugin", object=others[0]["name"], observed=others,
        hint="Remove it: %s. Or set npu_device_plugin_take_over: true: it is then kept off the nodes of this run by a node affinity, which "
             "the removal of npu.fleet takes out again." % commands)


def _ours(expression):
    return expression.get("key") == MODE_LABEL and expression.get("operator") == "DoesNotExist"


def _terms(affinity):
    """The terms of a required node affinity, of which one has to fit; none where nothing is required."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return required.get("nodeSelectorTerms") or []


def taken(daemon):
    """The patch (strategic) that keeps a DaemonSet off nodes with our label; None where all of its terms do already, whatever a note says:
    somebody may have applied its manifest again. A patch, so that nothing is lost that this client does not know.

    The label has to be on the node before: then only the pods there end. All other pods of it start anew once, since its template changes;
    pods that have chips are not touched by that.
    """
    before = daemon["spec"]["template"]["spec"].get("affinity")
    terms = _terms(before)
    if terms and all(any(_ours(one) for one in term.get("matchExpressions") or ()) for term in terms):
        return None
    affinity = copy.deepcopy(before) or {}
    node = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    required = node["requiredDuringSchedulingIgnoredDuringExecution"] = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    required["nodeSelectorTerms"] = required.get("nodeSelectorTerms") or [{}]
    for term in required["nodeSelectorTerms"]:
        others = [one for one in term.get("matchExpressions") or () if not _ours(one)]
        term["matchExpressions"] = others + [{"key": MODE_LABEL, "operator": "DoesNotExist"}]
    note = (daemon["metadata"].get("annotations") or {}).get(BEFORE)
    return _patch(daemon, json.dumps(before, sort_keys=True) if note is None else note, affinity)


def _patch(daemon, note, affinity):
    """affinity takes the place of what is there, whole; None: there is none then."""
    whole = None if affinity is None else dict(affinity, **{"$patch": "replace"})
    return {"metadata": {"annotations": {BEFORE: note}, "resourceVersion": daemon["metadata"].get("resourceVersion")},
            "spec": {"template": {"spec": {"affinity": whole}}}}


def given_back(daemon):
    """The patch that undoes it; None where there is nothing of ours. Only our expression goes: what else is there may be newer than ours.

    The note says that we put it there, and to people what was before; an expression without it is somebody's own.
    """
    if BEFORE not in (daemon["metadata"].get("annotations") or {}):
        return None
    now = daemon["spec"]["template"]["spec"].get("affinity")
    affinity = copy.deepcopy(now) or {}
    kept = []
    for term in _terms(affinity):
        if any(_ours(one) for one in term.get("matchExpressions") or ()):
            term["matchExpressions"] = [one for one in term["matchExpressions"] if not _ours(one)]
            if not term["matchExpressions"]:
                del term["matchExpressions"]
            if not term:
                continue  # it was made for our expression
        kept.append(term)
    if len(kept) == len(_terms(now)) and affinity == (now or {}):
        return {"metadata": {"annotations": {BEFORE: None}, "resourceVersion": daemon["metadata"].get("resourceVersion")}}
    affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] = kept
    if not kept:
        del affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    if not affinity["nodeAffinity"]:
        del affinity["nodeAffinity"]
    return _patch(daemon, None, affinity or None)
