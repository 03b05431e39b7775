# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lookup of versions that belong together."""

from __future__ import annotations

DOCUMENTATION = r"""
name: release
author: npu.fleet contributors (@npu-fleet)
version_added: 0.1.0
short_description: Versions that belong together, from the catalog
description:
  - Completes the name of a release, or single versions, to the versions of driver, firmware, CANN and docker runtime.
  - Where that is not exactly one set, the error names the row and the values that it allows.
  - A release is what the vendor released together, named as its driver and firmware package (HDK) is, such as V(25.5.0) or V(24.1.RC2).
    Each row of the catalog names its source and date.
  - Versions of HDK 22.x may be written as in the file's name (V(6.0.rc1)) or as C(npu-smi) prints them (V(22.0.3)).
    The result has the spelling of the file's name.
options:
  _terms:
    description: Names of releases. Without one, the options must say which row is meant.
    type: list
    elements: str
  family:
    description:
      - Chip family that the packages are for, V(310), V(310p), V(310b), V(910), V(a2), V(a3) or V(a5).
      - May be left out where a release has the same versions for all its families.
    type: str
  driver:
    description: Version of the driver. Takes the place of the row's where the two are allowed together.
    type: str
  firmware:
    description: Version of the firmware.
    type: str
  cann:
    description: Version of CANN.
    type: str
  docker_runtime:
    description: Version of Ascend Docker Runtime.
    type: str
  catalog:
    description:
      - Folders on the controller with further rows, as C(*.yml).
      - A row takes the place of the row with the same name that was read before it; everything else is added.
      - A row is a mapping in the list C(releases), with C(release) (its name), C(date), C(sources) (a list of texts), and C(sets), a list
        of mappings with C(families) and lists of versions for C(driver), C(firmware), C(cann), C(docker_runtime). The last two
        may stand beside C(sets), for all of them. The first version of a list is what the release stands for.
      - What may run together although no row has it is a mapping in the list C(windows), with C(of), C(with), C(date) and C(sources).
        C(of) and C(with) are mappings of a component to a list of versions, in which V(8.5.x) stands for every release that begins so.
    type: list
    elements: str
    default: []
    vars:
      - name: npu_fleet_catalog
  unlisted_reason:
    description: Why versions are taken that no row and no window allows together. Without a reason that is an error.
    type: str
    default: ''
    vars:
      - name: npu_fleet_allow_unlisted_reason
"""

EXAMPLES = r"""
- name: Pin a release for 910B servers
  ansible.builtin.set_fact:
    npu_fleet_versions: "{{ lookup('npu.fleet.release', '25.5.0', family='a2') }}"

- name: Find the rest to a driver and a CANN
  ansible.builtin.debug:
    msg: "{{ lookup('npu.fleet.release', family='a2', driver='25.5.2', cann='9.0.0') }}"

- name: Use rows of our own, too
  ansible.builtin.debug:
    msg: "{{ lookup('npu.fleet.release', '26.1.0', family='a2', catalog=['/srv/npu/catalog']) }}"
"""

RETURN = r"""
_raw:
  description: One mapping for each release, with C(driver), C(firmware), C(cann) and C(docker_runtime).
  type: list
  elements: dict
  sample: [{"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "8.5.0", "docker_runtime": "7.3.0"}]
"""

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _catalog


class LookupModule(LookupBase):
    """npu.fleet.release"""

    def run(self, terms, variables=None, **kwargs):
        self.set_options(var_options=variables, direct=kwargs)
        # Ansible hands variables to a lookup as they were written, and may have templates in them.
        values = {name: self.get_option(name) for name in ("catalog", "unlisted_reason")}
        catalog, reason = (value if name in kwargs else self._templar.template(value) for name, value in values.items())
        given = {component: self.get_option(component) for component in _catalog.COMPONENTS}
        try:
            loaded = _catalog.load(catalog)
            return [
                _catalog.resolve(loaded, self.get_option("family"), term, allow_unlisted=bool(reason.strip()), **given)
                for term in terms or [None]
            ]
        except FleetError as error:
            raise AnsibleLookupError(str(error)) from error
