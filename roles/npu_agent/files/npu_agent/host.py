# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's files as far as they are seen: all of them by a service, some folders of them by a pod that has these mounted.

Paths are the host's own, and links lead on as they do there. What the agent has under the same path in its own image says nothing of the
host: a container engine that is told to mount what the host lacks makes a folder of that name on it.
"""

import errno
import glob
import os
from collections import namedtuple

LINKS = 40  # as the kernel


class Host(namedtuple("Host", "root paths")):
    """root: where the host's / is, "" for one's own. paths: what of the host is there, with all below it; without any, everything."""

    __slots__ = ()

    def sees(self, path):
        return not self.paths or any(f"{path}/".startswith(f"{one.rstrip('/')}/") for one in self.paths)

    def matching(self, pattern):
        return [path[len(self.root):] for path in sorted(glob.glob(glob.escape(self.root) + pattern))]

    def leads_to(self, path):
        """The path without a link in it. OSError where links lead in a circle."""
        done, rest, links = "", path.split("/")[::-1], 0
        while rest:
            step = rest.pop()
            if step in ("", "."):
                continue
            if step == "..":
                done = done.rpartition("/")[0]
                continue
            try:
                target = os.readlink(f"{self.root}{done}/{step}")
            except OSError:  # no link, or nothing
                done = f"{done}/{step}"
                continue
            links += 1
            if links > LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            done = "" if target.startswith("/") else done
            rest += target.split("/")[::-1]
        return done or "/"

    def mode(self, path):
        """Of what is at a path without links. OSError."""
        return os.lstat(self.root + path).st_mode


def of(settings):
    return Host("" if settings.host_root == "/" else settings.host_root, settings.host_paths)
