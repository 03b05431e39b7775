# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container engines of a node: which there are, and which of them this release can configure. Private to the collection.

An engine is one module beside this one with ``installed(root)`` and ``observe(run, root, timeout)``; to add one, write it and enter it
in ENGINES.
"""

from ansible_collections.npu.fleet.plugins.module_utils import _engine_docker
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program

ENGINES = {"docker": _engine_docker}

# Engines that are known but not configured by this release, and the program that shows each.
LATER = {"containerd": "containerd", "crio": "crio", "k3s": "k3s", "rke2": "rke2"}


def observe(run, root="/", timeout=20):
    """Return the list of engines on the node; [] when there is none. Never raises: what went wrong stands in the engine's ``error``."""
    engines = []
    for name in sorted(ENGINES):
        try:
            if ENGINES[name].installed(root):
                engines.append(ENGINES[name].observe(run, root, timeout))
        except Exception as error:  # a broken engine must not hide the rest of the node from npu_info
            engines.append(_unknown(name, error))
    return engines


def _unknown(name, error):
    reason = "%s: %s" % (type(error).__name__, error)
    return {
        "name": name,
        "version": None,
        "active": False,
        "config_path": None,
        "config_sha256": None,
        "runtimes": {},
        "default_runtime": None,
        "live_restore": None,
        "containers_running": None,
        "configured": {"runtimes": {}, "default_runtime": None, "error": reason},
        "error": reason,
    }


def choose(wanted, root="/"):
    """Return the module of the engine to configure; ``wanted`` is an engine's name or ``auto``."""
    if wanted in ENGINES:
        if not ENGINES[wanted].installed(root):
            raise FleetError(
                "%s is not installed on this host." % wanted, "engine_missing", phase="detect", object=wanted,
                hint="Install it (%s), or set npu_runtime_engine: auto (engine of this module)." % ENGINES[wanted].INSTALL,
            )
        return ENGINES[wanted]
    if wanted in LATER:
        raise unsupported(wanted)
    for name in sorted(ENGINES):
        if ENGINES[name].installed(root):
            return ENGINES[name]
    others = others_installed(root)
    if others:
        raise unsupported(others[0])
    raise FleetError(
        "No container engine was found on this host.",
        "engine_missing",
        phase="detect",
        hint="Install one: %s." % _engine_docker.INSTALL,
    )


def others_installed(root="/"):
    """Return the names of installed engines that this release can not configure."""
    return [name for name in sorted(LATER) if find_program(LATER[name], root)]


def unsupported(name):
    """Return the error for an engine that is known but not supported."""
    return FleetError(
        "The engine %s is not supported in this release." % name,
        "engine_unsupported",
        phase="detect",
        object=name,
        hint="Supported: %s. Register the runtime in the configuration of %s by hand." % (", ".join(sorted(ENGINES)), name),
    )
