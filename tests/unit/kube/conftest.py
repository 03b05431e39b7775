# SPDX-License-Identifier: GPL-3.0-or-later
"""The API stand-in as fixtures."""

import pytest
from kube_rig import TOKEN, ApiServer


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
