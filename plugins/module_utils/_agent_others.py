# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else serves NPUs to the kubelet of a node. Private to the collection.

By the sockets in kubelet's folder: mind-cluster's plugin and HAMi's name theirs by the kind of device (`Ascend910.sock`, `npu-core.sock`;
facts of the device plugins), ours begin with `npu-agent-`. A socket that nobody listens on is a leftover and counts for nothing.
"""

import os
import re
import socket
import struct

FOLDER = "/var/lib/kubelet/device-plugins"
OTHERS = re.compile(r"(Ascend|ascend|npu|davinci)[^/]*\.sock\Z")
OURS = re.compile(r"npu-agent-[^/]*\.sock\Z")


def listener(path):
    """Process id of who listens there; None where nobody does, 0 where it cannot be told."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(path)
            except BlockingIOError:
                return 0  # its queue is full
            return struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except (OSError, ValueError):
        return None


def name_of(pid):
    """What the process is called, "" where it is not seen from here."""
    try:
        with open("/proc/%d/comm" % pid) as stream:
            return stream.read().strip()
    except OSError:
        return ""


def look(folder, listener=listener, name_of=name_of):
    """(texts of others, whether an agent of ours serves there)."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return [], False
    others, ours = [], False
    for name in names:
        mine = OURS.match(name)
        if not mine and not OTHERS.match(name):
            continue
        pid = listener(os.path.join(folder, name))
        if pid is None:
            continue
        if mine:
            ours = True
            continue
        program = name_of(pid) if pid else ""
        others.append("%s in %s%s" % (name, folder, ", served by process %d (%s)" % (pid, program) if program else ""))
    return others, ours
