# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DCMI for who asks now and then: starts the child of _dcmi.py, asks it, and kills it when an answer is late.

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

import os
import pwd
import select
import stat
import threading
import time
from typing import Any

from ._dcmi_child import Child, DcmiError, library_path
from ._way import walk

__all__ = ["DcmiClient", "DcmiError", "find_library", "library_faults", "library_path", "library_places", "load_faults"]

MAX_FAULTS = 4  # that are told
REAP_SECONDS = 2.0  # a process that sleeps in the driver cannot die before the driver lets go of it


def library_places(install_path="/usr/local/Ascend", root="/"):
    """Where libdcmi.so may be: cards and servers, then the driver's folders, then 310B boards (DCMI manuals, vendor's device plugin)."""
    driver = os.path.join(install_path, "driver", "lib64")
    folders = ["/usr/local/dcmi", os.path.join(driver, "driver"), driver, "/usr/lib64"]
    return [os.path.join(root, folder.lstrip("/"), "libdcmi.so") for folder in folders]


def find_library(install_path="/usr/local/Ascend", root="/"):
    """The first libdcmi.so that exists; DcmiError names all places when there is none."""
    places = library_places(install_path, root)
    for place in places:
        if os.path.isfile(place):
            return place
    raise DcmiError("there is no libdcmi.so in %s: no NPU driver is installed" % ", ".join(places), "dcmi_library_missing", places=places)


def library_faults(path, own=None):
    """Why a process of this user must not load the library, one text each: who may write to it, or to a folder or link on the way to it,
    runs code in that process. The same rule as the vendor's device plugin has, but that the user's own files are good enough.

    own: user id of the process (default: this one's). A sticky folder does not help: names that are gone may be made by anybody.
    """
    faults = []
    for place in _way(path):
        try:
            faults += _faults_of(place, own)
        except OSError as error:
            return faults + ["%s: %s" % (place, error.strerror)]
    return faults


def load_faults(library, install_path="/usr/local/Ascend", own=None, note="/etc/ascend_install.info"):
    """library_faults() of the library and of all that it may load: the vendor's folders that there are, and the libraries in them.

    Those may belong to the user as whom the driver was installed, too: its device nodes do, and some releases may have it so.
    """
    faults, places, driver_user = library_faults(library, own), {}, _driver_user(note)
    for folder in library_path(install_path).split(":"):
        try:
            names = [name for name in sorted(os.listdir(folder)) if ".so" in name]
        except OSError:
            continue  # the loader finds nothing there either
        for name in [""] + names:
            places.update(dict.fromkeys(_way(os.path.join(folder, name))))
    for place in places:
        try:
            faults += [fault for fault in _faults_of(place, own, driver_user) if fault not in faults]
        except OSError:
            pass  # a link to nothing; who could make that is asked at its folder
    return faults if len(faults) <= MAX_FAULTS else faults[:MAX_FAULTS] + ["and %d more" % (len(faults) - MAX_FAULTS)]


def _driver_user(note):
    """User id that the driver's installer noted (UserName), None where it noted none."""
    try:
        with open(note, encoding="utf-8", errors="replace") as lines:
            names = [line.split("=", 1)[1].strip() for line in lines if line.startswith("UserName=")]
        return pwd.getpwnam(names[0]).pw_uid
    except (OSError, IndexError, KeyError):
        return None


def _faults_of(place, own, other=None):
    """The same of one step of the way; OSError when it is not there."""
    found = os.lstat(place)
    if found.st_uid not in (0, os.geteuid() if own is None else own, other):
        try:
            owner = pwd.getpwuid(found.st_uid).pw_name
        except KeyError:
            owner = "user %d" % found.st_uid
        return ["%s belongs to %s; `chown root %s` mends it" % (place, owner, place)]
    if found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode):
        mode = stat.S_IMODE(found.st_mode)
        return ["%s has mode %04o, so others than root may write to it; `chmod go-w %s` mends it" % (place, mode, place)]
    return []


def _way(path):
    """Every folder, link and file on the way from / to the file that has this name."""
    steps = walk(os.path.join(os.getcwd(), path))[0]
    return ["/"] + [os.path.join(*step) for step in steps]


class DcmiClient:
    """See the text of this file. `argv` replaces the child's command line (the library is its last argument)."""

    def __init__(self, library, timeout=10.0, install_path="/usr/local/Ascend", argv=None):
        self.library, self.timeout, self.install_path, self.argv = library, timeout, install_path, argv
        self._lock = threading.Lock()
        self._child: Any = None
        self._stuck = []
        self._last_id = 0
        self.starts = 0

    def call(self, command, timeout=None):
        """The result of one command; DcmiError when it fails or is not there in time (then the child is gone)."""
        with self._lock:
            deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
            try:
                self._start(deadline)
                self._last_id += 1
                self._child.send({"id": self._last_id, "cmd": command})
                reply = self._receive(deadline, command)
                if reply.get("id") != self._last_id:
                    raise self._child.broken("answered another request: %r" % (reply,), command)
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
        if self._child is not None and not self._child.reap():
            return
        self._kill()
        self._child = Child(self.library, self.install_path, self.argv)
        self.starts += 1
        if "ready" not in self._receive(deadline, "start"):
            raise self._child.broken("did not say it is ready", "start")

    def _receive(self, deadline, command):
        while True:
            reply = self._child.line(command)
            if reply is not None:
                return reply
            if self._child.ended:
                raise self._child.broken("ended", command)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._child.output], [], [], left)[0]:
                raise DcmiError(
                    "DCMI did not answer %r in time; its process was killed%s" % (command, self._child.heard()), "dcmi_timeout",
                    command=command,
                )
            self._child.read()

    def _kill(self):
        self._stuck = [child for child in self._stuck if not child.reap()]
        child, self._child = self._child, None
        if child is None:
            return
        child.close()
        child.kill()
        if not child.reap(REAP_SECONDS):
            self._stuck.append(child)
