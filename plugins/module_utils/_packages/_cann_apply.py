# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done for CANN around its packages: links, environment, folders of ours. Private to the collection."""

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import (
    _cann,
    _cann_environment,
    _cann_folders,
    _cann_links,
    _cann_move,
    _cann_rules,
    _cann_shells,
    _journal,
)
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import DEFAULT_PATH
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import Files
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import same

_TOOLKIT = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")


class Cann(object):
    """CANN on a host, for one wish; does nothing for a component that is no part of it."""

    def __init__(self, wish, places):
        self._wish = wish
        self._concerned = wish.component in _cann_rules.COMPONENTS
        self._files = Files(places.root)
        self._state_dir = places.state_dir
        self._forced = False

    def before(self, entry):
        """Note, before its package starts, which folder it is about to make. ``entry``: version, file and sha256 of it."""
        if self._concerned and self._wish.state == "present":
            found, _base = self._observe()
            base = found[self._wish.component]["record"]["install_path"] or self._wish.install_path
            _cann_folders.claim(self._files, self._state_dir, base, dict(entry, component=self._wish.component))

    def package_environment(self):
        """Return what the package needs in its environment: ATB refuses to install without the toolkit's (measured)."""
        if self._wish.component != "nnal":
            return {}
        found, base = self._observe()
        toolkit = found["cann_toolkit"]["path"]
        if not toolkit:
            return {}
        found["nnal"] = dict(found["nnal"], state="absent")
        scripts = [script for _name, _version, script in _cann_environment.sources(self._files, found)]
        variables = _cann_shells.compute([self._files.real(script) for script in scripts], run) if scripts else []
        return dict(dict.fromkeys(_TOOLKIT, toolkit), **{name: value for name, value, _entries in variables})

    def bring_into_force(self):
        """Have links and environment lead to the wanted version where it is there; return whether anything changed.

        When the environment can not be read, the links go back to where they were.
        """
        if not self._concerned:
            return False
        found, base = self._observe()
        path = _find(found[self._wish.component]["record"].get("trees"), self._wish.version)
        links = _cann.set_links(self._files, base, path) if path else []
        if _cann_links.astray(self._files, links):
            _journal.note(self._state_dir, "links", component=self._wish.component, version=self._wish.version, path=path)
        moved = _cann_move.point(self._files, links)
        try:
            found, base = self._observe()
            changed = _cann_shells.write(self._files, found, run)
        except Exception:
            _cann_move.back(self._files, moved)
            raise
        return bool(moved) or changed

    def entry(self):
        """Return version, file and sha256 of the wanted version as it was installed by us; the latter are None when it was not."""
        found, _base = self._observe()
        path = _find(found[self._wish.component]["record"].get("trees"), self._wish.version)
        known = (path and _cann_folders.owned(self._state_dir, path)) or {}
        return {"version": self._wish.version, "file": known.get("file"), "sha256": known.get("sha256")}

    def refuse_unfit(self, observed):
        """Raise FleetError when what is there now is for another host. The packages do not look (measured)."""
        after = observed["components"][self._wish.component]
        wrong = _cann_rules.unfit(self._wish.component, after, observed["family"], observed["arch"])
        if wrong:
            hint = "Bring the package for this host to the depot, and run again."
            raise FleetError(wrong, "wrong_package", "apply", object=after["path"], observed=after["version"], hint=hint)

    def remove_broken(self, warnings):
        """Once, take a version folder of ours away that its package could not repair; return whether to install again.

        Such a folder is neither repaired nor removed by its package (runtime package, measured).
        """
        if not self._concerned or self._forced or self._wish.state != "present":
            return False
        self._forced = True
        found, base = self._observe()
        path = _find(found[self._wish.component]["record"].get("broken"), self._wish.version)
        if path is None or _cann_folders.owned(self._state_dir, path) is None:
            return False
        _cann_folders.remove(self._files, self._state_dir, base, path)
        warnings.append("The package could not repair %s. It was ours, so it was removed and installed again." % path)
        return True

    def remove_folder(self, path):
        """Remove a version folder of ours."""
        _found, base = self._observe()
        _cann_folders.remove(self._files, self._state_dir, base, path)

    def after_removal(self):
        """Once a version is gone: forget it, drop what leads to nothing, and let links and environment lead to one that is left.

        Where only versions of somebody else are left, their links are put right, and the environment of ours goes.
        """
        if not self._concerned:
            return
        found, base = self._observe()
        here = {path for one in found.values() for kind in ("trees", "broken") for path in (one["record"].get(kind) or {}).values()}
        for path in _cann_folders.claims(self._state_dir):
            if path not in here:
                _cann_folders.remove_empty(self._files, path)
                _cann_folders.forget(self._state_dir, path)
        for name in ("cann_toolkit", "cann_nnrt", "nnal"):
            if found[name]["state"] == "present":
                _cann_move.point(self._files, _cann.set_links(self._files, base, found[name]["path"]))
        _cann_move.drop_dangling(self._files, _cann.known_links(base))
        found, base = self._observe()
        ours = [one for one in found.values() if one["state"] == "present" and _cann_folders.owned(self._state_dir, one["path"])]
        _cann_shells.write(self._files, found if ours else dict.fromkeys(found, {"state": "absent"}), run)

    def _observe(self):
        found = _cann.observe(self._files, DEFAULT_PATH)
        return found, found["cann_toolkit"]["record"]["base"]


def _find(paths, version):
    return next((path for name, path in sorted((paths or {}).items()) if same(name, version)), None)
