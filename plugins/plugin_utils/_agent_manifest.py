# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's objects for the agent as DaemonSet: pure data from the options of the role npu_device_plugin. Private to the collection.

Why two DaemonSets: a pod gets device nodes from kubelet by a resource, from DRA, or by being privileged, and by nothing else. A CDI
annotation on a pod is not among them: kubelet hands a container's annotations to the engine, and the pod's are not in them
(kuberuntime/labels.go newContainerAnnotations), while containerd and CRI-O read CDI names from the container's only. So a small pod
without any device, `npu-agent-access`, serves the resource `npu.fleet/agent`, and the agent asks for one of it.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._kube_class import OWNER, OWNER_LABEL
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_pod import PROFILES, access_pod, agent_pod, profile_of

NAME = "npu-agent"
ACCESS = "npu-agent-access"
MODE_LABEL = "npu.fleet/agent"
DEFAULTS: dict[str, Any] = {
    "namespace": "npu-fleet", "image": "", "access": "devices", "profiles": ["server"], "config": {}, "kubelet_root": "/var/lib/kubelet",
    "install_path": "/usr/local/Ascend", "pull_policy": "IfNotPresent", "pull_secrets": [], "tolerations": [], "memory_limit": "512Mi",
    "confine": True, "labels": True,
}
ACCESS_WAYS = ("devices", "privileged")


def mode_of(profile: str) -> str:
    """Value of the label that a node of this profile has."""
    return "daemonset" if profile == "server" else f"daemonset-{profile}"


def profile_and_label(families: list[str]) -> dict[str, str]:
    """{"profile", "label"} of a node with chips of these families."""
    profile = profile_of(families)
    return {"profile": profile, "label": mode_of(profile)}


def name_of(profile: str) -> str:
    """Name of the DaemonSet for it."""
    return NAME if profile == "server" else f"{NAME}-{profile}"


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options with defaults, or FleetError."""
    unknown = sorted(set(options) - set(DEFAULTS))
    if unknown:
        raise FleetError(f"There is no option {', '.join(unknown)} of the agent's manifests.", "invalid_option", object=unknown[0])
    full = {**copy.deepcopy(DEFAULTS), **options}
    if not full["image"]:
        raise FleetError("The DaemonSet needs an image and none is named.", "invalid_option", object="npu_device_plugin_image",
                         hint="Build one with the playbook npu.fleet.image, and set npu_device_plugin_image to what it prints.")
    if full["access"] not in ACCESS_WAYS:
        raise FleetError(f"npu_device_plugin_access is {full['access']!r}; there are {', '.join(ACCESS_WAYS)}.", "invalid_option",
                         object="npu_device_plugin_access", observed=full["access"],
                         hint="A CDI annotation is no way: kubelet does not hand a pod's annotations to the engine for its containers.")
    strange = [profile for profile in full["profiles"] if profile not in PROFILES]
    if strange or not full["profiles"]:
        raise FleetError(f"There is no profile {strange}; there are {', '.join(sorted(PROFILES))}.", "invalid_option", object="profiles")
    return full


def manifests(options: dict[str, Any]) -> list[dict[str, Any]]:
    """All objects in the order in which they are to be made."""
    full = checked(options)
    objects = [namespace(full), service_account(full), config_map(full)]
    if full["labels"]:
        objects += [cluster_role(), cluster_role_binding(full)]
        objects += [admission_policy(full), admission_binding()] if full["confine"] else []
    if full["access"] == "devices":
        objects.append(daemon_set(ACCESS, access_pod(full), full, list(map(mode_of, full["profiles"]))))
    for profile in full["profiles"]:
        objects.append(daemon_set(name_of(profile), agent_pod(full, profile, config_text(full)), full, [mode_of(profile)]))
    return objects


def metadata(name: str, space: str | None = None, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Name and labels of one of our objects."""
    return {"name": name, **({"namespace": space} if space else {}),
            "labels": {OWNER_LABEL: OWNER, "app.kubernetes.io/part-of": "npu.fleet", **(labels or {})}}


def namespace(full: dict[str, Any]) -> dict[str, Any]:
    """Our own namespace. Host folders need the level `privileged` of Pod Security; no pod of ours is privileged by default."""
    level = {f"pod-security.kubernetes.io/{kind}": "privileged" for kind in ("enforce", "audit", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(full["namespace"], labels=level)}


def service_account(full: dict[str, Any]) -> dict[str, Any]:
    """No pod gets its token by itself: one container mounts one that lives for an hour."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(NAME, full["namespace"]),
            "automountServiceAccountToken": False}


def config_text(full: dict[str, Any]) -> str:
    """The agent's configuration file. Probes come from the node to the pod's address, so it listens on all of the pod's."""
    settings = {"listen": "0.0.0.0:8083",  # the pod has a network of its own
                "sysfs_root": "/host/sys", "audit_file": "",  # into the log of the pod
                **({"install_path": full["install_path"]} if full["install_path"] != "/usr/local/Ascend" else {}), **full["config"]}
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(settings.items()))


def config_map(full: dict[str, Any]) -> dict[str, Any]:
    """One configuration for all nodes."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(NAME, full["namespace"]),
            "data": {"config.yaml": config_text(full)}}


def cluster_role() -> dict[str, Any]:
    """What `npu-agent labels` does, and nothing else: it reads its Node and patches labels and taints."""
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata(NAME),
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]}


def cluster_role_binding(full: dict[str, Any]) -> dict[str, Any]:
    """Who may."""
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata(NAME),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": full["namespace"]}]}


def admission_policy(full: dict[str, Any]) -> dict[str, Any]:
    """RBAC cannot say "your own Node": the token of a bound ServiceAccount says on which one its pod is (Kubernetes 1.30)."""
    user = f"system:serviceaccount:{full['namespace']}:{NAME}"
    node = "authentication.kubernetes.io/node-name"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": metadata(f"{NAME}-own-node"),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}]},
            "matchConditions": [{"name": "the-agent", "expression": f'request.userInfo.username == "{user}"'}],
            "validations": [{
                "expression": f'"{node}" in request.userInfo.extra && request.userInfo.extra["{node}"][0] == request.name',
                "message": "npu-agent may only change the Node that it runs on"}],
        },
    }


def admission_binding() -> dict[str, Any]:
    """The policy in force."""
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata(f"{NAME}-own-node"), "spec": {"policyName": f"{NAME}-own-node", "validationActions": ["Deny"]}}


def daemon_set(name: str, pod: dict[str, Any], full: dict[str, Any], modes: list[str]) -> dict[str, Any]:
    """On the nodes that the play has labelled for it: no pod idles on others, and none comes beside an agent of the other mode.

    Never two on a node (maxSurge 0): kubelet's clean-up after the old one would hit the new one.
    """
    labels = {"app.kubernetes.io/name": name}
    terms = [{"matchExpressions": [{"key": MODE_LABEL, "operator": "In", "values": modes}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    digest = hashlib.sha256(config_text(full).encode()).hexdigest()[:16]
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata(name, full["namespace"], labels),
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "revisionHistoryLimit": 3,
            "template": {
                "metadata": {"labels": {**labels, "app.kubernetes.io/part-of": "npu.fleet"},
                             "annotations": {"npu.fleet/config": digest} if name != ACCESS else {}},
                "spec": {**pod, "affinity": affinity},
            },
        },
    }
