# SPDX-License-Identifier: GPL-3.0-or-later
"""The API stand-in as fixtures."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kube"))

from api_server import ApiServer

TOKEN = "canary-5f0d9b1e7a3c4d2e"  # noqa: S105


@pytest.fixture(autouse=True)
def no_proxy_variables(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def api():
    with ApiServer() as server:
        server.add_user("admin", token=TOKEN)
        server.add_node("node-01", labels={"rack": "r7"})
        yield server


@pytest.fixture
def kubeconfig(api, tmp_path):
    return str(api.kubeconfig(tmp_path / "kubeconfig", TOKEN))
