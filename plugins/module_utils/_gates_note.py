# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the gates note on a node of their last pass, so that a run that changes nothing stays cheap. Private to the collection."""

import json
import os

from ansible_collections.npu.fleet.plugins.module_utils._files import write_private


def note_path(state_folder, gate="container"):
    return os.path.join(state_folder, "gates", "%s.json" % gate)


def noted(state_folder, gate="container"):
    """The fingerprint of the last whole table that passed here (of a gate: of its last pass), None where there is none."""
    try:
        with open(note_path(state_folder, gate), encoding="utf-8") as stream:
            return json.load(stream).get("fingerprint")
    except (OSError, ValueError, AttributeError):
        return None


def note(state_folder, print_or_none, gate="container"):
    """Note the fingerprint of what has passed; None takes the note away."""
    if print_or_none is None:
        if os.path.exists(note_path(state_folder, gate)):
            os.unlink(note_path(state_folder, gate))
        return
    write_private(note_path(state_folder, gate), (json.dumps({"fingerprint": print_or_none}) + "\n").encode("utf-8"))
