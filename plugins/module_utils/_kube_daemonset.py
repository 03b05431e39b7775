# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as DaemonSet in a cluster: what a play does there, step by step. Runs on the controller only. Private to the collection."""

import base64
import time

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_foreign, _kube_object, _kube_object_api, _kube_ready
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

MODE_LABEL = _kube_foreign.MODE_LABEL
PART = "app.kubernetes.io/part-of=npu.fleet"
POLL_SECONDS = 1.0
_DAEMON_MODE = "daemonset"


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

    def joined(self):
        """The same, FleetError where one has not."""
        found = self.read_nodes()
        missing = sorted(set(self.nodes) - set(found))
        if missing:
            raise FleetError(
                "The cluster has no Node %s. Its kubelet has not joined, or it has another name there. Nothing was changed."
                % ", ".join(missing), code="node_not_found", object=missing[0], observed=missing,
                hint="See `kubectl get nodes`; npu_fleet_node_name says what a host is called there. Take hosts that have not joined out "
                     "of the run with -l, or have npu_device_plugin_mode: systemd, which waits for kubelet.")
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


def filled(objects, config):
    """The objects with the text that came apart from them, so that no log shows it."""
    text = base64.b64encode((config or "").encode("utf-8")).decode("ascii")
    return [dict(one, data=dict.fromkeys(one["data"], text)) if one["kind"] == "Secret" and config else one for one in objects]


def same_architecture(found, more, arch):
    """FleetError where one of these Nodes could not run the image."""
    if not arch:
        return
    names = {}
    for node in list(found.values()) + more:
        its = (node["metadata"].get("labels") or {}).get("kubernetes.io/arch")
        if its not in (None, arch):
            names.setdefault(its, set()).add(node["metadata"]["name"])
    if names:
        shown = "; ".join("%s on %s" % (its, ", ".join(sorted(nodes))) for its, nodes in sorted(names.items()))
        raise FleetError(
            "The image was built for %s, and the agent's pods would run on other processors, too: %s. Nothing was changed." % (arch, shown),
            code="mixed_architectures", object=arch, observed=sorted(names),
            hint="Put an image for all of them into a registry: build with npu.fleet.image once for each (npu_image_arch), push both, join "
                 "them with `docker manifest create` or `podman manifest`, and set npu_device_plugin_image to that name.")


def refuse(cluster, objects, take_over, arch=None):
    """All that stands in the way, before anything is changed: rights, Nodes, plugins and objects of others, what the server lacks.

    Returns (Nodes, plugins of others).
    """
    _kube_object_api.check_access(cluster.api, _kube_object_api.needed(objects, take_over) if objects else [
        ("list", "daemonsets.apps", None), ("get", "nodes", None)])
    found = cluster.joined()
    if objects and arch:
        same_architecture(found, cluster.api.items("Node", "CoreV1Api", "list_node", label_selector=MODE_LABEL), arch)
    there = others(cluster, found)
    if there and not take_over:
        raise _kube_foreign.refusal(there)
    _kube_object_api.planned(cluster.api, objects)
    return found, there


def look(cluster, objects, take_over, arch=None):
    """What stands in the way. Returns images and labels of the Nodes."""
    found, there = refuse(cluster, objects, take_over, arch)
    return {
        "changed": False, "others": there,
        "modes": {name: (node["metadata"].get("labels") or {}).get(MODE_LABEL) for name, node in found.items()},
        "images": {name: sorted(word for image in (node.get("status") or {}).get("images") or () for word in image.get("names") or ())
                   for name, node in found.items()},
    }


def present(cluster, objects, take_over, check_mode):
    """Have the objects, our label on the Nodes, and nobody else's plugin there; and no object of ours that is not wanted any more."""
    found = cluster.joined()
    there = others(cluster, found)
    if there and not take_over:
        raise _kube_foreign.refusal(there)
    old = _kube_object_api.leftover(cluster.api, objects, cluster.api.daemon_sets(), objects) if objects else []
    steps = _kube_object_api.planned(cluster.api, objects)
    # Two of ours on one node would take the chips from each other, so those DaemonSets go first and all else last.
    done = _kube_object_api.discard(cluster.api, [one for one in old if one["kind"] == "DaemonSet"], check_mode)
    done += _kube_object_api.carry_out(cluster.api, steps, check_mode)
    labelled = cluster.label(found, cluster.nodes, check_mode)
    done += take(cluster, there, check_mode)
    done += _kube_object_api.discard(cluster.api, [one for one in old if one["kind"] != "DaemonSet"], check_mode)
    return {"changed": bool(labelled) or any(one["action"] for one in done), "objects": done, "labelled": labelled}


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
        found = {one["metadata"]["name"]: one for one in cluster.api.ours("DaemonSet", space)}
        pods = cluster.api.pods(space, PART)
        last = clock() >= end
        events = _once(lambda: cluster.api.events(space))
        states = {}
        for name, mode in cluster.nodes.items():
            node = {"metadata": {"name": name, "labels": {MODE_LABEL: mode}}}
            wanted = [one for one in daemons if _kube_foreign.selects(one["spec"]["template"]["spec"], node)]
            states[name] = _kube_ready.judge(name, wanted, pods, events if last else list, found)
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


def spaces_of(cluster, objects):
    """Namespaces in which pods of ours may be: the one of now, and those of DaemonSets of before."""
    found = {one["metadata"]["namespace"] for one in objects if one["kind"] == "DaemonSet"}
    for daemon in cluster.api.daemon_sets():
        if _kube_object.is_ours(daemon):
            found.add(daemon["metadata"]["namespace"])
    return sorted(found)


def of_daemon_set(mode):
    """Whether pods run where our label has this value."""
    return (mode or "").startswith(_DAEMON_MODE)


def paused(cluster, objects, check_mode, seconds, *, every=False, clock=time.monotonic, sleep=time.sleep):
    """Take our label off these Nodes and wait until their pods are gone. Returns what the labels were.

    every: also where it only keeps plugins of others off. A value of another mode takes the place of ours, so that they do not come back.
    """
    found = cluster.read_nodes()
    if not every:
        found = {name: node for name, node in found.items() if of_daemon_set((node["metadata"].get("labels") or {}).get(MODE_LABEL))}
    wanted = {} if every else {name: mode for name, mode in cluster.nodes.items() if mode and not of_daemon_set(mode)}
    labelled = cluster.label(found, wanted, check_mode)
    modes = {name: (found[name]["metadata"].get("labels") or {}).get(MODE_LABEL) for name in labelled}
    spaces = spaces_of(cluster, objects) if labelled and not check_mode else []
    end = clock() + seconds
    while spaces:
        left = [pod["metadata"]["namespace"] + "/" + pod["metadata"]["name"] for space in spaces for pod in cluster.api.pods(space, PART)
                if _kube_ready.node_of(pod) in labelled]
        if not left:
            break
        if clock() >= end:
            raise FleetError("The agent's pods did not end within %d s: %s." % (seconds, ", ".join(left)), code="daemonset_not_gone",
                             object=left[0], observed=left, hint="; ".join(
                                 "kubectl -n %s delete pod %s --force" % tuple(name.split("/")) for name in left))
        sleep(POLL_SECONDS)
    return {"changed": bool(labelled), "labelled": labelled, "modes": modes}


def resumed(cluster, check_mode):
    """Put our label on these Nodes again."""
    labelled = cluster.label(cluster.joined(), cluster.nodes, check_mode)
    return {"changed": bool(labelled), "labelled": labelled}


def absent(cluster, objects, check_mode, seconds, *, clock=time.monotonic, sleep=time.sleep):
    """Take our label off these Nodes and wait until their pods are gone; with the last Node go the objects, and others get theirs back."""
    labelled = paused(cluster, objects, check_mode, seconds, every=True, clock=clock, sleep=sleep)["labelled"]
    if check_mode and labelled:
        return {"changed": True, "objects": [], "labelled": labelled, "kept": None}
    others_left = cluster.api.nodes(MODE_LABEL)
    if others_left:
        return {"changed": bool(labelled), "objects": [], "labelled": labelled,
                "kept": "%d other Nodes have %s, so the objects stay." % (len(others_left), MODE_LABEL)}
    done = []
    daemons = cluster.api.daemon_sets()
    for daemon in daemons:
        body = _kube_foreign.given_back(daemon)
        if body is not None:
            if not check_mode:
                cluster.api.patch(daemon, body)
            done.append({"object": _kube_object.label_of(daemon), "action": "update", "why": ["our expression taken out of its affinity"]})
    done += _kube_object_api.discard(cluster.api, _kube_object_api.leftover(cluster.api, objects, daemons, []), check_mode)
    return {"changed": bool(labelled) or any(one["action"] for one in done), "objects": done, "labelled": labelled, "kept": None}
