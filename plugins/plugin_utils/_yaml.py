# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading YAML that people edit by hand. Whatever is wrong with it is a YAMLError. Private to the collection."""

from __future__ import annotations

from typing import Any

import yaml

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    """A key that is there twice is an error: YAML takes the last one, and nobody sees what a merge has done."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _value in node.value:
            place = (key.tag, str(key.value))
            if place in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {str(key.value)[:80]} is there twice", key.start_mark)
            seen.add(place)
        return super().construct_mapping(node, deep=deep)


def load(text, *, aliases=True):
    """What a text says; without ``aliases`` each part of it must be written out (a few lines of them can stand for gigabytes)."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if not aliases:
                _refuse_aliases(node)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except (ValueError, RecursionError) as error:
        # A date or number that is none, or brackets without an end.
        raise yaml.YAMLError(str(error)) from error


def _refuse_aliases(node):
    seen, left = set(), [node] if node is not None else []
    while left:
        one = left.pop()
        if id(one) in seen:
            raise yaml.YAMLError(f"{one.start_mark.line + 1}: an anchor (&) that is used again (*)")
        seen.add(id(one))
        if isinstance(one, yaml.SequenceNode):
            left += one.value
        elif isinstance(one, yaml.MappingNode):
            left += [part for pair in one.value for part in pair]
