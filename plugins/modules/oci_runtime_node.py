#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hands of ``oci_runtime`` on a node."""

DOCUMENTATION = r"""
module: oci_runtime_node
short_description: Read or replace the configuration of the container engine (internal)
version_added: 0.1.0
description:
  - Internal to this collection. Use M(npu.fleet.oci_runtime), which calls it; options and results may change without notice.
  - O(step=read) returns the bytes and looks of the engine's files, how it is started, and what it has in effect. It changes nothing.
  - O(step=commit) writes one file and makes the engine take it over, or leaves file and engine as they were.
  - Its results hold the files with all credentials in them. Never register or print them.
extends_documentation_fragment:
  - npu.fleet._attributes
  - npu.fleet._attributes.disruption
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: The action shows the diff; this module knows bytes only.
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
  disruptive:
    support: none
    details: Running containers go on, unless O(disruption=allow) and a restart ends them. An engine that is down is started.
  resumable:
    support: full
options:
  step:
    description: What to do.
    type: str
    choices: [read, commit]
    required: true
  engine:
    description: See M(npu.fleet.oci_runtime).
    type: str
    choices: [auto, docker, containerd, k3s, rke2, crio, isulad]
    default: auto
  name:
    description: Name of the runtime.
    type: str
    required: true
  path:
    description: Absolute path of the runtime's program.
    type: str
  state:
    description: Whether the runtime is wanted.
    type: str
    choices: [present, absent]
    default: present
  config_path:
    description: The engine's file, where it is not the one the engine names.
    type: path
  file:
    description: The file to write, as O(step=read) names it; the engine's main file where it is left out.
    type: path
  expected:
    description:
      - Digest (sha256) by path of every file that O(step=read) returned. Where one is another by now, nothing is written, and that is an
        error.
      - Empty where there was no file.
    type: dict
  content:
    description: The new bytes, in base64. Without it the file stays, and the engine is told to take it over.
    type: str
  remove:
    description: Whether the file is to go; for files that this collection made.
    type: bool
    default: false
  check:
    description:
      - Text of a main file, in base64, for the engine's parser, in which V(@NPU_FLEET_COPY@) stands for the path of a copy of O(file).
      - For an O(file) that is not the main one.
    type: str
  bridge:
    description: Bytes, in base64, that the engine has to take over before those of O(content), so that a reload forgets what is gone.
    type: str
  expect:
    description: What the engine must have in the end.
    type: dict
    suboptions:
      state:
        description: Whether the runtime must be there.
        type: str
        choices: [present, absent]
        required: true
      name:
        description: Name of the runtime.
        type: str
        required: true
      path:
        description: Its program.
        type: str
      args:
        description: Its arguments.
        type: list
        elements: str
      default:
        description: The default runtime that the file names.
        type: str
  note:
    description: What to keep on the host for a later removal of the runtime.
    type: dict
  validate:
    description: Whether the engine's own parser checks the new bytes first.
    type: bool
    default: true
  restart:
    description: See M(npu.fleet.oci_runtime).
    type: str
    choices: [auto, never]
    default: auto
  disruption:
    description: Whether taking over may end running containers, where the engine can only be restarted and its unit ends them.
    type: str
    choices: [refuse, allow]
    default: refuse
  backup:
    description: Whether the copy of the old file is kept after success.
    type: bool
    default: true
  timeout:
    description: How long to wait for the engine to reload or start, in seconds.
    type: int
    default: 60
  command_timeout:
    description: Deadline of each single command, in seconds.
    type: int
    default: 20
  root:
    description: The folder that counts as root of the file system.
    type: path
    default: /
  state_folder:
    description: Where records and backups are kept.
    type: path
    default: /var/lib/npu-fleet
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Used by the action npu.fleet.oci_runtime only
  npu.fleet.oci_runtime_node:
    step: read
    name: ascend
  no_log: true
"""

RETURN = r"""
changed:
  description: Whether the file or the engine was changed.
  returned: always
  type: bool
  sample: false
engine:
  description: The engine.
  returned: step=read
  type: str
  sample: docker
version:
  description: The engine's version.
  returned: step=read
  type: str
  sample: 20.10.24+dfsg1
active:
  description: Whether the engine answers.
  returned: step=read
  type: bool
  sample: true
error:
  description: With O(step=read), why the engine does not answer. When the module fails, the error as fields.
  returned: step=read or failure
  type: raw
  sample: null
effective:
  description: What the engine has in effect.
  returned: success
  type: dict
  contains:
    runtimes:
      description: The engine's runtimes by name.
      type: dict
      sample: {"runc": {"path": "runc", "args": [], "type": null}}
    default_runtime:
      description: The engine's default runtime.
      type: str
      sample: runc
    handlers:
      description: Runtime handlers that it tells kubelet of, where it tells them.
      type: list
      elements: str
      sample: null
live_restore:
  description: Whether the engine keeps containers alive while it is down.
  returned: step=read
  type: bool
  sample: false
containers_running:
  description: How many containers run.
  returned: step=read
  type: int
  sample: 0
config_path:
  description: The engine's file.
  returned: step=read
  type: str
  sample: /etc/docker/daemon.json
files:
  description:
    - The engine's files, in the order in which it reads them, each with C(path) (as the engine names it), C(target) (behind symbolic
      links), C(link) (what it points to, where it is one), C(exists), C(content) (base64), C(sha256), C(mode), C(owner), C(group) and
      C(role).
    - The role is V(main), V(import), V(template), V(dropin) or V(generated), which is never written.
  returned: step=read
  type: list
  elements: dict
  sample: [{"path": "/etc/docker/daemon.json", "exists": true, "content": "e30K", "mode": "0644", "role": "main"}]
effective_text:
  description: The configuration in effect as the engine's own program prints it, where it has a command for that.
  returned: step=read
  type: str
  sample: null
writable:
  description: Paths that may be written; the last part may have wildcards.
  returned: step=read
  type: list
  elements: str
  sample: [/etc/docker/daemon.json]
takes_over_by:
  description: What the engine needs to take over a change, V(reload) or V(restart).
  returned: step=read
  type: str
  sample: reload
restart_kills:
  description: Running containers or pods that taking over would end.
  returned: step=read
  type: list
  elements: str
  sample: []
kubelet:
  description: Whether kubelet uses this engine; null where that is not known.
  returned: step=read
  type: bool
  sample: false
flag_keys:
  description: Keys of the file that the engine's command line sets.
  returned: step=read
  type: list
  elements: str
  sample: [containerd, hosts]
default_flag:
  description: The default runtime that the engine's command line sets.
  returned: step=read
  type: str
  sample: null
unit:
  description: The engine's systemd unit.
  returned: step=read
  type: dict
  contains:
    name:
      description: Its name.
      type: str
      sample: docker.service
    loaded:
      description: Whether systemd has it.
      type: bool
      sample: true
    state:
      description: Its state.
      type: str
      sample: active
    kill_mode:
      description: Its C(KillMode).
      type: str
      sample: process
    can_reload:
      description: Whether it has a reload command.
      type: bool
      sample: true
program:
  description: The runtime's program.
  returned: step=read
  type: dict
  contains:
    exists:
      description: Whether it is there.
      type: bool
      sample: true
    executable:
      description: Whether it can be executed.
      type: bool
      sample: true
note:
  description: What an earlier run noted for this runtime.
  returned: step=read
  type: dict
  sample: {"previous_default": "nvidia"}
pending:
  description: Whether a change of an earlier run has not been taken over yet, as far as is on record.
  returned: step=read
  type: bool
  sample: false
users:
  description: Containers made with the runtime, with O(state=absent).
  returned: step=read
  type: list
  elements: str
  sample: [trainer]
others:
  description: Other engines that were found.
  returned: step=read
  type: list
  elements: str
  sample: []
actions:
  description: What was done to the engine.
  returned: step=commit
  type: list
  elements: str
  sample: [reload]
killed:
  description: Running containers or pods that the restart ended, with O(disruption=allow).
  returned: step=commit
  type: list
  elements: str
  sample: []
not_checked:
  description: What could not be checked, and why.
  returned: step=commit
  type: str
  sample: null
backup_file:
  description: The copy of the old file.
  returned: step=commit
  type: str
  sample: /var/lib/npu-fleet/backups/etc-docker-daemon.json.20260101T120000Z.0123456789ab
validation:
  description: How the new bytes were checked.
  returned: step=commit
  type: str
  sample: by dockerd --validate
reload_required:
  description: Whether the engine still has to take over the file.
  returned: step=commit
  type: bool
  sample: false
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._engine_steps import commit, read
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail


def argument_spec():
    """Return the module's options."""
    return {
        "step": {"type": "str", "choices": ["read", "commit"], "required": True},
        "engine": {"type": "str", "default": "auto", "choices": ["auto", "docker", "containerd", "k3s", "rke2", "crio", "isulad"]},
        "name": {"type": "str", "required": True},
        "path": {"type": "str"},
        "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
        "config_path": {"type": "path"},
        "file": {"type": "path"},
        "expected": {"type": "dict"},
        "content": {"type": "str", "no_log": True},
        "remove": {"type": "bool", "default": False},
        "check": {"type": "str", "no_log": True},
        "bridge": {"type": "str", "no_log": True},
        "expect": {
            "type": "dict",
            "options": {
                "state": {"type": "str", "choices": ["present", "absent"], "required": True},
                "name": {"type": "str", "required": True},
                "path": {"type": "str"},
                "args": {"type": "list", "elements": "str"},
                "default": {"type": "str"},
            },
        },
        "note": {"type": "dict"},
        "validate": {"type": "bool", "default": True},
        "restart": {"type": "str", "default": "auto", "choices": ["auto", "never"]},
        "disruption": {"type": "str", "default": "refuse", "choices": ["refuse", "allow"]},
        "backup": {"type": "bool", "default": True},
        "timeout": {"type": "int", "default": 60},
        "command_timeout": {"type": "int", "default": 20},
        "root": {"type": "path", "default": "/"},
        "state_folder": {"type": "path", "default": "/var/lib/npu-fleet"},
    }


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), required_if=[("step", "commit", ("expect",))], supports_check_mode=True)
    try:
        if module.params["step"] == "read":
            module.exit_json(changed=False, **read(module.params, run))
        if module.check_mode:
            module.exit_json(changed=True)
        module.exit_json(**commit(module.params, run))
    except FleetError as error:
        fail(module, error)


if __name__ == "__main__":
    main()
