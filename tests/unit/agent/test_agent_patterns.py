# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether two patterns can match the same path: against fnmatch, which glob has for each step of a path."""

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

ONES = [f"/dev/{name}" for name in ("a", "a*", "*", "a[0-9]", "a[!0-9]", "?", "??", "*b", "a*b*", "ab1", "b/*", "*/c")]
PATHS = [f"/dev/{name}" for name in ("a", "b", "ab", "a1", "a9", "ax", "ab1", "xb", "aab", "b/c", "b/", "a/c", "axbx", "a[", "bb")]


@pytest.fixture(scope="module")
def patterns(package):
    from npu_agent.backends import patterns

    return patterns


def matches(path, pattern):
    return path.count("/") == pattern.count("/") and all(
        fnmatchcase(step, wanted) for step, wanted in zip(path.split("/"), pattern.split("/"), strict=True))


@pytest.mark.parametrize("one", ONES)
def test_patterns_that_can_match_the_same(patterns, one):
    """Against every path of a list that both match; a '*' of glob matches no '/'."""
    for other in ONES:
        both = [path for path in PATHS if matches(path, one) and matches(path, other)]
        assert patterns.overlap(one, other) == bool(both), (one, other, both)
        assert patterns.overlap(one, other) == patterns.overlap(other, one)


LETTERS = "ab]![-z^"
PATTERN = some.text(alphabet=LETTERS + "*?", max_size=7)
NAMES = some.text(alphabet=LETTERS + "é~", max_size=7)


@given(one=PATTERN, other=PATTERN, name=NAMES)
@example("[!]a]b", "cb", "cb")
@example("[]]", "]", "]")
@example("[!!]", "[]!]", "]")
@example("[z-a]*", "?", "z")
@example("[!z-a]", "?", "q")
@example("[!a-]]", "é", "é")
@example("[", "[*", "[")
@example("[a-", "?a-", "[a-")
def test_what_both_match_is_an_overlap(patterns, one, other, name):
    """Against any name; and a pattern is a path that overlaps with what matches it as text."""
    if fnmatchcase(name, one) and fnmatchcase(name, other):
        assert patterns.overlap(f"/dev/{one}", f"/dev/{other}")
    if not set("*?[") & set(name):
        assert patterns.overlap(one, name) == fnmatchcase(name, one)


@given(one=some.text(alphabet="ab[]!*?", max_size=5), other=some.text(alphabet="ab[]!*?", max_size=5))
def test_an_overlap_has_a_name_that_both_match(patterns, one, other):
    """All names of these letters that are short enough for two patterns so short."""
    if patterns.overlap(one, other):
        assert any(fnmatchcase(name, one) and fnmatchcase(name, other) for name in names(6))


def names(most, alphabet="ab[]!x", known={}):  # noqa: B006  made once
    if most not in known:
        known[most] = [""] + [letter + rest for letter in alphabet for rest in names(most - 1)] if most else [""]
    return known[most]


def test_a_class_that_names_no_letter_of_ascii_is_one(patterns):
    assert patterns.overlap("/dev/[!\x20-~]", "/dev/?") and patterns.overlap("/dev/[!\x20-~]", "/dev/[!a]")
    assert not patterns.overlap("/dev/[!\x20-~]", "/dev/[ -~]")


def test_many_declarations_take_no_time(package):
    """A reload compares them in the loop that answers kubelet."""
    from npu_agent.backends import declared

    many = [{"resource": f"a.example/r{number}", "paths": [f"/dev/vendor-{number}/*/card-{place}*" for place in range(4)]}
            for number in range(64)]
    began = time.process_time()
    assert len(declared.devices(many)) == 64
    odd = [{"resource": f"a.example/r{number}", "paths": [f"/dev/*{'?' * 190}{number:03d}"]} for number in range(256)]
    assert len(declared.devices(odd[:100])) == 100
    slow = [{"resource": f"a.example/r{one}{other}", "paths": [f"/dev/*a*b*{'?' * 170}[{one}][{other}]"]}
            for one in "abcdefghijklmnop" for other in "abcdefghijklmnop"]
    with pytest.raises(ValueError, match="too many and too much alike"):
        declared.devices(slow)
    alike = [{"resource": f"a.example/r{number}", "paths": [f"/dev/x*{number}"]} for number in range(256)]
    with pytest.raises(ValueError, match="can match the same device") as refused:
        declared.devices(alike)
    assert len(str(refused.value)) < 1000
    assert time.process_time() - began < 20  # seconds of this process alone; without a limit it is minutes
