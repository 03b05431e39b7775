# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which versions belong together: pure functions over the catalog. Private to the collection.

"matched": one row (release) lists all of them. "allowed": no row does, but each two of them stand together in a row or in a window
that the vendor gives. Everything else is "unlisted", which is not the same as broken: nobody has said that it works.
"""

from __future__ import annotations

import itertools

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES
from ansible_collections.npu.fleet.plugins.module_utils._packages import _versions
from ansible_collections.npu.fleet.plugins.plugin_utils._catalog_file import COMPONENTS, load, sets_of
from ansible_collections.npu.fleet.plugins.plugin_utils._catalog_system import hw_base_minimum, minimums

__all__ = ["COMPONENTS", "hw_base_minimum", "judge", "load", "minimums", "releases", "resolve"]

OWN_ROW = "Take a listed one, or add a row with your source to a folder in npu_fleet_catalog."


def releases(catalog, family=None):
    """Names of the releases that have something for this family, in the catalog's order."""
    return list(dict.fromkeys(entry.release for entry in sets_of(catalog, family)))


def _windows(catalog, family):
    return [window for window in catalog.windows if family is None or family in window.families]


def _given(versions):
    unknown = sorted(set(versions) - set(COMPONENTS))
    if unknown:
        raise FleetError(
            f"The catalog has no component {', '.join(unknown)}.",
            "unknown_component", "catalog", observed=unknown, hint=f"Allowed: {', '.join(COMPONENTS)}.",
        )
    given = {component: str(versions[component]).strip() for component in COMPONENTS if versions.get(component)}
    for version in given.values():
        _versions.parse(version)
    return given


def _known_family(family):
    if family is not None and family not in FAMILIES:
        raise FleetError(
            f"{family!r} is no family.", "unknown_family", "catalog", observed=family, hint=f"Families: {', '.join(FAMILIES)}.",
        )


# --- judging --------------------------------------------------------------------------------------------------------

def judge(catalog, family, versions):
    """Say whether these versions belong together on chips of ``family`` (None: any).

    Returns verdict (matched, allowed, unlisted), release (where exactly one lists them all), problems and sources.
    """
    _known_family(family)
    given = _given(versions)
    rows = [entry for entry in sets_of(catalog, family) if all(entry.lists(*item) for item in given.items())]
    if rows:
        names = list(dict.fromkeys(entry.release for entry in rows))
        return {
            "verdict": "matched", "release": names[0] if len(names) == 1 else None, "problems": [],
            "sources": _sources(rows),
        }
    known = [component for component in given if _is_known(catalog, family, component, given[component])]
    problems = [_unknown_version(catalog, family, component, given[component]) for component in given if component not in known]
    used = []
    for left, right in _pairs(known):
        pair = (left, given[left]), (right, given[right])
        found = _together(catalog, family, *pair)
        used += found
        if not found:
            problems.append(_apart(catalog, family, *pair))
    return {"verdict": "unlisted" if problems else "allowed", "release": None, "problems": problems, "sources": _sources(used)}


def _pairs(components):
    """Firmware is bound to the driver; what it has to do with the rest goes through that."""
    pairs = list(itertools.combinations(components, 2))
    return [pair for pair in pairs if not ("driver" in components and "firmware" in pair and "driver" not in pair)]


def _sources(entries):
    return list(dict.fromkeys(source for entry in entries for source in entry.sources))


def _is_known(catalog, family, component, version):
    sides = (side for window in _windows(catalog, family) for side in (window.of, window.with_))
    return any(entry.lists(component, version) for entry in sets_of(catalog, family)) or any(
        entry.fits(version) for side in sides for entry in side.get(component, ())
    )


def _together(catalog, family, left, right):
    """The rows and windows that have both."""
    rows = [entry for entry in sets_of(catalog, family) if entry.lists(*left) and entry.lists(*right)]
    windows = [
        window for window in _windows(catalog, family)
        if (_in(window.of, *left) and _in(window.with_, *right)) or (_in(window.of, *right) and _in(window.with_, *left))
    ]
    return rows + windows


def _in(side, component, version):
    return any(entry.fits(version) for entry in side.get(component, ()))


def _allowed(catalog, family, left, right):
    """What may stand for the component ``right`` beside ``left``: rows first, then windows."""
    found = [entry for row in sets_of(catalog, family) if row.lists(*left) for entry in row.versions[right]]
    for window in _windows(catalog, family):
        for one, other in ((window.of, window.with_), (window.with_, window.of)):
            if _in(one, *left):
                found += other.get(right, ())
    return list(dict.fromkeys(entry.text for entry in found))


def _row_of(catalog, family, component, version):
    rows = [entry for entry in sets_of(catalog, family) if entry.lists(component, version)]
    return rows[0] if rows else None


def _for(family):
    return f" for family {family}" if family else ""


def _apart(catalog, family, left, right):
    row = _row_of(catalog, family, *left)
    allowed = _allowed(catalog, family, left, right[0])
    place = f"row {row.release} ({row.date or 'no date'})" if row else "the catalog"
    said = f"{place} allows {right[0]} {', '.join(allowed)} with {left[0]} {left[1]}" if allowed else f"{place} names no {right[0]} for it"
    return {
        "left": list(left), "right": list(right), "row": row.release if row else None, "allowed": allowed,
        "message": f"{left[0]} {left[1]} and {right[0]} {right[1]} are not listed together{_for(family)}: {said}.",
    }


def _unknown_version(catalog, family, component, version):
    allowed = list(dict.fromkeys(
        entry.text for row in sets_of(catalog, family) for entry in row.versions[component]
    ))
    near = ", ".join(allowed[-6:]) or "none"
    return {
        "left": [component, version], "right": ["family", family], "row": None, "allowed": allowed,
        "message": f"{component} {version} is in no row{_for(family)}; the newest rows have {near}.",
    }


# --- resolving ------------------------------------------------------------------------------------------------------

def resolve(catalog, family, release=None, *, allow_unlisted=False, **versions):
    """Complete a release name, or single versions, to a set of all components; raise FleetError where that is not one set.

    A row's first version of a component is what the release stands for. With ``allow_unlisted`` a given version is taken as it is.
    """
    _known_family(family)
    given = _given(versions)
    if not release and not given:
        raise FleetError("Neither a release nor a version was given.", "release_missing", "catalog", hint=_names_hint(catalog, family))
    rows = _rows_of_release(catalog, family, release) if release else sets_of(catalog, family)
    exact = [row for row in rows if all(row.lists(*item) for item in given.items())]
    if family is None:
        return _of_every_family(catalog, release, exact or rows, allow_unlisted, given)
    if not exact and not release:
        anchor = next((component for component in ("driver", "firmware") if component in given), None)
        rows = [row for row in rows if anchor and row.lists(anchor, given[anchor])]
    candidates = exact or (rows if allow_unlisted and rows else _near(catalog, family, rows, given))
    names = list(dict.fromkeys(row.release for row in candidates))
    if len(names) > 1:
        words = ", ".join(f"{component} {version}" for component, version in given.items())
        raise FleetError(
            f"{words} is in more than one release{_for(family)}: {', '.join(names)}.",
            "release_ambiguous", "catalog", observed=names, hint="Name one of them, or give the driver's version too.",
        )
    complete = [_completed(row, given) for row in candidates]
    whole = [found for found in complete if all(found.values())]
    if not whole:
        raise _incomplete(candidates[0], complete[0], family)
    return whole[0]


def _of_every_family(catalog, release, rows, allow_unlisted, given):
    """The one set that a release has for all its families."""
    families = [key for key in FAMILIES if any(key in row.families for row in rows)]
    found, failed = [], []
    for family in families:
        try:
            found.append(resolve(catalog, family, release, allow_unlisted=allow_unlisted, **given))
        except FleetError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    if failed or any(other != found[0] for other in found):
        raise FleetError(
            f"{release or 'This'} is not the same for each family.", "family_missing", "catalog", object=release, observed=families,
            hint=f"Give the family: {', '.join(families)}.",
        )
    return found[0]


def _rows_of_release(catalog, family, release):
    named = [entry for entry in catalog.sets if _same_name(entry.release, release)]
    rows = [entry for entry in named if family is None or family in entry.families]
    if rows:
        return rows
    if named:
        families = sorted({key for entry in named for key in entry.families})
        raise FleetError(
            f"Release {named[0].release} has no set for family {family}: its row names {', '.join(families)}.",
            "release_family", "catalog", object=release, observed=family, hint=_names_hint(catalog, family),
        )
    raise FleetError(f"The catalog has no release {release}.", "release_unknown", "catalog", object=release,
                     hint=_names_hint(catalog, family))


def _same_name(name, wanted):
    return name.lower() == str(wanted).strip().lower() or _versions.same(name, str(wanted))


def _names_hint(catalog, family):
    return f"Releases{_for(family)}: {', '.join(releases(catalog, family)) or 'none'}."


def _near(catalog, family, rows, given):
    """Those of ``rows`` that may be run with what was given, although they do not list all of it; raise FleetError when there is none."""
    answers = [judge(catalog, family, {key: version for key, version in _completed(row, given).items() if version}) for row in rows]
    found = [row for row, answer in zip(rows, answers, strict=True) if answer["verdict"] != "unlisted"]
    if found:
        return found
    problems = judge(catalog, family, given)["problems"] or [problem for answer in answers for problem in answer["problems"]]
    messages = list(dict.fromkeys(problem["message"] for problem in problems)) or ["No row lists all of these versions together."]
    raise FleetError(" ".join(messages), "unlisted", "catalog", object=rows[0].release if rows else None, observed=problems, hint=OWN_ROW)


def _completed(row, given):
    """The row's versions with what was given; None where the row knows none, or only a range."""
    result = {}
    for component in COMPONENTS:
        literal = next((entry.text for entry in row.versions[component] if not entry.is_pattern), None)
        result[component] = _file_spelling(row, component, given[component]) if component in given else literal
    return result


def _file_spelling(row, component, version):
    """Packages are found by the spelling of their file names; npu-smi's of HDK 22.x is turned into it."""
    for entry in row.versions[component]:
        if entry.shown and _versions.same(version, entry.shown):
            return entry.text
    return version


def _incomplete(row, found, family):
    missing = [component for component, version in found.items() if not version]
    words = []
    for component in missing:
        ranges = [entry.text for entry in row.versions[component]]
        words.append(f"{component} only as {', '.join(ranges)}" if ranges else f"no {component}")
    return FleetError(
        f"The row of release {row.release} names {' and '.join(words)}{_for(family)}.",
        "release_incomplete", "catalog", object=row.release, observed=missing,
        hint=f"Give the version of {' and '.join(missing)} yourself. {OWN_ROW}",
    )
