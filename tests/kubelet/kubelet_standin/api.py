# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of kubelet's device plugin API v1beta1 and of PodResources v1 (numbers as in k8s.io/kubelet/pkg/apis)."""

EMPTY = {}
OPTIONS = {"pre_start_required": (1, "bool"), "get_preferred_allocation_available": (2, "bool")}
REGISTER = {"version": (1, "string"), "endpoint": (2, "string"), "resource_name": (3, "string"), "options": (4, OPTIONS)}
NUMA_NODE = {"ID": (1, "int")}
TOPOLOGY = {"nodes": (1, [NUMA_NODE])}
DEVICE = {"ID": (1, "string"), "health": (2, "string"), "topology": (3, TOPOLOGY)}
DEVICES = {"devices": (1, [DEVICE])}
PREFERRED_REQUEST = {"container_requests": (1, [{
    "available_deviceIDs": (1, ["string"]), "must_include_deviceIDs": (2, ["string"]), "allocation_size": (3, "int"),
}])}
PREFERRED_RESPONSE = {"container_responses": (1, [{"deviceIDs": (1, ["string"])}])}
ALLOCATE_REQUEST = {"container_requests": (1, [{"devices_ids": (1, ["string"])}])}
MOUNT = {"container_path": (1, "string"), "host_path": (2, "string"), "read_only": (3, "bool")}
DEVICE_SPEC = {"container_path": (1, "string"), "host_path": (2, "string"), "permissions": (3, "string")}
ALLOCATE_RESPONSE = {"container_responses": (1, [{
    "envs": (1, "map"), "mounts": (2, [MOUNT]), "devices": (3, [DEVICE_SPEC]), "annotations": (4, "map"),
    "cdi_devices": (5, [{"name": (1, "string")}]),
}])}
PRE_START = {"devices_ids": (1, ["string"])}

CONTAINER_DEVICES = {"resource_name": (1, "string"), "device_ids": (2, ["string"]), "topology": (3, TOPOLOGY)}
CONTAINER = {"name": (1, "string"), "devices": (2, [CONTAINER_DEVICES])}
POD = {"name": (1, "string"), "namespace": (2, "string"), "containers": (3, [CONTAINER])}
LIST_RESPONSE = {"pod_resources": (1, [POD])}
ALLOCATABLE_RESPONSE = {"devices": (1, [CONTAINER_DEVICES])}
GET_REQUEST = {"pod_name": (1, "string"), "pod_namespace": (2, "string")}
GET_RESPONSE = {"pod_resources": (1, POD)}
