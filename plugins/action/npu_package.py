# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller's half of npu_package: sends a file only where it is needed, and waits in short calls.

A package may run for half an hour. No connection has to last as long: the module returns after ``poll`` seconds and is called again
until the package has ended. A connection that breaks meanwhile, or an idle timeout, costs nothing.
"""

from __future__ import annotations

import os
import secrets
import time

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages._fetch import file_name, is_url
from ansible_collections.npu.fleet.plugins.modules.npu_package import argument_spec

FILLED_IN = ("attach", "staged")
#: Seconds between two tries to reach a node whose connection broke, and how long one is tried that has not yet answered in this task.
PAUSE = 5
PATIENCE = 60
#: What the first answer knows better than the last one: the last one only waited.
FROM_FIRST = ("before", "step", "attached")

display = Display()


class ActionModule(ActionBase):
    TRANSFERS_FILES = False  # with True Ansible makes a folder on the node before it asks us whether anything is to be sent
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        spec = {name: option for name, option in argument_spec().items() if name not in FILLED_IN}
        _unused, options = self.validate_argument_spec(
            argument_spec=spec, required_if=[("state", "present", ("version",))]
        )
        options = {name: value for name, value in options.items() if value is not None}
        self._task_vars = task_vars or {}
        self._deadline = time.monotonic() + options["timeout"]
        self._answered = self._overdue = False
        try:
            answer = self._wait(options)
            if answer.get("file_needed") and not self._task.check_mode:
                options["staged"] = self._send(self._local_file(options["src"]), options["src"])
                answer = merged(answer, self._wait(options))
                if is_locked(answer):
                    # The module did not come as far as to take it.
                    self._low_level_execute_command(f"rm -f {options['staged']}")
        except FleetError as error:
            result.update(failed=True, msg=str(error), error=error.as_dict())
            return result
        result.update(answer)
        return result

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self, options):
        """Call the module until the package has ended, or the time is up."""
        arguments, first, shown = dict(options), None, 0
        while True:
            arguments["timeout"] = max(1, int(self._deadline - time.monotonic()))
            answer = self._ask(arguments)
            first = answer if first is None or first.get("failed") else first
            shown = self._show(answer, options, shown)
            if not self._goes_on(answer, options):
                return merged(first, answer)
            if answer.get("log"):
                arguments["attach"] = answer["log"]["path"]
            if not answer.get("failed"):
                # What was sent is in the cache now.
                arguments.pop("staged", None)

    def _goes_on(self, answer, options):
        """Whether the answer is one of somebody who waits, and there is time left to wait.

        When it is up, the module is called once more: to end a package that may be ended, and to say so.
        """
        waits = is_locked(answer) or (bool(answer.get("running")) and not answer.get("failed"))
        if not waits or not options["poll"] or self._task.check_mode or self._overdue:
            return False
        self._overdue = time.monotonic() >= self._deadline
        return not (self._overdue and is_locked(answer))

    def _ask(self, arguments):
        """Execute the module; a connection that breaks is made anew. The package does not notice, and the module attaches to it."""
        deadline = self._deadline if self._answered else min(self._deadline, time.monotonic() + PATIENCE)
        while True:
            try:
                answer = self._execute_module(module_name="npu.fleet.npu_package", module_args=arguments, task_vars=self._task_vars)
            except AnsibleConnectionFailure as error:
                if time.monotonic() + PAUSE >= deadline:
                    raise
                display.display(f"{self._host()}: the connection broke, trying again: {error}")
                time.sleep(PAUSE)
                self._connect_anew()
                continue
            self._answered = True
            return answer

    def _connect_anew(self):
        try:
            self._connection.reset()
        except (AnsibleConnectionFailure, AttributeError, NotImplementedError, OSError):
            pass  # the next execution tells whether the node is there

    def _show(self, answer, options, shown):
        """Print what is new of the package's own progress; return how much has been shown."""
        progress = answer.get("progress") or []
        what = f"{self._host()}: {options['component']} {options.get('version') or ''}".rstrip()
        for point in progress[shown:] if answer.get("running") or shown else []:
            after = "" if point["seconds"] is None else f" after {point['seconds']} s"
            display.display(f"{what}: {point['percent']} %{after}")
        return len(progress) if answer.get("running") else shown

    def _host(self):
        return self._task_vars.get("inventory_hostname", "node")

    # --- a file on the controller -----------------------------------------------------------------------------------

    def _local_file(self, src):
        if is_url(src):
            message = "src is a URL, and remote_src: false is for files on the controller."
            raise FleetError(message, "src_invalid", "prepare", object=file_name(src))
        path = self._loader.path_dwim(src)
        if not os.path.isfile(path):
            raise FleetError(f"{path} is no file on the controller.", "package_missing", "fetch", object=path, hint=f"`ls -l {path}`.")
        return path

    def _send(self, path, src):
        """One transfer to a name that nobody can guess. /var/tmp: packages have several GB, /tmp may be memory.

        The module copies it into the cache, checks what it copied, and removes it.
        """
        display.display(f"{self._host()}: sending {file_name(src)} ({os.path.getsize(path) >> 20} MiB)")
        return self._transfer_file(path, f"/var/tmp/npu-fleet-{secrets.token_hex(16)}.run")  # noqa: S108


def is_locked(answer):
    """Whether another run was at work all the time. A package of another component that runs is a failure like any other."""
    error = answer.get("error") or {}
    return bool(answer.get("failed")) and error.get("code") == "busy" and str(error.get("object")).endswith(".lock")


def merged(first, last):
    """Return the last answer of a run as the whole of it."""
    if first is last:
        return last
    result = dict(last)
    if last.get("attached") or (last.get("step") or {}).get("action") == "none":
        # A run of ours was only waited for.
        result.update({key: first[key] for key in FROM_FIRST if key in first})
    result["changed"] = bool(first.get("changed") or last.get("changed"))
    result["created"] = (first.get("created") or []) + (last.get("created") or [])
    result["log"] = last.get("log") or first.get("log")
    result["progress"] = last.get("progress") or first.get("progress") or []
    warnings = [text for text in first.get("warnings") or [] if text not in (last.get("warnings") or [])]
    if warnings or last.get("warnings"):
        result["warnings"] = warnings + (last.get("warnings") or [])
    if "diff" in last and "before" in (first.get("diff") or {}):
        result["diff"] = dict(last["diff"], before=first["diff"]["before"])
    return result
