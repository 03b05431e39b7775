# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TOML with places: tomllib says what a document means, a scanner says where each part of it stands. Private to the collection. Pure.

Edits are made in the text (``_engine_config_toml_edit.py``), as for JSON, and tomllib judges each document before and after. No library
writes it back: tomlkit 0.15.2, the one that keeps comments, was measured to change the indentation of valid files when it writes them
unedited, and to fail on others (``[p.x.a]`` indented, then ``[p]``: "'OutOfOrderTableProxy' object has no attribute 'trivia'").
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_json import Malformed, error_at

Path = tuple[str, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\(?:["\\bfnrte]|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}))*"')
_LITERAL = re.compile(r"'[^'\x00-\x08\x0a-\x1f\x7f]*'")
_LONG_BASIC = re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''(?:[^']|'(?!''))*'{3,5}", re.DOTALL)
_WORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*|[^\s,\]}#\[{\"'=]+")
_WORD_KIND = re.compile(r"(?:true|false|[+-]?(?:inf|nan|\d[\w:.+ -]*))\Z")
_SPACE = re.compile(r"[ \t]*")
_SPACE_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "e": "\x1b"}
MAX_DEPTH = 100

_PLACE = re.compile(r"at line (\d+), column (\d+)")


@dataclass
class Member:
    """One ``key = value`` of an inline table; ``keys`` are its dotted parts."""

    keys: Path
    start: int
    value: Value


@dataclass
class Value:
    """A value and where it stands: ``text[start:end]``. ``kind``: string, long, word, array or inline."""

    kind: str
    start: int
    end: int
    members: list[Member] = field(default_factory=list)
    items: list[Value] = field(default_factory=list)


@dataclass
class Statement:
    """A header or a ``key = value`` with its whole lines ``text[start:end]``; ``path`` is absolute.

    ``table`` is the path of the header it stands under (of a header: its own). An element of an array of tables has its number in the path.
    """

    kind: str
    path: Path
    table: Path
    start: int
    end: int
    key_start: int
    key_end: int
    value: Value | None = None


@dataclass
class Document:
    """A document that was read: its text, the path of its file for messages, its data and its statements in their order."""

    text: str
    path: str
    data: dict
    statements: list[Statement]

    def get(self, keys: Path) -> object:
        """Return the value at a path of keys, None where there is none."""
        return dig(self.data, keys)

    def pair(self, keys: Path) -> Statement | None:
        """Return the statement that sets exactly this path."""
        return next((one for one in self.statements if one.kind == "pair" and one.path == keys), None)

    def under(self, keys: Path) -> list[Statement]:
        """Return the statements of a table and of what is in it."""
        return [one for one in self.statements if one.path[: len(keys)] == keys]


def dig(data: object, keys: Path) -> object:
    """Return the value at a path of keys in nested dicts, None where there is none."""
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def library() -> ModuleType:
    """Return tomllib, or tomli, which is the same for older Pythons; FleetError ``library_missing`` with the command that installs it."""
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)  # here and not above: docker must be editable without it
        except ImportError:
            continue
    raise FleetError(
        f"The Python {sys.version_info.major}.{sys.version_info.minor} that runs ansible can not read TOML; the configuration of this "
        "engine can not be edited.",
        "library_missing", phase="edit", object="tomli",
        hint=f"Install the library: {sys.executable} -m pip install tomli (Python 3.11 and later have it built in).",
    )  # fmt: skip


def read(text: str, path: str) -> Document:
    """Return the document; FleetError ``config_invalid`` with line and column when it is not TOML, ``config_not_understood`` when tomllib
    and the scanner read different keys from it, so that an edit could hit the wrong place.
    """
    toml = library()
    try:
        statements = scan(text)
    except Malformed as error:
        raise error_at(text, path, error.offset, error.reason) from None
    try:
        data = toml.loads(text)
    except (ValueError, RecursionError) as error:
        # Its message may quote the text, so only the place is taken from it.
        found = _PLACE.search(str(error))
        offset = len(text) if found is None else _offset(text, int(found.group(1)), int(found.group(2)))
        raise error_at(text, path, offset, "this is no TOML, or the key or table has stood before as something else") from None
    if not _alike(_tree(statements), data):
        raise FleetError(
            f"{path}: two readers of TOML see different keys in this file. The file was left as it is.",
            "config_not_understood", phase="edit", object=path, hint="Put the entry there by hand.",
        )  # fmt: skip
    return Document(text, path, data, statements)


def _offset(text: str, line: int, column: int) -> int:
    lines = text.replace("\r\n", "\n").splitlines(keepends=True)
    crlf = "\r\n" in text
    return sum(len(one) + (crlf and one.endswith("\n")) for one in lines[: line - 1]) + column - 1


def _tree(statements: list[Statement]) -> dict:
    """Return the keys that the scanner saw as nested dicts; a value that is no inline table is None."""
    tree: dict = {}
    for statement in statements:
        _enter(tree, statement.path, statement.value)
    return tree


def _enter(tree: dict, keys: Path, value: Value | None) -> None:
    leaf = value is not None and value.kind != "inline"
    for key in keys[:-1] if leaf else keys:
        tree = tree.setdefault(key, {})
    if leaf:
        tree[keys[-1]] = None
    elif value is not None:
        for member in value.members:
            _enter(tree, member.keys, member.value)


def _alike(tree: dict | None, data: object) -> bool:
    if tree is None:
        return not isinstance(data, dict)
    if isinstance(data, list):
        data = {f"[{number}]": item for number, item in enumerate(data)}
    return isinstance(data, dict) and tree.keys() == data.keys() and all(_alike(tree[key], data[key]) for key in tree)


# --- the scanner ---


def scan(text: str) -> list[Statement]:
    """Return the statements of a document; Malformed with the place for what is no TOML or stands there twice."""
    statements: list[Statement] = []
    table: Path = ()
    seen: set[tuple[str, Path]] = set()
    arrays: dict[Path, int] = {}
    position = 0
    while position < len(text):
        line = position
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        if position >= len(text):
            break
        if text.startswith(("\n", "\r\n", "#"), position):
            position = _line_end(text, position)
            continue
        if text[position] == "[":
            statement = _header(text, line, position, arrays)
            table = statement.path
        else:
            statement = _pair(text, line, position, table)
        if statement.kind != "array":
            if (statement.kind, statement.path) in seen:
                raise Malformed("this key or table has stood before", statement.key_start)
            seen.add((statement.kind, statement.path))
        statements.append(statement)
        position = statement.end
    return statements


def _numbered(path: Path, arrays: dict[Path, int]) -> Path:
    """Return a header's path with the number of the element behind each array of tables in it, so that paths of two elements differ."""
    whole: Path = ()
    for key in path:
        whole += (key,)
        if whole in arrays:
            whole += (f"[{arrays[whole]}]",)
    return whole


def _header(text: str, line: int, start: int, arrays: dict[Path, int]) -> Statement:
    double = text.startswith("[[", start)
    opening, closing = ("[[", "]]") if double else ("[", "]")
    keys, end = _key(text, start + len(opening))
    if not text.startswith(closing, end):
        raise Malformed("the name of a table is not closed on its line", end)
    path = _numbered(keys[:-1], arrays) + keys[-1:]
    if double:
        arrays[path] = arrays.get(path, -1) + 1
    path = _numbered(keys, arrays)
    return Statement("array" if double else "table", path, path, line, _rest_of_line(text, end + len(closing)), start, end + len(closing))


def _pair(text: str, line: int, start: int, table: Path) -> Statement:
    keys, end = _key(text, start)
    if text[end : end + 1] != "=":
        raise Malformed("an equals sign should stand here", end)
    value = _value(text, _SPACE.match(text, end + 1).end(), 0)  # type: ignore[union-attr]
    return Statement("pair", table + keys, table, line, _rest_of_line(text, value.end), start, end, value)


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end + 1


def _rest_of_line(text: str, position: int) -> int:
    position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
    if position < len(text) and not text.startswith(("\n", "\r\n", "#"), position):
        raise Malformed("the line should end here", position)
    return _line_end(text, position)


def _key(text: str, position: int) -> tuple[Path, int]:
    keys: Path = ()
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        match = _BASIC.match(text, position) or _LITERAL.match(text, position) or _BARE_KEY.match(text, position)
        if not match or text.startswith(('"""', "'''"), position):
            raise Malformed("a key should stand here", position)
        keys += (unquoted(match.group(0)),)
        position = _SPACE.match(text, match.end()).end()  # type: ignore[union-attr]
        if text[position : position + 1] != ".":
            return keys, position
        position += 1


def unquoted(text: str) -> str:
    """Return what a key or a string on one line stands for."""
    if text[0] == "'":
        return text[1:-1]
    if text[0] != '"':
        return text
    return re.sub(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", _unescaped, text[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if len(code) == 1:
        return _ESCAPES.get(code, code)
    number = int(code[1:], 16)
    return chr(number) if number <= 0x10FFFF else "\ufffd"


def _value(text: str, start: int, depth: int) -> Value:
    if depth > MAX_DEPTH:
        raise Malformed(f"more than {MAX_DEPTH} levels", start)
    first = text[start : start + 1]
    if first == "[":
        return _array(text, start, depth)
    if first == "{":
        return _inline(text, start, depth)
    if first in ('"', "'") and first:
        long = text.startswith(first * 3, start)
        pattern = {'"': (_BASIC, _LONG_BASIC), "'": (_LITERAL, _LONG_LITERAL)}[first][long]
        match = pattern.match(text, start)
        if not match:
            raise Malformed("this string is not closed, or holds a control character or a wrong escape", start)
        return Value("long" if long else "string", start, match.end())
    match = _WORD.match(text, start)
    if not match:
        raise Malformed("a value should stand here", start)
    if not _WORD_KIND.match(match.group(0)):
        raise Malformed("this is no TOML value; text stands in quotes", start)
    return Value("word", start, match.end())


def _array(text: str, start: int, depth: int) -> Value:
    value = Value("array", start, start)
    position = _SPACE_LINES.match(text, start + 1).end()  # type: ignore[union-attr]
    while text[position : position + 1] != "]":
        item = _value(text, position, depth + 1)
        value.items.append(item)
        position = _SPACE_LINES.match(text, item.end).end()  # type: ignore[union-attr]
        if text[position : position + 1] == ",":
            position = _SPACE_LINES.match(text, position + 1).end()  # type: ignore[union-attr]
        elif text[position : position + 1] != "]":
            raise Malformed("a comma or a closing bracket should stand here", position)
    value.end = position + 1
    return value


def _inline(text: str, start: int, depth: int) -> Value:
    value = Value("inline", start, start)
    position = _SPACE.match(text, start + 1).end()  # type: ignore[union-attr]
    if text[position : position + 1] == "}":
        value.end = position + 1
        return value
    while True:
        keys, end = _key(text, position)
        if text[end : end + 1] != "=":
            raise Malformed("an equals sign should stand here", end)
        inner = _value(text, _SPACE.match(text, end + 1).end(), depth + 1)  # type: ignore[union-attr]
        value.members.append(Member(keys, position, inner))
        position = _SPACE.match(text, inner.end).end()  # type: ignore[union-attr]
        if text[position : position + 1] == "}":
            value.end = position + 1
            return value
        if text[position : position + 1] != ",":
            raise Malformed("a comma or a closing brace should stand here, on the same line", position)
        position = _SPACE.match(text, position + 1).end()  # type: ignore[union-attr]
