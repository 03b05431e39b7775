# SPDX-License-Identifier: GPL-3.0-or-later
"""`kubelet-ctl`: ask the kubelet stand-in, or have it do something. Answers are JSON on stdout; 1 and words on stderr when it refuses."""

import argparse
import json
import os
import sys
import time

from .control import SOCKET, ask, wait


def pair(text):
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def manifest(path):
    with (sys.stdin if path == "-" else open(path, encoding="utf-8")) as stream:
        return json.load(stream)


def parse(argv):
    parser = argparse.ArgumentParser(prog="kubelet-ctl", description="Ask the kubelet stand-in, or have it do something.")
    parser.add_argument("--socket", default=os.environ.get("KUBELET_STANDIN_SOCKET", SOCKET))
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in [
        ("nodes", "capacity and allocatable as the last node status update had them"),
        ("allocatable", "devices that can be allocated, by resource, at this moment"),
        ("capacity", "devices that there are, by resource, at this moment"),
        ("devices", "each device with its health and NUMA nodes"),
        ("registrations", "Register calls that came in"),
        ("plugins", "by resource: endpoint, options, open streams, number of calls per method"),
        ("pods", "pods with their devices, and what their containers got"),
        ("report", "update the node's status now"),
        ("drop-socket", "unlink kubelet.sock and go on"),
    ]:
        commands.add_parser(name, help=text)

    history = commands.add_parser("history", help="what came from plugins: registrations, streams, lists, with monotonic times")
    watch = commands.add_parser("watch", help="the same as it comes, one JSON object a line, until interrupted")
    for command in (history, watch):
        command.add_argument("--after", type=int, default=0, metavar="N", help="entries with a higher number only")
        command.add_argument("--kind", choices=["register", "stream", "list", "end"])
        command.add_argument("--resource")

    allocate = commands.add_parser("allocate", help="admit a pod with one container that asks for N of RESOURCE")
    allocate.add_argument("count", type=int)
    allocate.add_argument("resource")
    allocate.add_argument("--pod", default=f"pod-{os.getpid()}")
    allocate.add_argument("--env", type=pair, action="append", default=[], metavar="NAME=VALUE", help="of the pod's own container")
    create = commands.add_parser("create", help="admit a pod from a manifest")
    create.add_argument("manifest", type=manifest, metavar="FILE", help="a Pod in JSON; - for stdin")
    for command in (allocate, create):
        command.add_argument("--schedule", type=float, metavar="SECONDS", help="wait for the scheduler, who goes by the node's status")
    for name, text in [("delete", "take a pod away"), ("finish", "end a pod's containers; it is Succeeded")]:
        commands.add_parser(name, help=text).add_argument("pod")

    join = commands.add_parser("join", help="report the node's status to an API server, also after a restart")
    join.add_argument("--server", required=True, metavar="URL", help="HOST:PORT means http")
    join.add_argument("--token", default="", help="bearer token")
    join.add_argument("--pods", action="store_true", help="take the pods that end by themselves, too, and run their containers by docker")
    restart = commands.add_parser("restart", help="as systemctl restart kubelet does")
    restart.add_argument("--down", type=float, default=0.0, metavar="SECONDS", help="time between stop and start")
    restart.add_argument("--same-inode", action="store_true", help="the new kubelet.sock has the number of the old one")
    restart.add_argument("--replace-folder", action="store_true", help="the folder of plugins is a new, empty one")
    restart.add_argument("--reboot", action="store_true", help="as after a reboot of the host: no container runs")
    commands.add_parser("end-stream", help="end ListAndWatch from kubelet's side").add_argument("resource")
    rough = commands.add_parser("rough", help="rough handling of plugins until the next restart: list=0, dial_delay=SECONDS, refuse=1")
    rough.add_argument("values", type=pair, nargs="*", metavar="NAME=VALUE")
    return vars(parser.parse_args(argv))


def run(path, name, options):
    if name == "restart":
        before = ask(path, name="info")["start"]
        ask(path, name=name, **options)
        while True:
            time.sleep(0.05)
            answer = wait(path, 30 + options["down"])
            if answer["start"] != before:
                return answer
    if name == "watch":
        while True:
            for entry in ask(path, name="history", seconds=60, **options):
                print(json.dumps(entry, sort_keys=True), flush=True)
                options["after"] = entry["n"]
    if name == "rough":
        options = dict(options["values"])
    if "env" in options:
        options["env"] = dict(options["env"])
    return ask(path, name=name.replace("-", "_"), **options)


def main(argv=None):
    options = parse(argv)
    path, name = options.pop("socket"), options.pop("command")
    try:
        answer = run(path, name, options)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    print(json.dumps(answer, indent=2, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
