# SPDX-License-Identifier: GPL-3.0-or-later
"""Command line of the agent."""

import argparse
import gc
import json
import os
import sys

from . import __version__, config, health
from .eyes import Eyes
from .log import Log
from .look import Looker


def parser():
    top = argparse.ArgumentParser(prog="npu-agent", description="Serves the NPUs of this node to Kubernetes.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("discover", "print the NPUs of this node and whether they may take work"),
        ("serve", "the device plugin: register with kubelet and stay"),
        ("check", "check the configuration and end"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--config", metavar="FILE", help=f"configuration (default {config.PATH}, if it exists)")
        if name == "discover":
            command.add_argument("--json", action="store_true", help="for programs")
        if name == "check":
            command.add_argument("--settings", action="store_true", help="list all settings with their defaults")
    return top


def main(argv=None):
    options = parser().parse_args(argv)
    try:
        settings = config.load(options.config)
    except config.ConfigError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return 2
    if options.command == "check":
        if options.settings:
            print("\n".join(f"{key}: {json.dumps(default)}  # {text}" for key, (default, _check, text) in config.SETTINGS.items()))
        else:
            print("the configuration is good")
        return 0
    if options.command == "discover":
        return discover(settings, options.json)
    return serve(settings)


def serve(settings):
    gc.disable()  # the service switches it on once everything is loaded
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # its fork handlers have no place in a process that starts a child
    eyes = Eyes(settings)
    eyes.start()
    from . import serve as service  # noqa: PLC0415  the driver is asked while gRPC loads

    return service.serve(settings, eyes, Log(settings.log_level))


def discover(settings, as_json):
    """Ends with 0 when DCMI told of every chip (also of none on a node without NPU), else with 1."""
    looker = Looker(settings)
    try:
        sight = looker.look()
    finally:
        looker.close()
    chips = []
    for chip in sight.chips:
        healthy, reason = health.judge(chip, settings.unhealthy_from)
        chips.append(dict(chip, healthy=healthy, reason=reason))
    if as_json:
        print(json.dumps({"present": sight.present, "family": sight.family, "chips": chips, "problems": sight.problems}, indent=2))
    elif not sight.present:
        print("no NPU on this node")
    else:
        print(f"family {sight.family or 'unknown'}, {len(chips)} chips")
        for chip in chips:
            numa = "-" if chip["numa_node"] is None else chip["numa_node"]
            word = {True: "healthy", False: "unhealthy", None: "unknown"}[chip["healthy"]]
            where = chip["pci_address"] or "-"
            print(f"  {chip['phy_id']:>3}  {where:14}  numa {numa}  {chip['name'] or '-':10}  {word}  {chip['reason']}".rstrip())
        for problem in sight.problems:
            print(f"  problem: {problem}")
    return 0 if sight.complete and not sight.problems else 1
