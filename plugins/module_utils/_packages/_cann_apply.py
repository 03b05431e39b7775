# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done for CANN around its packages: links, environment, folders of ours. Private to the collection."""

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._packages import (
    _cann,
    _cann_environment,
    _cann_folders,
    _cann_links,
    _cann_rules,
    _journal,
)
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import DEFAULT_PATH
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import Files
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same

_TOOLKIT = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")


class Cann(object):
    """CANN on the host below ``root``; ``state_dir`` holds our memory of it."""

    def __init__(self, state_dir, root="/", run_=run):
        self._files = Files(root)
        self._state_dir = state_dir
        self._run = run_

    def _observe(self):
        found = _cann.observe(self._files, DEFAULT_PATH)
        return found, found["cann_toolkit"]["record"]["base"]

    def prepare(self, entry, install_path):
        """Note the folder that a package is about to make. ``entry``: component, version, file and sha256 of it."""
        if entry["component"] in _cann_rules.COMPONENTS:
            found, _base = self._observe()
            base = found[entry["component"]]["record"]["install_path"] or install_path
            _cann_folders.claim(self._files, self._state_dir, base, entry)

    def package_environment(self, component):
        """Return what a package needs in its environment: ATB refuses to install without the toolkit's (measured)."""
        if component != "nnal":
            return {}
        found, base = self._observe()
        toolkit = found["cann_toolkit"]["path"]
        if not toolkit:
            return {}
        found["nnal"] = dict(found["nnal"], state="absent")
        scripts = [script for _name, _version, script in _cann_environment.sources(self._files, base, found)]
        variables = _cann_environment.compute([self._files.real(script) for script in scripts], self._run) if scripts else []
        return dict(dict.fromkeys(_TOOLKIT, toolkit), **{name: value for name, value, _entries in variables})

    def bring_into_force(self, component, version):
        """Have links and environment lead to a version that is there; return whether anything changed.

        When the environment can not be read, the links go back to where they were.
        """
        found, base = self._observe()
        trees = found[component]["record"].get("trees") or {}
        tree = next((path for name, path in sorted(trees.items()) if same(name, version)), None)
        links = _cann.set_links(self._files, base, tree) if tree else []
        if _cann_links.astray(self._files, links):
            _journal.note(self._state_dir, "links", component=component, version=version, path=tree)
        moved = _cann_links.point(self._files, links)
        try:
            found, base = self._observe()
            changed = _cann_environment.write(self._files, base, found, self._run)
        except Exception:
            _cann_links.back(self._files, moved)
            raise
        return bool(moved) or changed

    def remove_broken(self, component, version):
        """Remove a version folder of ours that its package can not repair; return its path, or None when there is no such folder."""
        found, base = self._observe()
        broken = found[component]["record"].get("broken") or {}
        path = next((path for name, path in sorted(broken.items()) if same(name, version)), None)
        if path is None or _cann_folders.owned(self._state_dir, path) is None:
            return None
        _cann_folders.remove(self._files, self._state_dir, base, path)
        return path
