# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers and firmware that dpkg or rpm brought: they are updated and removed the way they came. Private to the collection.

The vendor's .run packages take such a package away without a word (driver package, measured), so it must be seen before.
"""

import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

# Ascend910B-driver, Ascend910B-firmware (rpm) and ascend910b-driver (deb) are public; the other products' files are named alike.
_NAME = r"(?:ascend|atlas|a300)[0-9a-z.+-]*-(?P<component>driver|firmware)"
_RPM_NAME = re.compile(_NAME + r"\Z", re.IGNORECASE)
_STANZA = re.compile((r"^Package: (?P<name>%s)$" % _NAME).encode("ascii"), re.IGNORECASE | re.MULTILINE)
_DPKG = "/var/lib/dpkg/status"
_RPM = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")
_RPM_FILES = ("rpmdb.sqlite", "Packages", "Packages.db")
_RPM_SECONDS = 60


def find(files, run=None):
    """Return what is installed, as a list of {manager, name, component, version}.

    rpm's database is asked through ``run`` (rpm itself), and only where there is one; dpkg's is a text.
    """
    return _by_dpkg(files) + _by_rpm(files, run)


def _by_dpkg(files):
    text = files.content(_DPKG) or b""
    found = []
    for match in _STANZA.finditer(text):
        stanza = text[match.start():].split(b"\n\n", 1)[0].decode("utf-8", "replace")
        state = re.search(r"^Status: \S+ \S+ (\S+)$", stanza, re.MULTILINE)
        if state and state.group(1) not in ("not-installed", "config-files"):
            version = re.search(r"^Version: (\S+)$", stanza, re.MULTILINE)
            found.append(_entry("dpkg", match.group("name").decode("ascii"), version and version.group(1)))
    return found


def _by_rpm(files, run):
    if run is None or not any(name in files.names(folder) for folder in _RPM for name in _RPM_FILES):
        return []
    try:
        result = run(["rpm", "-qa", "--queryformat", "%{NAME} %{VERSION}\\n"], _RPM_SECONDS)
    except FleetError:
        # A database without the tool: nothing of it can be installed or removed either.
        return []
    pairs = [line.split(" ", 1) for line in result.stdout.splitlines() if " " in line]
    return [_entry("rpm", name, version) for name, version in pairs if _RPM_NAME.match(name)]


def _entry(manager, name, version):
    return {"manager": manager, "name": name, "component": name.rpartition("-")[2].lower(), "version": version}
