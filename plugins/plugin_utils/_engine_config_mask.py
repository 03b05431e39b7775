# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TOML and templates of TOML as a diff may show them: the same layout, credentials masked. Private to the collection. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import MASK, is_secret_key, mask_text
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_json import Malformed
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_toml import Value, scan, unquoted
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_toml_edit import string

_HEADER = re.compile(r"\s*#*\s*\[+\s*([^\[\]=]+?)\s*\]+")
_PAIR = re.compile(r"(?P<key>(?:\"[^\"\n]*\"|'[^'\n]*'|[\w./:@-])+)\s*=\s*")
_PARTS = re.compile(r"\"([^\"]*)\"|'([^']*)'|([^.\s#\[\]]+)")
_OPENINGS = (('"""', '"""'), ("'''", "'''"), ("[", "]"))


def masked(text: str) -> str:
    """Return a TOML document with its credentials masked; what the scanner can not read is masked line by line."""
    try:
        statements = scan(text)
    except Malformed:
        return masked_lines(text)
    shown, position = "", 0
    loose = _Lines()
    for statement in statements:
        shown += loose.masked(text[position : statement.key_start])
        shown += mask_text(text[statement.key_start : statement.key_end])
        secret = any(map(is_secret_key, statement.path))
        if statement.value is None:
            loose.secret_table = secret
            position = statement.key_end
            continue
        shown += text[statement.key_end : statement.value.start] + _value(text, statement.value, secret)
        position = statement.value.end
    return shown + loose.masked(text[position:])


def _value(text: str, value: Value, secret: bool) -> str:
    raw = text[value.start : value.end]
    if value.kind in ("array", "inline"):
        parts: Iterator[tuple[int, int, Value, bool]] = (
            ((item.start, item.start, item, secret) for item in value.items)
            if value.kind == "array"
            else ((one.start, one.value.start, one.value, secret or any(map(is_secret_key, one.keys))) for one in value.members)
        )
        shown, position = "", value.start
        for start, value_start, inner, inner_secret in parts:
            shown += masked_lines(text[position:start]) + mask_text(text[start:value_start]) + _value(text, inner, inner_secret)
            position = inner.end
        return shown + masked_lines(text[position : value.end])
    if secret:
        return f'"{MASK}"'
    if value.kind == "string":
        plain = unquoted(raw)
        hidden = mask_text(plain)
        return raw if hidden == plain else string(hidden, raw[0])
    return masked_lines(raw) if value.kind == "long" else raw


def masked_lines(text: str) -> str:
    """Return text that is TOML in parts only (a template, comments) with its credentials masked, each line by itself."""
    return _Lines().masked(text)


class _Lines:
    """Lines in their order; a value that goes over several lines and the table a line stands in are kept in mind."""

    def __init__(self) -> None:
        self.secret_table = False
        self._closing: str | None = None

    def masked(self, text: str) -> str:
        return "".join(map(self._line, text.splitlines(keepends=True)))

    def _line(self, line: str) -> str:
        end = line[len(line.rstrip("\r\n")) :]
        if self._closing is not None:
            if self._closing in line:
                self._closing = None
            return MASK + end
        header = _HEADER.match(line)
        if header:
            self.secret_table = any(map(is_secret_key, _keys(header.group(1))))
            return mask_text(line)
        for pair in _PAIR.finditer(line):
            if not (self.secret_table or any(map(is_secret_key, _keys(pair.group("key"))))):
                continue
            # All that follows goes: what ends where in an inline table is not for a reader of lines to say.
            value = line[pair.end() :]
            for opening, closing in _OPENINGS:
                if value.startswith(opening):
                    self._closing = None if closing in value[len(opening) :] else closing
                    break
            return f'{mask_text(line[: pair.end()])}"{MASK}"{end}'
        return mask_text(line)


def _keys(text: str) -> list[str]:
    return ["".join(parts) for parts in _PARTS.findall(text)]
