# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L3 asks the agent: here, or in the network of its pod."""

import http.server
import json
import subprocess
import sys
import threading
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _gates_plugin

RESOURCE = "huawei.com/Ascend910"


@pytest.fixture
def readyz():
    """An HTTP server that answers 503 with reasons, as an agent does that waits for a kubelet."""

    class Handler(http.server.BaseHTTPRequestHandler):
        body = json.dumps({"registered": False, "reasons": ["waiting for kubelet"]}).encode()

        def do_GET(self):
            self.send_response(503)
            self.end_headers()
            self.wfile.write(self.body)

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_plugin_that_is_not_ready_still_tells_why(readyz, monkeypatch, tmp_path):
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:1")  # a proxy must not be asked for loopback
    answer = _gates_plugin.probe_plugin(f"http://127.0.0.1:{readyz.server_port}/readyz", str(tmp_path))
    assert answer["status"]["reasons"] == ["waiting for kubelet"]


def test_plugin_that_does_not_answer(tmp_path):
    assert "does not answer" in _gates_plugin.probe_plugin("http://127.0.0.1:9/readyz", str(tmp_path), timeout=1)["error"]


AGENT = """import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"resource": sys.argv[2], "registered": True}).encode())
http.server.HTTPServer(("127.0.0.1", 8083), Handler).serve_forever()
"""


def test_an_agent_in_a_pod_is_asked_in_its_own_network(tmp_path):
    """Two pods with the same address each; one of them has no chips."""
    program = tmp_path / "npu-agent"
    program.write_text(AGENT)
    (tmp_path / "device-plugins").mkdir()
    url, pods = "http://127.0.0.1:8083/readyz", []
    try:
        for resource in (_gates_plugin.ACCESS, RESOURCE):
            words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, str(program), "serve"]
            pods.append(subprocess.Popen([*words, resource], stderr=subprocess.DEVNULL))
        until = time.monotonic() + 60
        while "error" in (answer := _gates_plugin.probe_plugin(url, str(tmp_path), timeout=2)) and time.monotonic() < until:
            assert [pod.poll() for pod in pods] == [None, None]
            time.sleep(0.1)
        assert answer["status"]["resource"] == RESOURCE
        assert _gates_plugin.agents_in_pods(str(tmp_path)) == sorted(pod.pid for pod in pods)
        # Of another cluster on the same machine.
        assert _gates_plugin.agents_in_pods(str(tmp_path / "none")) == []
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
    assert "does not answer" in _gates_plugin.probe_plugin(url, str(tmp_path), timeout=1)["error"]


def test_plugin_that_answers_nonsense(readyz, tmp_path):
    readyz.RequestHandlerClass.body = b"<html>"
    assert "not JSON" in _gates_plugin.probe_plugin(f"http://127.0.0.1:{readyz.server_port}/readyz", str(tmp_path))["error"]
