# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of vendor versions, against tests/vectors/versions.yaml."""

import itertools
import random
from pathlib import Path

import pytest
import yaml

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _versions

VECTORS = yaml.safe_load((Path(__file__).parents[2] / "vectors" / "versions.yaml").read_text(encoding="utf-8"))
LISTS = {name: entry["versions"] for name, entry in VECTORS["ascending"].items()}
NEIGHBOURS = [(one, other) for versions in LISTS.values() for one, other in itertools.pairwise(versions)]


def test_the_vectors_are_whole():
    assert {name: len(versions) for name, versions in LISTS.items()} == {"hdk_driver": 51, "cann": 42, "mindcluster": 27, "firmware": 29}


@pytest.mark.parametrize(("older", "newer"), NEIGHBOURS)
def test_neighbours(older, newer):
    assert _versions.compare(older, newer) == -1
    assert _versions.compare(newer, older) == 1
    assert _versions.compare(older, older) == 0


@pytest.mark.parametrize("name", LISTS)
def test_order_is_total(name):
    versions = LISTS[name]
    for (low, one), (high, other) in itertools.combinations(enumerate(versions), 2):
        assert (_versions.compare(one, other), low < high) == (-1, True), (one, other)
    shuffled = list(versions)
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled, key=_versions.key) == versions


@pytest.mark.parametrize(("left", "right"), [*VECTORS["equal"]["pairs"], (" 25.5.0\n", "25.5.0"), ("8.0.RC3-beta1", "8.0.rc3.beta.1")])
def test_equal(left, right):
    assert _versions.compare(left, right) == 0
    assert _versions.key(left) == _versions.key(right)
    assert _versions.same(left, right)


@pytest.mark.parametrize("text", ["", " ", ".", "latest", "rc1", "25.5.x", "25.5.0-custom", "v", "25.5.0 ; rm", None, 25, "25.5.1a"])
def test_no_version(text):
    with pytest.raises(FleetError) as caught:
        _versions.parse(text)
    assert caught.value.code == "version_unknown"
    assert not _versions.same(text, "25.5.0")
    assert not _versions.same(text, text)
