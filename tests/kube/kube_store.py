# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects in memory with the rules of the API server that writers meet: versions, conflicts, validation, the status subresource."""

import copy
import itertools
import re
import threading
import uuid
from datetime import UTC, datetime

import kube_patch
from kube_rules import NODE, ApiError

PATCHES = {
    "application/merge-patch+json": kube_patch.merge,
    "application/strategic-merge-patch+json": kube_patch.strategic,
    "application/json-patch+json": kube_patch.json_patch,
}


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


class Count:
    """The one count of versions that all kinds share, as etcd has it."""

    def __init__(self):
        self._numbers, self.now = itertools.count(1), 0

    def next(self):
        self.now = next(self._numbers)
        return str(self.now)


def _field(found, path):
    for key in path.split("."):
        found = (found or {}).get(key)
    return "" if found is None else found


FIELDS = ("metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "involvedObject.name", "involvedObject.kind")


class Store:
    """All objects of one kind, under one lock. Those of a namespace go by NAMESPACE/NAME."""

    def __init__(self, kind=NODE, count=None):
        self.kind = kind
        self.count = count or Count()
        self._lock = threading.Lock()
        self._objects = {}

    def version(self):
        return str(self.count.now)

    def has(self, name):
        return name in self._objects

    def get(self, name):
        with self._lock:
            return copy.deepcopy(self._get(name))

    def _get(self, name):
        if name not in self._objects:
            raise self.kind.not_found(name)
        return self._objects[name]

    def list(self, label_selector="", field_selector="", namespace=None):
        with self._lock:
            found = [one for _, one in sorted(self._objects.items()) if _matches(one["metadata"].get("labels") or {}, label_selector)
                     and namespace in (None, one["metadata"].get("namespace"))]
            for term in filter(None, field_selector.split(",")):
                key, sign, value = term.partition("!=") if "!=" in term else term.partition("=")
                if key not in FIELDS:
                    raise ApiError(400, "BadRequest", f'field label not supported: "{key}"')
                found = [one for one in found if (_field(one, key) == value.lstrip("=")) == (sign == "=")]
            return copy.deepcopy(found)

    def create(self, new, dry_run=False):
        name = (new.get("metadata") or {}).get("name")
        if not name and (new.get("metadata") or {}).get("generateName"):
            name = new["metadata"]["generateName"] + uuid.uuid4().hex[:5]
            new = {**new, "metadata": {**new["metadata"], "name": name}}
        if not name:
            raise self.kind.invalid("", [("metadata.name", "Required value", "name or generateName is required")])
        if self.kind.namespaced:
            name = f"{new['metadata']['namespace']}/{name}"
        with self._lock:
            if name in self._objects:
                raise self.kind.exists(name)
            return self._create(name, new, dry_run)

    def _create(self, name, new, dry_run):
        new = copy.deepcopy({**new, "kind": self.kind.name, "apiVersion": self.kind.api_version})
        new["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        if self.kind.has_status:
            new.setdefault("spec", {})
            new.setdefault("status", {})
            if self.kind.name == "DaemonSet":
                new["metadata"]["generation"] = 1
        self.kind.check(new)
        return self._keep(name, new, dry_run)

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

    def replace(self, name, new, subresource=None, dry_run=False):
        """Put a whole object. Without a resourceVersion it is not conditional, for kinds that allow that."""
        metadata = new.get("metadata") or {}
        with self._lock:
            if name not in self._objects and self.kind.create_by_put:
                if metadata.get("uid"):
                    raise self.kind.conflict(name, f'StorageError: invalid object, Code: 4, Key: {name}, ResourceVersion: 0, '
                                                   f'AdditionalErrorMsg: Precondition failed: UID in precondition: {metadata["uid"]}, '
                                                   "UID in object meta: ")
                return self._create(name, new, dry_run)
            old = self._get(name)
            if not metadata.get("resourceVersion") and not self.kind.blind_put:
                raise self.kind.invalid(name, [("metadata.resourceVersion", "Invalid value", "0: must be specified for an update")])
            return self._change(name, old, copy.deepcopy(new), subresource, dry_run)

    def delete(self, name, preconditions=None):
        with self._lock:
            old = self._get(name)
            for key, word, end in (("uid", "UID", "deleted and then recreated"), ("resourceVersion", "ResourceVersion", "modified")):
                wanted = (preconditions or {}).get(key)
                if wanted is not None and wanted != old["metadata"][key]:
                    raise self.kind.conflict(name, f"the {word} in the precondition ({wanted}) does not match the {word} in record "
                                                   f"({old['metadata'][key]}). The object might have been {end}")
            del self._objects[name]
            self.count.next()
            return old

    def _change(self, name, old, new, subresource, dry_run):
        metadata = new.get("metadata") or {}
        short = name.rpartition("/")[2]
        if metadata.get("name", short) != short:
            raise ApiError(400, "BadRequest", f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
        wanted_version = metadata.get("resourceVersion")
        if wanted_version and wanted_version != old["metadata"]["resourceVersion"]:
            raise self.kind.conflict(name)
        # What a client cannot change: each of spec and status is written at its own address only (nodeStrategy, nodeStatusStrategy).
        fixed = {key: old["metadata"][key] for key in ("name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation")
                 if key in old["metadata"]}
        new = {**new, "kind": self.kind.name, "apiVersion": self.kind.api_version, "metadata": {**metadata, **fixed}}
        empty = [("metadata", "labels"), ("metadata", "annotations")]
        if self.kind.has_status:
            other = "spec" if subresource == "status" else "status"
            new[other] = copy.deepcopy(old[other])
            new.setdefault("spec", {})
            new.setdefault("status", {})
            empty.append(("spec", "taints"))
        for part, key in empty:
            if not new[part].get(key):
                new[part].pop(key, None)
        self.kind.check(new, old)
        if "generation" in fixed and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] += 1
        if new == old:
            return copy.deepcopy(old)  # as in etcd: nothing new, no new version
        return self._keep(name, new, dry_run)

    def _keep(self, name, new, dry_run):
        if dry_run:
            return copy.deepcopy(new)
        new["metadata"]["resourceVersion"] = self.count.next()
        self._objects[name] = new
        return copy.deepcopy(new)
