# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller's half of agent_files: packs, and sends the archive only to a node that has another one."""

from __future__ import annotations

import secrets

from ansible.plugins.action import ActionBase

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.modules.agent_files import argument_spec
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_archive import pack

FILLED_IN = ("src", "sha256", "version")


class ActionModule(ActionBase):
    TRANSFERS_FILES = False  # with True Ansible makes a folder on the node before it asks us whether anything is to be sent
    _supports_check_mode = True
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        spec = {name: option for name, option in argument_spec().items() if name not in FILLED_IN}
        _unused, options = self.validate_argument_spec(
            argument_spec=spec, required_if=[("state", "present", ("python_version", "arch", "cache_dir"))]
        )
        if options["state"] == "absent":
            result.update(self._on_node(options, task_vars))
            return result
        try:
            archive = pack(
                options["python_version"], options["arch"], options["cache_dir"], wheelhouse=options["wheelhouse"], python=options["python"]
            )
        except FleetError as error:
            result.update(failed=True, msg=str(error), error=error.as_dict())
            return result
        facts = {"version": archive.version, "sha256": archive.sha256, "folder": archive.folder}
        if options["observed_sha256"] == archive.sha256:
            result.update(facts, changed=False, removed=[])
            return result
        options.update(sha256=archive.sha256, version=archive.version)
        if not self._task.check_mode:
            options["src"] = self._send(archive.path)
        result.update(self._on_node(options, task_vars))
        return result

    def _send(self, path):
        """One transfer to a name that nobody can guess; making and removing a folder for it would be three more calls of the node.

        The module reads the file once, checks what it read, and removes the file.
        """
        return self._transfer_file(path, f"/tmp/npu-agent-{secrets.token_hex(16)}.tar.gz")  # noqa: S108

    def _on_node(self, options, task_vars):
        return self._execute_module(module_name="npu.fleet.agent_files", module_args=options, task_vars=task_vars)
