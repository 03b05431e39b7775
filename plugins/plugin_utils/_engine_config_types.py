# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an editor of an engine's configuration takes and gives. Private to the collection."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

# In the text of ``Edit.check`` it stands for the path of the copy that the engine's parser is to read.
COPY = "@NPU_FLEET_COPY@"


@dataclass(frozen=True)
class Wanted:
    """One runtime as it should stand in the engine's configuration; ``args`` None keeps what is there."""

    name: str
    path: str | None
    args: list[str] | None = None
    set_default: bool = False
    state: str = "present"
    engine: str = "docker"


@dataclass
class Edit:
    """The new text of one file and what it says.

    ``path`` is the file, ``before`` its old text, ``remove`` whether it goes altogether. ``note`` is to be kept on the node for a later
    removal ({} = nothing). ``args`` and ``default`` are what the engine must have in the end (None: not looked at). ``check``: see COPY.
    ``bridge`` is a text that the engine has to take over before ``text``.
    """

    text: str
    args: list[str] | None
    default: str | None
    previous_default: str | None
    note: dict
    warnings: list[str] = field(default_factory=list)
    changed: bool = False
    path: str = ""
    before: str = ""
    remove: bool = False
    check: str | None = None
    bridge: str | None = None


@dataclass(frozen=True)
class EngineFile:
    """One file that was read on the node; ``data`` is None where there is none."""

    path: str
    role: str
    data: bytes | None
    sha256: str | None


def files_of(found: dict, *roles: str) -> list[EngineFile]:
    """Return the files of ``oci_runtime_node``'s answer in the order in which the engine loads them; those of ``roles`` only, if given."""
    return [
        EngineFile(one["path"], one["role"], base64.b64decode(one["content"] or "") if one["exists"] else None, one["sha256"])
        for one in found["files"]
        if not roles or one["role"] in roles
    ]
