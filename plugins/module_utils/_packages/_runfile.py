# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking at a ``.run`` file without running it: checksum, self-extract header, declared size. Private to the collection."""

import hashlib
import os
import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _names

#: As much of a file as is read to find its header.
HEAD = 256 * 1024
#: What mends a file that is not the one it should be.
COPY_AGAIN = "Copy it to the depot again and compare `sha256sum %s` with npu_fleet_checksums."
_LABEL_CHIP = re.compile(r"HDK-(310P|310B|910B|910|A3|A5|950)-", re.IGNORECASE)


def sha256_of(path):
    """Return the sha256 of a file as hex digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def check(path, name, sha256, found=None):
    """Raise FleetError unless the file is the package it should be, whole and with this checksum (``found`` where it is known)."""
    check_file(path, name)
    found = found or sha256_of(path)
    if found != sha256.lower():
        raise FleetError(
            "%s has sha256 %s, expected is %s." % (name, found, sha256.lower()),
            "checksum_differs",
            "verify",
            object=path,
            observed=found,
            hint=COPY_AGAIN % name,
        )


def check_file(path, name):
    """The same without the checksum, which takes its time for several GB."""
    head, size = _read_head(path)
    check_header(head, size, name)


def _read_head(path):
    try:
        with open(path, "rb") as stream:
            return stream.read(HEAD), os.fstat(stream.fileno()).st_size
    except OSError as error:
        message = "The package %s can not be read: %s." % (path, error.strerror)
        hint = "`ls -l %s` on the node; npu_fleet_depot names the folder." % path
        raise FleetError(message, "package_missing", "verify", object=path, observed=str(error), hint=hint) from error


def check_header(head, size, name):
    """Raise FleetError when the header is none of a self-extracting archive, or declares another size or family.

    A cut file makes the package end with 2, which for a driver also means "installed, reboot needed" (driver package, measured).
    """
    if not head.startswith(b"#!") or b"makeself" not in head[:8192].lower():
        raise FleetError("%s is no self-extracting package." % name, "package_invalid", "verify", object=name, hint=COPY_AGAIN % name)
    values = header_values(head)
    expected = declared_size(head)
    if expected and size != expected:
        word = "cut short" if size < expected else "too long"
        message = "%s is %s: it has %d bytes, its header says %d." % (name, word, size, expected)
        raise FleetError(message, "package_truncated", "verify", object=name, observed=size, hint=COPY_AGAIN % name)
    chip = _LABEL_CHIP.search(values.get("label", ""))
    family = _names.parse(name)["family"]
    built_for = _names.CHIP_FAMILY[chip.group(1).lower()] if chip else None
    if chip and family and built_for != family:
        message = "%s is by its name for family %s, but was built for family %s (%s)." % (name, family, built_for, values["label"])
        hint = "Keep the vendor's file names: copy the package of this name to the depot again."
        raise FleetError(message, "wrong_family", "verify", object=name, observed=values["label"], hint=hint)


def declared_size(head):
    """How many bytes the whole file has by its header; None where that does not tell."""
    values = header_values(head)
    payload = sum(int(number) for number in values.get("totalsize", values.get("filesizes", values.get("size", ""))).split())
    lines = int(values.get("skip") or 0)
    return payload + sum(len(line) for line in head.splitlines(True)[:lines]) if payload and lines else None


def header_values(head):
    """Return the plain assignments of the shell header: label, numbers, and the checksum of the payload as ``sha``."""
    pattern = re.compile(rb"^(totalsize|filesizes|size|skip|label|SHA|sha256)=\"?([^\"\n]*)\"?\s*$", re.MULTILINE)
    values = {}
    for found in pattern.finditer(head):
        key, value = (part.decode("utf-8", "replace").strip() for part in found.groups())
        if key in ("SHA", "sha256"):
            # makeself writes zeros where it was not asked for one.
            if re.match(r"[0-9a-f]{64}\Z", value) and value.strip("0"):
                values.setdefault("sha", value)
        elif key == "label" or re.match(r"[0-9]{1,9}\Z" if key == "skip" else r"[0-9]{1,18}(?: +[0-9]{1,18})*\Z", value):
            values.setdefault(key, value)
    return values
