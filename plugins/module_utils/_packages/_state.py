# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is installed, as the machine's own files say it. Private to the collection.

"On disk" comes only from files; what runs is handed in, so that a test (and a node) can have the two differ. Exit codes of
packages play no part here.
"""

import os
import platform
import re

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._packages import _cann, _journal, _managed
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import Files, lookup
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same

COMPONENTS = ("driver", "firmware", "cann_toolkit", "cann_kernels", "cann_nnrt", "nnal", "docker_runtime")
INSTALL_INFO = "/etc/ascend_install.info"
BASE = "/usr/local/Ascend"
RUNTIME_FOLDER = "Ascend-Docker-Runtime"

# Types of a driver installation that bring kernel modules (driver package, measured). The others are for development and containers.
_KERNEL_TYPES = ("full", "run", "debug")


def observe(root="/", running=None):
    """Return the components of a node: state, version, running, path, reason and record of each.

    ``running`` has driver_loaded, driver_version, firmware_versions and npu_present; None in it means "not known", and of
    what is not known nothing is claimed. ``kernel`` in it is the release of the running kernel, ``boot_id`` and ``boot_time``
    are of the present boot.
    """
    files = Files(root)
    running = dict(running or {})
    info = files.values(INSTALL_INFO) or {}
    managed = _managed.find(files, run if files.real("/") == "/" else None)
    components = {
        "driver": _driver(files, info, running),
        "firmware": _firmware(files, info, running),
        "docker_runtime": _docker_runtime(files),
    }
    components.update(_cann.observe(files, BASE))
    for package in managed:
        reason = "%(name)s %(version)s of %(manager)s brought the %(component)s." % package
        components[package["component"]].update(state="foreign", reason=reason)
    return components


def _booted_since(files, running, name, version, path):
    """Return whether the host has booted since this version was written there; what nobody knows is no.

    Our own record and journal say in which boot we wrote it. For what others wrote, the age of its version.info counts.
    """
    then = _journal.boot_of(files.real(_journal.STATE_DIR), name, version)
    if then and running.get("boot_id"):
        return then != running["boot_id"]
    written, booted = files.changed(path + "/version.info"), running.get("boot_time")
    return bool(written and booted and written < booted)


def _remains(files, name, versions, path):
    """Return why files that no record of the vendor's names are our own, or None: a package that was cut left them.

    Firmware has its version.info before its record (crash sweep, both killed between them). ``versions``: those that the files name;
    ``path``: the file that came last. What came after our package had ended was brought by somebody else.
    """
    begun, ended = _journal.unfinished(files.real(_journal.STATE_DIR), name) or (None, None)
    written = files.changed(path)
    if not begun or (ended and written and written > ended + 1):
        return None
    if begun.get("action") == "remove":
        return "Not complete: its removal was cut."
    if not begun.get("version") or not any(same(version, begun["version"]) for version in versions or [begun["version"]]):
        return None
    return "Not complete: the package of %s was cut before it wrote its record." % begun["version"]


def component(state, version=None, *, running=None, path=None, reason=None, record=None):
    """Return one component of the result."""
    return {"state": state, "version": version, "running": running, "path": path, "reason": reason, "record": record or {}}


# --- driver ---------------------------------------------------------------------------------------------------------

def _driver(files, info, running):
    recorded = info.get("Driver_Install_Path_Param")
    path = (recorded or BASE).rstrip("/") + "/driver"
    values = files.values(path + "/version.info")
    version = lookup(values, "Version")
    kind = info.get("Driver_Install_Type")
    loaded, live = running.get("driver_loaded"), running.get("driver_version")
    record = {
        "install_type": kind,
        "install_path": recorded,
        "for_all": {"yes": True, "no": False}.get(info.get("Driver_Install_For_All")),
        "username": info.get("UserName"),
        "usergroup": info.get("UserGroup"),
        "package_version": lookup(values, "package_version"),
        "compatible_firmware": lookup(values, "compatible_version_fw"),
        "answers": _answers(running),
    }

    def result(state, reason=None):
        return component(state, version, running=live, path=path if version or recorded else None, reason=reason, record=record)

    if not recorded:
        if version or files.names(path):
            versions = [known for known in (version, record["package_version"]) if known]
            remains = _remains(files, "driver", versions, path + ("/version.info" if version else ""))
            if remains:
                return dict(result("half_installed", remains), path=path)
            reason = "%s is there, but %s does not name it: no package of this machine put it there." % (path, INSTALL_INFO)
            return dict(result("foreign", reason), path=path)
        if loaded:
            reason = "A driver is loaded, but none is on disk: a removed one stays until a reboot, or a container loads it."
            return result("reboot_pending", reason)
        # The user may be recorded all the same: firmware or another package still owns the record (field case).
        return component("absent", running=live, record=record)
    missing = _marks_missing(version, path, info) + _modules_missing(files, loaded, running.get("kernel") or platform.release())
    if missing:
        return result("half_installed", "Not complete: %s." % "; ".join(missing))
    if loaded and live and not _is_version(live, version, record["package_version"]):
        differs = "Driver %s is on disk, %s is loaded" % (version, live)
    elif loaded is False and running.get("npu_present"):
        differs = "Driver %s is on disk, but not loaded" % version
    else:
        return result("present")
    return result(*_pending(differs, any(_booted_since(files, running, "driver", v, path) for v in (version, record["package_version"]))))


def _pending(differs, booted):
    """Return (state, reason): only a boot can bring together what differs, and one that has not done so is no reason to try again."""
    if booted:
        return "mismatched", differs + ", and a reboot since then has not changed that."
    return "reboot_pending", differs + "."


def _answers(running):
    """Return whether the loaded driver answers queries; None where there is nothing to say (no chips, or nobody looked)."""
    if running.get("driver_version"):
        return True
    return False if running.get("npu_present") and running.get("driver_loaded") is not None else None


def _is_version(live, version, package_version):
    # HDK 22.x: the file name says 6.0.RC1, npu-smi 22.0.x; version.info has both.
    return same(live, version) or same(live, package_version)


def _marks_missing(version, path, info):
    """Return what a complete driver has and this one has not. Each mark alone was seen in broken states (driver package, measured)."""
    kind = info.get("Driver_Install_Type")
    missing = [] if version else ["%s/version.info has no Version" % path]
    if kind not in _KERNEL_TYPES:
        missing.append("the installation type is %s, which has no kernel modules" % (kind or "not recorded"))
    elif info.get("Driver_Install_Status") != "complete":
        missing.append("%s has no Driver_Install_Status=complete" % INSTALL_INFO)
    return missing


def _modules_missing(files, loaded, kernel):
    """Return what is wrong with the module files that the package has listed; without a list nothing is claimed.

    A full disk in /lib/modules leaves empty files behind an exit code of 0 (driver package, measured); such a driver may
    even be loaded until the next boot. Where the files lie matters only for a driver that is not loaded.
    """
    listed = re.findall(r"^\s*\[driver_ko\]\s*(\S+)", files.text("/etc/ascend_filelist.info") or "", re.MULTILINE)
    sizes = [(name, files.size(name)) for name in listed]
    empty = [name for name, size in sizes if size == 0]
    gone = [name for name, size in sizes if size is None]
    if empty:
        return ["module file %s is empty" % empty[0]]
    if loaded:
        return []
    if gone:
        return ["module file %s is not there" % gone[0]]
    kernels = sorted({found.group(1) for found in (re.search(r"/modules/([^/]+)/", name) for name in listed) if found})
    if kernels and kernel not in kernels:
        return ["its kernel modules are for %s, the running kernel is %s" % (", ".join(kernels), kernel)]
    return []


# --- firmware -------------------------------------------------------------------------------------------------------

def _firmware(files, info, running):
    recorded = info.get("Firmware_Install_Path_Param")
    path = (recorded or BASE).rstrip("/") + "/firmware"
    values = files.values(path + "/version.info")
    version = lookup(values, "Version")
    chips = running.get("firmware_versions")
    live = ", ".join(sorted(set(chips))) if chips else None
    record = {
        "install_type": info.get("Firmware_Install_Type"),
        "install_path": recorded,
        "package_version": lookup(values, "package_version"),
        "compatible_driver": lookup(values, "compatible_version_drv"),
    }

    def result(state, reason=None):
        return component(state, version, running=live, path=path if version or recorded else None, reason=reason, record=record)

    if not recorded:
        if version:
            remains = _remains(files, "firmware", [version, record["package_version"]], path + "/version.info")
            if remains:
                return result("half_installed", remains)
            return result("foreign", "%s is there, but %s does not name it." % (path, INSTALL_INFO))
        return component("absent", running=live)
    if not version:
        return result("half_installed", "Not complete: %s/version.info has no Version." % path)
    differing = [chip for chip in chips or [] if not same(chip, version)]
    if differing:
        differs = "Firmware %s is written, %d of %d chips run %s" % (version, len(differing), len(chips), ", ".join(sorted(set(differing))))
        return result(*_pending(differs, _booted_since(files, running, "firmware", version, path)))
    return result("present")


# --- docker runtime -------------------------------------------------------------------------------------------------

def _docker_runtime(files):
    path = "%s/%s" % (BASE, RUNTIME_FOLDER)
    values = files.values(path + "/ascend_docker_runtime_install.info")
    version = lookup(values, "version")
    version = re.sub(r"^[vV](?=[0-9])", "", version) if version else None
    record = {key: lookup(values, key) for key in ("install-scene", "config-file-path", "arch")}
    binaries = ["ascend-docker-runtime", "ascend-docker-hook"]
    missing = [name for name in binaries if not files.size(os.path.join(path, name))]
    if values is None and len(missing) == len(binaries):
        return component("absent")
    remains = _remains(files, "docker_runtime", [], path) if values is None else None
    if remains:
        return component("half_installed", path=path, reason=remains)
    if values is None:
        return component("foreign", path=path, reason="%s has no ascend_docker_runtime_install.info: no package put it there." % path)
    if version is None:
        missing.append("version in ascend_docker_runtime_install.info")
    if not files.names("/etc/ascend-docker-runtime.d"):
        missing.append("/etc/ascend-docker-runtime.d/base.list")
    if missing:
        return component("half_installed", version, path=path, reason="Not complete: %s missing." % ", ".join(missing), record=record)
    return component("present", version, path=path, record=record)
