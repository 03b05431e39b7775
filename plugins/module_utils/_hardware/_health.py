# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Levels of a chip's health, for the agent and the gates alike: DCMI's numbers, and the words that npu-smi prints for them."""

#: From which level on a chip may be taken out of service; values are DCMI's numbers (dcmi_get_device_health).
LEVELS = {"minor": 1, "major": 2, "critical": 3}
DEFAULT_LEVEL = "major"
#: npu-smi's words for 0 to 3.
WORDS = ("OK", "Warning", "Alarm", "Critical")


def fit(word, unhealthy_from=DEFAULT_LEVEL):
    """Whether a chip of this health may take work. Unknown (None, or another word) is never fit."""
    return word in WORDS and WORDS.index(word) < LEVELS[unhealthy_from]
