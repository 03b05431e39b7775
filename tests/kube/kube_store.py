# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes in memory with the rules of the API server that writers meet: versions, conflicts, validation, the status subresource."""

import copy
import re
import threading
import uuid
from datetime import UTC, datetime

import kube_patch

PATCHES = {
    "application/merge-patch+json": kube_patch.merge,
    "application/strategic-merge-patch+json": kube_patch.strategic,
    "application/json-patch+json": kube_patch.json_patch,
}
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")


class ApiError(Exception):
    """An answer other than 2xx; body() is the Status object that the real server sends."""

    def __init__(self, code, reason, message, details=None):
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def body(self):
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message, "reason": self.reason}
        if self.details:
            status["details"] = self.details
        return {**status, "code": self.code}


def not_found(name):
    return ApiError(404, "NotFound", f'nodes "{name}" not found', {"name": name, "kind": "nodes"})


def _conflict(name):
    return ApiError(
        409, "Conflict",
        f'Operation cannot be fulfilled on nodes "{name}": the object has been modified; please apply your changes to the latest version '
        "and try again", {"name": name, "kind": "nodes"})


def _invalid(name, causes):
    errors = [f'{field}: {kind}: {message}' for field, kind, message in causes]
    text = errors[0] if len(errors) == 1 else "[" + ", ".join(errors) + "]"
    return ApiError(422, "Invalid", f'Node "{name}" is invalid: {text}', {
        "name": name, "kind": "Node",
        "causes": [{"reason": "FieldValueInvalid", "message": f"{kind}: {message}", "field": field} for field, kind, message in causes]})


def _key_is_valid(key):
    prefix, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or (len(prefix) <= 253 and bool(_SUBDOMAIN.fullmatch(prefix))))


def _value_is_valid(value):
    return isinstance(value, str) and (value == "" or bool(_NAME.fullmatch(value)))


def _check(node):
    """Raise what the server's validation of a Node says about labels, annotations, taints and quantities."""
    causes = []
    metadata = node.get("metadata") or {}
    for key, value in (metadata.get("labels") or {}).items():
        if not _key_is_valid(key):
            causes.append(("metadata.labels", "Invalid value", f'"{key}": name part must consist of alphanumeric characters'))
        if not _value_is_valid(value):
            causes.append(("metadata.labels", "Invalid value", f'"{value}": a valid label must be an empty string or consist of '
                                                               "alphanumeric characters, '-', '_' or '.'"))
    for key, value in (metadata.get("annotations") or {}).items():
        if not _key_is_valid(key.lower()) or not isinstance(value, str):
            causes.append(("metadata.annotations", "Invalid value", f'"{key}"'))
    seen = set()
    for place, taint in enumerate((node.get("spec") or {}).get("taints") or []):
        field = f"spec.taints[{place}]"
        if not _key_is_valid(taint.get("key") or ""):
            causes.append((field + ".key", "Invalid value", f'"{taint.get("key")}": name part must be non-empty'))
        if not _value_is_valid(taint.get("value") or ""):
            causes.append((field + ".value", "Invalid value", f'"{taint.get("value")}"'))
        if taint.get("effect") not in EFFECTS:
            causes.append((field + ".effect", "Unsupported value", f'"{taint.get("effect")}"'))
        identity = (taint.get("key"), taint.get("effect"))
        if identity in seen:
            causes.append((field, "Duplicate value", f"taints must be unique by key and effect pair, {identity}"))
        seen.add(identity)
    for what in ("capacity", "allocatable"):
        for key, value in ((node.get("status") or {}).get(what) or {}).items():
            if not _QUANTITY.fullmatch(str(value)):
                causes.append((f"status.{what}.{key}", "Invalid value", f'"{value}"'))
    if causes:
        raise _invalid(metadata.get("name"), causes)


def _matches(labels, selector):
    """Equality selectors only: a=b, a==b, a!=b, a, !a, joined by commas."""
    for term in filter(None, (part.strip() for part in selector.split(","))):
        if "!=" in term:
            key, value = term.split("!=", 1)
            ok = labels.get(key) != value
        elif "=" in term:
            key, value = re.split("==?", term, maxsplit=1)
            ok = labels.get(key) == value
        elif term.startswith("!"):
            ok = term[1:] not in labels
        else:
            ok = term in labels
        if not ok:
            return False
    return True


class Store:
    """All Nodes, under one lock and one count of versions, as etcd has it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._version = 0
        self._nodes = {}

    def version(self):
        return str(self._version)

    def get(self, name):
        with self._lock:
            return copy.deepcopy(self._get(name))

    def _get(self, name):
        if name not in self._nodes:
            raise not_found(name)
        return self._nodes[name]

    def list(self, label_selector="", field_selector=""):
        with self._lock:
            nodes = [node for _, node in sorted(self._nodes.items()) if _matches(node["metadata"].get("labels") or {}, label_selector)]
            if field_selector:
                key, _, value = field_selector.partition("=")
                if key != "metadata.name":
                    raise ApiError(400, "BadRequest", f'field label not supported: "{key}"')
                nodes = [node for node in nodes if node["metadata"]["name"] == value.lstrip("=")]
            return copy.deepcopy(nodes)

    def create(self, node, dry_run=False):
        name = (node.get("metadata") or {}).get("name")
        if not name:
            raise ApiError(422, "Invalid", 'Node "" is invalid: metadata.name: Required value: name or generateName is required')
        with self._lock:
            if name in self._nodes:
                raise ApiError(409, "AlreadyExists", f'nodes "{name}" already exists', {"name": name, "kind": "nodes"})
            node = copy.deepcopy({**node, "kind": "Node", "apiVersion": "v1"})
            node["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
            node.setdefault("spec", {})
            node.setdefault("status", {})
            _check(node)
            return self._keep(name, node, dry_run)

    def patch(self, name, content_type, patch, subresource=None, dry_run=False):
        """Apply a patch to what is there now, as one step."""
        with self._lock:
            old = self._get(name)
            try:
                new = PATCHES[content_type](old, patch)
            except kube_patch.PatchError as error:
                if content_type == "application/json-patch+json":
                    raise ApiError(422, "Invalid", "the server rejected our request due to an error in our request") from error
                raise ApiError(400, "BadRequest", str(error)) from error
            return self._change(name, old, new, subresource, dry_run)

    def replace(self, name, node, subresource=None, dry_run=False):
        """Put a whole Node; without a resourceVersion it is not conditional (Nodes allow that)."""
        with self._lock:
            return self._change(name, self._get(name), copy.deepcopy(node), subresource, dry_run)

    def delete(self, name):
        with self._lock:
            node = self._get(name)
            del self._nodes[name]
            self._version += 1
            return node

    def _change(self, name, old, new, subresource, dry_run):
        metadata = new.get("metadata") or {}
        if metadata.get("name", name) != name:
            raise ApiError(400, "BadRequest", f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
        wanted_version = metadata.get("resourceVersion")
        if wanted_version and wanted_version != old["metadata"]["resourceVersion"]:
            raise _conflict(name)
        # What a client cannot change: each of spec and status is written at its own address only (nodeStrategy, nodeStatusStrategy).
        fixed = {key: old["metadata"][key] for key in ("name", "uid", "creationTimestamp", "resourceVersion")}
        new = {**new, "kind": "Node", "apiVersion": "v1", "metadata": {**metadata, **fixed}}
        other = "spec" if subresource == "status" else "status"
        new[other] = copy.deepcopy(old[other])
        new.setdefault("spec", {})
        new.setdefault("status", {})
        for part, key in (("metadata", "labels"), ("metadata", "annotations"), ("spec", "taints")):
            if not new[part].get(key):
                new[part].pop(key, None)
        _check(new)
        if new == old:
            return copy.deepcopy(old)  # as in etcd: nothing new, no new version
        return self._keep(name, new, dry_run)

    def _keep(self, name, node, dry_run):
        if dry_run:
            return copy.deepcopy(node)
        self._version += 1
        node["metadata"]["resourceVersion"] = str(self._version)
        self._nodes[name] = node
        return copy.deepcopy(node)
