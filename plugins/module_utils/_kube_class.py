# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A RuntimeClass: the rules of its fields and what has to change. Pure. Private to the collection.

Sources: strategy and validation of node.k8s.io/v1 in kubernetes/kubernetes (pkg/registry/node, pkg/apis/node/validation).
"""

import copy
import re

from ansible_collections.npu.fleet.plugins.module_utils import _kube_node
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

#: Says whose an object is; we put it on what we create.
OWNER_LABEL = "app.kubernetes.io/managed-by"
OWNER = "npu.fleet"

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_SHOWN = 5


def wanted(params):
    """Return what the user asks for, checked: {"state", "name", "handler", "node_selector", "tolerations"}; None for what was not given."""
    name = params["name"]
    if len(name) > 253 or not _SUBDOMAIN.match(name):
        raise FleetError("'%s' cannot be the name of a RuntimeClass: it is a lower-case DNS name of at most 253 characters." % name,
                         code="invalid_runtime_class", object=name)
    handler = params.get("handler") or name
    if params["state"] == "present" and not _LABEL.match(handler):
        raise FleetError(
            "'%s' cannot be the handler of a RuntimeClass: it is 1 to 63 lower-case letters, digits and '-', beginning and ending with a "
            "letter or digit." % handler, code="invalid_runtime_class", object=name, observed=handler,
            hint="The handler is the name of the runtime in the engine's configuration; name it so there too.")
    selector, given = params.get("node_selector"), params.get("tolerations")
    return {
        "state": params["state"], "name": name, "handler": handler,
        "node_selector": None if selector is None else _kube_node.labels(selector, True),
        "tolerations": None if given is None else tolerations(given),
    }


def tolerations(given):
    """Return tolerations in the API's form, checked by its rules."""
    result = []
    for item in given:
        key, value, effect = item.get("key") or "", item.get("value") or "", item.get("effect")
        operator, seconds = item.get("operator") or "Equal", item.get("toleration_seconds")
        if key:
            _kube_node.labels({key: value}, True)  # the same rules, for both
        if not key and operator != "Exists":
            _refuse(key, "without a key it must have operator Exists, which means every taint")
        if operator == "Exists" and value:
            _refuse(key, "with operator Exists it has no value")
        if effect and effect not in _kube_node.EFFECTS:
            _refuse(key, "effect is one of " + ", ".join(_kube_node.EFFECTS))
        if seconds is not None and effect != "NoExecute":
            _refuse(key, "toleration_seconds go with effect NoExecute only")
        full = {"key": key, "operator": operator, "value": value, "effect": effect, "tolerationSeconds": seconds}
        one = {name: part for name, part in full.items() if part not in ("", None)}
        if one in result:
            _refuse(key, "it is given twice")
        result.append(one)
    return result


def _refuse(key, rule):
    raise FleetError("The toleration of '%s' is not allowed. The rule: %s." % (key, rule), code="invalid_toleration", object=key)


def _normal(toleration):
    """One of the server's in the same form as ours: what is left out means the default."""
    found = {key: value for key, value in toleration.items() if value not in ("", None)}
    found.setdefault("operator", "Equal")
    return found


def view(found, want):
    """Return the part of a RuntimeClass that the user gave, as it is now; {} when there is none."""
    if found is None:
        return {}
    scheduling = found.get("scheduling") or {}
    shown = {"handler": found.get("handler")}
    if want["node_selector"] is not None:
        shown["node_selector"] = dict(scheduling.get("nodeSelector") or {})
    if want["tolerations"] is not None:
        shown["tolerations"] = [_normal(one) for one in scheduling.get("tolerations") or []]
    return shown


def is_ours(found):
    """Say if we made it."""
    return ((found.get("metadata") or {}).get("labels") or {}).get(OWNER_LABEL) == OWNER


def plan(found, want):
    """Return {"before", "after", "action", "body"} for state present; action is None, "create" or "update", body what to send.

    FleetError where what is wanted cannot be had without deleting somebody's object, or changing one that somebody else made.
    """
    before = view(found, want)
    if found is None:
        body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
                "metadata": {"name": want["name"], "labels": {OWNER_LABEL: OWNER}}, "handler": want["handler"]}
        _schedule(body, want)
        return {"before": before, "after": view(body, want), "action": "create", "body": body}
    who = "" if is_ours(found) else " Somebody else made it (it has no label %s=%s)." % (OWNER_LABEL, OWNER)
    if before["handler"] != want["handler"]:
        raise FleetError(
            "The RuntimeClass '%s' has the handler '%s', not '%s', and Kubernetes lets nobody change a handler.%s It was left as it is."
            % (want["name"], before["handler"], want["handler"], who), code="runtime_class_handler", object=want["name"],
            observed=before["handler"],
            hint="Take another name, or, when no pod needs it any more: kubectl delete runtimeclass %s; then run it again." % want["name"])
    body = copy.deepcopy(found)
    _schedule(body, want)
    after = view(body, want)
    if after == before:
        return {"before": before, "after": after, "action": None, "body": None}
    if who:
        parts = [part for part in ("node_selector", "tolerations") if before.get(part) != after.get(part)]
        raise FleetError(
            "The RuntimeClass '%s' has another %s than wanted.%s It was left as it is." % (want["name"], " and ".join(parts), who),
            code="runtime_class_foreign", object=want["name"], observed={part: before[part] for part in parts},
            hint="Leave these options out, take another name, or hand it over: kubectl label runtimeclass %s %s=%s --overwrite"
                 % (want["name"], OWNER_LABEL, OWNER))
    return {"before": before, "after": after, "action": "update", "body": body}


def _schedule(body, want):
    """Set the given parts of scheduling; others' parts, and what a newer Kubernetes has there, stay."""
    scheduling = dict(body.get("scheduling") or {})
    for key, value in (("nodeSelector", want["node_selector"]), ("tolerations", want["tolerations"])):
        if value is None:
            continue
        if key == "tolerations" and [_normal(one) for one in scheduling.get(key) or []] == value:
            continue
        scheduling[key] = value
        if not value:
            del scheduling[key]
    if scheduling:
        body["scheduling"] = scheduling
    else:
        body.pop("scheduling", None)


def users(pods, name):
    """Return "namespace/name" of the pods that name a RuntimeClass and have not ended."""
    return sorted(
        "%s/%s" % (pod["metadata"].get("namespace"), pod["metadata"].get("name")) for pod in pods
        if (pod.get("spec") or {}).get("runtimeClassName") == name
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"))


def keeps(name, pods, nodes, selector):
    """Return why a RuntimeClass of ours must stay, None when it may go. pods: names of its users; nodes: names that selector matched."""
    if pods:
        return "The RuntimeClass '%s' is used by %d pods: %s." % (name, len(pods), _some(pods))
    if nodes:
        return "The RuntimeClass '%s' serves other nodes: %d of the cluster match '%s': %s." % (name, len(nodes), selector, _some(nodes))
    return None


def _some(names):
    return ", ".join(names[:_SHOWN]) + (" and %d more" % (len(names) - _SHOWN) if len(names) > _SHOWN else "")
