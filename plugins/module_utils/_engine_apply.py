# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changing one file of an engine as a transaction. Private to the collection.

In the end the engine has what is expected, or everything is as it was.

The order: what would end running containers is refused first; the engine's own parser judges a copy; the old bytes are kept; the change is
noted as pending; the file changes; the engine takes it over and is asked until it says so. Otherwise the old bytes, mode and owner go
back and the engine takes those over. A run that is cut leaves the note: the next one knows what the file was before.
"""

import base64
import os
import time

from ansible_collections.npu.fleet.plugins.module_utils import _files as files
from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import make_folder, sha256, snapshot, under

NOT_CHECKED = ("not checked", "as JSON only")
LAST_LINES = 5  # of the journal of an engine that did not come up again with its old files


def changed(found):
    """Return the error for a file that somebody else changed meanwhile."""
    return FleetError(
        "%s was changed by somebody else between reading and writing; their file was left as it is." % found.target,
        "file_changed",
        phase="write",
        object=found.target,
        observed=found.sha256,
        hint="Run again.",
    )


def wait(engine, expect, deadline):
    """Wait until the engine has what is expected; return its last facts and what is missing (None = all there).

    ``expect`` None: until it answers. ``deadline`` of the monotonic clock; the engine is asked once at least.
    """
    pause = 0.1
    while True:
        facts = engine.facts()
        if expect is not None:
            missing = engine.unmet(facts, expect)
        else:
            missing = None if facts["active"] else facts["error"] or "it does not answer"
        if missing is None or time.monotonic() + pause > deadline:
            return facts, missing
        # A unit that ended in "failed" will not answer later; do not wait for the deadline.
        if not facts["active"] and engine.failed():
            return facts, missing
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)


class Transaction(object):
    """One commit; it owns the order of its steps and the way back. ``path`` is the file to change, as the engine knows it."""

    def __init__(self, params, engine, record, path):
        self._params = params
        self._engine = engine
        self._record = record
        self._path = path
        self._facts = engine.facts()
        self._was_active = self._facts["active"]
        self._before = self._snapshot(path)
        self._old_note = record.note(params["name"])
        self._bridge = _bytes(params["bridge"])
        self._final = self._before.data
        if params["remove"]:
            self._final = None
        elif params["content"] is not None:
            self._final = _bytes(params["content"])
        self._expect = params["expect"]
        self._olds, self._ours = self._ways_back()
        self._backup, self._backup_is_new = None, False
        self._validation = None
        self._touched = False
        self._actions = []

    def _snapshot(self, path):
        return snapshot(under(self._engine.root, path))

    def _ways_back(self):
        """Return by path what each file was, and the digests of bytes that may be taken back: ours, those found, and of cut runs."""
        olds = {self._path: self._before}
        for path, entry in sorted(self._record.pending.items()):
            # Is the change of an earlier run in the file, and the engine has not taken it over yet?
            if self._engine.unmet(self._facts, entry["expect"]) is not None:
                olds[path] = self._record.undo(path, self._snapshot(path))
        ours = {path: {self._snapshot(path).sha256} for path in olds}
        ours[self._path].update(sha256(data) for data in (self._bridge, self._final) if data is not None)
        if self._params["remove"]:
            ours[self._path].add(None)
        return olds, ours

    def go(self):
        """Run the steps; return the module's result."""
        # An engine that is down has no runtime to forget; it is not started for a removal.
        idle = self._expect["state"] == "absent" and not self._was_active
        never = self._params["restart"] == "never" or idle
        # An engine that is down reads the final file at its start and needs no bridge.
        bridge = self._bridge if self._was_active and not never else None
        writes = self._final != self._before.data
        acts = not never and (writes or bridge is not None or self._engine.unmet(self._facts, self._expect) is not None)
        if acts:
            self._engine.require()
        kills = self._refuse_to_kill() if acts else []
        steps = [self._final] if writes or bridge is not None else []
        if bridge is not None:
            steps.insert(0, bridge)
        self._check(steps)
        if steps:
            make_folder(os.path.dirname(self._before.target), 0o755)
            self._backup, self._backup_is_new = self._record.backup(self._olds[self._path], self._path)
        facts, now = self._facts, self._before.sha256
        try:
            for data in steps:
                self._put(now, data)
                now = None if data is None else sha256(data)
                if acts:
                    facts = self._take_over()
            if acts and not steps:
                facts = self._take_over()
        except FleetError as error:
            raise self._way_back(error) from error
        missing = self._engine.unmet(facts, self._expect) if never and not idle else None
        return self._finish(facts, writes, missing, kills)

    def _finish(self, facts, writes, missing, kills):
        # With restart=never the change stays pending until some later run has seen the engine take it over.
        pending = self._record.pending if missing is not None else {}
        self._record.save(self._params["name"], self._params["note"] or {}, pending)
        if self._backup is not None and self._backup_is_new and not self._params["backup"] and not pending:
            os.unlink(self._backup)
            self._backup = None
        return {
            "changed": writes or bool(self._engine.done),
            "actions": self._actions + self._engine.done,
            "backup_file": self._backup,
            "validation": self._validation,
            "not_checked": self._not_checked(),
            "effective": {key: facts[key] for key in ("runtimes", "default_runtime", "handlers")},
            "reload_required": missing is not None,
            "killed": kills if "restart" in self._engine.done else [],
        }

    def _not_checked(self):
        parts = [self._validation] if self._validation and self._validation.startswith(NOT_CHECKED) else []
        if self._engine.done and self._engine.unseen:
            parts.append(self._engine.unseen)
        return "; ".join(parts) or None

    def _refuse_to_kill(self):
        # One that runs and does not answer may hold containers all the same.
        kills = self._engine.restart_kills(self._facts) if self._was_active or self._engine.running() else []
        if kills and self._params["disruption"] != "allow":
            shown = ", ".join(kills[:10]) + (" and %d more" % (len(kills) - 10) if len(kills) > 10 else "")
            raise FleetError(
                "%s takes over its configuration by a restart, which would end what runs on it: %s. Nothing was written."
                % (self._engine.label, shown),
                "would_kill",
                phase="check",
                object=self._engine.unit["name"],
                observed=", ".join(kills),
                hint="Drain the node first, or allow it with npu_runtime_disruption: allow (disruption: allow of this module); "
                "npu_runtime_engine_restart: never only writes the file.",
            )
        return kills

    def _check(self, steps):
        """Let the engine's parser judge what is to be written, before anything is."""
        if steps and not self._params["validate"]:
            self._validation = "not checked (validate=false)"
            return
        check = _bytes(self._params["check"])
        for data in steps:
            if data is not None or check is not None:
                self._validation = self._engine.validate(self._path, data, check)
        if steps and self._validation is None:
            self._validation = "not checked: a file that is removed has nothing to parse"

    def _put(self, expected, data):
        """Change the file; one that somebody else changed meanwhile, or an import of it, is left alone."""
        current = self._snapshot(self._path)
        if current.sha256 != expected:
            raise changed(current)
        for path, digest in (self._params["expected"] or {}).items():
            other = self._snapshot(path) if path != self._path else None
            if other is not None and other.sha256 != (digest or None):
                raise changed(other)

        def ready():
            # What a later removal must know is noted before the file changes; what is no longer needed is forgotten only at the end.
            old = self._olds[self._path]
            entry = {
                "sha256": None if data is None else sha256(data),
                "backup": self._backup,
                "mode": old.mode,
                "uid": old.uid,
                "gid": old.gid,
                "expect": self._expect,
            }
            pending = dict(self._record.pending, **{self._path: entry})
            self._record.save(self._params["name"], self._params["note"] or self._old_note, pending)
            self._touched = True

        why = files.write(current, data, ready, stage=self._engine.stage_folder(current.target))
        if why and not self._actions:
            self._actions.append("write in place: %s" % why)

    def _take_over(self):
        """Make the engine take over what is there now, within ``timeout``; return its facts. Raises ``engine_rejected``."""
        self._touched = True
        deadline = time.monotonic() + self._params["timeout"]
        trouble = self._engine.take_over()
        facts, missing = wait(self._engine, self._expect, deadline) if trouble is None else (None, trouble)
        if missing is not None:
            raise FleetError(
                "%s did not take over %s: %s." % (self._engine.label, self._before.target, mask_text(missing)),
                "engine_rejected",
                phase="reload",
                object=self._before.target,
                hint="`journalctl -u %s -n 50` on the node tells why." % self._engine.unit["name"],
            )
        return facts

    # --- the way back ---

    def _way_back(self, error):
        """Return the error to end with, after the old files are back and the engine runs again."""
        if not self._touched:
            return error
        # Before the revival, whose own lines would push those of the failure out.
        journal = self._engine.journal() if self._engine.done else ""
        restored, left, troubles = self._restore()
        after = []
        if restored == [self._path]:
            after.append("The file is as it was before, byte for byte;")
        elif restored:
            after.append("As before, byte for byte: %s;" % " and ".join(restored))
        if left and error.code == "engine_rejected":
            after.append("The file was left as it is.")
        after.extend(troubles)
        sentence, runs = self._revive(bool(restored))
        after.append(sentence)
        note = self._forget(left if troubles else [])
        after.extend([note] if note else [])
        journal = journal if runs else self._with_the_end(journal)
        text = " ".join([error.message] + [part for part in after if part])
        return FleetError(
            text + ("\nJournal of %s:\n%s" % (self._engine.label, journal) if journal else ""),
            error.code, phase=error.phase, object=error.object, observed=journal or error.observed, hint=error.hint,
        )

    def _with_the_end(self, journal):
        """Return the journal of the failure, and the last lines of an engine that did not come up again after it."""
        last = [line for line in self._engine.journal().splitlines() if line not in journal.splitlines()][-LAST_LINES:]
        if not last:
            return journal
        return "\n".join([journal, "After the way back:"] + last) if journal else "\n".join(last)

    def _restore(self):
        """Give each file its old bytes; return which were given back, which belong to somebody else by now, and what went wrong."""
        restored, left, troubles = [], [], []
        for path, old in sorted(self._olds.items()):
            try:
                current = self._snapshot(path)
                if current.data == old.data:
                    continue
                if current.sha256 not in self._ours[path]:
                    left.append(path)
                    continue
                files.write_back(old, current, old.data, self._engine.stage_folder(old.target))
                restored.append(path)
            except FleetError as trouble:
                where = " They are in %s." % self._backup if self._backup else ""
                troubles.append("THE OLD BYTES OF %s COULD NOT BE PUT BACK: %s%s" % (path, trouble.message, where))
        return restored, left, troubles

    def _revive(self, restored):
        """Bring the engine to the old files where it may have seen the new ones; return a sentence on how it is now, and whether it runs
        (True where that is not in question).
        """
        facts, trouble = self._engine.facts(), None
        if not self._engine.done:
            return "%s was not told." % self._engine.label if restored else "", True
        if facts["active"] and not restored:
            return "", True
        if restored or self._was_active:
            deadline = time.monotonic() + self._params["timeout"]
            trouble = self._engine.take_over()
            if trouble is None:
                facts, trouble = wait(self._engine, None, deadline)
            else:
                facts = self._engine.facts()
        if facts["active"]:
            return "%s answers." % self._engine.label, True
        text = "%s is DOWN (%s)." % (self._engine.label, mask_text(trouble or facts["error"] or "it does not answer"))
        return text if self._was_active else text + " It was down before this run, too.", False

    def _forget(self, keep):
        """Note that nothing is pending any more; a record that can not be written must not hide why we are here."""
        pending = {path: entry for path, entry in self._record.pending.items() if path in keep}
        try:
            self._record.save(self._params["name"], self._old_note, pending)
        except FleetError as trouble:
            return "The record could not be written: %s" % trouble.message
        return None


def _bytes(text):
    return None if text is None else base64.b64decode(text.encode("ascii"))
