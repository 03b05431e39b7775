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

import base64
import json
from typing import Any

from ansible_collections.npu.fleet.plugins.module_utils._kube_class import OWNER, OWNER_LABEL
from ansible_collections.npu.fleet.plugins.module_utils._kube_object import SPEC, TEMPLATE, digest
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_options import checked
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_pod import RESOURCE, access_pod, agent_pod, profile_of
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_policy import binding, own_node, own_resource

NAME = "npu-agent"
ACCESS = "npu-agent-access"
MODE_LABEL = "npu.fleet/agent"
#: Settings whose values may be tokens, and the one that goes with them: in the Secret only.
GUARDED = ("backend", "devices", "endpoints")


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


def manifests(options: dict[str, Any]) -> list[dict[str, Any]]:
    """All objects in the order in which they are to be made. What confines our pods comes before them."""
    full = checked(options)
    objects = [namespace(full), service_account(full), config_map(full), secret(full)]
    policies = []
    if full["labels"]:
        objects += [cluster_role(), cluster_role_binding(full)]
        policies.append((f"{NAME}-own-node", own_node(full["namespace"], NAME)))
    if full["access"] == "devices":
        policies.append((f"{NAME}-own-resource", own_resource(full["namespace"], NAME, RESOURCE)))
    for name, spec in policies if full["confine"] else ():
        objects += [{**admission("ValidatingAdmissionPolicy", name), "spec": spec},
                    {**admission("ValidatingAdmissionPolicyBinding", name), "spec": binding(name)}]
    if full["access"] == "devices":
        objects.append(daemon_set(ACCESS, access_pod(full), full, list(map(mode_of, full["profiles"]))))
    for profile in full["profiles"]:
        objects.append(daemon_set(name_of(profile), agent_pod(full, profile), full, [mode_of(profile)]))
    for one in objects:
        one["metadata"]["annotations"] = {SPEC: digest(one)}
    return objects


def without_secrets(options: dict[str, Any]) -> list[dict[str, Any]]:
    """The same, for places that print what they get: the Secret is empty, config_text() is what belongs into it."""
    return [{**one, "data": dict.fromkeys(one["data"], "")} if one["kind"] == "Secret" else one for one in manifests(options)]


def whole_config(options: dict[str, Any]) -> str:
    """The agent's configuration file from the same options."""
    return config_text(checked(options))


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


def config_text(full: dict[str, Any], guarded: tuple[str, ...] = ()) -> str:
    """The agent's configuration file. Probes come from the node to the pod's addresses, of either family, so it listens on all."""
    settings = {"listen": ":8083",  # the pod has a network of its own
                "sysfs_root": "/host/sys", "audit_file": "/var/lib/npu-agent/audit.jsonl",  # the one folder of the host that it may write
                **({"install_path": full["install_path"]} if full["install_path"] != "/usr/local/Ascend" else {}), **full["config"]}
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(settings.items()) if key not in guarded)


def config_map(full: dict[str, Any]) -> dict[str, Any]:
    """The configuration for the container that writes labels: without what may be a token."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(NAME, full["namespace"]),
            "data": {"config.yaml": config_text(full, GUARDED)}}


def secret(full: dict[str, Any]) -> dict[str, Any]:
    """The whole configuration, for the agent: variables that it gives to containers may be tokens."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(NAME, full["namespace"]), "type": "Opaque",
            "data": {"config.yaml": base64.b64encode(config_text(full).encode()).decode()}}


def cluster_role() -> dict[str, Any]:
    """What `npu-agent labels` does, and nothing else: it reads its Node and patches labels and taints."""
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata(NAME),
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]}


def cluster_role_binding(full: dict[str, Any]) -> dict[str, Any]:
    """Who may."""
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata(NAME),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": full["namespace"]}]}


def admission(kind: str, name: str) -> dict[str, Any]:
    """A policy, or the binding that has it in force."""
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata(name)}


def daemon_set(name: str, pod: dict[str, Any], full: dict[str, Any], modes: list[str]) -> dict[str, Any]:
    """On the nodes that the play has labelled for it: no pod idles on others, and none comes beside an agent of the other mode.

    Never two on a node (maxSurge 0): kubelet's clean-up after the old one would hit the new one.
    """
    labels = {"app.kubernetes.io/name": name}
    terms = [{"matchExpressions": [{"key": MODE_LABEL, "operator": "In", "values": modes}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    annotations = {"npu.fleet/config": digest({"data": config_text(full)})} if name != ACCESS else {}
    template = {"metadata": {"labels": {**labels, "app.kubernetes.io/part-of": "npu.fleet"}, "annotations": annotations},
                "spec": {**pod, "affinity": affinity}}
    # By it a pod of this template is told from one of before.
    annotations = {**annotations, TEMPLATE: digest({"data": template})}
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata(name, full["namespace"], labels),
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": full["max_unavailable"], "maxSurge": 0}},
            "revisionHistoryLimit": 3,
            "template": {**template, "metadata": {**template["metadata"], "annotations": annotations}},
        },
    }
