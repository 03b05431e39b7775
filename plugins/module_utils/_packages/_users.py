# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The user that owns the device nodes; driver and firmware packages do not make it. Private to the collection."""

import grp
import os
import pwd

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

_NO_SHELLS = ("nologin", "false")


def ensure(username, usergroup, run):
    """Create group and user where they are missing; return (what was created, warnings).

    The system chooses the ids. The user gets a login shell: some packages test with it whether the user reaches the install
    path (driver package, measured, and field reports). An existing user is left as it is.
    """
    created, warnings = [], []
    if _group(usergroup) is None:
        _must(run(["groupadd", usergroup], 60))
        created.append("group %s" % usergroup)
    if _user(username) is None:
        home = ["--home-dir", "/home/" + username, "--create-home", "--shell", "/bin/bash"]
        _must(run(["useradd", "--gid", usergroup] + home + [username], 60))
        created.append("user %s" % username)
    user, group = _user(username), _group(usergroup)
    if user.pw_gid != group.gr_gid and username not in group.gr_mem:
        raise FleetError(
            "The user %s is not in the group %s; the package refuses that." % (username, usergroup),
            "user_differs",
            "prepare",
            object=username,
            hint="usermod --append --groups %s %s" % (usergroup, username),
        )
    if os.path.basename(user.pw_shell) in _NO_SHELLS:
        text = "The user %s has the shell %s; some driver packages then say that the install path can not be reached."
        warnings.append(text % (username, user.pw_shell))
    return created, warnings


def _user(name):
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _group(name):
    try:
        return grp.getgrnam(name)
    except KeyError:
        return None


def _must(result):
    if result.rc != 0:
        message = "%s failed: %s" % (" ".join(result.argv), result.stderr.strip() or "exit code %s" % result.rc)
        raise FleetError(message, "user_not_created", "prepare", object=result.argv[-1], observed=result.stderr.strip())
