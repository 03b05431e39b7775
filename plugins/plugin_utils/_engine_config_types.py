# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an editor of an engine's configuration takes and gives. Private to the collection."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wanted:
    """One runtime as it should stand in the file; ``args`` None keeps what is there."""

    name: str
    path: str | None
    args: list[str] | None = None
    set_default: bool = False
    state: str = "present"


@dataclass
class Edit:
    """The new text and what it says. ``note`` is to be kept on the node for a later removal ({} = nothing)."""

    text: str
    args: list[str]
    default: str | None
    previous_default: str | None
    note: dict
    warnings: list[str] = field(default_factory=list)
    changed: bool = False
