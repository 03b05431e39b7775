# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests/nodes/nodes.py is made of."""

from .base import SUITE, SUITES
from .nodes import Call, Nodes, default_tag, numbered, to_yaml
from .run import NodesError

__all__ = ["SUITE", "SUITES", "Call", "Nodes", "NodesError", "default_tag", "numbered", "to_yaml"]
