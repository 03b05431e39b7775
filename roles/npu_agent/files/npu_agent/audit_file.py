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
            done = 0
            while done < len(lines):
                try:
                    done += self.some(lines[done:])
                except OSError as error:
                    self.failed(error, len(lines) - done)
                    return len(lines) - done
            if lines and self.trouble:
                self.trouble = ""
                self.log("the audit is written again", file=self.path)
            return 0

    def some(self, lines):
        """Append as many of these as the file takes; how many. The file is opened each time: somebody may have moved it away (logrotate) or
        made its folder anew."""
        stream = self.open()
        try:
            size = os.fstat(stream).st_size
            # Whoever wrote the last line was killed, or the disk was full: what there is of it gets an end.
            data = begin = b"\n" if size and os.pread(stream, 1, size - 1) != b"\n" else b""
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
