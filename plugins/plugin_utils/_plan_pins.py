# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which versions a node is pinned to: by a lock, by a release of the catalog, or by single versions. Pure. Private to the collection."""

from __future__ import annotations

import dataclasses
import os.path
import urllib.parse

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import layers_of
from ansible_collections.npu.fleet.plugins.module_utils._packages._fetch import check_url, is_url
from ansible_collections.npu.fleet.plugins.module_utils._packages._names import file_name
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same
from ansible_collections.npu.fleet.plugins.plugin_utils import _catalog, _lock
from ansible_collections.npu.fleet.plugins.plugin_utils._findings import finding
from ansible_collections.npu.fleet.plugins.plugin_utils._pinned import pinned_components


@dataclasses.dataclass(frozen=True)
class Pins:
    """Versions by key, the lock's packages by component (None without a lock), what to say about them."""

    versions: dict
    packages: dict | None = None
    release: str | None = None
    reason: str | None = None
    problems: tuple = ()

    @property
    def components(self):
        """Versions by component. A lock has each component that the vendor publishes for the family (no operators for the 310)."""
        pinned = pinned_components(self.versions)
        return pinned if self.packages is None else {name: version for name, version in pinned.items() if name in self.packages}


def pins_of(observed, wanted):
    """The pins of one node. Variables that contradict each other raise; what this node's family lacks is a problem of the node."""
    given = {key: str(value) for key, value in (wanted.get("versions") or {}).items() if value}
    pinned_components(wanted.get("versions") or {})
    lock, release = wanted.get("lock"), wanted.get("release")
    reason = wanted.get("unlisted_reason") or None
    layers = layers_of(observed.get("family"))
    if not layers:
        return Pins({}, problems=_not_for(observed["family"], given, lock, release))
    if not (lock or release):
        return Pins(given, reason=reason)
    if not observed.get("family"):
        # decide() says why for a pinned component; without a family there are no pins to say it of.
        families = ", ".join(observed.get("families") or []) or "unknown"
        message = f"Lock and release name versions by the family of the chips, and this node's is {families}."
        return Pins({}, reason=reason, problems=(finding("error", "family_unknown", "driver", message, "lspci -nn | grep -i 19e5"),))
    try:
        if lock:
            return _of_lock(lock, observed, release, given, reason)
        return _of_release(observed, release, given, wanted, reason)
    except FleetError as error:
        if error.code in ("versions_contradict", "lock_missing", "lock_invalid"):
            raise
        return Pins({}, reason=reason, problems=(finding("error", error.code, error.object or "driver", error.message, error.hint or ""),))


def _not_for(family, given, lock, release):
    """What is pinned for the whole fleet and is not for this node, which has another kind of chips."""
    sources = [name for name, value in (("npu_fleet_lock", lock), ("npu_fleet_release", release), ("npu_fleet_versions", given)) if value]
    if not sources:
        return ()
    message = (
        f"The NPU of this node is that of {family}: its driver is part of the kernel, and there are no packages for it. "
        f"{' and '.join(sources)} {'do' if len(sources) > 1 or given else 'does'} not apply here."
    )
    return (finding("note", "no_layers", family, message),)


def _of_lock(lock, observed, release, given, reason):
    lock = _read(lock, observed) if isinstance(lock, str) else lock
    selected = _lock.select(lock, observed["family"], observed["arch"])
    if release and str(release).lower() != str(lock["release"]).lower():
        hint = f"Run `ansible-playbook npu.fleet.lock` to lock {release}, or set npu_fleet_release back."
        raise _contradiction("npu_fleet_release", release, "the lock", lock["release"] or "no release", hint)
    _agree(selected["versions"], given, "the lock")
    versions = {key: version for key, version in selected["versions"].items() if version}
    return Pins(versions, selected["packages"], lock["release"], reason or lock["unlisted_reason"])


def _read(path, observed):
    """The lock in a file. Where there is none yet, what it must have is known only here."""
    try:
        return _lock.read(path)
    except FleetError as error:
        if error.code == "lock_missing":
            error.hint = f"{error.hint} This node is {observed['family']}/{observed['arch']}, which npu_fleet_lock_for must have."
        raise


def _of_release(observed, release, given, wanted, reason):
    catalog = _catalog.load(wanted.get("catalog_dirs") or ())
    try:
        versions = _catalog.resolve(catalog, observed["family"], release)
    except FleetError as error:
        if error.code != "release_incomplete" or not given:
            raise
        # What its row does not know may be given beside it.
        versions = _catalog.resolve(catalog, observed["family"], release, allow_unlisted=bool(reason), **given)
    _agree(versions, given, f"release {release}")
    return Pins(versions, None, str(release), reason)


def _agree(versions, given, source):
    for key, version in given.items():
        if versions.get(key) and not same(version, versions[key]):
            raise _contradiction(f"npu_fleet_versions.{key}", version, source, versions[key])


def _contradiction(name, value, source, other, hint=None):
    return FleetError(
        f"{name} is {value}, {source} says {other}.",
        code="versions_contradict",
        phase="plan",
        object=name,
        observed=value,
        hint=hint or "Give one of npu_fleet_lock, npu_fleet_release and npu_fleet_versions, or let them agree.",
    )


# --- files ------------------------------------------------------------------------------------------------------------

def package_source(depot, name, source=None):
    """The place of one package file: a path on the node or an HTTP(S) URL, both given as the folder that holds the files.

    Without a depot it is where the lock has seen the file; a step that needs no file has no place.
    """
    if not name:
        return ""
    if not depot and source:
        return source
    if not depot:
        raise FleetError(
            "No depot is set, so no package can be found.",
            code="depot_missing",
            phase="plan",
            hint="Set npu_fleet_depot to an http(s):// URL or to an absolute path on the nodes.",
        )
    if is_url(depot):
        check_url(depot)
        parts = urllib.parse.urlsplit(depot)
        return urllib.parse.urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}", fragment=""))
    if not depot.startswith("/"):
        raise FleetError(
            "npu_fleet_depot is neither an http(s):// URL nor an absolute path.",
            code="depot_invalid",
            phase="plan",
            hint="Use an http(s):// URL or an absolute path on the nodes.",
        )
    return os.path.join(depot, name)


def with_files(steps, observed, wanted, pins):
    """(steps with file, sha256, size and source of their packages, findings about those that are not known).

    The depot is not part of it: a plan is printed, and the address may hold a password. The lock's source has none.
    """
    whole, found = [], []
    missing: list[tuple[str, str]] = []
    sums = wanted.get("checksums") or {}
    for step in steps:
        package = dict.fromkeys(("file", "sha256", "size", "source"))
        if step["action"] not in ("none", "refuse", "switch"):
            try:
                known = _package(step, observed, sums, pins)
            except FleetError as error:
                found.append(finding("error", error.code, step["component"], error.message, error.hint or ""))
            else:
                package.update(known)
                if known["sha256"] is None:
                    missing.append((step["component"], known["file"]))
        whole.append(dict(step, **package))
    if missing:
        names = [name for _component, name in missing]
        message = f"No checksum is known for {', '.join(names)}, and nothing runs without one."
        hint = f"Run `sha256sum {' '.join(names)}` in the depot, compare with the vendor, and add them to npu_fleet_checksums."
        found.append(finding("error", "checksum_missing", missing[0][0], message, hint))
    needed = next((step for step in whole if step["file"]), None)
    if needed:
        package_source(wanted.get("depot"), needed["file"], needed["source"])
    return whole, found


def _package(step, observed, sums, pins):
    if pins.packages is None:
        name = file_name(step["component"], step["to"], observed["family"], observed["arch"])
        return {"file": name, "sha256": sums.get(name)}
    return {key: pins.packages[step["component"]][key] for key in ("file", "sha256", "size", "source")}
