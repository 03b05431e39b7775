# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this node has proved: the sets of versions that passed the gates, and those that failed. Private to the collection.

The good sets are the way back. Their packages stay in the cache, so that going back needs no network.
"""

import copy
import os
import shutil

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import listed
from ansible_collections.npu.fleet.plugins.module_utils._packages import _fetch, _journal, _names, _runfile
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same

CACHE_DIR = "/var/cache/npu-fleet"
_FILE = "sets.json"
_KEPT = 20


def read(state_dir=_journal.STATE_DIR, cache_dir=CACHE_DIR):
    """Return {installed, good: {current, previous}, failed, unlisted_reason} of this node.

    A good set is {components: {component: {version, file, sha256, cached}}, time} or None; ``cached`` tells whether its package
    lies in the cache and is whole. A failed one is {components: {component: version}, reason, time}.
    """
    stored = _stored(state_dir)
    good = {name: _with_cached(stored["good"].get(name), cache_dir) for name in ("current", "previous")}
    return dict(stored, installed=_journal.installed(state_dir), good=good)


def promote(state_dir, versions, cache_dir=CACHE_DIR, check_mode=False):
    """Note that these versions passed the gates together; return whether that was not known before."""
    adopted = [_journal.adopt(state_dir, name, version, check_mode) for name, version in sorted(versions.items())]
    if not check_mode:
        _tidy(state_dir, cache_dir)
    found = {name: package_of(state_dir, cache_dir, name, version) for name, version in versions.items()}

    def change(stored):
        current = stored["good"].get("current")
        # What failed is driver and firmware, what passes may have CANN beside them.
        stored["failed"] = [one for one in stored["failed"] if not _among(one["components"], versions)]
        if current and _same_versions(_versions(current), versions):
            # Known. Only what was not known of its packages is filled in.
            for name, package in found.items():
                if package["sha256"]:
                    current["components"][name] = package
            return
        stored["good"] = {"current": {"components": found, "time": _journal._now()}, "previous": current}

    return _update(state_dir, change, check_mode) or any(adopted)


def _tidy(state_dir, cache_dir):
    """Remove what a cut run has unpacked and no run has come back to: the plan has nothing to do where its package was through."""
    try:
        with _journal.HostLock(state_dir, "cache"):
            shutil.rmtree(os.path.join(cache_dir, "work"), ignore_errors=True)
    except FleetError:
        pass  # Somebody is at work in it.


def mark_failed(state_dir, components, reason, check_mode=False):
    """Note that these versions (component -> version) did not work on this node; return whether that was not known before."""
    entry = {"components": dict(components), "reason": reason, "time": _journal._now()}

    def change(stored):
        known = [one for one in stored["failed"] if _same_versions(one["components"], components)]
        if known and known[-1]["reason"] == reason:
            return
        stored["failed"] = ([one for one in stored["failed"] if one not in known] + [entry])[-_KEPT:]

    return _update(state_dir, change, check_mode)


def clear_failed(state_dir, components=None, check_mode=False):
    """Forget that these versions failed; without any, all of them. Return whether there was something to forget."""

    def change(stored):
        stored["failed"] = [one for one in stored["failed"] if components and not _same_versions(one["components"], components)]

    return _update(state_dir, change, check_mode)


def note_reason(state_dir, reason):
    """Note why versions that are in no release are installed; None when they are in one."""

    def change(stored):
        stored["unlisted_reason"] = reason

    return _update(state_dir, change, False)


def kept(state_dir):
    """Return the checksums of the packages that the way back needs, or None while no set has passed the gates."""
    good = _stored(state_dir)["good"]
    if not good.get("current"):
        return None
    sets = [one["components"] for one in good.values() if one] + [_journal.installed(state_dir)]
    return {package["sha256"].lower() for components in sets for package in components.values() if package.get("sha256")}


def package_of(state_dir, cache_dir, component, version):
    """Return {version, file, sha256} of an installed component: from the record, else from the cache (the record may be lost)."""
    entry = _journal.installed(state_dir).get(component) or {}
    if same(entry.get("version"), version) and entry.get("sha256"):
        return {"version": version, "file": entry.get("file"), "sha256": entry["sha256"]}
    for sha256, name in _cached(cache_dir):
        try:
            package = _names.parse(name)
        except FleetError:
            continue
        if package["component"] == component and same(package["version"], version):
            return {"version": version, "file": name, "sha256": sha256}
    return {"version": version, "file": None, "sha256": None}


def _cached(cache_dir):
    for folder in listed(cache_dir):
        if len(folder) == 64:
            for name in listed(os.path.join(cache_dir, folder)):
                yield folder, name


def _with_cached(one, cache_dir):
    if not one:
        return None
    components = {
        name: dict(package, cached=bool(package.get("sha256") and package.get("file")) and _is_whole(
            os.path.join(cache_dir, package["sha256"], package["file"]), package["sha256"]))
        for name, package in one["components"].items()
    }
    return dict(one, components=components)


def _is_whole(path, sha256):
    """A damaged package must be seen before the one that goes before it is written. Read only where its note does not fit any more."""
    try:
        return _fetch._known_good(path, sha256) or _runfile.sha256_of(path) == sha256.lower()
    except OSError:
        return False


def _stored(state_dir):
    return _whole(_journal.read_json(os.path.join(state_dir, _FILE)))


def _whole(stored):
    good, failed = stored.get("good"), stored.get("failed")
    return {
        "good": good if isinstance(good, dict) else {"current": None, "previous": None},
        "failed": failed if isinstance(failed, list) else [],
        "unlisted_reason": stored.get("unlisted_reason"),
    }


def _update(state_dir, change, check_mode):
    def apply(value):
        before, after = _whole(value), copy.deepcopy(_whole(value))
        change(after)
        if after != before:
            value.clear()
            value.update(after)

    path = os.path.join(state_dir, _FILE)
    if check_mode:
        before = _journal.read_json(path)
        after = copy.deepcopy(before)
        apply(after)
        return after != before
    return _journal.update_json(path, apply)


def _versions(one):
    return {name: package["version"] for name, package in one["components"].items()}


def _among(part, versions):
    return all(name in versions and same(version, versions[name]) for name, version in part.items())


def _same_versions(left, right):
    return set(left) == set(right) and all(same(left[name], right[name]) for name in left)
