# SPDX-License-Identifier: GPL-3.0-or-later
"""Files: licence, length, and nothing that belongs to one machine."""

import re
from pathlib import PurePath

import house
import limits

TREE = house.tree()
LICENSED = [name for name in TREE if (PurePath(name).suffix in limits.SPDX_SUFFIXES or PurePath(name).name in limits.SPDX_NAMES)
            and not name.startswith(limits.NO_SPDX)]
MEASURED = [name for name in TREE if name.endswith(limits.LENGTH_SUFFIXES) and not name.startswith(limits.NO_LENGTH)]
# Written in pieces, so that this file does not find itself.
MACHINE_PATHS = re.compile("|".join(["/work/" + "(main|shared)", "/tmp/" + "w/", r"\." + "pyenv/versions", "/root/" + r"\.pyenv"]))


def text(name):
    return (house.ROOT / name).read_bytes().decode("utf-8", "replace")


def test_the_tree_is_seen():
    assert "galaxy.yml" in TREE
    assert len(LICENSED) > 20


def test_licence_is_named():
    """An empty file (a package mark) has nothing to license."""
    assert [name for name in LICENSED if text(name) and limits.SPDX not in "\n".join(text(name).splitlines()[:8])] == []


def test_plugins_carry_the_header():
    bad = []
    for name in house.python_files("plugins/"):
        lines = [line for line in text(name).splitlines()[:4] if not line.startswith("#!")]
        if text(name) and tuple(lines[:3]) != limits.PLUGIN_HEADER:
            bad.append(name)
    assert bad == []


def test_files_are_short_enough_to_be_read():
    lengths = {name: len(text(name).splitlines()) for name in MEASURED if "_pb2" not in name}
    assert {name: lines for name, lines in lengths.items() if lines > limits.FILE_LINES_OF.get(name, limits.FILE_LINES)} == {}


def test_no_path_of_one_machine():
    assert [name for name in TREE if MACHINE_PATHS.search(text(name))] == []


def test_no_sanity_ignores():
    """A file that ansible-test finds fault with is mended, not ignored."""
    assert [name for name in TREE if name.startswith("tests/sanity/")] == []
