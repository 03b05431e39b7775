# SPDX-License-Identifier: GPL-3.0-or-later
"""The API stand-in as fixtures."""

import pytest
from daemons_rig import OBJECTS
from kube_rig import TOKEN, ApiServer

from ansible_collections.npu.fleet.plugins.modules import agent_daemonset


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


@pytest.fixture
def do(api, kubeconfig):
    def call(state, *, objects=None, nodes=None, check_mode=False, **options):
        params = {"state": state, "objects": OBJECTS if objects is None else objects, "nodes": nodes or {"node-01": "daemonset"},
                  "take_over": False, "ready_timeout": 0, "kubeconfig": kubeconfig, "context": None, "timeout": 20, **options}
        return agent_daemonset.run(params, check_mode, lambda _values: None)

    return call
