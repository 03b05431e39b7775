# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L4 with a real pod: its manifest, what its status means, and what it saw. Pure. Private to the collection.

The pod has no right that it does not need, and no volume: what it sees of NPUs is what kubelet gave it. It tells device nodes and libraries
apart, because they come by different ways (field report B12): the node may be there and the library not.
"""

import calendar
import hashlib
import json
import re
import time

from ansible_collections.npu.fleet.plugins.module_utils._gates_verdict import BOARD_KINDS

LABEL, NODE_LABEL, VALUE = "npu.fleet/gate", "npu.fleet/gate-node", "L4"
NAME = "npu-fleet-gate"
CONTAINER = "gate"
TAINT = "npu.fleet/not-ready"
#: Nobody in particular; nodes are only listed, so that the group that may open them is not needed.
NOBODY = 65534
#: kubelet cuts what a container leaves at its end to 4096 bytes (Kubernetes, "Determine the Reason for Pod Failure"), and JSON that is cut
#: says nothing. So nodes have a share of that, and each library what is left by then.
MESSAGE, ROOM, NODES_ROOM = "/dev/termination-log", 4000, 2000
#: Seconds after its deadline until a pod counts as left by a run that was cut: clocks differ, and kubelet takes a moment.
SLACK = 300
#: A container that waits for one of these does not start without somebody's help.
_USED = re.compile(r"used: ([0-9]+), capacity: ([0-9]+)")
HOPELESS = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
            "RunContainerError", "CrashLoopBackOff")

#: In sh: each device node below /dev that may be of an NPU, with its number, the variables that plugin and runtime set, and each library
#: that is asked for: "ok", or why not; and how many nodes had no room. All as JSON; what could break its quotes is left out.
SCRIPT = r"""
plain() { printf %s "$1" | tr -cd 'A-Za-z0-9_./,:;=@+ -' | cut -c1-"${2:-300}"; }
put() { out=$out$comma$1; comma=,; }
out='"nodes":{' comma= cut=0
for path in /dev/* /dev/*/*; do
  name=${path#/dev/}
  case $name in davinci*|vdavinci*|@KINDS@) ;; *) case " $NPU_FLEET_NODES " in *" $name "*) ;; *) continue ;; esac ;; esac
  if [ ! -h "$path" ] && { [ -c "$path" ] || [ -b "$path" ]; }; then
    set -- $(ls -ln "$path")
    one="\"$(plain "$name" 60)\":\"$(plain "${5%,}"):$(plain "$6")\""
    if [ $((${#out} + ${#one})) -gt @NODES@ ]; then cut=$((cut + 1)); else put "$one"; fi
  fi
done
out="$out},\"cut\":$cut,\"env\":{" comma=
for name in ASCEND_VISIBLE_DEVICES ASCEND_RUNTIME_OPTIONS LD_LIBRARY_PATH; do
  eval "value=\${$name-}"
  [ -z "$value" ] || put "\"$name\":\"$(plain "$value")\""
done
out="$out},\"libraries\":{" comma=
set -- $NPU_FLEET_LIBRARIES
left=$#
for library in $NPU_FLEET_LIBRARIES; do
  if command -v python3 >/dev/null 2>&1; then
    said=$(python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$library" 2>&1) && said=ok || said=$(printf %s "$said" | tail -n 1)
  else
    said="no python3 here to load it, and not found in LD_LIBRARY_PATH"
    old=$IFS; IFS=:
    for folder in ${LD_LIBRARY_PATH-} /lib /usr/lib /lib64 /usr/lib64; do
      [ -e "$folder/$library" ] || continue
      lacks=$(ldd "$folder/$library" 2>&1 | grep 'not found' | head -n 1)
      said=${lacks:-ok}
      break
    done
    IFS=$old
  fi
  name=$(plain "$library" 80)
  room=$(((@ROOM@ - ${#out}) / left - ${#name} - 6)) left=$((left - 1))
  [ $room -lt 2 ] || put "\"$name\":\"$(plain "$said" $((room < 300 ? room : 300)))\""
done
printf '{%s}}' "$out" >/dev/termination-log
"""
for _mark, _value in (("@KINDS@", "|".join(kind + "*" for kind in BOARD_KINDS)), ("@NODES@", str(NODES_ROOM)), ("@ROOM@", str(ROOM))):
    SCRIPT = SCRIPT.replace(_mark, _value)


# --- the pod -------------------------------------------------------------------------------------------------------------

def node_value(node):
    """A Node's name as a label's value, which may have 63 characters only."""
    return node if len(node) <= 63 else "%s.%s" % (node[:46].rstrip("-."), hashlib.sha256(node.encode("utf-8")).hexdigest()[:16])


def selector(node):
    """What finds the pods of this gate on a node, those of a run that was cut too."""
    return "%s=%s,%s=%s" % (LABEL, VALUE, NODE_LABEL, node_value(node))


def manifest(node, mark, *, namespace, image, resource, runtime_class=None, libraries=(), names=(), seconds=120):
    """The pod. ``mark``: makes its name one that no other run has. ``names``: nodes that matter, whatever they are called."""
    digest = hashlib.sha256(node.encode("utf-8")).hexdigest()[:8]
    spec = {
        # Bound by us: the node is what is to be proved, and nothing else may take the pod.
        "nodeName": node,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": int(max(1, seconds)),
        "tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": {"runAsUser": NOBODY, "runAsGroup": NOBODY, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": CONTAINER,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/sh", "-c", SCRIPT],
            "env": [{"name": "NPU_FLEET_LIBRARIES", "value": " ".join(libraries)}, {"name": "NPU_FLEET_NODES", "value": " ".join(names)}],
            "resources": {"limits": {resource: "1"}},
            "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
            "terminationMessagePath": MESSAGE,
            "terminationMessagePolicy": "File",
        }],
    }
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    labels = {LABEL: VALUE, NODE_LABEL: node_value(node), "app.kubernetes.io/managed-by": "npu.fleet"}
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": "%s-%s-%s" % (NAME, digest, mark), "namespace": namespace, "labels": labels}}


def leftovers(pods, now):
    """Names of those that a run which was cut has left: older than they may get. Younger ones are another run's, which is at work."""
    return sorted(pod["metadata"]["name"] for pod in pods if now - _created(pod) > (
        (pod.get("spec") or {}).get("activeDeadlineSeconds") or 0) + SLACK)


def _created(pod):
    """Seconds since 1970; one that does not say it is never old."""
    try:
        return calendar.timegm(time.strptime(pod["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    except (KeyError, TypeError, ValueError):
        return float("inf")


# --- its status ----------------------------------------------------------------------------------------------------------

def _container(pod):
    rows = (pod.get("status") or {}).get("containerStatuses") or []
    return (rows[0].get("state") or {}) if rows else {}


def progress(pod):
    """``(ended, failure, waits)``: whether the pod has come to an end that does not change; why that is none that can be judged; and what
    it waits for, as far as anybody says."""
    status = pod.get("status") or {}
    state = _container(pod)
    waiting = state.get("waiting") or {}
    said = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    if status.get("phase") == "Failed" and not state.get("terminated"):
        return True, ": ".join(filter(None, (status.get("reason"), status.get("message")))) or "it failed, and nobody says why", None
    if status.get("phase") in ("Succeeded", "Failed"):
        ended = state.get("terminated") or {}
        if status["phase"] == "Succeeded" and not ended.get("exitCode"):
            return True, None, None
        why = ": ".join(filter(None, (status.get("reason") or ended.get("reason"), status.get("message") or ended.get("message"))))
        return True, "its container ended with %s%s" % (ended.get("exitCode"), ": " + why if why else ""), None
    if waiting.get("reason") in HOPELESS:
        return True, said, None
    unscheduled = [": ".join(filter(None, (one.get("reason"), one.get("message")))) for one in status.get("conditions") or []
                   if one.get("type") == "PodScheduled" and one.get("status") == "False"]
    return False, None, said or "; ".join(unscheduled) or "phase %s" % (status.get("phase") or "unknown")


def full(pod, resource):
    """Kubelet's words where it did not take the pod because all of a resource is in use, else None. One that has none of it is not full.

    A pod that is bound to its node meets no scheduler; kubelet refuses it so (pkg/kubelet/lifecycle/predicate.go).
    """
    status = pod.get("status") or {}
    match = _USED.search(status.get("message") or "")
    if status.get("reason") == "OutOf%s" % resource and match and int(match.group(2)) > 0:
        return "all in use: %s" % status["message"]
    return None


def message(pod):
    """What the container left: a dict, or None where it left nothing that can be read."""
    text = (_container(pod).get("terminated") or {}).get("message") or ""
    try:
        seen = json.loads(text)
    except ValueError:
        return None
    good = isinstance(seen, dict) and all(isinstance(seen.get(key), dict) for key in ("nodes", "env", "libraries"))
    return seen if good else None


def warnings(events):
    """The warnings among a pod's events, the newest last, each once."""
    rows = sorted((one for one in events if one.get("type") == "Warning"), key=lambda one: one.get("lastTimestamp") or "")
    return list(dict.fromkeys("%s: %s" % (one.get("reason"), one.get("message")) for one in rows))[-5:]


# --- the verdict ---------------------------------------------------------------------------------------------------------

def devices(seen, chips, managers):
    """``(passed, detail)``: whether the pod saw the nodes of exactly one chip, and those that all chips need. ``chips``: [[names]]."""
    names = set(seen["nodes"])
    whole = [nodes for nodes in chips if nodes and set(nodes) <= names]
    some = sorted(name for nodes in chips for name in nodes if name in names)
    missing = sorted(set(managers) - names)
    known = {name for nodes in chips for name in nodes}
    # Where an NPU has nodes of a kind that others have, too, another one is a GPU's or a camera's.
    kinds = tuple(kind for kind in BOARD_KINDS if any(name.startswith(kind) for name in known))
    strange = sorted(name for name in names - known - set(managers)
                     if name.startswith(kinds) or (name.startswith("davinci") and name[len("davinci"):].isdigit()))
    detail = "saw %s" % (" ".join(sorted(some + strange + [name for name in managers if name in names])) or "no node of an NPU")
    if seen.get("cut"):
        detail += "; and %d more" % seen["cut"]
    if missing:
        detail += "; missing: %s" % " ".join(missing)
    if len(whole) != 1 or len(some) != len(whole[0]) or strange or seen.get("cut"):
        return False, "asked for one chip, %s" % detail
    return not missing, detail


def checks(outcome, chips, managers, libraries):
    """The checks of the gate. ``outcome``: ``{"pod", "why", "failure", "seen", "warnings", "left"}``. None where there is nothing to judge:
    all are in use, and nothing is left."""
    if outcome.get("why") and not outcome["left"]:
        return None
    told = "; ".join(filter(None, [outcome["failure"]] + [text for text in outcome["warnings"] if text != outcome["failure"]]))
    rows = []
    if outcome.get("why"):
        pass
    elif outcome["failure"] is not None:
        rows.append(("pod runs", False, told))
    elif outcome["seen"] is None:
        rows.append(("pod runs", False, "%s ended, and left no answer: has its image /bin/sh, ls, tr and cut?" % outcome["pod"]))
    else:
        seen = outcome["seen"]
        rows.append(("pod runs", True, "%s ended well" % outcome["pod"]))
        rows.append(("pod has the devices of one chip",) + devices(seen, chips, managers))
        if libraries:
            bad = ["%s: %s" % (name, seen["libraries"].get(name, "not tried")) for name in libraries if seen["libraries"].get(name) != "ok"]
            where = "LD_LIBRARY_PATH %s" % (seen["env"].get("LD_LIBRARY_PATH") or "is not set")
            rows.append(("pod loads its libraries", not bad, "%s (%s)" % ("; ".join(bad), where) if bad else ", ".join(libraries)))
    rows.append(("no pod is left", not outcome["left"], "; ".join(outcome["left"]) or "deleted"))
    return [{"name": name, "passed": bool(passed), "detail": detail, "hint": HINTS[name]} for name, passed, detail in rows]


HINTS = {
    "pod runs": "`kubectl describe node NODE` and `journalctl -u npu-agent -u kubelet -n 50` on the node; an image that cannot be pulled: "
                "npu_verify_pod_image.",
    "pod has the devices of one chip": "The plugin's setting allocate_mode and the pod's RuntimeClass say who brings the nodes; "
                                       "`journalctl -u npu-agent -n 50` on the node.",
    "pod loads its libraries": "The driver's libraries come by the plugin's setting allocate_mounts or by the vendor's runtime "
                               "(npu_verify_pod_runtime_class); CANN's are the image's. The host's own environment never reaches a pod.",
    "no pod is left": "`kubectl delete pods -l %s=%s` in that namespace." % (LABEL, VALUE),
}
