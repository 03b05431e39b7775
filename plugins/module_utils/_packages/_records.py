# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading the vendor's record files below a root folder. Private to the collection."""

import errno
import os
import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Files(object):
    """Files below ``root``; nothing there is None, what can not be read is an error (unknown is not absent)."""

    def __init__(self, root="/"):
        self._root = os.path.abspath(root)

    def real(self, path):
        """Return the path on this machine for a path as the node's files spell it."""
        return os.path.normpath(self._root + os.sep + path)

    def text(self, path):
        """Return the content of a small text file, or None."""
        try:
            with open(self.real(path), "rb") as stream:
                return stream.read(1 << 20).decode("utf-8", "replace")
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise _unreadable(path, error) from error

    def content(self, path):
        """Return all bytes of a file, or None."""
        try:
            with open(self.real(path), "rb") as stream:
                return stream.read()
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise _unreadable(path, error) from error

    def values(self, path):
        """Return the KEY=value pairs of a file, or None when there is no file."""
        text = self.text(path)
        return None if text is None else parse_values(text)

    def names(self, path):
        """Return the sorted names in a folder; an empty list when there is none."""
        try:
            return sorted(os.listdir(self.real(path)))
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise _unreadable(path, error) from error

    def is_folder(self, path):
        return os.path.isdir(self.real(path))

    def exists(self, path):
        return os.path.lexists(self.real(path))

    def link_name(self, path):
        """Return the last part of a link's target (targets are absolute, so with another root they can not be followed)."""
        try:
            return os.path.basename(os.readlink(self.real(path)).rstrip("/"))
        except OSError:
            return None

    def size(self, path):
        """Return the size of a file, or None when there is none."""
        try:
            return os.stat(self.real(path)).st_size
        except OSError:
            return None

    def changed(self, path):
        """Return when a file got its present content, owner or mode; packages that copy with "preserve" can not set that back."""
        try:
            return os.stat(self.real(path)).st_ctime
        except OSError:
            return None


def parse_values(text):
    """Return KEY=value lines as a dict.

    The last of equal keys counts, as in the vendor's scripts, which append. Carriage returns are dropped: with them the
    scripts use a wrong path (driver package, measured). Some files (ATB) part key and value by a colon.
    """
    values = {}
    for line in text.lstrip("\ufeff").splitlines():
        found = re.match(r"\s*([A-Za-z][A-Za-z0-9_. -]*?)\s*[=:]\s*(.*?)\s*\Z", line)
        if found:
            values[found.group(1)] = found.group(2).strip("\"'")
    return values


def lookup(values, *names):
    """Return the first non-empty value of these keys, in any case of letters (``Version=`` and ``version=`` are both in use)."""
    lowered = {name.lower(): value for name, value in (values or {}).items()}
    for name in names:
        if lowered.get(name.lower()):
            return lowered[name.lower()]
    return None


def _unreadable(path, error):
    message, hint = "%s can not be read: %s." % (path, error.strerror), "Run as root."
    if error.errno == errno.EISDIR:
        message = "%s is a folder, where a file belongs." % path
        hint = "Container engines make a folder where a container was to get a file that was not there; remove it with 'rmdir %s'." % path
    return FleetError(message, "file_unreadable", "observe", object=path, observed=str(error), hint=hint)
