# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests/nodes/nodes.py is made of."""

from .nodes import Call, Nodes, numbered, to_yaml
from .run import NodesError

__all__ = ["Call", "Nodes", "NodesError", "numbered", "to_yaml"]
