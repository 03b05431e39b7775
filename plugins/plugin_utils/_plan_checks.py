# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan refuses or warns of beside the host itself: holders, licences, the catalog, failed versions, the approved plan.

Pure. Private to the collection.
"""

from __future__ import annotations

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.npu.fleet.plugins.module_utils._agent import UNIT_NAME as AGENT_UNIT
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import needs_licence
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same
from ansible_collections.npu.fleet.plugins.plugin_utils import _catalog
from ansible_collections.npu.fleet.plugins.plugin_utils._findings import CHIP_COMPONENTS, finding
from ansible_collections.npu.fleet.plugins.plugin_utils._pinned import COMPONENTS_OF, KEY_OF

#: What an operator of the playbook does about a refusal of `decide`, by its code.
HINTS = {
    "downgrade_refused": "For the whole fleet that is npu_fleet_allow_downgrade: true.",
    "foreign": "`dpkg -S FILE` or `rpm -qf FILE` on the node names its package.",
}
#: Installed as a component of these states; of half-installed ones nobody knows a version.
_INSTALLED = ("present", "reboot_pending", "mismatched")


def flag(wanted, name):
    """A truth value, also where it came as text: `-e` and INI inventories give 'false', which Python takes for true."""
    return boolean(wanted.get(name) or False)


def refused_steps(steps):
    """What `decide` itself refuses."""
    return [
        finding("error", step["code"], step["component"], step["reason"], HINTS.get(step["code"], ""))
        for step in steps if step["action"] == "refuse"
    ]


def licences(todo, wanted):
    if flag(wanted, "accept_licence"):
        return []
    return [
        finding(
            "error", "licence_not_accepted", step["component"],
            f"Installing {step['component']} {step['to']} accepts the vendor's licence, and nobody has agreed to that.",
            "Read it, then set npu_fleet_accept_licence: true.",
        )
        for step in todo if step["action"] != "switch" and needs_licence(step["component"], step["to"])
    ]


def running(observed):
    """A package that an earlier run has started is left alone."""
    return [
        finding(
            "error", "package_running", component, f"The package of {component} still runs on this node.",
            "Do not reboot or power off the node. Run the playbook again later.",
        )
        for component in observed.get("running_packages") or []
    ]


def unknown_chips(observed, todo):
    """An accelerator that no table names: nothing may be guessed for it."""
    unknown = observed.get("unknown") or []
    if not unknown or not todo:
        return []
    ids = ", ".join(sorted(f"{f['vendor']}:{f['device']} at {f['address']}" for f in unknown))
    return [finding(
        "error", "chips_unknown", "driver", f"This node has accelerators that no table here names: {ids}.",
        "Nothing is installed on it. Take it out of the run with -l, and report the ids from `lspci -nn`.",
    )]


# --- who holds a chip -------------------------------------------------------------------------------------------------

def our_pod(container, namespace):
    """Whether a container is of the agent's DaemonSet: by namespace and name, as anybody may call a pod so in a namespace of his own."""
    return container.get("namespace") == namespace and str(container.get("pod") or "").startswith("npu-agent-")


def holders(observed, wanted=None):
    """Who would lose a chip, one entry a process: pid, comm, devices, unit, container and pod. Our own agent is stopped by its role."""
    namespace = (wanted or {}).get("agent_namespace") or "npu-fleet"
    names = (observed.get("preflight") or {}).get("containers") or {}
    found = {}
    for holder in observed.get("holders") or []:
        if holder.get("unit") == AGENT_UNIT:
            continue
        known = names.get(holder.get("container")) or {}
        if our_pod(known, namespace):
            continue
        entry = found.setdefault(holder["pid"], {
            "pid": holder["pid"], "comm": holder["comm"], "devices": [], "unit": holder.get("unit"), "container": holder.get("container"),
            "container_name": known.get("name"), "pod": known.get("pod"), "namespace": known.get("namespace"),
            "pod_uid": holder.get("pod_uid"),
        })
        entry["devices"].append(holder["device"])
    return list(found.values())


def who(holder):
    """A holder in words."""
    place = ""
    if holder["pod"]:
        place = f" in pod {holder['namespace'] or 'default'}/{holder['pod']}"
    elif holder["pod_uid"]:
        place = f" in the pod with uid {holder['pod_uid']}"
    elif holder["container"]:
        place = f" in container {holder['container_name'] or holder['container'][:12]}"
    return f"{holder['comm']} (pid {holder['pid']}) on {', '.join(holder['devices'])}{place}"


def chips_in_use(found, todo, wanted):
    """Packages see holders of the first chip only (docs/facts.md, M 7), and a holder of another one loses it in the middle of its work."""
    touched = [step["component"] for step in todo if step["component"] in CHIP_COMPONENTS]
    if not touched or not found:
        return []
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    names = "; ".join(who(holder) for holder in found[:5]) + more
    change = " and ".join(touched)
    if (wanted.get("disruption") or "refuse") == "allow":
        message = f"Chips are in use by {names}; npu_fleet_disruption is allow, so they lose them when {change} changes."
        hint = "Nobody stops them in an orderly way: drain the node first if you can."
        return [finding("warning", "chips_in_use", touched[0], message, hint)]
    return [finding(
        "error", "chips_in_use", touched[0], f"Chips are in use by {names}; changing {change} would take them away.",
        "Stop these processes or drain the node (DaemonSets stay after a drain), then run again; with npu_fleet_disruption: allow they "
        "lose their chips.",
    )]


# --- what is known of the versions ------------------------------------------------------------------------------------

def failed_before(observed, todo, pins, wanted):
    """A set of versions that this node has failed with is not tried again by itself."""
    if flag(wanted, "retry_failed"):
        return []
    found = []
    for entry in (observed.get("record") or {}).get("failed") or []:
        parts = {component: version for component, version in entry["components"].items() if component in pins}
        changes = any(step["component"] in parts for step in todo)
        if parts and changes and all(same(pins[component], version) for component, version in parts.items()):
            words = ", ".join(f"{component} {version}" for component, version in sorted(entry["components"].items()))
            message = f"This node has failed with {words} before: {entry['reason']} ({entry['time']})"
            hint = "Pin other versions, or mend the cause and set npu_fleet_retry_failed: true."
            found.append(finding("error", "failed_before", min(parts), message, hint))
    return found


def effective_versions(observed, pins):
    """What the node will have: installed versions, overlaid by the pinned ones."""
    installed = {}
    for component, key in KEY_OF.items():
        now = observed["components"].get(component) or {}
        if now.get("state") in _INSTALLED and now.get("version") and key not in installed:
            installed[key] = now["version"]
    return dict(installed, **{key: version for key, version in pins.versions.items() if version})


def compatible(observed, todo, pins, wanted):
    """(findings, verdict, release): do the versions that the node will have belong together, by the catalog?"""
    if not observed.get("family") or not pins.versions:
        return [], None, pins.release
    catalog = _catalog.load(wanted.get("catalog_dirs") or ())
    versions = effective_versions(observed, pins)
    changed = {KEY_OF[step["component"]] for step in todo if step["component"] in KEY_OF}
    try:
        judged = _catalog.judge(catalog, observed["family"], versions)
    except FleetError as error:
        # An installed version that nobody can read; a pinned one is refused by decide().
        return [finding("warning", error.code, error.object or "driver", error.message, error.hint or "")], None, pins.release
    found = [_unlisted(problem, changed, pins.reason) for problem in judged["problems"]]
    return found + _minimums(catalog, observed, versions, changed, pins.reason), judged["verdict"], pins.release or judged["release"]


def _involved(problem):
    """Components of an unlisted pair. A version that is in no row makes every pair with it unlisted; firmware is bound to the driver."""
    left, right = problem["left"][0], problem["right"][0]
    if right != "family":
        return {left, right}
    return {"firmware", "driver"} if left == "firmware" else set(COMPONENTS_OF)


def _unlisted(problem, changed, reason):
    touched = _involved(problem) & changed
    if touched and not reason:
        hint = "Take versions that are listed, or give npu_fleet_allow_unlisted_reason; it is recorded on the node."
        return finding("error", "unlisted", problem["left"][0], problem["message"], hint)
    if reason:
        return finding("warning" if touched else "note", "unlisted", problem["left"][0], f"{problem['message']} Allowed, because: {reason}")
    return finding("warning", "unlisted", problem["left"][0], problem["message"], "Nothing of it changes now, so it is left as it is.")


def _minimums(catalog, observed, versions, changed, reason):
    system = observed.get("os") or {}
    problems = _catalog.minimums(
        catalog, observed["family"], observed.get("product"), system.get("id"), system.get("version_id"), observed["kernel"],
        observed["arch"], versions,
    )
    return [
        finding(_weight(problem, changed, reason), problem["code"], problem["object"], problem["message"], problem["hint"])
        for problem in problems
    ]


def _weight(problem, changed, reason):
    """What does not change runs here already, whatever a table says."""
    if not (problem["object"] in changed or (problem["object"] == "os" and changed)):
        return "note"
    return "warning" if reason else problem["severity"]


# --- the way back, and what was approved ------------------------------------------------------------------------------

def way_back(observed, todo):
    """Could the node go back without network? {ok, missing}: components that change and whose good package is not in its cache."""
    good = (((observed.get("record") or {}).get("good") or {}).get("current") or {}).get("components") or {}
    leaving = [step["component"] for step in todo if step["action"] in ("upgrade", "downgrade")]
    missing = [component for component in leaving if not (good.get(component) or {}).get("cached")]
    return {"ok": not missing, "missing": missing}


def no_way_back(back):
    if not back["missing"]:
        return []
    message = f"The node's cache has no package to go back to for {', '.join(back['missing'])}: what fails cannot be undone by itself."
    hint = "Have the packages of the installed versions at hand in the depot."
    return [finding("warning", "no_way_back", back["missing"][0], message, hint)]


def beyond(plan, ceiling):
    """Package steps of ``plan`` that the ``ceiling`` does not contain, as text. Empty: the plan may run."""
    allowed = {(step["component"], step["to"]): step for step in ceiling["packages"]}
    return [
        f"{step['component']} -> {step['to']} ({step['reason']})" for step in plan["packages"]
        if not _approved(step, allowed.get((step["component"], step["to"])))
    ]


def _approved(step, before):
    if before is None or (step["action"] == "downgrade") > (before["action"] == "downgrade"):
        return False
    sums = {step.get("sha256"), before.get("sha256")} - {None}
    return len(sums) < 2


def beyond_approved(plan, approved):
    """The same against a plan that somebody has approved, where engine and reboot count as well."""
    found = beyond(plan, approved)
    if plan["engine"]["action"] != "none" and approved["engine"]["action"] == "none":
        found.append(f"engine -> {plan['engine']['action']} ({plan['engine']['reason']})")
    if plan["device_group"]["action"] != "none" and (approved.get("device_group") or {}).get("group") != plan["device_group"]["group"]:
        found.append(f"device group -> {plan['device_group']['action']} ({plan['device_group']['reason']})")
    if plan["reboot_expected"] and not approved["reboot_expected"]:
        found.append("a reboot")
    return found
