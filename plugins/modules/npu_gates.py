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
  - L3 plugin, the device plugin is registered, the kubelet listens, and plugin and driver count the same healthy chips.
  - A gate that does not pass is an answer, not a failure of this module; assert RV(passed).
  - Used by the role C(npu_verify), which is what playbooks call; options and results may change without notice.
  - For L2 a container is the node's own C(ls) over an empty root, with the node's own C(/usr) bound read-only. No registry is needed, and
    nothing is left. C(docker) runs it by C(docker run); C(containerd), C(k3s) and C(rke2) by C(ctr run) in a namespace of its own; for
    C(crio) and C(isulad) the runtime itself is called, as they do it.
  - A dozen containers are started where engine, runtime program, mount lists, chips or driver differ from those of the last pass on this
    node, one container otherwise.
options:
  gates:
    description: Gates to judge.
    type: list
    elements: str
    choices: [L0, L1, L2, L3]
    default: [L0, L1, L2, L3]
  versions:
    description: Pinned version of each component (C(driver), C(firmware), C(cann_toolkit), C(cann_kernels), C(docker_runtime)).
    type: dict
    default: {}
  runtime:
    description: Name of the NPU runtime in the container engine. Empty where none is wanted.
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
    details: No container is started in check mode, so L2 is not judged.
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
  description: Did all gates pass?
  returned: always
  type: bool
  sample: true
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
      description: Did all its checks pass?
      type: bool
      sample: true
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

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _gates, _gates_container
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import engine_of, runtime_path
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail
from ansible_collections.npu.fleet.plugins.module_utils._gates_engines import engine_for
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES
from ansible_collections.npu.fleet.plugins.module_utils._hardware._health import DEFAULT_LEVEL, LEVELS
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import under
from ansible_collections.npu.fleet.plugins.module_utils._observe import look_options, observe
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good
from ansible_collections.npu.fleet.plugins.module_utils._packages._journal import STATE_DIR

ENGINES = ("auto", "docker", "containerd", "k3s", "rke2", "crio", "isulad")
#: Options that say what is wanted of the node.
WANTED = ("versions", "runtime", "engine", "unhealthy_allowed", "unhealthy_from", "chips", "seen_before")


def argument_spec():
    names = [gate for gate, unused in _gates.GATES]
    return dict(
        look_options(),
        gates={"type": "list", "elements": "str", "choices": names, "default": names},
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


def look_into_containers(npu, params):
    """What real containers see, by the engine that counts; evidence for gate L2."""
    engine, why = engine_of(npu["engines"], params["engine"])
    if engine is None:
        return {"error": "no container was tried: %s" % why}
    family = FAMILIES.get(npu["family"])
    if family is None:
        return {"error": "the family of the chips is not known, so no container was tried"}
    chips, managers, host = _gates_container.wanted_of(npu, family, params["dev_root"], params["unhealthy_from"])
    if not chips:
        return {"error": "no chip has a device node, so no container was tried"}
    root, state = params["root"], under(params["root"], STATE_DIR)
    path = runtime_path(engine, params["runtime"], params["runtime_path"])
    tried = engine_for(run, engine, params["runtime"], path, os.path.join(state, "gates", "work"), root=root)
    table = _gates_container.truth_table(chips, managers, family["device_prefix"])
    known = _gates_container.fingerprint(npu, engine, params["runtime"], path, table, root=root)
    return dict(_gates_container.probe(tried, table, host, known, state, root=root), engine=engine["name"])


def judge(params, check_mode):
    """Observation and verdicts."""
    gates = [g for g in params["gates"] if not (check_mode and g == "L2")]
    npu = observe(params)
    container = look_into_containers(npu, params) if "L2" in gates else None
    verdicts = _gates.judge(
        npu,
        dict({key: params[key] for key in WANTED}, gates=gates),
        container=container,
        plugin=_gates.probe_plugin(params["agent_url"]) if "L3" in gates else None,
    )
    return {
        "passed": all(v["passed"] for v in verdicts),
        "gates": verdicts,
        "failures": _gates.failures(verdicts),
        "container": container,
        "npu": npu,
    }


def promote(params, answer, check_mode):
    """Whether the node learned that these versions pass. L1 alone proves versions, so without it nothing was proved."""
    judged = [verdict["gate"] for verdict in answer["gates"]]
    if not (params["record"] and answer["passed"] and "L1" in judged and params["versions"]):
        return False
    return _good.promote(under(params["root"], STATE_DIR), params["versions"], under(params["root"], params["cache_dir"]), check_mode)


def main():
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    try:
        answer = judge(module.params, module.check_mode)
        recorded = promote(module.params, answer, module.check_mode)
        module.exit_json(changed=recorded, recorded=recorded, **answer)
    except FleetError as error:
        fail(module, error)
    except OSError as error:
        fail(module, FleetError("%s: %s" % (error.filename or STATE_DIR, error.strerror), "record_not_written", observed=str(error)))


if __name__ == "__main__":
    main()
