# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths and fixture texts for the tests of the hardware part."""

import pathlib

TESTS = pathlib.Path(__file__).resolve().parents[2]


def sample(name):
    """Text of a fixture without its first line, which says what it shows."""
    text = (TESTS / "fixtures" / "npu_smi" / name).read_bytes().decode()
    first, rest = text.split("\n", 1)
    assert first.startswith("# trait:")
    return rest
