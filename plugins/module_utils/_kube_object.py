# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects that a cluster shall have: what has to change. Pure. Private to the collection."""

import copy
import hashlib
import json

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._kube_class import OWNER, OWNER_LABEL

#: The parts of an object that are compared and sent; the rest (status, what newer servers have) is the server's.
_PARTS = ("spec", "data", "rules", "roleRef", "subjects", "automountServiceAccountToken")
#: Annotations of ours: of each object, what was wanted of it; of a pod's template, which one it is.
SPEC = "npu.fleet/spec"
TEMPLATE = "npu.fleet/template"
#: Keys of a pod or container that give it rights, or other work: what is there and not wanted is a difference, too.
_STRICT = ("hostPID", "hostNetwork", "hostIPC", "shareProcessNamespace", "securityContext", "initContainers", "command", "envFrom",
           "lifecycle", "serviceAccount")
_ENFORCE = "pod-security.kubernetes.io/enforce"


def label_of(body):
    """Kind and name as texts say them."""
    space = body["metadata"].get("namespace")
    return "%s %s%s" % (body["kind"], space + "/" if space else "", body["metadata"]["name"])


def word_of(body):
    """The object for a command line of kubectl."""
    space = body["metadata"].get("namespace")
    return "%s %s%s" % (body["kind"].lower(), body["metadata"]["name"], " -n " + space if space else "")


def covers(found, wanted):
    """Whether all that is wanted is there. What the server adds by itself (defaults) does not count; a list is as long as wanted."""
    if isinstance(wanted, dict):
        found = {} if found is None else found
        return isinstance(found, dict) and all(covers(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(covers(*pair) for pair in zip(found, wanted))
    return (found or None) == (wanted or None) if wanted in (None, "", False, 0) else found == wanted


def digest(body):
    """Short checksum of what is wanted. By it a key that is wanted no more is noticed: its place in what is found may be a default."""
    parts = {part: body[part] for part in _PARTS if part in body}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8")).hexdigest()[:16]


def more(found, wanted, whole=False):
    """Keys that add rights, or work, to what is wanted. whole: every key does (below securityContext)."""
    keys = set(found) - set(wanted)
    # procMount is a default of newer servers; serviceAccount is the older name, which the server fills in.
    return sorted(key for key in keys if (whole or key in _STRICT) and found[key] not in (None, False, {}, []) and (
        key, found[key]) != ("procMount", "Default") and not (key == "serviceAccount" and found[key] == wanted.get("serviceAccountName")))


def is_ours(found):
    """Say if we made it."""
    return (found["metadata"].get("labels") or {}).get(OWNER_LABEL) == OWNER


def differences(found, wanted, path=""):
    """Where an object is not as wanted, as paths."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        added = more(found, wanted, ".securityContext" in path)
        return [place for key, value in sorted(wanted.items()) for place in differences(found.get(key), value, "%s.%s" % (path, key))] + [
            "%s.%s" % (path.lstrip("."), key) for key in added]
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        pairs = zip(found, wanted)
        return [place for number, pair in enumerate(pairs) for place in differences(pair[0], pair[1], "%s[%d]" % (path, number))]
    return [] if covers(found, wanted) else [path.lstrip(".")]


def merged(found, wanted):
    """What to send: our parts as wanted and nothing of before in them, others' labels and annotations as they are."""
    body = copy.deepcopy(found)
    for part in ("labels", "annotations"):
        if wanted["metadata"].get(part):
            body["metadata"][part] = dict(body["metadata"].get(part) or {}, **wanted["metadata"][part])
    for part in _PARTS:
        if part in wanted:
            body[part] = copy.deepcopy(wanted[part])
    body.pop("status", None)
    return body


def plan(found, wanted):
    """{"action": None, "create" or "update", "body", "why"} for one object; FleetError where it is somebody else's."""
    if found is None:
        return {"action": "create", "body": wanted, "why": ["it is not there"]}
    if not is_ours(found):
        return _foreign(found, wanted)
    parts = {part: wanted[part] for part in _PARTS if part in wanted}
    meta = {part: wanted["metadata"].get(part) or {} for part in ("labels", "annotations")}
    why = differences(found, parts) + differences(found["metadata"], meta, "metadata")
    # A key that is wanted no more is in the list that is compared only where it stands in a mapping of ours.
    if "data" in wanted and set(found.get("data") or {}) != set(wanted["data"]):
        why.append("data")
    return {"action": "update" if why else None, "body": merged(found, wanted), "why": why}


def _foreign(found, wanted):
    """A namespace that an admin made is used as it is, where it can be; anything else of that name is refused."""
    labels = found["metadata"].get("labels") or {}
    if wanted["kind"] != "Namespace":
        raise FleetError(
            "There is a %s already that somebody else made (it has no label %s=%s). It was left as it is."
            % (label_of(wanted), OWNER_LABEL, OWNER), code="kube_foreign", object=label_of(wanted),
            hint="Set npu_device_plugin_namespace to another one, or hand it over: kubectl label %s %s=%s --overwrite"
                 % (word_of(wanted), OWNER_LABEL, OWNER))
    if labels.get(_ENFORCE, "privileged") != "privileged":
        raise FleetError(
            "The namespace %s, which somebody else made, allows only pods of level '%s' (%s). The agent needs folders of the host, which "
            "only 'privileged' allows." % (wanted["metadata"]["name"], labels[_ENFORCE], _ENFORCE), code="kube_pod_security",
            object=wanted["metadata"]["name"], observed=labels[_ENFORCE],
            hint="kubectl label namespace %s %s=privileged --overwrite, or set npu_device_plugin_namespace."
                 % (wanted["metadata"]["name"], _ENFORCE))
    return {"action": None, "body": None, "why": []}
