# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever JSON object an admin has written, in whatever layout: only our keys change, and a removal gives back the very same bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_docker as docker
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_json as places
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Wanted

PATH = "/etc/docker/daemon.json"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8)
RUNTIMES = st.dictionaries(st.sampled_from(["nvidia", "kata", "ascend2", "a.b"]), st.fixed_dictionaries({"path": TEXT}), max_size=3)


@st.composite
def objects(draw):
    """A configuration: foreign keys, perhaps runtimes and a default, in any order of keys."""
    config = draw(st.dictionaries(TEXT.filter(lambda key: key not in ("runtimes", "default-runtime")), VALUES, max_size=5))
    if draw(st.booleans()):
        config["runtimes"] = draw(RUNTIMES)
        if config["runtimes"] and draw(st.booleans()):
            config["default-runtime"] = sorted(config["runtimes"])[0]
    return dict(draw(st.permutations(list(config.items()))))


@st.composite
def documents(draw):
    """The text of a configuration in one of many layouts."""
    config = draw(objects())
    indent = draw(st.sampled_from([None, 0, 1, 2, 4, 8, "\t"]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : "), (",", ":  ")]))
    text = json.dumps(config, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    text = draw(st.sampled_from(["", "\n", "  "])) + text + draw(st.sampled_from(["", "\n", "\n\n", " \t"]))
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def wanted(**values):
    return Wanted(**{"name": "ascend", "path": "/opt/a/runtime", **values})


@given(documents(), st.booleans(), st.none() | st.lists(TEXT, max_size=3))
def test_only_our_keys_change_and_the_second_run_changes_nothing(text, set_default, args):
    before = json.loads(text)
    result = docker.edit(text.encode(), PATH, wanted(set_default=set_default, args=args), {})
    after = json.loads(result.text)
    expected = dict(before)
    expected["runtimes"] = {**before.get("runtimes", {}), "ascend": {"path": "/opt/a/runtime", "runtimeArgs": args or []}}
    if set_default:
        expected["default-runtime"] = "ascend"
    assert after == expected
    assert [key for key in after if key in before] == list(before)
    again = docker.edit(result.text.encode(), PATH, wanted(set_default=set_default, args=args), result.note)
    assert (again.changed, again.text, again.note) == (False, result.text, result.note)


@given(documents(), st.booleans())
def test_a_removal_gives_back_the_same_bytes(text, set_default):
    there = docker.edit(text.encode(), PATH, wanted(set_default=set_default), {})
    back = docker.edit(there.text.encode(), PATH, wanted(state="absent", path=None), there.note)
    assert json.loads(back.text) == json.loads(text)
    # An empty "runtimes" is the one place where the admin's white space is not kept: "{ }" comes back as "{}".
    if json.loads(text).get("runtimes") != {} and "default-runtime" not in json.loads(text):
        assert back.text == text


@given(documents())
def test_the_parser_agrees_with_the_standard_library(text):
    assert places.value_of(text, places.parse(text)) == json.loads(text)


@given(documents(), st.data())
def test_a_cut_or_doubled_text_is_refused_or_means_the_same(text, data):
    position = data.draw(st.integers(0, len(text)))
    for broken in (text[:position], text[:position] + text[position + 1 :], text[:position] + "}" + text[position:]):
        try:
            value = json.loads(broken)
        except ValueError:
            with pytest.raises(places.Malformed):
                places.parse(broken)
        else:
            try:
                assert places.value_of(broken, places.parse(broken)) == value
            except places.Malformed as error:
                # Stricter than the library on purpose: a doubled key.
                assert "twice" in error.reason
