# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of agent_daemonset share: objects, a plugin of the vendor's, and how a cluster is looked at."""

import copy

from kube_rig import DAEMON_SET, POD

from ansible_collections.npu.fleet.plugins.plugin_utils._agent_manifest import manifests

MERGE = "application/merge-patch+json"
OBJECTS = manifests({"image": "npu-agent:1"})
LABEL = "npu.fleet/agent"
VENDOR = {"metadata": {"name": "ascend-device-plugin-daemonset", "namespace": "kube-system"}, "spec": {
    "selector": {"matchLabels": {"name": "ascend-device-plugin-ds"}}, "template": {
    "metadata": {"labels": {"name": "ascend-device-plugin-ds"}},
    "spec": {"containers": [{"name": "c", "image": "mirror.example.com:5000/ascend-k8sdeviceplugin:v7.3.0"}],
             "nodeSelector": {"rack": "r7"}, "tolerations": [{"operator": "Exists"}],
             "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                 {"matchExpressions": [{"key": "servertype", "operator": "NotIn", "values": ["soc"]}]}]}}}}}}}


def actions(result):
    return {one["object"]: one["action"] for one in result["objects"]}


def label(api, name="node-01"):
    return api.store.get(name)["metadata"]["labels"].get(LABEL)


def agents(api):
    return sorted((pod["metadata"]["ownerReferences"][0]["name"], pod["spec"]["nodeName"]) for pod in api.stores[POD].list())


def vendor(api, **changes):
    made = api.stores[DAEMON_SET].create({**copy.deepcopy(VENDOR), **changes})
    api.reconcile()
    return made


def status(api, ready, **more):
    """What kubelet would say of all pods."""
    for pod in api.stores[POD].list():
        api.stores[POD].patch(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", MERGE, {"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}], **more}}, "status")
