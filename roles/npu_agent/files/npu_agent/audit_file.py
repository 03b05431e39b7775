# SPDX-License-Identifier: GPL-3.0-or-later
"""The file with a line for each allocation: for its owner alone, bounded, with one predecessor (`.1`). Whole lines only."""

import json
import os
import stat
import threading

ROOM = 8 << 20  # bytes of what has no line yet
LIMIT = 8 << 20  # bytes; some ten thousand allocations, and the same again in the predecessor


class AuditFile:
    """`trouble`: why lines are lost, "" while they are not. May be used by several threads."""

    def __init__(self, path, log, limit=LIMIT):
        self.path, self.log, self.limit = path, log, limit
        self.trouble = ""
        self.lock = threading.Lock()

    def write(self, lines):
        """Append these (bytes, without ends). How many are lost; why stands in `trouble` and, once, in the log."""
        with self.lock:
            for number, line in enumerate(lines):
                try:
                    self.append(line + b"\n")
                except OSError as error:
                    self.failed(error, len(lines) - number)
                    return len(lines) - number
            if lines and self.trouble:
                self.trouble = ""
                self.log("the audit is written again", file=self.path)
            return 0

    def append(self, data):
        """The file is opened for each line: they are seldom, and somebody may have moved it away (logrotate) or made its folder anew."""
        if not self.into(data):
            os.rename(self.path, f"{self.path}.1")
            self.into(data, whatever_size=True)

    def into(self, data, whatever_size=False):
        """False: the file is full."""
        stream = self.open()
        try:
            size = os.fstat(stream).st_size
            if size and size + len(data) > self.limit and not whatever_size:
                return False
            # Whoever wrote the last line was killed, or the disk was full: what there is of it gets an end.
            data = b"\n" + data if size and os.pread(stream, 1, size - 1) != b"\n" else data
            if os.write(stream, data) != len(data):
                raise OSError(0, "there is room for part of a line only")
            return True
        finally:
            os.close(stream)

    def open(self):
        """Only an ordinary file: a pipe that nobody reads, or a link to somewhere else, must not be what root writes into."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        stream = os.open(self.path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(stream).st_mode):
            os.close(stream)
            raise OSError(0, "this is no ordinary file")
        return stream

    def failed(self, error, lost):
        before, self.trouble = self.trouble, f"the audit cannot be written to {self.path}: {error.strerror}; allocations go on without it"
        if self.trouble != before:
            self.log("the audit cannot be written", "error", file=self.path, cause=error.strerror, lines_lost=lost,
                     hint=f"make {os.path.dirname(self.path)} a folder that this service may write, with room; or set audit_file")


class Kept:
    """What has no line yet, for the case that this process is killed: a file beside the audit."""

    def __init__(self, path):
        self.path, self.audit = f"{path}.pending", path
        self.said = b""  # what stands there; at the start nobody knows

    def save(self, lines):
        """lines: bytes, without ends. The audit tells of a folder that cannot be written; here nothing is said."""
        data = b"".join(line + b"\n" for line in lines)
        if data == self.said:
            return
        try:
            if data:
                with open(os.open(f"{self.path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as stream:
                    stream.write(data)
                os.replace(f"{self.path}.new", self.path)
            else:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError:
            return
        self.said = data

    def load(self):
        """What a process before has left here and not written into the audit, as dicts."""
        found, known = [], tail(self.audit) + tail(f"{self.audit}.1")
        for line in tail(self.path, ROOM).splitlines():
            try:
                entry = json.loads(line)
                if f'"{entry["allocation"]}"'.encode() in known:
                    continue
                if usable(entry):
                    found.append(entry)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # cut off, or not ours
        self.said = b"?"
        return found


def usable(entry):
    int(entry["allocation"].partition("-")[0], 16)
    return all(isinstance(text, str) for text in (entry["resource"], entry["outcome"], *entry["ids"]))


def tail(path, size=1 << 18):
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            return stream.read(size)
    except OSError:
        return b""
