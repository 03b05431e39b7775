# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The containerd inside k3s, or inside rke2 (``_engine_rke2.py``), as an engine. Private to the collection.

Both make containerd's file anew at each start, out of a Go template: the built-in one, or the user's beside the made file. A file
``config-v3.toml.tmpl`` makes version 3 and is looked for first, ``config.toml.tmpl`` makes version 2; which one is in force shows in the
version of the made file, and what that imports is the folder for drop-ins (k3s, pkg/agent/containerd/config.go and pkg/agent/templates).
So the made file is never written, and a template is never parsed.
"""

import os
import re

from ansible_collections.npu.fleet.plugins.module_utils import _engine_base as base
from ansible_collections.npu.fleet.plugins.module_utils import _engine_containerd as containerd
from ansible_collections.npu.fleet.plugins.module_utils import _engine_kubelet as kubelet
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, under

NAME = "k3s"
UNIT = "k3s.service"
INSTALL = "see docs.k3s.io"
TEMPLATES = {2: "config.toml.tmpl", 3: "config-v3.toml.tmpl"}


def installed(root="/"):
    """Return whether k3s is there."""
    return find_program("k3s", root) is not None


def observe(run, root="/", timeout=20):
    """Return the entry of ``npu_info.engines``."""
    return containerd.describe(Engine(run, root, timeout, timeout))


def made_version(text):
    """Return the version of the file that was made, as 2 or 3; None where there is none or it says another. Pure."""
    version = containerd.version_of(text)
    if version is None:
        # The user's template may have made something that is no TOML.
        match = re.search(r"(?m)^version\s*=\s*(\d+)\s*$", text)
        version = int(match.group(1)) if match else None
    # Version 4 (containerd 2.3) has the tables of version 3.
    return 3 if version and version >= 3 else version if version == 2 else None


def dropin_folder(text, folder):
    """Return the folder of drop-ins that the made file imports, None where it imports none beside itself. Pure."""
    for line in containerd.imports_of(text) or []:
        head, name = os.path.split(containerd.import_pattern(line, os.path.join(folder, "config.toml"), (99, 99)))
        if name == "*.toml" and os.path.dirname(head) == folder:
            return head
    return None


def template_path(folder, version, existing):
    """Return the path of the template that counts, None where that is not known.

    ``version``: of the made file; ``existing``: names of the templates that are there. Pure.
    """
    if version is None:
        version = max((known for known, name in TEMPLATES.items() if name in existing), default=None)
    return os.path.join(folder, TEMPLATES[version]) if version else None


class Engine(containerd.Engine):
    """The containerd of k3s on this node, for the length of one read or commit."""

    name = NAME
    label = "containerd of k3s"
    unit_names = [UNIT, "k3s-agent.service"]
    product = "k3s"
    data_folder = "/var/lib/rancher/k3s"
    programs = ("data/current/bin/containerd",)

    def find_socket(self):
        """Return the path of the socket: k3s and rke2 have the same one, and it can not be changed."""
        return kubelet.EMBEDDED[len("unix://"):]

    def find_config(self, wanted):
        """Return the file that k3s makes for containerd."""
        self._data = self._find_data()
        self.default_config = os.path.join(self._data, "agent/etc/containerd/config.toml")
        return super(Engine, self).find_config(wanted)

    def _find_data(self):
        words = self.unit["command"]
        named = kubelet.flag_value(words, "data-dir") or next((b for a, b in zip(words, words[1:]) if a == "-d"), None)
        path = kubelet.flag_value(words, "config") or "/etc/rancher/%s/config.yaml" % self.product
        named = named or kubelet.config_value(units.read_text(under(self.root, path)), "data-dir")
        return named or self.data_folder

    def find_binary(self):
        """Return the containerd that the product unpacked. The program that runs may be one for all, which goes by its name."""
        for name in self.programs:
            path = under(self.root, os.path.join(self._data, name))
            if os.path.isfile(path):
                return path
        return None

    def read(self):
        """Return the file that was made, the templates and the drop-ins; own facts as of containerd, and ``k3s``.

        ``k3s``: ``version`` (2 or 3: the form of the made file; None where it was not made yet), ``dropin_folder`` (None where the made
        file imports none), ``template_path`` (the template that counts, there or not).
        """
        folder = os.path.dirname(self.config_path)
        made = base.file_entry(self.root, self.config_path, "generated")
        text = containerd.text_of(made)
        version, dropins = made_version(text), dropin_folder(text, folder)
        existing = [name for name in TEMPLATES.values() if os.path.lexists(under(self.root, os.path.join(folder, name)))]
        template = template_path(folder, version or self._program_version(), existing)
        templates = {os.path.join(folder, name) for name in existing} | ({template} if template else set())
        files = [made] + [base.file_entry(self.root, path, "template") for path in sorted(templates)]
        if dropins:
            files += [base.file_entry(self.root, path, "dropin") for path in self._glob(os.path.join(dropins, "*.toml"))]
        effective, error = self.effective()
        return {
            "files": files,
            "effective_text": effective,
            "effective_error": error,
            "writable": ([template] if template else []) + ([os.path.join(dropins, "*.toml")] if dropins else []),
            "binary": self.binary(),
            "binary_version": self.version(),
            "load_version": version,
            "socket": self.socket_path,
            "k3s": {"version": version, "dropin_folder": dropins, "template_path": template},
        }

    def _program_version(self):
        """Return which form the next start would make, as far as the program tells."""
        version = self.version()
        return None if version is None else 3 if containerd.numbers(version) >= (2, 0) else 2

    def effective(self):
        """Return what the made file comes to, by containerd's own parser; the made file itself where its program can not be asked."""
        made = containerd.text_of(base.file_entry(self.root, self.config_path, "generated"))
        if not made:
            return None, "%s has not made %s yet: it does so at each start" % (self.product, self.config_path)
        text, error = super(Engine, self).effective()
        return (made, None) if text is None and containerd.imports_of(made) == [] else (text, error)

    def _missing_imports(self, path, data):
        """Return nothing: the made file's imports are made anew at the next start."""
        return []

    def validate(self, path, data, check):
        """Let containerd's parser judge ``check``: what the made file would be. A template by itself can not be parsed."""
        if check is None:
            return "not checked: %s is a template, which %s fills in at its start" % (path, self.product) if path.endswith(".tmpl") else \
                "not checked: %s is read together with the file that %s makes at its start" % (path, self.product)
        return super(Engine, self).validate(path, data, check)
