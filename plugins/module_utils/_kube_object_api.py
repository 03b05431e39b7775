# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's objects in a cluster: read, decide, send. Runs on the controller only. Private to the collection."""

import random
import time

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_object
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

#: kind: (resource with its group, class of the client, word in its methods, whether it has a namespace)
KINDS = {
    "Namespace": ("namespaces", "CoreV1Api", "namespace", False),
    "ServiceAccount": ("serviceaccounts", "CoreV1Api", "service_account", True),
    "Secret": ("secrets", "CoreV1Api", "secret", True),
    "ConfigMap": ("configmaps", "CoreV1Api", "config_map", True),
    "ClusterRole": ("clusterroles.rbac.authorization.k8s.io", "RbacAuthorizationV1Api", "cluster_role", False),
    "ClusterRoleBinding": ("clusterrolebindings.rbac.authorization.k8s.io", "RbacAuthorizationV1Api", "cluster_role_binding", False),
    "ValidatingAdmissionPolicy": (
        "validatingadmissionpolicies.admissionregistration.k8s.io", "AdmissionregistrationV1Api", "validating_admission_policy", False),
    "ValidatingAdmissionPolicyBinding": (
        "validatingadmissionpolicybindings.admissionregistration.k8s.io", "AdmissionregistrationV1Api",
        "validating_admission_policy_binding", False),
    "DaemonSet": ("daemonsets.apps", "AppsV1Api", "daemon_set", True),
}
VERBS = ("get", "list", "create", "update", "delete")
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
OURS = "%s=%s,app.kubernetes.io/part-of=npu.fleet" % (_kube_object.OWNER_LABEL, _kube_object.OWNER)
_PAGE = 500


def words(kind):
    """The kind as errors speak of it, with the command that grants what is missing."""
    resource = KINDS[kind][0]
    grant = "kubectl create clusterrole npu-fleet-deploy --verb=get,list,create,update,delete --resource=%s; then bind it." % resource
    return _kube.Kind(kind, resource, "kube_object_not_found", grant, "See 'kubectl get %s'." % resource)


def review_of(attributes):
    """A SelfSubjectAccessReview."""
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}


class ObjectApi(_kube.Api):
    """Objects of the kinds above, by their manifests. Errors are FleetError."""

    def _do(self, verb, about, *args, **kwargs):
        kind, space = about["kind"], about["metadata"].get("namespace")
        resource, api, word, spaced = KINDS[kind]
        word = "namespaced_" + word if spaced else word
        method = {"get": "read_", "update": "replace_"}.get(verb, verb + "_") + word
        call = getattr(getattr(_kube.client, api)(self.client), method)
        given = list(args)
        if spaced:
            given.insert(0 if verb == "create" else 1, space)
        answers = (kind, "Status") if verb == "delete" else (kind,)
        return self.call(words(kind), verb, about["metadata"]["name"], lambda timeout: call(
            *given, _preload_content=False, _request_timeout=timeout, **kwargs), answers)

    def get(self, body):
        """The object as the server has it, None where there is none."""
        try:
            return self._do("get", body, body["metadata"]["name"])
        except FleetError as error:
            if error.code == "kube_object_not_found":
                return None
            raise

    def create(self, body):
        """Make it."""
        return self._do("create", body, body)

    def update(self, body):
        """Put it; the server compares the version in it."""
        return self._do("update", body, body["metadata"]["name"], body)

    def patch(self, found, body):
        """Send a strategic merge patch, which is what the client chooses for a mapping."""
        return self._do("patch", found, found["metadata"]["name"], body)

    def delete(self, found):
        """Delete exactly what was read; a DaemonSet's pods go with it."""
        read = _kube.client.V1Preconditions(uid=found["metadata"]["uid"])
        options = _kube.client.V1DeleteOptions(preconditions=read, propagation_policy="Foreground")
        try:
            self._do("delete", found, found["metadata"]["name"], body=options)
        except FleetError as error:
            if error.code != "kube_object_not_found":
                raise

    def may(self, verb, resource, space=None):
        """Whether our user may do this (SelfSubjectAccessReview)."""
        name, _dot, group = resource.partition(".")
        attributes = {"verb": verb, "resource": name, "group": group}
        if space:
            attributes["namespace"] = space
        review = review_of(attributes)
        access = _kube.client.AuthorizationV1Api(self.client)
        kind = _kube.Kind("SelfSubjectAccessReview", "selfsubjectaccessreviews.authorization.k8s.io", "kube_error", "", "")
        answer = self.call(kind, "create", None, lambda timeout: access.create_self_subject_access_review(
            review, _preload_content=False, _request_timeout=timeout), ("SelfSubjectAccessReview",))
        return bool((answer.get("status") or {}).get("allowed"))

    def items(self, kind, api, method, *args, **kwargs):
        """All items of a list, in pages."""
        found, token = [], None
        call = getattr(getattr(_kube.client, api)(self.client), method)
        listed = _kube.Kind(kind, KINDS[kind][0] if kind in KINDS else kind.lower() + "s", "kube_error", "kubectl create clusterrole "
                            "npu-fleet-list --verb=list --resource=%ss; then bind it to that user." % kind.lower(), "")
        while True:
            more = dict(kwargs, **({"_continue": token} if token else {}))
            page = self.call(listed, "list", None, lambda timeout, more=more: call(
                *args, limit=_PAGE, _preload_content=False, _request_timeout=timeout, **more), (kind + "List",))
            found += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found

    def has_policies(self):
        """Whether the server has ValidatingAdmissionPolicies (from Kubernetes 1.30)."""
        found = _kube.client.AdmissionregistrationV1Api(self.client)
        kind = _kube.Kind("APIResourceList", "admissionregistration.k8s.io/v1", "kube_error", "", "")
        told = self.call(kind, "get", None, lambda timeout: found.get_api_resources(
            _preload_content=False, _request_timeout=timeout), ("APIResourceList",))
        return any(one.get("kind") == POLICIES[0] for one in told.get("resources") or ())

    def ours(self, kind, space=None):
        """What we made of a kind: in one namespace, or what has none."""
        _resource, api, word, spaced = KINDS[kind]
        where = (space,) if spaced else ()
        method = "list_%s%s" % ("namespaced_" if spaced else "", word)
        return [dict(one, kind=kind) for one in self.items(kind, api, method, *where, label_selector=OURS)]

    def daemon_sets(self):
        """All of the cluster."""
        return [dict(one, kind="DaemonSet") for one in self.items("DaemonSet", "AppsV1Api", "list_daemon_set_for_all_namespaces")]

    def pods(self, space, selector):
        """Those of a namespace that a selector matches."""
        return self.items("Pod", "CoreV1Api", "list_namespaced_pod", space, label_selector=selector)

    def events(self, space):
        """Those of a namespace, oldest first."""
        found = self.items("Event", "CoreV1Api", "list_namespaced_event", space)
        return sorted(found, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")

    def nodes(self, selector):
        """Names of the Nodes that a selector matches."""
        return sorted(node["metadata"]["name"] for node in self.items("Node", "CoreV1Api", "list_node", label_selector=selector))


def needed(objects, take_over=False):
    """[(verb, resource, namespace)] that a play needs for these objects, once each."""
    found = []
    for body in objects:
        resource, _api, _word, _spaced = KINDS[body["kind"]]
        for verb in VERBS:
            found.append((verb, resource, body["metadata"].get("namespace")))
    space = next((body["metadata"]["namespace"] for body in objects if body["metadata"].get("namespace")), None)
    found += [("list", "daemonsets.apps", None), ("list", "nodes", None), ("list", "pods", space), ("list", "events", space),
              ("get", "nodes", None), ("patch", "nodes", None)] + ([("patch", "daemonsets.apps", None)] if take_over else [])
    return list(dict.fromkeys(found))


def check_access(api, wishes):
    """FleetError that names all that our user may not, before anything is changed."""
    lacking = [wish for wish in wishes if not api.may(*wish)]
    if not lacking:
        return
    shown = ", ".join("%s %s%s" % (verb, resource, " in %s" % space if space else "") for verb, resource, space in lacking)
    verbs = {}
    for verb, resource, _space in lacking:
        verbs.setdefault(resource, []).append(verb)
    lines = ["kubectl create clusterrole npu-fleet-deploy-%d --verb=%s --resource=%s" % (number, ",".join(verbs[resource]), resource)
             for number, resource in enumerate(sorted(verbs), 1)]
    raise FleetError("The user of the kubeconfig may not: %s. Nothing was changed." % shown, code="kube_forbidden", observed=lacking,
                     hint="Grant it (a kubelet's own kubeconfig never has these rights), then bind it to that user: %s" % "; ".join(lines))


def again(api, step):
    """Run step, from its start where another writer was faster, until the deadline."""
    while True:
        try:
            return step()
        except FleetError as error:
            if error.code != "kube_conflict" or api.left() <= 0:
                raise
            time.sleep(random.uniform(0.02, 0.2))  # noqa: S311


def planned(api, objects):
    """[(object, what has to change)]; FleetError for the first that cannot be, before anything is changed."""
    if any(one["kind"] in POLICIES for one in objects) and not api.has_policies():
        raise FleetError(
            "The cluster has no ValidatingAdmissionPolicy (it comes with Kubernetes 1.30). Without one any pod of any tenant could ask for "
            "npu.fleet/agent and get all NPUs of a node. Nothing was changed.", code="kube_too_old", object=POLICIES[0],
            hint="npu_device_plugin_access: privileged together with npu_device_plugin_confine: false has no such resource; "
                 "or npu_device_plugin_confine: false alone, where all who may make pods may have the NPUs; or npu_device_plugin_mode: "
                 "systemd.")
    return [(wanted, _kube_object.plan(api.get(wanted), wanted)) for wanted in objects]


def leftover(api, objects, daemons, wanted):
    """What we made and is not wanted: of another namespace, way or kind of boards. Last made kinds first.

    Looked for in the namespaces of these objects, those that we made, and those of our DaemonSets.
    """
    spaces = {one["metadata"]["namespace"] for one in objects if one["metadata"].get("namespace")}
    spaces |= {one["metadata"]["namespace"] for one in daemons if _kube_object.is_ours(one) and _part(one)}
    namespaces = api.ours("Namespace")
    spaces |= {one["metadata"]["name"] for one in namespaces}
    wanted = {_kube_object.label_of(one) for one in wanted}
    policies = api.has_policies()
    found = []
    for kind in reversed(list(KINDS)):
        if kind in POLICIES and not policies:
            continue
        places = sorted(spaces) if KINDS[kind][3] else [None]
        there = namespaces if kind == "Namespace" else [one for space in places for one in api.ours(kind, space)]
        found += [one for one in there if _kube_object.label_of(one) not in wanted]
    return found


def _part(found):
    return (found["metadata"].get("labels") or {}).get("app.kubernetes.io/part-of") == "npu.fleet"


def discard(api, found, check_mode=False):
    """Delete what was listed as ours. [{"object", "action", "why"}]."""
    for one in found:
        if not check_mode:
            api.delete(one)
    return [{"object": _kube_object.label_of(one), "action": "delete", "why": ["it is wanted no more"]} for one in found]


def carry_out(api, steps, check_mode=False):
    """Do what planned() says, in its order. [{"object", "action", "why"}]."""
    done = []
    for wanted, step in steps:
        if step["action"] and not check_mode:
            def send(wanted=wanted):
                now = _kube_object.plan(api.get(wanted), wanted)
                if now["action"]:
                    getattr(api, now["action"])(now["body"])
            again(api, send)
        done.append({"object": _kube_object.label_of(wanted), "action": step["action"], "why": step["why"]})
    return done
