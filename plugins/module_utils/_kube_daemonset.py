# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as DaemonSet in a cluster: what a play does there, step by step. Runs on the controller only. Private to the collection."""

import time

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_foreign, _kube_object, _kube_object_api, _kube_ready
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

MODE_LABEL = _kube_foreign.MODE_LABEL
PART = "app.kubernetes.io/part-of=npu.fleet"
POLL_SECONDS = 1.0


class Cluster(object):
    """One API server, with what all steps need. nodes: {name of a Node of this run: value of our label there}."""

    def __init__(self, configuration, timeout, nodes):
        self.api = _kube_object_api.ObjectApi(configuration, timeout)
        self.node_api = _kube.NodeApi(configuration, timeout)
        self.nodes = nodes

    def read_nodes(self):
        """{name: Node} of those that have joined."""
        found = {}
        for name in sorted(self.nodes):
            try:
                found[name] = self.node_api.get(name)
            except FleetError as error:
                if error.code != "node_not_found":
                    raise
        return found

    def label(self, found, wanted, check_mode):
        """Have our label on Nodes as wanted ({name: value or None}); names of those that were changed."""
        changed = []
        for name, node in sorted(found.items()):
            now = (node["metadata"].get("labels") or {}).get(MODE_LABEL)
            if now != wanted.get(name):
                changed.append(name)
                if not check_mode:
                    self.node_api.patch(name, {"metadata": {"labels": {MODE_LABEL: wanted.get(name)}}})
        return changed


def others(cluster, found):
    """Device plugins of others that may have a pod on the Nodes of this run. Our label does not count: it is what keeps them off."""
    bare = []
    for name, node in found.items():
        labels = dict(node["metadata"].get("labels") or {})
        labels.setdefault(MODE_LABEL, cluster.nodes[name])
        bare.append({"metadata": {"name": name, "labels": labels}})
    return _kube_foreign.found(cluster.api.daemon_sets(), bare)


def look(cluster, objects, take_over):
    """What stands in the way, before anything is changed: rights of our user, plugins of others. Returns images and labels of the Nodes."""
    _kube_object_api.check_access(cluster.api, _kube_object_api.needed(objects, take_over) if objects else [
        ("list", "daemonsets.apps", None), ("get", "nodes", None)])
    found = cluster.read_nodes()
    there = others(cluster, found)
    if there and not take_over:
        raise _kube_foreign.refusal(there)
    return {
        "changed": False, "others": there, "missing": sorted(set(cluster.nodes) - set(found)),
        "modes": {name: (node["metadata"].get("labels") or {}).get(MODE_LABEL) for name, node in found.items()},
        "images": {name: sorted(word for image in (node.get("status") or {}).get("images") or () for word in image.get("names") or ())
                   for name, node in found.items()},
    }


def present(cluster, objects, take_over, check_mode):
    """Have the objects, our label on the Nodes, and nobody else's plugin there."""
    found = cluster.read_nodes()
    there = others(cluster, found)
    if there and not take_over:
        raise _kube_foreign.refusal(there)
    labelled = cluster.label(found, cluster.nodes, check_mode)
    done = take(cluster, there, check_mode)
    done += _kube_object_api.present(cluster.api, objects, check_mode)
    return {"changed": bool(labelled) or any(one["action"] for one in done), "objects": done, "labelled": labelled,
            "missing": sorted(set(cluster.nodes) - set(found))}


def take(cluster, there, check_mode):
    """Keep others' plugins off our Nodes."""
    done = []
    names = {(one["namespace"], one["name"]) for one in there}
    for daemon in cluster.api.daemon_sets() if there else ():
        body = _kube_foreign.taken(daemon)
        if (daemon["metadata"]["namespace"], daemon["metadata"]["name"]) in names and body is not None:
            if not check_mode:
                cluster.api.patch(daemon, body)
            done.append({"object": _kube_object.label_of(daemon), "action": "update", "why": ["kept off nodes with " + MODE_LABEL]})
    return done


def _once(ask):
    """A function that asks when it is called first, and remembers the answer."""
    told = []

    def answer():
        if not told:
            told.append(ask())
        return told[0]

    return answer


def ready(cluster, objects, seconds, *, clock=time.monotonic, sleep=time.sleep):
    """Wait until each Node of this run has a ready pod of each DaemonSet that is for it; FleetError with what each lacks."""
    daemons = [one for one in objects if one["kind"] == "DaemonSet"]
    space = daemons[0]["metadata"]["namespace"]
    end = clock() + seconds
    while True:
        pods = cluster.api.pods(space, PART)
        last = clock() >= end
        events = _once(lambda: cluster.api.events(space))
        states = {}
        for name, mode in cluster.nodes.items():
            node = {"metadata": {"name": name, "labels": {MODE_LABEL: mode}}}
            wanted = [one["metadata"]["name"] for one in daemons if _kube_foreign.selects(one["spec"]["template"]["spec"], node)]
            states[name] = _kube_ready.judge(name, wanted, pods, events if last else list)
        lacking = {name: state["reasons"] for name, state in states.items() if not state["ready"]}
        if not lacking:
            return {"changed": False, "pods": {name: state["pods"] for name, state in states.items()},
                    "addresses": {name: state["address"] for name, state in states.items() if state["address"]}}
        if last:
            raise FleetError(
                "After %d s the agent's pods are not ready on %s." % (seconds, "; ".join(
                    "%s (%s)" % (name, ". ".join(reasons)) for name, reasons in sorted(lacking.items()))),
                code="daemonset_not_ready", object=space, observed=lacking,
                hint="kubectl -n %s get pods -o wide; kubectl -n %s describe daemonset" % (space, space))
        sleep(POLL_SECONDS)


def absent(cluster, objects, check_mode, seconds, *, clock=time.monotonic, sleep=time.sleep):
    """Take our label off these Nodes and wait until their pods are gone; with the last Node go the objects, and others get theirs back."""
    found = cluster.read_nodes()
    labelled = cluster.label(found, {}, check_mode)
    if check_mode and labelled:
        return {"changed": True, "objects": [], "labelled": labelled, "kept": None}
    space = next(one["metadata"]["namespace"] for one in objects if one["kind"] == "DaemonSet")
    end = clock() + seconds
    while labelled:
        left = [pod["metadata"]["name"] for pod in cluster.api.pods(space, PART) if _kube_ready.node_of(pod) in labelled]
        if not left:
            break
        if clock() >= end:
            raise FleetError("The agent's pods did not end within %d s: %s." % (seconds, ", ".join(left)), code="daemonset_not_gone",
                             object=space, observed=left, hint="kubectl -n %s delete pod %s --force" % (space, " ".join(left)))
        sleep(POLL_SECONDS)
    others_left = cluster.api.nodes(MODE_LABEL)
    if others_left:
        return {"changed": bool(labelled), "objects": [], "labelled": labelled,
                "kept": "%d other Nodes have %s, so the objects stay." % (len(others_left), MODE_LABEL)}
    done = []
    for daemon in cluster.api.daemon_sets():
        body = _kube_foreign.given_back(daemon)
        if body is not None:
            if not check_mode:
                cluster.api.patch(daemon, body)
            done.append({"object": _kube_object.label_of(daemon), "action": "update", "why": ["its affinity of before"]})
    done += _kube_object_api.absent(cluster.api, objects, check_mode)
    return {"changed": bool(labelled) or any(one["action"] for one in done), "objects": done, "labelled": labelled, "kept": None}
