# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of CANN is on disk, in the new layout (/cann-VERSION, from 8.5.0) and the old one. Private to the collection.

Several versions may live side by side; the one that the vendor's link leads to is in force. Sources: CANN install guide 8.0.0 to
9.1.0 (toolkit and ops records), public listings of 8.3 trees (opp_kernel), runtime and ATB packages (measured).
"""

import os
import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _cann_environment as environment
from ansible_collections.npu.fleet.plugins.module_utils._packages import _cann_links as links
from ansible_collections.npu.fleet.plugins.module_utils._packages import _journal
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import lookup
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import key, same

#: Our list of version folders that packages of ours made, in our state folder.
FOLDERS = "cann-folders.json"
CANN_INFO = "/etc/Ascend/ascend_cann_install.info"

# Where operators lie, one folder a chip (CANN 8.x and 9.x trees; opp_kernel: public listings of 8.3).
_KERNEL_FOLDERS = ("/opp/built-in/op_impl/ai_core/tbe/kernel", "/opp_kernel/built-in/op_impl/ai_core/tbe/kernel", "/opp_kernel/built-in")
_FAMILY_OF_FOLDER = {
    "310": "310", "310p": "310p", "310b": "310b", "910": "910", "910b": "a2", "910_93": "a3", "a3": "a3", "910_95": "a5", "950": "a5",
}
_OPS_RECORD = "(?:ops|kernels)(?:_[a-z0-9]+)?"


def observe(files, base):
    """Return the components cann_toolkit, cann_kernels, cann_nnrt and nnal."""
    recorded = _recorded_base(files)
    base = recorded or base
    trees = [_read_toolkit(files, tree) for tree in _toolkit_trees(files, base)]
    # From 8.5.0 nnrt is the toolkit package with --whitelist=nnrt; its install.conf says so.
    toolkits = [tree for tree in trees if tree["whitelist"] != "nnrt"]
    runtimes = [_read_nnrt(files, tree) for tree in _trees(files, base + "/nnrt", r"([0-9].*)")]
    runtimes += [tree for tree in trees if tree["whitelist"] == "nnrt"]
    libraries = [_read_atb(files, tree) for tree in _trees(files, base + "/nnal/atb", r"([0-9].*)")]
    found = {
        "cann_toolkit": _component(files, base, toolkits),
        "cann_kernels": _kernels(files, [tree for tree in trees if tree["version"]]),
        "cann_nnrt": _component(files, base, runtimes),
        "nnal": _component(files, base, libraries),
    }
    for name, component in found.items():
        component["record"].update(base=base, install_path=recorded, ours=_ours(files, name, component["record"]))
    environment.judge(files, found)
    return found


def set_links(files, base, path):
    """Return the links that lead to ``path`` once that version is in force."""
    for top in (base + "/nnrt", base + "/nnal/atb"):
        if os.path.dirname(path) == top:
            return links.latest_link(top, path)
    return links.toolkit_links(files, base, path)


def _ours(files, name, record):
    """Return the versions that packages of ours brought; what else is there is somebody's."""
    state_dir = files.real(_journal.STATE_DIR)
    folders = [path.lower() for path in _journal.read_json(os.path.join(state_dir, FOLDERS))]
    known = _journal.installed(state_dir).get(name) or {}
    found = dict(record.get("broken") or {}, **(record.get("trees") or {}))
    return sorted(version for version, path in found.items()
                  if path.lower() in folders or (known.get("file") and same(known.get("version"), version)))


def known_links(base):
    """Return every link that tells which version is in force."""
    old = base + "/ascend-toolkit"
    return [base + "/cann", old + "/latest", old + "/set_env.sh", base + "/nnrt/latest", base + "/nnal/atb/latest"]


def _recorded_base(files):
    """Return the base folder that the vendor recorded, when it is another than the usual one."""
    for value in (files.values(CANN_INFO) or {}).values():
        if value.startswith("/") and files.is_folder(value):
            return value.rstrip("/")
    return None


# --- version folders ------------------------------------------------------------------------------------------------

def _toolkit_trees(files, base):
    new = _trees(files, base, r"cann-(.+)", link="cann")
    # From 8.5.0 on the vendor keeps the old link for old users; it leads to the same folder then.
    old = _trees(files, base + "/ascend-toolkit", r"([0-9].*)")
    if any(tree["current"] for tree in new):
        old = [dict(tree, current=False) for tree in old]
    return _in_order(new + old)


def _trees(files, folder, pattern, link="latest"):
    """Return the version folders in ``folder``, the one in force first.

    Resolved through the link, never guessed by sorting a listing: names that are no version (backups, scripts) are not taken.
    """
    target = links.resolve(files, folder + "/" + link)
    trees = []
    for name in files.names(folder):
        found = re.match(pattern + r"\Z", name)
        path = folder + "/" + name
        if found and files.is_folder(path) and links.link_text(files, path) is None:
            try:
                trees.append(_tree(path, found.group(1), key(found.group(1)), path == target))
            except FleetError:
                continue
    # A plain folder in the place of the link, or a link to a folder elsewhere.
    if files.is_folder(target) and target not in [tree["path"] for tree in trees] and os.path.dirname(target) != os.path.dirname(folder):
        trees.append(_tree(target, None, (), True))
    return _in_order(trees)


def _tree(path, name, order, current):
    return {"path": path, "name": name, "order": order, "current": current, "version": None, "whitelist": None, "broken": None}


def _in_order(trees):
    return sorted(trees, key=lambda tree: (tree["current"], tree["order"]), reverse=True)


# --- one folder -----------------------------------------------------------------------------------------------------

def _platform_folders(files, path):
    return [path + "/" + name for name in files.names(path) if re.match(r"(x86_64|aarch64)-linux\Z", name)] + [path]


def _records(files, path, part):
    """Return what the files ascend_<part>_install.info of a folder say. ``part`` may be a pattern."""
    found = []
    for folder in _platform_folders(files, path):
        for name in files.names(folder):
            if re.match(r"ascend_%s_install\.info\Z" % part, name):
                values = files.values(folder + "/" + name)
                if lookup(values, "version"):
                    entry = {key: lookup(values, key) for key in ("version", "package_name", "arch")}
                    found.append(dict(entry, record_path=folder + "/" + name))
    return found


def _read_toolkit(files, tree):
    found = _records(files, tree["path"], "toolkit")
    cut = _cut_parts(files, tree["path"])
    if found and not cut:
        tree = dict(tree, **found[0])
        configurations = [files.values(folder + "/install.conf") for folder in _platform_folders(files, tree["path"])]
        tree["whitelist"] = next((lookup(values, "whitelist") for values in configurations if values), None)
        return tree
    if cut:
        return dict(tree, broken="%s/share/info/%s has a record, but no version.info" % (tree["path"], cut[0]))
    return _unrecorded(files, tree, "ascend_toolkit_install.info")


def _cut_parts(files, path):
    """Return the parts that were cut: version.info is written last, and both files must be there (runtime package, measured)."""
    info = path + "/share/info"
    names = [info + "/" + name for name in files.names(info)]
    return [
        os.path.basename(name) for name in names
        if files.exists(name + "/ascend_install.info") and not files.exists(name + "/version.info")
    ]


def _read_nnrt(files, tree):
    found = _records(files, tree["path"], "nnrt")
    return dict(tree, **found[0]) if found else _unrecorded(files, tree, "ascend_nnrt_install.info")


def _read_atb(files, tree):
    record_path = tree["path"] + "/version.info"
    if not files.values(record_path):
        return _unrecorded(files, tree, "version.info")
    if not files.exists(os.path.dirname(tree["path"]) + "/set_env.sh"):
        # Removing one version takes it away from the others, too (ATB, measured).
        return dict(tree, broken="%s/set_env.sh is missing" % os.path.dirname(tree["path"]))
    return dict(tree, version=tree["name"], package_name=None, arch=None, record_path=record_path)


def _unrecorded(files, tree, name):
    if tree["name"] and _has_files(files, tree["path"]):
        return dict(tree, broken="%s is there, but has no %s with a version" % (tree["path"], name))
    return tree


def _has_files(files, path):
    """Return whether there is any file: an uninstall leaves empty folders behind (runtime package, measured)."""
    return any(names for _folder, _folders, names in os.walk(files.real(path)))


# --- components -----------------------------------------------------------------------------------------------------

def _component(files, base, trees):
    """Return one component: the complete version in force, else the highest complete one, else one that was cut, else none."""
    complete = [tree for tree in trees if tree["version"]]
    broken = [tree for tree in trees if tree["broken"]]
    record = {
        "installed": sorted({tree["version"] for tree in complete}),
        "trees": {tree["version"]: tree["path"] for tree in reversed(complete)},
        "broken": {tree["name"]: tree["path"] for tree in broken if tree["name"]},
        "unsettled": [],
    }
    if complete:
        best = complete[0]
        record.update({key: best[key] for key in ("package_name", "arch", "record_path")})
        record["unsettled"] = links.astray(files, set_links(files, base, best["path"]))
        return _result("present", best["version"], best["path"], None, record)
    if broken:
        return _result("half_installed", None, broken[0]["path"], "%s: an installation was cut." % broken[0]["broken"], record)
    return _result("absent", None, None, None, record)


def _kernels(files, trees):
    """Return the operators in the tree in force; those in the tree of another version do not count for it."""
    found = [(tree, _read_kernels(files, tree["path"])) for tree in trees]
    trees = {kernels["version"]: tree["path"] for tree, kernels in reversed(found) if kernels}
    record = {"installed": sorted(trees), "trees": trees}
    if not found or not found[0][1]:
        return _result("absent", None, None, None, record)
    tree, kernels = found[0]
    record.update({key: kernels[key] for key in ("package_name", "arch", "record_path", "families")})
    return _result("present", kernels["version"], tree["path"], None, record)


def _read_kernels(files, path):
    records = _records(files, path, _OPS_RECORD)
    record_path = path + "/opp_kernel/version.info"
    # Version is the internal number there (8.3.T5.0.B028), version_dir the one of the package.
    version = lookup(files.values(record_path), "version_dir", "Version")
    if version and not records:
        records = [{"version": version, "package_name": None, "arch": None, "record_path": record_path}]
    return dict(records[0], families=_kernel_families(files, path)) if records else None


def _kernel_families(files, path):
    """Return the chip families that operators are there for; empty where no folder tells."""
    names = [name for folder in _KERNEL_FOLDERS for name in files.names(path + folder)]
    chips = [name.lower()[len("ascend"):] for name in names if name.lower().startswith("ascend")]
    return sorted({_FAMILY_OF_FOLDER[chip] for chip in chips if chip in _FAMILY_OF_FOLDER})


def _result(state, version, path, reason, record):
    return {"state": state, "version": version, "running": None, "path": path, "reason": reason, "record": record}
