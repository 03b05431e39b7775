# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filters of this collection share. Private to the collection."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError


def in_words(function):
    """The same function as a filter: our own errors end a task with their text."""

    def wrapper(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except FleetError as error:
            # Ansible adds the texts of all causes, and this one is whole.
            raise AnsibleFilterError(str(error)) from None

    return wrapper
