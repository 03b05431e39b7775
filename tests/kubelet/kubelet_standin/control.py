# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in's own handle: one JSON object a line on a unix socket. `kubelet-ctl` (ctl.py) speaks it, and tests by `ask`."""

import json
import os
import socket
import socketserver
import threading
import time

from .pods import AdmissionError

SOCKET = "/run/kubelet-standin.sock"


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            try:
                answer = {"ok": self.server.kubelet.command(**json.loads(line))}
            except AdmissionError as error:
                answer = {"error": str(error), "reason": error.reason}
            except (TypeError, KeyError, ValueError, AttributeError, OSError) as error:
                answer = {"error": f"{type(error).__name__}: {error}", "reason": "BadRequest"}
            self.wfile.write((json.dumps(answer) + "\n").encode())


class Control(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path, kubelet):
        if os.path.lexists(path):
            os.unlink(path)
        super().__init__(path, Handler)
        self.kubelet = kubelet
        threading.Thread(target=self.serve_forever, daemon=True).start()


def ask(path, **request):
    """The answer to one command; ValueError with the stand-in's words when it refuses."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(path)
        connection.sendall((json.dumps(request) + "\n").encode())
        with connection.makefile() as lines:
            line = lines.readline()
    if not line:
        raise ConnectionError("the kubelet stand-in ended before it answered")
    answer = json.loads(line)
    if "error" in answer:
        raise ValueError(f"{answer['reason']}: {answer['error']}")
    return answer["ok"]


def wait(path, seconds=30.0):
    """Until a (new) stand-in answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask(path, name="info")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
