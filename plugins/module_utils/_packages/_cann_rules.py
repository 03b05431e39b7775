# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CANN needs that other components do not: several versions, one in force, parts that fit only each other. Pure. Private."""

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _names
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import compare, same

COMPONENTS = ("cann_toolkit", "cann_kernels", "cann_nnrt", "nnal")
#: An action that moves links and writes the environment; it runs no package, so it needs neither a file nor a licence.
SWITCH = "switch"
# From here on nnrt has no package of its own: it is the toolkit's with --whitelist=nnrt.
_WHITELIST = "8.5.0.alpha"


def action(component, now, version, *, family=None, arch=None, toolkit=None, allow_downgrade=False):
    """Return {action, reason} where CANN has a rule of its own, else None: then what holds for every component holds.

    ``toolkit`` is the version that the toolkit will have once the steps before this one are done.
    """
    if component not in COMPONENTS:
        return None
    record = now.get("record") or {}
    broken = _find(record.get("broken"), version)
    if broken and now["state"] == "present":
        return _do("repair", "%s is not complete: an installation of it was cut." % broken)
    beside = any(same(version, other) for other in record.get("installed") or [])
    if component == "cann_kernels" and beside and same(toolkit, version) and not same(now["version"], version):
        return _do("none", "They are in the folder of toolkit %s." % toolkit)
    if now["state"] != "present":
        return None
    if same(now["version"], version):
        wrong = unfit(component, now, family, arch)
        if wrong:
            return _do("repair", wrong)
        unsettled = record.get("unsettled") or []
        return _do(SWITCH, "%s." % "; ".join(unsettled)) if unsettled else None
    if beside and (allow_downgrade or compare(now["version"], version) < 0):
        return _do(SWITCH, "%s is installed beside %s." % (version, now["version"]))
    return None


def unfit(component, now, family, arch):
    """Return why what is installed can not work on this host, or None. The packages themselves do not look (measured)."""
    record = now.get("record") or {}
    if arch and record.get("arch") in ("x86_64", "aarch64") and record["arch"] != arch:
        return "The installed %s is for %s, this host is %s." % (component, record["arch"], arch)
    families = built_for(record) if component == "cann_kernels" else []
    if family and families and family not in families:
        return "The installed kernels are for family %s, the chips are %s." % (", ".join(families), family)
    return None


def built_for(record):
    """Return the families that installed kernels are for: by their folders, else by the name of their package; empty when unknown."""
    if record.get("families"):
        return record["families"]
    if not record.get("package_name"):
        return []
    try:
        family = _names.parse("%s_1.0.0_linux-x86_64.run" % record["package_name"])["family"]
    except FleetError:
        return []
    return [family] if family else []


def bad_neighbour(component, version, will_be, nnrt_record):
    """Return (code, reason) when ``component`` does not go with what will be there, else None. ``will_be`` gives a component's version."""
    toolkit = will_be("cann_toolkit")
    if component == "cann_toolkit" and _find((nnrt_record or {}).get("trees"), version) and not is_separate(version):
        reason = "nnrt %s is in the folder of this toolkit, and the package can not make a toolkit of it. Remove cann_nnrt first."
        return "nnrt_in_the_way", reason % version
    if component == "cann_nnrt" and toolkit and not is_separate(version):
        return "toolkit_has_nnrt", "Toolkit %s has the runtime libraries of nnrt in it. Pin one of the two." % toolkit
    if component in ("cann_kernels", "nnal") and not toolkit:
        what = "The kernels go into the tree of the toolkit" if component == "cann_kernels" else "nnal needs the toolkit's environment"
        return "toolkit_missing", "%s, and there is none. Install the toolkit first." % what
    if component != "cann_toolkit" and toolkit and not same(toolkit, version):
        what = {"cann_kernels": "Kernels"}.get(component, component)
        return "toolkit_differs", "%s %s need the toolkit of that very version, not %s." % (what, version, toolkit)
    return None


def package_of(component, version):
    """Return the component whose package is run for this one."""
    return "cann_toolkit" if component == "cann_nnrt" and not is_separate(version) else component


def is_separate(version):
    """Return whether nnrt of this version is a package and a folder of its own."""
    return compare(version, _WHITELIST) < 0


def folder(base, component, version):
    """Return the version folder that a package makes, None for kernels: they go into the toolkit's."""
    if component == "nnal":
        return "%s/nnal/atb/%s" % (base, version)
    if component == "cann_kernels":
        return None
    if not is_separate(version):
        return "%s/cann-%s" % (base, version)
    return "%s/%s/%s" % (base, "nnrt" if component == "cann_nnrt" else "ascend-toolkit", version)


def _find(paths, version):
    return next((path for name, path in sorted((paths or {}).items()) if same(name, version)), None)


def _do(name, reason):
    return {"action": name, "reason": reason, "reboot": False}
