# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes that the modules of this collection share. Private to the collection."""


class ModuleDocFragment:
    """Attribute blocks: the general one, and two words of our own (disruptive, resumable)."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check_mode and return changed status prediction without modifying the target.
  diff_mode:
    description: Returns details on what has changed (or possibly needs changing in check_mode), when in diff mode.
  idempotent:
    description: Run a second time with the same options and no change of the node in between, it changes nothing.
  platform:
    description: Target OS and families that can be operated against.
    platforms: posix
"""

    DISRUPTION = r"""
options: {}
attributes:
  disruptive:
    description: What a run interrupts, as far as it changes anything.
  resumable:
    description: A run that was cut is taken up by the next one without manual steps.
"""
