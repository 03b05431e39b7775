# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of vendor versions. Private to the collection.

Comparable are versions of one product line only: driver with driver, firmware with firmware, CANN with CANN.
"""

import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

# Low to high. That rc is below the plain number and alpha and beta below their release is confirmed by release dates; the
# places of t (internal), b (internal build), sph (hot patch) and spc are inferred from where the vendor uses them.
_RANKS = {"t": 0, "alpha": 1, "beta": 2, "b": 3, "rc": 4, "sph": 6, "spc": 7, "post": 7}
_END = (5, 0)
_NUMBER = 8
# Nine digits are more than any version has, and few enough for int() of every Python.
_TOKEN = re.compile(r"([a-z]*)([0-9]{0,9})\Z")
_DIGITS = re.compile(r"[0-9]{1,9}\Z")


def parse(text):
    """Return ``text`` as a list of (rank, number); raise FleetError when it is no version."""
    words = [word for word in re.split(r"[.\-_]", text.strip().lower()) if word] if isinstance(text, str) else []
    if words and re.match(r"v[0-9]", words[0]):
        words[0] = words[0][1:]
    tokens = []
    position = 0
    while position < len(words):
        found = _TOKEN.match(words[position])
        label, number = found.groups() if found else ("?", "")
        position += 1
        if label and label not in _RANKS:
            raise _unknown(text)
        if label and not number and position < len(words) and _DIGITS.match(words[position]):
            # "beta.1" is "beta1"
            number = words[position]
            position += 1
        tokens.append((_RANKS[label] if label else _NUMBER, int(number or 0)))
    if not tokens or tokens[0][0] != _NUMBER:
        raise _unknown(text)
    return tokens


def key(text):
    """Return a sort key."""
    return tuple(parse(text)) + (_END,)


def compare(left, right):
    """Return -1, 0 or 1: ``left`` is older than, the same as, or newer than ``right``."""
    one, other = key(left), key(right)
    return (one > other) - (one < other)


def same(left, right):
    """Return whether two texts name one version; a text that is no version is the same as nothing."""
    try:
        return compare(left, right) == 0
    except FleetError:
        return False


def _unknown(text):
    return FleetError(
        "%r is not a version." % (text,),
        "version_unknown",
        object=text if isinstance(text, str) else repr(text),
        hint="A version looks like 25.5.0, 24.1.rc3 or 8.5.0-beta.1.",
    )
