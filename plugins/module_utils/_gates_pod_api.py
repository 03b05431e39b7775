# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L4 with a real pod: create, wait, read, delete. Runs on the controller only. Private to the collection."""

import secrets
import time

from ansible_collections.npu.fleet.plugins.module_utils import _gates_pod, _kube
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

_GRANT = ("kubectl create role npu-fleet-gate --verb=create,get,list,delete --resource=pods; the verb list on events, too; then bind it to "
          "that user in the namespace of the pod.")
POD = _kube.Kind("Pod", "pods", "pod_not_found", _GRANT, "See 'kubectl get pods'.")
EVENTS = _kube.Kind("Event", "events", "event_not_found", _GRANT, "See 'kubectl get events'.")
POLL = 0.5
#: Seconds for what has to be deleted, whatever has happened.
CLEANING = 30


class PodApi(_kube.Api):
    """Pods of one namespace. Errors are FleetError."""

    def __init__(self, configuration, timeout, namespace):
        super().__init__(configuration, timeout)
        self._core, self._space = _kube.client.CoreV1Api(self.client), namespace

    def create(self, body):
        """Make it."""
        return self.call(POD, "create", body["metadata"]["name"], lambda timeout: self._core.create_namespaced_pod(
            self._space, body, _preload_content=False, _request_timeout=timeout))

    def get(self, name):
        """Return it, None when there is none."""
        try:
            return self.call(POD, "get", name, lambda timeout: self._core.read_namespaced_pod(
                name, self._space, _preload_content=False, _request_timeout=timeout))
        except FleetError as error:
            if error.code == POD.not_found:
                return None
            raise

    def names(self, selector):
        """Names of the pods that a label selector matches."""
        page = self.call(POD, "list", None, lambda timeout: self._core.list_namespaced_pod(
            self._space, label_selector=selector, _preload_content=False, _request_timeout=timeout), ("PodList",))
        return sorted(one["metadata"]["name"] for one in page.get("items") or [])

    def delete(self, name):
        """Delete it at once; it is no error when it is gone."""
        options = _kube.client.V1DeleteOptions(grace_period_seconds=0)
        try:
            self.call(POD, "delete", name, lambda timeout: self._core.delete_namespaced_pod(
                name, self._space, body=options, _preload_content=False, _request_timeout=timeout), ("Status", POD.name))
        except FleetError as error:
            if error.code != POD.not_found:
                raise

    def events(self, name):
        """A pod's events; none where the user may not read them, because they only add words."""
        try:
            page = self.call(EVENTS, "list", None, lambda timeout: self._core.list_namespaced_event(
                self._space, field_selector="involvedObject.name=%s" % name, _preload_content=False, _request_timeout=timeout),
                ("EventList",))
        except FleetError:
            return []
        return [one for one in page.get("items") or [] if (one.get("involvedObject") or {}).get("name") == name]


def clean(api, selector):
    """Delete the pods of this gate on this node, wait until they are gone; return what is left, as texts."""
    until = time.monotonic() + CLEANING
    try:
        names = api.names(selector)
        for name in names:
            api.delete(name)
        while names and time.monotonic() < until:
            names = api.names(selector)
            if names:
                time.sleep(POLL)
    except FleetError as error:
        return [str(error)]
    return ["pod %s" % name for name in names]


def try_pod(connect, node, seconds, **more):
    """Start the pod, wait for its end, read what it saw, and delete it whatever happens.

    ``connect``: makes a PodApi with so many seconds. Returns what `_gates_pod.checks` takes.
    """
    began = time.monotonic()
    body = _gates_pod.manifest(node, secrets.token_hex(3), seconds=seconds, **more)
    name, selector = body["metadata"]["name"], _gates_pod.selector(node)
    outcome = {"pod": name, "failure": None, "seen": None, "warnings": [], "left": [], "status": None}
    left = clean(connect(CLEANING * 2), selector)
    if left:
        return dict(outcome, failure="what an earlier run may have left cannot be deleted: %s" % left[0], left=left)
    try:
        api = connect(seconds)
        api.create(body)
        pod, ended, waits = None, False, "nothing is known of it"
        while not ended and time.monotonic() < began + seconds:
            time.sleep(POLL)
            pod = api.get(name)
            if pod is None:
                outcome["failure"] = "somebody has deleted %s" % name
                break
            ended, outcome["failure"], waits = _gates_pod.progress(pod)
        if not ended and outcome["failure"] is None:
            outcome["failure"] = "%s was not over within %g s: %s" % (name, seconds, waits)
        outcome["status"] = (pod or {}).get("status")
        outcome["seen"] = _gates_pod.message(pod) if pod and outcome["failure"] is None else None
        outcome["warnings"] = _gates_pod.warnings(connect(10).events(name)) if outcome["failure"] else []
    except FleetError as error:
        outcome["failure"] = str(error)
    finally:
        outcome["left"] = clean(connect(CLEANING * 2), selector)
    return outcome
