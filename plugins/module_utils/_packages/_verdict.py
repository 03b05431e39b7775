# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Was it installed? Judged by the machine's state; exit code and log only explain a failure. Pure. Private to the collection."""

import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _runfile
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same

_AGAIN = _runfile.COPY_AGAIN % "FILE"
_FAMILY = "Bring the package of this host's family to the depot."
_NEWER = "Pin a newer driver in npu_fleet_versions."
_ROOM = "Make room at the path that %(log)s names: `df -h`."
# Fragments, in the vendor's spelling (driver package, measured; firmware and driver transcripts): code, what it means, what mends it.
_TEXTS = (
    ("list of missing tools", "tools_missing", "tools of the system are missing",
     "Install them: `apt-get install pciutils net-tools` or `dnf install pciutils net-tools` (lspci, ifconfig)."),
    ("nodes are occupied", "chips_busy", "processes hold the chips", "Stop them; `fuser -v /dev/davinci*` names them."),
    ("not exists! Please add", "user_missing", "the user of the driver does not exist",
     "Create it (`useradd NAME`), or set npu_driver_username and npu_driver_usergroup."),
    ("relatianship", "user_differs", "the user of the driver is not in its group", "Add it to the group: `usermod -a -G GROUP USER`."),
    ("is not match", "wrong_family", "the package is for another product", _FAMILY),
    ("not match, please check", "wrong_family", "the package is for another product", _FAMILY),
    ("Arch mismatch", "wrong_arch", "the package is for another architecture",
     "Bring the package for `uname -m` of this host to the depot."),
    ("Version check does not match", "flash_newer", "the chips' flash asks for a newer driver", _NEWER),
    ("earlier than the device flash", "flash_newer", "the chips' flash asks for a newer driver", _NEWER),
    ("Drv_dkms_env_check failed", "headers_missing", "headers of the running kernel are missing",
     "Install them: `apt-get install linux-headers-$(uname -r)` or `dnf install kernel-devel-$(uname -r)`."),
    ("Driver_ko_install", "module_refused", "the kernel did not take the modules",
     "`dmesg | tail -50` says why; `mokutil --sb-state`, whether Secure Boot is on."),
    ("crl_check failed", "signature", "the signature of the images is not good", _AGAIN),
    ("signature verification failed", "signature", "the signature of the images is not good", _AGAIN),
    ("free space only", "no_space", "there is too little space", _ROOM),
    ("Not enough space left", "no_space", "there is too little space to unpack", "Make room in %(cache)s: `df -h %(cache)s`."),
    ("not enough space", "no_space", "there is too little space", _ROOM),
    ("No space left", "no_space", "a disk is full", "`df -h` shows which. Make room, then run again."),
    ("should belong to root", "path_refused", "the path must belong to root", "`chown root:root PATH`, for the path that %(log)s names."),
    ("already a process being executed", "busy", "another run of the package is at work",
     "Wait for its end (`ps -ef | grep '[.]run'` on the node), then run again."),
)
# Where the roles take the module's option timeout from.
_TIMEOUTS = {"driver": "npu_driver_timeout", "firmware": "npu_driver_timeout", "docker_runtime": "npu_runtime_timeout"}
_CANN_TIMEOUT = "npu_cann_timeout"
_READ = "Read %(log)s on the node."
_ERROR_LINE = re.compile(r"\[ERROR\]|ERR_NO|^Error|Unexpected archive size|not enough space", re.IGNORECASE)
# Both are "installed": 2 is "reboot needed" (driver package, measured). Neither proves it.
GOOD_CODES = (0, 2)
_REBOOT_TEXTS = ("reboot needed", "reboot now")


def reached(component, version, after):
    """Return whether the machine's state is the wanted one: the version on disk and every mark of a complete installation."""
    if after["state"] not in ("present", "reboot_pending"):
        return False
    package_version = (after.get("record") or {}).get("package_version") if component == "driver" else None
    return same(after["version"], version) or same(package_version, version)


def failure(component, version, run, after, log, *, seconds, cache_dir):
    """Return the FleetError for a run after which the wanted state is not there.

    ``version`` None: the component should be gone. ``log`` is the package's own output, ``seconds`` what it had,
    ``cache_dir`` where it unpacked itself.
    """
    what = "%s %s" % (component, version) if version else component
    reason, code, hint = _explain(run, after, log, seconds)
    hint = hint % {"log": run.log, "cache": cache_dir, "option": _TIMEOUTS.get(component, _CANN_TIMEOUT)}
    said = _errors_in(log)
    message = "%s was not %s: %s." % (what, "installed" if version else "removed", reason)
    if said:
        message += " The package said: %s" % said
    observed = {"state": after["state"], "version": after["version"], "reason": after["reason"], "rc": run.rc, "run": run.state}
    return FleetError(message, code, "apply", object=what, observed=observed, hint=hint)


def _explain(run, after, log, seconds):
    if run.state == "killed":
        reason = "it did not end in time and was stopped after %d s" % seconds
        return reason, "deadline", "%(log)s shows how far it came; when it needs longer, raise %(option)s (timeout of this module)."
    if run.state == "flooded":
        return "it asks the same question for ever", "endless_question", "%(log)s on the node shows the question."
    if run.state == "lost":
        return "its end was not seen", "lost", "Run again."
    for fragment, code, meaning, hint in _TEXTS:
        if fragment.lower() in log.lower():
            return "%s (exit code %s)" % (meaning, run.rc), code, hint
    if run.rc == 2 and not any(text in log.lower() for text in _REBOOT_TEXTS):
        # Exit code 2 has two meanings; this one prints no line of the inner script.
        return "the package found itself damaged (exit code 2)", "package_damaged", _AGAIN
    if run.rc == 0:
        return "it ended with exit code 0, but %s" % _lacking(after), "nothing_installed", _READ
    if run.rc == 2:
        return "it asks for a reboot, but %s" % _lacking(after), "nothing_installed", _READ
    if run.rc is not None and run.rc < 0:
        return "it was ended by signal %d, and %s" % (-run.rc, _lacking(after)), "package_killed", _READ
    return "exit code %s, and %s" % (run.rc, _lacking(after)), "package_failed", _READ


def _lacking(after):
    if after["state"] == "absent":
        return "nothing is installed"
    if after["version"] and after["state"] in ("present", "reboot_pending"):
        return "version %s is on disk" % after["version"]
    return "the installation is not complete (%s)" % (after["reason"] or after["state"])


def _errors_in(log):
    """Return the last error line of the package, without its time stamps."""
    lines = [line for line in log.splitlines() if _ERROR_LINE.search(line)]
    return re.sub(r"^(\[[^\]]*\]\s*)+:?\s*", "", lines[-1]).strip()[:300] if lines else None
