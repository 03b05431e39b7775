# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our own memory on a node: one lock, a journal of steps, and a record of what we installed. Private to the collection.

Everything is on disk (fsync) before the step that it tells about begins or after it has ended. It is a memory, not a proof: what is
installed is read from the vendor's files, and losing all of this costs no more than a reboot too many.
"""

import calendar
import contextlib
import fcntl
import json
import os
import time

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same

STATE_DIR = "/var/lib/npu-fleet"
POLL_SECONDS = 0.5
_JOURNAL = "journal.jsonl"
_RECORD = "installed.json"
_JOURNAL_LIMIT = 1 << 20


class HostLock(object):
    """One package at a time on a host; the packages have no lock that holds (driver package, measured).

    A module whose controller or connection is gone goes on and holds the lock, so the next run waits for it up to ``seconds``.
    The lock is the kernel's: it ends with its process. What stands in the file only says who that is.
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
            os.pwrite(self._descriptor, json.dumps(owner(self._what), sort_keys=True).encode("utf-8"), 0)
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
        holder = owner_words(os.pread(self._descriptor, 1000, 0).decode("utf-8", "replace"))
        waited = ", also after %g s" % self._seconds if self._seconds else ""
        message = "Another run is at work on this host%s: %s." % (waited, holder or "it does not say what")
        hint = "Wait for its end, then run again."
        return FleetError(message, "busy", "lock", object=self._path, observed=holder, hint=hint)

    def __exit__(self, *unused):
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def owner(what):
    """Return who works on ``what`` from now on, for a lock that names its holder."""
    return {"component": what, "pid": os.getpid(), "boot_id": boot_id(), "started": _now()}


def owner_words(text):
    """Return a holder's entry in words; empty for one that is not there or not whole."""
    try:
        return owner_words_of(json.loads(text))
    except ValueError:
        return ""


def owner_words_of(entry):
    """The same for an entry that was read already."""
    try:
        return "%(component)s, process %(pid)s, since %(started)s" % entry
    except (KeyError, TypeError):
        return ""


def boot_id():
    """Return the id of this boot, or None."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip() or None
    except OSError:
        return None


# --- journal --------------------------------------------------------------------------------------------------------

def note(state_dir, event, **fields):
    """Append one line to the journal; ``fields`` are plain values without secrets."""
    os.makedirs(state_dir, 0o700, exist_ok=True)
    path = os.path.join(state_dir, _JOURNAL)
    line = json.dumps(dict(fields, event=event, time=_now(), boot_id=boot_id()), sort_keys=True) + "\n"
    _keep_short(path)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            # The last writer was cut in the middle of its line.
            line = "\n" + line
        os.write(descriptor, line.encode("utf-8"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if not size:
        sync_folder(state_dir)


def _keep_short(path):
    try:
        if os.stat(path).st_size > _JOURNAL_LIMIT:
            os.rename(path, path + ".1")
    except OSError:
        pass


def entries(state_dir):
    """Return the lines of the journal that are whole, oldest first."""
    found = []
    for name in (_JOURNAL + ".1", _JOURNAL):
        try:
            with open(os.path.join(state_dir, name), "rb") as stream:
                lines = stream.read().splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                entry = json.loads(line.decode("utf-8", "replace"))
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
    return found


def last_launch(state_dir, component, version):
    """Return the newest journal line of a package of this component that was started, if it was of this version, or None."""
    for entry in reversed(entries(state_dir)):
        if entry.get("event") == "launched" and entry.get("component") == component:
            return entry if same(entry.get("version"), version) else None
    return None


def unfinished(state_dir, component):
    """Return the journal line of the package of this component that we started last, and since when it is known to have ended.

    None where nothing of it can be left: it was recorded, or seen to have left nothing. The time is seconds since the epoch, or None.
    """
    ended = None
    for entry in reversed(entries(state_dir)):
        event = entry.get("event") if entry.get("component") == component else None
        if event == "recorded" or (event == "observed" and entry.get("state") == "absent"):
            return None
        if event == "launched":
            return entry, ended
        if event == "ended":
            ended = _seconds(entry.get("time"))
    return None


def _seconds(text):
    try:
        return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
    except (TypeError, ValueError):
        return None


def boot_of(state_dir, component, version):
    """Return the id of the boot in which we wrote this version, or None when we did not, or can not tell."""
    # A run that was cut has launched a package and recorded nothing.
    launched = last_launch(state_dir, component, version)
    recorded = installed(state_dir).get(component) or {}
    return (launched or (recorded if same(recorded.get("version"), version) else {})).get("boot_id")


# --- record ---------------------------------------------------------------------------------------------------------

def installed(state_dir):
    """Return what we installed, by component; an unreadable record is none."""
    return read_json(os.path.join(state_dir, _RECORD))


def remember(state_dir, component, entry):
    """Record what we installed of ``component`` (None: it was removed)."""

    def change(record):
        record.pop(component, None)
        if entry is not None:
            record[component] = dict(entry, time=entry.get("time") or _now(), boot_id=entry.get("boot_id") or boot_id())

    update_json(os.path.join(state_dir, _RECORD), change)


def adopt(state_dir, component, version, check_mode=False):
    """Record a version that is there when a run was cut between its package and its record; return whether that was so."""
    known = installed(state_dir).get(component) or {}
    launched = last_launch(state_dir, component, version)
    if not launched or (same(known.get("version"), version) and known.get("time", "") >= launched.get("time", "")):
        return False
    if not check_mode:
        remember(state_dir, component, {key: launched.get(key) for key in ("version", "file", "sha256", "boot_id", "time")})
        note(state_dir, "recorded", component=component, adopted=True)
    return True


def read_json(path):
    """Return the object in a file of ours; what is not there or not whole is empty."""
    try:
        with open(path) as stream:
            value = json.load(stream)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def update_json(path, change):
    """Let ``change`` alter the object in a file of ours, and replace the file in one step; return whether it differs now."""
    folder = os.path.dirname(path)
    os.makedirs(folder, 0o700, exist_ok=True)
    with _locked(os.path.join(folder, "record.lock")):
        before = read_json(path)
        value = json.loads(json.dumps(before))
        change(value)
        if value == before:
            return False
        write_whole(path, json.dumps(value, indent=1, sort_keys=True))
    return True


def write_whole(path, text):
    """Replace a file of ours so that a crash leaves the old one or the new one."""
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(path + ".new", path)
    sync_folder(os.path.dirname(path))


@contextlib.contextmanager
def _locked(path):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync_folder(path):
    """Bring the names in a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
