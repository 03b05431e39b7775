# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of an admin in files that the driver package writes, too: kept over its runs. Private to the collection.

The addresses of the chips' network and the division into virtual chips; the package writes both files (driver package, measured), and
whether it spares what stands in them is known of no version. So they are copied before and put back where they differ afterwards.
"""

import os

from ansible_collections.npu.fleet.plugins.module_utils._files import replace, snapshot, under, write_private

PATHS = ("/etc/hccn.conf", "/etc/vnpu.cfg")
_FOLDER = "kept"


def save(root, state_dir):
    """Copy what stands in these files; a copy of a run that was cut is the older truth and stays."""
    for path in PATHS:
        copy = _copy(state_dir, path)
        found = snapshot(under(root, path))
        if found.data and not os.path.exists(copy):
            write_private(copy, found.data)


def restore(root, state_dir):
    """Put back what differs from the copies, and drop them; return the paths that were put back."""
    changed = []
    for path in PATHS:
        copy = _copy(state_dir, path)
        if not os.path.exists(copy):
            continue
        kept, now = snapshot(copy), snapshot(under(root, path))
        if now.data != kept.data:
            replace(now, kept.data, 0o644)
            changed.append(path)
        os.unlink(copy)
    return changed


def _copy(state_dir, path):
    return os.path.join(state_dir, _FOLDER, os.path.basename(path))
