# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action ``npu.fleet.oci_runtime``: read on the node, edit here, commit on the node.

Its documentation is ``plugins/modules/oci_runtime.py``.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ansible.plugins.action import ActionBase

from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text, mask_value
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config as config
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Wanted

NODE_MODULE = "npu.fleet.oci_runtime_node"
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
DONE_KEYS = ("changed", "actions", "backup_file", "validation", "not_checked", "reload_required", "killed")
# What of a failed module may be shown. Its stdout may not: an answer that could not be parsed holds the file's bytes.
SAFE_KEYS = ("msg", "error", "rc", "unreachable", "skipped")


def argument_spec():
    """Return the options of the action."""
    return {
        "engine": {"type": "str", "default": "auto", "choices": ["auto", "docker", "containerd", "k3s", "rke2", "crio", "isulad"]},
        "name": {"type": "str", "default": "ascend"},
        "path": {"type": "str"},
        "args": {"type": "list", "elements": "str"},
        "set_default": {"type": "bool", "default": False},
        "config_path": {"type": "path"},
        "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
        "validate": {"type": "bool", "default": True},
        "restart": {"type": "str", "default": "auto", "choices": ["auto", "never"]},
        "disruption": {"type": "str", "default": "refuse", "choices": ["refuse", "allow"]},
        "backup": {"type": "bool", "default": True},
        "timeout": {"type": "int", "default": 60},
    }


class ActionModule(ActionBase):
    """Two executions on the node at most; one where nothing is to be done or in check mode."""

    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        """Run the action."""
        result = super().run(tmp, task_vars)
        del tmp
        _validation, params = self.validate_argument_spec(
            argument_spec=argument_spec(), required_if=[("state", "present", ("path",))]
        )
        try:
            result.update(self._work(params, task_vars))
        except FleetError as error:
            result.update(failed=True, msg=str(error), error=error.as_dict())
        return result

    def _work(self, params, task_vars):
        wanted = _wanted(params)
        common = {key: params[key] for key in ("engine", "name", "path", "config_path", "state", "timeout")}
        found = self._node(dict(common, step="read"), task_vars)
        if found.get("failed") or found.get("unreachable"):
            return _only_safe(found)
        plan = config.plan(found, replace(wanted, engine=found["engine"]))
        missing_program = config.runtime_missing(found, wanted)
        if missing_program:
            if not self._task.check_mode:
                raise missing_program
            plan.warnings.append(str(missing_program))
        result = _result(found, plan, params)
        acts = plan.edit.changed or params["restart"] != "never"
        if plan.commit is None or not acts or self._task.check_mode:
            result["changed"] = plan.commit is not None and acts
            return result
        commit = dict(common, engine=found["engine"], step="commit", **plan.commit)
        commit.update({key: params[key] for key in ("validate", "restart", "disruption", "backup")})
        done = self._node(commit, task_vars)
        if done.get("failed") or done.get("unreachable"):
            return _only_safe(done)
        result.update({key: done[key] for key in DONE_KEYS})
        result["effective"] = _effective(done["effective"])
        warnings = plan.warnings + (done.get("warnings") or [])
        if warnings:
            result["warnings"] = [mask_text(warning) for warning in warnings]
        return result

    def _node(self, arguments, task_vars):
        arguments = {key: value for key, value in arguments.items() if value is not None}
        # With -vvv the ssh connection prints what comes back, unless its context says no_log; here that is whole files with passwords.
        contexts = [self._play_context, getattr(self._connection, "_play_context", None)]
        before = [(context, context.no_log) for context in contexts if context is not None]
        try:
            for context, _no_log in before:
                context.no_log = True
            return self._execute_module(module_name=NODE_MODULE, module_args=arguments, task_vars=task_vars)
        finally:
            for context, no_log in before:
                context.no_log = no_log


def _wanted(params):
    if not NAME.match(params["name"]):
        message = "{!r} can not be the name of a runtime: letters, digits, '.', '_' and '-'.".format(params["name"])
        raise FleetError(message, "name_invalid", phase="arguments")
    if params["state"] == "present" and not params["path"].startswith("/"):
        raise FleetError("path must be absolute, not {!r}.".format(params["path"]), "path_invalid", phase="arguments")
    return Wanted(params["name"], params["path"], params["args"], params["set_default"], params["state"])


def _effective(effective):
    runtimes = {name: mask_value(runtime) for name, runtime in effective["runtimes"].items()}
    return {"runtimes": runtimes, "default_runtime": effective["default_runtime"], "handlers": effective.get("handlers")}


def _result(found, plan, params):
    never = params["restart"] == "never"
    result = {
        "changed": False,
        "engine": found["engine"],
        "engine_version": found["version"],
        "kubelet": found.get("kubelet"),
        "config_path": plan.edit.path,
        "previous_default": plan.edit.previous_default,
        "effective": _effective(found["effective"]),
        "actions": [],
        "backup_file": None,
        "validation": None,
        "not_checked": None,
        "reload_required": never and (plan.missing is not None or plan.edit.changed),
        "takes_over_by": config.verb(found),
        "killed": [],
        "users": found.get("users") or [],
        "containers_running": found["containers_running"],
        "live_restore": found["live_restore"],
    }
    if plan.edit.changed:
        result["diff"] = config.diff(found, plan)
    kills = config.killed(found, plan, params["restart"])
    if kills and params["disruption"] != "allow":
        names = ", ".join(kills)
        plan.warnings.append(
            f"Taking over needs a restart that would end what runs in {found['engine']}: {names}. Drain the node, or set disruption=allow."
        )
    if plan.warnings:
        result["warnings"] = [mask_text(warning) for warning in plan.warnings]
    return result


def _only_safe(answer):
    """Return a failed module's answer without anything that may hold the file's bytes."""
    result = {key: answer[key] for key in SAFE_KEYS if key in answer}
    result.setdefault("msg", "The node module failed without a message.")
    result["msg"] = mask_text(str(result["msg"]))
    if not result.get("unreachable"):
        result["failed"] = True
    return result
