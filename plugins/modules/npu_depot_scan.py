#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the packages of a depot."""

DOCUMENTATION = r"""
---
module: npu_depot_scan
short_description: Say which packages a depot has, by their names and their content
version_added: 0.1.0
description:
  - Reads each package once and returns what it is, its size and its sha256. Nothing is written and nothing is run.
  - A package whose content (label, C(version.info), C(scene.info)) contradicts its name is a problem, so is a damaged one, one that differs
    from C(SHA256SUMS) beside it, and one whose signature is not good.
  - Used by the playbook C(npu.fleet.lock), which writes the answer down; results may change without notice.
  - Runs where the depot can be seen, on the controller for a folder there or an index, on a node for a folder of the node.
options:
  src:
    description:
      - A folder of this machine, or an C(http://) or C(https://) URL of a page of links (autoindex) or with a file C(SHA256SUMS).
      - User and password in the URL are used and never returned.
    type: str
    required: true
  families:
    description: Chip families whose packages are read. Empty for all.
    type: list
    elements: str
    default: []
  arches:
    description: Architectures whose packages are read. Empty for all.
    type: list
    elements: str
    default: []
  versions:
    description:
      - Versions that are read, as lists, by component (C(driver), C(firmware), C(cann_toolkit), C(cann_kernels), C(docker_runtime) …).
      - Empty for all.
    type: dict
    default: {}
  signature_ca:
    description:
      - PEM file on this machine with the authorities that may sign packages. Nobody else is trusted.
      - Without it a signature (C(.p7s) or C(.cms) beside a package) is named, not checked.
    type: path
  signature_crl:
    description: Revocation list for packages that have none (C(.crl)) beside them.
    type: path
  openssl:
    description: The program that checks signatures.
    type: str
    default: openssl
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
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Look at the packages for 910B servers
  npu.fleet.npu_depot_scan:
    src: /srv/ascend
    families: [a2]
    arches: [x86_64]
  delegate_to: localhost
  register: depot

- name: Stop at a damaged or renamed package
  ansible.builtin.assert:
    that: depot.problems | length == 0
    fail_msg: "{{ depot.problems | map(attribute='message') | list }}"
"""

RETURN = r"""
packages:
  description: The packages that were read and are what they say, by file name.
  returned: success
  type: list
  elements: dict
  contains:
    file:
      description: File name.
      type: str
      sample: Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run
    component:
      description: What it installs.
      type: str
      sample: driver
    version:
      description: Version, as the file name spells it.
      type: str
      sample: 25.5.0
    family:
      description: Chip family; none for a package that is for any.
      type: str
      sample: a2
    arch:
      description: Architecture; none for a package that is for any.
      type: str
      sample: x86_64
    size:
      description: Bytes.
      type: int
      sample: 120586240
    sha256:
      description: Checksum of the file.
      type: str
      sample: "0000000000000000000000000000000000000000000000000000000000000000"
    source:
      description: Its path, or its URL without user, password and query.
      type: str
      sample: /srv/ascend/Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run
    content:
      description: What header and payload tell. Null for what they do not; V(unknown) compression means that the payload was not read.
      type: dict
      sample: {"component": "driver", "version": "25.5.0", "release": "25.5.0", "family": null, "arch": "x86_64", "compression": "gzip"}
    signature:
      description: What the signature beside it says; null without one.
      type: dict
      sample: {"file": "x.run.p7s", "verified": true, "signer": "CN = x", "crl": "x.crl", "crl_issued": "2026-01-05", "crl_age_days": 12}
problems:
  description: Packages that must not be used, with the reason and what mends it.
  returned: success
  type: list
  elements: dict
  sample: [{"file": "x.run", "code": "package_damaged", "message": "x.run is damaged", "hint": "Copy it to the depot again."}]
passed_over:
  description: Packages that were not asked for, and archives (C(.zip)) that must be unpacked first.
  returned: success
  type: list
  elements: str
  sample: [Ascend-hdk-910b-npu_25.5.0_linux-x86-64.zip]
unknown:
  description: Names that end in C(.run) or C(.zip) and are no name of a package that is known here.
  returned: success
  type: list
  elements: str
  sample: [driver.run]
error:
  description: What failed.
  returned: failure
  type: dict
  sample: {"message": "The depot /srv can not be listed", "code": "depot_missing", "hint": "npu_fleet_depot names the folder"}
"""

from ansible_collections.npu.fleet.plugins.module_utils._depot_module import DepotModule
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail
from ansible_collections.npu.fleet.plugins.module_utils._packages import _depot
from ansible_collections.npu.fleet.plugins.module_utils._packages._signature import Trust


def argument_spec():
    return {
        "src": {"type": "str", "required": True},
        "families": {"type": "list", "elements": "str", "default": []},
        "arches": {"type": "list", "elements": "str", "default": []},
        "versions": {"type": "dict", "default": {}},
        "signature_ca": {"type": "path"},
        "signature_crl": {"type": "path"},
        "openssl": {"type": "str", "default": "openssl"},
    }


def main():
    module = DepotModule(argument_spec=argument_spec(), supports_check_mode=True)
    options = module.params
    wanted = _depot.Wanted(options["families"], options["arches"], options["versions"])
    trust = Trust(options["signature_ca"], options["signature_crl"], options["openssl"])
    try:
        found = _depot.scan(options["src"], wanted, trust, module.tmpdir)
    except FleetError as error:
        fail(module, error)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
