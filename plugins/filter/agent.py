# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for the settings of the agent, and for its manifests."""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.plugin_utils._agent_manifest import manifests, profile_and_label, whole_config, without_secrets
from ansible_collections.npu.fleet.plugins.plugin_utils._agent_settings import agent_settings
from ansible_collections.npu.fleet.plugins.plugin_utils._filters import in_words


class FilterModule:
    """The filters of this collection; each has a YAML file of its own name with the documentation."""

    def filters(self):
        return {
            "agent_settings": in_words(agent_settings),
            "agent_manifests": in_words(manifests),
            "agent_manifests_public": in_words(without_secrets),
            "agent_config": in_words(whole_config),
            "agent_profile": in_words(profile_and_label),
        }
