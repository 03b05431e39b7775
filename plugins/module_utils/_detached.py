# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Package installers, run so that they survive us: a lost connection never stops a flash. Private to the collection."""

import json
import os
import re
import time
from collections import namedtuple

from ansible_collections.npu.fleet.plugins.module_utils._command import check_argv, kill_group, run, spawn, strip_escapes
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

VendorRun = namedtuple("VendorRun", "unit state rc log attached")
_Status = namedtuple("_Status", "state rc")

STATE_DIR = "/run/npu-fleet"
# Where systemd keeps the processes of a unit, so that one whose note is lost is found without asking systemd for each.
_GROUPS = tuple("/sys/fs/cgroup%s/system.slice/%%s.service" % place for place in ("", "/systemd", "/unified"))
_UNIT_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*\Z")
# Driver package, measured: a question at the end of its input is asked for ever, 350 KB of output a second.
_LOG_LIMIT = 64 << 20
# Driver package, measured: 2 is also "installed, reboot needed". After these two a started daemon may live on.
_GOOD_CODES = (0, 2)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run_vendor(
    argv, unit, log, timeout, env=None, *, cwd=None, stdin=None, kill_at_deadline=True, inhibit=None, state_dir=STATE_DIR, poll=None,
    owner=None
):
    """Run a package installer so that a lost connection does not stop it, and wait for its end.

    It runs as a transient systemd unit, or under a supervisor in a session of its own where systemd is not in charge.
    When a unit of this name still runs, nothing is started: we wait for that one (``attached``; ``log`` is then its log).
    Its input is empty, or the short known answer ``stdin``. With ``inhibit`` (a reason) a reboot is held off meanwhile.
    ``owner`` (a dict) is noted beside it for those who find it at work.

    The state of the result: ``exited`` (``rc`` as subprocess has it: -9 is killed by signal 9), ``killed`` at the deadline,
    ``flooded`` (killed: output without end), ``lost`` (it ended and nobody knows how), or ``running``: ``poll`` seconds are over,
    or the deadline came, ``kill_at_deadline`` is off and it was left alone.
    """
    if not _UNIT_NAME.match(unit):
        raise FleetError("%r is no name for a unit." % unit, "command_invalid", object=unit)
    argv = list(argv)
    check_argv(argv, cwd)
    deadline = time.monotonic() + timeout
    job = _job(unit, state_dir)
    attached = job.status().state == "running"
    if attached:
        log = job.note().get("log") or log
    else:
        job.forget(force=True)
        _prepare_log(log)
        os.makedirs(state_dir, 0o700, exist_ok=True)
        limit = timeout if kill_at_deadline else None
        job.about = dict({"owner": owner} if owner else {}, since=time.monotonic())
        job.start(argv, log, _vendor_environment(env), cwd or "/", stdin, limit=limit, inhibit=inhibit)
    return _follow(job, log, attached, deadline, kill_at_deadline=kill_at_deadline, poll=poll)


def follow_vendor(unit, log, timeout, *, kill_at_deadline=True, state_dir=STATE_DIR, poll=None):
    """Wait for a run that was started before, also one that has ended unseen; None when nothing is known of one.

    ``log`` is named where the note of the run is lost.
    """
    job = _job(unit, state_dir)
    if job.status().state == "absent":
        return None
    log = job.note().get("log") or log
    return _follow(job, log, True, time.monotonic() + timeout, kill_at_deadline=kill_at_deadline, poll=poll)


def _follow(job, log, attached, deadline, *, kill_at_deadline, poll):
    state, rc = _wait(job, log, deadline, kill_at_deadline, time.monotonic() + poll if poll else None)
    if state != "running":
        if kill_at_deadline and rc not in _GOOD_CODES:
            job.kill()
        job.forget(force=rc not in _GOOD_CODES)
    return VendorRun(job.unit, state, rc, log, attached)


def vendor_running(unit, state_dir=STATE_DIR):
    """Return True while the unit of an earlier ``run_vendor`` still runs. Without note and control group there was none."""
    known = os.path.exists(_note_path(unit, state_dir)) or any(os.path.isdir(folder % unit) for folder in _GROUPS)
    job = _job(unit, state_dir) if known else None
    return job is not None and job.status().state == "running"


def vendor_note(unit, state_dir=STATE_DIR):
    """Return what was noted of the last run that nobody has seen the end of: log, owner; empty when there is none."""
    return _Job(unit, state_dir).note()


def _job(unit, state_dir):
    version = _systemd_version()
    return _SystemdUnit(unit, state_dir, version) if version >= 236 else _Supervised(unit, state_dir)


def _note_path(unit, state_dir):
    return os.path.join(state_dir, unit + ".json")


def _systemd_version():
    """Return the version of systemd when it manages this host and obeys us, else 0 (before 236 it has no output to a file)."""
    if os.geteuid() != 0 or not os.path.isdir("/run/systemd/system"):
        return 0
    try:
        found = re.match(r"systemd (\d+)", run(["systemctl", "--version"], 20).stdout)
    except FleetError:
        return 0
    return int(found.group(1)) if found else 0


def _prepare_log(log):
    os.makedirs(os.path.dirname(log), 0o750, exist_ok=True)
    os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640))


def _vendor_environment(extra):
    """Return a small fixed environment: nothing of the connection we came by, no proxies, no credentials."""
    env = {"PATH": _PATH, "HOME": os.path.expanduser("~"), "USER": "root", "LOGNAME": "root", "LC_ALL": "C"}
    env.update(extra or {})
    return env


def _wait(job, log, deadline, kill_at_deadline, give_up=None):
    pause = 0.02
    while True:
        status = job.status()
        if status.state != "running":
            return {"finished": "exited", "timeout": "killed"}.get(status.state, "lost"), status.rc
        flooded = _size(log) > _LOG_LIMIT
        if flooded and not kill_at_deadline:
            os.truncate(log, 0)
        elif flooded or time.monotonic() >= deadline:
            if not kill_at_deadline:
                return "running", None
            job.kill()
            return "flooded" if flooded else "killed", _settle(job)
        elif give_up is not None and time.monotonic() >= give_up:
            return "running", None
        time.sleep(min(pause, max(0.0, min(deadline, give_up or deadline) - time.monotonic())))
        pause = min(1.0, pause * 1.5)


def _settle(job):
    """Wait for a killed job to be gone; return what is known of its code."""
    for _unused in range(100):
        status = job.status()
        if status.state != "running":
            return status.rc
        time.sleep(0.1)
    return None


def _size(path):
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class _Job(object):
    """What both ways share: a note in ``state_dir`` that outlives the connection (and, being in /run, no reboot)."""

    def __init__(self, unit, state_dir):
        self.unit = unit
        self.about: dict = {}
        self._note_path = _note_path(unit, state_dir)
        self._answer_path = os.path.join(state_dir, unit + ".stdin")

    def note(self):
        try:
            with open(self._note_path) as stream:
                note = json.load(stream)
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _write_note(self, note):
        temporary = self._note_path + ".new"
        with open(temporary, "w") as stream:
            json.dump(note, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, self._note_path)

    def _write_answer(self, text):
        if text is None:
            return os.devnull
        descriptor = os.open(self._answer_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        return self._answer_path

    def _remove_notes(self):
        for path in (self._note_path, self._answer_path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass


class _SystemdUnit(_Job):
    """A transient service unit. It remains after its end, so that a run that lost its connection can be read by the next one."""

    def __init__(self, unit, state_dir, version):
        super(_SystemdUnit, self).__init__(unit, state_dir)
        self._service = unit + ".service"
        self._version = version

    def status(self):
        return unit_status(self._properties(), self._members)

    def _members(self):
        """Return the processes of the unit. Their own word counts: task accounting may be off, and a failed unit names no group."""
        found = re.compile(r"/%s(?:/|$)" % re.escape(self._service), re.MULTILINE)
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and found.search(_text("/proc/%s/cgroup" % pid))]

    def _properties(self):
        names = ("LoadState", "ActiveState", "SubState", "Result", "ExecMainCode", "ExecMainStatus", "KillMode")
        text = run(["systemctl", "show", self._service] + ["--property=" + name for name in names], 60).stdout
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def start(self, argv, log, env, cwd, stdin, *, limit, inhibit):
        self._write_note(dict(self.about, log=log))
        properties = {
            "RemainAfterExit": "yes",
            "StandardInput": "file:" + self._write_answer(stdin),
            "StandardOutput": ("append:" if self._version >= 240 else "file:") + log,
            "StandardError": "inherit",
            "WorkingDirectory": cwd,
            "TimeoutStopSec": "10",
            "OOMScoreAdjust": "-900",
            # Flashing is never ended from here, also not by a failure of the process that started it.
            "KillMode": "process" if limit is None else "control-group",
            "SuccessExitStatus": " ".join(str(code) for code in _GOOD_CODES if code),
        }
        if self._version >= 240:
            properties["Type"] = "exec"
        if limit is not None:
            # Our own deadline comes first; this one is for the case that our connection is lost.
            properties["RuntimeMaxSec"] = str(int(limit) + 60)
        command = ["systemd-run", "--quiet", "--no-ask-password", "--unit=" + self._service]
        command += ["--property=%s=%s" % item for item in sorted(properties.items())]
        command += ["--setenv=%s=%s" % item for item in sorted(env.items())]
        command += ["--"] + self._inhibitor(inhibit) + [word.replace("$", "$$") for word in argv]
        result = run(command, 60)
        if result.rc != 0:
            self.forget(force=True)
            said = strip_escapes(result.stderr).strip()
            raise _not_started(argv[0], said)

    @staticmethod
    def _inhibitor(reason):
        if reason is None:
            return []
        try:
            usable = run(["systemd-inhibit", "--list"], 20).rc == 0
        except FleetError:
            usable = False
        if not usable:
            return []
        return ["systemd-inhibit", "--what=shutdown:sleep", "--mode=block", "--who=npu.fleet", "--why=" + reason.replace("$", "$$")]

    def kill(self):
        run(["systemctl", "kill", "--kill-who=all", "--signal=SIGKILL", self._service], 60)

    def forget(self, force):
        """Take the unit away; one that left daemons behind a success stays (they are the driver's), unless ``force``."""
        properties = self._properties()
        if properties.get("LoadState") != "not-found":
            if not force and self._members():
                return
            run(["systemctl", "stop", self._service], 60)
            run(["systemctl", "reset-failed", self._service], 60)
        self._remove_notes()


def unit_status(properties, members):
    """Return the state of a transient unit from what ``systemctl show`` prints of it; ``members()`` are its processes."""
    active, sub = properties.get("ActiveState"), properties.get("SubState")
    if properties.get("LoadState") == "not-found":
        return _Status("absent", None)
    status = int(properties.get("ExecMainStatus") or 0)
    ended = active in ("failed", "inactive") or sub == "exited"
    if not ended:
        return _Status("running", None)
    # CLD_EXITED is 1; 2 and 3 are killed and dumped. A unit without a main process has 0.
    rc = {"1": status, "2": -status, "3": -status}.get(properties.get("ExecMainCode"))
    if properties.get("Result") == "timeout":
        return _Status("timeout", rc)
    if properties.get("KillMode") == "process" and rc not in _GOOD_CODES and members():
        # Driver package, measured: after a kill of the outer process the inner ones go on and finish the work.
        return _Status("running", None)
    return _Status("finished" if rc is not None else "lost", rc)


def _text(path):
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ""


class _Supervised(_Job):
    """Without systemd: a process in a session of its own starts the installer and writes its code to the note."""

    def status(self):
        status = self._status()
        # It may have written its code and gone between our two looks.
        return self._status() if status.state == "lost" else status

    def _status(self):
        note = self.note()
        if not note:
            return _Status("absent", None)
        if "rc" in note:
            return _Status("finished", note["rc"])
        alive = note.get("start") is not None and _start_time(note.get("pid")) == note["start"]
        return _Status("running" if alive else "lost", None)

    def start(self, argv, log, env, cwd, stdin, *, limit, inhibit):
        answer = self._write_answer(stdin)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    self._supervise(argv, env, cwd, log=log, answer=answer, writer=writer)
            finally:
                os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        with os.fdopen(reader, "rb") as stream:
            said = stream.read().decode("utf-8", "replace")
        if said != "started":
            self.forget(force=True)
            raise _not_started(argv[0], said)

    def _supervise(self, argv, env, cwd, *, log, answer, writer):
        """Never returns into the caller's code: the caller ends this process."""
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2 and int(name) != writer:
                    _close_descriptor(int(name))
            with open(answer, "rb") as given, open(log, "ab") as output:
                process = spawn(argv, env, cwd, given, output)
            note = dict(self.about, log=log, pid=os.getpid(), start=_start_time(os.getpid()), child=process.pid)
            self._write_note(note)
            os.write(writer, b"started")
        except Exception as error:
            os.write(writer, str(error).encode("utf-8"))
            return
        os.close(writer)
        note["rc"] = process.wait()
        self._write_note(note)

    def kill(self):
        child = self.note().get("child")
        if child:
            kill_group(child)
            for pid in _session(child):
                kill_group(pid)

    def forget(self, force):
        self._remove_notes()


def _not_started(program, said):
    return FleetError("%s could not be started: %s" % (program, said), "command_not_started", object=program, observed=said)


def _close_descriptor(descriptor):
    try:
        os.close(descriptor)
    except OSError:
        pass


def _stat_fields(pid):
    """Return the fields of /proc/PID/stat after the command name (state is the first), or None."""
    try:
        with open("/proc/%s/stat" % pid) as stream:
            fields = stream.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return fields if fields[0] not in "ZX" else None


def _start_time(pid):
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def _session(leader):
    """Return the living processes of a session, by group leader, also when the leader itself is gone."""
    groups = set()
    for pid in os.listdir("/proc"):
        fields = _stat_fields(pid) if pid.isdigit() else None
        if fields and int(fields[3]) == leader:
            groups.add(int(fields[2]))
    return groups
