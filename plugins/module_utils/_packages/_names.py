# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""File names of vendor packages, both ways. Private to the collection.

Names were used in different cases by the vendor, so they are read case-blind. Sources of the patterns stand beside the
vectors in tests/vectors/file_names.yaml.
"""

import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import compare

# What the vendor calls a chip in a file name -> our key of the family.
CHIP_FAMILY = {
    "310": "310", "310p": "310p", "310b": "310b", "910": "910", "910b": "a2", "910c": "a3", "a3": "a3", "950": "a5", "a5": "a5",
}
_PRODUCT_FAMILY = {
    "a300-3000-3010": "310", "a300-3000": "310", "a300-3010": "310",
    "a800-9000-9010": "910", "a800-9000": "910", "a800-9010": "910", "a900-9000": "910", "a300t-9000": "910", "atlas-300t-pro": "910",
    "atlas-300i-pro": "310p", "atlas-300v-pro": "310p", "atlas-300v": "310p", "atlas-300i-duo": "310p",
    "ascend910b-hdk": "a2", "ascend310p": "310p", "ascend310": "310", "ascend910": "910",
}
_PRODUCT = "(?P<product>%s)" % "|".join(sorted(_PRODUCT_FAMILY, key=len, reverse=True))
_CHIP = "(?P<chip>310p|310b|910b|910c|910|a3|950)"
_GENERATION = "atlas-(?P<generation>a3|a5)"
_ARCH = "(?P<arch>aarch64|x86[-_]64)"
_VERSION = "(?P<version>[0-9][0-9a-z.]*?)"
_CANN_VERSION = "(?P<version>[0-9][0-9a-z.+-]*)"
_OS = r"(?P<os>linux|[a-z]+[0-9][0-9.]*)"
_KIND = "(?P<kind>driver|firmware)"

_PATTERNS = (
    ("hdk_run", r"(?:ascend-hdk-%s|%s-hdk)-(?:npu-)?%s(?P<soc>-soc)?_%s(?:_(?P<patch>sph\d+))?(?:_%s(?:-%s)?)?"
     r"(?P<custom>(?:\.run)?-custom)?\.(?P<format>run)" % (_CHIP, _GENERATION, _KIND, _VERSION, _OS, _ARCH)),
    ("hdk_run_product", r"%s-(?:npu-)?%s_%s(?:_%s(?:-%s)?)?\.(?P<format>run)" % (_PRODUCT, _KIND, _VERSION, _OS, _ARCH)),
    ("hdk_zip", r"(?:ascend-hdk-%s|%s-hdk|%s)-(?P<kind>npu)_%s_(?P<os>linux)-%s\.(?P<format>zip)"
     % (_CHIP, _GENERATION, _PRODUCT, _VERSION, _ARCH)),
    ("hdk_rpm", r"(?:ascend-hdk-%s|%s-hdk|%s)-npu-%s-%s-(?P<release>\d+)\.(?P<arch>aarch64|x86_64|noarch)\.(?P<format>rpm)"
     % (_CHIP, _GENERATION, _PRODUCT, _KIND, _VERSION)),
    ("hdk_mcu", r"(?:ascend-hdk-%s|%s-hdk)-(?P<kind>mcu)_(?P<version>\d+\.\d+\.\d+)\.(?P<format>zip|hpm|bin)" % (_CHIP, _GENERATION)),
    ("cann_main", r"ascend-cann-(?P<kind>toolkit|nnrt|nnae|nnal|tfplugin)_%s_(?P<os>linux)-%s\.(?P<format>run|zip)"
     % (_CANN_VERSION, _ARCH)),
    ("cann_kernels", r"(?:ascend-cann-(?P<kind>kernels)-%s|%s-cann-kernels)_%s_(?P<os>linux)(?:-%s)?\.(?P<format>run|zip)"
     % (_CHIP, _GENERATION, _CANN_VERSION, _ARCH)),
    ("cann_ops", r"ascend-cann-%s-(?P<kind>ops)_%s_(?P<os>linux)-%s\.(?P<format>run|zip)" % (_CHIP, _CANN_VERSION, _ARCH)),
    ("cann_all_in_one", r"ascend-(?P<kind>cann)_%s_(?P<os>linux)-%s\.(?P<format>run)" % (_CANN_VERSION, _ARCH)),
    ("docker_runtime", r"ascend-(?P<kind>docker-runtime)_%s_(?P<os>linux)-%s\.(?P<format>run)" % (_CANN_VERSION, _ARCH)),
    ("toolbox", r"ascend-mindx-(?P<kind>toolbox)_%s_(?P<os>linux)-%s\.(?P<format>run|zip)" % (_CANN_VERSION, _ARCH)),
)
# Without re.ASCII a long s or the sign of the kelvin would pass for s and k, and digits of other scripts for numbers.
_COMPILED = tuple((naming, re.compile(pattern + r"\Z", re.IGNORECASE | re.ASCII)) for naming, pattern in _PATTERNS)

_COMPONENTS = {
    "driver": "driver", "firmware": "firmware", "npu": "hdk_bundle", "mcu": "mcu",
    "toolkit": "cann_toolkit", "kernels": "cann_kernels", "ops": "cann_kernels", "nnrt": "cann_nnrt", "nnae": "cann_nnae",
    "nnal": "nnal", "tfplugin": "cann_tfplugin", "cann": "cann_bundle", "docker-runtime": "docker_runtime", "toolbox": "toolbox",
}


def parse(name):
    """Return what the file name says, or raise FleetError.

    Keys: component, version, family and arch (None where the name has none), format (run, zip, rpm …), naming (the
    pattern that fits), os, product, soc, custom, patch.
    """
    for naming, pattern in _COMPILED:
        found = pattern.match(name)
        if found:
            return _description(naming, found.groupdict())
    raise FleetError(
        "%s is not the name of a package that is known here." % name,
        "package_unknown",
        object=name,
        hint="Keep the vendor's file name, such as %s." % file_name("driver", "25.5.0", "a2", "x86_64"),
    )


def _description(naming, found):
    kind = (found.get("kind") or "kernels").lower()
    chip = (found.get("chip") or found.get("generation") or "").lower()
    product = found.get("product")
    arch = (found.get("arch") or "").lower().replace("-", "_")
    patch = found.get("patch")
    return {
        "component": _COMPONENTS[kind],
        "version": found["version"] + ("_" + patch if patch else ""),
        "family": CHIP_FAMILY[chip] if chip else _PRODUCT_FAMILY[product.lower()] if product else None,
        "arch": arch if arch not in ("", "noarch") else None,
        "format": found["format"].lower(),
        "naming": naming,
        "os": (found.get("os") or "").lower() or None,
        "product": product,
        "soc": bool(found.get("soc")),
        "custom": bool(found.get("custom")),
        "patch": patch,
    }


_FILE_CHIP = {"310p": "310p", "310b": "310b", "910": "910", "a2": "910b", "a3": "A3", "a5": "950"}


def file_name(component, version, family=None, arch=None):
    """Return the file name under which the vendor publishes a package; raise FleetError when there is none."""
    if component in ("driver", "firmware"):
        tail = "_linux-%s" % _required(component, "arch", _hdk_arch(family, arch)) if component == "driver" else ""
        return "%s-npu-%s_%s%s.run" % (_hdk_stem(component, family, arch), component, version, tail)
    if component == "cann_kernels":
        return _kernels_name(version, _required(component, "family", _FILE_CHIP.get(family)), arch)
    if component == "cann_nnrt" and compare(version, "8.5.0.alpha") >= 0:
        raise _no_name(component, version, "From CANN 8.5.0 it is the toolkit, installed with --whitelist=nnrt.")
    stems = {
        "cann_toolkit": "cann-toolkit", "cann_nnrt": "cann-nnrt", "cann_nnae": "cann-nnae", "nnal": "cann-nnal",
        "docker_runtime": "docker-runtime",
    }
    if component not in stems:
        raise _no_name(component, version, "Known components: driver, firmware, cann_kernels, %s." % ", ".join(sorted(stems)))
    return "Ascend-%s_%s_linux-%s.run" % (stems[component], version, _required(component, "arch", arch))


def _hdk_stem(component, family, arch):
    if family in ("a3", "a5"):
        return "Atlas-%s-hdk" % family.upper()
    if family == "310":
        # The Atlas 300I kept its own names: model 3000 is sold for Arm servers, model 3010 for x86.
        return {"aarch64": "A300-3000", "x86_64": "A300-3010"}[_required(component, "arch", arch)]
    return "Ascend-hdk-%s" % _required(component, "family", _FILE_CHIP.get(family))


def _hdk_arch(family, arch):
    # Driver files alone spell it with a hyphen.
    return "x86-64" if arch == "x86_64" and family != "310" else arch


def _kernels_name(version, chip, arch):
    if compare(version, "8.5.0.beta") >= 0:
        return "Ascend-cann-%s-ops_%s_linux-%s.run" % (chip, version, _required("cann_kernels", "arch", arch))
    tail = "-" + _required("cann_kernels", "arch", arch) if compare(version, "8.0.RC2") > 0 else ""
    stem = "Atlas-A3-cann-kernels" if chip == "A3" else "Ascend-cann-kernels-%s" % chip
    return "%s_%s_linux%s.run" % (stem, version, tail)


def _required(component, what, value):
    if value in (None, "") or (what == "arch" and value not in ("aarch64", "x86_64", "x86-64")):
        raise _no_name(component, value, "The %s decides the name of this file." % what)
    return value


def _no_name(component, observed, hint):
    message = "There is no package file for %s." % component
    return FleetError(message, "package_name_unknown", object=component, observed=observed, hint=hint)
