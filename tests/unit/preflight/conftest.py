# SPDX-License-Identifier: GPL-3.0-or-later
"""A host below a folder, and what npu_info would have seen of it so far."""

import pytest


class Place:
    """Files of a node below a folder."""

    def __init__(self, folder):
        self.root = folder / "root"
        self.params = {"root": str(self.root), "sysfs_root": str(folder / "sys"), "proc_root": str(folder / "proc")}
        for name in ("root/etc", "root/usr/bin", "sys", "proc"):
            (folder / name).mkdir(parents=True)
        self.sys, self.proc = folder / "sys", folder / "proc"

    def write(self, path, text=""):
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def tool(self, *names):
        for name in names:
            self.write(f"/usr/bin/{name}", "#!/bin/sh\n").chmod(0o755)

    def see(self, path, text):
        """A file of the kernel in sysfs."""
        target = self.sys / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def npu():
    return {
        "kernel": "5.10.0-60.18.0.50.oe2203.aarch64",
        "components": {"driver": {"record": {}}},
        "users": {"HwHiAiUser": True},
        "holders": [],
    }
