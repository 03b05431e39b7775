#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: agent_image
short_description: Build the agent's image, or bring it to a node
version_added: 0.1.0
author: npu.fleet contributors (@npu-fleet)
description:
  - With O(state=built) packs the agent on the controller, builds the image there with docker or podman, tries it, and keeps it as an
    archive in O(cache_dir). The name tells the content, so a second run starts no builder. Nothing runs on the node.
  - With O(state=loaded) has the image in the engine of a node, by C(docker load), or C(ctr images import) into the namespace of kubelet.
    Nodes need no registry then. A node whose engine has the image gets no file.
  - Used by the playbook C(npu.fleet.image) and the role C(npu_device_plugin); options and results may change without notice.
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
    support: full
    platforms: linux
options:
  state:
    description:
      - What to have.
    type: str
    choices: [built, loaded, absent]
    default: built
  cache_dir:
    description:
      - Folder on the controller for wheels, archives and images.
      - Required with O(state=built).
    type: path
  base:
    description:
      - Image to build on. It needs a C(python3) of O(python_version) and C(libstdc++), no older than the systems of the nodes whose driver
        libraries it loads.
    type: str
    default: docker.io/library/python:3.11-slim-bookworm
  python_version:
    description:
      - Version of the base's Python, such as V(3.11).
    type: str
    default: '3.11'
  arch:
    description:
      - Architecture of the nodes. Another one than the controller's needs a builder that can run it.
    type: str
    default: x86_64
  builder:
    description:
      - Program to build with.
    type: str
    choices: [auto, docker, podman]
    default: auto
  name:
    description:
      - Name of the image without its tag, for O(state=built); with its tag for V(loaded) and V(absent).
    type: str
    default: localhost/npu-fleet/npu-agent
  wheelhouse:
    description:
      - Folder on the controller that holds the wheels, where it has no package index.
    type: path
  rebuild:
    description:
      - Build also when the cache has the image; for a base that was renewed under its old name.
    type: bool
    default: false
  archive:
    description:
      - With O(state=loaded) the archive on the controller, as O(state=built) returns it.
    type: path
  sha256:
    description:
      - Its checksum.
    type: str
  engine:
    description:
      - The node's engine that kubelet uses. The images of cri-o are those of podman's storage.
    type: str
    choices: [docker, containerd, k3s, rke2, crio]
  socket:
    description:
      - The socket of containerd, where it is not its usual one.
    type: str
  src:
    description:
      - Filled in by the action plugin. The archive on the node; it is removed.
    type: path
"""

EXAMPLES = r"""
- name: Build it
  npu.fleet.agent_image:
    cache_dir: ~/.cache/npu-fleet
  register: image
  delegate_to: localhost
  run_once: true

- name: Bring it to the nodes
  npu.fleet.agent_image:
    state: loaded
    name: "{{ image.name }}"
    archive: "{{ image.path }}"
    sha256: "{{ image.sha256 }}"
    engine: containerd
"""

RETURN = r"""
name:
  description: Name and tag of the image.
  returned: success
  type: str
  sample: localhost/npu-fleet/npu-agent:0.1.0-1f8ac3f20b5e-amd64
image_id:
  description: What the engine that built it calls it.
  returned: with O(state=built)
  type: str
  sample: sha256:5dc785d010c6
path:
  description: The archive.
  returned: with O(state=built)
  type: str
  sample: /home/ops/.cache/npu-fleet/images/npu-agent-0.1.0-1f8ac3f20b5e-amd64.tar.gz
sha256:
  description: Its checksum.
  returned: with O(state=built)
  type: str
  sample: 4e07408562bedb8b60ce05c1decfe3ad16b72230967de01f640b7e4729b49fce
size:
  description: Its size in bytes.
  returned: with O(state=built)
  type: int
  sample: 81788928
error:
  description: What went wrong, in fields.
  returned: failure
  type: dict
  contains:
    code:
      description: One word for the kind of failure.
      returned: failure
      type: str
      sample: image_check
    message:
      description: What is wrong.
      returned: failure
      type: str
      sample: The agent's libraries cannot be loaded in the image.
    phase:
      description: Not used here.
      returned: failure
      type: str
      sample: ''
    object:
      description: The file, image or program it is about.
      returned: failure
      type: str
      sample: localhost/npu-fleet/npu-agent:0.1.0-1f8ac3f20b5e-amd64
    observed:
      description: What was seen.
      returned: failure
      type: raw
      sample: status 1
    hint:
      description: What mends it.
      returned: failure
      type: str
      sample: The base needs a python3 of the version that the wheels are for.
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils import _agent_image
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail


def argument_spec():
    """Return the options of the module."""
    return {
        "state": {"type": "str", "choices": ["built", "loaded", "absent"], "default": "built"},
        "cache_dir": {"type": "path"},
        "base": {"type": "str", "default": "docker.io/library/python:3.11-slim-bookworm"},
        "python_version": {"type": "str", "default": "3.11"},
        "arch": {"type": "str", "default": "x86_64"},
        "builder": {"type": "str", "choices": ["auto", "docker", "podman"], "default": "auto"},
        "name": {"type": "str", "default": "localhost/npu-fleet/npu-agent"},
        "wheelhouse": {"type": "path"},
        "rebuild": {"type": "bool", "default": False},
        "archive": {"type": "path"},
        "sha256": {"type": "str"},
        "engine": {"type": "str", "choices": ["docker", "containerd", "k3s", "rke2", "crio"]},
        "socket": {"type": "str"},
        "src": {"type": "path"},
    }


REQUIRED = [("state", "loaded", ("name", "archive", "sha256", "engine")), ("state", "absent", ("name", "engine")),
            ("state", "built", ("cache_dir",))]


def main():
    """Run as an Ansible module: the part that is done on the node."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True, required_if=REQUIRED)
    options = module.params
    try:
        if options["state"] == "built":
            raise FleetError("The image is built by the action plugin of the same name, on the controller.", "controller_only")
        engine = _agent_image.engine_of(options["engine"], options["socket"])
        if options["state"] == "absent":
            result = _agent_image.absent(engine, options["name"], run, module.check_mode)
        else:
            result = _agent_image.loaded(engine, options, run, module.check_mode)
    except FleetError as error:
        fail(module, error)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
