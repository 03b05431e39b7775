# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one decision: what a node needs to get from what it has to what is wanted, in order. Pure. Private to the collection.

The controller uses it for the plan; npu_package asks it again right before it acts.
"""

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import layers_of
from ansible_collections.npu.fleet.plugins.module_utils._packages import _cann_rules, _names
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import compare, parse, same

# Built for one family of chips, so not for a host without any.
FAMILY_BOUND = ("driver", "firmware", "cann_kernels")
# The order of the vendor's images and of its deployer: toolkit, kernels, runtime libraries of that version, accelerated libraries.
_AFTER = ("cann_toolkit", "cann_kernels", "cann_nnrt", "nnal", "docker_runtime")
KNOWN = ("driver", "firmware") + _AFTER
_ABSENT = {"state": "absent", "version": None, "reason": None, "record": {}}


def decide(observed, wanted, allow_downgrade=False):
    """Return the ordered steps for ``wanted``: component, action, from, to, reason, reboot and code of each.

    ``observed`` has arch, family (and ``families`` where there are several) and components; ``wanted`` is component ->
    version, and ``file`` (a name or path) where it is known. The action is install, upgrade, downgrade, repair, switch (to a
    version of CANN that is there; no package is run), refuse (then ``code`` is a word for the reason) or none.
    """
    steps = {}
    for component in order(observed, wanted):
        steps[component] = _step(observed, wanted, component, steps, allow_downgrade)
    return [steps[component] for component in order(observed, wanted)]


def order(observed, wanted):
    """Return the wanted components in the order of work.

    Without a driver that works it comes first, because firmware is written with the driver's tool; where there is one, the
    vendor's order is firmware, then driver (three vendor sources), also on the way back.
    """
    driver = _observed(observed, "driver")
    first = ("driver", "firmware") if driver["state"] in ("absent", "half_installed") or _silent(driver) else ("firmware", "driver")
    unknown = sorted(set(wanted) - set(KNOWN))
    return [component for component in first + _AFTER if component in wanted] + unknown


def _observed(observed, component):
    return (observed.get("components") or {}).get(component) or _ABSENT


def _silent(driver):
    """Return whether a driver is there that is known not to answer, such as one whose modules do not come up."""
    return (driver.get("record") or {}).get("answers") is False


def _step(observed, wanted, component, steps, allow_downgrade):
    now = _observed(observed, component)
    version = wanted[component].get("version")
    step = {"component": component, "action": "none", "from": now["version"], "to": version, "reason": None, "reboot": False, "code": None}
    refusal = (
        _bad_wish(component, wanted[component])
        or _bad_host(observed, component)
        or _bad_package(observed, component, wanted[component])
        or _bad_state(component, now)
        or _bad_neighbour(observed, wanted, component, steps)
    )
    if refusal:
        return dict(step, action="refuse", code=refusal[0], reason=refusal[1])
    own = _cann_rules.action(
        component, now, version, family=observed.get("family"), arch=observed.get("arch"), allow_downgrade=allow_downgrade,
        toolkit=_will_be(observed, "cann_toolkit", steps),
    )
    return dict(step, **(own or _action(component, now, version, allow_downgrade)))


def _action(component, now, version, allow_downgrade):
    if now["state"] == "absent":
        return _do(component, "install", "Nothing is installed.")
    if now["state"] == "half_installed":
        return _do(component, "repair", now["reason"])
    if _installed(now, version):
        if now["state"] == "mismatched":
            return _do(component, "repair", now["reason"])
        pending = now["state"] == "reboot_pending"
        return {"action": "none", "reason": now["reason"] if pending else None, "reboot": pending}
    if compare(now["version"], version) < 0:
        return _do(component, "upgrade", "%s is older than %s." % (now["version"], version))
    if allow_downgrade:
        return _do(component, "downgrade", "%s is newer than %s, and going back is allowed." % (now["version"], version))
    reason = "%s is installed, which is newer than %s. Set allow_downgrade to go back." % (now["version"], version)
    return {"action": "refuse", "code": "downgrade_refused", "reason": reason}


def _do(component, action, reason):
    # Firmware runs after the next reset. A driver comes up at once, but not over the remains of a cut run (driver package, measured).
    return {"action": action, "reason": reason, "reboot": component == "firmware" or (component == "driver" and action == "repair")}


def _installed(now, version):
    # HDK 22.x: the version in the file name is not the one of the driver; version.info has it as package_version.
    return same(now["version"], version) or same((now.get("record") or {}).get("package_version"), version)


def _bad_wish(component, wish):
    if component not in KNOWN:
        return "component_unknown", "%s is no component; known are %s." % (component, ", ".join(KNOWN))
    try:
        parse(wish.get("version"))
    except FleetError as error:
        return error.code, str(error)
    return None


def _bad_host(observed, component):
    if component not in layers_of(observed.get("family")):
        message = "There is no %s for %s: nothing of it is installed by packages." % (component, observed["family"])
        return "no_layer", message
    if component not in FAMILY_BOUND:
        return None
    families = observed.get("families") or []
    if len(families) > 1:
        names = ", ".join(sorted(families))
        return "several_families", "This host has chips of several families (%s): the vendor has no procedure for that." % names
    if not observed.get("family"):
        return "npu_missing", "No NPU was found on this host, so there is nothing that %s could be for." % component
    return None


def _bad_package(observed, component, wish):
    if not wish.get("file"):
        return None
    name = wish["file"].rstrip("/").rsplit("/", 1)[-1]
    try:
        package = _names.parse(name)
    except FleetError as error:
        return error.code, str(error)
    if package["component"] != _cann_rules.package_of(component, wish["version"]):
        return "wrong_component", "%s is a package of %s, not of %s." % (name, package["component"], component)
    if not same(package["version"], wish["version"]):
        return "wrong_version", "%s has version %s, wanted is %s." % (name, package["version"], wish["version"])
    if package["family"] and observed.get("family") and package["family"] != observed["family"]:
        return "wrong_family", "%s is for family %s, the chips of this host are %s." % (name, package["family"], observed["family"])
    if package["arch"] and observed.get("arch") and package["arch"] != observed["arch"]:
        # CANN packages do not look: an aarch64 tree replaces the right one with exit code 0 (measured).
        return "wrong_arch", "%s is for %s, this host is %s." % (name, package["arch"], observed["arch"])
    if package["format"] != "run":
        return "wrong_format", "%s is no .run file." % name
    return None


def _bad_state(component, now):
    if now["state"] == "foreign":
        return "foreign", "%s Remove it the way it came, or take it over by hand; it is never removed from here." % now["reason"]
    if now["state"] == "reboot_pending" and not now["version"]:
        return "reboot_first", "%s Reboot, then run again." % now["reason"]
    return None


def _bad_neighbour(observed, wanted, component, steps):
    if component == "firmware" and not _will_be(observed, "driver", steps):
        return "driver_missing", "Firmware is written with a tool of the driver, and there is none. Install the driver first."
    if component == "firmware" and not _works(observed, steps) and not _rests(observed, wanted, component):
        return "driver_silent", "Firmware is written with the running driver, and that one does not answer. Reboot, or repair the driver."
    if component in _cann_rules.COMPONENTS:
        nnrt = _observed(observed, "cann_nnrt")["record"]
        return _cann_rules.bad_neighbour(component, wanted[component]["version"], lambda other: _will_be(observed, other, steps), nnrt)
    return None


def _rests(observed, wanted, component):
    """Return whether this component is there as wanted, so that nothing is asked of its neighbours."""
    now = _observed(observed, component)
    return now["state"] in ("present", "reboot_pending") and _installed(now, wanted[component]["version"])


def _works(observed, steps):
    """Return whether there is a driver to write firmware with; one that a step before puts there is believed to come up."""
    step = steps.get("driver")
    return bool(step and step["action"] not in ("none", "refuse")) or not _silent(_observed(observed, "driver"))


def _will_be(observed, component, steps):
    """Return the version that ``component`` has once the steps so far are done, or None."""
    step = steps.get(component)
    if step and step["action"] != "refuse":
        return step["to"]
    now = _observed(observed, component)
    return now["version"] if now["state"] in ("present", "reboot_pending", "mismatched") else None
