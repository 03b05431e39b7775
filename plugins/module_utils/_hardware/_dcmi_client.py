# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The caller's side of DCMI: starts the child of _dcmi.py, asks it, and kills it when an answer is late.

    client = DcmiClient(find_library("/usr/local/Ascend"))
    client.call("open")       -> {"api", "library", "dcmi_version", "driver_version"}
    client.call("chips")      -> [{"logic_id", "phy_id", "card_id", "device_id", "name", "pci_address", "serial", "vdie", "error", ...}]
    client.call("health")     -> [{..ids.., "health", "health_code", "error_codes", "dropped", "error"}]
    client.call("telemetry")  -> [{..ids.., "temperature_c", "power_w", "aicore_percent", "hbm_used_mib", ..., "error"}]
    client.call("version")    -> as "open"
    client.close()

Each call starts the child when there is none and raises DcmiError with the cause; after an error of the whole library the next
call begins with a new child. One client serves one thread at a time (a lock sees to it).
"""

import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from . import _dcmi

# Reads the child's source from stdin, so that it needs no file: a module of Ansible is imported from a zip.
BOOTSTRAP = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), '_dcmi.py', 'exec'))"
REAP_SECONDS = 2.0  # a process that sleeps in the driver cannot die before the driver lets go of it
NOISE_BYTES = 4096


class DcmiError(Exception):
    """What went wrong: code (dcmi_library_missing, dcmi_library_unusable, dcmi_failed, dcmi_timeout, dcmi_child_died), message, details."""

    def __init__(self, message, code, **details):
        Exception.__init__(self, message)
        self.message, self.code, self.details = message, code, details

    def as_dict(self):
        answer = dict(self.details)
        answer.update(code=self.code, message=self.message)
        return answer


def library_places(install_path="/usr/local/Ascend", root="/"):
    """Where libdcmi.so may be: cards and servers, then the driver's folders, then 310B boards (DCMI manuals, vendor's device plugin)."""
    driver = os.path.join(install_path, "driver", "lib64")
    folders = ["/usr/local/dcmi", os.path.join(driver, "driver"), driver, "/usr/lib64"]
    return [os.path.join(root, folder.lstrip("/"), "libdcmi.so") for folder in folders]


def library_path(install_path="/usr/local/Ascend"):
    """LD_LIBRARY_PATH for the vendor's libraries and tools: they need each other (libc_sec.so, libdrvdsmi_host.so, libascend_hal.so)."""
    driver = os.path.join(install_path, "driver", "lib64")
    return ":".join([driver, os.path.join(driver, "common"), os.path.join(driver, "driver")])


def find_library(install_path="/usr/local/Ascend", root="/"):
    """The first libdcmi.so that exists; DcmiError names all places when there is none."""
    places = library_places(install_path, root)
    for place in places:
        if os.path.isfile(place):
            return place
    raise DcmiError("there is no libdcmi.so in %s: no NPU driver is installed" % ", ".join(places), "dcmi_library_missing", places=places)


class DcmiClient:
    """See the text of this file. `argv` replaces the child's command line (the library is its last argument)."""

    def __init__(self, library, timeout=10.0, install_path="/usr/local/Ascend", argv=None):
        self.library, self.timeout, self.install_path, self.argv = library, timeout, install_path, argv
        self._lock = threading.Lock()
        self._child: Any = None
        self._stuck = []
        self._buffer = b""
        self._noise = b""
        self._last_id = 0
        self.starts = 0

    def call(self, command, timeout=None):
        """The result of one command; DcmiError when it fails or is not there in time (then the child is gone)."""
        with self._lock:
            deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
            try:
                self._start(deadline)
                self._last_id += 1
                self._send({"id": self._last_id, "cmd": command}, command)
                reply = self._receive(deadline, command)
                if reply.get("id") != self._last_id:
                    raise self._broken("answered another request: %r" % (reply,), command)
            except BaseException:
                self._kill()
                raise
            if "error" in reply:
                # A library that refused to start does not recover inside the same process (dcmi_init is for once).
                self._kill()
                error = dict(reply["error"])
                raise DcmiError(error.pop("message"), error.pop("code"), command=command, **error)
            return reply["result"]

    def close(self):
        with self._lock:
            self._kill()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    @property
    def pid(self):
        """Process id of the running child, else None."""
        return None if self._child is None else self._child.pid

    def _start(self, deadline):
        if self._child is not None and self._child.poll() is None:
            return
        self._kill()
        environment = dict(os.environ)
        inherited = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = library_path(self.install_path) + (":" + inherited if inherited else "")
        environment["LC_ALL"] = "C"
        source = b""
        argv = list(self.argv or [])
        if not argv:
            source = pkgutil.get_data(__package__, os.path.basename(_dcmi.__name__.replace(".", "/")) + ".py") or b""
            argv = [sys.executable, "-I", "-S", "-c", BOOTSTRAP, str(len(source))]
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)  # the library's own chatter must never block the child: what does not fit is lost
        try:
            self._child = subprocess.Popen(
                argv + [self.library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=write_end, bufsize=0,
                env=environment, start_new_session=True, cwd="/",
            )
        except OSError as error:
            os.close(read_end)
            raise DcmiError("the DCMI child cannot be started: %s" % error, "dcmi_child_died") from None
        finally:
            os.close(write_end)
        self._noise_end, self._buffer, self._noise = read_end, b"", b""
        self.starts += 1
        self._write(source, "start")
        if "ready" not in self._receive(deadline, "start"):
            raise self._broken("did not say it is ready", "start")

    def _send(self, request, command):
        self._write((json.dumps(request) + "\n").encode("ascii"), command)

    def _write(self, data, command):
        try:
            while data:
                data = data[self._child.stdin.write(data):]
        except OSError as error:
            raise self._broken("takes no request: %s" % error, command) from None

    def _receive(self, deadline, command):
        output = self._child.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                self._listen_to_noise()
                raise DcmiError(
                    "DCMI did not answer %r in time; its process was killed%s" % (command, self._heard()), "dcmi_timeout", command=command
                )
            data = os.read(output, 65536)
            if not data:
                raise self._broken("ended", command)
            self._buffer += data
        self._listen_to_noise()
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            reply = json.loads(line.decode("utf-8"))
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise self._broken("answered what is not a JSON object: %r" % line[:200], command)
        return reply

    def _broken(self, what, command):
        how = ""
        try:
            status = self._child.wait(0.5)
            how = " by signal %d" % abs(status) if status < 0 else " with status %d" % status
        except subprocess.TimeoutExpired:
            pass
        self._listen_to_noise()
        return DcmiError("the DCMI child %s%s during %r%s" % (what, how, command, self._heard()), "dcmi_child_died", command=command)

    def _listen_to_noise(self):
        try:
            while True:
                data = os.read(self._noise_end, 65536)
                if not data:
                    return
                self._noise = (self._noise + data)[-NOISE_BYTES:]
        except OSError:
            return  # nothing more to read for now

    def _heard(self):
        said = self._noise.decode("utf-8", "replace").strip()
        return "; it said: %s" % said if said else ""

    def _kill(self):
        self._stuck = [child for child in self._stuck if child.poll() is None]
        child, self._child = self._child, None
        if child is None:
            return
        for end in (child.stdin, child.stdout):
            end.close()
        os.close(self._noise_end)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
        try:
            child.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck.append(child)
