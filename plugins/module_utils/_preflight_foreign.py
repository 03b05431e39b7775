# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What others have put on a host for its NPUs: driver containers, device plugins. Private to the collection."""

import os
import re

from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import listed, read, under

# Programs by their file names: MindCluster's device plugin and exporter, the device plugin of HAMi, and a public one for Rockchip boards.
PROGRAMS = {
    "device-plugin": "MindCluster device plugin",
    "npu-exporter": "MindCluster exporter",
    "ascend-device-plugin": "HAMi device plugin",
    "rknpu-device-plugin": "rknpu device plugin",
}
_DRIVER_IMAGE = re.compile(r"(?<![a-z])(?:npu|ascend)[^/:@]*driver|driver[^/:@]*(?<![a-z])(?:npu|ascend)", re.IGNORECASE)
_INTERPRETER = re.compile(r"(?:(?:ba|da|k|z)?sh|busybox|tini|dumb-init|python[0-9.]*)\Z")
_SOCKETS = "/var/lib/kubelet/device-plugins"
_OURS = re.compile(r"\.?npu-agent")
_THEIRS = re.compile(r"(?:ascend|davinci|npu|hami)", re.IGNORECASE)


def foreign(root, proc_root, kernel):
    """programs, containers, sockets and folders of others. What dpkg and rpm brought is a foreign component (_packages/_managed.py)."""
    return {
        "programs": _programs(proc_root),
        "containers": _driver_containers(root),
        "sockets": [name for name in listed(under(root, _SOCKETS)) if _THEIRS.match(name) and not _OURS.match(name)],
        # A driver installed by a privileged container leaves this one (field report).
        "folders": [path for path in ("/lib/modules/%s/npu_driver" % kernel,) if os.path.isdir(under(root, path))],
    }


def _programs(proc_root):
    found = []
    for pid in sorted(int(name) for name in listed(proc_root) if name.isdigit()):
        # The first word of the command line; of a script it is the interpreter, and the second counts. Others only name a file in there.
        words = (read(os.path.join(proc_root, str(pid), "cmdline")) or "").split("\0")[:2]
        words = words if _INTERPRETER.match(os.path.basename(words[0])) else words[:1]
        name = next((os.path.basename(word) for word in words if os.path.basename(word) in PROGRAMS), None)
        if name:
            found.append({"pid": pid, "name": name, "product": PROGRAMS[name]})
    return found


def _driver_containers(root):
    """Running docker containers whose image is called a driver of NPUs. Their configuration is a small file of one line."""
    found = []
    folder = under(root, "/var/lib/docker/containers")
    for identity in listed(folder)[:500]:
        text = read(os.path.join(folder, identity, "config.v2.json")) or ""
        image = re.search(r'"Image":"([^"]+)"[^}]*', text.split('"Config":', 1)[-1])
        if '"Running":true' in text and image and _DRIVER_IMAGE.search(image.group(1)):
            found.append({"id": identity[:12], "image": image.group(1)})
    return found
