# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers of a pod's manifest on a test node's containerd, handed over as kubelet does it.

What kubelet makes of a manifest (pkg/kubelet/kuberuntime, cm/devicemanager): hostPath volumes become mounts, others are written to folders
on the node; the downward API becomes plain values; device nodes come from the answer of the device plugin to Allocate and from nowhere
else; of the pod's annotations a container gets none, only those of such answers. /proc and /sys are masked as by default.

What differs here: the pod has the host's network, for the test nodes have no CNI; limits of memory are left out, for not every machine
that runs the tests has the controller.
"""

from __future__ import annotations

import base64
import json
import shlex
import time
import uuid
from typing import Any, NamedTuple

from cri import Client

#: As kubelet sends them for procMount Default (pkg/securitycontext).
MASKED = ["/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
          "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"]  # fmt: skip
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


class Pod(NamedTuple):
    """A sandbox, and what containers of it need to know."""

    id: str
    config: Any
    uid: str
    volumes: dict[str, dict]
    facts: dict[str, str]


class Node:
    """Runs containers of pods on one node. `write` puts a file there, `exec` runs a command there."""

    def __init__(self, nodes, name: str, client: Client):
        self.nodes, self.name, self.client, self.types = nodes, name, client, client.types

    def exec(self, *argv: str) -> str:
        return self.nodes.exec(self.name, list(argv)).stdout

    def write(self, path: str, data: str, mode: str = "0644") -> None:
        encoded = base64.b64encode(data.encode()).decode()
        folder = path.rpartition("/")[0]
        self.exec("sh", "-c", f"mkdir -p {shlex.quote(folder)} && echo {encoded} | base64 -d > {shlex.quote(path)} && "
                  f"chmod {mode} {shlex.quote(path)}")

    def sandbox(self, name: str, namespace: str, spec: dict, facts: dict) -> Pod:
        """The sandbox of a pod with this spec, with its logs in a folder of the node. facts: {fieldPath: value} of the downward API."""
        types, uid = self.types, str(uuid.uuid4())
        spaces = types.NamespaceOption(network=types.NODE)
        config = types.PodSandboxConfig(
            metadata=types.PodSandboxMetadata(name=name, uid=uid, namespace=namespace), log_directory=f"/var/log/pods/{uid}",
            linux=types.LinuxPodSandboxConfig(security_context=types.LinuxSandboxSecurityContext(namespace_options=spaces)))
        self.exec("mkdir", "-p", f"/var/log/pods/{uid}")
        request = types.RunPodSandboxRequest(config=config)
        found = self.client._call(self.client.runtime.RunPodSandbox, request).pod_sandbox_id
        return Pod(found, config, uid, {one["name"]: one for one in spec["volumes"]}, facts)

    def start(self, pod: Pod, container: dict, allocated: dict | None = None, *, more=(), envs: dict | None = None) -> str:
        """Create and start one container; its id. allocated: the plugin's answer. more, envs: what a test adds to the manifest."""
        types = self.types
        allocated = allocated or {"devices": [], "mounts": [], "envs": {}, "annotations": {}}
        variables = {**allocated["envs"], **(envs or {})}  # the pod's own come last and win
        variables.update({one["name"]: one.get("value") or pod.facts[one["valueFrom"]["fieldRef"]["fieldPath"]]
                          for one in container.get("env", [])})
        mounts = self.mounts(container, pod) + [types.Mount(**one) for one in more]
        mounts += [types.Mount(container_path=one["container_path"], host_path=one["host_path"], readonly=one["read_only"])
                   for one in allocated["mounts"]]
        config = types.ContainerConfig(
            metadata=types.ContainerMetadata(name=container["name"]), image=types.ImageSpec(image=container["image"]),
            command=container.get("command", []), args=container.get("args", []), mounts=mounts,
            envs=[types.KeyValue(key=key, value=value) for key, value in variables.items()],
            annotations=allocated["annotations"], log_path=f"{container['name']}.log",
            devices=[types.Device(container_path=one["container_path"], host_path=one["host_path"], permissions=one["permissions"])
                     for one in allocated["devices"]],
            linux=types.LinuxContainerConfig(security_context=self.security(container["securityContext"])))
        request = types.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        found = self.client._call(self.client.runtime.CreateContainer, request).container_id
        self.client._call(self.client.runtime.StartContainer, types.StartContainerRequest(container_id=found))
        return found

    def stop(self, container: str, seconds: int) -> float:
        """As kubelet ends one; how long it took."""
        before = time.monotonic()
        self.client._call(self.client.runtime.StopContainer, self.types.StopContainerRequest(container_id=container, timeout=seconds))
        return time.monotonic() - before

    def security(self, context: dict):
        types, rights = self.types, context.get("capabilities", {})
        unconfined = types.SecurityProfile.Unconfined
        kinds = {"RuntimeDefault": types.SecurityProfile.RuntimeDefault, None: unconfined}
        return types.LinuxContainerSecurityContext(
            capabilities=types.Capability(add_capabilities=rights.get("add", []), drop_capabilities=rights.get("drop", [])),
            privileged=context.get("privileged", False), namespace_options=types.NamespaceOption(network=types.NODE, pid=types.CONTAINER),
            run_as_user=types.Int64Value(value=context["runAsUser"]), readonly_rootfs=context.get("readOnlyRootFilesystem", False),
            no_new_privs=not context.get("allowPrivilegeEscalation", True), masked_paths=MASKED, readonly_paths=READ_ONLY,
            seccomp=types.SecurityProfile(profile_type=kinds[context.get("seccompProfile", {}).get("type")]))

    def mounts(self, container: dict, pod: Pod) -> list:
        found = []
        for mount in container["volumeMounts"]:
            volume = pod.volumes[mount["name"]]
            host = self.host_path(volume["hostPath"]) if "hostPath" in volume else f"/var/lib/pods/{pod.uid}/{mount['name']}"
            found.append(self.types.Mount(container_path=mount["mountPath"], host_path=host, readonly=mount.get("readOnly", False)))
        return found

    def host_path(self, source: dict) -> str:
        """Kubelet's check of the type, before a container is made."""
        path, kind = source["path"], source.get("type", "")
        if kind == "DirectoryOrCreate":
            self.exec("mkdir", "-p", path)
        test = {"Directory": "-d", "DirectoryOrCreate": "-d", "File": "-f"}[kind]
        if self.nodes.exec(self.name, ["test", test, path], check=False).returncode:
            raise AssertionError(f"hostPath type check failed: {path} is not a {kind}")
        return path

    def project(self, pod: Pod, volume: str, files: dict[str, str], mode: str = "0644") -> None:
        """Write what kubelet writes for a volume that is none of the host (ConfigMap, projected token)."""
        for name, text in files.items():
            self.write(f"/var/lib/pods/{pod.uid}/{volume}/{name}", text, mode)

    def logs(self, pod: Pod, container: str) -> list[dict]:
        """The JSON lines of a container's log."""
        text = self.exec("sh", "-c", f"cat /var/log/pods/{pod.uid}/{container}.log || true")
        lines = [line.split(" ", 3)[3] for line in text.splitlines() if line.count(" ") >= 3]
        return [json.loads(line) if line.startswith("{") else {"event": line} for line in lines]
