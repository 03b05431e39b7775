#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last step of a removal."""

DOCUMENTATION = r"""
module: npu_node_clean
short_description: Remove what this collection keeps on a node (internal)
version_added: 0.1.0
description:
  - Internal to this collection, used by the playbook C(npu.fleet.remove); options and results may change without notice.
  - Removes the folders C(/var/cache/npu-fleet) and C(/var/lib/npu-fleet), the udev rule of M(npu.fleet.npu_device_group), users and
    groups that were made here for the driver, and folders that the packages left empty. A home goes only when nobody has put files
    into it.
  - To be called when driver and firmware are gone. They still need their user, and a removal needs the memory of what was installed.
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
options: {}
seealso:
  - module: npu.fleet.npu_package
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Take the last traces away
  npu.fleet.npu_node_clean:
"""

RETURN = r"""
removed:
  description: What was removed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/var/cache/npu-fleet, /var/lib/npu-fleet, user HwHiAiUser]
left:
  description: What should have gone and could not, with the reason.
  returned: success
  type: list
  elements: str
  sample: ["/home/HwHiAiUser: there are files of somebody in it"]
stays:
  description: What is there and stays on purpose, such as logs and settings of an admin.
  returned: success
  type: list
  elements: str
  sample: [/var/log/npu-fleet, /etc/hccn.conf]
"""

import grp
import os
import pwd

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail
from ansible_collections.npu.fleet.plugins.module_utils._packages import _clean, _journal


class Accounts(object):
    """Users and groups of this host."""

    @staticmethod
    def home(name):
        try:
            return pwd.getpwnam(name).pw_dir
        except KeyError:
            return None

    @staticmethod
    def group(name):
        try:
            return grp.getgrnam(name).gr_name
        except KeyError:
            return None


def argument_spec():
    return {}


def clean(check_mode):
    """Do it; return the result."""
    if not any(os.path.lexists(path) for path in _clean.OURS + _clean.FILES + _clean.WHEN_EMPTY):
        return {"changed": False, "removed": [], "left": [], "stays": _clean.stays("/")}
    found = _clean.todo("/", Accounts)
    paths, users, groups = found
    left = []
    if any(found) and not check_mode:
        with _journal.HostLock(_journal.STATE_DIR, "removal", 60):
            left = _clean.remove("/", found, Accounts, run)
    removed = paths + ["user %s" % name for name in users] + ["group %s" % name for name in groups]
    return {"changed": bool(removed), "removed": removed, "left": left, "stays": _clean.stays("/")}


def main():
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    try:
        result = clean(module.check_mode)
    except FleetError as error:
        fail(module, error)
    except OSError as error:
        fail(module, FleetError("%s: %s" % (error.filename or "The node", error.strerror), "node_error", "remove", hint="Run as root."))
    for text in result["left"]:
        module.warn("Not removed: %s" % text)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
