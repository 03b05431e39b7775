#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as DaemonSet in a cluster."""

DOCUMENTATION = r"""
module: agent_daemonset
short_description: The agent as DaemonSet in a Kubernetes cluster
version_added: 0.1.0
author: npu.fleet contributors (@npu-fleet)
description:
  - Has the objects of the filter P(npu.fleet.agent_manifests#filter) in a cluster, and the label C(npu.fleet/agent) on the Nodes that they
    are for. It changes and deletes only what it made, which has the label C(app.kubernetes.io/managed-by=npu.fleet).
  - Looks first whether the user of the kubeconfig has all rights that are needed (by SelfSubjectAccessReview), and whether another device
    plugin for NPUs serves these Nodes. Both are refused before anything is changed.
  - Used by the role C(npu_device_plugin); options and results may change without notice. Runs on the controller. Delegate it to
    C(localhost).
extends_documentation_fragment:
  - npu.fleet._attributes
attributes:
  check_mode:
    support: full
    details: The cluster is read, nothing is sent.
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
requirements:
  - kubernetes >= 24.2 (Python package, on the controller)
options:
  state:
    description:
      - V(look) only looks what stands in the way. With V(present) objects and labels are there, and no object of ours beside them.
        V(ready) waits until each Node has ready pods of these objects, and says what each lacks otherwise.
      - V(paused) takes the labels off those of these Nodes that have our pods, and waits until they are gone. A value in O(nodes) that is
        of no DaemonSet takes the label's place. V(resumed) puts labels on again.
      - V(absent) takes the labels off these Nodes and waits until their pods are gone. The objects go with the last such Node, and other
        plugins get back what V(present) took from them.
    type: str
    choices: [look, present, ready, paused, resumed, absent]
    default: present
  objects:
    description:
      - The manifests. Empty with O(state=look) looks only for other plugins.
    type: list
    elements: dict
    default: []
  config:
    description:
      - Text of the agent's configuration, for the Secret among O(objects). It comes apart from them because it may have tokens, which no
        log may show.
    type: str
  arch:
    description:
      - With O(state=look), what processor the image is for, as Kubernetes calls it. Other Nodes are refused. Not given for an image that is
        for all.
    type: str
  nodes:
    description:
      - Names of the Nodes of this run, with the value of the label C(npu.fleet/agent) that each shall have.
    type: dict
    required: true
  take_over:
    description:
      - Keep other device plugins off these Nodes instead of refusing. Their DaemonSets get a node affinity against the label, and the
        affinity of before is kept in an annotation.
    type: bool
    default: false
  ready_timeout:
    description:
      - Seconds to wait for pods to be ready, or gone.
    type: int
    default: 120
  kubeconfig:
    description:
      - Path of the kubeconfig on the controller. C(KUBECONFIG) or C(~/.kube/config) when not given.
    type: path
  context:
    description:
      - Context in the kubeconfig. Its current one when not given.
    type: str
  timeout:
    description:
      - Seconds after which the module gives up on requests, beside O(ready_timeout).
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: The agent on two nodes
  npu.fleet.agent_daemonset:
    objects: "{{ {'image': 'registry.example.com/npu-agent:1'} | npu.fleet.agent_manifests }}"
    nodes:
      node-01: daemonset
      node-02: daemonset
    kubeconfig: ~/.kube/config
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
objects:
  description: What was done with each object, or would be in check mode.
  returned: with O(state=present) and O(state=absent)
  type: list
  elements: dict
  sample: [{"object": "DaemonSet npu-fleet/npu-agent", "action": "create", "why": ["it is not there"]}]
labelled:
  description: Nodes whose label C(npu.fleet/agent) was changed.
  returned: with each O(state) that changes
  type: list
  elements: str
  sample: ["node-01"]
others:
  description: Other device plugins that serve these Nodes.
  returned: with O(state=look)
  type: list
  elements: dict
  sample: [{"namespace": "kube-system", "name": "ascend-device-plugin-daemonset", "nodes": ["node-01"]}]
modes:
  description: The label C(npu.fleet/agent) of each Node, null where it has none. With O(state=paused), what was taken off.
  returned: with O(state=look) and O(state=paused)
  type: dict
  sample: {"node-01": "daemonset"}
images:
  description: Names of the images that each kubelet reports. It reports fifty at most by default.
  returned: with O(state=look)
  type: dict
  sample: {"node-01": ["registry.example.com/npu-agent:1"]}
pods:
  description: Names of the agent's pods on each Node.
  returned: with O(state=ready)
  type: dict
  sample: {"node-01": ["npu-agent-access-8zk2p", "npu-agent-x7xqk"]}
addresses:
  description: Address of the agent's pod on each Node, where kubelet reports one.
  returned: with O(state=ready)
  type: dict
  sample: {"node-01": "10.244.1.7"}
kept:
  description: Why the objects stay. Null where they do not.
  returned: with O(state=absent)
  type: str
  sample: 2 other Nodes have npu.fleet/agent, so the objects stay.
error:
  description: What went wrong, in fields.
  returned: failure
  type: dict
  contains:
    code:
      description:
        - One word for the kind of failure. V(foreign_plugin), V(kube_foreign), V(kube_pod_security), V(daemonset_not_ready),
          V(daemonset_not_gone), V(node_not_found), V(mixed_architectures), V(kube_too_old), V(kube_forbidden), V(kube_config),
          V(kube_unreachable), V(kube_unauthorized), V(kube_conflict),
          V(kube_error).
      returned: failure
      type: str
      sample: foreign_plugin
    message:
      description: What is wrong.
      returned: failure
      type: str
      sample: "Another device plugin for NPUs serves these nodes: DaemonSet kube-system/ascend-device-plugin-daemonset on node-01."
    phase:
      description: The verb that failed.
      returned: failure
      type: str
      sample: update
    object:
      description: The object or file it is about.
      returned: failure
      type: str
      sample: ascend-device-plugin-daemonset
    observed:
      description: What was seen.
      returned: failure
      type: raw
      sample: []
    hint:
      description: What mends it.
      returned: failure
      type: str
      sample: kubectl -n kube-system delete daemonset ascend-device-plugin-daemonset
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_daemonset, _kube_node


def argument_spec():
    """Return the options of the module."""
    return {
        "state": {"type": "str", "choices": ["look", "present", "ready", "paused", "resumed", "absent"], "default": "present"},
        "objects": {"type": "list", "elements": "dict", "default": []},
        "config": {"type": "str", "no_log": True},
        "arch": {"type": "str"},
        "nodes": {"type": "dict", "required": True},
        "take_over": {"type": "bool", "default": False},
        "ready_timeout": {"type": "int", "default": 120},
        "kubeconfig": {"type": "path"},
        "context": {"type": "str"},
        "timeout": {"type": "int", "default": 60},
    }


def run(params, check_mode, hide):
    """Do it; returns the result of the module. hide gets the secrets of the kubeconfig, to be masked everywhere."""
    nodes = {_kube_node.node_name(name): value for name, value in params["nodes"].items()}
    configuration = _kube.load_configuration(params["kubeconfig"], params["context"])
    hide(_kube.secrets(configuration))
    seconds = params["ready_timeout"]
    cluster = _kube_daemonset.Cluster(configuration, params["timeout"] + seconds, nodes)
    state, objects = params["state"], _kube_daemonset.filled(params["objects"], params.get("config"))
    if state == "look":
        return _kube_daemonset.look(cluster, objects, params["take_over"], params.get("arch"))
    if state == "present":
        return _kube_daemonset.present(cluster, objects, params["take_over"], check_mode)
    if state == "paused":
        return _kube_daemonset.paused(cluster, objects, check_mode, seconds)
    if state == "resumed":
        return _kube_daemonset.resumed(cluster, check_mode)
    if state == "absent":
        return _kube_daemonset.absent(cluster, objects, check_mode, seconds)
    if check_mode:
        return {"changed": False, "pods": {}, "addresses": {}}
    return _kube_daemonset.ready(cluster, objects, seconds)


def main():
    """Run as an Ansible module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, required_if=[
        ("state", "present", ("objects",)), ("state", "ready", ("objects",)), ("state", "absent", ("objects",))])
    _kube.run_module(module, run)


if __name__ == "__main__":
    main()
