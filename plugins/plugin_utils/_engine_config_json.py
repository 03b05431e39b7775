# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON with places: a strict parser that keeps offsets, and edits of the text that touch nothing else. Private to the collection."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import MASK, is_secret_key, mask_text
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

MAX_DEPTH = 100
_SPACE = " \t\r\n"
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERAL = re.compile(r"true|false|null")


class Malformed(Exception):
    """Text that is not one JSON value; ``offset`` is where."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


@dataclass
class Member:
    """One ``key: value`` of an object."""

    key: str
    start: int
    key_end: int
    value: Node


@dataclass
class Node:
    """A value and where it stands: ``text[start:end]``."""

    kind: str
    start: int
    end: int
    members: list[Member] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)

    def get(self, key: str) -> Member | None:
        """Return the member ``key`` of an object."""
        return next((member for member in self.members if member.key == key), None)


# --- reading ---


def decode(data: bytes | None, path: str) -> str:
    """Return the text of a file ("" for None); FleetError ``config_invalid`` for other bytes than UTF-8 and for a byte order mark."""
    data = data or b""
    for mark in (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"):
        if data.startswith(mark):
            raise FleetError(
                f"{path}, line 1, column 1: the file starts with a byte order mark. The file was left as it is.",
                "config_invalid", phase="edit", object=path, observed="line 1, column 1: byte order mark",
                hint=f"Save it as UTF-8 without the mark: sed -i '1s/^\\xEF\\xBB\\xBF//' {path}",
            )  # fmt: skip
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8")
        raise error_at(good, path, len(good), f"this byte is not UTF-8 (byte offset {error.start})") from None


def parse(text: str) -> Node:
    """Return the one value in ``text``; Malformed for anything else, also for a key that stands twice in an object."""
    start = _skip(text, 0)
    node = _value(text, start, 0)
    rest = _skip(text, node.end)
    if rest < len(text):
        offset = len(text[:rest].encode("utf-8"))
        raise Malformed(
            f"there is more data after the end of the first JSON value, at byte offset {offset}; the engine reads one value only", rest
        )
    return node


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    if text.startswith(("//", "/*", "#"), position):
        raise Malformed("comments are not JSON, and the engine does not read them", position)
    return position


def _value(text: str, start: int, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise Malformed(f"more than {MAX_DEPTH} levels", start)
    if start >= len(text):
        raise Malformed("the text ends where a value should stand", start)
    first = text[start]
    if first == "{":
        return _object(text, start, depth)
    if first == "[":
        return _array(text, start, depth)
    if first == '"':
        return Node("string", start, _string_end(text, start))
    for kind, pattern in (("number", _NUMBER), ("literal", _LITERAL)):
        match = pattern.match(text, start)
        if match:
            if match.end() < len(text) and (text[match.end()].isalnum() or text[match.end()] in "_.+-"):
                raise Malformed("this is no JSON value", start)
            return Node(kind, start, match.end())
    if first == "'":
        raise Malformed("strings stand in double quotes in JSON", start)
    raise Malformed("this is no JSON value", start)


def _string_end(text: str, start: int) -> int:
    match = _STRING.match(text, start)
    if not match:
        raise Malformed("this string is not closed on its line, or holds a control character or a wrong escape", start)
    return match.end()


def _object(text: str, start: int, depth: int) -> Node:
    node = Node("object", start, start)
    seen: set[str] = set()
    position = _skip(text, start + 1)
    if text[position : position + 1] == "}":
        node.end = position + 1
        return node
    while True:
        if text[position : position + 1] == "}":
            raise Malformed("a comma stands before the closing brace", position)
        if text[position : position + 1] != '"':
            raise Malformed("a key in double quotes should stand here", position)
        key_end = _string_end(text, position)
        key = json.loads(text[position:key_end])
        if key in seen:
            raise Malformed(f"the key {json.dumps(mask_text(key))} stands twice in the same object", position)
        seen.add(key)
        colon = _skip(text, key_end)
        if text[colon : colon + 1] != ":":
            raise Malformed("a colon should stand here, after the key", colon)
        value = _value(text, _skip(text, colon + 1), depth + 1)
        node.members.append(Member(key, position, key_end, value))
        position = _skip(text, value.end)
        if text[position : position + 1] == "}":
            node.end = position + 1
            return node
        if text[position : position + 1] != ",":
            raise Malformed("a comma or a closing brace should stand here", position)
        position = _skip(text, position + 1)


def _array(text: str, start: int, depth: int) -> Node:
    node = Node("array", start, start)
    position = _skip(text, start + 1)
    if text[position : position + 1] == "]":
        node.end = position + 1
        return node
    while True:
        if text[position : position + 1] == "]":
            raise Malformed("a comma stands before the closing bracket", position)
        item = _value(text, position, depth + 1)
        node.items.append(item)
        position = _skip(text, item.end)
        if text[position : position + 1] == "]":
            node.end = position + 1
            return node
        if text[position : position + 1] != ",":
            raise Malformed("a comma or a closing bracket should stand here", position)
        position = _skip(text, position + 1)


def parse_at(text: str, start: int) -> Node:
    """Return the value that starts at ``start``, in text that was parsed before."""
    return _value(text, start, 0)


def value_of(text: str, node: Node) -> object:
    """Return a node as a Python value."""
    return json.loads(text[node.start : node.end])


def place(text: str, offset: int) -> tuple[int, int]:
    """Return line and column (from 1) of an offset."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def error_at(text: str, path: str, offset: int, reason: str, hint: str | None = None) -> FleetError:
    """Return the error for something wrong in a configuration file; it never quotes the file, which may hold credentials."""
    line, column = place(text, offset)
    return FleetError(
        f"{path}, line {line}, column {column}: {reason}. The file was left as it is.",
        "config_invalid",
        phase="edit",
        object=path,
        observed=f"line {line}, column {column}: {reason}",
        hint=hint or "Mend that place, then run again.",
    )


# --- editing ---


@dataclass(frozen=True)
class Style:
    """How the admin writes: line ends, one level of indentation, what stands between key and value and between two members of a line."""

    newline: str
    unit: str
    colon: str
    comma: str
    lines: bool


def style_of(text: str, top: Node) -> Style:
    """Return the style of a parsed document, from what stands in it."""
    newline = "\r\n" if "\r\n" in text else "\n"
    colon, unit, comma = ": ", "  ", None
    if top.members:
        between = text[top.members[0].key_end : top.members[0].value.start]
        colon = between if "\n" not in between else colon
        indented = [_indent(text, member.start) for member in top.members if _starts_line(text, member.start)]
        base = _indent(text, top.start)
        if indented and indented[0].startswith(base):
            unit = indented[0][len(base) :]
    comma = "," if not colon.endswith((" ", "\t")) else ", "
    return Style(newline, unit, colon, comma, "\n" in text[top.start : top.end] or not top.members)


def _line_start(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def _indent(text: str, offset: int) -> str:
    line = text[_line_start(text, offset) : offset]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _starts_line(text: str, offset: int) -> bool:
    start = _line_start(text, offset)
    return start > 0 and not text[start:offset].strip(" \t")


def render(value: object, style: Style, indent: str, lines: bool) -> str:
    """Return a value as the admin would have written it at ``indent``; objects on lines of their own where ``lines``."""
    if isinstance(value, dict) and value:
        inner = indent + style.unit
        members = [
            json.dumps(key, ensure_ascii=False) + style.colon + render(child, style, inner, lines) for key, child in value.items()
        ]
        if lines:
            return "{" + "".join(
                style.newline + inner + member + ("," if number < len(members) else "") for number, member in enumerate(members, 1)
            ) + style.newline + indent + "}"
        return "{" + style.comma.join(members) + "}"
    if isinstance(value, list):
        return "[" + style.comma.join(json.dumps(item, ensure_ascii=False) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def add_member(text: str, owner: Node, key: str, value: object, style: Style) -> str:
    """Return ``text`` with a new last member in ``owner``."""

    def member(indent: str, lines: bool) -> str:
        return json.dumps(key, ensure_ascii=False) + style.colon + render(value, style, indent, lines)

    if not owner.members:
        if not style.lines:
            return text[: owner.start] + "{" + member("", False) + "}" + text[owner.end :]
        outer = _indent(text, owner.start)
        inner = outer + style.unit
        body = style.newline + inner + member(inner, True) + style.newline + outer
        return text[: owner.start] + "{" + body + "}" + text[owner.end :]
    last = owner.members[-1]
    if _starts_line(text, last.start):
        indent = _indent(text, last.start)
        addition = "," + style.newline + indent + member(indent, True)
    else:
        addition = style.comma + member("", False)
    return text[: last.value.end] + addition + text[last.value.end :]


def set_value(text: str, node: Node, value: object, style: Style) -> str:
    """Return ``text`` with another value in the place of ``node``."""
    return text[: node.start] + render(value, style, _indent(text, node.start), False) + text[node.end :]


def remove_member(text: str, owner: Node, key: str) -> str:
    """Return ``text`` without a member and without the comma and space that belonged to it."""
    index = next(number for number, member in enumerate(owner.members) if member.key == key)
    member = owner.members[index]
    if len(owner.members) == 1:
        return text[: owner.start] + "{}" + text[owner.end :]
    if index + 1 < len(owner.members):
        return text[: member.start] + text[owner.members[index + 1].start :]
    return text[: owner.members[index - 1].value.end] + text[member.value.end :]


# --- showing ---


def masked(text: str) -> str:
    """Return a document for a diff: the same layout, credentials masked. Text that can not be parsed is not shown at all."""
    try:
        top = parse(text)
    except Malformed:
        return "(not shown: not JSON)\n" if text.strip() else text
    patches: list[tuple[int, int, str]] = []
    _mask(text, top, False, patches)
    for start, end, replacement in sorted(patches, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _mask(text: str, node: Node, secret: bool, patches: list[tuple[int, int, str]]) -> None:
    for member in node.members:
        shown = mask_text(member.key)
        if shown != member.key:
            patches.append((member.start, member.key_end, json.dumps(shown, ensure_ascii=False)))
        _mask(text, member.value, secret or is_secret_key(member.key), patches)
    for item in node.items:
        _mask(text, item, secret, patches)
    if node.kind in ("string", "number") and secret:
        patches.append((node.start, node.end, json.dumps(MASK)))
    elif node.kind == "string":
        value = json.loads(text[node.start : node.end])
        shown = mask_text(value)
        if shown != value:
            patches.append((node.start, node.end, json.dumps(shown, ensure_ascii=False)))
