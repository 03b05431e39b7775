#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: agent_service
short_description: Configure and run the agent's service on a node
version_added: 0.1.0
author: npu.fleet contributors (@npu-fleet)
description:
  - Writes the agent's configuration and its systemd unit, enables the service, starts it, or restarts it when it was started before its
    files changed (also when an earlier run was cut before its restart), and waits until the service itself says that it is ready.
  - Used by the role C(npu_device_plugin), which is what playbooks call; options and results may change without notice.
  - The agent checks the configuration before anything is written.
  - Waiting for kubelet is a good end, and so is a node without NPU; RV(state) tells which it is.
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
    support: full
    platforms: linux
options:
  state:
    description:
      - V(present) has the service enabled and running, V(absent) stops it and removes configuration and unit.
    type: str
    choices: [present, absent]
    default: present
  config:
    description:
      - Text of C(/etc/npu-agent/config.yaml), which is readable for root only.
      - Required with O(state=present).
      - Not logged. Results and diffs leave out values of variables that containers get, as they may be tokens.
    type: str
  unit:
    description:
      - Text of C(/etc/systemd/system/npu-agent.service).
      - Required with O(state=present).
    type: str
  url:
    description:
      - Where the service tells whether it is ready. Must agree with C(listen) in O(config).
    type: str
    default: http://127.0.0.1:8083/readyz
  ready_timeout:
    description:
      - Seconds to wait for that.
    type: int
    default: 30
  root:
    description:
      - Folder that stands for C(/) where files are read and written.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Run the agent
  npu.fleet.agent_service:
    config: "{{ lookup('ansible.builtin.template', 'config.yaml.j2') }}"
    unit: "{{ lookup('ansible.builtin.template', 'npu-agent.service.j2') }}"

- name: Stop the agent for good
  npu.fleet.agent_service:
    state: absent
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [write /etc/npu-agent/config.yaml, restart]
reasons:
  description: Why.
  returned: success
  type: list
  elements: str
  sample: [the configuration is another one]
state:
  description:
    - C(serving), C(waiting_for_kubelet) or C(no_npu). Nothing in check mode and with O(state=absent).
  returned: success
  type: str
  sample: serving
report:
  description: What the service says of itself. Nothing in check mode and with O(state=absent).
  returned: success
  type: dict
  contains:
    ready:
      description: Kubelet knows the resource and listens.
      type: bool
      sample: true
    state:
      description: As RV(state).
      type: str
      sample: serving
    version:
      description: Version of the agent that runs.
      type: str
      sample: 0.1.0
    resource:
      description: Name of the resource.
      type: str
      sample: huawei.com/Ascend910
    registered:
      description: Kubelet took the registration.
      type: bool
      sample: true
    stream_open:
      description: Kubelet listens to the list of devices.
      type: bool
      sample: true
    healthy:
      description: Chips that may take work.
      type: int
      sample: 8
    total:
      description: All chips.
      type: int
      sample: 8
    reasons:
      description: What keeps the service from being ready, and chips out of service.
      type: list
      elements: str
      sample: []
before:
  description: The agent before the run.
  returned: success
  type: dict
  contains: &agent
    version:
      description: Version of the files.
      type: str
      sample: 0.1.0
    archive_sha256:
      description: Checksum of the archive that the files came from.
      type: str
      sample: 5f2b0a1c9d3e4f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8
    config_sha256:
      description: Checksum of the configuration.
      type: str
      sample: 0d6a2f5b7c1e4893a5b6c7d8e9f00112233445566778899aabbccddeeff00112
    unit_sha256:
      description: Checksum of the unit.
      type: str
      sample: 91c4e7f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c
    active:
      description: The service runs.
      type: bool
      sample: true
    enabled:
      description: The service starts at boot.
      type: bool
      sample: true
    started_after_files:
      description: It was started after its files last changed. Nothing when it does not run.
      type: bool
      sample: true
    others:
      description: Other device plugins for NPUs that serve this node's kubelet.
      type: list
      elements: str
      sample: []
    pod:
      description: The agent serves this node from a pod.
      type: bool
      sample: false
after:
  description: The agent after the run, in check mode as before it.
  returned: success
  type: dict
  contains: *agent
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _agent_service
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail


def argument_spec():
    return {
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "config": {"type": "str", "no_log": True},
        "unit": {"type": "str"},
        "url": {"type": "str", "default": "http://127.0.0.1:8083/readyz"},
        "ready_timeout": {"type": "int", "default": 30},
        "root": {"type": "path", "default": "/"},
    }


def main():
    module = AnsibleModule(
        argument_spec=argument_spec(), required_if=[("state", "present", ("config", "unit"))], supports_check_mode=True
    )
    options = module.params
    # Ansible's own rule would mask a diff of this text as a whole; so it goes for the values in it that may be tokens.
    module.no_log_values.discard(options["config"])
    module.no_log_values.update(_agent_service.secrets(options["config"] or ""))
    told = dict(options, config=_agent_service.shown(options["config"] or ""))
    try:
        if options["state"] == "absent":
            result = _agent_service.absent(options["root"], run, module.check_mode)
        else:
            result = _agent_service.present(
                options["root"], run, options["config"], options["unit"], url=options["url"],
                ready_seconds=options["ready_timeout"], check_mode=module.check_mode,
            )
    except FleetError as error:
        fail(module, error, invocation={"module_args": told})
    module.exit_json(invocation={"module_args": told}, **result)


if __name__ == "__main__":
    main()
