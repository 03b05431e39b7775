# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dockerd as an engine: taking over a new daemon.json, or giving the old one back. Private to the collection.

What a run does to containers: nothing. ``runtimes`` and ``default-runtime`` are taken over by a reload (SIGHUP), so a running dockerd is
never restarted; one that is down is started. When it does not take over, the old bytes go back.
"""

import os
import signal
import time

from ansible_collections.npu.fleet.plugins.module_utils import _engine_docker as docker
from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, put_in_place, replace, staged

JOURNAL_LINES = 20


class Engine(object):
    """The dockerd of this node, for the length of one commit."""

    def __init__(self, run, root="/", timeout=60, command_timeout=20):
        self._run = run
        self._root = root
        self._timeout = timeout
        self._command_timeout = command_timeout
        self._began = time.time()
        self.process = docker.observe_process(run, root, command_timeout)
        self.done = []

    def info(self):
        """Ask dockerd."""
        return docker.query_info(self._run, self._root, self._command_timeout)

    def running(self):
        """Return whether the dockerd process is there (it may still not answer)."""
        unit = docker.query_unit(self._run, self._root, self._command_timeout)
        if unit["loaded"]:
            return unit["state"] in ("active", "reloading")
        return self.process["pid"] is not None and _alive(self.process["pid"])

    def require_client(self):
        """Raise when the engine could not be asked whether it took over."""
        if find_program("docker", self._root) is None:
            raise FleetError(
                "The docker client is missing, so whether dockerd takes over the new file could not be seen; nothing was written.",
                "client_missing",
                phase="check",
                hint="Install it (Debian: docker-cli, or docker.io which has both), or use restart=never.",
            )

    # --- the file ---

    def write(self, before, data, validate, ready):
        """Put ``data`` in the place of ``before``; return how it was checked. ``ready`` is called right before the file changes."""
        with staged(before, data) as path:
            checked = self._validate(path, before.target) if validate else "not checked (validate=false)"
            ready()
            put_in_place(path, before.target)
        return checked

    def _validate(self, path, target):
        """Let dockerd check the staged copy, with the flags it is started with.

        Measured on dockerd 26.1.5: with its flags it also names keys that stand on both sides, nested ones (proxies) included; it does not
        check that the default runtime exists.
        """
        dockerd = find_program("dockerd", self._root)
        usage = self._run([dockerd, "--help"], self._command_timeout)
        if "--validate" not in usage.stdout + usage.stderr:
            version = docker.binary_version(self._run, self._root, self._command_timeout)
            return "as JSON only: dockerd %s has no --validate (docker 23 brought it); the reload is its judgement" % version
        argv = [dockerd, "--validate", "--config-file", path]
        for flag, values in sorted(self.process["flags"].items()):
            if flag not in ("config-file", "validate"):
                argv.extend("--%s=%s" % (flag, value) for value in values)
        result = self._run(argv, self._command_timeout)
        if result.timed_out or result.rc != 0:
            text = mask_text((result.stderr + result.stdout).replace(path, target).strip())
            raise FleetError(
                "dockerd refuses the new %s: %s. Nothing was written." % (target, text or "no answer within the deadline"),
                "config_refused",
                phase="validate",
                object=target,
                observed=text,
                hint="Mend what it names; 'dockerd --validate --config-file %s' shows the state of the present file." % target,
            )
        return "by dockerd --validate"

    # --- the engine ---

    def take_over(self):
        """Make dockerd read its file: reload it when it runs, start it when it does not. Returns an error text or None."""
        if self.running():
            self.done.append("reload")
            return self._reload()
        self.done.append("start")
        return self._start()

    def _reload(self):
        unit = self.process["unit"]
        if unit["loaded"] and unit["can_reload"]:
            return self._systemctl("reload", unit["name"])
        # A unit without ExecReload, or no unit at all: send what ExecReload of docker's own unit sends.
        pid = docker.observe_process(self._run, self._root, self._command_timeout)["pid"]
        try:
            os.kill(pid, signal.SIGHUP)
        except (OSError, TypeError) as error:
            return "could not send SIGHUP to dockerd (process %s): %s" % (pid, error)
        return None

    def _start(self):
        unit = self.process["unit"]
        if not unit["loaded"]:
            return "dockerd does not run and systemd has no unit %s to start it with" % unit["name"]
        # After some failed starts systemd refuses further ones until the counter is reset.
        self._systemctl("reset-failed", unit["name"])
        return self._systemctl("start", unit["name"])

    def _systemctl(self, verb, unit):
        result = self._run([find_program("systemctl", self._root), verb, unit], self._timeout)
        if result.timed_out:
            return "'systemctl %s %s' did not end within %d s" % (verb, unit, self._timeout)
        if result.rc != 0:
            return "'systemctl %s %s' failed: %s" % (verb, unit, docker.last_line(result.stderr) or "exit code %d" % result.rc)
        return None

    def wait(self, expect):
        """Wait until the engine has what is expected; return the last ``docker info`` and what is missing (None = all there)."""
        deadline = time.monotonic() + self._timeout
        pause = 0.1
        while True:
            info = self.info()
            missing = docker.unmet(info, expect)
            if missing is None or time.monotonic() + pause > deadline:
                return info, missing
            # A unit that ended in "failed" will not answer later; do not wait for the deadline.
            if not info["active"] and self._failed():
                return info, missing
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)

    def _failed(self):
        unit = docker.query_unit(self._run, self._root, self._command_timeout)
        return unit["loaded"] and unit["state"] in ("failed", "inactive")

    def journal(self):
        """Return the last lines of dockerd's journal since this commit began, credentials masked."""
        journalctl = find_program("journalctl", self._root)
        if journalctl is None or not self.process["unit"]["loaded"]:
            return ""
        argv = [journalctl, "--unit", docker.UNIT, "--no-pager", "--output", "cat", "--lines", str(JOURNAL_LINES)]
        result = self._run(argv + ["--since", "@%d" % int(self._began)], self._command_timeout)
        return mask_text(result.stdout.strip())

    def put_back(self, before, was_active):
        """Give the old file back byte for byte and bring the engine to it; return a sentence on how the engine is now."""
        replace(before, before.data)
        trouble = self.take_over()
        deadline = time.monotonic() + self._timeout
        info = self.info()
        while not info["active"] and not trouble and not self._failed() and time.monotonic() < deadline:
            time.sleep(0.5)
            info = self.info()
        if info["active"]:
            return "dockerd answers."
        text = "dockerd is DOWN (%s)." % (trouble or info["error"])
        return text if was_active else text + " It was down before this run, too."


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
