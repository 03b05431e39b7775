# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One process with the vendor's DCMI library in it, as its caller holds it: start, lines there and back, kill. _dcmi.py runs inside."""

import errno
import json
import marshal
import os
import signal
import subprocess
import sys
from typing import Any

from . import _dcmi

# Reads the child's code from stdin, so that it needs no file (a module of Ansible is imported from a zip) and compiles nothing.
# Not a byte more: the first request may be there already.
BOOTSTRAP = """
import marshal, os, sys
code = b""
while len(code) < int(sys.argv[1]):
    code += os.read(0, int(sys.argv[1]) - len(code)) or sys.exit(1)
exec(marshal.loads(code))
"""
# At once, not for each child: when a child has to be replaced, descriptors may have run out, or a newer version taken the files' place.
_loader: Any = _dcmi.__spec__.loader
CODE = marshal.dumps(_loader.get_code(_dcmi.__name__))
NOISE_BYTES = 4096
TURNS = 4  # times 64 KiB that are read before somebody else has a turn
LINE_BYTES = 4 << 20


class DcmiError(Exception):
    """What went wrong: code (dcmi_library_missing, dcmi_library_unsafe, dcmi_library_unusable, dcmi_failed, dcmi_timeout,
    dcmi_child_died), message, details."""

    def __init__(self, message, code, **details):
        Exception.__init__(self, message)
        self.message, self.code, self.details = message, code, details

    def as_dict(self):
        answer = dict(self.details)
        answer.update(code=self.code, message=self.message)
        return answer


def library_path(install_path="/usr/local/Ascend"):
    """LD_LIBRARY_PATH for the vendor's libraries and tools: they need each other (libc_sec.so, libdrvdsmi_host.so, libascend_hal.so)."""
    driver = os.path.join(install_path, "driver", "lib64")
    return ":".join([driver, os.path.join(driver, "common"), os.path.join(driver, "driver")])


class Child:
    """Starts at once; nothing here waits but `reap`. `argv` replaces the command line (the library is its last argument).

    `output` is the descriptor to poll: `read` takes what is there, then `line` gives one message after the other.
    """

    def __init__(self, library, install_path="/usr/local/Ascend", argv=None):
        environment = dict(os.environ)
        environment["LD_LIBRARY_PATH"] = library_path(install_path)  # nothing inherited: library_faults() could not vouch for it
        environment["LC_ALL"] = "C"
        code = b"" if argv else CODE
        argv = list(argv or [sys.executable, "-I", "-S", "-c", BOOTSTRAP, str(len(CODE))])
        self._noise, self._buffer, self.ended = b"", b"", False
        try:
            self.noise, write_end = os.pipe()
        except OSError as error:
            raise DcmiError("the DCMI child cannot be started: %s" % error, "dcmi_child_died") from None
        os.set_blocking(self.noise, False)
        os.set_blocking(write_end, False)  # the library's own chatter must never block the child: what does not fit is lost
        try:
            self.process: Any = subprocess.Popen(  # pylint: disable=ansible-bad-function
                argv + [library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=write_end, bufsize=0,
                env=environment, start_new_session=True, cwd="/",
            )
        except OSError as error:
            os.close(self.noise)
            raise DcmiError("the DCMI child cannot be started: %s" % error, "dcmi_child_died") from None
        finally:
            os.close(write_end)
        stdout: Any = self.process.stdout
        self.pid, self.output = self.process.pid, stdout.fileno()
        os.set_blocking(self.output, False)
        try:
            self._write(code, "start")
        except DcmiError:
            self.kill()
            self.close()
            raise

    def send(self, request):
        """request: a dict with cmd; DcmiError when nobody takes it."""
        self._write((json.dumps(request) + "\n").encode("ascii"), request["cmd"])

    def _write(self, data, command):
        try:
            while data:
                data = data[self.process.stdin.write(data):]
        except OSError as error:
            raise self.broken("takes no request: %s" % error, command) from None

    def read(self):
        """Take in what the child has said. False when it will say no more."""
        try:
            for _turn in range(TURNS):  # who talks faster than we read is heard out next time
                if self.ended:
                    break
                data = os.read(self.output, 65536)
                self.ended = not data
                self._buffer += data
        except OSError as error:
            self.ended = error.errno not in (errno.EAGAIN, errno.EINTR)
        return not self.ended

    def line(self, command):
        """The next whole message, None when there is none yet; DcmiError when it is none of ours."""
        if b"\n" not in self._buffer:
            if len(self._buffer) > LINE_BYTES:
                self.ended = True
                raise self.broken("says a line without end", command)
            return None
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            message = json.loads(line.decode("utf-8"))
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise self.broken("answered what is not a JSON object: %r" % line[:200], command)
        return message

    def broken(self, what, command):
        """The error for a child that did what it should not, with how it ended and its last words."""
        how = ""
        if self.reap(0.5):
            status = self.process.returncode
            how = " by signal %d" % abs(status) if status < 0 else " with status %d" % status
        return DcmiError("the DCMI child %s%s during %r%s" % (what, how, command, self.heard()), "dcmi_child_died", command=command)

    def heard(self):
        """What the library printed, as the end of a sentence."""
        try:
            for _turn in range(TURNS):
                data = os.read(self.noise, 65536)
                if not data:
                    break
                self._noise = (self._noise + data)[-NOISE_BYTES:]
        except OSError:
            pass  # nothing more to read for now
        said = self._noise.decode("utf-8", "replace").strip()
        return "; it said: %s" % said if said else ""

    def kill(self):
        """Ask the kernel to end it. It cannot before the driver lets go of it: a process may sleep there for ever."""
        if self.process.returncode is None:  # its number is not free for others yet
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass

    def reap(self, seconds=0.0):
        """True when the process is no more."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self):
        """Let go of its channels; a child that is alive sees that and ends."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
            self.process.stdout.close()
            os.close(self.noise)
            self.output = self.noise = -1  # their numbers may be somebody else's from now on
