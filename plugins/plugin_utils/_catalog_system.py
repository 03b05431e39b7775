# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the catalog says about a node: its system, its kernel, the flash of its boards. Pure. Private to the collection."""

from __future__ import annotations

from ansible_collections.npu.fleet.plugins.module_utils._packages import _versions


def hw_base_minimum(catalog, family, hw_base):
    """The least driver that a board's flash of this hardware base version takes; None when there is no limit, or none is known."""
    return catalog.hw_base_versions.get(family, {}).get(str(hw_base).strip())


def minimums(catalog, family, product, os_id, os_version, kernel, arch, versions):  # noqa: PLR0917
    """What the catalog says against these versions on this system: a list of {severity, code, object, message, hint, sources}.

    ``os_version`` is VERSION_ID of os-release or more of it; service packs count only where both sides name one.
    """
    given = {component: str(version) for component, version in versions.items() if version}
    return (
        _least_problems(catalog, family, product, (os_id, os_version, arch), given)
        + _kernel_problems(catalog, family, kernel, given)
        + _system_problems(catalog, family, (os_id, os_version, arch))
    )


def _least_problems(catalog, family, product, system, given):
    found = []
    for row in catalog.least_versions:
        if family not in row["families"] or not any(_is_system(entry, system) for entry in row["os"]):
            continue
        certain = any(_is_product(product, name) for name in row["products"])
        if product and not certain:
            continue
        for component in ("driver", "firmware"):
            version = given.get(component)
            if version and row[component] and _versions.compare(version, row[component]) < 0:
                who = " / ".join(row["products"])
                found.append({
                    "severity": "error" if certain else "warning", "code": "below_minimum", "object": component,
                    "message": f"{component} {version} is older than {row[component]}, the least that {who} needs on {_words(system)}.",
                    "hint": f"Pin {component} {row[component]} or newer.", "sources": list(row["sources"]),
                })
    return found


def _is_product(product, name):
    """A name such as "Atlas 300I Pro / 300V" stands for boards that share their ids."""
    return bool(product) and (product == name or product.startswith(name + " /"))


def _kernel_problems(catalog, family, kernel, given):
    return [
        {
            "severity": "warning", "code": "bad_kernel", "object": "driver",
            "message": f"driver {given['driver']} is known to fail on kernel {kernel}: {row['reason']}.",
            "hint": "Boot an older kernel of this system, or try the driver on one node first.", "sources": list(row["sources"]),
        }
        for row in catalog.bad_kernels
        if family in row["families"] and kernel and kernel.startswith(row["kernel"])
        and any(entry.fits(given.get("driver")) for entry in row["driver"])
    ]


def _system_problems(catalog, family, system):
    known = catalog.supported_systems.get(family)
    if not known or not system[0] or any(_is_system(entry, system) for entry in known):
        return []
    return [{
        "severity": "warning", "code": "system_unlisted", "object": "os",
        "message": f"{_words(system)} is not among the systems that the vendor's deployer knows for family {family}.",
        "hint": f"It may work all the same. {_known_systems(known, system[0])}", "sources": list(catalog.systems_sources),
    }]


def _known_systems(known, os_id):
    """A list of two dozen says less than those of the same name, or a few."""
    same = [entry for entry in known if entry.split()[0].lower() == os_id.lower()]
    more = f" and {len(known) - 3} more" if len(known) > 3 else ""
    return f"Known of {os_id}: {', '.join(same)}." if same else f"Known are {', '.join(known[:3])}{more}."


def _words(system):
    return " ".join(text for text in system if text)


def _is_system(entry, system):
    """Whether "openeuler 24.03-SP1 aarch64" covers (ID, VERSION_ID or longer, architecture)."""
    os_id, os_version, arch = ((text or "").lower() for text in system)
    name, version, *archs = entry.lower().split()
    number, _dash, pack = version.partition("-")
    told = os_version.replace("-", " ").replace("(", " ").replace(")", " ").split()
    packs = [word for word in told if word.startswith("sp") and word[2:].isdigit()]
    if name != os_id or not told or (archs and arch not in archs):
        return False
    if name == "euleros" and told[0] == "2.0" and number.startswith("2."):
        # VERSION_ID of each EulerOS V2 is 2.0, the vendor counts 2.8, 2.9 … Which one it is cannot be told, so none is ruled out.
        return True
    return (told[0] == number or told[0].startswith(number + ".") or told[0].startswith(number + "u")) and (
        not pack or not packs or pack in packs
    )
