#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L4: a real pod on a node."""

DOCUMENTATION = r"""
---
module: npu_pod_gate
short_description: Prove a node by a pod that asks for one NPU (internal)
version_added: 0.1.0
description:
  - Internal to this collection, used by the role C(npu_verify); options and results may change without notice.
  - Creates a pod that is bound to the node and asks for one NPU, waits for its end, holds what it saw against the chips of the node, and
    deletes it, whatever happens. Pods of a run that was cut are found by their labels and their age, and deleted first.
  - The pod runs as nobody, without privileges, capabilities, volumes and API token, on a read-only root. It tolerates the taint
    C(npu.fleet/not-ready).
  - A node whose NPUs are all in use is not judged. What hangs is given up in its time; so is a pod of a run that ends by a signal.
  - A gate that does not pass is an answer, not a failure of this module; assert RV(passed).
  - Run it on the controller (C(delegate_to=localhost)), which needs the Python package C(kubernetes).
options:
  node:
    description: Name of the Node.
    type: str
    required: true
  namespace:
    description: Namespace of the pod.
    type: str
    default: default
  image:
    description: Its image, with C(/bin/sh), C(ls), C(tr) and C(cut). With C(python3) in it libraries are really loaded.
    type: str
    required: true
  resource:
    description: The resource that it asks for.
    type: str
    required: true
  chips:
    description: For each chip of the node the names of its device nodes below C(/dev) in a container.
    type: list
    elements: list
    default: []
  managers:
    description: Names of the device nodes that each container with a chip needs.
    type: list
    elements: str
    default: []
  libraries:
    description: Libraries that must load in it.
    type: list
    elements: str
    default: []
  runtime_class:
    description: Its RuntimeClass.
    type: str
  timeout:
    description: Seconds until it has to be over.
    type: float
    default: 120
  kubeconfig:
    description: The kubeconfig on the controller; C(KUBECONFIG), then C(~/.kube/config) without it.
    type: path
  context:
    description: Context in it; its current one without it.
    type: str
extends_documentation_fragment:
  - npu.fleet._attributes
attributes:
  check_mode:
    support: full
    details: No pod is started in check mode, and nothing is judged.
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    platforms: linux
    support: full
seealso:
  - module: npu.fleet.npu_gates
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Prove a node by a pod
  npu.fleet.npu_pod_gate:
    node: node-01
    image: registry.example.com/debian:12
    resource: huawei.com/Ascend910
    chips: [[davinci0], [davinci1]]
    managers: [davinci_manager]
  delegate_to: localhost
  register: pod
"""

RETURN = r"""
passed:
  description: Did the gate pass? V(null) where it was not judged, as in check mode.
  returned: success
  type: bool
  sample: true
summary:
  description: One line.
  returned: success
  type: str
  sample: L4 passed (by pod)
gate:
  description: The verdict, as in RV(npu.fleet.npu_gates#module:gates).
  returned: success
  type: dict
  sample: {"gate": "L4", "name": "pod", "passed": true, "by": "pod", "checks": []}
failures:
  description: One line for each check that did not pass, with what an operator can do about it.
  returned: success
  type: list
  elements: str
  sample: []
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _gates_limit, _gates_pod, _gates_pod_api, _gates_verdict, _kube, _kube_node


def argument_spec():
    """Return the options of the module."""
    return {
        "node": {"type": "str", "required": True},
        "namespace": {"type": "str", "default": "default"},
        "image": {"type": "str", "required": True},
        "resource": {"type": "str", "required": True},
        "chips": {"type": "list", "elements": "list", "default": []},
        "managers": {"type": "list", "elements": "str", "default": []},
        "libraries": {"type": "list", "elements": "str", "default": []},
        "runtime_class": {"type": "str"},
        "timeout": {"type": "float", "default": 120},
        "kubeconfig": {"type": "path"},
        "context": {"type": "str"},
    }


def run(params, check_mode, hide):
    """Do it; returns the result of the module. hide gets the secrets of the kubeconfig, to be masked everywhere."""
    node = _kube_node.node_name(params["node"])
    if check_mode:
        verdict = _gates_verdict.verdict_of("L4", [], why="no pod is started in check mode", by="pod")
    else:
        configuration = _kube.load_configuration(params["kubeconfig"], params["context"])
        hide(_kube.secrets(configuration))
        began = time.monotonic()
        outcome = _gates_pod_api.try_pod(
            lambda seconds: _gates_pod_api.PodApi(configuration, seconds, params["namespace"]), node, params["timeout"],
            names=sorted({name for nodes in params["chips"] for name in nodes} | set(params["managers"])),
            **{key: params[key] for key in ("namespace", "image", "resource", "runtime_class", "libraries")},
        )
        checks = _gates_pod.checks(outcome, params["chips"], params["managers"], params["libraries"])
        why = outcome["why"] if checks is None else None
        evidence = {"asked": "a pod for one %s on %s" % (params["resource"], node), "seen": outcome}
        took = round(time.monotonic() - began, 1)
        limit = params["timeout"]
        verdict = _gates_verdict.verdict_of("L4", checks or [], why=why, by="pod", seconds=took, limit=limit, evidence=evidence)
    return {"changed": False, "passed": verdict["passed"], "gate": verdict, "failures": _gates_verdict.failures([verdict]),
            "summary": _gates_verdict.summary([verdict])}


def main():
    """Run as an Ansible module."""
    _gates_limit.end_in_order()
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    try:
        _kube.run_module(module, run)
    except _gates_limit.GivenUp:
        module.fail_json(msg="The gate was ended by a signal before it was over; its pod is deleted as far as that was possible.")


if __name__ == "__main__":
    main()
