# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the agent lives on a node, and what is seen of it there. Private to the collection."""

import errno
import hashlib
import json
import os
import time

from ansible_collections.npu.fleet.plugins.module_utils import _agent_others
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

HOME = "/opt/npu-agent"
CONFIG = "/etc/npu-agent/config.yaml"
UNIT_NAME = "npu-agent.service"
UNIT = "/etc/systemd/system/npu-agent.service"
MARKER = ".archive.json"

PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "ExecMainStartTimestampMonotonic", "NeedDaemonReload")


def under(root, path):
    """An absolute path seen from another root (tests and images use one)."""
    return os.path.join(root, path.lstrip("/"))


def sha256_of(path):
    """Checksum of a file, None when there is none."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as handle:
            for block in iter(lambda: handle.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    return digest.hexdigest()


def tree_digest(folder):
    """Over names and sizes of the files below a folder: cheap enough for each look, and enough to see that files are missing or cut.

    Bytecode does not count: Python writes it when it likes. OSError when a folder cannot be read.
    """
    lines = []
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        for entry in os.scandir(os.path.join(folder, prefix)):
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    waiting.append(name + "/")
            elif name != MARKER:
                lines.append("%s\0%d\n" % (name, entry.stat(follow_symlinks=False).st_size))
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def read_marker(folder):
    """{"version", "sha256"} that agent_files left as its last act in a version folder; None when its files are not those any more."""
    try:
        with open(os.path.join(folder, MARKER)) as handle:
            found = json.load(handle)
        if found["tree"] != tree_digest(folder):
            return None
        return {"version": str(found["version"]), "sha256": str(found["sha256"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def parse_show(text):
    """The `KEY=VALUE` lines of `systemctl show`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def changed_at(path):
    """When a file was last written or moved into place, None when it is not there.

    Of the link itself, not of what it points to: the link is what moves when another version comes.
    """
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return None


def started_at(shown, now=None, monotonic=None):
    """Wall clock of the start of the main process, None when it does not run.

    Counted back from systemd's monotonic stamp: the wall clock it also prints is the one of that moment, and is wrong for
    ever when the time was set after boot.
    """
    if shown.get("ActiveState") not in ("active", "activating", "reloading"):
        return None
    try:
        stamp = int(shown.get("ExecMainStartTimestampMonotonic", "0"))
    except ValueError:
        return None
    if not stamp:
        return None
    now = time.time() if now is None else now
    monotonic = time.monotonic() if monotonic is None else monotonic
    return now - (monotonic - stamp / 1e6)


def show_unit(run, timeout=20):
    """What systemd knows of the unit; empty on a node without systemd."""
    try:
        result = run(["systemctl", "show", UNIT_NAME, "--no-pager", "--property=" + ",".join(PROPERTIES)], timeout=timeout)
    except FleetError as error:
        if error.code == "command_missing":
            return {}
        raise
    return parse_show(result.stdout) if result.rc == 0 else {}


def observe(root, run):
    """The agent as it is on this node, in the form that npu_info returns under `agent`.

    `run` is the one of _command. Reads files and asks systemd once; changes nothing.
    """
    current = under(root, HOME + "/current")
    config = under(root, CONFIG)
    unit = under(root, UNIT)
    marker = read_marker(current) or {}
    shown = show_unit(run)
    started = started_at(shown)
    stamps = [changed_at(path) for path in (current, config, unit)]
    after = None
    if started is not None:
        after = shown.get("NeedDaemonReload") != "yes" and all(stamp is None or stamp <= started for stamp in stamps)
    others, serves = _agent_others.look(under(root, _agent_others.FOLDER))
    active = shown.get("ActiveState") == "active"
    return {
        "version": marker.get("version"),
        "archive_sha256": marker.get("sha256"),
        "config_sha256": sha256_of(config),
        "unit_sha256": sha256_of(unit),
        "active": active,
        "enabled": shown.get("UnitFileState") in ("enabled", "enabled-runtime"),
        "started_after_files": after,
        "others": others,
        # Our socket is served, and not by the service: the agent is there as a pod.
        "pod": serves and not active,
    }


def sha256_of_text(text):
    """Checksum that observe() finds once this text is the file."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def decide_service(observed, config, unit):
    """What has to be done so that the service runs with these texts: pure, the same on controller and node.

    `observed` is the result of observe(). Returns {"write_config", "write_unit", "enable", "action", "reasons"}, where action is None,
    "start" or "restart". A service that is older than its files is restarted whoever changed them: a run that was cut between writing
    and restarting must not leave it so.
    """
    write_config = observed["config_sha256"] != sha256_of_text(config)
    write_unit = observed["unit_sha256"] != sha256_of_text(unit)
    reasons = []
    if write_config:
        reasons.append("the configuration is another one")
    if write_unit:
        reasons.append("the unit is another one")
    if observed["active"] and observed["started_after_files"] is False:
        reasons.append("the service was started before its files changed")
    action = "restart" if reasons else None
    if not observed["active"]:
        reasons.append("the service does not run")
        action = "start"
    if not observed["enabled"]:
        reasons.append("the service does not start at boot")
    return {
        "write_config": write_config, "write_unit": write_unit, "enable": not observed["enabled"], "action": action, "reasons": reasons,
    }
