# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters around the lock, the fleet's file of exact packages."""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.plugin_utils import _lock
from ansible_collections.npu.fleet.plugins.plugin_utils._filters import in_words


class FilterModule:
    """lock_sets, lock_versions, lock_make, lock_text, lock_notes, lock_read, lock_select."""

    def filters(self):
        return {
            "lock_sets": in_words(_lock.sets),
            "lock_versions": in_words(_lock.wanted_versions),
            "lock_make": in_words(_lock.make),
            "lock_text": _lock.text,
            "lock_notes": _lock.notes,
            "lock_read": in_words(_lock.read),
            "lock_select": in_words(_lock.select),
        }
