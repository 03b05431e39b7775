# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to a container engine over the Container Runtime Interface, the way kubelet asks. Private to the collection.

Messages and field numbers: k8s.io/cri-api, pkg/apis/runtime/v1/api.proto; v1alpha2 has the same numbers for what is asked here. v1 is
tried first, v1alpha2 (containerd 1.5 and older) when the server does not know v1.
"""

import json
import struct

from ansible_collections.npu.fleet.plugins.module_utils import _grpc
from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

SERVICES = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
VERBOSE = b"\x08\x01"  # StatusRequest.verbose = true
READY, NOT_READY = "ready", "notready"

CODES = {_grpc.UNIMPLEMENTED: "cri_missing", _grpc.DEADLINE_EXCEEDED: "cri_timeout", _grpc.UNAVAILABLE: "cri_unreachable"}
HINTS = {
    "cri_missing": "The engine runs without its CRI part: its journal tells why ('failed to load plugin'; containerd: `ctr plugins ls`).",
    "cri_unreachable": "`systemctl status` of the engine's unit tells whether it runs.",
    "cri_timeout": "The engine hangs: `journalctl -u` of its unit tells where.",
}


def version(socket, timeout):
    """Return ``{"name", "version", "api"}`` of the engine behind a socket, e.g. containerd, 1.6.20, v1."""
    return _version(socket, timeout)[0]


def _version(socket, timeout):
    answer, service = _ask(socket, "Version", b"", timeout)
    return {"name": _text(answer, 2), "version": _text(answer, 3), "api": _text(answer, 4)}, service


def status(socket, timeout):
    """Return what the running engine says of itself.

    ``ready`` (its condition RuntimeReady), ``conditions`` (``{name: {"status", "reason", "message"}}``), ``handlers`` (names of the
    runtimes it lists, None where it lists none: containerd below 2.0, cri-o below 1.31), ``config`` (its own record of the CRI
    configuration, None where it gives none; registries, which may hold passwords, are left out), ``version`` and ``name`` of the engine.
    Raises FleetError ``cri_missing`` (the engine runs, its CRI plugin does not), ``cri_unreachable``, ``cri_timeout``, ``cri_error``.
    """
    known, service = _version(socket, timeout)
    answer = _ask(socket, "Status", VERBOSE, timeout, (service,))[0]
    conditions = {}
    for fields in (inner for outer in _messages(answer, 1) for inner in _messages(outer, 1)):
        conditions[_text(fields, 1)] = {
            "status": bool(_number(fields, 2)), "reason": _text(fields, 3), "message": mask_text(_text(fields, 4)),
        }
    # The handler without a name is the default one.
    handlers = sorted(name for name in (_text(fields, 1) for fields in _messages(answer, 3)) if name)
    info = {_text(fields, 1): _text(fields, 2) for fields in _messages(answer, 2)}
    return {
        "ready": conditions.get("RuntimeReady", {}).get("status", False),
        "conditions": conditions,
        "handlers": handlers or None,
        "config": _config(info.get("config")),
        "version": known["version"],
        "name": known["name"],
    }


def _config(text):
    try:
        config = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(config, dict):
        return None
    return {key: value for key, value in config.items() if key not in ("registry", "imageDecryption")}


def sandboxes(socket, timeout):
    """Return the pods that the engine has, running or not.

    ``[{"name", "namespace", "handler", "id", "state"}]``; ``handler`` is "" for the default runtime, ``state`` is ready or notready.
    """
    answer = _ask(socket, "ListPodSandbox", b"", timeout)[0]
    found = []
    for fields in _messages(answer, 1):
        names = (_messages(fields, 2) or [{}])[0]
        found.append({
            "name": _text(names, 1),
            "namespace": _text(names, 3),
            "handler": _text(fields, 7),
            "id": _text(fields, 1),
            "state": NOT_READY if _number(fields, 3) else READY,
        })
    return sorted(found, key=lambda pod: (pod["namespace"], pod["name"], pod["id"]))


def _ask(socket, method, request, timeout, services=SERVICES):
    """Return the answer's fields and the service that gave it."""
    first = None
    for service in services:
        try:
            return parse(_grpc.unary(socket, "/%s/%s" % (service, method), request, timeout)), service
        except _grpc.GrpcError as error:
            first = first or error
            if error.status != _grpc.UNIMPLEMENTED:
                raise _error(socket, method, error) from error
        except ValueError as error:
            raise _error(socket, method, _grpc.GrpcError(_grpc.INTERNAL, "the answer is no such message: %s" % error)) from error
    # Neither is known; the words of the first try, for v1 is what should be there.
    raise _error(socket, method, first) from first


def _error(socket, method, error):
    code = CODES.get(error.status, "cri_error")
    return FleetError(
        "%s did not answer the CRI call %s: %s." % (socket, method, mask_text(error.message).rstrip(".")), code, phase="ask", object=socket,
        observed="gRPC status %d" % error.status, hint=HINTS.get(code),
    )


# --- protobuf on the wire (encoding: protobuf.dev, "Encoding") ---


def parse(data):
    """Return ``{field: [values]}`` of a message; a value is an int or bytes. ValueError for what is no message."""
    fields = {}
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
        elif kind == 2:
            length, position = _varint(data, position)
            value = data[position:position + length]
            if len(value) != length:
                raise ValueError("a field breaks off")
            position += length
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            if position + size > len(data):
                raise ValueError("a field breaks off")
            value = struct.unpack_from("<Q" if kind == 1 else "<I", data, position)[0]
            position += size
        else:
            raise ValueError("wire type %d" % kind)
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(data, position):
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number breaks off")
        byte = bytearray(data[position:position + 1])[0]
        position += 1
        value |= (byte & 127) << shift
        if not byte & 128:
            return value, position
        shift += 7


def _fields(data):
    try:
        return parse(data)
    except ValueError:
        return {}


def _messages(fields, number):
    """Return the messages in a field, as fields."""
    return [_fields(value) for value in fields.get(number, []) if isinstance(value, bytes)]


def _text(fields, number):
    values = fields.get(number, [b""])
    return values[-1].decode("utf-8", "replace") if isinstance(values[-1], bytes) else ""


def _number(fields, number):
    values = fields.get(number, [0])
    return values[-1] if isinstance(values[-1], int) else 0
