#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels, annotations and taints of one Node."""

DOCUMENTATION = r"""
module: node_labels
short_description: Labels, annotations and taints of one Kubernetes Node
version_added: 0.1.0
description:
  - Puts labels, annotations and taints on one Node of a Kubernetes cluster, or takes them off.
  - It owns only the keys it was given. Everything else on the Node stays as it is, whoever wrote it.
  - Runs on the controller. Delegate it to C(localhost); the node itself needs neither credentials nor a Kubernetes client.
  - Without any labels, annotations or taints it only reads, and returns what the Node reports.
extends_documentation_fragment:
  - npu.fleet._attributes
attributes:
  check_mode:
    support: full
    details: The Node is read, nothing is sent.
  diff_mode:
    support: full
    details: Shows the given keys only.
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
requirements:
  - kubernetes >= 24.2 (Python package, on the controller)
options:
  name:
    description:
      - The Node's name in the cluster. It often is the host name, but need not be.
    type: str
    required: true
  state:
    description:
      - With V(present) the given keys get the given values.
      - With V(absent) the given keys are taken off, whatever their values are. A taint may be tied to its value, see O(taints).
    type: str
    choices: [present, absent]
    default: present
  labels:
    description:
      - Labels by key. A value must be text or a whole number; write V("true") in quotes.
      - With O(state=absent) values do not matter and may be empty.
    type: dict
  annotations:
    description:
      - Annotations by key, values as for O(labels).
    type: dict
  taints:
    description:
      - Taints. A taint is known by its key and effect together; other taints of the Node stay.
      - Taints are one list in the API, so the change names the version of the Node that was read. If another writer was faster, it is done
        again on the newer Node until O(timeout).
    type: list
    elements: dict
    suboptions:
      key:
        description: The taint's key.
        type: str
        required: true
      value:
        description:
          - The taint's value.
          - For a taint that is taken off it means that only a taint with this value goes, so that writers can share a key by their values.
        type: str
      effect:
        description:
          - The taint's effect. Needed with O(state=present).
          - Left out for a taint that is taken off it means every effect of this key.
        type: str
        choices: [NoSchedule, PreferNoSchedule, NoExecute]
      state:
        description:
          - Of this taint alone, so that labels can be put on and a taint taken off in one change. Without it that of O(state).
        type: str
        choices: [present, absent]
      replace:
        description:
          - If a taint with the same key and effect and another value gets this value. With V(false) it stays as it is, so that a taint of
            another writer counts as well as ours.
        type: bool
        default: true
  record:
    description:
      - Key of an annotation in which the module notes the labels that it has written, with their values.
      - With it, labels that were written before and are not given any more are taken off, while they still have the noted value. With
        O(state=absent) all noted labels go that way, beside those of O(labels).
      - A label that had the wanted value before is not noted, and stays on the Node.
    type: str
  only_missing:
    description:
      - Keys of O(labels) that are written only where the Node does not have them, or has what O(record) says that was written before.
        Values of others stay, see RV(kept).
    type: list
    elements: str
    default: []
  keep:
    description:
      - Keys of labels that are left alone, whatever O(labels) and O(record) say of them.
    type: list
    elements: str
    default: []
  unless_labels:
    description:
      - Nothing is done to a Node that has all of these labels with these values.
    type: dict
  missing:
    description:
      - What a Node that the cluster does not have is. With V(ignore) nothing is done and RV(node) is null.
    type: str
    choices: [fail, ignore]
    default: fail
  kubeconfig:
    description:
      - Path of the kubeconfig on the controller.
      - If not given, the environment variable E(KUBECONFIG) and then C(~/.kube/config) are used.
      - Its user needs the verbs C(get) and C(patch) on C(nodes).
    type: path
  context:
    description:
      - Context of the kubeconfig. If not given, its current context.
    type: str
  timeout:
    description:
      - Seconds for everything together, including tries after a conflict or while the API is busy.
    type: int
    default: 30
seealso:
  - module: npu.fleet.npu_info
notes:
  - Proxies are used as the kubernetes client understands them, E(HTTPS_PROXY) and E(NO_PROXY) from its version 34 on, C(proxy-url) of a
    kubeconfig from 37 on. One of the environment is never used for an API on the controller itself (loopback).
  - Labels are written by the controller; the agent on a node holds no API credential.
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Label the Node by its NPU family
  npu.fleet.node_labels:
    name: "{{ inventory_hostname }}"
    labels:
      npu.fleet/family: a2
      npu.fleet/chips: "8"
    kubeconfig: ~/.kube/config
  delegate_to: localhost

- name: Keep new work away while the driver changes
  npu.fleet.node_labels:
    name: node-01
    taints:
      - key: npu.fleet/maintenance
        value: driver
        effect: NoSchedule
  delegate_to: localhost

- name: Take the taint off again, whatever its effect
  npu.fleet.node_labels:
    name: node-01
    state: absent
    taints:
      - key: npu.fleet/maintenance
  delegate_to: localhost

- name: Label the Node and lift our own taint in one change; labels that were given the last time and are not now go
  npu.fleet.node_labels:
    name: node-01
    record: npu.fleet/labels
    labels:
      npu.fleet/ready: "true"
      accelerator-type: card-910b-infer
    only_missing: [accelerator-type]
    taints:
      - key: npu.fleet/not-ready
        value: site
        effect: NoSchedule
        state: absent
  delegate_to: localhost

- name: Only look what the Node offers
  npu.fleet.node_labels:
    name: node-01
  delegate_to: localhost
  register: node
"""

RETURN = r"""
before:
  description: The given keys as they were on the Node.
  returned: success
  type: dict
  contains: &keys
    labels:
      description: Labels by key; a key that is not on the Node is left out.
      returned: success
      type: dict
      sample: {"npu.fleet/family": "a2"}
    annotations:
      description: Annotations by key.
      returned: success
      type: dict
      sample: {"npu.fleet/release": "a2-25.5.0"}
    taints:
      description: Taints with the given keys and effects.
      returned: success
      type: list
      elements: dict
      sample: [{"key": "npu.fleet/maintenance", "value": "driver", "effect": "NoSchedule"}]
kept:
  description: Labels of O(only_missing) that others have set to another value, which stays.
  returned: success
  type: dict
  sample: {"accelerator-type": "module-910b-8"}
after:
  description: The given keys as they are now; in check mode as they would be.
  returned: success
  type: dict
  contains: *keys
node:
  description: What the Node reports. Null with O(missing=ignore) where the cluster does not have it.
  returned: success
  type: dict
  contains:
    name:
      description: Its name.
      returned: success
      type: str
      sample: node-01
    allocatable:
      description: What the scheduler may give away, by resource name.
      returned: success
      type: dict
      sample: {"cpu": "64", "huawei.com/Ascend910": "8", "memory": "263836472Ki", "pods": "110"}
    capacity:
      description: What the Node has in all, by resource name.
      returned: success
      type: dict
      sample: {"cpu": "64", "huawei.com/Ascend910": "8", "memory": "263938872Ki", "pods": "110"}
    ready:
      description: If its kubelet reports it ready. Null where nobody reports, or the report is too old to count.
      returned: success
      type: bool
      sample: true
    unschedulable:
      description: If it is cordoned.
      returned: success
      type: bool
      sample: false
error:
  description: What went wrong, in fields.
  returned: failure
  type: dict
  contains:
    code:
      description:
        - One word for the kind of failure. V(kube_config), V(kube_unreachable), V(kube_unauthorized), V(kube_forbidden), V(node_not_found),
          V(kube_conflict), V(kube_error), V(invalid_label), V(invalid_annotation), V(invalid_taint), V(invalid_node_name).
      returned: failure
      type: str
      sample: kube_forbidden
    message:
      description: What is wrong.
      returned: failure
      type: str
      sample: The cluster at https://192.0.2.10:6443 has no Node 'node-01'.
    phase:
      description: The verb that failed.
      returned: failure
      type: str
      sample: patch
    object:
      description: The Node, key or file it is about.
      returned: failure
      type: str
      sample: node-01
    observed:
      description: What was seen.
      returned: failure
      type: raw
      sample: "HTTP 404: nodes \"node-01\" not found"
    hint:
      description: What mends it.
      returned: failure
      type: str
      sample: "See 'kubectl get nodes'."
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_node
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError


def argument_spec():
    """Return the options of the module."""
    return {
        "name": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "labels": {"type": "dict"},
        "annotations": {"type": "dict"},
        "taints": {
            "type": "list",
            "elements": "dict",
            "options": {
                # Names of taints, no secrets: said because 'key' looks like one.
                "key": {"type": "str", "required": True, "no_log": False},
                "value": {"type": "str"},
                "effect": {"type": "str", "choices": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
                "state": {"type": "str", "choices": ["present", "absent"]},
                "replace": {"type": "bool", "default": True},
            },
        },
        "record": {"type": "str"},
        "only_missing": {"type": "list", "elements": "str", "default": []},
        "keep": {"type": "list", "elements": "str", "default": []},
        "unless_labels": {"type": "dict"},
        "missing": {"type": "str", "choices": ["fail", "ignore"], "default": "fail"},
        "kubeconfig": {"type": "path"},
        "context": {"type": "str"},
        "timeout": {"type": "int", "default": 30},
    }


def run(params, check_mode, hide):
    """Do it; returns the result of the module. hide gets the secrets of the kubeconfig, to be masked everywhere."""
    name = _kube_node.node_name(params["name"])
    want = _kube_node.wanted(params)
    configuration = _kube.load_configuration(params["kubeconfig"], params["context"])
    hide(_kube.secrets(configuration))
    header = "Node %s" % name
    try:
        done = _kube.ensure(_kube.NodeApi(configuration, params["timeout"]), name, want, check_mode)
    except FleetError as error:
        if error.code != "node_not_found" or params["missing"] != "ignore":
            raise
        nothing = {"labels": {}, "annotations": {}, "taints": []}
        done = {"changed": False, "before": nothing, "after": nothing, "kept": {}, "node": None}
    return {
        "changed": done["changed"],
        "before": done["before"],
        "after": done["after"],
        "kept": done["kept"],
        "diff": {"before": done["before"], "after": done["after"], "before_header": header, "after_header": header},
        "node": None if done["node"] is None else dict(_kube_node.status(done["node"]), name=name),
    }


def main():
    """Run as an Ansible module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    _kube.run_module(module, run)


if __name__ == "__main__":
    main()
