# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container engines of a node: which there are, and which of them is to be configured. Private to the collection.

An engine is one module beside this one (interface: ``_engine_base.py``); to add one, write it and enter it in ENGINES.
"""

from ansible_collections.npu.fleet.plugins.module_utils import (
    _engine_containerd,
    _engine_crio,
    _engine_docker,
    _engine_isulad,
    _engine_k3s,
    _engine_kubelet,
    _engine_rke2,
)
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

ENGINES = {
    "containerd": _engine_containerd, "crio": _engine_crio, "docker": _engine_docker, "isulad": _engine_isulad, "k3s": _engine_k3s,
    "rke2": _engine_rke2,
}

# Engines of kubelet that are known, never configured, and why.
UNSUPPORTED = {
    "k0s": "k0s makes containerd's configuration itself, out of its own folder /etc/k0s/containerd.d, which this collection does not write",
    "microk8s": "microk8s keeps containerd's configuration as a template in its snap, which this collection does not write",
}


def observe(run, root="/", timeout=20):
    """Return the list of engines on the node; [] when there is none. Never raises: what went wrong stands in the engine's ``error``."""
    names = [name for name in sorted(ENGINES) if _installed(name, root)]
    kubelet = _kubelet(run, root, timeout) if names else None
    engines = []
    for name in names:
        try:
            entry = ENGINES[name].observe(run, root, timeout)
        except Exception as error:  # a broken engine must not hide the rest of the node from npu_info
            entry = _unknown(name, error)
        entry["kubelet"] = kubelet_uses(kubelet, name)
        if name == "docker" and entry["kubelet"]:
            # Its pods' devices go through cri-dockerd, and nothing says whether that hands CDI names on.
            entry["cdi"] = None
        elif entry["cdi"] and entry["kubelet"]:
            entry["cdi"] = _engine_kubelet.cdi_by_plugins(_engine_kubelet.version_of(kubelet, run, root, timeout))
        engines.append(entry)
    return engines


def _installed(name, root):
    try:
        return ENGINES[name].installed(root)
    except Exception:  # then observe says what is wrong
        return True


def _kubelet(run, root, timeout):
    try:
        return _engine_kubelet.endpoint(run, root, timeout)
    except Exception as error:  # as above
        return {"installed": True, "running": False, "endpoint": None, "source": str(error), "version": None, "kind": None}


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
        "kubelet": None,
        "cdi": None,
        "error": reason,
    }


def kubelet_uses(kubelet, name):
    """Return whether kubelet uses the engine ``name``; None where that is not known. Pure; ``kubelet``: of ``_engine_kubelet.endpoint``."""
    if not kubelet["installed"]:
        return False
    return _engine_kubelet.engine_of(kubelet) == name if kubelet["endpoint"] else None


def choose(wanted, run, root="/", timeout=20):
    """Return the module of the engine to configure, and whether kubelet uses it (None: not known).

    ``wanted`` is an engine's name or ``auto``. Raises FleetError ``engine_missing``, ``engine_ambiguous`` or ``engine_unsupported``.
    """
    kubelet = _engine_kubelet.endpoint(run, root, timeout)
    name = decide(wanted, [name for name in sorted(ENGINES) if ENGINES[name].installed(root)], kubelet)
    return ENGINES[name], kubelet_uses(kubelet, name)


def decide(wanted, installed, kubelet):
    """Return the name of the engine to configure; never guesses. Pure.

    ``installed``: names of engines, ``kubelet``: what ``_engine_kubelet.endpoint`` returns. Raises as ``choose`` does.
    """
    uses = _engine_kubelet.engine_of(kubelet)
    if wanted != "auto":
        if wanted in installed or (wanted == uses and kubelet["running"]):
            return wanted
        raise _missing(wanted)
    if kubelet["endpoint"]:
        return _of_kubelet(uses, installed, kubelet)
    names = sorted(installed)
    # dockerd needs a containerd; where no kubelet is, that one is docker's.
    if not kubelet["installed"] and "docker" in names and "containerd" in names:
        names.remove("containerd")
    if not names:
        raise FleetError(
            "No container engine was found on this host.",
            "engine_missing",
            phase="detect",
            hint="Install one: %s." % _engine_docker.INSTALL,
        )
    if len(names) > 1:
        why = " Kubelet is installed, but not which of them it uses: %s." % kubelet["source"] if kubelet["installed"] else ""
        raise _ambiguous(names, why)
    return names[0]


def _ambiguous(names, why):
    return FleetError(
        "This host has more than one container engine: %s.%s Nothing was changed." % (" and ".join(names), why),
        "engine_ambiguous",
        phase="detect",
        observed=", ".join(names),
        hint="Say which one: npu_runtime_engine: %s (engine of this module)." % " or ".join(names),
    )


def _of_kubelet(uses, installed, kubelet):
    if uses in UNSUPPORTED:
        raise unsupported(uses, UNSUPPORTED[uses])
    if uses is None:
        raise FleetError(
            "Kubelet uses an engine that is not known, at %s (%s). Nothing was changed." % (kubelet["endpoint"], kubelet["source"]),
            "engine_unsupported",
            phase="detect",
            object=kubelet["endpoint"],
            hint="Say which one: npu_runtime_engine: %s (engine of this module)." % " or ".join(sorted(installed) or sorted(ENGINES)),
        )
    if uses not in installed and not kubelet["running"]:
        raise _missing(uses, " Kubelet is set up to use it (%s)." % kubelet["source"])
    others = [name for name in installed if name != uses]
    if not kubelet["running"] and uses in _engine_kubelet.EMBEDDING and others:
        # It may lie there unused, and would be started beside the engine that works.
        why = " %s is installed and does not run." % uses
        raise _ambiguous(sorted(set(installed) | {uses}), why)
    return uses


def _missing(name, why=""):
    install = ENGINES[name].INSTALL if name in ENGINES else name
    return FleetError(
        "%s is not installed on this host.%s" % (name, why), "engine_missing", phase="detect", object=name,
        hint="Install it (%s), or set npu_runtime_engine: auto (engine of this module)." % install,
    )


def others_installed(name, root="/"):
    """Return the names of other engines on this host; the containerd that docker needs is none."""
    found = [other for other in sorted(ENGINES) if other != name and ENGINES[other].installed(root)]
    return [other for other in found if not (name == "docker" and other == "containerd")]


def unsupported(name, reason):
    """Return the error for an engine that is known but not supported."""
    return FleetError(
        "The engine %s is not supported in this release: %s." % (name, reason),
        "engine_unsupported",
        phase="detect",
        object=name,
        hint="Supported: %s. Register the runtime in the configuration of %s by hand." % (", ".join(sorted(ENGINES)), name),
    )
