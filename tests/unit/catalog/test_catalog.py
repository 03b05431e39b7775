# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalog's data against tests/vectors/releases.yaml, its judgement against pairs.yaml."""

import itertools
from pathlib import Path

import pytest
import yaml

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES
from ansible_collections.npu.fleet.plugins.module_utils._packages._names import CHIP_FAMILY
from ansible_collections.npu.fleet.plugins.plugin_utils import _catalog

FOLDER = Path(__file__).parents[2] / "vectors"
VECTORS = yaml.safe_load((FOLDER / "releases.yaml").read_text(encoding="utf-8"))
PAIRS = yaml.safe_load((FOLDER / "pairs.yaml").read_text(encoding="utf-8"))
ROWS = [(row, chip) for row in VECTORS["rows"] for chip in row["chips"]]
CATALOG = _catalog.load()


def of_chip(values, chip):
    return values.get(chip, values.get("all"))


def family_of(chip):
    return CHIP_FAMILY[chip.lower()]


def test_the_vectors_are_whole():
    """29 rows, of which one is written as two; 10 pairs that belong together and 20 that do not."""
    assert len({row["hdk"] for row in VECTORS["rows"]}) == 29
    assert (len(PAIRS["listed"]), len(PAIRS["not_listed"])) == (10, 20)


@pytest.mark.parametrize(("row", "chip"), ROWS, ids=lambda value: value if isinstance(value, str) else value["hdk"])
def test_each_row_is_matched(row, chip):
    firmware = of_chip(row["firmware"], chip) or {}
    for driver in of_chip(row["driver"], chip):
        for cann, runtime in itertools.product(row["cann"] or [None], row["mindcluster"] or [None]):
            versions = {"driver": driver, "firmware": firmware.get(driver), "cann": cann, "docker_runtime": runtime}
            answer = _catalog.judge(CATALOG, family_of(chip), versions)
            assert (answer["verdict"], answer["release"], answer["problems"]) == ("matched", row["hdk"], []), versions
            assert answer["sources"]


# Of these the sources name driver and firmware beside a row, without CANN or runtime.
BESIDE = {("910", "23.0.0"), ("a2", "25.2.3")}


def test_the_catalog_has_nothing_that_no_source_has():
    """The other way round: every driver, firmware and family of the catalog stands in the vectors, under the same release."""
    said = {(family_of(chip), row["hdk"], driver, (of_chip(row["firmware"], chip) or {}).get(driver))
            for row, chip in ROWS for driver in of_chip(row["driver"], chip)}
    for entry in CATALOG.sets:
        for family, driver in itertools.product(entry.families, entry.versions["driver"]):
            if (family, driver.text) in BESIDE:
                assert not (entry.versions["cann"] or entry.versions["docker_runtime"])
                continue
            found = {firmware for key, hdk, version, firmware in said if (key, hdk, version) == (family, entry.release, driver.text)}
            assert found, (family, entry.release, driver)
            (firmware,) = found
            listed = entry.versions["firmware"]
            assert any(version.fits(firmware) for version in listed) if firmware else not listed


@pytest.mark.parametrize(("row", "chip"), ROWS, ids=lambda value: value if isinstance(value, str) else value["hdk"])
def test_dates_are_those_of_the_sources(row, chip):
    dates = {entry.date for entry in CATALOG.sets if entry.release == row["hdk"] and family_of(chip) in entry.families}
    assert dates == {row["date"]}


def test_every_row_has_a_source_that_is_described():
    described = yaml.safe_load((Path(_catalog.__file__).parent / "catalog" / "sources.yml").read_text(encoding="utf-8"))["sources"]
    entries = [*(entry.sources for entry in CATALOG.sets), *(entry.sources for entry in CATALOG.windows),
               *(entry["sources"] for entry in (*CATALOG.least_versions, *CATALOG.bad_kernels)), CATALOG.systems_sources]
    assert all(sources and set(sources) <= set(described.values()) for sources in entries)


@pytest.mark.parametrize(("runtime", "cann"), VECTORS["mindcluster_to_cann"].items())
def test_mindcluster_and_its_cann(runtime, cann):
    assert _catalog.judge(CATALOG, None, {"cann": cann, "docker_runtime": runtime})["verdict"] == "matched"


@pytest.mark.parametrize("case", PAIRS["listed"], ids=lambda case: case["why"])
def test_listed_pairs(case):
    answer = _catalog.judge(CATALOG, case["family"], case["versions"])
    assert (answer["verdict"], answer["release"], answer["problems"]) == (case["verdict"], case["release"], [])


@pytest.mark.parametrize("case", PAIRS["not_listed"], ids=lambda case: case["why"])
def test_pairs_that_are_not_listed(case):
    answer = _catalog.judge(CATALOG, case["family"], case["versions"])
    assert (answer["verdict"], answer["release"]) == ("unlisted", None)
    found = [[problem["left"][0], problem["right"][0]] for problem in answer["problems"]]
    assert case["bad"] in found
    for problem in answer["problems"]:
        assert problem["left"][1] in problem["message"]
        assert all(any(text in problem["message"] for text in [word, "newest"]) for word in problem["allowed"])


def test_an_unlisted_pair_names_the_row_and_what_it_allows():
    problem = _catalog.judge(CATALOG, "a2", {"driver": "25.5.0", "cann": "9.0.0"})["problems"][0]
    assert (problem["row"], problem["allowed"]) == ("25.5.0", ["8.5.0"])
    assert problem["message"] == (
        "driver 25.5.0 and cann 9.0.0 are not listed together for family a2: row 25.5.0 (2026-01) allows cann 8.5.0 with driver 25.5.0."
    )


def test_an_unlisted_pair_names_what_windows_allow():
    problem = _catalog.judge(CATALOG, "a2", {"driver": "24.1.rc2", "cann": "8.5.0"})["problems"][0]
    assert problem["allowed"] == ["8.0.RC2", "8.0.RC3", "8.0.0", "8.1.RC1"]


@pytest.mark.parametrize(("versions", "code"), [({"toolkit": "8.5.0"}, "unknown_component"), ({"driver": "newest"}, "version_unknown")])
def test_what_can_not_be_judged(versions, code):
    with pytest.raises(FleetError) as caught:
        _catalog.judge(CATALOG, "a2", versions)
    assert caught.value.code == code


def test_nothing_to_judge():
    assert _catalog.judge(CATALOG, "a2", {"driver": None, "cann": ""})["verdict"] == "matched"
    with pytest.raises(FleetError):
        _catalog.judge(CATALOG, "910b", {"driver": "25.5.0"})


# --- resolve ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("family", "release", "given", "expected"), [
    ("a2", "25.5.0", {}, ("25.5.0", "7.8.0.5.216", "8.5.0", "7.3.0")),
    ("a2", "24.1.rc2", {}, ("24.1.rc2", "7.3.0.1.231", "8.0.RC2", "6.0.RC2")),
    ("a3", "25.0.RC1", {}, ("25.0.rc1.3", "7.7.0.3.228", "8.1.RC1", "7.0.RC1")),
    ("a3", "25.0.RC1", {"driver": "25.0.rc1"}, ("25.0.rc1", "7.7.0.1.231", "8.1.RC1", "7.0.RC1")),
    ("a2", None, {"driver": "25.5.2", "cann": "9.0.0"}, ("25.5.2", "7.8.0.7.220", "9.0.0", "7.3.2")),
    ("310", None, {"driver": "22.0.4"}, ("6.0.0", "1.84.15.1.310", "6.0.1", "3.0.0")),
    ("310", None, {"driver": "6.0.0"}, ("6.0.0", "1.84.15.1.310", "6.0.1", "3.0.0")),
    (None, "24.1.0", {}, ("24.1.0", "7.5.0.2.220", "8.0.0", "6.0.0")),
    ("a2", "25.5.1", {"docker_runtime": "7.3.2"}, ("25.5.1", "7.8.0.6.201", "8.5.0", "7.3.2")),
    # Not in row 25.5.0, but MindCluster 26.0.0 takes HDK 25.5.x and CANN 8.5.x.
    ("a2", "25.5.0", {"docker_runtime": "26.0.0"}, ("25.5.0", "7.8.0.5.216", "8.5.0", "26.0.0")),
    ("a2", None, {"driver": "25.5.0", "docker_runtime": "26.0.0"}, ("25.5.0", "7.8.0.5.216", "8.5.0", "26.0.0")),
])
def test_resolve(family, release, given, expected):
    found = _catalog.resolve(CATALOG, family, release, **given)
    assert tuple(found[component] for component in _catalog.COMPONENTS) == expected


@pytest.mark.parametrize(("family", "release", "given", "code", "parts"), [
    ("a2", "25.4.0", {}, "release_unknown", ["25.4.0", "25.5.0, 25.5.1, 25.5.2"]),
    ("a5", "25.5.0", {}, "release_family", ["310p, 910, a2, a3", "25.1.RC1, 25.6.RC1"]),
    ("a2", "26.1.0", {}, "release_incomplete", ["26.1.0", "no firmware"]),
    ("a2", "25.5.1", {}, "release_incomplete", ["docker_runtime only as 7.3.x"]),
    ("a2", None, {"cann": "8.5.0"}, "release_ambiguous", ["25.5.0, 25.5.1"]),
    ("a2", None, {"driver": "25.5.0", "cann": "9.1.0"}, "unlisted", ["row 25.5.0", "allows cann 8.5.0"]),
    ("a2", "25.5.0", {"cann": "9.1.0"}, "unlisted", ["row 25.5.0", "8.5.0"]),
    ("a2", "25.5.0", {"driver": "25.5.1"}, "unlisted", ["25.5.1", "7.8.0.6.201"]),
    ("a2", None, {"cann": "8.9.0"}, "unlisted", ["cann 8.9.0 is in no row", "9.1.0"]),
    ("a2", None, {}, "release_missing", ["25.5.0"]),
    (None, "25.0.RC1", {}, "family_missing", ["310p, 310b, 910, a2, a3"]),
    (None, "26.0.RC1", {}, "family_missing", ["310p, 910, a2, a3"]),
    (None, None, {"cann": "8.9.0"}, "unlisted", ["cann 8.9.0 is in no row"]),
])
def test_what_can_not_be_resolved(family, release, given, code, parts):
    with pytest.raises(FleetError) as caught:
        _catalog.resolve(CATALOG, family, release, **given)
    assert caught.value.code == code
    assert [part for part in parts if part not in str(caught.value)] == []
    assert caught.value.hint


def test_an_unlisted_version_goes_in_with_the_caller_s_word():
    found = _catalog.resolve(CATALOG, "a2", "25.5.0", allow_unlisted=True, cann="9.1.0")
    assert found == {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "9.1.0", "docker_runtime": "7.3.0"}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_resolved_is_matched(family):
    for release in _catalog.releases(CATALOG, family):
        try:
            found = _catalog.resolve(CATALOG, family, release)
        except FleetError as error:
            assert error.code == "release_incomplete"
        else:
            assert _catalog.judge(CATALOG, family, found)["release"] == release


@pytest.mark.parametrize(("versions", "verdict"), [
    ({"docker_runtime": "7.3.0", "driver": "25.5"}, "unlisted"), ({"docker_runtime": "7.3.0", "cann": "8.5"}, "unlisted"),
    ({"docker_runtime": "7.3.0", "driver": "25.5.1"}, "matched"), ({"docker_runtime": "26.0.0", "driver": "26.0.rc1"}, "matched"),
    ({"docker_runtime": "26.0.0", "driver": "26.0.rc1.2"}, "allowed"),
])
def test_the_beginning_of_a_version_is_no_version(versions, verdict):
    """A row for 25.5.x has no 25.5, as YAML writes a number that somebody meant as 25.5.0."""
    assert _catalog.judge(_catalog.load(), "a2", versions)["verdict"] == verdict
