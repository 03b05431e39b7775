# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our own memory on a node: one lock, a journal of steps, and a record of what we installed. Private to the collection.

Everything is on disk (fsync) before the step that it tells about begins or after it has ended.
"""

import fcntl
import json
import os
import time

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

STATE_DIR = "/var/lib/npu-fleet"
POLL_SECONDS = 0.5


class HostLock(object):
    """One package at a time on a host; the packages have no lock that holds (driver package, measured).

    A module whose controller or connection is gone goes on and holds the lock, so the next run waits for it up to ``seconds``.
    """

    def __init__(self, state_dir, what, seconds=0):
        self._path = os.path.join(state_dir, "packages.lock")
        self._what = what
        self._seconds = seconds
        self._descriptor = -1

    def __enter__(self):
        os.makedirs(os.path.dirname(self._path), 0o700, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._wait()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, ("%s, process %d" % (self._what, os.getpid())).encode("utf-8"), 0)
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def _wait(self):
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise self._busy() from error
            time.sleep(POLL_SECONDS)

    def _busy(self):
        holder = os.pread(self._descriptor, 1000, 0).decode("utf-8", "replace").strip()
        waited = ", also after %g s" % self._seconds if self._seconds else ""
        message = "Another run is at work on this host%s: %s." % (waited, holder or "it does not say what")
        hint = "Wait for its end, then run again."
        return FleetError(message, "busy", "lock", object=self._path, observed=holder, hint=hint)

    def __exit__(self, *unused):
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def note(state_dir, event, **fields):
    """Append one line to the journal; ``fields`` are plain values without secrets."""
    os.makedirs(state_dir, 0o700, exist_ok=True)
    line = json.dumps(dict(fields, event=event, time=_now()), sort_keys=True) + "\n"
    descriptor = os.open(os.path.join(state_dir, "journal.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode("utf-8"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def installed(state_dir):
    """Return what we installed, by component; an unreadable record is none."""
    try:
        with open(_record_path(state_dir)) as stream:
            record = json.load(stream)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def remember(state_dir, component, entry):
    """Record what we installed of ``component`` (None: it was removed)."""
    record = installed(state_dir)
    if entry is None:
        record.pop(component, None)
    else:
        record[component] = dict(entry, time=_now())
    path = _record_path(state_dir)
    with open(path + ".new", "w") as stream:
        json.dump(record, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(path + ".new", path)
    _sync_folder(state_dir)


def _record_path(state_dir):
    return os.path.join(state_dir, "installed.json")


def _sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
