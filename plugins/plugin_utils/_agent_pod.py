# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pods of the agent's DaemonSets: each permission with the reason for it. Pure. Private to the collection."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES, resource_of
from ansible_collections.npu.fleet.plugins.module_utils._hardware._rknpu import ROCKET, SOCS

TAINT = "npu.fleet/not-ready"
RESOURCE = "npu.fleet/agent"
PORT = 8083
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  where clients in a cluster look
TOKEN_SECONDS = 3600

_BOARD_FILES = [(path, "File") for path in (
    "/etc/hdcBasic.cfg", "/etc/sys_version.conf", "/etc/ascend_install.info", "/var/slogd", "/var/dmp_daemon")]
#: What else of the host a kind of board needs, as (path, type): the vendor's own manifests mount these, files as files (a folder in the
#: place of a file is "not a directory"), and the shared memory of the host. Never a folder of the host's libraries as a whole where a
#: loader looks: its libc beside that of the image ends in SIGBUS.
PROFILES: dict[str, list[tuple[str, str]]] = {
    "server": [("/usr/local/dcmi", "Directory")],
    "a5": [("/usr/local/dcmi", "Directory")],
    "310b": [("/usr/lib64/libdcmi.so", "File"), ("/usr/lib64/libmmpa.so", "File"), ("/usr/lib64/libdrvdsmi.so", "File"), *_BOARD_FILES,
             ("/dev/shm", "Directory")],  # noqa: S108
    "rockchip": [],  # the driver is part of the kernel, and no library is asked
}

#: Where the agent sees the host's files.
HOST = "/host"
_PROGRAMS = [("/usr/local/bin", "DirectoryOrCreate"), ("/usr/local/sbin", "DirectoryOrCreate")]
#: What it sees there beside the driver's folder, by kind of board: where the driver's files for containers lie, since it promises none
#: that it has not seen. Folders that every user of a host may read, never /etc, /var or / as a whole: passwords and the kubelet's keys are
#: below them. A single file is here only where the board is known to have it: of one that is missing an engine makes a folder on the
#: host, or the pod does not start. What is not here the agent names, and says what mends it.
SEEN: dict[str, list[tuple[str, str]]] = {
    "server": [*PROFILES["server"], *_PROGRAMS],
    "a5": [*PROFILES["a5"], *_PROGRAMS, ("/usr/lib64", "DirectoryOrCreate"), ("/usr/bin", "Directory")],
    "310b": [*_PROGRAMS, ("/usr/lib64", "Directory"), ("/usr/lib", "Directory"), ("/etc/ld.so.conf.d", "DirectoryOrCreate"), *_BOARD_FILES],
}


def profile_of(families: list[str]) -> str:
    """The profile for a node with chips of these families."""
    if any(family in SOCS for family in families):
        return "rockchip"
    return next((profile for profile in ("310b", "a5") if profile in families), "server")


def label(path: str) -> str:
    """Name of a volume: lower case, with dashes."""
    return path.strip("/").replace("/", "-").replace(".", "-").replace("_", "-").lower()[-60:].strip("-")


class Volumes:
    """Volumes of a pod by the path that they have inside; each container names those that it mounts."""

    def __init__(self) -> None:
        self.volumes: list[dict[str, Any]] = []

    def add(self, source: dict[str, Any], inside: str, read_only: bool = True, name: str = "") -> dict[str, Any]:
        """The volumeMount of a new volume. name: where two containers have different ones in one place."""
        name = name or label(inside)
        if all(volume["name"] != name for volume in self.volumes):
            self.volumes.append({"name": name, **source})
        return {"name": name, "mountPath": inside, **({"readOnly": True} if read_only else {})}

    def host(self, path: str, kind: str, inside: str | None = None, read_only: bool = True) -> dict[str, Any]:
        """One of a path of the host; the same volume where it is mounted in two places."""
        return self.add({"hostPath": {"path": path, "type": kind}}, inside or path, read_only, label(path))


def security(capabilities: tuple[str, ...] = ()) -> dict[str, Any]:
    """Of a container: root without rights, but for the named ones."""
    return {
        "allowPrivilegeEscalation": False, "privileged": False, "readOnlyRootFilesystem": True, "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], **({"add": list(capabilities)} if capabilities else {})},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def tolerations(full: dict[str, Any]) -> list[dict[str, Any]]:
    """Our own taint, and those that keep pods without NPU away: of the resources of all families, and what the user names."""
    resources = {str(resource_of(name, stack)) for name in [*FAMILIES, *SOCS] for stack in (None, ROCKET)}
    keys = [TAINT, *sorted(resources), *full["tolerations"]]
    return [{"key": key, "operator": "Exists"} for key in dict.fromkeys(keys)]


def pod(full: dict[str, Any], containers: list[dict[str, Any]], volumes: Volumes) -> dict[str, Any]:
    """What both pods have. It comes with the node's own services and goes last: without it no pod that wants chips is admitted."""
    return {
        "serviceAccountName": "npu-agent", "automountServiceAccountToken": False, "enableServiceLinks": False,
        "priorityClassName": "system-node-critical", "terminationGracePeriodSeconds": 5,
        "tolerations": tolerations(full), "containers": containers, "volumes": volumes.volumes,
        **({"imagePullSecrets": [{"name": name} for name in full["pull_secrets"]]} if full["pull_secrets"] else {}),
    }


def container(full: dict[str, Any], name: str, args: list[str], memory: tuple[str, str]) -> dict[str, Any]:
    """No limit for the processor: one that is throttled would answer kubelet late."""
    return {"name": name, "image": full["image"], "imagePullPolicy": full["pull_policy"], "args": args,
            "resources": {"requests": {"cpu": "50m", "memory": memory[0]}, "limits": {"memory": memory[1]}}}


def access_pod(full: dict[str, Any]) -> dict[str, Any]:
    """Tells kubelet which device nodes the agent gets. It opens none: the host's /dev is only looked at."""
    volumes = Volumes()
    one = container(full, "access", ["access"], ("48Mi", "128Mi"))
    one["securityContext"] = security()
    one["env"] = [{"name": "NPU_AGENT_DEV_ROOT", "value": "/host/dev"}]
    extra = full["config"].get("rockchip_extra")
    if extra:  # the one setting of the agent's that says what it is to see; whatever else changes starts no such pod anew
        one["env"].append({"name": "NPU_AGENT_ROCKCHIP_EXTRA", "value": extra if isinstance(extra, str) else json.dumps(extra)})
    one["volumeMounts"] = [
        # Kubelet's own socket and those of plugins come and go, so it is the folder.
        volumes.host(full["device_plugins"], "Directory", "/var/lib/kubelet/device-plugins", read_only=False),
        volumes.host("/dev", "Directory", "/host/dev"),
    ]
    return pod(full, [one], volumes)


def agent_pod(full: dict[str, Any], profile: str) -> dict[str, Any]:
    """The device plugin, and beside it the one container that may speak with the API server."""
    volumes = Volumes()
    containers = [agent_container(full, profile, volumes)]
    if full["labels"]:
        containers.append(labels_container(full, volumes))
    return pod(full, containers, volumes)


def agent_container(full: dict[str, Any], profile: str, volumes: Volumes) -> dict[str, Any]:
    """`npu-agent serve`. DAC_OVERRIDE: the driver's device nodes belong to another user. SYSLOG: the kernel's log, for failures."""
    one = container(full, "agent", ["serve"], ("64Mi", full["memory_limit"]))
    if full["access"] == "devices":
        one["securityContext"] = security(("DAC_OVERRIDE", "SYSLOG"))
        one["resources"]["limits"][RESOURCE] = "1"
        one["resources"]["requests"][RESOURCE] = "1"
    else:
        one["securityContext"] = {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0}
    one["env"] = environment()
    one["ports"] = [{"name": "http", "containerPort": PORT, "protocol": "TCP"}]
    one["startupProbe"] = probe("/healthz", period=2, failures=30)
    one["livenessProbe"] = probe("/healthz", period=15, failures=4)
    one["readinessProbe"] = probe("/readyz", period=5, failures=2)
    mounts = [
        volumes.host(full["device_plugins"], "Directory", "/var/lib/kubelet/device-plugins", read_only=False),
        # To connect to a socket on a read-only mount is allowed: nothing is written there.
        volumes.host(f"{full['kubelet_root']}/pod-resources", "Directory", "/var/lib/kubelet/pod-resources"),
        volumes.host("/var/lib/npu-agent", "DirectoryOrCreate", read_only=False),
        # debugfs lies below it, from which the load of a Rockchip NPU is read.
        volumes.host("/sys", "Directory", f"{HOST}/sys"),
        # For root alone, and in this container alone: it may have tokens.
        volumes.add({"secret": {"secretName": "npu-agent", "defaultMode": 0o400}}, "/etc/npu-agent"),
    ]
    if profile != "rockchip":
        # A folder that is not there is waited for, and not made: an empty one would pass for a driver of somebody else's.
        driver = (f"{full['install_path']}/driver", "Directory")
        mounts += [volumes.host(*driver), volumes.host("/etc/ascend-docker-runtime.d", "DirectoryOrCreate")]
        seen = [driver, *SEEN[profile]]
        mounts += [volumes.host(path, kind, f"{HOST}{path}") for path, kind in seen]
        one["env"] += [{"name": "NPU_AGENT_HOST_ROOT", "value": HOST},
                       {"name": "NPU_AGENT_HOST_PATHS", "value": ",".join(path for path, _kind in seen)}]
    mounts += [volumes.host(path, kind) for path, kind in PROFILES[profile]]
    folder = full["config"].get("cdi_folder")
    if folder:
        mounts.append(volumes.host(folder, "DirectoryOrCreate", read_only=False))
    one["volumeMounts"] = mounts
    return one


def labels_container(full: dict[str, Any], volumes: Volumes) -> dict[str, Any]:
    """`npu-agent labels`: no device, no folder of the host, and the one token of the pod."""
    one = container(full, "labels", ["labels"], ("64Mi", "256Mi"))
    one["securityContext"] = security()
    one["env"] = environment()
    token = {"projected": {"defaultMode": 0o400, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]}}
    one["volumeMounts"] = [volumes.add(token, TOKEN_FOLDER),
                           volumes.add({"configMap": {"name": "npu-agent"}}, "/etc/npu-agent", name="labels-config")]
    return one


def environment() -> list[dict[str, Any]]:
    """What a pod can only know from kubelet."""
    return [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]


def probe(path: str, period: int, failures: int) -> dict[str, Any]:
    """An HTTP probe of the agent."""
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}
