# SPDX-License-Identifier: GPL-3.0-or-later
"""Random TOML trees in random layouts: foreign keys never change, and what was added and removed leaves the same bytes."""

import json

import pytest
from engine_corpus import STOCK, deep, read_answer, tomllib, wanted
from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_containerd as containerd
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_mask as mask
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml as toml
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml_edit as change

CRI = "io.containerd.grpc.v1.cri"
PATH = "/etc/containerd/config.toml"
CANARY = "canary-5fa1c7"
SAID = STOCK.format(2, f'plugins."{CRI}"') + f'[plugins."{CRI}".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'

letters = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))
known = st.sampled_from(["root", "a", "b-c", "level", "io.containerd.x.v1.y", "sandbox_image", "ü", "a b"])
names = st.one_of(known, st.text(letters, min_size=1, max_size=6))
texts = st.text(letters, max_size=12)
leaves = st.one_of(
    texts, st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False), st.lists(texts, max_size=3)
)
flat = st.dictionaries(names, leaves, max_size=3)
tables = st.recursive(flat, lambda inner: st.dictionaries(names, st.one_of(leaves, inner), max_size=3), max_leaves=8)


@st.composite
def trees(draw):
    """A configuration of version 2 that may have any part of the CRI table."""
    tree = draw(tables)
    for key in ("version", "plugins", "imports", "disabled_plugins", "required_plugins"):
        tree.pop(key, None)
    plugins = {name: draw(tables) for name in draw(st.sets(st.sampled_from(["io.containerd.gc.v1.scheduler", "x"])))}
    if draw(st.booleans()):
        cri = plugins[CRI] = draw(tables)
        cri.pop("containerd", None)
        if draw(st.booleans()):
            section = cri["containerd"] = {key: value for key, value in draw(tables).items() if key not in ("runtimes", "default_runtime")}
            section.pop("default_runtime_name", None)
            if draw(st.booleans()):
                entry = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
                section["runtimes"] = {name: dict(entry) for name in draw(st.sets(st.sampled_from(["runc", "kata", "a b"]), min_size=1))}
                section["runtimes"]["runc"] = dict(entry)
            if draw(st.booleans()):
                section["default_runtime_name"] = draw(st.sampled_from(sorted(section.get("runtimes", {"runc": {}}))))
    whole = {"version": 2, **tree, **({"plugins": plugins} if plugins else {})}
    return {key: whole[key] for key in draw(st.permutations(list(whole)))}


class Writer:
    """Writes a tree as an admin might: headers, dotted keys and inline tables, any indentation, comments, blank lines."""

    def __init__(self, draw):
        self.draw = draw
        self.newline = draw(st.sampled_from(["\n", "\n", "\r\n"]))

    def some(self, *choices):
        return self.draw(st.sampled_from(choices))

    def string(self, text):
        if "'" not in text and text.isprintable() and self.some(False, True):
            return f"'{text}'"
        return json.dumps(text, ensure_ascii=self.some(False, not any(ord(one) > 0xFFFF for one in text))).replace("\x7f", "\\u007f")

    def key(self, name):
        bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        return name if bare and self.some(True, True, False) else self.string(name)

    def value(self, value):
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, list):
            return "[" + self.some(",", ", ", f",{self.newline}  # x{self.newline} ").join(map(self.value, value)) + "]"
        if isinstance(value, dict):
            return "{" + self.some("", " ") + ", ".join(f"{self.key(name)} = {self.inline(inner)}" for name, inner in value.items()) + "}"
        return json.dumps(value)

    def inline(self, value):
        if isinstance(value, list):
            return "[" + ", ".join(map(self.value, value)) + "]"
        return self.value(value)

    def line(self, text):
        tail = self.some("", "", " # note", "   ")
        before = self.some("", "", "", self.newline, "# a comment" + self.newline, "  " + self.newline)
        return before + self.some("", "  ", "\t") + text + tail + self.newline

    def pairs(self, prefix, table, lines):
        """Write what stands directly in a table; return the tables that get a header."""
        later = []
        for name, value in table.items():
            if not isinstance(value, dict):
                lines.append(self.line(f"{'.'.join([*prefix, self.key(name)])}{self.some(' = ', '=', '  =  ')}{self.value(value)}"))
                continue
            form = self.some("header", "header", "header", "inline", "dotted")
            if form == "header" and not prefix:
                later.append((name, value))
            elif form == "dotted" and value:
                self.dotted([*prefix, self.key(name)], value, lines)
            else:
                lines.append(self.line(f"{'.'.join([*prefix, self.key(name)])} = {self.value(value)}"))
        return later

    def dotted(self, prefix, table, lines):
        assert not self.pairs(prefix, table, lines)

    def document(self, tree):
        lines = []
        waiting = [((name,), value) for name, value in self.pairs([], tree, lines)]
        while waiting:
            path, table = waiting.pop(self.draw(st.integers(0, len(waiting) - 1)))
            own, inner = [], []
            for name, value in self.pairs([], table, own):
                inner.append(((*path, name), value))
            if own or not inner or self.some(True, False):
                lines.append(self.line("[" + self.some(".", ".", " . ").join(map(self.key, path)) + "]"))
                lines += own
            waiting += inner
        text = "".join(lines)
        return text[: -len(self.newline)] if self.some(False, False, True) and text.endswith(self.newline) and lines[-1].strip() else text


@st.composite
def documents(draw):
    tree = draw(trees())
    text = Writer(draw).document(tree)
    assert tomllib.loads(text) == tree
    return text, tree


def plan(text, note=None, state="present", binary="1.6.20", **more):
    files = [(PATH, "main", text.encode())]
    found = read_answer("containerd", files, note=note or {}, binary_version=binary, effective_text=SAID)
    return containerd.plan_edit(found, wanted("containerd", state, **more))


def expected(tree, default):
    new = json.loads(json.dumps(tree))
    section = new.setdefault("plugins", {}).setdefault(CRI, {}).setdefault("containerd", {})
    stock = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    runtimes = section.setdefault("runtimes", {})
    if not runtimes:
        runtimes["runc"] = stock
    runtimes["ascend"] = deep(stock, {"options": {"BinaryName": wanted("x").path}})
    if default:
        section["default_runtime_name"] = "ascend"
    return new


@given(documents(), st.booleans())
def test_foreign_keys_never_change(document, default):
    text, tree = document
    edit = plan(text, set_default=default)
    assert tomllib.loads(edit.text) == expected(tree, default)
    again = plan(edit.text, edit.note, set_default=default)
    assert (again.changed, again.note) == (False, edit.note)
    back = plan(edit.text, edit.note, state="absent")
    assert (back.text, back.note) == (text, {})


@given(documents())
def test_a_lost_note_loses_nothing_of_the_admins(document):
    text, tree = document
    back = plan(plan(text, set_default=True).text, {}, state="absent")
    after = tomllib.loads(back.text)
    former = tree.get("plugins", {}).get(CRI, {}).get("containerd", {}).get("default_runtime_name")
    if former:
        after["plugins"][CRI]["containerd"]["default_runtime_name"] = former
    assert deep(after, tree) == after
    assert "ascend" not in after["plugins"][CRI]["containerd"].get("runtimes", {})


@given(documents(), names, leaves)
def test_a_key_of_any_table_comes_and_goes(document, name, value):
    text, tree = document
    before = toml.read(text, PATH)
    for table in ((), ("plugins", "x"), ("plugins", CRI, "containerd")):
        where = toml.dig(tree, table)
        if (where is not None and not isinstance(where, dict)) or name in (where or {}):
            continue
        after = change.put(before, table, name, value)
        change.prove(before, after, [(*table, name)])
        assert toml.dig(tomllib.loads(after.text), (*table, name)) == value
        if where is not None:
            gone = change.remove(after, (*table, name))
            assert tomllib.loads(gone.text) == tree


@given(documents(), st.data())
def test_a_damaged_text_is_refused_or_means_what_tomllib_says(document, data):
    text, _tree = document
    position = data.draw(st.integers(0, len(text)))
    extra = data.draw(st.sampled_from(['"', "'", "[", "]", "{", "}", "=", ".", "\n", "#", "x", "\\", '"""']))
    for broken in (text[:position], text[:position] + text[position + 1 :], text[:position] + extra + text[position:]):
        try:
            value = tomllib.loads(broken)
        except ValueError:
            with pytest.raises(FleetError) as caught:
                toml.read(broken, PATH)
            assert caught.value.code == "config_invalid"
            assert ", line " in caught.value.message
        else:
            assert toml.read(broken, PATH).data == value


@given(documents(), st.sampled_from(["password", "auth", "identitytoken", "Authorization", "api_key", "token"]), st.data())
def test_a_planted_credential_is_never_shown(document, key, data):
    text, tree = document
    at = data.draw(st.sampled_from([(), ("plugins", "x"), ("plugins", CRI, "registry", "configs", "r", "auth")]))
    where = toml.dig(tree, at)
    assume(where is None or (isinstance(where, dict) and key not in where))
    form = data.draw(st.sampled_from(["text", "list", "table"]))
    value = {"text": CANARY, "list": [CANARY, CANARY], "table": {"x": CANARY, "y": [CANARY]}}[form]
    try:
        text = change.put(toml.read(text, PATH), at, key, value).text
    except FleetError:
        return  # part of the path is no table
    shown = mask.masked(text)
    assert CANARY not in shown
    assert CANARY not in mask.masked_lines(text)
    assert CANARY not in mask.masked("{{ if x }}\n" + text)
    assert len(shown.splitlines()) == len(text.splitlines())
    assert tomllib.loads(shown).keys() == tomllib.loads(text).keys()
    for cut in range(0, len(text), max(1, len(text) // 5)):
        try:
            toml.read(text[:cut], PATH)
        except FleetError as error:
            assert CANARY not in json.dumps(error.as_dict())
