# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds that the stand-in knows, and what the real server's validation says about objects of them."""

import re
from typing import NamedTuple

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME_RULE = "lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
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


class Kind(NamedTuple):
    """create_by_put: PUT makes what is not there. blind_put: PUT may leave the resourceVersion out (both are of the kind's strategy)."""

    name: str
    resource: str
    group: str
    version: str
    has_status: bool
    create_by_put: bool
    blind_put: bool
    namespaced: bool = False

    @property
    def api_version(self):
        return f"{self.group}/{self.version}" if self.group else self.version

    def qualified(self, word):
        return f"{word}.{self.group}" if self.group else word

    def details(self, name=None, kind=None):
        named = {"name": name} if name else {}
        return {**named, **({"group": self.group} if self.group else {}), "kind": kind or self.resource}

    def not_found(self, name):
        return ApiError(404, "NotFound", f'{self.qualified(self.resource)} "{name}" not found', self.details(name))

    def exists(self, name):
        return ApiError(409, "AlreadyExists", f'{self.qualified(self.resource)} "{name}" already exists', self.details(name))

    def conflict(self, name, why="the object has been modified; please apply your changes to the latest version and try again"):
        message = f'Operation cannot be fulfilled on {self.qualified(self.resource)} "{name}": {why}'
        return ApiError(409, "Conflict", message, self.details(name))

    def invalid(self, name, causes):
        errors = [f"{field}: {kind}: {message}" for field, kind, message in causes]
        text = errors[0] if len(errors) == 1 else "[" + ", ".join(errors) + "]"
        shown = [{"reason": "FieldValueInvalid", "message": f"{kind}: {message}", "field": field} for field, kind, message in causes]
        return ApiError(422, "Invalid", f'{self.qualified(self.name)} "{name}" is invalid: {text}',
                        {**self.details(name, self.name), "causes": shown})

    def check(self, new, old=None):
        """Raise what the validation of a new object says, or of one that takes the place of `old`."""
        more = _node(new) if self is NODE else _runtime_class(new, old) if self is RUNTIME_CLASS else []
        causes = _metadata(new.get("metadata") or {}, anything=self.group == "rbac.authorization.k8s.io") + more
        if causes:
            raise self.invalid((new.get("metadata") or {}).get("name"), causes)


NODE = Kind("Node", "nodes", "", "v1", has_status=True, create_by_put=False, blind_put=True)
RUNTIME_CLASS = Kind("RuntimeClass", "runtimeclasses", "node.k8s.io", "v1", has_status=False, create_by_put=True, blind_put=False)


def _key_is_valid(key):
    prefix, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or (len(prefix) <= 253 and bool(_SUBDOMAIN.fullmatch(prefix))))


def _value_is_valid(value):
    return isinstance(value, str) and (value == "" or bool(_NAME.fullmatch(value)))


def _labels(labels, field):
    causes = []
    for key, value in (labels or {}).items():
        if not _key_is_valid(key):
            causes.append((field, "Invalid value", f'"{key}": name part must consist of alphanumeric characters'))
        if not _value_is_valid(value):
            causes.append((field, "Invalid value", f'"{value}": a valid label must be an empty string or consist of '
                                                   "alphanumeric characters, '-', '_' or '.'"))
    return causes


def _metadata(metadata, anything=False):
    """anything: names of roles may have colons, for one."""
    causes = []
    name = metadata.get("name") or ""
    if len(name) > 253 or not (anything or _SUBDOMAIN.fullmatch(name)):
        causes.append(("metadata.name", "Invalid value", f'"{name}": a lowercase RFC 1123 subdomain must consist of {_NAME_RULE}'))
    causes += _labels(metadata.get("labels"), "metadata.labels")
    for key, value in (metadata.get("annotations") or {}).items():
        if not _key_is_valid(key.lower()) or not isinstance(value, str):
            causes.append(("metadata.annotations", "Invalid value", f'"{key}"'))
    return causes


def _node(node):
    causes = []
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
    return causes


def _runtime_class(new, old):
    causes = []
    handler = new.get("handler")
    if not isinstance(handler, str) or not _LABEL.fullmatch(handler):
        causes.append(("handler", "Invalid value", f'"{handler or ""}": a lowercase RFC 1123 label must consist of lower case alphanumeric '
                                                   "characters or '-', and must start and end with an alphanumeric character"))
    if old is not None and handler != old.get("handler"):
        causes.append(("handler", "Invalid value", f'"{handler}": field is immutable'))
    scheduling = new.get("scheduling") or {}
    causes += _labels(scheduling.get("nodeSelector"), "scheduling.nodeSelector")
    seen = []
    for place, toleration in enumerate(scheduling.get("tolerations") or []):
        field = f"scheduling.tolerations[{place}]"
        key, operator, value = toleration.get("key") or "", toleration.get("operator") or "Equal", toleration.get("value") or ""
        if key and not _key_is_valid(key):
            causes.append((field + ".key", "Invalid value", f'"{key}": name part must consist of alphanumeric characters'))
        if operator not in ("Equal", "Exists"):
            causes.append((field + ".operator", "Unsupported value", f'"{operator}": supported values: "Equal", "Exists"'))
        if not key and operator != "Exists":
            causes.append((field + ".operator", "Invalid value", f'"{operator}": operator must be Exists when `key` is empty, which means '
                                                                 '"match all values and all keys"'))
        if operator == "Exists" and value:
            causes.append((field + ".operator", "Invalid value", f'"{operator}": value must be empty when `operator` is \'Exists\''))
        if not _value_is_valid(value):
            causes.append((field + ".operator", "Invalid value", f'"{value}"'))
        if toleration.get("effect") and toleration["effect"] not in EFFECTS:
            causes.append((field + ".effect", "Unsupported value", f'"{toleration["effect"]}"'))
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            causes.append((field + ".effect", "Invalid value", f'"{toleration.get("effect") or ""}": effect must be \'NoExecute\' when '
                                                               "`tolerationSeconds` is set"))
        if toleration in seen:
            causes.append((field, "Duplicate value", str(toleration)))
        seen.append(toleration)
    return causes
