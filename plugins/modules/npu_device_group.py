#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the device nodes of a Rockchip NPU to one group."""

DOCUMENTATION = r"""
---
module: npu_device_group
short_description: Give the device nodes of a Rockchip NPU to one group
version_added: 0.1.0
description:
  - Keeps a udev rule of this collection, C(/etc/udev/rules.d/70-npu-fleet-rknpu.rules), by which the nodes of the NPU belong to a group of
    your choice with mode 0660. Nodes of GPU and display are not touched, nor are rules of others.
  - The group is a number, because a container sees the host's number and knows no names of the host. No group has to have it.
  - Where udev does not run the rule counts from the next boot on; that is a warning.
extends_documentation_fragment:
  - npu.fleet._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    platforms: linux
    support: full
options:
  group:
    description:
      - Number of the group, such as V(990).
      - V(0) takes the rule away, but leaves one that was changed by hand, with a warning.
      - The nodes get the distribution's groups back when udev sees them next, at the latest at the next boot.
    type: int
    required: true
  root:
    description: Where the node's files are, for a system that is not the one that runs.
    type: path
    default: /
seealso:
  - module: npu.fleet.npu_info
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: One number for the NPU's nodes on all boards
  npu.fleet.npu_device_group:
    group: 990
"""

RETURN = r"""
path:
  description: File of the rule.
  returned: success
  type: str
  sample: /etc/udev/rules.d/70-npu-fleet-rknpu.rules
group:
  description: Number of the group; V(0) without a rule.
  returned: success
  type: int
  sample: 990
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _device_group
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail


def argument_spec():
    return {"group": {"type": "int", "required": True}, "root": {"type": "path", "default": "/"}}


def main():
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    group = module.params["group"]
    try:
        changed, before, warnings = _device_group.bring(group, module.params["root"], run, module.check_mode)
    except FleetError as error:
        fail(module, error)
    for text in warnings:
        module.warn(text)
    diff = {
        "before": (before or b"").decode("utf-8", "replace"), "after": _device_group.rule(group) if group else "",
        "before_header": _device_group.RULE, "after_header": _device_group.RULE,
    }
    module.exit_json(changed=changed, path=_device_group.RULE, group=group, diff=diff)


if __name__ == "__main__":
    main()
