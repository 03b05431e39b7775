# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading and replacing an admin's file without losing anything of it. Private to the collection.

Replacing means: a temporary file in the same folder, fsync, rename, fsync of the folder; mode, owner, extended attributes (an SELinux
label is one) and a symbolic link stay as they were.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

# The usual folders of programs, since PATH of an ssh command often lacks the sbin ones.
PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
MAX_BYTES = 1 << 20

# ``path`` as asked for, ``target`` behind a symbolic link (else the same); ``data`` is None where there is no file.
Snapshot = namedtuple("Snapshot", "path target link data sha256 mode uid gid xattrs")


def under(root, path):
    """Return ``path`` as seen from outside of ``root``."""
    return os.path.normpath(os.path.join(root, path.lstrip("/")))


def find_program(name, root="/"):
    """Return the absolute path of a program below ``root``, or None."""
    folders = list(PROGRAM_FOLDERS)
    if os.path.normpath(root) == "/":
        folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)] + folders
    for folder in folders:
        path = under(root, os.path.join(folder, name))
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def sha256(data):
    """Return the sha256 of bytes as hex digits."""
    return hashlib.sha256(data).hexdigest()


def snapshot(path):
    """Return what ``path`` holds and how it looks; a missing file is a snapshot whose ``data`` is None."""
    link = os.readlink(path) if os.path.islink(path) else None
    target = os.path.realpath(path)
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return Snapshot(path, target, link, None, None, None, None, None, {})
        raise file_error("read", target, error) from error
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise FleetError("%s is not a regular file." % target, "file_invalid", phase="read", object=target)
    with os.fdopen(descriptor, "rb") as stream:
        if info.st_size > MAX_BYTES:
            raise FleetError(
                "%s has %d bytes; more than %d is no engine configuration." % (target, info.st_size, MAX_BYTES),
                "file_too_large", phase="read", object=target,
            )
        data = stream.read()
        xattrs = _read_xattrs(stream.fileno())
    return Snapshot(path, target, link, data, sha256(data), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, xattrs)


def file_error(verb, path, error):
    """Return the FleetError for an OSError on a file."""
    hint = None
    if error.errno in (errno.EPERM, errno.EACCES):
        hint = "Run as root; if it is root already, look at 'lsattr -d %s' for an immutable flag." % path
    elif error.errno == errno.EBUSY:
        hint = "It is a mount point, which can not be replaced in one step: mount its folder instead of the file."
    return FleetError("Could not %s %s: %s." % (verb, path, error.strerror or error), "file_error", phase=verb, object=path,
                      observed=errno.errorcode.get(error.errno), hint=hint)


def _read_xattrs(descriptor):
    values = {}
    try:
        for name in os.listxattr(descriptor):
            values[name] = os.getxattr(descriptor, name)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM, errno.ENODATA):
            raise
    return values


def _write_xattrs(descriptor, values):
    for name in sorted(values):
        try:
            if os.getxattr(descriptor, name) == values[name]:
                continue
        except OSError:
            pass
        os.setxattr(descriptor, name, values[name])


def make_folder(path, mode):
    """Make a folder (and its parents, 0755) with exactly ``mode``, whatever the umask; an existing folder keeps its mode."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_folder(parent, 0o755)
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, mode)
        sync_folder(parent)
    except FileExistsError:
        pass
    except OSError as error:
        raise file_error("make", path, error) from error


def sync_folder(path):
    """Flush the entries of a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staged(before, data, new_mode=0o644):
    """Give a temporary file beside ``before.target`` with ``data`` and the looks of ``before``; gone afterwards unless renamed."""
    folder = os.path.dirname(before.target)
    try:
        descriptor, path = tempfile.mkstemp(prefix=".%s." % os.path.basename(before.target), suffix=".npu-fleet", dir=folder)
    except OSError as error:
        raise file_error("write", before.target, error) from error
    try:
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                if before.data is None:
                    os.fchmod(stream.fileno(), new_mode)
                else:
                    os.fchown(stream.fileno(), before.uid, before.gid)
                    os.fchmod(stream.fileno(), before.mode)
                    _write_xattrs(stream.fileno(), before.xattrs)
                os.fsync(stream.fileno())
        except OSError as error:
            raise file_error("write", before.target, error) from error
        yield path
    finally:
        if os.path.lexists(path):
            os.unlink(path)


def put_in_place(path, target):
    """Rename a staged file over ``target`` and flush."""
    try:
        os.rename(path, target)
        sync_folder(os.path.dirname(target))
    except OSError as error:
        raise file_error("replace", target, error) from error


def replace(before, data, new_mode=0o644):
    """Write ``data`` where ``before`` was taken, keeping its looks; None removes the file."""
    if data is None:
        try:
            os.unlink(before.target)
            sync_folder(os.path.dirname(before.target))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise file_error("remove", before.target, error) from error
        return
    with staged(before, data, new_mode) as path:
        put_in_place(path, before.target)


def write_private(path, data):
    """Write a file of our own, 0600, in a folder of our own, 0700."""
    folder = os.path.dirname(path)
    make_folder(folder, 0o700)
    replace(Snapshot(path, path, None, None, None, None, None, None, {}), data, 0o600)


@contextlib.contextmanager
def locked(path):
    """Hold an exclusive lock on ``path`` (made when missing); an error at once when somebody else holds it."""
    make_folder(os.path.dirname(path), 0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FleetError("Another run works on the same file (lock %s)." % path, "locked", phase="write", object=path,
                             hint="Wait for it to end, then run again.") from error
        yield
    finally:
        os.close(descriptor)
