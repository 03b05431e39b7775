# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller's half of agent_image: builds, and sends the archive only to a node whose engine lacks the image."""

from __future__ import annotations

import secrets

from ansible.plugins.action import ActionBase

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.modules.agent_image import REQUIRED, argument_spec
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_image import build


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        spec = {name: option for name, option in argument_spec().items() if name != "src"}
        _unused, options = self.validate_argument_spec(argument_spec=spec, required_if=REQUIRED)
        if options["state"] == "built":
            result.update(self._build(options))
            return result
        result.update(self._on_node(options, task_vars))
        if options["state"] == "absent" or self._task.check_mode or result.get("failed") or not result.get("needed"):
            return result
        # Two more calls, for a node that has not got it: the file, and what is done with it.
        options["src"] = self._transfer_file(options["archive"], f"/var/tmp/npu-agent-image-{secrets.token_hex(16)}.tar.gz")  # noqa: S108
        result.update(self._on_node(options, task_vars))
        return result

    def _build(self, options):
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "An image is not built in check mode."}
        chosen = {key: options[key] for key in ("base", "python_version", "arch", "builder", "name", "wheelhouse", "rebuild")}
        try:
            image, changed = build(options["cache_dir"], **chosen)
        except FleetError as error:
            return {"failed": True, "msg": str(error), "error": error.as_dict()}
        return {"changed": changed, **image._asdict()}

    def _on_node(self, options, task_vars):
        return self._execute_module(module_name="npu.fleet.agent_image", module_args=options, task_vars=task_vars)
