# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What RBAC cannot say about the agent's pods, as ValidatingAdmissionPolicies (Kubernetes 1.30). Pure. Private to the collection."""

from __future__ import annotations

from typing import Any

_NODE_NAME = "authentication.kubernetes.io/node-name"


def own_node(space: str, account: str) -> dict[str, Any]:
    """RBAC cannot say "your own Node": the token of a bound ServiceAccount says on which one its pod is."""
    return policy(
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]},
        [{"name": "the-agent", "expression": f'request.userInfo.username == "system:serviceaccount:{space}:{account}"'}],
        f'"{_NODE_NAME}" in request.userInfo.extra && request.userInfo.extra["{_NODE_NAME}"][0] == request.name',
        "npu-agent may only change the Node that it runs on")


def own_resource(space: str, account: str, resource: str) -> dict[str, Any]:
    """Who asks for that resource gets the driver's manager and every chip, so it is for our own pods.

    At the creation of a pod: what it asks for of such resources cannot change later, and ephemeral containers ask for nothing.
    """
    ours = f'request.namespace == "{space}" && has(object.spec.serviceAccountName) && object.spec.serviceAccountName == "{account}"'
    return policy(
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
        [{"name": "others", "expression": f"!({ours})"}],
        f"!object.spec.containers.exists(c, {asks(resource)}) && "
        f"(!has(object.spec.initContainers) || !object.spec.initContainers.exists(c, {asks(resource)}))",
        f"{resource} gives all NPUs of a node to the pods of npu.fleet and to no others; a workload asks for the resource of its chips")


def asks(resource: str) -> str:
    """Whether container c does, in CEL: limits are enough, requests follow them."""
    return " || ".join(f'(has(c.resources) && has(c.resources.{part}) && "{resource}" in c.resources.{part})'
                       for part in ("limits", "requests"))


def policy(rule: dict[str, Any], conditions: list[dict[str, str]], expression: str, message: str) -> dict[str, Any]:
    """The spec of one. Nobody gets by where it cannot be judged."""
    return {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "matchConditions": conditions,
            "validations": [{"expression": expression, "message": message}]}


def binding(name: str) -> dict[str, Any]:
    """The policy in force, everywhere."""
    return {"policyName": name, "validationActions": ["Deny"]}
