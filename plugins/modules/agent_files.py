#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: agent_files
short_description: Bring the agent's files to a node
version_added: 0.1.0
author: npu.fleet contributors (@npu-fleet)
description:
  - Packs the agent, the hardware library of this collection and the wheels for the node's Python into one archive on the controller,
    sends it, unpacks it into a folder of its own below O(home) and moves the link C(current) there in one step.
  - The node needs neither C(pip) nor a virtual environment. Nothing is started; see M(npu.fleet.agent_service).
  - The version that was current before stays beside the new one. Older ones are removed.
  - Used by the role C(npu_agent), which is what playbooks call; options and results may change without notice.
  - With O(observed_sha256) equal to the archive's checksum nothing is sent and nothing runs on the node.
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
      - V(present) has this version current, V(absent) removes all versions.
    type: str
    choices: [present, absent]
    default: present
  python_version:
    description:
      - Version of the node's Python that runs the agent, such as V(3.11). At least 3.9.
      - Required with O(state=present).
    type: str
  python:
    description:
      - Path of that Python on the node.
    type: path
    default: /usr/bin/python3
  arch:
    description:
      - Architecture of the node, such as V(x86_64) or V(aarch64).
      - Required with O(state=present).
    type: str
  cache_dir:
    description:
      - Folder on the controller for wheels and archives. It is made when it does not exist.
      - Required with O(state=present).
    type: path
  wheelhouse:
    description:
      - Folder on the controller that has the wheels, for controllers without a package index.
    type: path
  observed_sha256:
    description:
      - Checksum of the archive that the node has, as RV(npu.fleet.npu_info#module:npu) tells it.
    type: str
  home:
    description:
      - Folder on the node.
    type: path
    default: /opt/npu-agent
  src:
    description:
      - Archive on the node, removed at the end. Filled in by the controller's half of this module.
    type: path
  sha256:
    description:
      - Checksum of the unpacked archive. Filled in by the controller's half of this module.
    type: str
  version:
    description:
      - Version of the agent in the archive. Filled in by the controller's half of this module.
    type: str
"""

EXAMPLES = r"""
- name: Bring the agent
  npu.fleet.agent_files:
    python_version: "3.11"
    arch: x86_64
    cache_dir: ~/.cache/npu-fleet
    observed_sha256: "{{ node.npu.agent.archive_sha256 | default(omit, true) }}"

- name: Take the agent away
  npu.fleet.agent_files:
    state: absent
"""

RETURN = r"""
version:
  description: Version of the agent.
  returned: O(state=present)
  type: str
  sample: 0.1.0
sha256:
  description: Checksum of the archive, decompressed.
  returned: O(state=present)
  type: str
  sample: 5f2b0a1c9d3e4f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8
folder:
  description: Name of the version's folder below O(home).
  returned: O(state=present)
  type: str
  sample: 0.1.0-5f2b0a1c
removed:
  description: Folders that were removed, or would be.
  returned: success
  type: list
  elements: str
  sample: [0.0.9-11aa22bb]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _agent_files
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail


def argument_spec():
    return {
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "python_version": {"type": "str"},
        "python": {"type": "path", "default": "/usr/bin/python3"},
        "arch": {"type": "str"},
        "cache_dir": {"type": "path"},
        "wheelhouse": {"type": "path"},
        "observed_sha256": {"type": "str"},
        "home": {"type": "path", "default": "/opt/npu-agent"},
        "src": {"type": "path"},
        "sha256": {"type": "str"},
        "version": {"type": "str"},
    }


def main():
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    options = module.params
    if options["state"] == "present" and not (options["sha256"] and options["version"]):
        module.fail_json(msg="agent_files needs its controller's half: call it as npu.fleet.agent_files from a task")
    try:
        before = _agent_files.state(options["home"])
        if options["state"] == "absent":
            result = _agent_files.remove(options["home"], module.check_mode)
        else:
            result = _agent_files.install(
                options["home"], options["src"], options["version"], options["sha256"], python=options["python"], run=run,
                check_mode=module.check_mode,
            )
    except FleetError as error:
        fail(module, error)
    finally:
        if options["src"] and not module.check_mode:
            _agent_files.delete(options["src"])
    after = result.pop("after")
    module.exit_json(diff={"before": _agent_files.describe(before), "after": _agent_files.describe(after)}, **result)


if __name__ == "__main__":
    main()
