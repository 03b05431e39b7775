# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubelet itself tells of devices, and what it would ask a plugin for a pod. Private to the collection.

Messages and field numbers: k8s.io/kubelet, pkg/apis/podresources/v1 and deviceplugin/v1beta1, api.proto. GetAllocatableResources is there
since Kubernetes 1.21 and on by default since 1.23; List since 1.15.
"""

import os
import stat

from ansible_collections.npu.fleet.plugins.module_utils import _grpc
from ansible_collections.npu.fleet.plugins.module_utils._cri import _messages, _text, parse

KUBELET_DIR = "/var/lib/kubelet"
#: How our agent names its sockets: `npu-agent-NAME.sock`, where NAME begins as the resource's name does (session.py).
SOCKETS = "npu-agent-"
_NAME_ROOM = 15
#: What tells our agent that it is no pod that asks: its audit must not look for one.
MARK = (("npu-fleet-gate", "1"),)
#: How a kubelet before 1.23 says that it was told not to answer (pkg/kubelet/apis/podresources/server_v1.go).
_DISABLED = "GetAllocatableResources disabled"
#: Seconds of one question; kubelet and plugin answer in milliseconds.
SECONDS = 5


# --- protobuf ------------------------------------------------------------------------------------------------------------

def field(number, value):
    """One field of a message: bytes or text by their length, a number as it is."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode("utf-8") if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _texts(fields, number):
    return [value.decode("utf-8", "replace") for value in fields.get(number, []) if isinstance(value, bytes)]


def _map(fields, number):
    """A map<string, string>: entries with key 1 and value 2."""
    return {_text(entry, 1): _text(entry, 2) for entry in _messages(fields, number)}


# --- kubelet -------------------------------------------------------------------------------------------------------------

def devices_of(rows):
    """{resource: [ids]} of ContainerDevices; kubelet sends one entry for each device (measured)."""
    found = {}
    for row in rows:
        ids = found.setdefault(_text(row, 1), [])
        ids += [one for one in _texts(row, 2) if one not in ids]
    return {name: sorted(ids) for name, ids in found.items()}


def ask_kubelet(kubelet_dir=KUBELET_DIR, timeout=SECONDS):
    """``{"socket", "allocatable": {resource: [ids]}, "used": {resource: {id: "namespace/pod"}}, "error", "excused"}``; the error is a text
    where kubelet did not tell both. It is ``excused`` where this kubelet cannot tell: one that hangs or talks nonsense is not."""
    socket = os.path.join(kubelet_dir, "pod-resources", "kubelet.sock")
    answer = {"socket": socket, "allocatable": {}, "used": {}, "error": None, "excused": False}
    if not os.path.lexists(socket):
        return dict(answer, error="there is no %s" % socket, excused=True)
    try:
        told = parse(_grpc.unary(socket, "/v1.PodResourcesLister/GetAllocatableResources", b"", timeout))
        listed = parse(_grpc.unary(socket, "/v1.PodResourcesLister/List", b"", timeout))
    except (_grpc.GrpcError, ValueError) as error:
        excused = getattr(error, "status", None) == _grpc.UNIMPLEMENTED or _DISABLED in str(error)
        return dict(answer, error="kubelet does not tell its devices at %s: %s" % (socket, error), excused=excused)
    used = {}
    for pod in _messages(listed, 1):
        name = "%s/%s" % (_text(pod, 2), _text(pod, 1))
        for container in _messages(pod, 3):
            for resource, ids in devices_of(_messages(container, 2)).items():
                used.setdefault(resource, {}).update((one, name) for one in ids)
    return dict(answer, allocatable=devices_of(_messages(told, 1)), used=used)


def free_ids(kubelet, resource):
    """Ids of a resource that may take work and that no pod has, by kubelet's own word."""
    taken = kubelet["used"].get(resource, {})
    return [one for one in kubelet["allocatable"].get(resource, []) if one not in taken]


# --- the plugin, as kubelet asks it --------------------------------------------------------------------------------------

def plugin_sockets(kubelet_dir, resource):
    """Sockets of our agent that may be those of this resource."""
    folder, begin = os.path.join(kubelet_dir, "device-plugins"), SOCKETS + resource.rpartition("/")[2][:_NAME_ROOM]
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(begin) and name.endswith(".sock"))
        return [os.path.join(folder, name) for name in names if stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode)]
    except OSError:
        return []


def preferred(socket, available, timeout=SECONDS):
    """Which of these ids the plugin would give to a container that asks for one."""
    request = b"".join(field(1, one) for one in available) + field(3, 1)
    answer = parse(_grpc.unary(socket, "/v1beta1.DevicePlugin/GetPreferredAllocation", field(1, request), timeout, metadata=MARK))
    chosen = [one for row in _messages(answer, 1) for one in _texts(row, 1) if one in available]
    return chosen[0] if chosen else available[0]


def allocate(socket, one, timeout=SECONDS):
    """The plugin's answer for a container with this id: ``{"envs", "mounts", "devices", "annotations", "cdi_devices"}``. GrpcError."""
    answer = parse(_grpc.unary(socket, "/v1beta1.DevicePlugin/Allocate", field(1, field(1, one)), timeout, metadata=MARK))
    rows = _messages(answer, 1)
    if not rows:
        raise _grpc.GrpcError(_grpc.INTERNAL, "no containers return in allocation response")
    given = rows[0]
    return {
        "envs": _map(given, 1),
        "mounts": [{"container_path": _text(row, 1), "host_path": _text(row, 2), "read_only": bool(row.get(3, [0])[-1])}
                   for row in _messages(given, 2)],
        "devices": [{"container_path": _text(row, 1), "host_path": _text(row, 2), "permissions": _text(row, 3)}
                    for row in _messages(given, 3)],
        "annotations": _map(given, 4),
        "cdi_devices": [_text(row, 1) for row in _messages(given, 5)],
    }
