# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Version folders of CANN that we made, and taking one away by force. Private to the collection.

A first installation that broke after its files were copied can not be repaired by its package, nor removed: only removing the folder
helps (runtime package, measured). That is done to folders only that were not there before a package of ours made them; which those are
is on disk before the package starts.
"""

import os
import re
import shutil

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import sync_folder
from ansible_collections.npu.fleet.plugins.module_utils._packages import _cann_rules, _journal
from ansible_collections.npu.fleet.plugins.module_utils._packages._cann import FOLDERS

# What a version folder looks like below the base; nothing else is ever taken away.
_VERSION_FOLDER = re.compile(r"/(cann-|ascend-toolkit/|nnrt/|nnal/atb/)[0-9][A-Za-z0-9._+-]*\Z")


def claim(files, state_dir, base, entry):
    """Record, before a package starts, that the folder it is about to make is ours; one with files in it is somebody's already.

    ``entry``: component, version, file and sha256 of the package.
    """
    path = _cann_rules.folder(base, entry["component"], entry["version"])
    if path is None or (owned(state_dir, path) is None and _has_files(files, path)):
        return

    def change(claims):
        claims[path] = entry

    _journal.update_json(os.path.join(state_dir, FOLDERS), change)


def owned(state_dir, path):
    """Return our entry of a folder that a package of ours made, else None. Packages may spell the version in other letters."""
    for known, entry in claims(state_dir).items():
        if known.lower() == path.lower():
            return entry
    return None


def claims(state_dir):
    """Return our version folders: path -> component, version, file and sha256."""
    return _journal.read_json(os.path.join(state_dir, FOLDERS))


def forget(state_dir, path):
    """Drop our entry of a folder that is gone."""

    def change(claims_):
        for known in [known for known in claims_ if known.lower() == path.lower()]:
            del claims_[known]

    if owned(state_dir, path) is not None:
        _journal.update_json(os.path.join(state_dir, FOLDERS), change)


def remove(files, state_dir, base, path):
    """Remove one version folder of ours with all that is in it; raise FleetError for any other path."""
    if not path.startswith(base + "/") or not _VERSION_FOLDER.match(path[len(base):]):
        raise FleetError("%s is no version folder of CANN below %s." % (path, base), "folder_refused", "apply", object=path)
    if owned(state_dir, path) is None:
        message = "%s is not complete, and it is not known to be made by a package of this collection, so it stays." % path
        hint = "If nobody needs it, remove it by hand (`rm -rf %s`), then run again." % path
        raise FleetError(message, "folder_not_ours", "apply", object=path, hint=hint)
    if os.path.islink(files.real(path)):
        raise FleetError("%s is a link." % path, "folder_refused", "apply", object=path, hint="Look where it leads: `ls -l %s`." % path)
    _journal.note(state_dir, "remove_folder", path=path)
    if os.path.isdir(files.real(path)):
        shutil.rmtree(files.real(path))
        sync_folder(os.path.dirname(files.real(path)))


def remove_empty(files, path):
    """Remove the empty folders that an uninstall leaves (runtime package, measured)."""
    for folder, _folders, _names in os.walk(files.real(path), topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            pass


def _has_files(files, path):
    return any(names for _folder, _folders, names in os.walk(files.real(path)))
