# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a package is called with on this node, and what must be there before: folder, user, licence. Private to the collection."""

import os
import re
import shutil
import tempfile

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _journal, _names, _options, _users

# The header of a package splits its own path at blanks (driver package, measured); nothing else is needed either.
_SAFE_PATH = re.compile(r"/[A-Za-z0-9._/+@,=:-]*\Z")
_NEEDS_USER = ("driver", "firmware")
_ST_NOEXEC = 8


class Call(object):
    """The call of one package for one wish."""

    def __init__(self, wish, cache_dir):
        self._wish = wish
        self._cache_dir = cache_dir

    def check(self, step, observed):
        """Raise FleetError for what forbids the call and is known before the package is fetched."""
        wish = self._wish
        if not wish.src:
            message = "%s %s has to be installed (%s), and no package was given." % (wish.component, wish.version, step["reason"])
            raise FleetError(message, "package_missing", "prepare", object=wish.component, hint="Give src and sha256 of its package.")
        if _options.needs_licence(wish.component, wish.version) and not wish.accept_licence:
            message = "Installing %s %s accepts its licence, and nobody has agreed to that." % (wish.component, wish.version)
            hint = "Read it, then set npu_fleet_accept_licence: true (accept_licence of this module)."
            raise FleetError(message, "licence_not_accepted", "prepare", object=wish.component, hint=hint)
        record = observed["components"][wish.component]["record"]
        username, _usergroup = self._user(observed)
        if wish.component == "driver" and step["action"] in ("install", "repair") and (record.get("username") or username) != username:
            message = "The record of the installed driver or firmware has the user %s, wanted is %s." % (record["username"], username)
            hint = "Remove driver and firmware first, or set npu_driver_username to the recorded one (username of this module)."
            raise FleetError(message, "user_differs", "prepare", object="/etc/ascend_install.info", observed=record["username"], hint=hint)
        if wish.component in _NEEDS_USER and username == "root" and not wish.install_for_all:
            hint = "Set npu_driver_install_for_all: true, or npu_driver_username to another user."
            raise FleetError("root may own the driver only with install_for_all.", "user_refused", "prepare", object=username, hint=hint)

    def installation(self, step, observed, source):
        """Return (words, text for standard input) that bring the component there from the package ``source``."""
        wish = self._wish
        username, usergroup = self._user(observed)
        details = {
            "version": wish.version, "install_path": wish.install_path, "install_for_all": wish.install_for_all, "username": username,
            "usergroup": usergroup, "soc": _names.parse(os.path.basename(source))["soc"], "engine_file": self.engine_file(),
        }
        record = observed["components"][wish.component]["record"]
        start = start_words(source)
        words, answer = _options.install_command(wish.component, step["action"], details, record, _help_words(start))
        return start + words, answer

    def create_user(self, observed):
        """Return (what was created, warnings) of the user that the package wants to be there."""
        if self._wish.component not in _NEEDS_USER:
            return [], []
        username, usergroup = self._user(observed)
        return _users.ensure(username, usergroup, run)

    def _user(self, observed):
        record = observed["components"]["driver"]["record"]
        username = self._wish.username or record.get("username") or _options.DEFAULT_USER
        return username, self._wish.usergroup or record.get("usergroup") or username

    def engine_file(self):
        """Return an empty engine configuration of ours, which the Docker Runtime may edit as it likes.

        It is empty before each run: what a run that was cut has left in it may be no JSON any more.
        """
        if self._wish.component != "docker_runtime":
            return None
        path = os.path.join(self._cache_dir, "docker_runtime", "daemon.json")
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        _journal.write_whole(path, "{}\n")
        return path


class WorkFolder(object):
    """A fresh folder that a package unpacks itself into and runs in: executable, roomy, ours alone, gone afterwards."""

    def __init__(self, cache_dir):
        self._top = os.path.join(cache_dir, "work")
        self.path = None
        self.keep = False

    def __enter__(self):
        # Killed packages leave their unpacked content behind. We hold the lock and nothing runs: it is all old.
        self.remove()
        os.makedirs(self._top, 0o700)
        if os.statvfs(self._top).f_flag & _ST_NOEXEC:
            message = "Nothing may be executed below %s (mount option noexec), but packages run what they unpack." % self._top
            hint = "`findmnt --target %s` names the mount: `mount -o remount,exec MOUNT`, or set cache_dir of npu_package." % self._top
            raise FleetError(message, "noexec", "prepare", object=self._top, hint=hint)
        self.path = tempfile.mkdtemp(dir=self._top)
        return self

    def __exit__(self, *unused):
        if not self.keep:
            self.remove()

    def remove(self):
        shutil.rmtree(self._top, ignore_errors=True)


def check_path(source):
    """Raise FleetError for a path that a package does not run from."""
    if not _SAFE_PATH.match(source):
        message = "The package can not run from %s: the path has characters that it does not take." % source
        raise FleetError(message, "path_refused", "prepare", object=source, hint="Use a path of letters, digits and . _ - / only.")


def start_words(source):
    """Return the words that start a package: by a shell where it may not be executed itself."""
    executable = os.access(source, os.X_OK) and not os.statvfs(source).f_flag & _ST_NOEXEC
    return [source] if executable else ["/bin/sh", source]


def _help_words(start):
    result = run(start + ["--help"], 60)
    return None if result.timed_out else _options.help_words(result.stdout + result.stderr)
