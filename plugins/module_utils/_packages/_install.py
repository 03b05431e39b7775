# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One package, from observe to observe: decide, prepare, run, judge. Private to the collection."""

import os
import re
import time
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.module_utils import _detached
from ansible_collections.npu.fleet.plugins.module_utils._command import strip_escapes
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import (
    _cann_rules,
    _fetch,
    _good,
    _journal,
    _kept,
    _progress,
    _remove,
    _runfile,
    _verdict,
)
from ansible_collections.npu.fleet.plugins.module_utils._packages._call import Call, WorkFolder, check_path
from ansible_collections.npu.fleet.plugins.module_utils._packages._cann_apply import Cann
from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import KNOWN, decide
from ansible_collections.npu.fleet.plugins.module_utils._packages._units import unit_name

Wish = namedtuple(
    "Wish",
    "component version family src mirrors sha256 state allow_downgrade install_path install_for_all username usergroup accept_licence"
    " timeout poll reason keep remote_src staged attach",
)
Places = namedtuple("Places", "cache_dir state_dir log_dir run_dir root")
Places.__new__.__defaults__ = ("/",)

# Flashing must not be broken off: its deadline ends our waiting only.
_NEVER_KILLED = ("firmware",)
_LOG_LINES = 40
_SETTLE_SECONDS = 5
_LOG_TAIL = 256 * 1024


class Installer(object):
    """Brings one component into the wanted state. ``observe()`` returns what ``decide`` takes, fresh on each call."""

    def __init__(self, wish, observe, places):
        self._wish = wish
        self._observe = observe
        self._places = places
        self._call = Call(wish, places.cache_dir)
        self._cann = Cann(wish, places)
        self._remover = _remove.Remover(wish, places, self._call.engine_file, self._provide_for_removal)
        self._unit = unit_name(wish.component)
        self._since = None
        self.result: dict = {
            "changed": False, "running": False, "attached": False, "file_needed": False, "log": None, "progress": [], "created": [],
            "warnings": [],
        }

    def ensure(self, check_mode):
        """Return the result as npu_package documents it; raises FleetError."""
        if check_mode:
            return self._predict()
        if os.geteuid() != 0:
            hint = "Set become: true in the play, run with -b, or set ansible_become: true."
            raise FleetError("Packages need root.", "not_root", "prepare", observed=os.geteuid(), hint=hint)
        with _journal.HostLock(self._places.state_dir, self._wish.component, self._patience()):
            self._leave_others_alone()
            vendor = self._follow()
            if vendor is not None and (vendor.state == "running" or vendor.log == self._wish.attach):
                return self._judge(vendor)
            observed = self._look()
            step = self.result["step"]
            if step["action"] != "none":
                return self._apply(step, observed)
            self._put_back()
            self._adopt()
            if self._wish.state == "present":
                self._doubt(observed["components"][self._wish.component], observed)
            return self._finish(observed)

    def _patience(self):
        return min(self._wish.timeout, self._wish.poll or self._wish.timeout)

    def _look(self):
        """Observe and decide; what was before the first look of this run stays ``before``."""
        observed = self._observe()
        self.result.setdefault("before", self._brief(observed))
        self.result["step"] = self._step(observed)
        return observed

    def _leave_others_alone(self):
        for component in KNOWN:
            unit = unit_name(component)
            if component != self._wish.component and _detached.vendor_running(unit, self._places.run_dir):
                owner = _journal.owner_words_of(_detached.vendor_note(unit, self._places.run_dir).get("owner"))
                message = "The package of %s still runs on this host%s." % (component, " (%s)" % owner if owner else "")
                hint = "Wait for its end (`systemctl status %s` on the node), then run again." % unit
                raise FleetError(message, "busy", "lock", object=unit, observed=owner, hint=hint)

    def _follow(self):
        """Wait for a run that lost its caller, or that the caller comes back to. Whatever came of it is seen on the node."""
        note = _detached.vendor_note(self._unit, self._places.run_dir)
        ours = bool(self._wish.attach) and note.get("log") == self._wish.attach
        if not ours and not _detached.vendor_running(self._unit, self._places.run_dir):
            return None
        now = self._brief(self._observe())
        vendor = _detached.follow_vendor(
            self._unit, self._log_path(), self._wish.timeout, kill_at_deadline=not self._never_killed(), state_dir=self._places.run_dir,
            poll=self._wish.poll,
        )
        if vendor is not None:
            self._since = note.get("since")
            step = {"component": self._wish.component, "action": "attach", "from": now["version"], "to": self._wish.version}
            step.update(reboot=False, reason="An earlier run is still at work.", code=None)
            self.result.update(before=now, step=step, attached=True)
            self._record(vendor)
            if vendor.state != "running":
                WorkFolder(self._places.cache_dir).remove()
                self._journal("ended", rc=vendor.rc, run=vendor.state, attached=True)
        return vendor

    # --- decide -----------------------------------------------------------------------------------------------------

    def _step(self, observed):
        wish = self._wish
        now = observed["components"][wish.component]
        if wish.state == "absent":
            return _remove.step(wish.component, now, wish.version)
        file_name = self._file_name()
        if wish.family and observed["family"] and wish.family != observed["family"]:
            message = "Family %s was given, the chips of this host are %s." % (wish.family, observed["family"])
            hint = "Set family to %s, and src to the package that was built for it." % observed["family"]
            raise FleetError(message, "wrong_family", "decide", object=wish.src, observed=observed["family"], hint=hint)
        wanted = {wish.component: {"version": wish.version, "file": file_name, "sha256": wish.sha256}}
        step = decide(observed, wanted, allow_downgrade=wish.allow_downgrade)[0]
        if step["action"] == "refuse":
            raise FleetError(step["reason"], step["code"], "decide", object=file_name or wish.component, observed=now["version"])
        return step

    def _predict(self):
        observed = self._look()
        step, after = self.result["step"], dict(self.result["before"])
        self.result["running"] = _detached.vendor_running(self._unit, self._places.run_dir)
        if step["action"] == "remove":
            if not self._remover.possible(observed):
                raise _remove.no_way(self._wish.component, after["path"])
            after.update(state="absent", version=None, path=None, reason=None)
        elif step["action"] != "none":
            if self._wish.src and self._wish.remote_src and not _fetch.is_url(self._wish.src) and not self._in_cache():
                _runfile.check_file(self._wish.src, self._file_name())
            after.update(state="reboot_pending" if step["reboot"] else "present", version=step["to"], reason=None)
        self.result.update(changed=step["action"] != "none", after=after, reboot_required=after["state"] == "reboot_pending")
        return self.result

    # --- apply ------------------------------------------------------------------------------------------------------

    def _apply(self, step, observed):
        if step["action"] == _cann_rules.SWITCH:
            return self._switch()
        if step["action"] == "remove":
            self._journal("start", action="remove", before=step["from"])
            return self._remove(observed)
        self._call.check(step, observed)
        if self._lacks_file():
            self.result["file_needed"] = True
            return self._finish(observed)
        wish = self._wish
        wanted = {"version": step["to"], "file": self._file_name(), "sha256": wish.sha256 and wish.sha256.lower()}
        self._journal("start", action=step["action"], before=step["from"], reason=wish.reason, **wanted)
        try:
            with WorkFolder(self._places.cache_dir) as work:
                command, answer = self._call.installation(step, observed, self._provide())
                created, warnings = self._call.create_user(observed)
                self.result["created"] += created
                self.result["warnings"] += warnings
                if wish.reason is not None:
                    _good.note_reason(self._places.state_dir, wish.reason or None)
                log = self._log_path()
                self._cann.before(wanted)
                if wish.component == "driver":
                    _kept.save(self._places.root, self._places.state_dir)
                # Removal takes only those users away that are known to be made here.
                self._journal("launched", action=step["action"], log=log, created=created, **wanted)
                vendor = self._run(command, answer, work.path, log)
                work.keep = vendor.state == "running"
                self._journal("waiting" if work.keep else "ended", rc=vendor.rc, run=vendor.state)
        except FleetError as error:
            self._journal("failed", code=error.code)
            raise
        self._record(vendor)
        return self._judge(vendor)

    def _switch(self):
        """Have a version of CANN in force that is there: links and environment, no package."""
        self.result["changed"] = self._cann.bring_into_force()
        observed = self._observe()
        self._journal("switch", version=self._wish.version)
        _journal.remember(self._places.state_dir, self._wish.component, self._cann.entry())
        self._finish(observed)
        self._cann.refuse_unfit(observed)
        return self.result

    def _remove(self, observed):
        """Try the next way to take it away; without one it stays, and that is an error."""
        way = self._remover.next(observed)
        if way is None:
            raise _remove.no_way(self._wish.component, observed["components"][self._wish.component]["path"])
        name, path, command = way
        if name == _remove.FOLDER:
            self._journal("launched", action="remove", way=name, path=path)
            self._cann.remove_folder(path)
            self.result["changed"] = True
            return self._removed(self._observe(), None)
        if command is None:
            self.result["file_needed"] = True
            return self._finish(observed)
        with WorkFolder(self._places.cache_dir) as work:
            log = self._log_path()
            self._journal("launched", action="remove", way=name, path=path, log=log)
            vendor = self._run(command, None, work.path, log)
            work.keep = vendor.state == "running"
            self._journal("waiting" if work.keep else "ended", rc=vendor.rc, run=vendor.state)
        self._record(vendor)
        return self._judge(vendor)

    def _removed(self, observed, vendor):
        """Judge a removal by what is left; what one way has left, the next one is tried on."""
        left = self._remover.left(observed)
        if left:
            self._journal("observed", good=False, left=[path for _version, path in left])
            if self._remover.next(observed):
                return self._remove(observed)
        self._cann.after_removal()
        observed = self._observe()
        self._finish(observed)
        after = observed["components"][self._wish.component]
        if left:
            self._fail(vendor, after)
        self._journal("observed", good=True, state=after["state"], version=after["version"])
        self._remember()
        return self.result

    def _put_back(self):
        if self._wish.component == "driver":
            for path in _kept.restore(self._places.root, self._places.state_dir):
                self._journal("put_back", path=path)
                self.result["warnings"].append("The package changed %s. What stood in it before was put back." % path)

    def _fail(self, vendor, after):
        version = None if self._wish.state == "absent" else self._wish.version
        log, cache = _tail(vendor.log), self._places.cache_dir
        seconds = int(time.monotonic() - self._since) if self._since else self._wish.timeout
        raise _verdict.failure(self._wish.component, version, vendor, after, log, seconds=seconds, cache_dir=cache)

    def _provide_for_removal(self):
        return None if self._lacks_file() else self._provide()

    def _lacks_file(self):
        wish = self._wish
        return not wish.remote_src and not wish.staged and not self._cached()

    def _cached(self):
        return _fetch.ready(self._wish.sha256, self._file_name(), self._places.cache_dir) if self._wish.sha256 else None

    def _in_cache(self):
        """The same without a look into the file, for check mode."""
        return bool(self._wish.sha256) and os.path.exists(_fetch.cached(self._wish.sha256, self._file_name(), self._places.cache_dir))

    def _file_name(self):
        return _fetch.file_name(self._wish.src) if self._wish.src else None

    def _provide(self):
        wish, cache = self._wish, self._places.cache_dir
        if wish.staged:
            source = _fetch.accept(wish.staged, wish.src, wish.sha256, cache, self._journal)
        elif wish.remote_src:
            source = _fetch.provide(wish.src, wish.sha256, cache, wish.timeout, mirrors=wish.mirrors or (), note=self._journal)
        else:
            source = self._cached()
        check_path(source)
        return source

    def _log_path(self):
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        return os.path.join(self._places.log_dir, "%s-%s.log" % (self._wish.component, stamp))

    def _never_killed(self):
        return self._wish.component in _NEVER_KILLED

    def _run(self, command, answer, folder, log):
        return _detached.run_vendor(
            command,
            self._unit,
            log,
            self._wish.timeout,
            env=dict(self._cann.package_environment(), TMPDIR=folder),
            cwd=folder,
            stdin=answer,
            kill_at_deadline=not self._never_killed(),
            inhibit="NPU firmware is being written" if self._never_killed() else None,
            state_dir=self._places.run_dir,
            poll=self._wish.poll,
            owner=_journal.owner(self._wish.component),
        )

    # --- judge ------------------------------------------------------------------------------------------------------

    def _judge(self, vendor):
        if self.result["running"]:
            return self._finish(self._observe())
        if self._wish.state == "absent":
            return self._removed(self._observe(), vendor)
        self._cann.bring_into_force()
        self._put_back()
        observed = self._settled(vendor)
        after = observed["components"][self._wish.component]
        self._finish(observed)
        good = _verdict.reached(self._wish.component, self._wish.version, after)
        if good and self.result["before"]["state"] == "mismatched" and vendor.rc not in _verdict.GOOD_CODES:
            # The right version was on disk before: that it still is proves nothing.
            good = False
        self._journal("observed", good=good, rc=vendor.rc, state=after["state"], version=after["version"])
        if good:
            self._cann.refuse_unfit(observed)
        if not good and self.result["step"]["action"] == "repair" and self._cann.remove_broken(self.result["warnings"]):
            return self._apply(dict(self.result["step"], action="install"), observed)
        if not good:
            self._fail(vendor, after)
        self._remember()
        return self.result

    def _remember(self):
        wish, state_dir = self._wish, self._places.state_dir
        removed = wish.state == "absent"
        entry = {"version": wish.version, "file": self._file_name(), "sha256": wish.sha256 and wish.sha256.lower()}
        _journal.remember(state_dir, wish.component, None if removed else entry)
        self._journal("recorded")
        kept = _good.kept(state_dir)
        if kept is not None and not removed:
            _fetch.prune(self._places.cache_dir, kept.union(wish.keep or (), [wish.sha256]))

    def _adopt(self):
        """Record what a run that was cut right before that has installed."""
        wish, state_dir = self._wish, self._places.state_dir
        if wish.state == "absent":
            if wish.component in _journal.installed(state_dir):
                _journal.remember(state_dir, wish.component, None)
            if _journal.unfinished(state_dir, wish.component):
                self._journal("recorded", adopted=True)
            return
        _journal.adopt(state_dir, wish.component, wish.version)

    def _record(self, vendor):
        """Put what is known of a run into the result."""
        log = _tail(vendor.log)
        self.result.update(changed=True, running=vendor.state == "running", progress=_progress.parse(log))
        self.result["log"] = {"path": vendor.log, "lines": [line for line in log.splitlines() if line.strip()][-_LOG_LINES:]}

    def _journal(self, event, **fields):
        _journal.note(self._places.state_dir, event, component=self._wish.component, **fields)

    def _settled(self, vendor):
        """Observe; after a driver that says it is live, give it a moment to come up."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            observed = self._observe()
            after = observed["components"][self._wish.component]
            waits = self._wish.component == "driver" and vendor.rc == 0 and (after["state"] == "reboot_pending" or _silent(after))
            if not waits or time.monotonic() >= deadline:
                return observed
            time.sleep(0.5)

    def _finish(self, observed):
        after = observed["components"][self._wish.component]
        written = self._wish.component == "firmware" and self.result["changed"] and not observed.get("firmware_known")
        # Firmware that was just written and that no chip tells of is not running yet, nor is a fresh driver that does not answer.
        if self._wish.component == "firmware" and after["state"] == "present" and not observed.get("firmware_known"):
            written = written or _journal.boot_of(self._places.state_dir, "firmware", after["version"]) == (_journal.boot_id() or "")
        written = written or (self._wish.component == "driver" and self.result["changed"] and _silent(after))
        # Never ask for a reboot in the middle of it.
        reboot = (after["state"] == "reboot_pending" or written) and not self.result["running"]
        self.result.update(after=self._brief(observed), reboot_required=reboot)
        return self.result

    def _doubt(self, now, observed):
        """Do not call right what is only right on disk."""
        if self._wish.component == "driver" and now["state"] == "present" and _silent(now):
            message = "Driver %s is complete on disk, but does not answer." % now["version"]
            hint = "`npu-smi info` and `dmesg | grep -i -e davinci -e devdrv` on the node tell more; going back may help."
            raise FleetError(message, "driver_silent", "observe", object="driver", observed=now["running"], hint=hint)
        if self._wish.component == "firmware" and observed.get("family") and not observed.get("firmware_known"):
            self.result["warnings"].append("Firmware %s is written; no chip tells which one it runs." % now["version"])

    def _brief(self, observed):
        now = observed["components"][self._wish.component]
        return {key: now[key] for key in ("state", "version", "running", "path", "reason")}


def _silent(now):
    return (now.get("record") or {}).get("answers") is False


def _tail(path):
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LOG_TAIL))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    # Progress is drawn with backspaces.
    return re.sub(r"\x08+", "\n", strip_escapes(text))
