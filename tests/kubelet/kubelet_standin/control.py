# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in's own handle: one JSON object a line on a unix socket, and `kubelet-ctl`, which speaks it."""

import argparse
import json
import os
import socket
import socketserver
import sys
import threading
import time

from .devices import AdmissionError

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


def main(argv=None):
    parser = argparse.ArgumentParser(prog="kubelet-ctl", description="Ask the kubelet stand-in, or have it do something.")
    parser.add_argument("--socket", default=os.environ.get("KUBELET_STANDIN_SOCKET", SOCKET))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("nodes", help="capacity and allocatable as the last node status update had them")
    commands.add_parser("allocatable", help="devices that can be allocated, by resource, at this moment")
    commands.add_parser("capacity", help="devices that there are, by resource, at this moment")
    commands.add_parser("devices", help="each device with its health and NUMA nodes")
    commands.add_parser("registrations", help="Register calls that came in")
    commands.add_parser("pods", help="pods with their devices")
    allocate = commands.add_parser("allocate", help="admit a pod that asks for N of RESOURCE")
    allocate.add_argument("count", type=int)
    allocate.add_argument("resource")
    allocate.add_argument("--pod", default=f"pod-{os.getpid()}")
    delete = commands.add_parser("delete", help="end a pod")
    delete.add_argument("pod")
    join = commands.add_parser("join", help="report the node's status to an API server, also after a restart")
    join.add_argument("--server", required=True, metavar="URL", help="HOST:PORT means http")
    join.add_argument("--token", default="", help="bearer token")
    restart = commands.add_parser("restart", help="as systemctl restart kubelet does")
    restart.add_argument("--down", type=float, default=0.0, metavar="SECONDS", help="time between stop and start")
    options = vars(parser.parse_args(argv))
    path, name = options.pop("socket"), options.pop("command")
    try:
        if name == "restart":
            before = ask(path, name="info")["start"]
            ask(path, name=name, **options)
            while True:
                time.sleep(0.05)
                answer = wait(path, 30 + options["down"])
                if answer["start"] != before:
                    break
        else:
            answer = ask(path, name=name, **options)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer, indent=2, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
