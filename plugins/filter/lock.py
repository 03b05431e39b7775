# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters around the lock, the fleet's file of exact packages."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _lock


def _in_words(function):
    def wrapper(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except FleetError as error:
            # Ansible adds the texts of all causes, and this one is whole.
            raise AnsibleFilterError(str(error)) from None

    return wrapper


class FilterModule:
    """lock_sets, lock_versions, lock_make, lock_text, lock_notes, lock_read, lock_select."""

    def filters(self):
        return {
            "lock_sets": _in_words(_lock.sets),
            "lock_versions": _in_words(_lock.wanted_versions),
            "lock_make": _in_words(_lock.make),
            "lock_text": _lock.text,
            "lock_notes": _lock.notes,
            "lock_read": _in_words(_lock.read),
            "lock_select": _in_words(_lock.select),
        }
