# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking a component away, from every state that was seen, one way after the other. Private to the collection.

The script that a package installed, else the package itself (it works from every half-done state: driver package, measured), else, for a
version folder of CANN that a package of ours made, the folder: some are neither repaired nor removed by their package.
"""

import os

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import (
    _cann_folders,
    _cann_rules,
    _fetch,
    _good,
    _journal,
    _names,
    _options,
)
from ansible_collections.npu.fleet.plugins.module_utils._packages._call import check_path, start_words
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same

SCRIPT, PACKAGE, FOLDER = "script", "package", "folder"


def gone(now):
    """Return whether nothing is on disk; a driver may still be loaded."""
    return now["state"] == "absent" or (now["state"] == "reboot_pending" and not now["version"])


def targets(component, now, version=None):
    """Return [(version, path)] that are to go: of CANN all versions or the given one, of the others what there is."""
    if component not in _cann_rules.COMPONENTS:
        return [] if gone(now) else [(now["version"], now["path"])]
    record = now.get("record") or {}
    found = dict(record.get("broken") or {}, **(record.get("trees") or {}))
    return [(name, found[name]) for name in sorted(found) if version is None or same(name, version)]


def step(component, now, version=None):
    """Return what is to be done about a component that is to be absent; raise FleetError for what others brought."""
    left = targets(component, now, version)
    result = {"component": component, "action": "none", "from": now["version"], "to": None, "reason": None, "reboot": False, "code": None}
    if now["state"] == "foreign":
        reason = "%s Remove it the way it came; it is never removed from here." % now["reason"]
        raise FleetError(reason, "foreign", "decide", object=now["path"] or component)
    return dict(result, action="remove", reason="It is there, and wanted is nothing.") if left else result


def next_way(ways, tried):
    """Return the first of ``ways`` [(way, path)] that is not among ``tried``, or None."""
    return next((way for way in ways if list(way) not in [list(one) for one in tried]), None)


def no_way(component, path):
    """Return the error for what can not be taken away."""
    message = "%s can not be removed: there is no uninstall script at %s, and no package of it." % (component, path)
    hint = "Give src and sha256 of a package of it: for a playbook, pin it in npu_fleet_versions, with a depot and its checksums."
    return FleetError(message, "uninstaller_missing", "prepare", object=path, hint=hint)


class Remover(object):
    """The ways in which one component can go.

    ``engine_file``: a file of ours that the runtime's script may edit; ``provide()`` brings the package of the wish to the node, or
    returns None where it has to be sent first.
    """

    def __init__(self, wish, places, engine_file, provide):
        self._wish = wish
        self._places = places
        self._engine_file = engine_file
        self._provide = provide

    def left(self, observed):
        return targets(self._wish.component, observed["components"][self._wish.component], self._wish.version)

    def next(self, observed):
        """Return (way, path, words) to try next; None when nothing is left to try. Words are None for a folder, or without a package.

        What was tried since the last start of a removal is read from the journal: this may be another process than the one before.
        """
        now = observed["components"][self._wish.component]
        for version, path in self.left(observed):
            found = self._ways(now, version, path, self._engine_file())
            way = next_way([(name, path) for name in found], self._tried())
            if way:
                return way[0], path, found[way[0]]()
        return None

    def possible(self, observed):
        """Return whether there is a way to begin with; nothing is written for the answer."""
        now = observed["components"][self._wish.component]
        return all(self._ways(now, version, path, "") for version, path in self.left(observed))

    def _ways(self, now, version, path, engine_file):
        """Return {way: function that gives its words}, in order."""
        ways = {}
        current = dict(now, path=path) if same(version, now["version"]) else {"path": path}
        words = _options.remove_command(self._wish.component, current, engine_file, os.path.isfile)
        if words:
            ways[SCRIPT] = lambda: words
        package = self._package(version)
        if package:
            ways[PACKAGE] = lambda: self._package_words(package)
        if self._wish.component in _cann_rules.COMPONENTS and path and _cann_folders.owned(self._places.state_dir, path):
            ways[FOLDER] = lambda: None
        return ways

    def _package(self, version):
        """Return a function that gives the path of a package: a cached one of this version, the last one that was started, the wish's."""
        state_dir, cache_dir = self._places.state_dir, self._places.cache_dir
        component = _cann_rules.package_of(self._wish.component, version) if version else self._wish.component
        known = [_good.package_of(state_dir, cache_dir, component, version)] if version else []
        known += [entry for entry in reversed(_journal.entries(state_dir))
                  if entry.get("event") == "start" and entry.get("component") == self._wish.component
                  and (version is None or same(entry.get("version"), version))]
        for entry in known:
            source = entry.get("file") and entry.get("sha256") and _fetch.ready(entry["sha256"], entry["file"], cache_dir)
            if source:
                return lambda: source
        return self._provide if self._wish.src and self._fits(version) else None

    def _fits(self, version):
        # A package of CANN removes its own version only.
        if self._wish.component not in _cann_rules.COMPONENTS or version is None:
            return True
        return same(_names.parse(_fetch.file_name(self._wish.src))["version"], version)

    @staticmethod
    def _package_words(package):
        source = package()
        if source is None:
            return None
        check_path(source)
        # It takes no --quiet beside it (driver package, measured).
        return start_words(source) + ["--uninstall"]

    def _tried(self):
        tried = []
        for entry in _journal.entries(self._places.state_dir):
            if entry.get("component") == self._wish.component and entry.get("event") == "start":
                tried = []
            elif entry.get("component") == self._wish.component and entry.get("way"):
                tried.append((entry["way"], entry.get("path")))
        return tried
