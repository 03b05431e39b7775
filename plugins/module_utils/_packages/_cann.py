# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of CANN is on disk, in the new layout (/cann-VERSION, from 8.5.0) and the old one. Private to the collection.

Several versions may live side by side; the one that the vendor's link names is in force. Sources: CANN install guide 8.0.0 to
9.1.0 (toolkit and ops records), public listings of 8.3 trees (opp_kernel), runtime and ATB packages (measured).
"""

import os
import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import lookup
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import key

CANN_INFO = "/etc/Ascend/ascend_cann_install.info"


def observe(files, base):
    """Return the components cann_toolkit, cann_kernels, cann_nnrt and nnal."""
    base = _recorded_base(files) or base
    toolkits = _trees(files, base, "cann", r"cann-(.+)") + _trees(files, base + "/ascend-toolkit", "latest", r"([0-9].*)")
    runtimes = _trees(files, base + "/nnrt", "latest", r"([0-9].*)")
    installed = [_toolkit(files, tree) for tree in toolkits]
    # From 8.5.0 nnrt is the toolkit package with --whitelist=nnrt; its install.conf says so.
    nnrt = [_recorded(files, tree, "nnrt") for tree in runtimes] + [found for found in installed if found and found["whitelist"] == "nnrt"]
    unrecorded = [tree for tree, found in zip(toolkits, installed) if not found]
    return {
        "cann_toolkit": _choose(files, unrecorded, [found for found in installed if not found or found["whitelist"] != "nnrt"], "toolkit"),
        "cann_kernels": _choose(files, [], [_kernels(files, tree) for tree in toolkits], "kernels"),
        "cann_nnrt": _choose(files, runtimes, nnrt, "nnrt"),
        "nnal": _choose(files, [], [_atb(files, tree) for tree in _trees(files, base + "/nnal/atb", "latest", r"([0-9].*)")], "nnal"),
    }


def _recorded_base(files):
    """Return the base folder that the vendor recorded, when it is another than the usual one."""
    for value in (files.values(CANN_INFO) or {}).values():
        if value.startswith("/") and files.is_folder(value):
            return value.rstrip("/")
    return None


def _trees(files, folder, link, pattern):
    """Return the version folders in ``folder``, the one in force first. Folders whose name is no version (backups) are not taken."""
    current = files.link_name(folder + "/" + link)
    trees = []
    for name in files.names(folder):
        found = re.match(pattern + r"\Z", name)
        if name == link and current is None and files.is_folder(folder + "/" + name):
            # Single component packages make a plain folder of this name (runtime package, measured).
            trees.append({"path": folder + "/" + name, "current": True, "order": ()})
        elif found and files.is_folder(folder + "/" + name) and files.link_name(folder + "/" + name) is None:
            try:
                order = key(found.group(1))
            except FleetError:
                continue
            trees.append({"path": folder + "/" + name, "current": name == current, "order": order})
    return sorted(trees, key=lambda tree: (tree["current"], tree["order"]), reverse=True)


def _platform_folders(files, tree):
    return [tree["path"] + "/" + name for name in files.names(tree["path"]) if re.match(r"(x86_64|aarch64)-linux\Z", name)] + [tree["path"]]


def _recorded(files, tree, part):
    """Return what ascend_<part>_install.info of a tree says, or None. ``part`` may be a pattern."""
    for folder in _platform_folders(files, tree):
        for name in files.names(folder):
            if re.match(r"ascend_%s_install\.info\Z" % part, name):
                values = files.values(folder + "/" + name)
                version = lookup(values, "version")
                if version:
                    package, arch = lookup(values, "package_name"), lookup(values, "arch")
                    return dict(tree, version=version, package_name=package, arch=arch, record_path=folder + "/" + name)
    return None


def _toolkit(files, tree):
    found = _recorded(files, tree, "toolkit")
    if found:
        configurations = [files.values(folder + "/install.conf") for folder in _platform_folders(files, tree)]
        found["whitelist"] = lookup([values for values in configurations if values][0], "whitelist") if any(configurations) else None
    return found


def _kernels(files, tree):
    found = _recorded(files, tree, "(?:ops|kernels)(?:_[a-z0-9]+)?")
    if found:
        return found
    path = tree["path"] + "/opp_kernel/version.info"
    # Version is the internal number there (8.3.T5.0.B028), version_dir the one of the package.
    version = lookup(files.values(path), "version_dir", "Version")
    return dict(tree, version=version, package_name=None, arch=None, record_path=path) if version else None


def _atb(files, tree):
    path = tree["path"] + "/version.info"
    values = files.values(path)
    if not values:
        return None
    return dict(tree, version=os.path.basename(tree["path"]), package_name=None, arch=None, record_path=path)


def _choose(files, trees, candidates, part):
    """Return one component: the installed one in force, else the highest, else a tree without a record."""
    complete = [found for found in candidates if found]
    if complete:
        best = complete[0]
        record = {
            "installed": sorted({found["version"] for found in complete}),
            "package_name": best["package_name"],
            "arch": best["arch"],
            "record_path": best["record_path"],
        }
        return _result("present", best["version"], best["path"], None, record)
    for tree in trees:
        if _has_files(files, tree["path"]):
            reason = "%s is there, but has no ascend_%s_install.info with a version: an installation was cut." % (tree["path"], part)
            return _result("half_installed", None, tree["path"], reason, {})
    return _result("absent", None, None, None, {})


def _result(state, version, path, reason, record):
    return {"state": state, "version": version, "running": None, "path": path, "reason": reason, "record": record}


def _has_files(files, path):
    """Return whether there is any file: an uninstall leaves empty folders behind (runtime package, measured)."""
    return any(names for _folder, _folders, names in os.walk(files.real(path)))
