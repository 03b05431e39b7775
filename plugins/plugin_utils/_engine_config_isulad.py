# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""isulad's daemon.json (/etc/isulad): dockerd's form with other names. Private to the collection. Pure functions.

Its manual calls a runtime's arguments ``runtime-args``; ``lcr`` and ``runc`` are built in. It takes over a file at a restart only.
"""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_docker as docker
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Edit, Wanted

ISULAD = docker.Dialect(engine="isulad", args_key="runtime-args", reserved=("lcr", "runc"), bridges=False, checks_types=False)


masked = docker.masked


def plan_edit(found: dict, wanted: Wanted) -> Edit:
    """Return the change of isulad's daemon.json."""
    return docker.plan_edit(found, wanted, ISULAD)
