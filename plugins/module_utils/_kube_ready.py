# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the agent's pods run on a node, and why not. Pure. Private to the collection."""

from ansible_collections.npu.fleet.plugins.module_utils._kube_object import TEMPLATE

_EVENTS = 5


def is_ready(pod):
    """The condition that the probes decide."""
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in (pod.get("status") or {}).get("conditions") or ())


def is_current(pod, daemon):
    """Whether a pod is of the template of now, and not about to end. One of before would tell of an image that goes."""
    wanted = ((daemon["spec"]["template"].get("metadata") or {}).get("annotations") or {}).get(TEMPLATE)
    return not pod["metadata"].get("deletionTimestamp") and (pod["metadata"].get("annotations") or {}).get(TEMPLATE) == wanted


def is_seen(daemon):
    """Whether the controller has read the DaemonSet as it is now."""
    return ((daemon.get("status") or {}).get("observedGeneration") or 0) >= (daemon["metadata"].get("generation") or 0)


def owner_of(pod):
    """Name of the DaemonSet that made it."""
    return next((one["name"] for one in pod["metadata"].get("ownerReferences") or () if one.get("kind") == "DaemonSet"), None)


def node_of(pod):
    """Where it is to run: a pod that is not bound yet says so in the affinity that the DaemonSet's controller gave it."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        return spec["nodeName"]
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for one in term.get("matchFields") or ():
            if one.get("key") == "metadata.name" and len(one.get("values") or ()) == 1:
                return one["values"][0]
    return None


def why_not(pod):
    """What keeps a pod from being ready, one text each."""
    status, found = pod.get("status") or {}, []
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            found.append("not scheduled: %s" % (condition.get("message") or condition.get("reason")))
    if status.get("phase") == "Failed":
        found.append("%s: %s" % (status.get("reason") or "failed", status.get("message") or "no message"))
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        waiting, ended = state.get("waiting"), (one.get("lastState") or {}).get("terminated") or state.get("terminated")
        if waiting and waiting.get("reason") != "ContainerCreating":
            found.append("container %s waits: %s %s" % (one["name"], waiting.get("reason"), waiting.get("message") or ""))
        if ended and ended.get("exitCode"):
            found.append("container %s ended with %s: %s" % (one["name"], ended["exitCode"], ended.get("message") or ended.get("reason")))
    return [text.strip() for text in found]


def of_events(events, names):
    """The newest warnings about objects of these names, as texts; where no pod was made, admission tells here why."""
    told = [event for event in events if event.get("type") == "Warning" and (event.get("involvedObject") or {}).get("name") in names]
    return ["%s: %s" % (event.get("reason"), (event.get("message") or "").strip()) for event in told[-_EVENTS:]]


def judge(node, wanted, pods, events, found=None):
    """{"ready", "reasons", "pods", "address"} of a node: each of the wanted DaemonSets has a pod there that is ready and of its template.

    events: a function, asked only where that is not so. found: {name: DaemonSet of the cluster}, to see what its controller has read.
    """
    here = [pod for pod in pods if node_of(pod) == node]
    reasons, serving = [], []
    if not wanted:
        reasons.append("no DaemonSet of the agent is for its kind of board; see npu_device_plugin_profiles")
    for daemon in wanted:
        name = daemon["metadata"]["name"]
        mine = [pod for pod in here if owner_of(pod) == name]
        now = [pod for pod in mine if is_current(pod, daemon)]
        # The one that serves chips is the last of a node's DaemonSets.
        serving = [pod for pod in now if is_ready(pod)]
        seen = found is None or (name in found and is_seen(found[name]))
        if serving and seen:
            continue
        told = [text for pod in now for text in why_not(pod)]
        told += of_events(events(), [name] + [pod["metadata"]["name"] for pod in mine])
        if not told:
            told = [_state(mine, now, seen)]
        reasons += ["DaemonSet %s: %s" % (name, text) for text in dict.fromkeys(told)]
    return {"ready": not reasons, "reasons": reasons, "pods": sorted(pod["metadata"]["name"] for pod in here),
            "address": (serving[0].get("status") or {}).get("podIP") if serving else None}


def _state(mine, now, seen):
    """What is seen where nobody told a reason."""
    if not seen:
        return "its controller has not taken up the change; does kube-controller-manager run?"
    if now:
        return "its pod is %s" % (now[0].get("status") or {}).get("phase", "Unknown")
    if mine:
        return "its pod is of an earlier template; `kubectl rollout status` tells whether it is being replaced"
    return "it has no pod there; does the Node have taints that it does not tolerate, and does the DaemonSet's controller run?"
