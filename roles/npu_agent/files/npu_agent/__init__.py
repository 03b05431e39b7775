# SPDX-License-Identifier: GPL-3.0-or-later
"""The NPU agent: tells kubelet the truth about the NPUs of this node."""

__version__ = "0.1.0"
