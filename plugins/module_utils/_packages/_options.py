# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How each package is called. Pure. Private to the collection.

This is the place to change an option of a package. Words marked optional are left out where the package's own help does not
name them: an unknown word makes the packages print their help and do nothing.
"""

import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _cann_rules
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import compare

DEFAULT_PATH = "/usr/local/Ascend"
DEFAULT_USER = "HwHiAiUser"
# From here on the Docker Runtime asks for its licence on standard input (mind-cluster v26.1.0).
LICENCE_PROMPT = "26.1.0"

_QUIET = "--quiet"


def install_command(component, action, wish, record, words=None):
    """Return (words for the package, text for its standard input) that do ``action``.

    wish: version, install_path, install_for_all, username, usergroup, soc, engine_file; record: what the vendor recorded of
    the installed one; words: the option words of the package's own help, None when it could not be read.
    """
    if component == "driver":
        options, optional = _driver(action, wish, record)
    elif component == "firmware":
        # The vendor's deployer calls it without --install-for-all.
        options, optional = [_upgrade_or(action, "--full"), _QUIET], []
    elif component in _cann_rules.COMPONENTS:
        options, optional = _cann(component, wish, record)
    elif component == "docker_runtime":
        options, optional = _docker_runtime(action, wish)
    else:
        raise FleetError("No way to install %s is known." % component, "component_unknown", object=component)
    return _fit(component, options, ["--nox11"] + optional, words), _answer(component, wish["version"])


def _upgrade_or(action, first):
    return "--upgrade" if action in ("upgrade", "downgrade") else first


def _driver(action, wish, record):
    if _upgrade_or(action, "--full") == "--upgrade":
        # It keeps type, path, user and for-all of the last time, and refuses all of them as options (driver package, measured).
        return ["--upgrade", _QUIET], []
    options = ["--full", _QUIET]
    # --full without it drops for-all silently, so a recorded one is given again. The SoC script does not know it.
    if (wish["install_for_all"] or record.get("for_all")) and not wish.get("soc"):
        options.append("--install-for-all")
    if not record.get("install_path") and wish["install_path"] != DEFAULT_PATH:
        # Over remains the path stays where it was.
        options.append("--install-path=%s" % wish["install_path"])
    # The user must be the recorded one (0x0095), and without these words the package takes its own.
    user = record.get("username") or wish["username"]
    group = record.get("usergroup") or (user if record.get("username") else wish["usergroup"])
    if (user, group) != (DEFAULT_USER, DEFAULT_USER):
        options += ["--install-username=%s" % user, "--install-usergroup=%s" % group]
    return options, []


def _cann(component, wish, record):
    # Always installed, never upgraded: an upgrade takes the version before away, and going back to that is then a package again
    # instead of a link. Kernels, nnal and nnrt by whitelist can not be upgraded at all (CANN install guide; ascend-deployer).
    options = ["--install", _QUIET]
    path = record.get("install_path") or wish["install_path"]
    if path != DEFAULT_PATH:
        options.append("--install-path=%s" % path)
    if _cann_rules.package_of(component, wish["version"]) != component:
        options.append("--whitelist=nnrt")
    return options, ["--install-for-all"] if wish["install_for_all"] else []


def _docker_runtime(action, wish):
    options = [_upgrade_or(action, "--install")]
    if options == ["--install"]:
        # The package edits an engine's file by itself, makes its runtime the default and changes the file's mode. It gets a
        # file of ours instead; the admin's own is edited by oci_runtime only.
        options += ["--install-scene=docker", "--config-file-path=%s" % wish["engine_file"]]
    if wish["install_path"] != DEFAULT_PATH:
        options.append("--install-path=%s" % wish["install_path"])
    return options, [_QUIET]


def _fit(component, options, optional, words):
    """Return the options with those optional ones that the package knows."""
    if words is None:
        # Its help could not be read. The runtime lost two of these words in later versions; the others always have them.
        return options + ([] if component == "docker_runtime" else optional)
    unknown = [option for option in options if option.split("=")[0] not in words]
    if unknown:
        raise FleetError(
            "The package does not know %s." % ", ".join(unknown),
            "option_unknown",
            "prepare",
            object=component,
            observed=" ".join(sorted(words)),
            hint="Look at its --help; the options are chosen in module_utils/_packages/_options.py.",
        )
    return options + [option for option in optional if option in words]


def help_words(text):
    """Return the option words in a package's help, or None when there are none."""
    return set(re.findall(r"--[a-zA-Z][a-zA-Z0-9_-]*", text)) or None


def asks_licence(component, version):
    """Return whether the package asks for its licence in a way that no option answers."""
    return component == "docker_runtime" and compare(version, LICENCE_PROMPT) >= 0


def needs_licence(component, version):
    """Return whether a silent installation accepts a licence: CANN's --quiet says so itself (its install guide), a prompt asks for it."""
    return component in _cann_rules.COMPONENTS or asks_licence(component, version)


def _answer(component, version):
    return "Y\n" if asks_licence(component, version) else None


def remove_command(component, current, engine_file, files):
    """Return the words that remove an installed component by its own installed script, or None when there is none.

    ``files`` tells whether a file exists (a function). The driver package's own --uninstall refuses --quiet; the script that it
    installs takes it (measured).
    """
    path = current["path"]
    if not path:
        return None
    if component in ("driver", "firmware"):
        words = [path + "/script/uninstall.sh", _QUIET]
    elif component == "docker_runtime":
        # ISULA SCENE FILE: without the right file it edits the engine's own (mind-cluster, uninstall.sh).
        words = [path + "/script/uninstall.sh", "none", "docker", engine_file]
    else:
        name = "ops_uninstall.sh" if component == "cann_kernels" else "uninstall.sh"
        folder = (current.get("record") or {}).get("record_path", path + "/x").rsplit("/", 1)[0]
        words = [folder + "/script/" + name]
    return words if files(words[0]) else None
