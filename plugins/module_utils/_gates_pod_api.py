# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L4 with a real pod: create, wait, read, delete. Runs on the controller only. Private to the collection."""

import secrets
import time

from ansible_collections.npu.fleet.plugins.module_utils import _gates_pod, _kube
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import undisturbed, within

_GRANT = ("kubectl create role npu-fleet-gate --verb=create,get,list,delete --resource=pods; the verb list on events, too; then bind it to "
          "that user in the namespace of the pod.")
POD = _kube.Kind("Pod", "pods", "pod_not_found", _GRANT, "See 'kubectl get pods'.")
EVENTS = _kube.Kind("Event", "events", "event_not_found", _GRANT, "See 'kubectl get events'.")
POLL = 0.5
#: Seconds for what has to be deleted, whatever has happened; of one question, of those for events, and until what hangs is killed.
CLEANING, QUESTION, WORDS, GRACE = 30.0, 10.0, 10.0, 2.0


class PodApi(_kube.Api):
    """Pods of one namespace. Errors are FleetError."""

    def __init__(self, configuration, timeout, namespace):
        super().__init__(configuration, timeout)
        self._space = namespace

    def _send(self, method, timeout, path, name=None, **more):
        names = {"space": self._space, **({"name": name} if name else {})}
        return self.send(method, "/api/v1/namespaces/{space}/" + path, timeout, names=names, **more)

    def create(self, body):
        """Make it."""
        return self.call(POD, "create", body["metadata"]["name"], lambda timeout: self._send("POST", timeout, "pods", body=body))

    def get(self, name):
        """Return it, None when there is none."""
        try:
            return self.call(POD, "get", name, lambda timeout: self._send("GET", short(timeout), "pods/{name}", name))
        except FleetError as error:
            if error.code == POD.not_found:
                return None
            raise

    def matching(self, selector):
        """The pods that a label selector matches."""
        page = self.call(POD, "list", None, lambda timeout: self._send(
            "GET", short(timeout), "pods", query={"labelSelector": selector}), ("PodList",))
        return page.get("items") or []

    def delete(self, name):
        """Delete it at once; it is no error when it is gone."""
        try:
            self.call(POD, "delete", name, lambda timeout: self._send(
                "DELETE", timeout, "pods/{name}", name, body={"gracePeriodSeconds": 0}), ("Status", POD.name))
        except FleetError as error:
            if error.code != POD.not_found:
                raise

    def events(self, name):
        """A pod's events; none where the user may not read them, because they only add words."""
        try:
            page = self.call(EVENTS, "list", None, lambda timeout: self._send(
                "GET", timeout, "events", query={"fieldSelector": "involvedObject.name=%s" % name}), ("EventList",))
        except FleetError:
            return []
        return [one for one in page.get("items") or [] if (one.get("involvedObject") or {}).get("name") == name]


def short(timeout):
    """Timeouts of one question among many: a connection that is stuck must not take the time of all."""
    return tuple(min(seconds, QUESTION) for seconds in timeout)


def transient(error):
    """Whether the next question may be answered: the server is away or has a fault, and has refused nothing."""
    return error.code in ("kube_unreachable", "kube_conflict") or str(error.observed).startswith(("HTTP 429", "HTTP 5"))


def remove(api, names):
    """Delete these pods, wait until they are gone; return what is left, as texts. What fails is tried again until the time is over."""
    left, problem = dict.fromkeys(names, False), None
    while left:
        for name in sorted(left):
            try:
                if not left[name]:
                    api.delete(name)
                    left[name] = True
                if api.get(name) is None:
                    del left[name]
            except FleetError as error:
                problem = error
                if not transient(error):
                    return [str(error)]
        if left and api.left() <= POLL:
            break
        time.sleep(POLL if left else 0)
    return ["pod %s%s" % (name, ": %s" % problem if problem else "") for name in sorted(left)]


def clean(connect, find):
    """`remove` with a limit of its own, whatever the server does. ``find``: makes the names of what has to go, with an api."""
    def look():
        api = connect(CLEANING)
        return remove(api, find(api))

    try:
        looked = within(CLEANING + GRACE, look, GRACE)
    except FleetError as error:
        return [str(error)]
    return ["unknown, because the Kubernetes API did not answer within %g s" % CLEANING] if looked.timed_out else looked.value


def try_pod(connect, node, seconds, **more):
    """Start the pod, wait for its end, read what it saw, and delete it whatever happens. Nothing here takes longer than it may.

    ``connect``: makes a PodApi with so many seconds. Returns what `_gates_pod.checks` takes. Another run may be at work on the same node:
    only pods that are too old for that are deleted beforehand, and afterwards only our own.
    """
    body = _gates_pod.manifest(node, secrets.token_hex(3), seconds=seconds, **more)
    name, selector = body["metadata"]["name"], _gates_pod.selector(node)
    # No connection is made by that; but the client's models are loaded, for a second and more, and each look would do so anew.
    connect(seconds)
    outcome = {"pod": name, "why": None, "failure": None, "seen": None, "warnings": [], "left": [], "status": None}
    left = clean(connect, lambda api: _gates_pod.leftovers(api.matching(selector), time.time()))
    if left:
        return dict(outcome, failure="what an earlier run may have left cannot be deleted: %s" % left[0], left=left)
    try:
        looked = within(seconds + WORDS + GRACE, lambda: watch(connect, body, seconds, outcome), GRACE)
        if looked.timed_out:
            outcome["failure"] = "%s was not over within %g s: the Kubernetes API does not finish its answer" % (name, seconds)
        else:
            outcome = looked.value
    except FleetError as error:
        outcome["failure"] = str(error)
    finally:
        with undisturbed():
            outcome["left"] = clean(connect, lambda api: [name])
    return outcome


def watch(connect, body, seconds, outcome):
    """The pod's life; returns the outcome."""
    began, name, resource = time.monotonic(), body["metadata"]["name"], list(body["spec"]["containers"][0]["resources"]["limits"])[0]
    api = connect(seconds)
    try:
        api.create(body)
    except FleetError as error:
        return dict(outcome, failure=str(error))
    pod, ended, failure, waits = None, False, None, "nothing is known of it"
    while not ended and time.monotonic() < began + seconds:
        time.sleep(POLL)
        try:
            pod = api.get(name)
        except FleetError as error:
            if not transient(error):
                return dict(outcome, failure=str(error))
            waits = str(error)
            continue
        if pod is None:
            return dict(outcome, failure="somebody has deleted %s" % name)
        ended, failure, waits = _gates_pod.progress(pod)
    if not ended:
        failure = "%s was not over within %g s: %s" % (name, seconds, waits)
    pod = pod or {}
    return dict(outcome, status=pod.get("status"), failure=failure, why=_gates_pod.full(pod, resource) if failure else None,
                seen=None if failure else _gates_pod.message(pod),
                warnings=_gates_pod.warnings(connect(WORDS).events(name)) if failure else [])
