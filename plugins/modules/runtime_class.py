#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One RuntimeClass of a cluster."""

DOCUMENTATION = r"""
module: runtime_class
short_description: One RuntimeClass of a Kubernetes cluster
version_added: 0.1.0
description:
  - Makes a RuntimeClass, by which pods choose a runtime of the container engine, or deletes it.
  - It owns only the fields it was given. Labels, annotations and other fields stay as they are, whoever wrote them.
  - What it makes carries the label C(app.kubernetes.io/managed-by=npu.fleet). A RuntimeClass without it was made by somebody else; it is
    never changed and never deleted. Where it is as wanted already, that is all right.
  - Kubernetes lets nobody change a handler. Another handler is an error that names the command; nothing is deleted to get there.
  - Runs on the controller. Delegate it to C(localhost).
extends_documentation_fragment:
  - npu.fleet._attributes
attributes:
  check_mode:
    support: full
    details: The cluster is read, nothing is sent.
  diff_mode:
    support: full
    details: Shows the given fields only.
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
      - Name of the RuntimeClass, what pods give as C(runtimeClassName).
    type: str
    required: true
  state:
    description:
      - With V(present) it is there with the given fields.
      - With V(absent) it is deleted, unless somebody else made it or it is used.
    type: str
    choices: [present, absent]
    default: present
  handler:
    description:
      - Name of the runtime in the engine's configuration. The same as O(name) when not given.
      - The engine of a node that does not have it refuses such pods; see O(node_selector).
    type: str
  node_selector:
    description:
      - Labels of the Nodes that have the runtime. Pods of this class get it in addition to their own.
      - The given labels replace those that are there; an empty dictionary takes them off. If not given, they stay as they are.
    type: dict
  tolerations:
    description:
      - Tolerations that pods of this class get in addition to their own.
      - The given list replaces the one that is there; an empty list takes it off. If not given, it stays as it is.
    type: list
    elements: dict
    suboptions:
      key:
        description: The taint's key. Left out, with operator V(Exists), it means every taint.
        type: str
      operator:
        description: How the value is compared.
        type: str
        choices: [Equal, Exists]
        default: Equal
      value:
        description: The taint's value, with operator V(Equal).
        type: str
      effect:
        description: The taint's effect. Left out it means every effect.
        type: str
        choices: [NoSchedule, PreferNoSchedule, NoExecute]
      toleration_seconds:
        description: For how long a taint with effect V(NoExecute) is tolerated; for ever when not given.
        type: int
  when_used:
    description:
      - What to do with O(state=absent) while pods that have not ended name the RuntimeClass, or Nodes match O(unless_nodes).
      - With V(refuse) it is an error. With V(keep) it stays, and RV(kept) tells why.
    type: str
    choices: [refuse, keep]
    default: refuse
  unless_nodes:
    description:
      - A label selector. With O(state=absent) the RuntimeClass counts as used while any Node matches it.
    type: str
  kubeconfig:
    description:
      - Path of the kubeconfig on the controller.
      - If not given, the environment variable E(KUBECONFIG) and then C(~/.kube/config) are used.
      - Its user needs the verbs C(get), C(create), C(update) and C(delete) on C(runtimeclasses) of the group C(node.k8s.io); for
        O(state=absent) also C(list) on C(pods), and on C(nodes) with O(unless_nodes).
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
  - module: npu.fleet.node_labels
  - module: npu.fleet.oci_runtime
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Let pods choose the runtime 'ascend'
  npu.fleet.runtime_class:
    name: ascend
    node_selector:
      npu.fleet/family: a2
    tolerations:
      - key: npu.fleet/dedicated
        operator: Exists
  delegate_to: localhost
  run_once: true

- name: Delete it when no pod needs it
  npu.fleet.runtime_class:
    name: ascend
    state: absent
    when_used: keep
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
before:
  description: The given fields as they were; empty where there was no such RuntimeClass.
  returned: success
  type: dict
  contains: &fields
    handler:
      description: The handler.
      returned: if there is a RuntimeClass
      type: str
      sample: ascend
    node_selector:
      description: Labels of the Nodes that have the runtime.
      returned: if there is a RuntimeClass and O(node_selector) was given
      type: dict
      sample: {"npu.fleet/family": "a2"}
    tolerations:
      description: Tolerations in the form of the API.
      returned: if there is a RuntimeClass and O(tolerations) was given
      type: list
      elements: dict
      sample: [{"key": "npu.fleet/dedicated", "operator": "Exists"}]
after:
  description: The given fields as they are now; in check mode as they would be.
  returned: success
  type: dict
  contains: *fields
action:
  description: What was done, or would be in check mode. Null for nothing.
  returned: success
  type: str
  sample: create
kept:
  description: Why it was left where it was to go. Null where it was not.
  returned: success
  type: str
  sample: "The RuntimeClass 'ascend' is used by 1 pods: default/train-0."
users:
  description: Pods that name it and have not ended, as namespace and name. Only looked for where it is ours and is to go.
  returned: success
  type: list
  elements: str
  sample: ["default/train-0"]
error:
  description: What went wrong, in fields.
  returned: failure
  type: dict
  contains:
    code:
      description:
        - One word for the kind of failure. V(runtime_class_handler), V(runtime_class_foreign), V(runtime_class_used),
          V(invalid_runtime_class), V(invalid_label), V(invalid_toleration), V(kube_config), V(kube_unreachable), V(kube_unauthorized),
          V(kube_forbidden), V(kube_conflict), V(kube_error).
      returned: failure
      type: str
      sample: runtime_class_handler
    message:
      description: What is wrong.
      returned: failure
      type: str
      sample: "The RuntimeClass 'ascend' has the handler 'runc', not 'ascend', and Kubernetes lets nobody change a handler."
    phase:
      description: The verb that failed.
      returned: failure
      type: str
      sample: update
    object:
      description: The RuntimeClass, key or file it is about.
      returned: failure
      type: str
      sample: ascend
    observed:
      description: What was seen.
      returned: failure
      type: raw
      sample: runc
    hint:
      description: What mends it.
      returned: failure
      type: str
      sample: "kubectl delete runtimeclass ascend"
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _kube, _kube_class, _kube_class_api


def argument_spec():
    """Return the options of the module."""
    return {
        "name": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "handler": {"type": "str"},
        "node_selector": {"type": "dict"},
        "tolerations": {
            "type": "list",
            "elements": "dict",
            "options": {
                # Names of taints, no secrets: said because 'key' looks like one.
                "key": {"type": "str", "no_log": False},
                "operator": {"type": "str", "choices": ["Equal", "Exists"], "default": "Equal"},
                "value": {"type": "str"},
                "effect": {"type": "str", "choices": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
                "toleration_seconds": {"type": "int"},
            },
        },
        "when_used": {"type": "str", "choices": ["refuse", "keep"], "default": "refuse"},
        "unless_nodes": {"type": "str"},
        "kubeconfig": {"type": "path"},
        "context": {"type": "str"},
        "timeout": {"type": "int", "default": 30},
    }


def run(params, check_mode, hide):
    """Do it; returns the result of the module. hide gets the secrets of the kubeconfig, to be masked everywhere."""
    want = _kube_class.wanted(params)
    configuration = _kube.load_configuration(params["kubeconfig"], params["context"])
    hide(_kube.secrets(configuration))
    api = _kube_class_api.ClassApi(configuration, params["timeout"])
    if want["state"] == "present":
        done = _kube_class_api.present(api, want, check_mode)
    else:
        done = _kube_class_api.absent(api, want, params["when_used"], params["unless_nodes"], check_mode)
    header = "RuntimeClass %s" % want["name"]
    return {
        "changed": done["action"] is not None,
        "before": done["before"],
        "after": done["after"],
        "action": done["action"],
        "kept": done.get("kept"),
        "users": done.get("users", []),
        "diff": {"before": done["before"], "after": done["after"], "before_header": header, "after_header": header},
    }


def main():
    """Run as an Ansible module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    _kube.run_module(module, run)


if __name__ == "__main__":
    main()
