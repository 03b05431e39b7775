# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock: the fleet's own file that says which release is in force and which very files make it up. Private to the collection.

Making it is pure: from what ``npu_depot_scan`` saw, the catalog and the fleet's variables. The same input gives the same bytes.
"""

from __future__ import annotations

import json
import re
import reprlib
from pathlib import Path

import yaml

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES
from ansible_collections.npu.fleet.plugins.module_utils._packages import _fetch, _names, _versions
from ansible_collections.npu.fleet.plugins.plugin_utils import _catalog, _yaml
from ansible_collections.npu.fleet.plugins.plugin_utils._pinned import pinned_components

ARCHES = ("aarch64", "x86_64")
HEADER = """# Written by the playbook npu.fleet.lock from the depot and the catalog: run it again instead of editing this.
"""
_ORDER = ("driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime")
_SIGNATURE = ("file", "verified", "signer", "crl", "crl_issued")
_PACKAGE: dict[str, tuple[type, ...]] = {
    "family": (str, type(None)), "arch": (str, type(None)), "component": (str,), "version": (str,), "file": (str,), "size": (int,),
    "sha256": (str,), "source": (str,), "signature": (dict, type(None)),
}
WRITE_AGAIN = "Write it with `ansible-playbook npu.fleet.lock`."


def targets(words):
    """Parse ["a2/x86_64", …] to sorted [(family, arch)]."""
    if isinstance(words, str):
        # By `-e name=value` a list comes as text, and each of its letters would be a word.
        written = words.strip().strip("[]")
        raise FleetError(
            f"npu_fleet_lock_for is text, not a list; write [{written}].", "lock_target", "lock", observed=words,
            hint=f"After -e that is '{json.dumps({'npu_fleet_lock_for': written.replace(',', ' ').split()})}'.",
        )
    found = set()
    for word in words:
        family, _slash, arch = str(word).partition("/")
        if family not in FAMILIES or arch not in ARCHES:
            raise FleetError(
                f"{word!r} is no FAMILY/ARCHITECTURE.", "lock_target", "lock", observed=word,
                hint=f"npu_fleet_lock_for is a list such as [a2/x86_64], of {', '.join(FAMILIES)} and {', '.join(ARCHES)}.",
            )
        found.add((family, arch))
    if not found:
        raise FleetError(
            "It is not said which nodes the lock is for.", "lock_target", "lock", hint="Set npu_fleet_lock_for, such as [a2/x86_64].",
        )
    return sorted(found)


# --- making ---------------------------------------------------------------------------------------------------------

def sets(words, release, versions, reason="", catalog_dirs=()):
    """{family: versions} for the targets, checked against the catalog; raise FleetError where a pair is unlisted and no reason is given."""
    catalog = _catalog.load(catalog_dirs)
    given = {component: str(version) for component, version in (versions or {}).items() if version}
    reason = (reason or "").strip()
    found, problems = {}, []
    for family in dict.fromkeys(family for family, _arch in targets(words)):
        wanted = _catalog.resolve(catalog, family, release, allow_unlisted=bool(reason), **given) if release else given
        if not wanted:
            raise FleetError("Neither a release nor versions are set.", "release_missing", "lock",
                             hint="Set npu_fleet_release, or npu_fleet_versions.")
        found[family] = {component: wanted[component] for component in _catalog.COMPONENTS if component in wanted}
        problems += _catalog.judge(catalog, family, wanted)["problems"]
    if problems and not reason:
        raise FleetError(
            " ".join(dict.fromkeys(problem["message"] for problem in problems)), "unlisted", "lock", observed=problems,
            hint="Take a listed set, or say in npu_fleet_allow_unlisted_reason why this one is right; the reason goes into the lock.",
        )
    return {"sets": found, "unlisted_reason": reason if problems else None}


def wanted_versions(resolved):
    """{component: [version]} of all sets, for the scan of the depot."""
    found = {}
    for versions in resolved["sets"].values():
        for component, version in pinned_components(versions).items():
            found.setdefault(component, set()).add(version)
    return {component: sorted(found[component], key=_versions.key) for component in _ORDER if component in found}


def make(scan, words, release, resolved):
    """The lock from what a scan of the depot saw; raise FleetError that names every missing, doubled or broken package."""
    problems = [f"{problem['message']} {problem['hint'] or ''}".strip() for problem in scan["problems"]]
    chosen, missing = {}, {}
    for family, arch in targets(words):
        for component, version in pinned_components(resolved["sets"][family]).items():
            try:
                package = _choose(scan, component, version, family, arch)
            except FleetError as error:
                problems.append(str(error))
                if error.code == "package_missing":
                    missing.setdefault(error.object, []).append(f"{family}/{arch}")
                continue
            if package:
                chosen[package["file"]] = _entry(package)
    if problems:
        raise FleetError(
            " ".join(dict.fromkeys(problems)), "lock_incomplete", "lock", observed=problems, hint=_mend(missing, scan["unknown"]),
        )
    packages = sorted(chosen.values(), key=lambda row: (_ORDER.index(row["component"]), row["file"]))
    return {
        "lock": 1,
        "release": str(release) if release else None,
        "unlisted_reason": resolved["unlisted_reason"],
        "sets": {family: resolved["sets"][family] for family in sorted(resolved["sets"])},
        "packages": packages,
    }


def _mend(missing, unknown):
    """What to do about a depot that lacks something; said once for all of it. ``missing``: file name -> the targets it is for."""
    hints = []
    if missing:
        nodes = " and ".join(dict.fromkeys(node for nodes in missing.values() for node in nodes))
        hints.append(f"Copy {'it' if len(missing) == 1 else 'them'} to the depot, or take {nodes} out of npu_fleet_lock_for.")
    if unknown:
        hints.append(f"Names in the depot that no rule fits: {', '.join(unknown)}.")
    return " ".join([*hints, "No lock was written."])


def _choose(scan, component, version, family, arch):
    """The one package of the depot for this; None where the vendor publishes none (no operators for the 310)."""
    found = [
        package for package in scan["packages"]
        if package["component"] == component and _versions.same(package["version"], version)
        and package["family"] in (family, None) and package["arch"] in (arch, None)
    ]
    if len(found) == 1:
        return found[0]
    what = f"{component} {version} for {family} on {arch}"
    if found:
        files = ", ".join(f"{package['file']} (sha256 {package['sha256'][:12]}…)" for package in found)
        raise FleetError(f"There are {len(found)} packages of {what} in the depot: {files}. Leave one of them there.", "package_doubled")
    try:
        name = _names.file_name(component, version, family, arch)
    except FleetError:
        if component == "cann_kernels":
            return None
        raise
    raise FleetError(f"There is no package of {what} in the depot, such as {name}.", "package_missing", object=name)


def _entry(package):
    signature = package.get("signature")
    entry = {key: package[key] for key in ("family", "arch", "component", "version", "file", "size", "sha256", "source")}
    # Its age changes every day, the date does not.
    entry["signature"] = {key: signature[key] for key in _SIGNATURE} if signature else None
    return entry


def notes(scan):
    """Lines for an operator about signatures and names that were passed over."""
    lines = []
    bare = [package["file"] for package in scan["packages"] if not package["signature"]]
    for package in scan["packages"]:
        signature = package["signature"]
        if not signature:
            continue
        if not signature["verified"]:
            lines.append(f"{package['file']}: {signature['file']} was not checked, npu_fleet_signature_ca is not set")
        else:
            crl = f"{signature['crl']} is {signature['crl_age_days']} days old" if signature["crl"] else "no revocation list"
            lines.append(f"{package['file']}: signed by {signature['signer']}; {crl}")
    if bare:
        count = "1 package has" if len(bare) == 1 else f"{len(bare)} packages have"
        names = f" ({', '.join(bare)})" if lines else ""
        them = "it" if len(bare) == 1 else "them"
        lines.append(f"{count} no signature (.p7s, .cms) beside {them}: only size and SHA-256 are locked.{names}")
    return lines + [f"{name}: no name of a package that is known here" for name in scan["unknown"]]


def text(lock):
    """The bytes of the file, the same for the same lock."""
    # In a play its texts and lists are of Ansible's own types, which YAML does not know.
    plain = json.loads(json.dumps(lock))
    return HEADER + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=140, default_flow_style=False)


# --- reading --------------------------------------------------------------------------------------------------------

def read(path):
    """The lock in a file; raise FleetError that names what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as stream:
            lock = _yaml.load(stream.read(), aliases=False)
    except FileNotFoundError:
        # A relative path is meant from where the command was started, and that is what goes wrong.
        place = "" if Path(path).is_absolute() else f" (looked for in {Path.cwd()})"
        raise FleetError(f"The lock {path} is not there{place}.", "lock_missing", "lock", object=str(path), hint=WRITE_AGAIN) from None
    except OSError as error:
        raise FleetError(f"The lock {path} can not be read: {error.strerror}.", "lock_missing", "lock", object=str(path),
                         hint=WRITE_AGAIN) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _invalid(path, " ".join(str(error).split())) from error
    reason = _fault(lock)
    if reason:
        raise _invalid(path, reason)
    return lock


def _invalid(path, reason):
    return FleetError(f"The lock {path} is not valid: {reason}.", "lock_invalid", "lock", object=str(path), observed=reason,
                      hint=WRITE_AGAIN)


def _fault(lock):
    """What makes this no lock, in words; None for a good one."""
    if not isinstance(lock, dict) or lock.get("lock") is True or lock.get("lock") != 1:
        return "it does not begin with `lock: 1`"
    extra = sorted(map(str, set(lock) ^ {"lock", "release", "unlisted_reason", "sets", "packages"}))
    if extra:
        return f"{', '.join(extra)[:200]} is missing or unknown"
    for key in ("release", "unlisted_reason"):
        if not isinstance(lock[key], (str, type(None))):
            return f"{key} is {reprlib.repr(lock[key])}, which is no text in quotes"
    if not isinstance(lock["sets"], dict) or not isinstance(lock["packages"], list):
        return "sets must be a mapping and packages a list"
    for family, versions in lock["sets"].items():
        if family not in FAMILIES or not isinstance(versions, dict) or set(versions) - set(_catalog.COMPONENTS):
            return f"the set of {family} is none; 310 and 910 stand in quotes"
        if not all(isinstance(version, str) for version in versions.values()):
            return f"the set of {family} has a version that is no text in quotes"
        odd = [version for version in versions.values() if not _versions.same(version, version)]
        if odd:
            return f"the set of {family} has the version {reprlib.repr(odd[0])}, which is none"
    seen = set()
    for number, package in enumerate(lock["packages"], 1):
        fault = _package_fault(package)
        if fault:
            return f"package {number} {fault}"
        place = package["component"], package["version"], package["family"], package["arch"]
        if place in seen:
            return f"package {number} ({package['file']}) is there twice"
        seen.add(place)
    return None


def _package_fault(package):
    if not isinstance(package, dict) or set(package) != set(_PACKAGE):
        return f"must have {', '.join(_PACKAGE)}"
    for key, kind in _PACKAGE.items():
        if not isinstance(package[key], kind) or isinstance(package[key], bool):
            return f"has {reprlib.repr(package[key])} for {key}"
    if not re.fullmatch(r"[0-9a-f]{64}", package["sha256"]) or package["size"] < 1:
        return f"({package['file']}) has no checksum or size"
    if _fetch.public(package["source"]) != package["source"]:
        return f"({package['file']}) has a user, a password or a query in its source: the depot's address with them is npu_fleet_depot"
    if package["signature"] is not None and set(package["signature"]) != set(_SIGNATURE):
        return f"({package['file']}) must have {', '.join(_SIGNATURE)} in its signature"
    try:
        said = _names.parse(package["file"])
    except FleetError as error:
        return f"is no package: {error.message}"
    wrong = [key for key in ("component", "version", "family") if said[key] != package[key]]
    if said["arch"] not in (None, package["arch"]):
        wrong.append("arch")
    return f"({package['file']}) has another {', '.join(wrong)} than its name" if wrong else None


def select(lock, family, arch):
    """Versions and packages of the lock for one kind of node: {"versions": …, "packages": {component: {file, size, sha256, source}}}."""
    if family not in lock["sets"]:
        raise FleetError(
            f"The lock has nothing for family {family}: it is for {', '.join(lock['sets']) or 'none'}.", "lock_family", "lock",
            observed=family, hint=f"Add {family}/{arch} to npu_fleet_lock_for. {WRITE_AGAIN}",
        )
    versions = lock["sets"][family]
    packages, missing = {}, []
    for component, version in pinned_components(versions).items():
        found = [
            package for package in lock["packages"]
            if package["component"] == component and _versions.same(package["version"], version)
            and package["family"] in (family, None) and package["arch"] in (arch, None)
        ]
        if len(found) == 1:
            packages[component] = {key: found[0][key] for key in ("file", "size", "sha256", "source")}
        elif found or component != "cann_kernels" or _is_published(component, version, family, arch):
            missing.append(f"{component} {version}")
    if missing:
        raise FleetError(
            f"The lock has not exactly one package of {', '.join(missing)} for {family} on {arch}.", "lock_package", "lock",
            observed=missing, hint=f"Add {family}/{arch} to npu_fleet_lock_for. {WRITE_AGAIN}",
        )
    return {"versions": dict(versions), "packages": packages}


def _is_published(component, version, family, arch):
    try:
        return bool(_names.file_name(component, version, family, arch))
    except FleetError:
        return False
