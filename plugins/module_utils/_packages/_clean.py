# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is left of the fleet on a node once its packages are gone: our folders, and users that we made. Private to the collection."""

import os
import shutil

from ansible_collections.npu.fleet.plugins.module_utils import _device_group
from ansible_collections.npu.fleet.plugins.module_utils._files import under
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good, _journal

#: Removed with all that is in them: nobody but this collection writes there.
OURS = (_good.CACHE_DIR, _journal.STATE_DIR)
#: Single files of ours among those of others; one that was changed by hand stays.
FILES = (_device_group.RULE,)
#: Removed when nothing is in them any more, innermost first.
WHEN_EMPTY = (
    "/etc/npu-fleet", "/run/npu-fleet", "/etc/Ascend", "/usr/local/Ascend/ascend-toolkit", "/usr/local/Ascend/nnrt",
    "/usr/local/Ascend/nnal/atb", "/usr/local/Ascend/nnal", "/usr/local/Ascend",
)
#: What stays, and why: logs for whoever wants to know later, and settings of the network and of virtual chips that an admin made. The
#: vendor's own uninstall leaves these, too (driver package, measured).
STAYS = (
    "/var/log/npu-fleet", "/var/log/npu-agent", "/var/log/ascend_seclog", "/etc/hccn.conf", "/etc/vnpu.cfg", "/etc/logrotate.d/tmp",
    "/etc/udev/rules.d/70-persistent-net.rules", "/root/ascend_check",
)
# Files that a user has whom nobody ever was: those of a new home, and the one that the driver writes.
_HOME_FILES = {".bashrc", ".profile", ".bash_logout", ".bash_profile"}


def created(state_dir):
    """Return (users, groups) that we made on this node, by our journal."""
    names = [name for entry in _journal.entries(state_dir) for name in entry.get("created") or []]
    return tuple(sorted({name.split(" ", 1)[1] for name in names if name.startswith(kind)}) for kind in ("user ", "group "))


def todo(root, accounts):
    """Return what there is to remove: (paths, users, groups). ``accounts`` tells which users and groups exist (and their homes)."""
    paths = [path for path in OURS + FILES if os.path.lexists(under(root, path)) and path not in _by_hand(root)]
    paths += [path for path in WHEN_EMPTY if _would_be_empty(root, path)]
    users, groups = created(under(root, _journal.STATE_DIR))
    return paths, [name for name in users if accounts.home(name)], [name for name in groups if accounts.group(name)]


def _by_hand(root):
    return FILES if _device_group.group_of(root) is None else ()


def _would_be_empty(root, path):
    """Return whether a folder has nothing in it, or only folders that go before it."""
    real = under(root, path)
    if not os.path.isdir(real) or os.path.islink(real):
        return False
    return all(path + "/" + name in WHEN_EMPTY and _would_be_empty(root, path + "/" + name) for name in os.listdir(real))


def remove(root, found, accounts, run):
    """Remove what ``todo`` found; return texts about what had to stay. Our memory goes last."""
    paths, users, groups = found
    left = []
    for name in users:
        left += _remove_user(name, accounts, run)
    for name in groups:
        if accounts.group(name):
            left += _try(["groupdel", name], "group %s" % name, run)
    for path in [path for path in paths if path not in OURS]:
        try:
            (os.unlink if path in FILES else os.rmdir)(under(root, path))
        except OSError as error:
            left.append("%s: %s" % (path, error.strerror))
    for path in OURS:
        shutil.rmtree(under(root, path), ignore_errors=True)
    return left


def _remove_user(name, accounts, run):
    home = accounts.home(name)
    unused = os.path.isdir(home) and set(os.listdir(home)) <= _HOME_FILES
    left = _try(["userdel"] + (["--remove"] if unused else []) + [name], "user %s" % name, run)
    return left + ([] if unused or not os.path.isdir(home) else ["%s: there are files of somebody in it" % home])


def _try(words, what, run):
    result = run(words, 60)
    # 12: the user is gone, the home or mail could not be removed (userdel(8)).
    return [] if result.rc == 0 else ["%s: %s" % (what, result.stderr.strip() or "exit code %s" % result.rc)]


def stays(root):
    """Return what stays and is there."""
    return [path for path in STAYS + tuple(_by_hand(root)) if os.path.lexists(under(root, path))]
