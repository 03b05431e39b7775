# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One package, from observe to observe: decide, prepare, run, judge. Private to the collection."""

import os
import re
import shutil
import tempfile
import time
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.module_utils import _detached
from ansible_collections.npu.fleet.plugins.module_utils._command import run, strip_escapes
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _fetch, _journal, _names, _options, _runfile, _users, _verdict
from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import KNOWN, decide
from ansible_collections.npu.fleet.plugins.module_utils._packages._units import unit_name

Wish = namedtuple(
    "Wish",
    "component version family src sha256 state allow_downgrade install_path install_for_all username usergroup accept_licence timeout",
)
Places = namedtuple("Places", "cache_dir state_dir log_dir run_dir")

# The header of a package splits its own path at blanks (driver package, measured); nothing else is needed either.
_SAFE_PATH = re.compile(r"/[A-Za-z0-9._/+@,=:-]*\Z")
# Flashing must not be broken off: its deadline ends our waiting only.
_NEVER_KILLED = ("firmware",)
_NEEDS_USER = ("driver", "firmware")
_ST_NOEXEC = 8
_LOG_LINES = 40
_LOG_TAIL = 256 * 1024


class Installer(object):
    """Brings one component into the wanted state. ``observe()`` returns what ``decide`` takes, fresh on each call."""

    def __init__(self, wish, observe, places):
        self._wish = wish
        self._observe = observe
        self._places = places
        self._unit = unit_name(wish.component)
        self.result: dict = {"changed": False, "running": False, "attached": False, "log": None, "created": [], "warnings": []}

    def ensure(self, check_mode):
        """Return the result as npu_package documents it; raises FleetError."""
        if check_mode:
            return self._predict()
        if os.geteuid() != 0:
            hint = "Set become: true in the play, run with -b, or set ansible_become: true."
            raise FleetError("Packages need root.", "not_root", "prepare", observed=os.geteuid(), hint=hint)
        with _journal.HostLock(self._places.state_dir, self._wish.component, self._wish.timeout):
            self._take_up()
            if self.result["running"]:
                return self._finish(self._observe())
            observed = self._look()
            step = self.result["step"]
            if step["action"] != "none":
                return self._apply(step, observed)
            if self.result["attached"]:
                self._remember(None)
            return self._finish(observed)

    def _look(self):
        """Observe and decide; what was before the first look of this run stays ``before``."""
        observed = self._observe()
        self.result.setdefault("before", self._brief(observed))
        self.result["step"] = self._step(observed)
        return observed

    def _take_up(self):
        """Wait for a run that lost its caller. Whatever came of it is seen by the look that follows."""
        for component in KNOWN:
            if not _detached.vendor_running(unit_name(component), self._places.run_dir):
                continue
            if component != self._wish.component:
                message = "The package of %s still runs on this host." % component
                hint = "Wait for its end (`systemctl status %s` on the node), then run again." % unit_name(component)
                raise FleetError(message, "busy", "lock", object=unit_name(component), hint=hint)
            now = self._brief(self._observe())
            step = {"component": component, "action": "attach", "from": now["version"], "to": self._wish.version, "reboot": False}
            self.result.update(before=now, step=dict(step, reason="An earlier run is still at work.", code=None))
            vendor = self._run(["true"], None, "/")
            self.result["attached"] = True
            self._record(vendor)
            self._journal("attach", rc=vendor.rc, run=vendor.state)

    # --- decide -----------------------------------------------------------------------------------------------------

    def _step(self, observed):
        wish = self._wish
        now = observed["components"][wish.component]
        if wish.state == "absent":
            return _removal(wish.component, now)
        file_name = _fetch.file_name(wish.src) if wish.src else None
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
        self._look()
        step, after = self.result["step"], dict(self.result["before"])
        self.result["running"] = _detached.vendor_running(self._unit, self._places.run_dir)
        if step["action"] == "remove":
            after.update(state="absent", version=None, path=None, reason=None)
        elif step["action"] != "none":
            if self._wish.src and not _fetch.is_url(self._wish.src):
                _runfile.check_file(self._wish.src, _fetch.file_name(self._wish.src))
            after.update(state="reboot_pending" if step["reboot"] else "present", version=step["to"], reason=None)
        self.result.update(changed=step["action"] != "none", after=after, reboot_required=after["state"] == "reboot_pending")
        return self.result

    # --- apply ------------------------------------------------------------------------------------------------------

    def _apply(self, step, observed):
        with _WorkFolder(self._places.cache_dir) as work:
            if step["action"] == "remove":
                command, answer, file_name = self._removal(observed)
            else:
                command, answer, file_name = self._installation(step, observed)
                if self._wish.component in _NEEDS_USER:
                    self._create_user(observed)
            self._journal("start", action=step["action"], before=step["from"], version=step["to"], file=file_name, sha256=self._wish.sha256)
            vendor = self._run(command, answer, work.path)
            work.keep = vendor.state == "running"
        return self._judge(vendor, file_name)

    def _provide(self):
        source, _downloaded = _fetch.provide(self._wish.src, self._wish.sha256, self._places.cache_dir, self._wish.timeout)
        if not _SAFE_PATH.match(source):
            message = "The package can not run from %s: the path has characters that it does not take." % source
            raise FleetError(message, "path_refused", "prepare", object=source, hint="Use a path of letters, digits and . _ - / only.")
        return source

    def _installation(self, step, observed):
        wish = self._wish
        if _options.needs_licence(wish.component, wish.version) and not wish.accept_licence:
            message = "Installing %s %s accepts its licence, and nobody has agreed to that." % (wish.component, wish.version)
            hint = "Read it, then set npu_fleet_accept_licence: true (accept_licence of this module)."
            raise FleetError(message, "licence_not_accepted", "prepare", object=wish.component, hint=hint)
        source = self._provide()
        record = observed["components"][wish.component]["record"]
        username, usergroup = self._user(observed)
        if wish.component == "driver" and step["action"] == "repair" and (record.get("username") or username) != username:
            message = "The record of the installed driver has the user %s, wanted is %s." % (record["username"], username)
            hint = "Remove the driver first, or set npu_driver_username to the recorded one (username of this module)."
            raise FleetError(message, "user_differs", "prepare", object="/etc/ascend_install.info", observed=record["username"], hint=hint)
        details = {
            "version": wish.version, "install_path": wish.install_path, "install_for_all": wish.install_for_all, "username": username,
            "usergroup": usergroup, "soc": _names.parse(os.path.basename(source))["soc"], "engine_file": self._engine_file(),
        }
        words, answer = _options.install_command(wish.component, step["action"], details, record, self._help_words(source))
        return _start_words(source) + words, answer, os.path.basename(source)

    def _removal(self, observed):
        now = observed["components"][self._wish.component]
        command = _options.remove_command(self._wish.component, now, self._engine_file(), os.path.isfile)
        if command is None and self._wish.src:
            # Works from every half-done state, but takes no --quiet (driver package, measured).
            command = _start_words(self._provide()) + ["--uninstall"]
        if command is None:
            message = "%s has no uninstall script at %s." % (self._wish.component, now["path"])
            raise FleetError(message, "uninstaller_missing", "prepare", object=now["path"], hint="Give src and sha256 of its package.")
        return command, None, None

    def _help_words(self, source):
        result = run(_start_words(source) + ["--help"], 60)
        return None if result.timed_out else _options.help_words(result.stdout + result.stderr)

    def _user(self, observed):
        record = observed["components"]["driver"]["record"]
        username = self._wish.username or record.get("username") or _options.DEFAULT_USER
        return username, self._wish.usergroup or record.get("usergroup") or username

    def _create_user(self, observed):
        username, usergroup = self._user(observed)
        if username == "root" and not self._wish.install_for_all:
            hint = "Set npu_driver_install_for_all: true, or npu_driver_username to another user."
            raise FleetError("root may own the driver only with install_for_all.", "user_refused", "prepare", object=username, hint=hint)
        created, warnings = _users.ensure(username, usergroup, run)
        self.result["created"] += created
        self.result["warnings"] += warnings

    def _engine_file(self):
        """Return an empty engine configuration of ours, which the Docker Runtime may edit as it likes."""
        if self._wish.component != "docker_runtime":
            return None
        path = os.path.join(self._places.cache_dir, "docker_runtime", "daemon.json")
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        if not os.path.exists(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(descriptor, b"{}\n")
            os.close(descriptor)
        return path

    def _run(self, command, answer, folder):
        never_killed = self._wish.component in _NEVER_KILLED
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        return _detached.run_vendor(
            command,
            self._unit,
            os.path.join(self._places.log_dir, "%s-%s.log" % (self._wish.component, stamp)),
            self._wish.timeout,
            env={"TMPDIR": folder},
            cwd=folder,
            stdin=answer,
            kill_at_deadline=not never_killed,
            inhibit="NPU firmware is being written" if never_killed else None,
            state_dir=self._places.run_dir,
        )

    # --- judge ------------------------------------------------------------------------------------------------------

    def _judge(self, vendor, file_name):
        log = self._record(vendor)
        if self.result["running"]:
            self._journal("waiting")
            return self._finish(self._observe())
        observed = self._settled(vendor)
        after = observed["components"][self._wish.component]
        self._finish(observed)
        removing = self._wish.state == "absent"
        good = _gone(after) if removing else _verdict.reached(self._wish.component, self._wish.version, after)
        self._journal("end", good=good, rc=vendor.rc, run=vendor.state, state=after["state"])
        if not good:
            version = None if removing else self._wish.version
            raise _verdict.failure(
                self._wish.component, version, vendor, after, log, seconds=self._wish.timeout, cache_dir=self._places.cache_dir
            )
        self._remember(file_name)
        return self.result

    def _remember(self, file_name):
        entry = {"version": self._wish.version, "file": file_name, "sha256": self._wish.sha256}
        _journal.remember(self._places.state_dir, self._wish.component, None if self._wish.state == "absent" else entry)

    def _record(self, vendor):
        """Put what is known of a run into the result; return the end of its log."""
        log = _tail(vendor.log)
        self.result.update(changed=True, running=vendor.state == "running")
        self.result["log"] = {"path": vendor.log, "lines": [line for line in log.splitlines() if line.strip()][-_LOG_LINES:]}
        return log

    def _journal(self, event, **fields):
        _journal.note(self._places.state_dir, event, component=self._wish.component, **fields)

    def _settled(self, vendor):
        """Observe; after a driver that says it is live, give its device nodes a moment to appear."""
        for _unused in range(10):
            observed = self._observe()
            pending = observed["components"][self._wish.component]["state"] == "reboot_pending"
            if not (pending and self._wish.component == "driver" and vendor.rc == 0):
                break
            time.sleep(0.5)
        return observed

    def _finish(self, observed):
        after = observed["components"][self._wish.component]
        written = self._wish.component == "firmware" and self.result["changed"] and not observed.get("firmware_known")
        # Firmware that was just written and that no chip tells of is not running yet. Never ask for a reboot in the middle of it.
        reboot = (after["state"] == "reboot_pending" or written) and not self.result["running"]
        self.result.update(after=self._brief(observed), reboot_required=reboot)
        return self.result

    def _brief(self, observed):
        now = observed["components"][self._wish.component]
        return {key: now[key] for key in ("state", "version", "running", "path", "reason")}


class _WorkFolder(object):
    """A fresh folder that a package unpacks itself into and runs in: executable, roomy, ours alone, gone afterwards."""

    def __init__(self, cache_dir):
        self._top = os.path.join(cache_dir, "work")
        self.path = None
        self.keep = False

    def __enter__(self):
        # Killed packages leave their unpacked content behind. We hold the lock and nothing runs: it is all old.
        shutil.rmtree(self._top, ignore_errors=True)
        os.makedirs(self._top, 0o700)
        if os.statvfs(self._top).f_flag & _ST_NOEXEC:
            message = "Nothing may be executed below %s (mount option noexec), but packages run what they unpack." % self._top
            hint = "`findmnt --target %s` names the mount: `mount -o remount,exec MOUNT`, or set cache_dir of npu_package." % self._top
            raise FleetError(message, "noexec", "prepare", object=self._top, hint=hint)
        self.path = tempfile.mkdtemp(dir=self._top)
        return self

    def __exit__(self, *unused):
        if not self.keep:
            shutil.rmtree(self._top, ignore_errors=True)


def _start_words(source):
    executable = os.access(source, os.X_OK) and not os.statvfs(source).f_flag & _ST_NOEXEC
    return [source] if executable else ["/bin/sh", source]


def _removal(component, now):
    step = {"component": component, "action": "none", "from": now["version"], "to": None, "reason": None, "reboot": False, "code": None}
    if now["state"] == "foreign":
        reason = "%s Remove it the way it came; it is never removed from here." % now["reason"]
        raise FleetError(reason, "foreign", "decide", object=now["path"] or component)
    return step if _gone(now) else dict(step, action="remove", reason="It is there, and wanted is nothing.")


def _gone(now):
    return now["state"] == "absent" or (now["state"] == "reboot_pending" and not now["version"])


def _tail(path):
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LOG_TAIL))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    # Progress is drawn with backspaces.
    return re.sub(r"\x08+", "\n", strip_escapes(text))
