# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of the stand-in beside Nodes and RuntimeClasses, who may do what by RBAC, and the controller that makes a DaemonSet's pods.

What is taken from a real server: addresses, versions, namespaces that must exist, requests that need a right, ClusterRoles bound to
ServiceAccounts, tokens bound to a pod with the name of its node in `extra`, SelfSubjectAccessReview. No admission, no quota, no garbage
collection but that a DaemonSet's pods go with it. Which rule allowed what is kept in `used`.
"""

import copy
import secrets
import uuid

from kube_rules import NODE, RUNTIME_CLASS, ApiError, Kind

MERGE_PATCH = "application/merge-patch+json"
RBAC, ADMISSION, REVIEW = "rbac.authorization.k8s.io", "admissionregistration.k8s.io", "authorization.k8s.io"


def kind(name, resource, group="", version="v1", *, status=False, namespaced=False):
    return Kind(name, resource, group, version, has_status=status, create_by_put=False, blind_put=True, namespaced=namespaced)


NAMESPACE = kind("Namespace", "namespaces", status=True)
SERVICE_ACCOUNT = kind("ServiceAccount", "serviceaccounts", namespaced=True)
SECRET = kind("Secret", "secrets", namespaced=True)
CONFIG_MAP = kind("ConfigMap", "configmaps", namespaced=True)
POD = kind("Pod", "pods", status=True, namespaced=True)
EVENT = kind("Event", "events", namespaced=True)
CLUSTER_ROLE = kind("ClusterRole", "clusterroles", RBAC)
CLUSTER_ROLE_BINDING = kind("ClusterRoleBinding", "clusterrolebindings", RBAC)
POLICY = kind("ValidatingAdmissionPolicy", "validatingadmissionpolicies", ADMISSION, status=True)
POLICY_BINDING = kind("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", ADMISSION)
DAEMON_SET = kind("DaemonSet", "daemonsets", "apps", status=True, namespaced=True)
MORE = (NAMESPACE, SERVICE_ACCOUNT, SECRET, CONFIG_MAP, POD, EVENT, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, POLICY, POLICY_BINDING, DAEMON_SET)
KINDS = {(one.group, one.version, one.resource): one for one in (NODE, RUNTIME_CLASS, *MORE)}


class Place:
    """What an address means: kind, namespace, name, subresource; review for an access review."""

    def __init__(self, kind, namespace=None, name=None, subresource=None):
        self.kind, self.namespace, self.name, self.subresource = kind, namespace, name, subresource

    @property
    def key(self):
        """The name in a store."""
        return f"{self.namespace}/{self.name}" if self.kind.namespaced else self.name


def place(path):
    """The Place of a path; ApiError where there is none."""
    parts = path.strip("/").split("/")
    head, rest = (("", parts[1]), parts[2:]) if parts[0] == "api" else (tuple(parts[1:3]), parts[3:])
    namespace = None
    if len(rest) >= 3 and rest[0] == "namespaces" and (*head, rest[2]) in KINDS:
        namespace, rest = rest[1], rest[2:]
    found = KINDS.get((*head, rest[0])) if rest and len(parts) > 2 else None
    more = rest[1:]
    if found is None or len(more) > 2 or (found.namespaced and more and namespace is None) or (namespace and not found.namespaced):
        raise ApiError(404, "NotFound", "the server could not find the requested resource", {})
    subresources = (("status",) if found.has_status else ()) + (("token",) if found is SERVICE_ACCOUNT else ())
    if len(more) == 2 and more[1] not in subresources:
        raise ApiError(404, "NotFound", "the server could not find the requested resource", {})
    return Place(found, namespace, *more)


def allows(rule, verb, group, resource):
    """One rule of a role."""
    return all("*" in rule.get(key, ()) or word in rule.get(key, ()) for key, word in (
        ("verbs", verb), ("apiGroups", group), ("resources", resource)))


class Rights:
    """Who may do what: users with a list of verbs, ServiceAccounts by the ClusterRoles that are bound to them."""

    def __init__(self, stores):
        self.stores, self.used, self.refused = stores, set(), set()

    def rules(self, user):
        """(role, rule) of a ServiceAccount."""
        for binding in self.stores[CLUSTER_ROLE_BINDING].list():
            subjects = [f"system:serviceaccount:{one.get('namespace')}:{one.get('name')}" for one in binding.get("subjects") or ()
                        if one.get("kind") == "ServiceAccount"]
            if user["name"] in subjects and self.stores[CLUSTER_ROLE].has(binding["roleRef"]["name"]):
                role = self.stores[CLUSTER_ROLE].get(binding["roleRef"]["name"])
                for rule in role.get("rules") or ():
                    yield role["metadata"]["name"], rule

    def may(self, user, verb, group, resource, note=True):
        """Whether; with note it is kept what was asked, and by which role it was allowed."""
        if not user.get("account"):
            whole = resource.partition("/")[0]
            return verb in user["verbs"].get(resource, user["verbs"].get(whole, user["verbs"].get("*", ())))
        role = next((name for name, rule in self.rules(user) if allows(rule, verb, group, resource)), None)
        if note:
            (self.used if role else self.refused).add((role or user["name"], verb, f"{resource}.{group}" if group else resource))
        return role is not None

    def review(self, user, body):
        """The answer to a SelfSubjectAccessReview."""
        asked = (body.get("spec") or {}).get("resourceAttributes") or {}
        resource = asked.get("resource", "") + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        allowed = self.may(user, asked.get("verb", ""), asked.get("group", ""), resource, note=False)
        return {**body, "kind": "SelfSubjectAccessReview", "apiVersion": f"{REVIEW}/v1", "status": {"allowed": allowed}}


def account_user(namespace, name, pod=None, node=None):
    """The user that a token of a ServiceAccount stands for; one of a pod says on which node that is (Kubernetes 1.30)."""
    extra = {"authentication.kubernetes.io/pod-name": [pod]} if pod else {}
    extra.update({"authentication.kubernetes.io/node-name": [node]} if node else {})
    return {"name": f"system:serviceaccount:{namespace}:{name}", "verbs": {}, "account": True, "extra": extra}


def new_token():
    return secrets.token_hex(24)


# --- the controller of DaemonSets

def matches(expression, labels):
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return (key in labels) == (operator == "Exists")


def selects(pod_spec, node):
    """Whether nodeSelector and required affinity of a pod let it on a node, and its tolerations too."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod_spec.get("nodeSelector") or {}).items()):
        return False
    wanted = ((pod_spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (wanted or {}).get("nodeSelectorTerms")
    if terms is not None and not any(all(matches(one, labels) for one in term.get("matchExpressions") or ()) for term in terms):
        return False
    tolerated = {one.get("key") for one in pod_spec.get("tolerations") or ()}
    return all(taint["key"] in tolerated or None in tolerated or taint["effect"] == "PreferNoSchedule"
               for taint in (node.get("spec") or {}).get("taints") or ())


def reconcile(stores):
    """Make the pods of all DaemonSets what they should be: one on each node that fits, of the newest template."""
    nodes = stores[NODE].list()
    sets = {one["metadata"]["uid"]: one for one in stores[DAEMON_SET].list()}
    there = set()
    for pod in stores[POD].list():
        owner = next((one["uid"] for one in pod["metadata"].get("ownerReferences") or () if one["kind"] == "DaemonSet"), None)
        if owner is None:
            continue
        daemon, node = sets.get(owner), next((one for one in nodes if one["metadata"]["name"] == pod["spec"].get("nodeName")), None)
        newest = daemon and pod["metadata"]["annotations"]["stand-in/generation"] == str(daemon["metadata"]["generation"])
        if not newest or node is None or not selects(daemon["spec"]["template"]["spec"], node):
            stores[POD].delete(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        else:
            there.add((owner, node["metadata"]["name"]))
    for uid, daemon in sets.items():
        for node in nodes:
            if (uid, node["metadata"]["name"]) not in there and selects(daemon["spec"]["template"]["spec"], node):
                stores[POD].create(pod_of(daemon, node["metadata"]["name"]))
        if (daemon.get("status") or {}).get("observedGeneration") != daemon["metadata"]["generation"]:
            told = {"status": {"observedGeneration": daemon["metadata"]["generation"]}}
            stores[DAEMON_SET].patch(f"{daemon['metadata']['namespace']}/{daemon['metadata']['name']}", MERGE_PATCH, told, "status")


def pod_of(daemon, node):
    template, meta = copy.deepcopy(daemon["spec"]["template"]), daemon["metadata"]
    return {
        "metadata": {"name": f"{meta['name']}-{uuid.uuid4().hex[:5]}", "namespace": meta["namespace"],
                     "labels": template["metadata"].get("labels") or {},
                     "annotations": {**(template["metadata"].get("annotations") or {}), "stand-in/generation": str(meta["generation"])},
                     "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"],
                                          "controller": True}]},
        "spec": {**template["spec"], "nodeName": node}, "status": {"phase": "Pending"}}
