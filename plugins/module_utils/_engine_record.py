# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this collection remembers about an engine on its node: the former default, and a change under way. Private to the collection.

``engines/NAME.json`` in the state folder holds ``schema``, ``runtimes`` (a note by name) and ``pending``: by path of a file, ``sha256``
(of the new bytes; null: removed), ``backup`` (path of the old bytes; null: there was no file), ``mode``, ``uid``, ``gid``, ``expect``.
A file stands there from the moment before it is changed to the moment the engine has taken it over, so a run that was cut can be undone
by the next one.
"""

import json
import os
import time

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import digest_of, make_folder, sha256, under, write_private

STATE_FOLDER = "/var/lib/npu-fleet"
SCHEMA = 2


class Record(object):
    """The record of one engine: ``runtimes`` and ``pending`` as they stand on disk, changed by ``save``. ``main`` is its main file."""

    def __init__(self, engine, root="/", folder=STATE_FOLDER, main=None):
        self.folder = under(root, folder)
        self.path = os.path.join(self.folder, "engines", engine + ".json")
        self.runtimes = {}
        self.pending = {}
        self._load(main)

    def _load(self, main):
        try:
            with open(self.path, encoding="utf-8") as stream:
                data = json.load(stream)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise self._broken(str(error)) from error
        if not isinstance(data, dict) or data.get("schema") not in (1, SCHEMA) or not isinstance(data.get("runtimes"), dict):
            raise self._broken("it is not of schema %d" % SCHEMA)
        self.runtimes = data["runtimes"]
        self.pending = data.get("pending") or {}
        if data["schema"] == 1 and self.pending:  # it knew one file, the main one
            self.pending = {main: self.pending}

    def _broken(self, reason):
        return FleetError(
            "The record %s can not be read: %s." % (self.path, reason),
            "record_invalid",
            phase="read",
            object=self.path,
            hint="Move it away; the former default runtime of the engine is then no longer known.",
        )

    def note(self, name):
        """Return what is noted for a runtime."""
        note = self.runtimes.get(name)
        return note if isinstance(note, dict) else {}

    def save(self, name, note, pending):
        """Write the note of one runtime ({} forgets it) and the pending changes, where that is another text than before."""
        runtimes = {key: value for key, value in self.runtimes.items() if key != name}
        if note:
            runtimes[name] = note
        if runtimes == self.runtimes and pending == self.pending:
            return
        self.runtimes, self.pending = runtimes, pending
        make_folder(self.folder, 0o755)
        data = {"schema": SCHEMA, "runtimes": runtimes, "pending": pending}
        write_private(self.path, (json.dumps(data, indent=2, sort_keys=True) + "\n").encode("utf-8"))

    def backup(self, before, name):
        """Keep a copy of a file, 0600 in a 0700 folder; return its path and whether it is new. Equal copies are kept once.

        ``name``: the file's path as the engine knows it, so that each file of each engine has copies of its own.
        """
        if before.data is None:
            return None, False
        make_folder(self.folder, 0o755)
        folder = os.path.join(self.folder, "backups")
        make_folder(folder, 0o700)
        mark = before.sha256[:12]
        base = name.strip("/").replace("/", "-")
        for found in sorted(os.listdir(folder)):
            path = os.path.join(folder, found)
            if found.startswith(base + ".") and found.endswith("." + mark) and digest_of(path) == before.sha256:
                return path, False
        path = os.path.join(folder, "%s.%s.%s" % (base, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), mark))
        write_private(path, before.data)
        return path, True

    def undo(self, path, before):
        """Return ``before``, a snapshot of ``path``, as it was before the pending change; itself where its bytes are not that change's."""
        entry = self.pending.get(path)
        if not entry or entry.get("sha256") != before.sha256:
            return before
        backup = entry.get("backup")
        if backup is None:
            return before._replace(data=None, sha256=None)
        try:
            with open(backup, "rb") as stream:
                data = stream.read()
        except OSError:
            return before
        old = before._replace(data=data, sha256=sha256(data))
        if before.data is None:
            looks = {key: entry.get(key) for key in ("mode", "uid", "gid")}
            old = old._replace(**looks) if None not in looks.values() else old._replace(mode=0o600, uid=os.geteuid(), gid=os.getegid())
        return old
