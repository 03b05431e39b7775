#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Note on a node that a set of versions failed there, or forget that, or that it passed."""

DOCUMENTATION = r"""
---
module: npu_node_record
short_description: Note which versions failed or passed on a node (internal)
version_added: 0.1.0
description:
  - Internal to this collection, used by its roles and playbooks; options and results may change without notice.
  - The record is a file of its own in C(/var/lib/npu-fleet). A plan refuses versions that failed on a node until that is forgotten.
  - What passed is noted by M(npu.fleet.npu_gates), and is no longer noted as failed then. Where the last gate was a pod of the cluster,
    which that module does not see, it is noted here.
options:
  action:
    description:
      - With V(mark_failed) O(components) are noted with O(reason).
      - With V(clear_failed) they are forgotten; without O(components) everything that failed.
      - With V(mark_passed) O(components) are noted as the node's way back, and O(pod_print) as that of the last pod that passed.
    type: str
    choices: [mark_failed, clear_failed, mark_passed]
    required: true
  components:
    description: Version of each component (C(driver), C(firmware), C(cann_toolkit), C(cann_kernels), C(docker_runtime)).
    type: dict
  reason:
    description: What went wrong, for an operator. Required with O(action=mark_failed).
    type: str
  pod_print:
    description: What M(npu.fleet.npu_gates) returned by that name. Empty for none.
    type: str
    default: ''
extends_documentation_fragment:
  - npu.fleet._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    platforms: linux
    support: full
seealso:
  - module: npu.fleet.npu_info
  - module: npu.fleet.npu_gates
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Do not try this driver here again
  npu.fleet.npu_node_record:
    action: mark_failed
    components:
      driver: 25.5.2
      firmware: 7.8.0.7.220
    reason: "L1 driver: driver answers: no answer"

- name: Try everything again
  npu.fleet.npu_node_record:
    action: clear_failed
"""

RETURN = r"""
record:
  description: What this node knows of itself, after the change.
  returned: success
  type: dict
  contains:
    installed:
      description: What was installed by M(npu.fleet.npu_package), by component.
      type: dict
      sample: {"driver": {"version": "25.5.0", "file": "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run", "sha256": "3f0a…"}}
    good:
      description: The last two sets that passed the gates, as C(current) and C(previous).
      type: dict
      sample: {"current": null, "previous": null}
    failed:
      description: Sets that failed, each with components, reason and time; the newest is the last one.
      type: list
      elements: dict
      sample: [{"components": {"driver": "25.5.2"}, "reason": "L1 driver", "time": "2026-11-29T14:55:01Z"}]
    unlisted_reason:
      description: Why versions that are in no release are installed, if they are.
      type: str
      sample: null
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _gates_note
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good
from ansible_collections.npu.fleet.plugins.module_utils._packages._journal import STATE_DIR


def argument_spec():
    return {
        "action": {"type": "str", "required": True, "choices": ["mark_failed", "clear_failed", "mark_passed"]},
        "components": {"type": "dict"},
        "reason": {"type": "str"},
        "pod_print": {"type": "str", "default": ""},
    }


def change(params, check_mode, state_dir=STATE_DIR):
    """Do what was asked for; return whether the record differs now."""
    if params["action"] == "mark_failed":
        return _good.mark_failed(state_dir, params["components"], params["reason"], check_mode)
    if params["action"] == "mark_passed":
        if params["pod_print"] and not check_mode:
            _gates_note.note(state_dir, params["pod_print"], "pod")
        return bool(params["components"]) and _good.promote(state_dir, params["components"], check_mode=check_mode)
    return _good.clear_failed(state_dir, params["components"], check_mode)


def main():
    module = AnsibleModule(
        argument_spec=argument_spec(),
        supports_check_mode=True,
        required_if=[("action", "mark_failed", ("components", "reason"))],
    )
    try:
        module.exit_json(changed=change(module.params, module.check_mode), record=_good.read(STATE_DIR))
    except OSError as error:
        place = error.filename or STATE_DIR
        fail(module, FleetError("%s: %s" % (place, error.strerror), "record_not_written", "record", object=place, hint="Run as root."))


if __name__ == "__main__":
    main()
