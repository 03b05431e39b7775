# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods of the node: their admission, the start of their containers, and what of them survives a restart of kubelet."""

import copy
import json
import os
import sys
import threading
import time
import uuid

from . import choose, container, topology
from .plugin import Failure

SHOWN_SECONDS = 0.04  # from Allocate's answer until PodResources shows the ids (measured)
SANDBOX_SECONDS = 0.5  # from Allocate until the sandbox exists and PreStartContainer is called (measured)
ENDED = ("Failed", "Succeeded")


class AdmissionError(Exception):
    """The pod fails: reason and message as its status shows them."""

    def __init__(self, reason, message):
        super().__init__(message)
        self.reason = reason


def one_container(name, count, resource, env=None):
    """Manifest of a pod that asks for `count` of one resource."""
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    limits = {"limits": {resource: count}}
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "resources": limits, "env": variables}]}}


def new_pod(manifest):
    """A pod as it is kept here, from a manifest in JSON: names, limits and env of containers, restartPolicy of init containers."""
    spec, metadata = manifest["spec"], manifest["metadata"]
    containers = []
    for kind, entries in (("init", spec.get("initContainers", [])), ("app", spec["containers"])):
        for entry in entries:
            limits = entry.get("resources", {}).get("limits", {})
            containers.append({
                "name": entry["name"], "kind": "sidecar" if kind == "init" and entry.get("restartPolicy") == "Always" else kind,
                "requests": {name: int(count) for name, count in limits.items() if "/" in name and int(count)},
                "env": {variable["name"]: variable.get("value", "") for variable in entry.get("env", [])},
                "devices": {}, "responses": {}, "given": None, "state": "waiting",
            })
    return {"name": metadata["name"], "namespace": metadata.get("namespace", "default"), "uid": str(uuid.uuid4()), "phase": "Pending",
            "reason": "", "message": "", "containers": containers, "sandbox": None, "shown": False, "events": []}


def key_of(pod):
    return f"{pod['namespace']}/{pod['name']}"


def held(pods, name):
    """Ids of one resource that pods have; those of an init container too, as long as its pod lives (source)."""
    return {device for pod in pods for each in pod["containers"] for device in each["devices"].get(name, [])}


def wanted(pod, name):
    """How many of a resource a pod asks for: init containers run one after the other, before the others."""
    counts = [(each["kind"], each["requests"].get(name, 0)) for each in pod["containers"]]
    return max([sum(count for kind, count in counts if kind != "init"), *(count for kind, count in counts if kind == "init")])


class Pods:
    def __init__(self, devices, folder, policy="none", host_nodes=(0,), cdi_folders=None):
        self.devices, self.lock = devices, devices.lock
        self.checkpoint = os.path.join(folder, "kubelet_internal_checkpoint")
        self.policy, self.host_nodes, self.cdi_folders = policy, set(host_nodes), cdi_folders
        self.admission = threading.Lock()  # one pod after the other: an Allocate that hangs holds up all others (source)
        self.pods = {}
        self.devices.save = self.save

    # The checkpoint.

    def save(self):
        with self.lock:
            kept = {"pods": self.pods, "resources": sorted(self.devices.resources)}
            try:
                with open(self.checkpoint + ".new", "w", encoding="utf-8") as stream:
                    json.dump(kept, stream)
                os.rename(self.checkpoint + ".new", self.checkpoint)
            except OSError as error:  # the folder was taken away: kubelet goes on, too
                print(f"checkpoint not written: {error}", file=sys.stderr, flush=True)

    def load(self, rebooted=False):
        """What a kubelet finds at its start: pods with their devices, and resources without any. Pods are admitted again. A container that
        runs keeps its devices; one that does not is looked at as if it was new, before any plugin can be there (source, kubernetes issue
        138446): that ends pods whose init container took devices, and after a reboot of the host all that have any."""
        try:
            with open(self.checkpoint, encoding="utf-8") as stream:
                kept = json.load(stream)
        except (OSError, ValueError):
            return
        self.devices.restart(kept["resources"])
        self.pods = kept["pods"]
        for pod in self.pods.values():
            if rebooted and pod["phase"] not in ENDED:
                pod["sandbox"] = None
                for each in pod["containers"]:
                    each.update(state="waiting", given=None)
            try:
                if pod["phase"] not in ENDED:
                    self.admit(pod)
                    pod["shown"] = True
            except AdmissionError as error:
                self.fail(pod, error)
        self.save()

    # Admission.

    def run(self, pod):
        """A pod is bound to this node: admit it and start its containers. It is known, and PodResources lists it, before it is admitted
        (measured). AdmissionError leaves it Failed; kubelet does not try again (measured)."""
        with self.lock:
            if key_of(pod) in self.pods:
                raise ValueError(f"there is a pod {key_of(pod)} already")
            self.pods[key_of(pod)] = pod
        try:
            with self.admission:
                self.admit(pod)
        except AdmissionError as error:
            self.fail(pod, error)
            self.save()
            raise
        self.save()
        time.sleep(SHOWN_SECONDS)
        pod["shown"] = True
        self.start(pod)
        self.save()

    def admit(self, pod):
        reusable = {}
        for each in pod["containers"]:
            if each["state"] != "running":
                self.give(pod, each, reusable, self.affinity(each, reusable))
            for name, ids in each["devices"].items():
                known = reusable.setdefault(name, set())
                reusable[name] = known | set(ids) if each["kind"] == "init" else known - set(ids)

    def affinity(self, each, reusable):
        """NUMA nodes for a container, or None."""
        with self.lock:
            found = []
            for name, count in each["requests"].items():
                resource = self.devices.registered(name)
                if resource is None:
                    continue
                available = resource.healthy - held(self.pods.values(), name)
                numa = {device: resource.numa(device) for device in resource.devices}
                found.append(topology.hints(self.host_nodes, numa, available, reusable.get(name, set()), count))
        mask, admitted = topology.merge(self.policy, self.host_nodes, found)
        if not admitted:
            raise AdmissionError("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
        return mask

    def give(self, pod, each, reusable, mask):
        """One Allocate per resource of a container."""
        for name, count in each["requests"].items():
            with self.lock:
                resource, in_use = self.devices.registered(name), held(self.pods.values(), name)

            def ask(available, must_include, size, name=name):
                client = self.client(name, "get_preferred_allocation_available")
                return client and client.preferred(choose.shuffled(available), choose.shuffled(must_include), size)

            try:
                ids = choose.ids_for(name, resource, count, reusable=reusable.get(name, set()), in_use=in_use, mask=mask, ask=ask)
                response = self.client(name).allocate(choose.shuffled(ids))
                with self.lock:
                    each["devices"][name], each["responses"][name] = sorted(ids), response
            except (choose.Refused, Failure) as error:
                raise AdmissionError("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected") from error

    def client(self, name, option=None):
        """Who answers for a resource; None when it does not offer `option`."""
        with self.lock:
            resource = self.devices.resources[name]
            if option and not (resource.options or {}).get(option):
                return None
            if resource.client is None or resource.stopped_at is not None:
                raise Failure(f"endpoint {name} has been stopped")
            return resource.client

    def fail(self, pod, error):
        with self.lock:
            pod.update(phase="Failed", reason=error.reason, message=str(error))
            for each in pod["containers"]:
                each.update(devices={}, responses={}, given=None, state="waiting")

    # Containers.

    def start(self, pod):
        """Sandbox, then init containers one after the other, then the others. What fails is tried again by `retry`."""
        asked = [name for each in pod["containers"] for name in each["devices"] if self.pre_start_wanted(name)]
        if pod["sandbox"] is None and asked:
            time.sleep(SANDBOX_SECONDS)  # nobody but a plugin that is called after it can see how long a sandbox takes
        pod["sandbox"] = pod["sandbox"] or time.monotonic()
        for each in pod["containers"]:
            if each["state"] != "waiting":
                continue
            try:
                for name, ids in each["devices"].items():
                    client = self.client(name, "pre_start_required")
                    if client:
                        client.pre_start(choose.shuffled(ids))
                merged = container.merge(each["responses"].values(), each["env"])
                given = container.create(merged, self.cdi_folders)
            except Failure as error:
                pod.update(reason="CreateContainerConfigError", message=str(error))
                return
            except container.NotCreated as error:
                pod.update(reason="CreateContainerError", message=str(error))
                return
            each.update(given=given, state="exited" if each["kind"] == "init" else "running")
        pod.update(phase="Running", reason="", message="")

    def pre_start_wanted(self, name):
        with self.lock:
            resource = self.devices.resources.get(name)
            return bool(resource and (resource.options or {}).get("pre_start_required"))

    def retry(self):
        """Containers that could not be created are tried again for ever (measured)."""
        with self.lock:
            waiting = [pod for pod in self.pods.values() if pod["phase"] == "Pending" and pod["reason"].startswith("CreateContainer")]
        for pod in waiting:
            self.start(pod)
            self.save()

    # The end of pods.

    def finish(self, pod):
        """All containers of a pod have ended well: its devices are free, the pod is still known."""
        with self.lock:
            self.find(pod).update(phase="Succeeded", reason="", message="")
            for each in self.find(pod)["containers"]:
                each.update(devices={}, state="exited")
            self.save()

    def delete(self, pod):
        with self.lock:
            del self.pods[key_of(self.find(pod))]
            self.save()

    def find(self, name):
        key = name if "/" in name else f"default/{name}"
        if key not in self.pods:
            raise ValueError(f"there is no pod {key}")
        return self.pods[key]

    # Answers.

    def describe(self, pod):
        """A pod for those who ask. `devices`: ids by resource. `response`: the plugin's answer to the first Allocate of the first app
        container, `container`: what that container got; `containers` has both for each. `health`: as allocatedResourcesStatus has it."""
        with self.lock:
            devices = {}
            for each in pod["containers"]:
                for name, ids in each["devices"].items():
                    devices[name] = sorted(set(devices.get(name, [])) | set(ids))
            first = next(each for each in pod["containers"] if each["kind"] == "app")
            answer = {key: pod[key] for key in ("name", "namespace", "uid", "phase", "reason", "message", "sandbox", "events")}
            answer.update(devices=devices, response=next(iter(first["responses"].values()), None), container=first["given"],
                          containers={each["name"]: dict(each) for each in pod["containers"]},
                          health={name: {device: self.health(name, device) for device in ids} for name, ids in devices.items()})
            return copy.deepcopy(answer)

    def health(self, name, device):
        """Of a pod's device, by the last list; a device that no list names counts as healthy (source)."""
        resource = self.devices.resources.get(name)
        listed = resource.devices.get(device) if resource else None
        return "Healthy" if listed is None or listed["health"] == "Healthy" else "Unhealthy"
