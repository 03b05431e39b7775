# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L4 where no cluster can be asked for a pod: what kubelet does at a pod's admission, done on the node itself. Private.

Kubelet asks the plugin what fits best (GetPreferredAllocation) and then for what the container gets (Allocate), and hands that to the
engine. The same calls are made here for one id that no pod has by kubelet's own word, and a container is started with exactly the answer.
Nothing is reserved by that: an Allocate of our plugin keeps nothing, and kubelet does not hear of it. Not proved here: scheduler, API
server, quotas, admission webhooks, and the libraries of an image, because the container has the node's own /usr.
"""

import json
import os
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.module_utils import _gates_kubelet
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import locked
from ansible_collections.npu.fleet.plugins.module_utils._gates_container import EACH, VARIABLE, device_number, judge_row, last_words
from ansible_collections.npu.fleet.plugins.module_utils._gates_engines import BINDS, shown
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import undisturbed
from ansible_collections.npu.fleet.plugins.module_utils._grpc import FAILED_PRECONDITION, GrpcError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import listed, under

#: Where engines look for CDI specifications (cdi.dev).
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
BY = "admission"
HIDDEN = "(not shown)"
#: resource: that a pod can ask for; free: its ids that no pod has; why: there is nothing to judge; failure: there ought to be.
Choice = namedtuple("Choice", "resource free why failure")


# --- the answer of the plugin ---------------------------------------------------------------------------------------------

def specifications(root="/"):
    """{qualified CDI name: (edits of all devices, edits of this one)} of the specifications in JSON."""
    found = {}
    for folder in CDI_FOLDERS:
        for name in listed(under(root, folder)):
            if not name.endswith(".json"):
                continue
            try:
                with open(os.path.join(under(root, folder), name), encoding="utf-8") as stream:
                    spec = json.load(stream)
                for device in spec["devices"]:
                    edits = (spec.get("containerEdits") or {}, device.get("containerEdits") or {})
                    found["%s=%s" % (spec["kind"], device["name"])] = edits
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return found


def given_of(answer, known):
    """What a container gets by an answer of Allocate, CDI names resolved by ``known``: ``(given, [texts of what is missing])``. Pure."""
    env, devices, mounts, missing = dict(answer["envs"]), list(answer["devices"]), list(answer["mounts"]), []
    for name in answer["cdi_devices"]:
        if name not in known:
            missing.append("no specification in %s names the CDI device %s" % (" or ".join(CDI_FOLDERS), name))
        for edits in known.get(name, ()):
            env.update(entry.split("=", 1) for entry in edits.get("env") or [] if "=" in entry)
            _add(devices, [
                {"container_path": node["path"], "host_path": node.get("hostPath") or node["path"],
                 "permissions": node.get("permissions") or "rwm"} for node in edits.get("deviceNodes") or []])
            _add(mounts, [
                {"container_path": mount["containerPath"], "host_path": mount["hostPath"],
                 "read_only": "ro" in (mount.get("options") or [])} for mount in edits.get("mounts") or []])
    return {"env": env, "devices": devices, "mounts": mounts}, missing


def _add(entries, more):
    known = {entry["container_path"] for entry in entries}
    entries += [entry for entry in more if entry["container_path"] not in known]


def mountable(mounts):
    """(mounts to make, paths that cannot be made): below the node's own /usr, which is read-only there, no mount point can be created."""
    def fits(mount):
        inside = any((mount["container_path"] + "/").startswith(path + "/") for path in BINDS)
        return not inside or os.path.exists(mount["container_path"])

    return [mount for mount in mounts if fits(mount)], [mount["container_path"] for mount in mounts if not fits(mount)]


def expected_of(given, host, managers):
    """``(names below /dev, {name: device number on the host})`` that the container has to see: what was answered, no more. Pure but for the
    numbers. Where the answer has no nodes, the vendor's variable says them."""
    numbers = dict(host)
    names = []
    for device in given["devices"]:
        name = device["container_path"][len("/dev/"):] if device["container_path"].startswith("/dev/") else device["container_path"]
        names.append(name)
        numbers[name] = device_number(device["host_path"])
    chips = [one.strip() for one in given["env"].get(VARIABLE, "").split(",") if one.strip().isdigit()]
    if not names and chips:
        names = ["davinci%s" % one for one in chips] + list(managers)
        for one in chips:
            if "davinci%s" % one not in numbers:
                # Of a slice, whose node has another name outside.
                numbers["davinci%s" % one] = device_number("/dev/vdavinci%s" % one)
    return sorted(names), numbers


# --- the look ------------------------------------------------------------------------------------------------------------

def choose(kubelet, resources):
    """Choice: of these resources the first that has an id which no pod has. Pure."""
    if not resources:
        return Choice(None, [], None, "no plugin is there to ask: it names no resource")
    if kubelet["error"]:
        why = "nobody tells which ids are free: %s" % kubelet["error"]
        return Choice(None, [], why, None) if kubelet.get("excused") else Choice(None, [], None, why)
    for resource in resources:
        free = _gates_kubelet.free_ids(kubelet, resource)
        if free:
            return Choice(resource, free, None, None)
    busy = ["%s of %s by %s" % (one, resource, kubelet["used"][resource][one])
            for resource in resources for one in kubelet["allocatable"].get(resource, [])]
    if busy:
        return Choice(None, [], "no id is free: %s" % ", ".join(busy[:8]), None)
    return Choice(None, [], None, "kubelet has no id of %s that may take work" % ", ".join(resources))


def ask_plugin(kubelet_dir, resource, free):
    """``{"id", "socket", "answer"}``, or ``{"error": text}`` with the plugin's own words."""
    sockets, problems = _gates_kubelet.plugin_sockets(kubelet_dir, resource), []
    for socket in sockets:
        try:
            one = _gates_kubelet.preferred(socket, free)
            return {"id": one, "socket": socket, "answer": _gates_kubelet.allocate(socket, one)}
        except (GrpcError, ValueError) as problem:
            # Two resources whose names begin alike: the other one's plugin does not know the id.
            problems.append((getattr(problem, "status", None) != FAILED_PRECONDITION, "%s: %s" % (socket, problem)))
    if problems:
        # A refusal in the plugin's words says more than a socket that nobody listens at any more.
        return {"error": min(problems, key=lambda one: one[0])[1]}
    return {"error": "there is no socket of our plugin for %s in %s/device-plugins" % (resource, kubelet_dir)}


def nothing(**more):
    """What `admit` returns, without anything in it."""
    seen = dict.fromkeys(("why", "resource", "id", "answer", "error", "row", "log"))
    seen.update(by=BY, left=[], not_mounted=[])
    return dict(seen, **more)


def told(answer):
    """An answer of Allocate as it may be shown: values of variables only where they name chips."""
    return dict(answer, envs={name: value if shown(name) else HIDDEN for name, value in answer["envs"].items()})


def admit(start, kubelet, resources, kubelet_dir, state_folder, *, root="/", host=None, managers=()):
    """Do it. ``start``: makes an engine of `_gates_engines.py` for a container that needs the vendor's runtime (True) or not.

    Returns ``{"by", "why", "resource", "id", "answer", "error", "row", "left", "not_mounted", "log"}``; ``why`` where there is nothing to
    judge, ``error`` where the plugin refused.
    """
    choice = choose(kubelet, resources)
    seen = nothing(resource=choice.resource, why=choice.why, error=choice.failure)
    if choice.why or choice.failure:
        return seen
    asked = ask_plugin(kubelet_dir, choice.resource, choice.free)
    if asked.get("error"):
        return dict(seen, error=asked["error"])
    seen.update(asked, answer=told(asked["answer"]))
    given, missing = given_of(asked["answer"], specifications(root))
    gone = ["%s does not exist on the node" % entry["host_path"] for entry in given["devices"] + given["mounts"]
            if not os.path.exists(entry["host_path"])]
    if missing or gone:
        return dict(seen, error="a container with this answer cannot be started: %s" % "; ".join(missing + gone))
    given["mounts"], seen["not_mounted"] = mountable(given["mounts"])
    names, numbers = expected_of(given, host or {}, managers)
    row = {"name": "pod", "value": seen["id"], "expected": names}
    tried = start(not given["devices"])
    try:
        with locked(os.path.join(state_folder, "gates", "container.lock"), EACH):
            try:
                problem = tried.prepare()
                if problem:
                    return dict(seen, error=problem)
                row = seen["row"] = judge_row(row, tried.start(0, given, EACH), numbers)
            finally:
                with undisturbed():
                    seen["left"] = tried.clean()
    except FleetError as error:
        return dict(seen, error=str(error))
    if not row["passed"] and not given["devices"]:
        seen["log"] = last_words(root)
    return seen


# --- the verdict -----------------------------------------------------------------------------------------------------------

def checks(seen):
    """Rows ``(name, passed, detail)`` of the gate. Pure."""
    if seen.get("error"):
        yield "plugin allocates", False, seen["error"]
    else:
        answer = seen["answer"]
        yield "plugin allocates", True, "%s of %s by %s: %d node(s), %d mount(s), %s%s" % (
            seen["id"], seen["resource"], BY, len(answer["devices"]), len(answer["mounts"]),
            ", ".join("%s=%s" % (name, value) if shown(name) else name for name, value in sorted(answer["envs"].items())) or "no variable",
            "; CDI %s" % ", ".join(answer["cdi_devices"]) if answer["cdi_devices"] else "")
        row = seen["row"]
        saw = "no container" if row["seen"] is None else "saw %s" % (" ".join(row["seen"]) or "no chip")
        yield ("container gets what was allocated", row["passed"],
               "expected %s, %s%s%s" % (" ".join(row["expected"]) or "nothing", saw, ": %s" % row["error"] if row["error"] else "",
                                        " (the runtime's log: %s)" % " / ".join(seen["log"].splitlines()) if seen["log"] else ""))
    yield "no container is left", not seen["left"], ", ".join(seen["left"]) or "all removed"
