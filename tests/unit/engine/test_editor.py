# SPDX-License-Identifier: GPL-3.0-or-later
"""The editor of daemon.json: what goes in, what comes out, what is refused. Pure."""

import json

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_docker as docker
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Wanted

PATH = "/etc/docker/daemon.json"
RUNTIME = "/opt/a/runtime"


def edit(text, record=None, known=(), **wanted):
    data = text.encode() if isinstance(text, str) else text
    values = {"name": "ascend", "path": RUNTIME, **wanted}
    return docker.edit(data, PATH, Wanted(**values), record or {}, known)


NEW = '{\n  "runtimes": {\n    "ascend": {\n      "path": "/opt/a/runtime",\n      "runtimeArgs": []\n    }\n  }\n}\n'
ENTRY = '"ascend": {"path": "/opt/a/runtime", "runtimeArgs": []}'

# (name, file, what the file must be afterwards)
PRESENT = [
    ("missing", None, NEW),
    ("empty", "", NEW),
    ("white space", " \n", NEW),
    ("one line", '{"debug": true}', '{"debug": true, "runtimes": {' + ENTRY + "}}"),
    (
        "compact, no newline at the end",
        '{"debug":true}',
        '{"debug":true,"runtimes":{"ascend":{"path":"/opt/a/runtime","runtimeArgs":[]}}}',
    ),
    (
        "another vendor's runtime and default, two spaces",
        '{\n  "default-runtime": "nvidia",\n  "runtimes": {\n    "nvidia": {\n      "path": "/usr/bin/n",\n'
        '      "runtimeArgs": []\n    }\n  }\n}\n',
        '{\n  "default-runtime": "nvidia",\n  "runtimes": {\n    "nvidia": {\n      "path": "/usr/bin/n",\n'
        '      "runtimeArgs": []\n    },\n'
        '    "ascend": {\n      "path": "/opt/a/runtime",\n      "runtimeArgs": []\n    }\n  }\n}\n',
    ),
    (
        "eight spaces, lists on one line, objects in lists",
        '{\n        "bip": "192.0.2.1/24",\n        "default-address-pools": [\n'
        '                {"base": "198.51.100.0/24", "size": 24}\n        ]\n}\n',
        '{\n        "bip": "192.0.2.1/24",\n        "default-address-pools": [\n'
        '                {"base": "198.51.100.0/24", "size": 24}\n        ],\n'
        '        "runtimes": {\n                "ascend": {\n                        "path": "/opt/a/runtime",\n'
        '                        "runtimeArgs": []\n                }\n        }\n}\n',
    ),
    (
        "tabs and an empty runtimes",
        '{\n\t"runtimes": {},\n\t"debug": false\n}',
        '{\n\t"runtimes": {\n\t\t"ascend": {\n\t\t\t"path": "/opt/a/runtime",\n\t\t\t"runtimeArgs": []\n\t\t}\n\t},\n\t"debug": false\n}',
    ),
    (
        "CRLF and four spaces",
        '{\r\n    "debug": true\r\n}\r\n',
        '{\r\n    "debug": true,\r\n    "runtimes": {\r\n        "ascend": {\r\n            "path": "/opt/a/runtime",\r\n'
        '            "runtimeArgs": []\r\n        }\r\n    }\r\n}\r\n',
    ),
    (
        "space before the colon, no indentation",
        '{\n"debug" : true\n}\n',
        '{\n"debug" : true,\n"runtimes" : {\n"ascend" : {\n"path" : "/opt/a/runtime",\n"runtimeArgs" : []\n}\n}\n}\n',
    ),
    (
        "closing brace on the last member's line",
        '{ "debug": true,\n  "bip": "192.0.2.1/24" }\n',
        '{ "debug": true,\n  "bip": "192.0.2.1/24",\n  "runtimes": {\n    "ascend": {\n      "path": "/opt/a/runtime",\n'
        '      "runtimeArgs": []\n    }\n  } }\n',
    ),
    (
        "commas in front",
        '{ "debug": true\n, "ipv6": true\n}\n',
        '{ "debug": true\n, "ipv6": true, "runtimes": {' + ENTRY + "}\n}\n",
    ),
    (
        "our entry with another path, own keys and arguments stay",
        '{"runtimes": {"ascend": {"runtimeArgs": ["--keep"], "path": "/old", "options": {"x": 1}}}}\n',
        '{"runtimes": {"ascend": {"runtimeArgs": ["--keep"], "path": "/opt/a/runtime", "options": {"x": 1}}}}\n',
    ),
    ("our entry without a path", '{"runtimes": {"ascend": {}}}\n', '{"runtimes": {"ascend": {"path": "/opt/a/runtime"}}}\n'),
    (
        "escapes, other alphabets, big and exact numbers stay as they are written",
        '{"labels": ["\\u00e9=\\/", "名=字"], "mtu": 1.50e3, "n": 123456789012345678901234567890}\n',
        '{"labels": ["\\u00e9=\\/", "名=字"], "mtu": 1.50e3, "n": 123456789012345678901234567890, "runtimes": {' + ENTRY + "}}\n",
    ),
    (
        "a key of ours in another place means nothing",
        '{"log-opts": {"runtimes": "x", "ascend": "y"}}\n',
        '{"log-opts": {"runtimes": "x", "ascend": "y"}, "runtimes": {' + ENTRY + "}}\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), [row[1:] for row in PRESENT], ids=[row[0] for row in PRESENT])
def test_present(before, after):
    result = edit(before)
    assert result.text == after
    assert result.changed
    again = edit(result.text, result.note)
    assert not again.changed
    assert again.text == after


def test_arguments_are_exact_when_given_and_kept_when_not():
    kept = edit('{"runtimes": {"ascend": {"path": "/opt/a/runtime", "runtimeArgs": ["--x"]}}}')
    assert (kept.changed, kept.args) == (False, ["--x"])
    given = edit('{"runtimes": {"ascend": {"path": "/opt/a/runtime", "runtimeArgs": ["--x"]}}}', args=["--y", 'a "b"'])
    assert json.loads(given.text)["runtimes"]["ascend"]["runtimeArgs"] == ["--y", 'a "b"'] == given.args
    emptied = edit('{"runtimes": {"ascend": {"path": "/opt/a/runtime", "runtimeArgs": ["--x"]}}}', args=[])
    assert '"runtimeArgs": []' in emptied.text
    assert not edit('{"runtimes": {"ascend": {"path": "/opt/a/runtime"}}}', args=[]).changed


# --- the default runtime ---


def test_another_default_is_never_taken_unasked():
    result = edit('{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/n"}}}')
    assert json.loads(result.text)["default-runtime"] == "nvidia"
    assert (result.previous_default, result.default) == (None, None)
    assert result.note == {}


def test_set_default_returns_and_notes_the_former_one():
    before = '{\n  "default-runtime": "nvidia",\n  "runtimes": {\n    "nvidia": {\n      "path": "/n"\n    }\n  }\n}\n'
    result = edit(before, set_default=True)
    assert json.loads(result.text)["default-runtime"] == "ascend"
    assert result.previous_default == "nvidia"
    again = edit(result.text, result.note, set_default=True)
    assert (again.changed, again.previous_default, again.note) == (False, "nvidia", result.note)
    assert edit(result.text, result.note, state="absent", path=None).text == before


def test_default_that_is_ours_already_needs_no_note():
    result = edit('{"default-runtime": "ascend", "runtimes": {' + ENTRY + "}}", set_default=True)
    assert (result.changed, result.note, result.previous_default) == (False, {}, None)


@pytest.mark.parametrize("before", [None, "", "\n", " \n\n", "{}", "{ }", "{}\n", "{\n}\n"])
def test_a_file_that_says_nothing_comes_back_as_it_was(before):
    there = edit(before, set_default=True)
    back = edit(there.text, there.note, state="absent", path=None)
    assert (back.text, back.remove, back.note) == (before or "", before is None, {})


def test_a_file_that_was_none_stays_when_somebody_else_wrote_into_it():
    there = edit(None)
    text = there.text.replace('"runtimes"', '"debug": true, "runtimes"', 1)
    back = edit(text, there.note, state="absent", path=None)
    assert (json.loads(back.text), back.remove) == ({"debug": True}, False)


@pytest.mark.parametrize(
    ("name", "before", "record", "known", "after"),
    [
        ("nothing there", '{"debug": true}', {}, (), '{"debug": true}'),
        ("no file", None, {}, (), ""),
        ("first of two", '{"runtimes": {' + ENTRY + ', "b": {"path": "/b"}}}', {}, (), '{"runtimes": {"b": {"path": "/b"}}}'),
        ("last of two", '{"runtimes": {"b": {"path": "/b"}, ' + ENTRY + "}}", {}, (), '{"runtimes": {"b": {"path": "/b"}}}'),
        ("runtimes of the admin stays", '{"runtimes": {' + ENTRY + '}, "x": 1}', {}, (), '{"runtimes": {}, "x": 1}'),
        ("runtimes of ours goes", '{"runtimes": {' + ENTRY + '}, "x": 1}', {"created_runtimes": True}, (), '{"x": 1}'),
        ("foreign default stays", '{"default-runtime": "b", "runtimes": {' + ENTRY + ', "b": {"path": "/b"}}}',
         {"previous_default": "c"}, (), '{"default-runtime": "b", "runtimes": {"b": {"path": "/b"}}}'),
        ("our default without a note goes", '{"default-runtime": "ascend", "runtimes": {' + ENTRY + "}}", {}, (), '{"runtimes": {}}'),
        ("former default that is gone", '{"default-runtime": "ascend", "runtimes": {' + ENTRY + "}}", {"previous_default": "b"}, (),
         '{"runtimes": {}}'),
        ("former default that only the engine knows", '{"default-runtime": "ascend", "runtimes": {' + ENTRY + "}}",
         {"previous_default": "b"}, ("runc", "b"), '{"default-runtime": "b", "runtimes": {}}'),
        ("stock default comes back as it was written", '{"default-runtime": "ascend", "runtimes": {' + ENTRY + "}}",
         {"previous_default": "runc"}, (), '{"default-runtime": "runc", "runtimes": {}}'),
    ],
)  # fmt: skip
def test_absent(name, before, record, known, after):
    result = edit(before, record, known, state="absent", path=None)
    assert result.text == after, name
    assert result.note == {}
    assert result.changed == (before is not None and before != after)
    if name == "former default that is gone":
        assert "b does not exist any more" in result.warnings[0]


@pytest.mark.parametrize(
    ("text", "default", "after"),
    [
        ("{}", True, '{\n  "runtimes": {},\n  "default-runtime": "runc"\n}'),
        ('{"x": 1}', False, '{"x": 1, "runtimes": {}}'),
        ('{"runtimes": {}}', False, None),
        ('{"runtimes": {}, "default-runtime": "b"}', True, None),
        ('{"runtimes": {}}', True, '{"runtimes": {}, "default-runtime": "runc"}'),
        ("", False, '{\n  "runtimes": {}\n}\n'),
    ],
)
def test_bridge_names_what_a_reload_would_not_forget(text, default, after):
    assert docker.bridge(text, default) == after


# --- what is refused ---

REFUSED = [
    ("not JSON", "log-driver: json-file\n", 1, 1, "no JSON value"),
    ("missing comma", '{\n  "a": 1\n  "b": 2\n}\n', 3, 3, "comma or a closing brace"),
    ("comma before the brace", '{\n  "a": 1,\n}\n', 3, 1, "comma stands before"),
    ("comma before the bracket", '{"a": [1, ]}', 1, 11, "comma stands before"),
    ("comment of slashes", '{\n  // mirrors\n  "a": 1\n}', 2, 3, "comments are not JSON"),
    ("comment with a hash", '# mine\n{"a": 1}', 1, 1, "comments are not JSON"),
    ("comment in stars", '{"a": /* x */ 1}', 1, 7, "comments are not JSON"),
    ("cut file", '{"a": {"b": 1}', 1, 15, "comma or a closing brace"),
    ("cut string", '{"a": "b\n}', 1, 7, "not closed on its line"),
    ("two documents", '{"ipv6": true}\n{"experimental": true}', 2, 1, "byte offset 15"),
    ("two documents after a wide letter", '{"é": true}\n{}', 2, 1, "byte offset 13"),
    ("rubbish behind", '{"a": 1}}', 1, 9, "byte offset 8"),
    ("list on top", "[]\n", 1, 1, "no JSON object but a list"),
    ("text on top", '"x"', 1, 1, "no JSON object but a string"),
    ("null on top", "null", 1, 1, "no JSON object but a bare word"),
    ("runtimes is a list", '{\n  "a": 1,\n  "runtimes": []\n}', 3, 15, "is no object but a list"),
    ("runtimes is a text", '{"runtimes": "ascend"}', 1, 14, "is no object but a string"),
    ("runtimes is null", '{"runtimes": null}', 1, 14, "is no object but a bare word"),
    ("default is no text", '{"default-runtime": 1}', 1, 21, "is no string but a number"),
    ("key twice", '{\n  "a": 1,\n  "a": 2\n}', 3, 3, '"a" stands twice'),
    ("key twice, written differently", '{"a": 1, "\\u0061": 2}', 1, 10, '"a" stands twice'),
    ("key twice further down", '{"x": [{"b": 1, "b": 1}]}', 1, 17, '"b" stands twice'),
    ("single quotes", "{'a': 1}", 1, 2, "key in double quotes"),
    ("single quoted value", "{\"a\": 'x'}", 1, 7, "double quotes"),
    ("NaN", '{"a": NaN}', 1, 7, "no JSON value"),
    ("leading zero", '{"a": 01}', 1, 7, "no JSON value"),
    ("True", '{"a": True}', 1, 7, "no JSON value"),
    ("wrong escape", '{"a": "\\x41"}', 1, 7, "wrong escape"),
    ("raw tab in a string", '{"a": "x\ty"}', 1, 7, "control character"),
    ("no value", '{"a": }', 1, 7, "no JSON value"),
    ("no colon", '{"a" 1}', 1, 6, "colon"),
    ("too deep", '{"a": ' + "[" * 200 + "]" * 200 + "}", 1, 107, "levels"),
    ("byte order mark", b"\xef\xbb\xbf{}", 1, 1, "byte order mark"),
    ("UTF-16", '{"a": 1}'.encode("utf-16"), 1, 1, "byte order mark"),
    ("not UTF-8", b'{\n "a": "\xff"}', 2, 8, "not UTF-8 (byte offset 9)"),
]


@pytest.mark.parametrize(("text", "line", "column", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
@pytest.mark.parametrize("state", ["present", "absent"])
def test_refused_with_file_line_and_reason(text, line, column, reason, state):
    with pytest.raises(FleetError) as caught:
        edit(text, state=state)
    assert caught.value.code == "config_invalid"
    assert caught.value.object == PATH
    assert f"{PATH}, line {line}, column {column}: " in str(caught.value)
    assert reason in str(caught.value)
    assert "left as it is" in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "reason"), [('"/x"', "column 25: the runtime ascend is no object"), ('{"runtimeType": "io.x"}', "column 26: .* runtimeType")]
)
def test_an_entry_of_our_name_that_is_something_else_is_refused_and_may_be_removed(entry, reason):
    text = '{"runtimes": {"ascend": ' + entry + "}}"
    with pytest.raises(FleetError, match=reason):
        edit(text)
    assert edit(text, state="absent").text == '{"runtimes": {}}'


@pytest.mark.parametrize("name", ["runc", "io.containerd.runc.v2"])
def test_names_of_dockerd_are_refused(name):
    with pytest.raises(FleetError, match="keeps for itself"):
        edit("{}", name=name)


def test_errors_never_quote_the_file():
    with pytest.raises(FleetError) as caught:
        edit('{"auths": {"r": {"auth": "canary-7d1f"}} "x": "canary-7d1f"}')
    assert "canary" not in str(caught.value) + str(caught.value.as_dict())


def test_quoted_switches_are_warned_of():
    result = edit('{\n  "ipv6": "true",\n  "mtu": "1500",\n  "debug": true\n}')
    assert [warning.split(": ")[0] for warning in result.warnings] == [f"{PATH}, line 2", f"{PATH}, line 3"]
