# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The containerd inside rke2 as an engine: that of k3s with other names. Private to the collection."""

import os

from ansible_collections.npu.fleet.plugins.module_utils import _engine_containerd as containerd
from ansible_collections.npu.fleet.plugins.module_utils import _engine_k3s as k3s
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, under

NAME = "rke2"
UNIT = "rke2-server.service"
INSTALL = "see docs.rke2.io"
# rke2's own package unpacks into /opt/rke2 where /usr/local is read-only.
PROGRAM = "/opt/rke2/bin/rke2"


def installed(root="/"):
    """Return whether rke2 is there."""
    return find_program("rke2", root) is not None or os.path.isfile(under(root, PROGRAM))


def observe(run, root="/", timeout=20):
    """Return the entry of ``npu_info.engines``."""
    return containerd.describe(Engine(run, root, timeout, timeout))


class Engine(k3s.Engine):
    """The containerd of rke2 on this node, for the length of one read or commit."""

    name = NAME
    label = "containerd of rke2"
    unit_names = [UNIT, "rke2-agent.service"]
    product = "rke2"
    data_folder = "/var/lib/rancher/rke2"
    programs = ("bin/containerd",)
