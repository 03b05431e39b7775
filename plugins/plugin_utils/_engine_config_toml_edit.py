# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edits of a TOML text that touch nothing else, each with its exact inverse. Private to the collection. Pure.

What is added stands on lines of its own: a table behind the tables of its kind with one blank line before it, a key behind the last key of
its table. ``remove`` takes away these lines and that blank line, so that what was added and removed leaves the same bytes. In an inline
table a member is added and removed with its comma.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_toml import Document, Path, Statement, Value, dig, read

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_INDENT = "  "


def newline_of(text: str) -> str:
    """Return the line end that the admin uses."""
    return "\r\n" if "\r\n" in text else "\n"


# --- writing values and names ---


def string(text: str, quote: str = '"') -> str:
    """Return a string in TOML, in ``quote`` where it can stand in that."""
    if quote == "'" and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def render(value: object, quote: str = '"') -> str:
    """Return a value in TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return string(value, quote)
    if isinstance(value, dict):
        members = [f"{key_name(key, quote)} = {render(inner, quote)}" for key, inner in value.items()]
        return "{ " + ", ".join(members) + " }" if members else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(render(item, quote) for item in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    return str(getattr(value, "isoformat", lambda: value)())


def key_name(key: str, quote: str = '"') -> str:
    """Return one part of a key in TOML."""
    return key if _BARE.match(key) else string(key, quote)


def key_path(keys: Path, quote: str = '"') -> str:
    """Return a dotted key in TOML."""
    return ".".join(key_name(key, quote) for key in keys)


def _quotes(document: Document, keys: Path, name_quote: str) -> tuple[str, str]:
    """Return the quotes for names and for values as they stand near a path."""
    near = document.under(keys) or document.under(keys[:2]) or document.statements
    names = [mark for one in near for mark in re.findall("['\"]", document.text[one.key_start : one.key_end])[:1]]
    values = [document.text[one.value.start] for one in near if one.value is not None and one.value.kind == "string"]
    return (names[-1] if names else name_quote), (values[-1] if values else '"')


# --- where something stands ---


def inline_at(document: Document, keys: Path) -> tuple[Value, Path] | None:
    """Return the deepest inline table on the way to a path and the keys that are left from there; None where no inline table is on it."""
    for statement in document.statements:
        value = statement.value
        if value is None or value.kind != "inline" or keys[: len(statement.path)] != statement.path:
            continue
        rest = keys[len(statement.path) :]
        while rest:
            inner = [one for one in value.members if one.value.kind == "inline" and rest[: len(one.keys)] == one.keys]
            if not inner:
                break
            value, rest = inner[0].value, rest[len(inner[0].keys) :]
        return value, rest
    return None


def value_at(document: Document, keys: Path) -> Value | None:
    """Return where the value of a path stands, in a table or in an inline table."""
    statement = document.pair(keys)
    if statement is not None:
        return statement.value
    found = inline_at(document, keys)
    if found is None or not found[1]:
        return None
    return next((member.value for member in found[0].members if member.keys == found[1]), None)


# --- changes ---


def set_value(document: Document, value: Value, new: object) -> Document:
    """Return the document with another value in the place of ``value``, in the same quotes."""
    text = document.text
    return read(text[: value.start] + render(new, "'" if text[value.start] == "'" else '"') + text[value.end :], document.path)


def put(document: Document, table: Path, key: str, new: object, name_quote: str = '"') -> Document:
    """Return the document with ``key`` of ``table`` set, where it stands or behind the last key of the table."""
    there = value_at(document, (*table, key))
    if there is not None:
        return set_value(document, there, new)
    if inline_at(document, table) is not None:
        return _add_member(document, (*table, key), new, name_quote)
    names, values = _quotes(document, table, name_quote)
    text, rendered = document.text, render(new, values)
    own = [one for one in document.statements if one.table == table and (one.kind == "pair" or one.path == table)]
    if own:
        pairs = [one for one in own if one.kind == "pair"]
        indent = _indent(document, pairs[-1]) if pairs else _indent(document, own[0]) + _INDENT
        return _with_lines(document, own[-1].end, [f"{indent}{key_name(key, names)} = {rendered}"], False)
    # A table that dotted keys of an outer table have made must not get a header of its own.
    dotted = [one for one in document.under(table) if one.kind == "pair" and len(one.table) < len(table)]
    if dotted:
        outer = dotted[-1].table
        return _with_lines(
            document, dotted[-1].end, [f"{_indent(document, dotted[-1])}{key_path((*table[len(outer) :], key), names)} = {rendered}"], False
        )
    if not table:
        return _with_lines(document, 0 if document.statements else len(text), [f"{key_name(key, names)} = {rendered}"], False)
    return add_table(document, table, {key: new}, table, name_quote)


def add_table(document: Document, table: Path, values: dict, near: Path, name_quote: str = '"') -> Document:
    """Return the document with a new table behind those of ``near``, indented and quoted as its neighbours are."""
    if inline_at(document, table) is not None:
        return _add_member(document, table, values, name_quote)
    names, quote = _quotes(document, near, name_quote)
    header, pairs, inner_header, inner_pairs = _indents(document, near)
    lines = [f"{header}[{key_path(table, names)}]"]
    lines += [f"{pairs}{key_name(key, names)} = {render(value, quote)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, inner in values.items():
        if isinstance(inner, dict):
            lines.append(f"{inner_header}[{key_path((*table, key), names)}]")
            lines += [f"{inner_pairs}{key_name(name, names)} = {render(value, quote)}" for name, value in inner.items()]
    return _with_lines(document, _end_of(document, near), lines, True)


def _indent(document: Document, statement: Statement) -> str:
    return document.text[statement.start : statement.key_start]


def _indents(document: Document, near: Path) -> tuple[str, str, str, str]:
    """Return the indentation of a table below ``near``, of its keys, of a table in it and of that one's keys, as the neighbours have it."""
    below = [one for one in document.under(near) if one.kind == "table"]
    entries = [one for one in below if len(one.path) == len(near) + 1]
    if not entries:
        own = next((_indent(document, one) for one in below if one.path == near), "")
        header = own + _INDENT if own else ""
        return header, header + _INDENT, header + _INDENT, header + _INDENT * 2
    header = _indent(document, entries[-1])
    pairs = next((_indent(document, one) for one in document.statements if one.kind == "pair" and one.table == entries[-1].path), None)
    if pairs is None:
        pairs = header + _INDENT
    unit = pairs[len(header) :] if pairs.startswith(header) else ""
    inner = next((one for one in below if len(one.path) == len(near) + 2), None)
    inner_header = _indent(document, inner) if inner else header + unit
    keys = [one for one in document.statements if inner and one.kind == "pair" and one.table == inner.path]
    inner_pairs = _indent(document, keys[0]) if keys else None
    return header, pairs, inner_header, inner_header + unit if inner_pairs is None else inner_pairs


def _end_of(document: Document, near: Path) -> int:
    """Return where a new table may stand: behind the tables of ``near`` or of the nearest path around it, and behind all keys there.

    A header between two keys would take the second one into its table.
    """
    text, statements = document.text, document.statements
    last = None
    for length in range(len(near), 0, -1):
        inside = [number for number, one in enumerate(statements) if one.path[:length] == near[:length]]
        if inside:
            last = inside[-1]
            break
    if last is None:
        return len(text)
    while last + 1 < len(statements) and statements[last + 1].kind == "pair":
        last += 1
    position = end = statements[last].end
    while position < len(text):
        line = text[position : text.find("\n", position) + 1 or len(text)]
        if not line.strip():
            return position
        if not line.lstrip().startswith("#"):
            return end  # the comments speak of what follows
        position += len(line)
    return position


def _with_lines(document: Document, position: int, lines: list[str], blank: bool) -> Document:
    text = document.text
    newline = newline_of(text)
    before, after, block = text[:position], text[position:], newline.join(lines)
    gap = newline if blank and before else ""
    if before and not before.endswith("\n"):
        return read(before + newline + gap + block, document.path)  # the file ends without a newline, and goes on to
    return read(before + gap + block + newline + after, document.path)


def _add_member(document: Document, keys: Path, new: object, name_quote: str) -> Document:
    found = inline_at(document, keys)
    if found is None:
        raise FleetError("There is no inline table to add to.", "edit_unsafe", phase="edit", object=document.path)
    table, rest = found
    if not rest:
        raise FleetError("An inline table can not be replaced by another one.", "edit_unsafe", phase="edit", object=document.path)
    names, quote = _quotes(document, keys, name_quote)
    # Dotted where a neighbour is, since a name can be defined once only; nested otherwise, which every TOML reader knows.
    dotted = any(member.keys[0] == rest[0] for member in table.members)
    if not dotted:
        for key in reversed(rest[1:]):
            new = {key: new}
        rest = rest[:1]
    addition = f"{key_path(rest, names)} = {render(new, quote)}"
    text = document.text
    position = table.members[-1].value.end if table.members else table.start + 1
    return read(text[:position] + (", " if table.members else "") + addition + text[position:], document.path)


def remove(document: Document, keys: Path) -> Document:
    """Return the document without a key or a table and what is in it, in whatever form it stands there."""
    statements = document.statements
    numbers = [number for number, one in enumerate(statements) if one.path[: len(keys)] == keys]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = document.text
    for run in reversed(runs):
        text = _cut(text, statements[run[0]].start, statements[run[-1]].end, statements[run[0]].kind != "pair")
    if runs:
        document = read(text, document.path)
    while (found := _member_at(document, keys)) is not None:
        document = found
    return document


def drop_header(document: Document, table: Path) -> Document:
    """Return the document without the header of a table that holds no keys; tables in it stay."""
    own = [one for one in document.statements if one.table == table]
    if len(own) != 1 or own[0].kind != "table":
        return document
    return read(_cut(document.text, own[0].start, own[0].end, True), document.path)


def _cut(text: str, start: int, end: int, header: bool) -> str:
    newline = newline_of(text)
    before, after = text[:start], text[end:]
    if header and (before.endswith("\n" + newline) or before == newline):
        before = before[: -len(newline)]
    if not after and not text.endswith("\n") and before.endswith(newline):
        before = before[: -len(newline)]
    return before + after


def _member_at(document: Document, keys: Path) -> Document | None:
    found = inline_at(document, keys[:-1]) if keys else None
    if found is None:
        return None
    table, rest = found
    wanted = (*rest, keys[-1])
    for number, member in enumerate(table.members):
        if member.keys[: len(wanted)] != wanted:
            continue
        text = document.text
        if number:
            start, end = table.members[number - 1].value.end, member.value.end
        elif len(table.members) > 1:
            start, end = member.start, table.members[1].start
        else:
            start, end = member.start, member.value.end
        return read(text[:start] + text[end:], document.path)
    return None


# --- the proof ---


def prove(before: Document, after: Document, ours: Iterable[Path]) -> None:
    """Raise FleetError ``edit_unsafe`` when an edit touched anything but the paths in ``ours``: better no change than a wrong one."""
    first, second = (_without(document.data, ours) for document in (before, after))
    if not _same(first, second):
        raise FleetError(
            f"{before.path}: the edit would have changed foreign keys; nothing was written.", "edit_unsafe", phase="edit",
            object=before.path,
        )  # fmt: skip


def _without(data: dict, ours: Iterable[Path]) -> dict:
    data = copy.deepcopy(data)
    for keys in ours:
        for length in range(len(keys), 0, -1):
            owner = dig(data, keys[: length - 1])
            if isinstance(owner, dict) and keys[length - 1] in owner and (length == len(keys) or owner[keys[length - 1]] == {}):
                del owner[keys[length - 1]]
    return data


def _same(first: object, second: object) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    # By type too (1 is not true), and "not a number" is not equal to itself.
    return type(first) is type(second) and (first == second or repr(first) == repr(second) == "nan")
