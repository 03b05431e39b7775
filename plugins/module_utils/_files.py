# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading and replacing an admin's file without losing anything of it. Private to the collection.

Replacing means: a temporary file in the same folder, fsync, rename, fsync of the folder; mode, owner, extended attributes (an SELinux
label is one) and a symbolic link stay as they were. A file that is mounted by itself can not be renamed over, and one with several hard
links would be parted from them: these are written in place.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import pwd
import stat
import tempfile
import time
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

# The usual folders of programs, since PATH of an ssh command often lacks the sbin ones.
PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
MAX_BYTES = 1 << 20
LEFTOVER = ".npu-fleet"  # how the name of a temporary file ends; it begins with a dot

# ``path`` as asked for, ``target`` behind a symbolic link (else the same), ``links``: how many hard links; ``data`` is None where there is
# no file.
Snapshot = namedtuple("Snapshot", "path target link data sha256 mode uid gid xattrs links")
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE (linux/falloc.h); os.posix_fallocate would make the file longer
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


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


def digest_of(path):
    """Return the sha256 of a file as hex digits, None where it can not be read."""
    try:
        with open(path, "rb") as stream:
            return sha256(stream.read())
    except OSError:
        return None


def snapshot(path):
    """Return what ``path`` holds and how it looks; a missing file is a snapshot whose ``data`` is None."""
    link = os.readlink(path) if os.path.islink(path) else None
    target = os.path.realpath(path)
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return Snapshot(path, target, link, None, None, None, None, None, {}, 0)
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
    return Snapshot(path, target, link, data, sha256(data), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, xattrs, info.st_nlink)


def file_error(verb, path, error):
    """Return the FleetError for an OSError on a file."""
    hint = None
    if error.errno in (errno.EPERM, errno.EACCES):
        hint = "Run as root; if it is root already, look at 'lsattr -d %s' for an immutable flag." % path
    elif error.errno == errno.EBUSY:
        hint = "It is a mount point, which can not be replaced in one step: mount its folder instead of the file."
    elif error.errno in _NO_SPACE:
        hint = "Make room where it is ('df -h %s'; 'df -i' for inodes)." % os.path.dirname(path)
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
def staged(before, data, new_mode=0o644, stage=None):
    """Give a temporary file with ``data`` and the looks of ``before``; gone afterwards unless renamed.

    It lies beside ``before.target``, or in the folder ``stage`` where that is given and on the same file system.
    """
    descriptor, path = _temporary(before.target, stage)
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


def _temporary(target, stage):
    folder, name = os.path.dirname(target), ".%s." % os.path.basename(target)
    try:
        if stage is not None and os.stat(stage).st_dev == os.stat(folder).st_dev:
            return tempfile.mkstemp(prefix=name, suffix=LEFTOVER, dir=stage)
    except OSError:
        pass  # then beside it
    try:
        return tempfile.mkstemp(prefix=name, suffix=LEFTOVER, dir=folder)
    except OSError as error:
        raise file_error("write", target, error) from error


def put_in_place(path, target):
    """Rename a staged file over ``target`` and flush."""
    try:
        os.rename(path, target)
        sync_folder(os.path.dirname(target))
    except OSError as error:
        raise file_error("replace", target, error) from error


def write(before, data, ready=None, new_mode=0o644, stage=None):
    """Write ``data`` where ``before`` was taken, keeping its looks; None removes the file. Returns why it was written in place, or None.

    ``ready`` is called once all that can be done beforehand is done, right before the file changes; ``stage``: of ``staged``.
    """
    ready = ready or (lambda: None)
    if data is None:
        ready()
        replace(before, None)
        return None
    if before.links > 1:
        ready()
        overwrite(before, data)
        return "it has %d hard links" % before.links
    with staged(before, data, new_mode, stage) as path:
        ready()
        try:
            put_in_place(path, before.target)
        except FleetError as error:
            if error.observed == "EXDEV" and stage is not None:
                # A mount of the same file system: no rename goes into it.
                return write(before, data, None, new_mode)
            if error.observed != "EBUSY" or before.data is None:
                raise
            overwrite(before, data)
            return "it is a mount point"
    return None


def write_back(before, current, data, stage=None):
    """Give a file the bytes that it had, with the looks of ``before``; None removes it. Where the disk is full it is written in place,
    into the room of ``current``, which is there now.
    """
    try:
        write(before._replace(links=current.links), data, stage=stage)
    except FleetError as error:
        if error.observed not in ("ENOSPC", "EDQUOT") or data is None or current.data is None:
            raise
        overwrite(current, data)


def overwrite(before, data):
    """Write ``data`` into the very file of ``before``. Room is taken first, so that a full disk costs nothing of what is there."""
    try:
        descriptor = os.open(before.target, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _reserve(descriptor, len(data))
            try:
                _pour(descriptor, data)
            except OSError:
                _pour(descriptor, before.data)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise file_error("write", before.target, error) from error


def _pour(descriptor, data):
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], done)
    os.ftruncate(descriptor, len(data))
    os.fsync(descriptor)


def _reserve(descriptor, size):
    """Take room for ``size`` bytes without a change of the file that anybody sees, where the file system can do that."""
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None:
        return
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    if fallocate(descriptor, _KEEP_SIZE, 0, max(1, size)) != 0 and ctypes.get_errno() in _NO_SPACE:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def is_leftover(name):
    """Return whether a file's name is that of a temporary file of ours."""
    return name.startswith(".") and name.endswith(LEFTOVER)


def sweep(target, stage=None):
    """Remove what a run that was cut has left beside ``target`` and in ``stage`` (of ``staged``); only while nobody else may write it.

    Where there is a ``stage`` the engine reads whatever lies beside ``target``: there, all that is ours goes.
    """
    prefix = ".%s." % os.path.basename(target)
    for folder, begins in ((os.path.dirname(target), prefix if stage is None else "."), (stage, prefix)):
        try:
            for name in os.listdir(folder) if folder is not None else []:
                if name.startswith(begins) and is_leftover(name):
                    os.unlink(os.path.join(folder, name))
        except OSError:
            pass  # it is in nobody's way


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
    replace(Snapshot(path, path, None, None, None, None, None, None, {}, 0), data, 0o600)


@contextlib.contextmanager
def locked(path, wait=0):
    """Hold an exclusive lock on ``path`` (made when missing). After ``wait`` seconds: FleetError ``locked``, which names the holder."""
    make_folder(os.path.dirname(path), 0o700)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise file_error("lock", path, error) from error
    try:
        deadline = time.monotonic() + wait
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise FleetError(
                    "Another run works on the same files%s%s." % (_holder(descriptor), "; waited %d s for it" % wait if wait else ""),
                    "locked", phase="write", object=path, hint="Wait for it to end, then run again.",
                )
            time.sleep(0.1)
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor):
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _sign(descriptor):
    """Leave word of who holds the lock."""
    words = json.dumps({"pid": os.getpid(), "user": _user(), "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, words.encode("utf-8"), 0)
    except OSError:
        pass  # on a full disk the lock holds all the same


def _user():
    """Return the user who logged in, where sudo or the kernel's audit still knows it."""
    if os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    try:
        with open("/proc/self/loginuid", encoding="ascii") as stream:
            uid = int(stream.read())
    except (OSError, ValueError):
        uid = os.getuid()
    uid = os.getuid() if uid == 0xFFFFFFFF else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _holder(descriptor):
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0).decode("utf-8"))
        return ": process %d of user %s, since %s" % (holder["pid"], holder["user"], holder["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
