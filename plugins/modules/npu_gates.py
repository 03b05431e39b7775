#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the gates of a node in one call."""

DOCUMENTATION = r"""
---
module: npu_gates
short_description: Prove from the machine's state that a node may take work
version_added: 0.1.0
description:
  - L0 host, there are NPUs of one family, no reboot is pending, the container engine is active.
  - L1 driver, each pinned version is complete on disk, driver and firmware of that version run, every chip answers and is healthy.
  - L2 container, real containers through the node's engine and the NPU runtime see exactly the device nodes that they ask for by
    C(ASCEND_VISIBLE_DEVICES), and none where they ask for none; values that the runtime does not know are refused.
  - L3 plugin, the device plugin is registered, the kubelet listens, and driver, plugin and kubelet agree, chip by chip. A chip that the
    driver calls unhealthy may be in service by its fault codes, of which the plugin knows the harmless ones.
  - L4 pod, what kubelet does at the admission of a pod is done for one id that no pod has - the plugin is asked, and a container is started
    with exactly its answer. Nothing is reserved by that. A real pod is what M(npu.fleet.npu_pod_gate) starts.
  - On a board whose NPU needs no packages (Rockchip), L1 is the bound driver and a device node that opens, and for L2 a container gets the
    device nodes themselves.
  - Each gate has its own limit of time; a look that is not over by then is given up, and that fails its gate.
  - A gate that does not pass is an answer, not a failure of this module; assert RV(passed).
  - Used by the role C(npu_verify), which is what playbooks call; options and results may change without notice.
  - For L2 a container is the node's own C(ls) over an empty root, with the node's own C(/usr) bound read-only. No registry is needed, and
    nothing is left. C(docker) runs it by C(docker run); C(containerd), C(k3s) and C(rke2) by C(ctr run) in a namespace of its own; for
    C(crio) and C(isulad) the runtime itself is called, as they do it.
  - A dozen containers are started where engine, runtime program, mount lists, chips or driver differ from those of the last pass on this
    node, one container otherwise.
options:
  gates:
    description: Gates to judge, at least one.
    type: list
    elements: str
    choices: [L0, L1, L2, L3, L4]
    default: [L0, L1, L2, L3, L4]
  limits:
    description:
      - Seconds that each gate may take, V(L0) 60, V(L1) 180, V(L2) 430, V(L3) 30, V(L4) 120; only what differs has to be given.
      - The node and its driver are looked at once for V(L0) and V(L1), within the sum of both.
    type: dict
    default: {}
  pod_by:
    description:
      - What V(L4) is judged by. With V(pod) it is left to M(npu.fleet.npu_pod_gate), and RV(pod_due) tells whether it has to run.
    type: str
    choices: [admission, pod]
    default: admission
  pod_always:
    description: With V(false) V(L4) is not judged again where nothing has changed since it passed on this node.
    type: bool
    default: true
  kubelet_dir:
    description: Folder of the kubelet.
    type: path
    default: /var/lib/kubelet
  own_versions:
    description:
      - Where O(versions) names none, go by those of the node's own record, which passed here last; without a record by those on its disk.
    type: bool
    default: false
  versions:
    description: Pinned version of each component (C(driver), C(firmware), C(cann_toolkit), C(cann_kernels), C(docker_runtime)).
    type: dict
    default: {}
  runtime:
    description: Name of the NPU runtime in the container engine. Empty where none is wanted; L2 is not judged then.
    type: str
    default: ascend
  runtime_path:
    description: Program of the NPU runtime, where the engine does not say which one it calls.
    type: path
    default: /usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime
  engine:
    description:
      - The container engine. V(auto) takes the kubelet's; without a kubelet the only one, where C(docker) counts for the containerd that it
        needs.
    type: str
    choices: [auto, docker, containerd, k3s, rke2, crio, isulad]
    default: auto
  unhealthy_allowed:
    description: How many chips may be unhealthy.
    type: int
    default: 0
  unhealthy_from:
    description: Lowest level of DCMI health at which a chip counts as unhealthy. Must be that of the agent's configuration.
    type: str
    choices: [minor, major, critical]
    default: major
  chips:
    description: How many chips the node must have; V(0) for any number.
    type: int
    default: 0
  seen_before:
    description: PCI addresses of chips that were there earlier in this run. One that is gone fails L0.
    type: list
    elements: str
    default: []
  record:
    description:
      - Note on the node that O(versions) passed together, when every judged gate passed and L1 was one of them. That set is then the
        node's way back, and its packages stay in O(cache_dir).
    type: bool
    default: false
  cache_dir:
    description: Folder of the packages, as M(npu.fleet.npu_package) has it.
    type: path
    default: /var/cache/npu-fleet
  agent_url:
    description: Where the agent of this node tells its state.
    type: str
    default: http://127.0.0.1:8083/readyz
extends_documentation_fragment:
  - npu.fleet._attributes
  - npu.fleet._look
attributes:
  check_mode:
    support: full
    details: No container is started in check mode, so L2 and L4 are not judged.
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    platforms: linux
    support: full
seealso:
  - module: npu.fleet.npu_info
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Prove the node
  npu.fleet.npu_gates:
    versions:
      driver: 25.5.0
      firmware: 7.8.0.5.216
  register: node

- name: Stop with every reason at once
  ansible.builtin.assert:
    that: node.passed
    fail_msg: "{{ node.failures }}"
"""

RETURN = r"""
recorded:
  description: Whether the node did not know before that these versions pass.
  returned: always
  type: bool
  sample: false
passed:
  description:
    - Did no gate fail? One that was not judged does not count, and RV(gates) tells why it was not. A look that was given up and a plugin
      that cannot be asked are failures.
  returned: always
  type: bool
  sample: true
first_failed:
  description: The first gate that failed, with the first check of it that did. V(null) where none failed.
  returned: always
  type: dict
  contains:
    gate:
      description: Short name.
      type: str
      sample: L3
    name:
      description: What it is about.
      type: str
      sample: plugin
    check:
      description: The check.
      type: str
      sample: agent runs
    reason:
      description: What was seen, and what to do about it.
      type: str
      sample: "L3 plugin: agent runs: npu-agent.service is not active. `journalctl -u npu-agent -n 50` on the node tells why."
summary:
  description: One line for the node.
  returned: always
  type: str
  sample: L0 passed, L1 passed, L2 passed, L3 failed, L4 not judged (no plugin is there to ask)
gates:
  description: Verdict of each gate with its checks.
  returned: always
  type: list
  elements: dict
  contains:
    gate:
      description: Short name.
      type: str
      sample: L2
    name:
      description: What it is about.
      type: str
      sample: container
    passed:
      description: Did all its checks pass? V(null) where it was not judged.
      type: bool
      sample: true
    judged:
      description: Was it judged?
      type: bool
      sample: true
    why:
      description: Why it was not judged.
      type: str
      sample: null
    by:
      description: Of L4, V(admission) or V(pod).
      type: str
      sample: admission
    seconds:
      description: How long its look took. L0 and L1 share one.
      type: float
      sample: 1.3
    limit:
      description: How long it may take.
      type: float
      sample: 60
    evidence:
      description: What was asked, and what was seen.
      type: dict
      sample: {"asked": "http://127.0.0.1:8083/readyz", "seen": {}}
    checks:
      description: The checks, each with what was seen.
      type: list
      elements: dict
      sample: [{"name": "container starts", "passed": true, "detail": "runtime ascend"}]
container:
  description: Evidence of gate L2. V(null) where it was not judged.
  returned: always
  type: dict
  contains:
    engine:
      description: The engine that started the containers.
      type: str
      sample: docker
    whole:
      description: Was the whole table tried, because something differs from the last pass?
      type: bool
      sample: true
    rows:
      description:
        - One entry for each container. C(value) of C(ASCEND_VISIBLE_DEVICES) (V(null) when it was not set), C(expected) device nodes
          (V(null) for a refusal), C(seen) ones (V(null) when it did not start), C(passed), C(error) and C(seconds).
      type: list
      elements: dict
      sample: [{"name": "one", "value": "0", "expected": ["davinci0", "davinci_manager"], "seen": ["davinci0", "davinci_manager"],
                "passed": true, "error": null, "seconds": 0.8}]
    error:
      description: Why no container could be tried.
      type: str
      sample: null
    left:
      description: What could not be removed afterwards.
      type: list
      elements: str
      sample: []
    log:
      description: Last lines of the runtime's own log, where a row did not pass.
      type: str
      sample: null
pod:
  description:
    - Evidence of gate L4 by admission. C(id) of C(resource), the plugin's C(answer), and the C(row) of the container that got it. V(null)
      where it was not judged so.
  returned: always
  type: dict
  sample: {"by": "admission", "resource": "huawei.com/Ascend910", "id": "Ascend910-0"}
pod_due:
  description: Has M(npu.fleet.npu_pod_gate) to run? Only with O(pod_by=pod).
  returned: always
  type: bool
  sample: false
pod_print:
  description: What the outcome of L4 depends on, as a checksum. V(null) where it was not got so far.
  returned: always
  type: str
  sample: null
pod_wanted:
  description: What a pod on this node has to see, for M(npu.fleet.npu_pod_gate).
  returned: always
  type: dict
  sample: {"resource": "huawei.com/Ascend910", "chips": [["davinci0"]], "managers": ["davinci_manager"]}
versions:
  description: The versions that L1 went by.
  returned: always
  type: dict
  sample: {"driver": "25.5.0"}
versions_from:
  description: V(pins), or V(record) or V(disk) of the node with O(own_versions).
  returned: always
  type: str
  sample: pins
failures:
  description: One line for each check that did not pass, with what an operator can do about it.
  returned: always
  type: list
  elements: str
  sample:
    - "L3 plugin: agent runs: npu-agent.service is not active. `journalctl -u npu-agent -n 50` on the node tells why."
npu:
  description: What was observed, as M(npu.fleet.npu_info) returns it.
  returned: always
  type: dict
  sample: {"present": true, "family": "a2"}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _gates_verdict
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail
from ansible_collections.npu.fleet.plugins.module_utils._gates_kubelet import KUBELET_DIR
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import GivenUp, end_in_order
from ansible_collections.npu.fleet.plugins.module_utils._gates_run import LIMITS, Run
from ansible_collections.npu.fleet.plugins.module_utils._hardware._health import DEFAULT_LEVEL, LEVELS
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import under
from ansible_collections.npu.fleet.plugins.module_utils._observe import look_options
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good
from ansible_collections.npu.fleet.plugins.module_utils._packages._journal import STATE_DIR

ENGINES = ("auto", "docker", "containerd", "k3s", "rke2", "crio", "isulad")


def argument_spec():
    names = [gate for gate, unused in _gates_verdict.GATES]
    return dict(
        look_options(),
        gates={"type": "list", "elements": "str", "choices": names, "default": names},
        limits={"type": "dict", "default": {}},
        pod_by={"type": "str", "choices": ["admission", "pod"], "default": "admission"},
        pod_always={"type": "bool", "default": True},
        kubelet_dir={"type": "path", "default": KUBELET_DIR},
        own_versions={"type": "bool", "default": False},
        versions={"type": "dict", "default": {}},
        runtime={"type": "str", "default": "ascend"},
        runtime_path={"type": "path", "default": "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"},
        engine={"type": "str", "choices": list(ENGINES), "default": "auto"},
        unhealthy_allowed={"type": "int", "default": 0},
        unhealthy_from={"type": "str", "choices": sorted(LEVELS, key=lambda level: LEVELS[level]), "default": DEFAULT_LEVEL},
        chips={"type": "int", "default": 0},
        seen_before={"type": "list", "elements": "str", "default": []},
        record={"type": "bool", "default": False},
        cache_dir={"type": "path", "default": _good.CACHE_DIR},
        agent_url={"type": "str", "default": "http://127.0.0.1:8083/readyz"},
    )


def check_limits(limits):
    """Raise FleetError for a gate that there is not, or seconds that are none."""
    for gate, seconds in sorted(limits.items()):
        try:
            good = gate in LIMITS and float(seconds) > 0
        except (TypeError, ValueError):
            good = False
        if not good:
            raise FleetError("npu_verify_limits has %s: %s." % (gate, seconds), "gate_limit_invalid", object=gate, observed=seconds,
                             hint="Give seconds above 0 for gates among %s." % ", ".join(sorted(LIMITS)))


def promote(params, answer, check_mode):
    """Whether the node learned that these versions pass. L1 alone proves versions, so without it nothing was proved."""
    judged = [verdict["gate"] for verdict in answer["gates"] if verdict.get("judged", True)]
    # A pod that is still to come may show that they do not.
    if not (params["record"] and answer["passed"] and "L1" in judged and params["versions"] and not answer.get("pod_due")):
        return False
    return _good.promote(under(params["root"], STATE_DIR), params["versions"], under(params["root"], params["cache_dir"]), check_mode)


def main():
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    end_in_order()
    try:
        check_limits(module.params["limits"])
        answer = Run(module.params, module.check_mode).run()
        recorded = promote(module.params, answer, module.check_mode)
        module.exit_json(changed=recorded, recorded=recorded, **answer)
    except GivenUp:
        module.fail_json(msg="The gates were ended by a signal before they were over; what they had started is taken away.")
    except FleetError as error:
        fail(module, error)
    except OSError as error:
        fail(module, FleetError("%s: %s" % (error.filename or STATE_DIR, error.strerror), "record_not_written", observed=str(error)))


if __name__ == "__main__":
    main()
