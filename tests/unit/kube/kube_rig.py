# SPDX-License-Identifier: GPL-3.0-or-later
"""The API stand-in where tests find it, and a token that must never be seen again."""

import sys
from pathlib import Path

KUBE = Path(__file__).resolve().parents[2] / "kube"
sys.path.insert(0, str(KUBE))

from api_server import ApiServer  # noqa: F401
from kube_cluster import DAEMON_SET, POD  # noqa: F401
from kube_rules import RUNTIME_CLASS, ApiError  # noqa: F401

TOKEN = "canary-5f0d9b1e7a3c4d2e"  # noqa: S105
