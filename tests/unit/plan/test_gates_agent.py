# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L3 asks the agent: here, or in the network of its pod."""

import http.server
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _gates_plugin
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import Looked

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


#: What is done in a pod before its agent starts: kubelet's folder is mounted where the agent's manifest has it.
MOUNTED = 'ip link set lo up && mount --bind "$PLACE/device-plugins" "$PLACE/in pod" && exec "$@"'


def start(place, resource=RESOURCE, before=MOUNTED):
    words = ["unshare", "--net", "--mount", "sh", "-c", before, "sh", sys.executable, str(place / "npu-agent"), "serve", resource]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL, env={**os.environ, "PLACE": str(place)})


@pytest.fixture
def place(tmp_path):
    """A kubelet's folder, with a blank in its name."""
    place = tmp_path / "of kubelet"
    for name in ("device-plugins", "in pod", "other"):
        (place / name).mkdir(parents=True)
    (place / "npu-agent").write_text(AGENT)
    return place


def test_who_has_not_mounted_kubelets_folder_is_no_agent(place):
    """A pod can call a process as it likes, and a link in its own root leads wherever it wants."""
    for before in ('ip link set lo up && exec "$@"',
                   'ip link set lo up && mount --bind "$PLACE/other" "$PLACE/device-plugins" && exec "$@"',
                   'ip link set lo up && mount -t tmpfs none "$PLACE/device-plugins" && exec "$@"'):
        made = start(place, before=before)
        try:
            until = time.monotonic() + 60
            while not calls_itself_agent(made.pid) and time.monotonic() < until:
                time.sleep(0.05)
            assert calls_itself_agent(made.pid)
            assert _gates_plugin.agents_in_pods(str(place)) == []
        finally:
            made.kill()
            made.wait()


def calls_itself_agent(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as stream:
        return [word.rpartition(b"/")[2] for word in stream.read().split(b"\0")[1:3]] == [b"npu-agent", b"serve"]


def test_only_a_few_pods_are_asked(place, monkeypatch):
    asked = []
    monkeypatch.setattr(_gates_plugin, "agents_in_pods", lambda _folder: list(range(100, 200)))
    monkeypatch.setattr(_gates_plugin, "within", lambda seconds, look: asked.append(seconds) or Looked(None, seconds, True))
    assert "does not answer" in _gates_plugin.probe_plugin("http://127.0.0.1:9/readyz", str(place), timeout=1)["error"]
    assert len(asked) == _gates_plugin.MOST_PODS
    ticks = itertools.count(0, 10)
    monkeypatch.setattr(_gates_plugin.time, "monotonic", lambda: next(ticks))
    asked.clear()
    _gates_plugin.probe_plugin("http://127.0.0.1:9/readyz", str(place), timeout=1)
    assert len(asked) == 1


def test_an_agent_in_a_pod_is_asked_in_its_own_network(place):
    """Two pods with the same address each; one of them has no chips."""
    url, pods = "http://127.0.0.1:8083/readyz", []
    try:
        for resource in (_gates_plugin.ACCESS, RESOURCE):
            pods.append(start(place, resource))
        until = time.monotonic() + 60
        while "error" in (answer := _gates_plugin.probe_plugin(url, str(place), timeout=2)) and time.monotonic() < until:
            assert [pod.poll() for pod in pods] == [None, None]
            time.sleep(0.1)
        assert answer["status"]["resource"] == RESOURCE
        assert _gates_plugin.agents_in_pods(str(place)) == sorted(pod.pid for pod in pods)
        # Of another cluster on the same machine.
        assert _gates_plugin.agents_in_pods(str(place / "none")) == []
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
    assert "does not answer" in _gates_plugin.probe_plugin(url, str(place), timeout=1)["error"]


def test_plugin_that_answers_nonsense(readyz, tmp_path):
    readyz.RequestHandlerClass.body = b"<html>"
    assert "not JSON" in _gates_plugin.probe_plugin(f"http://127.0.0.1:{readyz.server_port}/readyz", str(tmp_path))["error"]


@pytest.mark.parametrize(("said", "words"), [
    (b"SSH-2.0-OpenSSH_9\r\n", "answers no HTTP"),
    (b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "breaks off its answer"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "answers no HTTP"),
    (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (_gates_plugin.MOST_BYTES + 1) + b"{}", "not JSON"),
])
def test_whatever_else_listens_there_is_told_in_words(tmp_path, said, words):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            try:
                while True:
                    with server.accept()[0] as connection:
                        connection.recv(1000)
                        connection.sendall(said)
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/readyz"
        assert words in _gates_plugin.probe_plugin(url, str(tmp_path), timeout=20)["error"]
