# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading TOML on a node, whose Python may have no tomllib. Private to the collection. Pure.

For looking, never for writing: the controller edits the text in place. It reads what TOML 1.0 allows, and is no judge of it: an
engine's own parser is. Numbers that are no plain integers, and dates, are given as their text.
"""

import re

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^\s,\]}#]+")
_INTEGER = re.compile(r"[+-]?[0-9](?:_?[0-9])*$")
_BASED = re.compile(r"0[xob][0-9A-Fa-f_]+$")
_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "e": "\x1b"}
_DEEPEST = 100


class TomlError(ValueError):
    """Text that is no TOML: ``line`` (from 1) and ``reason``; neither quotes a value."""

    def __init__(self, line, reason):
        super(TomlError, self).__init__("line %d: %s" % (line, reason))
        self.line = line
        self.reason = reason


def parse(text):
    """Return the document as dicts, lists, texts, integers and booleans. TomlError for what is no TOML."""
    return _Reader(text.replace("\r\n", "\n")).document()


def get(document, *path):
    """Return what stands at a path of keys, None where there is nothing."""
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return None
        document = document[key]
    return document


def texts(value):
    """Return the texts of a list of texts; [] for anything else."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


class _Reader(object):
    """One pass over a text."""

    def __init__(self, text):
        self._text = text
        self._at = 0
        self._depth = 0
        self._root = {}
        self._headers = set()

    def document(self):
        table = self._root
        while True:
            self._blank(lines=True)
            if self._at >= len(self._text):
                return self._root
            if self._next("[["):
                table = self._list_header()
            elif self._next("["):
                table = self._header()
            else:
                self._pair(table)
            self._end_of_line()

    # --- where we are ---

    def _wrong(self, reason):
        return TomlError(self._text.count("\n", 0, self._at) + 1, reason)

    def _next(self, mark):
        if self._text.startswith(mark, self._at):
            self._at += len(mark)
            return True
        return False

    def _want(self, mark):
        if not self._next(mark):
            raise self._wrong("expected %s" % mark)

    def _blank(self, lines=False):
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t" or lines and char == "\n":
                self._at += 1
            elif lines and char == "#":
                self._comment()
            else:
                return

    def _comment(self):
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _end_of_line(self):
        self._blank()
        if self._text.startswith("#", self._at):
            self._comment()
        if self._at < len(self._text) and not self._next("\n"):
            raise self._wrong("expected the end of the line")

    # --- tables and keys ---

    def _header(self):
        path = self._path()
        self._want("]")
        if path in self._headers:
            raise self._wrong("a table that is there already")
        self._headers.add(path)
        return self._table(self._root, path)

    def _list_header(self):
        path = self._path()
        self._want("]]")
        items = self._table(self._root, path[:-1]).setdefault(path[-1], [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self._wrong("a key that is something else already")
        items.append({})
        # What was a table of the entry before may come again in this one.
        self._headers = {known for known in self._headers if known[:len(path)] != path}
        return items[-1]

    def _table(self, table, path):
        for key in path:
            table = table.setdefault(key, {})
            if isinstance(table, list) and table and isinstance(table[-1], dict):
                table = table[-1]
            if not isinstance(table, dict):
                raise self._wrong("a key that is something else already")
        return table

    def _path(self):
        keys = []
        while True:
            self._blank()
            keys.append(self._key())
            self._blank()
            if not self._next("."):
                return tuple(keys)

    def _key(self):
        for mark in ('"', "'"):
            if self._text.startswith(mark, self._at):
                return self._line_text(mark)
        match = _BARE.match(self._text, self._at)
        if not match:
            raise self._wrong("expected a key")
        self._at = match.end()
        return match.group()

    def _pair(self, table):
        path = self._path()
        self._want("=")
        table = self._table(table, path[:-1])
        if path[-1] in table:
            raise self._wrong("a key that is there already")
        table[path[-1]] = self._value()

    # --- values ---

    def _value(self):
        self._blank()
        for mark in ('"""', "'''"):
            if self._next(mark):
                return self._long_text(mark)
        for mark in ('"', "'"):
            if self._text.startswith(mark, self._at):
                return self._line_text(mark)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong("nested too deeply")
        try:
            if self._next("["):
                return self._list()
            if self._next("{"):
                return self._inline()
        finally:
            self._depth -= 1
        return self._scalar()

    def _list(self):
        items = []
        while True:
            self._blank(lines=True)
            if self._next("]"):
                return items
            items.append(self._value())
            self._blank(lines=True)
            if not self._next(","):
                self._want("]")
                return items

    def _inline(self):
        table = {}
        self._blank(lines=True)
        if self._next("}"):
            return table
        while True:
            self._blank(lines=True)
            self._pair(table)
            self._blank(lines=True)
            if not self._next(","):
                self._want("}")
                return table

    def _scalar(self):
        match = _SCALAR.match(self._text, self._at)
        if not match:
            raise self._wrong("expected a value")
        # A date and its time may be apart by one blank.
        match = _DATE.match(self._text, self._at) or match
        text, self._at = match.group(), match.end()
        if text in ("true", "false"):
            return text == "true"
        base = 10 if _INTEGER.match(text) else 0 if _BASED.match(text) else None
        if base is not None:
            try:
                return int(text.replace("_", ""), base)
            except ValueError:  # 0b9, 0x_, more digits than Python takes
                raise self._wrong("a number that does not exist") from None
        if text[0] in "+-.0123456789" or text in ("inf", "nan"):
            return text
        raise self._wrong("a value of no kind")

    def _line_text(self, mark):
        self._at += 1
        start = self._at
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "\n":
                break
            if char == mark:
                found = self._text[start:self._at]
                self._at += 1
                return found if mark == "'" else self._unescaped(found)
            self._at += 2 if char == "\\" and mark == '"' else 1
        self._at = min(start, len(self._text))
        raise self._wrong("a text without an end")

    def _long_text(self, mark):
        start = self._at
        while self._at < len(self._text):
            if self._text.startswith(mark, self._at):
                # Up to two quotes may stand right before the end.
                for _more in range(2):
                    if self._text.startswith(mark[0], self._at + 3):
                        self._at += 1
                found = self._text[start:self._at]
                self._at += 3
                found = found[1:] if found.startswith("\n") else found
                return found if mark == "'''" else self._unescaped(found)
            self._at += 2 if self._text[self._at] == "\\" and mark == '"""' else 1
        self._at = start
        raise self._wrong("a text without an end")

    def _unescaped(self, text):
        if "\\" not in text:
            return text

        def one(match):
            if match.group(1) is not None:
                return ""
            if match.group(2) is not None:
                number = int(match.group(2)[1:], 16)
                if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                    raise self._wrong("a character that does not exist")
                return chr(number)
            if match.group(3) not in _ESCAPES:
                raise self._wrong("an unknown escape")
            return _ESCAPES[match.group(3)]

        # A backslash at the end of a line swallows the line's end and the blanks after it.
        return re.sub(r"\\(?:([ \t]*\n\s*)|(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2})|(.?))", one, text)
