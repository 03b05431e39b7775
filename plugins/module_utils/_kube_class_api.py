# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RuntimeClasses of a cluster: read, decide, send. Runs on the controller only. Private to the collection."""

import random
import time

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_class
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

_GRANT = ("kubectl create clusterrole npu-fleet-runtime-class --verb=get,create,update,delete --resource=runtimeclasses.node.k8s.io; "
          "then bind it to that user.")
_GRANT_LIST = "kubectl create clusterrole npu-fleet-list --verb=list --resource=pods,nodes; then bind it to that user."
CLASS = _kube.Kind("RuntimeClass", "runtimeclasses", "runtime_class_not_found", _GRANT, "See 'kubectl get runtimeclass'.")
PODS = _kube.Kind("Pod", "pods", "pod_not_found", _GRANT_LIST, "See 'kubectl get pods -A'.")
NODES = _kube.Kind("Node", "nodes", "node_not_found", _GRANT_LIST, "See 'kubectl get nodes'.")

_PAGE = 500


class ClassApi(_kube.Api):
    """One RuntimeClass, and who uses it. Errors are FleetError."""

    PATH = "/apis/node.k8s.io/v1/runtimeclasses"

    def _one(self, verb, method, name, body=None, answers=None):
        return self.call(CLASS, verb, name, lambda timeout: self.send(
            method, self.PATH + "/{name}", timeout, names={"name": name}, body=body), answers)

    def get(self, name):
        """Return it as the server has it, None when there is none."""
        try:
            return self._one("get", "GET", name)
        except FleetError as error:
            if error.code == CLASS.not_found:
                return None
            raise

    def create(self, name, body):
        """Make it. kube_conflict when somebody else just did."""
        return self.call(CLASS, "create", name, lambda timeout: self.send("POST", self.PATH, timeout, body=body))

    def update(self, name, body):
        """Put it; the server compares the version in body with what it has now. kube_conflict when another was faster."""
        return self._one("update", "PUT", name, body)

    def delete(self, name, found):
        """Delete exactly the object that was read. kube_conflict when it was changed since."""
        read = {"uid": found["metadata"]["uid"], "resourceVersion": found["metadata"]["resourceVersion"]}
        try:
            self._one("delete", "DELETE", name, {"preconditions": read}, ("Status", CLASS.name))
        except FleetError as error:
            if error.code != CLASS.not_found:
                raise

    def users(self, name):
        """Return the pods that use it. The API cannot search for it, so all pods are read, in pages."""
        found, token = [], None
        while True:
            query = {"limit": _PAGE, **({"continue": token} if token else {})}
            page = self.call(PODS, "list", None, lambda timeout, query=query: self.send(
                "GET", "/api/v1/pods", timeout, query=query), ("PodList",))
            found += _kube_class.users(page.get("items") or [], name)
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return sorted(found)

    def nodes(self, selector):
        """Return the names of the Nodes that a label selector matches."""
        page = self.call(NODES, "list", None, lambda timeout: self.send(
            "GET", "/api/v1/nodes", timeout, query={"labelSelector": selector}), ("NodeList",))
        return sorted(node["metadata"]["name"] for node in page.get("items") or [])


def _again(api, name, step):
    """Run step, again from its start where another writer was faster, until the deadline."""
    while True:
        try:
            return step()
        except FleetError as error:
            if error.code != "kube_conflict":
                raise
            if api.left() <= 0:
                raise FleetError("The RuntimeClass '%s' was changed by other writers each time we tried." % name, code="kube_conflict",
                                 phase=error.phase, object=name, observed=error.observed,
                                 hint="Find the other writer: kubectl get runtimeclass %s -o yaml --show-managed-fields" % name) from None
            # Two writers that both wait the same time would meet again.
            time.sleep(random.uniform(0.02, 0.2))  # noqa: S311


def present(api, want, check_mode=False):
    """Have it as wanted. Returns {"before", "after", "action"}."""

    def step():
        planned = _kube_class.plan(api.get(want["name"]), want)
        if planned["action"] and not check_mode:
            made = getattr(api, planned["action"])(want["name"], planned["body"])
            if _kube_class.view(made, want) != planned["after"]:
                raise FleetError("The API accepted the RuntimeClass '%s' but shows other values than were sent." % want["name"],
                                 code="kube_error", phase=planned["action"], object=want["name"], observed=_kube_class.view(made, want),
                                 hint="An admission webhook or another controller changes it.")
        return {"before": planned["before"], "after": planned["after"], "action": planned["action"]}

    return _again(api, want["name"], step)


def absent(api, want, when_used, unless_nodes=None, check_mode=False):
    """Have none, unless somebody else made it or it is still needed. Returns {"before", "after", "action", "kept", "users"}."""
    name = want["name"]

    def step():
        found = api.get(name)
        before = _kube_class.view(found, want)
        answer = {"before": before, "after": before, "action": None, "kept": None, "users": []}
        if found is None:
            return answer
        if not _kube_class.is_ours(found):
            answer["kept"] = "The RuntimeClass '%s' was made by somebody else (it has no label %s=%s) and was left." % (
                name, _kube_class.OWNER_LABEL, _kube_class.OWNER)
            return answer
        answer["users"] = api.users(name)
        answer["kept"] = _kube_class.keeps(name, answer["users"], api.nodes(unless_nodes) if unless_nodes else [], unless_nodes)
        if answer["kept"]:
            if when_used == "refuse":
                raise FleetError(answer["kept"] + " It was not deleted: such pods could not be started again.", code="runtime_class_used",
                                 phase="delete", object=name, observed=answer["users"],
                                 hint="See 'kubectl get pods -A -o wide'; end them, or leave the RuntimeClass.")
            return answer
        if not check_mode:
            api.delete(name, found)
        answer.update(after={}, action="delete")
        return answer

    return _again(api, name, step)
