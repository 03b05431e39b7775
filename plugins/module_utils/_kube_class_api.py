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

    def __init__(self, configuration, timeout):
        super().__init__(configuration, timeout)
        self._classes = _kube.client.NodeV1Api(self.client)
        self._core = _kube.client.CoreV1Api(self.client)

    def get(self, name):
        """Return it as the server has it, None when there is none."""
        try:
            return self.call(CLASS, "get", name, lambda timeout: self._classes.read_runtime_class(
                name, _preload_content=False, _request_timeout=timeout))
        except FleetError as error:
            if error.code == CLASS.not_found:
                return None
            raise

    def create(self, name, body):
        """Make it. kube_conflict when somebody else just did."""
        return self.call(CLASS, "create", name, lambda timeout: self._classes.create_runtime_class(
            body, _preload_content=False, _request_timeout=timeout))

    def update(self, name, body):
        """Put it; the server compares the version in body with what it has now. kube_conflict when another was faster."""
        return self.call(CLASS, "update", name, lambda timeout: self._classes.replace_runtime_class(
            name, body, _preload_content=False, _request_timeout=timeout))

    def delete(self, name, found):
        """Delete exactly the object that was read. kube_conflict when it was changed since."""
        read = _kube.client.V1Preconditions(uid=found["metadata"]["uid"], resource_version=found["metadata"]["resourceVersion"])
        options = _kube.client.V1DeleteOptions(preconditions=read)
        try:
            self.call(CLASS, "delete", name, lambda timeout: self._classes.delete_runtime_class(
                name, body=options, _preload_content=False, _request_timeout=timeout), ("Status", CLASS.name))
        except FleetError as error:
            if error.code != CLASS.not_found:
                raise

    def users(self, name):
        """Return the pods that use it. The API cannot search for it, so all pods are read, in pages."""
        found, token = [], None
        while True:
            more = {"_continue": token} if token else {}
            page = self.call(PODS, "list", None, lambda timeout, more=more: self._core.list_pod_for_all_namespaces(
                limit=_PAGE, _preload_content=False, _request_timeout=timeout, **more), ("PodList",))
            found += _kube_class.users(page.get("items") or [], name)
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return sorted(found)

    def nodes(self, selector):
        """Return the names of the Nodes that a label selector matches."""
        page = self.call(NODES, "list", None, lambda timeout: self._core.list_node(
            label_selector=selector, _preload_content=False, _request_timeout=timeout), ("NodeList",))
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
