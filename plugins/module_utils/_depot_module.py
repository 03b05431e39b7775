# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A module that is given addresses of depots, with what may be secret in them. Private to the collection."""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils._packages import _fetch

ADDRESSES = ("src", "mirrors")


class DepotModule(AnsibleModule):
    """Knows the secrets before Ansible writes the options into the system's log, which it does before it hands over the module."""

    def _log_invocation(self):
        for option in ADDRESSES:
            given = self.params.get(option) or []
            for address in [given] if isinstance(given, str) else given:
                self.no_log_values.update(_fetch.secrets(address))
        super(DepotModule, self)._log_invocation()
