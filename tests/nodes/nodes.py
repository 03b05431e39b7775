# SPDX-License-Identifier: GPL-3.0-or-later
"""Test nodes on this machine: `python3 tests/nodes/nodes.py --help`. As a library: `from nodes import Nodes`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from npu_nodes import SUITE, SUITES, Call, Nodes, NodesError, default_tag, numbered, to_yaml

__all__ = ["Call", "Nodes", "NodesError"]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="nodes.py",
        description="Systemd hosts in containers, with an engine of their own, for tests that need real reboots, ssh and nested engines.",
        epilog="Everything is kept in NPU_NODES_DIR (default /var/tmp/npu-fleet-nodes). See README.md beside this file.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")

    def suite(verb: argparse.ArgumentParser) -> None:
        verb.add_argument("--suite", choices=list(SUITES), default=SUITE, help="Debian release of the base system (default %(default)s)")

    prepare = command("prepare", "start the engine and make the base system (about a minute the first time)")
    prepare.add_argument("--packages", default="", metavar="A,B,...", help="further Debian packages of the base system")
    suite(prepare)
    image = command("image", "build the node image from the base system and overlays")
    image.add_argument("--overlay", action="append", default=[], metavar="DIR", help="tree to lay over the system; may be repeated")
    image.add_argument("--tag", help="name of the image, for `up --tag` (default latest, or the suite)")
    suite(image)
    up = command("up", "boot nodes and wait until they take ssh")
    up.add_argument("name", nargs="+")
    up.add_argument("--count", type=int, help="boot NAME1 to NAMEn instead of NAME")
    up.add_argument("--tag", help="image to boot (default latest, or the suite)")
    suite(up)
    down = command("down", "remove nodes; all of them if none is named")
    down.add_argument("name", nargs="*")
    destroy = command("destroy", "remove nodes, images, engine, network, mounts and the folder")
    destroy.add_argument("--keep-cache", action="store_true", help="keep the built base system")
    run = command("exec", "run a command on a node through the engine; not counted")
    run.add_argument("name")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...")
    ip = command("ip", "print a node's address")
    ip.add_argument("name")
    inventory = command("inventory", "print an Ansible inventory of the nodes, with host-key checking")
    inventory.add_argument("name", nargs="*")
    inventory.add_argument("--json", action="store_true", help="print it as JSON")
    calls = command("calls", "print how many remote executions a node has seen")
    calls.add_argument("name")
    calls.add_argument("--list", action="store_true", help="print them, shortened, before the count")
    calls.add_argument("--reset", action="store_true", help="count from nought from now on (after printing)")
    reboot = command("reboot", "reboot a node and wait for it")
    reboot.add_argument("name")
    command("status", "print what there is")
    docker = command("docker", "call the docker client on the nodes' engine")
    docker.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- ARGS...")
    return top


def rest(argv: list[str]) -> list[str]:
    words = argv[1:] if argv[:1] == ["--"] else argv
    if not words:
        raise NodesError("nothing to run; write it after --, as in `nodes.py exec NAME -- uname -r`")
    return words


def client(nodes: Nodes, words: list[str]) -> int:
    """Hand this terminal or pipe to the docker client, and its exit code back."""
    if not nodes.engine.alive():
        raise NodesError("the engine is not running; start it by `python3 tests/nodes/nodes.py prepare`")
    return subprocess.run(["docker", *words], env={**os.environ, **nodes.engine.env}, check=False).returncode


def print_calls(nodes: Nodes, args: argparse.Namespace) -> None:
    calls = nodes.calls(args.name)
    if args.list:
        for call in calls:
            command = call.command if len(call.command) <= 110 else call.command[:107] + "..."
            print(f"{call.time} {call.user} {call.kind:5} {command}")
    print(len(calls))
    if args.reset:
        nodes.reset_calls(args.name)


def status(nodes: Nodes) -> None:
    alive = nodes.engine.alive()
    print(f"folder   {nodes.folder}")
    print(f"engine   {'running, DOCKER_HOST=' + nodes.engine.env['DOCKER_HOST'] if alive else 'not running'}")
    print(f"network  {nodes.subnet}, gateway {nodes.gateway}, bridge {nodes.engine.bridge}")
    for name in nodes.names() if alive else ():
        print(f"node     {name} {nodes.ip(name)}")


def dispatch(args: argparse.Namespace) -> int:
    nodes = Nodes()
    match args.command:
        case "prepare":
            nodes.prepare(args.packages.split(","), args.suite)
        case "image":
            nodes.image(args.overlay, args.tag, args.suite)
        case "up":
            nodes.up([name for given in args.name for name in numbered(given, args.count)], args.tag or default_tag(args.suite))
        case "down":
            nodes.down(args.name)
        case "destroy":
            nodes.destroy(args.keep_cache)
        case "exec":
            nodes.ip(args.name)
            terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
            return client(nodes, ["exec", "--interactive", *terminal, args.name, *rest(args.argv)])
        case "docker":
            return client(nodes, rest(args.argv))
        case "ip":
            print(nodes.ip(args.name))
        case "inventory":
            data = nodes.inventory(args.name)
            print(json.dumps(data, indent=2) if args.json else to_yaml(data), end="\n" if args.json else "")
        case "calls":
            print_calls(nodes, args)
        case "reboot":
            nodes.reboot(args.name)
        case "status":
            status(nodes)
    return 0


def main(argv: list[str] | None = None) -> int:
    try:
        return dispatch(parser().parse_args(argv))
    except NodesError as error:
        print(f"nodes: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"nodes: error: {error}; the logs are in {Nodes().engine.logs}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("nodes: interrupted; `nodes.py destroy` clears away what is there", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
