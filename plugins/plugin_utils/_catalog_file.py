# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading the catalog's files: the collection's own folder, then the user's folders. Private to the collection.

A row of a user's folder takes the place of the row of the same release that was read before it; everything else is added.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES
from ansible_collections.npu.fleet.plugins.module_utils._packages import _versions
from ansible_collections.npu.fleet.plugins.plugin_utils import _yaml

COMPONENTS = ("driver", "firmware", "cann", "docker_runtime")
OWN_FOLDER = Path(__file__).parent / "catalog"
# t, alpha, beta, b: what _versions ranks below rc. "8.5.x" says nothing about them.
_LOWEST_RELEASE = _versions.parse("0.rc1")[1][0]


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of a row, in the spelling of file names, of npu-smi (HDK 22.x alone differs), or ``8.5.x``."""

    text: str
    shown: str | None = None

    @property
    def is_pattern(self):
        return self.text.lower().endswith(".x")

    def fits(self, version):
        if self.is_pattern:
            return _below(version, self.text[:-2])
        return _versions.same(version, self.text) or bool(self.shown and _versions.same(version, self.shown))

    def __str__(self):
        return f"{self.text} (npu-smi: {self.shown})" if self.shown else self.text


def _below(version, prefix):
    try:
        tokens, start = _versions.parse(version), _versions.parse(prefix)
    except FleetError:
        return False
    # "8.5" itself is no release of the row 8.5.x, but 26.0.RC1 is one of 26.0.RC1.x.
    if len(tokens) == len(start) and start[-1][0] > _LOWEST_RELEASE:
        return False
    return tokens[: len(start)] == start and all(rank >= _LOWEST_RELEASE for rank, _number in tokens[len(start):])


@dataclasses.dataclass(frozen=True)
class Set:
    """Versions that were released together, for these families; an empty tuple is "not known"."""

    release: str
    families: tuple
    versions: dict
    date: str | None
    sources: tuple
    note: str | None

    def lists(self, component, version):
        return any(entry.fits(version) for entry in self.versions[component])


@dataclasses.dataclass(frozen=True)
class Window:
    """Each version in ``of`` may run with each version in ``with_``."""

    of: dict
    with_: dict
    families: tuple
    date: str | None
    sources: tuple


@dataclasses.dataclass(frozen=True)
class Catalog:
    sets: tuple
    windows: tuple
    least_versions: tuple
    supported_systems: dict
    systems_sources: tuple
    bad_kernels: tuple
    hw_base_versions: dict
    folders: tuple


@functools.lru_cache(maxsize=32)
def _load(folders):
    parts: dict[str, Any] = {
        "sources": {}, "releases": {}, "windows": [], "least_versions": [], "systems": {}, "systems_sources": [], "bad_kernels": [],
        "hw_base": {},
    }
    for folder in folders:
        seen = {}
        for path in _files(folder):
            _read(path, parts, seen)
        parts["releases"].update(seen)
    sources = parts["sources"]
    return Catalog(
        sets=tuple(_with_sources(entry, sources) for row in parts["releases"].values() for entry in row),
        windows=tuple(_with_sources(entry, sources) for entry in parts["windows"]),
        least_versions=tuple(_named(entry, sources) for entry in parts["least_versions"]),
        supported_systems=parts["systems"],
        systems_sources=tuple(sources.get(key, key) for key in parts["systems_sources"]),
        bad_kernels=tuple(_named(entry, sources) for entry in parts["bad_kernels"]),
        hw_base_versions=parts["hw_base"],
        folders=tuple(map(str, folders)),
    )


def load(extra_dirs=()):
    """The catalog of the collection and of these folders, read once per set of folders."""
    if isinstance(extra_dirs, (str, Path)):
        extra_dirs = [extra_dirs]
    return _load((str(OWN_FOLDER), *(str(Path(folder).expanduser()) for folder in extra_dirs or ())))


def _files(folder):
    found = sorted(path for suffix in ("*.yml", "*.yaml") for path in Path(folder).glob(suffix))
    if not found:
        raise FleetError(
            f"The catalog folder {folder} has no file *.yml.",
            "catalog_missing", "catalog", object=str(folder),
            hint="npu_fleet_catalog lists folders on the controller: `ls` it there.",
        )
    return found


def _with_sources(entry, sources):
    return dataclasses.replace(entry, sources=tuple(sources.get(key, key) for key in entry.sources))


def _named(entry, sources):
    return dict(entry, sources=tuple(sources.get(key, key) for key in entry["sources"]))


def sets_of(catalog, family):
    """The rows for one family; of all for None."""
    return [entry for entry in catalog.sets if family is None or family in entry.families]


class _Row:
    """One mapping of a file, read key by key; what is left over or has the wrong form is an error that names the place."""

    def __init__(self, path, where, data):
        self.path, self.where = path, where
        if not isinstance(data, dict):
            raise self.error("must be a mapping")
        self.data, self.left = data, set(data)

    def error(self, what):
        return FleetError(
            f"{self.path}: {self.where} {what}.",
            "catalog_invalid", "catalog", object=str(self.path), observed=self.where,
            hint=f"The form of a row: `ansible-doc -t lookup npu.fleet.release`, and the files in {OWN_FOLDER.name}/ of the collection.",
        )

    def take(self, key, default=None):
        self.left.discard(key)
        return self.data.get(key, default)

    def text(self, key, required=False):
        value = self.take(key)
        if (value is None and required) or (value is not None and not isinstance(value, str)):
            raise self.error(f"needs {key} as text in quotes, it has {reprlib.repr(value)}")
        return value

    def texts(self, key, default=()):
        value = self.take(key, list(default))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f"needs {key} as a list of texts in quotes, it has {reprlib.repr(value)}")
        return tuple(value)

    def rows(self, key):
        """The mappings of a list, each with its place."""
        value = self.take(key) or []
        if not isinstance(value, list):
            raise self.error(f"needs {key} as a list, it has {reprlib.repr(value)}")
        return [_Row(self.path, f"{key}, row {number}", data) for number, data in enumerate(value, 1)]

    def mapping(self, key):
        value = self.take(key) or {}
        if not isinstance(value, dict):
            raise self.error(f"needs {key} as a mapping, it has {reprlib.repr(value)}")
        return value

    def one_version(self, key, value):
        """A single version, or None."""
        if value is not None and not _versions.same(value, value):
            raise self.error(f"has {reprlib.repr(value)} for {key}, which is no version in quotes")
        return value

    def systems(self, key, value):
        """Systems such as "ubuntu 22.04 x86_64": ID, version, and an architecture or none."""
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and len(item.split()) in (2, 3) for item in value):
            raise self.error(f'needs {key} as a list of texts such as "ubuntu 22.04 x86_64", it has {reprlib.repr(value)}')
        return tuple(value)

    def families(self, default=None):
        value = self.texts("families", default or ())
        unknown = sorted(set(value) - set(FAMILIES))
        if unknown or not value:
            raise self.error(f"names the families {', '.join(unknown) or 'none'}; known are {', '.join(FAMILIES)}")
        return value

    def versions(self, key, default=()):
        value = self.take(key, None)
        if value is None:
            return default
        if not isinstance(value, list):
            raise self.error(f"needs {key} as a list, it has {reprlib.repr(value)}")
        return tuple(self._version(key, item) for item in value)

    def _version(self, key, item):
        if isinstance(item, dict) and set(item) == {"file", "shown"}:
            version = Version(item["file"], item["shown"])
        else:
            version = Version(item)
        try:
            _versions.parse(version.text[:-2] if version.is_pattern else version.text)
            _versions.parse(version.shown or "0")
        except (AttributeError, TypeError, FleetError):
            raise self.error(f"has {reprlib.repr(item)} in {key}, which is no version in quotes") from None
        return version

    def by_component(self, key):
        row = _Row(self.path, f"{self.where}, {key}", self.take(key, {}))
        found = {component: row.versions(component) for component in COMPONENTS if component in row.data}
        row.done()
        if not any(found.values()):
            raise row.error("names no version")
        return found

    def done(self):
        if self.left:
            raise self.error(f"has the unknown key {', '.join(sorted(map(str, self.left)))}")


def _read(path, parts, seen):
    try:
        document = _yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise FleetError(
            f"{path} can not be read: {error}.",
            "catalog_invalid", "catalog", object=str(path), hint=f"`yamllint {path}` shows the place.",
        ) from error
    file = _Row(path, "the file", {} if document is None else document)
    parts["sources"].update(file.mapping("sources"))
    for row in file.rows("releases"):
        name, sets = _release(row)
        # 24.1.RC2 and 24.1.rc2 are one release.
        key = name.lower()
        if key in seen:
            raise file.error(f"has release {name}, which another row of this folder has, too")
        seen[key] = sets
    parts["windows"] += [_window(row) for row in file.rows("windows")]
    parts["least_versions"] += [_least(row) for row in file.rows("least_versions")]
    parts["bad_kernels"] += [_bad_kernel(row) for row in file.rows("bad_kernels")]
    for row in file.rows("hw_base_versions"):
        least = {str(base): row.one_version(base, version) for base, version in row.mapping("least_driver").items()}
        for family in row.families():
            parts["hw_base"].setdefault(family, {}).update(least)
        _origin(row)
    systems = file.take("supported_systems")
    if systems is not None:
        row = _Row(path, "supported_systems", systems)
        for family, names in row.mapping("families").items():
            if family not in FAMILIES:
                raise row.error(f"names the family {family!r}; known are {', '.join(FAMILIES)}, in quotes")
            parts["systems"].setdefault(family, []).extend(row.systems(family, names))
        parts["systems_sources"] += _origin(row)["sources"]
    file.done()


def _origin(row):
    """Date and sources, which every row has; must be the last that is read of it."""
    for key in ("date", "sources"):
        if key not in row.data:
            raise row.error(f"does not say its {key}")
    origin = {"date": row.text("date"), "sources": row.texts("sources")}
    if not origin["sources"]:
        raise row.error("does not say its sources")
    row.text("confidence")
    row.done()
    return origin


def _release(row):
    name = row.text("release", required=True)
    row.where = f"release {name}"
    note = row.text("note")
    common = {component: row.versions(component) for component in COMPONENTS}
    parts = row.rows("sets")
    origin = _origin(row)
    for number, part in enumerate(parts, 1):
        part.where = f"release {name}, set {number}"
    sets = [_set(part, name, common, note, origin) for part in parts]
    if not sets:
        raise row.error("has no sets")
    return name, sets


def _set(row, name, common, note, origin):
    versions = {component: row.versions(component, common[component]) for component in COMPONENTS}
    families = row.families()
    row.done()
    return Set(release=name, families=families, versions=versions, note=note, **origin)


def _window(row):
    of, with_ = row.by_component("of"), row.by_component("with")
    families = row.families(tuple(FAMILIES))
    return Window(of=of, with_=with_, families=families, **_origin(row))


def _least(row):
    entry = {
        "families": row.families(), "products": row.texts("products"), "os": row.systems("os", row.take("os", [])),
        "driver": row.one_version("driver", row.text("driver")), "firmware": row.one_version("firmware", row.text("firmware")),
    }
    return dict(entry, **_origin(row))


def _bad_kernel(row):
    entry = {
        "families": row.families(tuple(FAMILIES)), "driver": row.versions("driver"),
        "kernel": row.text("kernel", required=True), "reason": row.text("reason", required=True),
    }
    return dict(entry, **_origin(row))
