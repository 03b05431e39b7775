# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's TOML reader against Python's own."""

import random

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _toml_read as toml

try:
    import tomllib
except ImportError:  # Python 3.10 and older, where the reader is needed
    tomllib = None

DUMP = """\
version = 3
root = '/var/lib/containerd'
imports = ['/etc/containerd/conf.d/*.toml',
  # a comment, with ] and '
  "b\\u0041\\n", ]   # the end
oom_score = -1_000

[plugins]
  [plugins.'io.containerd.cri.v1.runtime']
    enable_cdi = true
    "quoted \\"key\\"" = { a = 1, b.c = "x", 'd e' = [] }

    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = true   # why
      BinaryName = '''
first "line"
'''
  [plugins."io.containerd.cri.v1.runtime".containerd . runtimes . "a.b"]
  x = \"\"\"a \\
     b\"\"\"
a.b.c = 0x1f

[[list]]
name = 'one'
[list.inner]
x = 1
[[list]]
name = 'two'
[list.inner]
x = 2
"""

DOCUMENTS = [
    "", "\n\n# only a comment", "a=1", "a = ''\nb = \"\"", "a.b = 1\na.c = 2", '"" = 1', "a = [[1, 2], ['x']]", "a = [\n]\n", DUMP,
    DUMP.replace("\n", "\r\n"), 'a = """""quoted"" text"""""', "a = ''''one'''''",
    '"a\\tb" = "\\\\ \\U0001F600"', "[a]\n[a.b]\n[c]\n", "[a.b]\n[a]\nx = 1",
    "a = {}\nb = { x = { y = [ { z = 'deep' } ] } }", "[ a . 'b' ]\nx = true", "a = 1 # 'no text' [", "a = '# no comment'",
]


@pytest.mark.skipif(tomllib is None, reason="nothing to compare with")
@pytest.mark.parametrize("text", DOCUMENTS)
def test_as_python_reads_it(text):
    assert toml.parse(text) == tomllib.loads(text)


def test_numbers_and_dates_that_nobody_asks_for_are_texts():
    assert toml.parse("a = 1.5\nb = 1979-05-27 07:32:00Z\nc = [1e3, inf]\nd = 07:32:00") == {
        "a": "1.5", "b": "1979-05-27 07:32:00Z", "c": ["1e3", "inf"], "d": "07:32:00",
    }


WRONG = [
    ("a", 1), ("a = ", 1), ("a = b", 1), ("\n\na = 'x", 3), ("a = 1 2", 1), ("[a\nb = 1", 1), ("[a]\n[a]", 2),
    ("a = 1\na = 2", 2), ("a = 1\n[a]", 2),
    ("a = '''x\n\n", 1), ("a = [1\nb = 2", 2), ("a = {x = 1", 1), ('a = "\\q"', 1), ('a = "\\ud800"', 1), ("= 1", 1), ("a.b = 1\n[a.b]", 2),
    ("[[a]]\n[a]\nx = 1\n[[a.x]]", 4), ("[]", 1), ("a = 'x\ny'", 1), ("a = [1 2]", 1), ("{{ template \"base\" . }}", 1), ('a = "x\\', 1),
    ("a = " + "[" * 200, 1), ("a = [1]\n[[a]]", 2), ("\nx = 0b9", 2), ("x = 0o8", 1), ("x = 0x_", 1),
]


@pytest.mark.parametrize(("text", "line"), WRONG)
def test_what_is_no_toml(text, line):
    with pytest.raises(toml.TomlError) as caught:
        toml.parse(text)
    assert caught.value.line == line
    if tomllib:
        with pytest.raises((tomllib.TOMLDecodeError, RecursionError)):
            tomllib.loads(text)


def test_an_error_quotes_no_value():
    with pytest.raises(toml.TomlError) as caught:
        toml.parse("password = 'planted' x")
    assert "planted" not in str(caught.value)


@pytest.mark.skipif(tomllib is None, reason="nothing to compare with")
def test_whatever_is_cut_out_of_a_document_is_read_or_refused_as_python_does():
    chance = random.Random(4)
    both = 0
    for _count in range(3000):
        start = chance.randrange(len(DUMP))
        text = DUMP[:start] + DUMP[start + chance.randrange(1, 12):]
        try:
            expected = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            # It may take what Python refuses, for it is no judge; it may not fail in another way.
            try:
                toml.parse(text)
            except toml.TomlError:
                both += 1
            continue
        assert toml.parse(text) == expected, text
    assert both > 500


def test_get_and_texts():
    document = toml.parse("a.b = ['x', 1]\nc = 1")
    assert toml.texts(toml.get(document, "a", "b")) == ["x"]
    assert toml.get(document, "a", "x") is None
    assert toml.get(document, "c", "x") is None
    assert toml.texts(None) == []
