# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lies on the way to a file: who may change one of these steps decides what the path leads to."""

import os

MAX_LINKS = 40  # as many as the kernel follows


def walk(path):
    """``(steps, place)`` for an absolute path: ``(folder, name)`` of every folder, link and file on the way, links followed, and what the
    path leads to without any link; None after more links than the kernel follows. Steps that do not exist are in it."""
    here, left, steps, links = "/", path.split("/"), [], 0
    while left:
        name = left.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        steps.append((here, name))
        try:
            target = os.readlink(os.path.join(here, name))
        except OSError:
            here = os.path.join(here, name)
            continue
        links += 1
        if links > MAX_LINKS:
            return steps, None
        here = "/" if target.startswith("/") else here
        left = target.split("/") + left
    return steps, here
