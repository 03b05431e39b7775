# SPDX-License-Identifier: GPL-3.0-or-later
"""The world of test_daemonset.py: a node, its containerd, an API server that knows RBAC, and what kubelet does with pods."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
import urllib.request
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests" / place) for place in ("lab", "cri", "nodes", "kube", "image")]
import lab
from kube_cluster import CONFIG_MAP, POD, SECRET
from npu_nodes import Nodes

from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_pod

NAME = "daemonset"
(NODE,) = lab.node_names(NAME, 1)
RESOURCE = _agent_pod.RESOURCE
#: The simulated library reads what the hardware is like from there; on real hardware that is behind the device nodes.
SIMULATED = ({"container_path": "/var/lib/npu-sim", "host_path": "/var/lib/npu-sim", "readonly": True},)
LOOK = """
import json, os
def may(path, flags):
    try:
        os.close(os.open(path, flags))
        return True
    except OSError as error:
        return error.strerror
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(json.dumps({
    "dev": os.listdir("/dev"), "caps": int(status["CapEff"], 16), "bounding": int(status["CapBnd"], 16),
    "new_privileges": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(),
    "root": may("/x", os.O_CREAT | os.O_WRONLY), "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "sockets": [name for name in os.listdir("/var/run") if name.endswith(".sock")] if os.path.isdir("/var/run") else [],
    "host_chip": may("/host/dev/davinci0", os.O_RDONLY), "host_disk": may("/host/dev/loop0", os.O_RDONLY),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
}))
"""


def plain(secret):
    """Its files, as kubelet writes them."""
    return {name: base64.b64decode(text).decode() for name, text in secret["data"].items()}


class Runner(threading.Thread):
    """What kubelet does with the pods that are bound to its node: containers, tokens, probes, status; and an end when they are gone.

    Device nodes come from the kubelet stand-in, which asks the device plugin as a kubelet does.
    """

    def __init__(self, world):
        super().__init__(daemon=True)
        self.world, self.pods, self.ending, self.trouble = world, {}, threading.Event(), None

    def run(self):
        while not self.ending.wait(0.3):
            try:
                self.step()
            except Exception as error:
                self.trouble = repr(error)

    def step(self):
        store = self.world.api.stores[POD]
        there = {one["metadata"]["name"]: one for one in store.list(namespace="npu-fleet") if one["spec"]["nodeName"] == NODE}
        for name in [name for name in self.pods if name not in there]:
            pod, containers = self.pods.pop(name)
            for container in containers.values():
                self.world.node.stop(container, 5)
            self.world.client.remove(pod.id)
            self.world.exec("kubelet-ctl", "delete", name, check=False)
        for name, one in there.items():
            if name not in self.pods:
                allocated = self.admit(name, one["spec"])
                if allocated is False:
                    continue
                self.pods[name] = self.start_pod(name, one, allocated)
            ready = all(self.probe(container) for container in one["spec"]["containers"])
            conditions = [{"type": "Ready", "status": str(ready)}]
            if (one.get("status") or {}).get("conditions") != conditions:
                body = {"status": {"phase": "Running", "podIP": self.world.nodes.ip(NODE), "conditions": conditions}}
                store.patch(f"npu-fleet/{name}", "application/merge-patch+json", body, "status")

    def admit(self, name, spec):
        """The plugin's answer; None for a pod that wants no device, False while there is none to have."""
        if not any(RESOURCE in one["resources"]["limits"] for one in spec["containers"]):
            return None
        if self.world.allocatable(RESOURCE) != 1:
            return False
        admitted = self.world.ctl("allocate", "1", RESOURCE, "--pod", name)
        if not admitted.get("response"):
            self.trouble = admitted
            self.world.exec("kubelet-ctl", "delete", name)
            return False
        return admitted["response"]

    def start_pod(self, name, one, allocated):
        world, spec = self.world, one["spec"]
        pod = world.node.sandbox(name, "npu-fleet", spec, {"spec.nodeName": NODE, "status.hostIP": world.nodes.ip(NODE)})
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        if "etc-npu-agent" in volumes:
            world.node.project(pod, "etc-npu-agent", plain(world.api.stores[SECRET].get("npu-fleet/npu-agent")), "0400")
        if "labels-config" in volumes:
            world.node.project(pod, "labels-config", world.api.stores[CONFIG_MAP].get("npu-fleet/npu-agent")["data"])
        for volume in volumes.values():
            if "projected" in volume:
                bound = {"spec": {"boundObjectRef": {"kind": "Pod", "name": name}}}
                token = world.ask("POST", f"/api/v1/namespaces/npu-fleet/serviceaccounts/{spec['serviceAccountName']}/token", bound)
                files = {"token": token["status"]["token"], "ca.crt": (world.folder / "tls/api.crt").read_text(), "namespace": "npu-fleet"}
                world.node.project(pod, volume["name"], files, "0400")
        host, port = world.api.server_address[:2]
        service = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
        found = {}
        for container in spec["containers"]:
            agent = container["name"] == "agent"
            found[container["name"]] = world.node.start(pod, container, allocated if agent else None, more=SIMULATED if agent else (),
                                                        envs=service)
        return pod, found

    def probe(self, container):
        if "readinessProbe" not in container:
            return True
        url = f"http://{self.world.nodes.ip(NODE)}:{_agent_pod.PORT}{container['readinessProbe']['httpGet']['path']}"
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def logs(self, daemon, container):
        for name, (pod, _containers) in self.pods.items():
            if name.rpartition("-")[0] == daemon:
                return self.world.node.logs(pod, container)
        return []

    def stop(self):
        self.ending.set()
        self.join(30)


class World:
    """The node, its containerd, and an API server that knows RBAC."""

    def __init__(self, folder):
        self.nodes, self.folder = Nodes(), folder
        self.docker = f"unix://{self.nodes.folder}/engine/docker.sock"
        self.running = {}

    def exec(self, *argv, check=True):
        return self.nodes.exec(NODE, list(argv), check=check).stdout

    def ctl(self, *argv):
        return json.loads(self.exec("kubelet-ctl", *argv))

    def allocatable(self, resource):
        return self.ctl("allocatable").get(resource)

    def ask(self, method, path, body=None):
        """As the administrator of the cluster."""
        context = ssl.create_default_context(cafile=str(self.folder / "tls/api.crt"))
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.admin}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.api.url + path, data, headers, method=method)  # noqa: S310  our own server
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        with opener.open(request, timeout=20) as answer:
            return json.load(answer)

    def labels(self):
        node = self.api.store.get(NODE)
        return node["metadata"].get("labels", {}), node["spec"].get("taints", [])

    def look(self, container):
        code, out, err = self.client.exec(container, ["python3", "-I", "-c", LOOK])
        assert code == 0, err
        return json.loads(out)
