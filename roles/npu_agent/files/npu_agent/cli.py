# SPDX-License-Identifier: GPL-3.0-or-later
"""Command line of the agent."""

import argparse
import gc
import json
import os
import sys

from . import __version__, backends, captives, config, reload
from .eyes import Eyes
from .log import Log


def parser():
    top = argparse.ArgumentParser(prog="npu-agent", description="Serves the NPUs of this node to Kubernetes.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("discover", "print the NPUs of this node and whether they may take work"),
        ("serve", "the device plugin: register with kubelet and stay"),
        ("cdi", "the CDI specification of this node's NPUs, for container engines: print it, or what the options say"),
        ("labels", "keep this Node's labels and its taint right, from what `serve` tells; in a pod, with a ServiceAccount"),
        ("check", "check the configuration and end"),
        ("access", "in DaemonSet mode: have kubelet give the agent's own pod the driver's device nodes"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--config", metavar="FILE", help=f"configuration (default {config.PATH}, if it exists)")
        if name == "discover":
            command.add_argument("--json", action="store_true", help="for programs")
        if name == "cdi":
            act = command.add_mutually_exclusive_group()
            act.add_argument("--write", action="store_true", help="write the file, where it says something else")
            act.add_argument("--check", action="store_true", help="compare the file; ends with 1 where it says something else")
            act.add_argument("--remove", action="store_true", help="remove the file, if npu-agent wrote it")
            command.add_argument("--folder", metavar="FOLDER", type=folder,
                                 help="instead of `cdi_folder` of the configuration (default /etc/cdi)")
        if name == "labels":
            act = command.add_mutually_exclusive_group()
            act.add_argument("--once", action="store_true", help="bring the Node to what is right now, and end")
            act.add_argument("--remove", action="store_true", help="take off the labels and the taint that are ours, and end")
        if name == "check":
            command.add_argument("--settings", action="store_true", help="list all settings with their defaults")
    return top


def folder(text):
    try:
        return config.path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be {error}") from None


def main(argv=None):
    options = parser().parse_args(argv)
    source = reload.Source(options.config)
    try:
        settings, levels = source.load()
    except config.ConfigError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return 2
    if options.command == "check":
        return check(settings, levels, options.settings)
    if options.command == "discover":
        from .discover import discover  # noqa: PLC0415  serve does not need it

        return discover(settings, levels, options.json)
    if options.command == "cdi":
        return cdi(settings, options)
    if options.command == "labels":
        from .labels import labels  # noqa: PLC0415  it takes the kubernetes client along

        return labels(settings, options.once, options.remove)
    if options.command == "access":
        from .access import access  # noqa: PLC0415  serve does not need it

        return access(settings)
    return serve(settings, levels, source)


def serve(settings, levels, source):
    gc.disable()  # the service switches it on once everything is loaded
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # its fork handlers have no place in a process that starts a child
    log = Log(settings.log_level)
    log("backend", backend=settings.backend, cause=source.why)
    eyes = Eyes(settings, log)
    eyes.start()
    # asyncio does without it on Pythons that were built so, and nothing here speaks TLS: 4.5 MB of memory.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    from . import serve as service  # noqa: PLC0415  the driver is asked while gRPC loads

    status = service.serve(settings, levels, eyes, log, source)
    if status is None:
        captives.put(eyes.captives, os.environ)
        reload.execute()
    return status or 0


def check(settings, levels, list_settings):
    if list_settings:
        print("\n".join(f"{key}: {json.dumps(default)}  # {text}" for key, (default, _check, text) in config.SETTINGS.items()))
        return 0
    for note in [*levels.notes, *config.notes(settings)]:
        print(note)
    print("the configuration is good")
    return 0


def cdi(settings, options):
    """Ends with 0 when all is right, 1 when the file is not (or the chips could not all be seen: then nothing is written)."""
    from . import cdi_file  # noqa: PLC0415  serve has it where the backend needs it

    target = options.folder or settings.cdi_folder or cdi_file.DEFAULT_FOLDER
    path = cdi_file.path_in(target)
    try:
        if options.remove:
            print(f"{path} removed" if cdi_file.remove(target) else f"there is no {path}")
            return 0
        if not backends.of(settings).cdi:
            raise cdi_file.Trouble(f"the backend {settings.backend} has no CDI specification")
        looker = backends.of(settings).looker(settings)
        try:
            sight = looker.look()
        finally:
            looker.close()
        if not cdi_file.certain(sight):
            raise cdi_file.Trouble("; ".join(sight.problems) or "the driver names no chip")
        wanted, problems = cdi_file.wanted(sight, settings)
        for problem in problems + sight.problems:
            print(problem, file=sys.stderr)
        if options.write:
            print(f"{path} {cdi_file.put(target, wanted) or 'is right already'}")
        elif options.check:
            return compare(path, cdi_file.read(target), wanted)
        elif wanted is None:
            print("no NPU on this node that a container could get", file=sys.stderr)
        else:
            print(wanted, end="")
    except cdi_file.Trouble as trouble:
        print(trouble, file=sys.stderr)
        return 1
    return 0


def compare(path, found, wanted):
    if found == wanted:
        print(f"{path} is right" if wanted else f"there is no {path}, and no NPU that a container could get")
        return 0
    import difflib  # noqa: PLC0415  serve does not need it

    lines = difflib.unified_diff((found or "").splitlines(), (wanted or "").splitlines(), path, f"{path} as it should be", lineterm="")
    print("\n".join(lines))
    return 1
