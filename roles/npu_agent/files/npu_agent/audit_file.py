# SPDX-License-Identifier: GPL-3.0-or-later
"""The file with a line for each allocation: for its owner alone, bounded, with one predecessor (`.1`). Whole lines only. Without a file
the lines go into the log."""

import errno
import json
import os
import re
import stat
import threading
import time
from typing import Optional

ROOM = 8 << 20  # bytes of what has no line yet
LIMIT = 8 << 20  # bytes; some ten thousand allocations, and the same again in the predecessor
LATEST = 4 << 20  # bytes of the audit in which what was kept may have its line already: it is made anew twice a second
WRITING_SHOWS = (errno.EDQUOT, errno.EIO)  # and nothing else that is known to
LOG_SECONDS = 0.5  # for a reader of the log that is behind
ALLOCATION = re.compile(rb'"allocation": "([0-9a-f]+-[0-9]+)"')


class AuditFile:
    """`trouble`: why lines are lost, "" while they are not. May be used by several threads."""

    def __init__(self, path, log, limit=LIMIT):
        self.path, self.log, self.limit = path, log, limit
        self.trouble, self.errno = "", 0
        self.lock = threading.Lock()

    def write(self, lines):
        """Append these (bytes, without ends). How many are lost; why stands in `trouble` and, once, in the log."""
        with self.lock:
            done = 0
            while done < len(lines):
                try:
                    done += self.some(lines[done:])
                except OSError as error:
                    self.failed(error, len(lines) - done)
                    return len(lines) - done
            if lines:
                self.good()
            return 0

    def again(self):
        """Whether lines could be written now, to be asked while there are none and the last ones were lost."""
        with self.lock:
            if self.errno in WRITING_SHOWS:
                return
            try:
                stream = self.open()
                try:
                    room(stream)
                finally:
                    os.close(stream)
            except OSError as error:
                self.failed(error, 0)
            else:
                self.good()

    def good(self):
        if self.trouble:
            self.trouble = ""
            self.log("the audit is written again", file=self.path)

    def some(self, lines):
        """Append as many of these as the file takes; how many. The file is opened each time: somebody may have moved it away (logrotate) or
        made its folder anew."""
        stream = self.open()
        try:
            size = os.fstat(stream).st_size
            # Whoever wrote the last line was killed, or the disk was full: what there is of it gets an end.
            begin = b"\n" if size and os.pread(stream, 1, size - 1) != b"\n" else b""
            data = bytearray(begin)
            for line in lines:
                if size + len(data) + len(line) >= self.limit and size + len(data):
                    break
                data += line + b"\n"
            if data != begin:
                written = data[len(begin):os.write(stream, data)].count(b"\n")
                if not written:
                    raise OSError(0, "there is room for part of a line only")
                return written
        finally:
            os.close(stream)
        os.rename(self.path, f"{self.path}.1")
        return 0

    def open(self):
        """Only an ordinary file: a pipe that nobody reads, or a link to somewhere else, must not be what root writes into."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        stream = os.open(self.path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(stream).st_mode):
            os.close(stream)
            raise OSError(0, "this is no ordinary file")
        return stream

    def failed(self, error, lost):
        self.errno = error.errno
        before, self.trouble = self.trouble, f"the audit cannot be written to {self.path}: {error.strerror}; allocations go on without it"
        if self.trouble != before:
            self.log("the audit cannot be written", "error", file=self.path, cause=error.strerror, lines_lost=lost,
                     hint=f"make {os.path.dirname(self.path)} a folder that this service may write, with room; or set audit_file")


class AuditLog:
    """In place of AuditFile where there is no file. The log has room for some hundred lines that its reader has not taken yet; a line that
    finds none is lost, and counted so."""

    def __init__(self, log):
        self.path, self.log, self.trouble = "", log, ""

    def again(self):
        self.log.flush()
        if not self.log.waiting:
            self.trouble = ""

    def write(self, lines):
        end = time.monotonic() + LOG_SECONDS
        for number, line in enumerate(lines):
            fields = {"allocated_at" if key == "time" else key: value for key, value in json.loads(line).items()}
            while not self.log.record("allocation", **fields):
                if time.monotonic() >= end:
                    self.trouble = "the audit goes into the log, and nobody reads that fast enough: lines are lost; set audit_file"
                    return len(lines) - number
                time.sleep(0.01)
        self.trouble = "" if lines else self.trouble
        return 0


class Kept:
    """What has no line yet, for the case that this process is killed: a file beside the audit. Lines are added as they come; those that
    need not be kept any more leave it when it is made anew."""

    def __init__(self, path):
        self.path, self.audit = f"{path}.pending", path
        self.said: Optional[list] = []  # the lines there; None: nobody knows

    def add(self, lines):
        """lines: bytes, without ends. The audit tells of a folder that cannot be written; here nothing is said."""
        if not lines or not self.audit:
            return
        data = b"".join(line + b"\n" for line in lines)
        try:
            stream = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            try:
                whole = os.write(stream, data) == len(data)
            finally:
                os.close(stream)
        except OSError:
            whole = False
        if whole and self.said is not None:
            self.said.extend(lines)
        else:
            self.said = None

    def save(self, lines):
        """These alone."""
        if lines == self.said or not self.audit:
            return
        try:
            if lines:
                with open(os.open(f"{self.path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as stream:
                    stream.write(b"".join(line + b"\n" for line in lines))
                os.replace(f"{self.path}.new", self.path)
            else:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError:
            self.said = None
            return
        self.said = list(lines)

    def load(self):
        """What a process before has left here and not written into the audit, as dicts."""
        self.said, found, left = None, {}, tail(self.path, ROOM)
        known = tail(self.audit, LATEST) + tail(f"{self.audit}.1", LATEST) if left else b""
        known = set(ALLOCATION.findall(known))
        for line in left.splitlines():
            try:
                entry = json.loads(line)
                if usable(entry) and entry["allocation"].encode() not in known:
                    found[entry["allocation"]] = entry
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # cut off, or not ours
        return list(found.values())


def usable(entry):
    int(entry["allocation"].partition("-")[0], 16)
    return all(isinstance(text, str) for text in (entry["resource"], entry["outcome"], *entry["ids"]))


def room(stream):
    """OSError where the file system has no block left. Some do not tell how many they have."""
    found = os.fstatvfs(stream)
    if found.f_blocks and not found.f_bavail:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def tail(path, size):
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            return stream.read(size)
    except OSError:
        return b""
