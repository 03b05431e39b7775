# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules that look at a node. Private to the collection; the code is module_utils/_observe.py."""


class ModuleDocFragment:
    """Where the node's files are, and how long a query may take."""

    DOCUMENTATION = r"""
options:
  root:
    description: Where the node's files are; another folder than V(/) is for images.
    type: path
    default: /
  sysfs_root:
    description: Where sysfs is mounted.
    type: path
    default: /sys
  dev_root:
    description: The folder of the device nodes.
    type: path
    default: /dev
  proc_root:
    description: Where procfs is mounted.
    type: path
    default: /proc
  npu_smi:
    description: Path of the vendor's tool. Looked up where driver packages put it when not given.
    type: path
  dcmi_library:
    description: Path of C(libdcmi.so). Looked up from the recorded driver path when not given.
    type: path
  timeout:
    description: Seconds that each command and each query of the driver may take.
    type: int
    default: 20
"""
