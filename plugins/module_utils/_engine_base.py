# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engines have in common, and the interface that the transaction (``_engine_apply.py``) works with. Private to the collection.

An engine is a module ``_engine_NAME.py`` with

``NAME``, ``UNIT`` (its systemd unit), ``INSTALL`` (how to install it, for a hint)
``installed(root)``
    whether its program is there
``observe(run, root, timeout)``
    its entry of ``npu_info.engines``
``Engine``
    a class that inherits from ``BaseEngine`` below and defines at least ``facts`` and ``read``
"""

import base64
import contextlib
import os
import shutil
import tempfile
import time

from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._files import snapshot, under

# In the text of ``check`` it stands for the path of the copy that is to be checked.
COPY = "@NPU_FLEET_COPY@"


class BaseEngine(object):
    """One engine of this node, for the length of one ``read`` or ``commit``.

    ``unit`` (dict of ``query_unit``), ``config_path`` (its main file as the engine knows it, without ``root``), ``done`` (what was done to
    the engine: ``reload``, ``restart``, ``start``; a commit adds how it wrote), ``takes_over_by`` (``reload`` or ``restart``).
    """

    name = ""
    label = ""  # what the engine is called in a sentence
    unseen = ""  # what can not be seen of this engine after a change, as a sentence; "" where everything can

    def __init__(self, run, root="/", timeout=60, command_timeout=20, config_path=None):
        """``timeout``: seconds for a reload, restart or start; ``command_timeout``: for each other command; ``config_path``: as the user
        named it. Raises FleetError ``config_path_mismatch`` where the engine reads another file than that.
        """
        self.run = run
        self.root = root
        self.timeout = timeout
        self.command_timeout = command_timeout
        self.began = time.time()
        self.done = []
        self.unit = self.find_unit()
        self.config_path = self.find_config(config_path)

    # --- what each engine says of itself ---

    @property
    def takes_over_by(self):
        """Return ``reload`` or ``restart``: what a running engine needs to take over a change."""
        return "restart"

    def find_unit(self):
        """Return the facts of the unit that starts this engine."""
        raise NotImplementedError

    def find_config(self, wanted):
        """Return the engine's main file; ``wanted`` is the user's word or None."""
        raise NotImplementedError

    def facts(self):
        """Return what the running engine says; never raises for one that is down.

        ``{"active", "version", "error", "runtimes": {name: {"path", "args", "type"}}, "default_runtime", "live_restore",
        "containers_running", "handlers": [names] or None}``
        """
        raise NotImplementedError

    def read(self):
        """Return ``{"files": [...], "effective_text": text or None, "writable": [paths or globs], ...}`` and facts of its own."""
        raise NotImplementedError

    def require(self):
        """Raise where a change could not be carried through, before anything is written."""

    def version(self):
        """Return the version of the engine's program on disk, or None; asked where the engine is down."""
        return None

    def unmet(self, facts, expect):
        """Return what the engine has other than expected, as a text; None when all is as expected."""
        return unmet(self.label, facts, expect)

    def validate(self, path, data, check):
        """Let the engine's own parser judge a copy; return how it was checked. Raises FleetError ``parser_refused``.

        ``data``: the new bytes of ``path``, None when the file is to go; ``check``: bytes of a main file in which COPY stands for the copy.
        """
        return "not checked: %s has no parser to ask" % self.label

    def stage_folder(self, target):
        """Return the folder in which a new ``target`` (with ``root``) is made ready, None for its own."""
        return None

    def restart_kills(self, facts):
        """Return the names of running containers or pods that would end with taking over; [] for none."""
        return []

    def users(self, name, facts):
        """Return the names of containers or pods, running or not, that name the runtime."""
        return []

    # --- taking over ---

    def running(self):
        """Return whether the engine's process is there (it may still not answer)."""
        return units.query_unit(self.run, self.root, self.command_timeout, self.unit["name"])["state"] in ("active", "reloading")

    def take_over(self):
        """Make the engine read its files: reload or restart it when it runs, start it when it does not. Returns an error text or None."""
        if not self.running():
            self.done.append("start")
            return self.start()
        self.done.append(self.takes_over_by)
        return self.systemctl(self.takes_over_by)

    def start(self):
        """Start the unit; return an error text or None."""
        if not self.unit["loaded"]:
            return "%s does not run and systemd has no unit %s to start it with" % (self.label, self.unit["name"])
        # After some failed starts systemd refuses further ones until the counter is reset.
        self.systemctl("reset-failed")
        return self.systemctl("start")

    def systemctl(self, verb):
        """Run ``systemctl VERB`` on the engine's unit; return an error text or None."""
        return units.systemctl(self.run, self.root, self.timeout, verb, self.unit["name"])

    def failed(self):
        """Return whether the unit has ended, so that waiting for an answer is no use."""
        unit = units.query_unit(self.run, self.root, self.command_timeout, self.unit["name"])
        return unit["loaded"] and unit["state"] in ("failed", "inactive")

    def journal(self):
        """Return the last lines of the engine's journal since this commit began, credentials masked."""
        return units.journal(self.run, self.root, self.command_timeout, self.unit, self.began)


def unmet(label, facts, expect):
    """Return what the engine has other than expected, as a text; None when all is as expected. Pure; ``facts`` as of ``BaseEngine``."""
    if not facts["active"]:
        return "%s does not answer: %s" % (label, facts["error"])
    name = expect["name"]
    found = facts["runtimes"].get(name)
    if expect["state"] == "absent":
        if facts["default_runtime"] == name:
            return "its default runtime is still %s" % name
        return "it still has the runtime %s" % name if found else None
    if found is None:
        return "it does not have the runtime %s" % name
    if found["path"] != expect["path"]:
        return "its runtime %s is %s" % (name, found["path"])
    if expect.get("args") is not None and found["args"] != expect["args"]:
        return "its runtime %s has other arguments" % name
    if expect.get("default") == name and facts["default_runtime"] != name:
        return "its default runtime is %s" % facts["default_runtime"]
    return None


def file_entry(root, path, role):
    """Return one entry of ``read()["files"]``: the bytes and looks of a file. ``path`` as the engine knows it, without ``root``."""
    found = snapshot(under(root, path))
    return {
        "path": path,
        "target": found.target,
        "link": found.link,
        "exists": found.data is not None,
        "content": base64.b64encode(found.data or b"").decode("ascii"),
        "sha256": found.sha256,
        "mode": None if found.mode is None else "%04o" % found.mode,
        "owner": found.uid,
        "group": found.gid,
        "role": role,
    }


@contextlib.contextmanager
def checked_copy(path, data, check=None):
    """Give the path of the file to hand to the engine's parser; all of it is gone afterwards.

    It is a private copy of ``data`` under the name of ``path``, or ``check`` with COPY replaced by the path of that copy.
    """
    folder = tempfile.mkdtemp(prefix="npu-fleet-")  # mode 0700: the copies hold what the files hold
    try:
        copy = os.path.join(folder, os.path.basename(path))
        if data is not None:
            _write(copy, data)
        if check is None:
            yield copy
        else:
            main = os.path.join(folder, "npu-fleet-main" + os.path.splitext(path)[1])
            _write(main, check.replace(COPY.encode("ascii"), copy.encode("utf-8")))
            yield main
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path, data):
    with open(path, "wb") as stream:
        stream.write(data)
