# SPDX-License-Identifier: GPL-3.0-or-later
"""Fake PCI trees, device nodes and a runner that answers from a table."""

import pathlib
import shutil
import subprocess
from collections import namedtuple

import pytest

Result = namedtuple("Result", "argv rc stdout stderr timed_out seconds")


class Tree:
    """A sysfs and a /dev below a folder."""

    def __init__(self, folder):
        self.sysfs, self.dev = folder / "sys", folder / "dev"
        (self.sysfs / "bus/pci/devices").mkdir(parents=True)
        self.dev.mkdir()

    def function(self, address, device, sub=("19e5", "3000"), *, vendor="19e5", class_id="0x120000", numa="0", driver=None):
        folder = self.sysfs / "bus/pci/devices" / address
        folder.mkdir()
        values = {
            "vendor": "0x" + vendor, "device": "0x" + device, "class": class_id, "numa_node": numa,
            "subsystem_vendor": "0x" + sub[0], "subsystem_device": "0x" + sub[1],
        }
        for name, value in values.items():
            (folder / name).write_text(value + "\n")
        if driver:
            (folder / "driver").symlink_to("../../../bus/pci/drivers/" + driver)
        return folder

    def node(self, number):
        (self.dev / f"davinci{number}").touch()


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


class Runner:
    """`run` of the collection, answering from a table {"info -m": text or Result fields}; counts what it was asked."""

    def __init__(self, answers):
        self.answers, self.asked, self.environments = answers, [], []

    def __call__(self, argv, timeout, env=None):
        command = " ".join(argv[1:])
        self.asked.append(command)
        self.environments.append(env)
        answer = self.answers[command]
        if isinstance(answer, Exception):
            raise answer
        fields = {"rc": 0, "stdout": "", "stderr": "", "timed_out": False}
        fields.update({"stdout": answer} if isinstance(answer, str) else answer)
        return Result(argv, seconds=0.1, **fields)


@pytest.fixture
def runner():
    return Runner


@pytest.fixture(scope="session")
def odd_library(tmp_path_factory):
    """Compiles odd_dcmi.c with the given macros; one library for each set."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "these tests compile a small library: install gcc"
    folder, built = tmp_path_factory.mktemp("odd"), {}

    def build(*macros):
        if macros not in built:
            built[macros] = str(folder / f"libodd{len(built)}.so")
            source = str(pathlib.Path(__file__).with_name("odd_dcmi.c"))
            subprocess.run([compiler, "-shared", "-fPIC", "-o", built[macros], *["-D" + macro for macro in macros], source], check=True)
        return built[macros]

    return build
