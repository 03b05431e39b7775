# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders of users beside the collection's own catalog."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _catalog

ROW = """
releases:
  - release: "26.1.0"
    date: "2026-09"
    sources: ["version.info of our firmware package"]
    cann: ["9.1.0"]
    docker_runtime: ["26.1.0"]
    sets:
      - {families: [a2], driver: ["26.1.0"], firmware: ["9.1.0.1.220"]}
"""


def folder(tmp_path, text, name="site.yml"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path)


def test_a_folder_s_row_takes_the_place_of_ours(tmp_path):
    catalog = _catalog.load([folder(tmp_path, ROW)])
    assert _catalog.resolve(catalog, "a2", "26.1.0")["firmware"] == "9.1.0.1.220"
    assert _catalog.judge(catalog, "a2", {"driver": "26.1.0"})["sources"] == ["version.info of our firmware package"]
    with pytest.raises(FleetError):
        _catalog.resolve(catalog, "a3", "26.1.0")
    assert _catalog.resolve(catalog, "a2", "25.5.0")["cann"] == "8.5.0"
    with pytest.raises(FleetError):
        _catalog.resolve(_catalog.load(), "a2", "26.1.0")


def test_a_folder_s_window_is_added(tmp_path):
    window = '{windows: [{of: {cann: ["9.1.x"]}, with: {driver: ["25.5.2"]}, families: [a2], date: "2026-09", sources: ["our tests"]}]}'
    catalog = _catalog.load(folder(tmp_path, window))
    versions = {"driver": "25.5.2", "cann": "9.1.0"}
    assert _catalog.judge(catalog, "a2", versions) == {"verdict": "allowed", "release": None, "problems": [], "sources": ["our tests"]}
    assert _catalog.judge(catalog, "310p", versions)["verdict"] == "unlisted"


def test_loading_is_done_once(tmp_path):
    assert _catalog.load([folder(tmp_path, ROW)]) is _catalog.load([str(tmp_path)])


@pytest.mark.parametrize(("text", "part"), [
    ("releases: [", "site.yml can not be read"),
    ("- a", "must be a mapping"),
    ("release: []", "unknown key release"),
    (ROW.replace("date:", "dat:"), "release 26.1.0 does not say its date"),
    (ROW.replace('["version.info of our firmware package"]', "[]"), "release 26.1.0 does not say its sources"),
    (ROW.replace("[a2]", "[910b]"), "release 26.1.0, set 1 names the families 910b"),
    (ROW.replace('["26.1.0"], firmware', "[26.1], firmware"), "has 26.1 in driver, which is no version in quotes"),
    (ROW.replace('["26.1.0"], firmware', '["latest"], firmware'), "'latest' in driver"),
    (ROW.replace('["26.1.0"], firmware', '[{file: "6.0.0", shown: 22.0}], firmware'), "in driver, which is no version"),
    (ROW.replace("firmware:", "firmwares:"), "unknown key firmwares"),
    (ROW + ROW.replace("\nreleases:", ""), "has release 26.1.0, which another row"),
    ('windows: [{of: {}, with: {driver: ["25.5.2"]}, date: ~, sources: [x]}]', "windows, row 1, of names no version"),
])
def test_a_bad_file_is_named_with_its_place(tmp_path, text, part):
    with pytest.raises(FleetError) as caught:
        _catalog.load([folder(tmp_path, text)])
    assert caught.value.code == "catalog_invalid"
    assert part in str(caught.value)
    assert str(tmp_path / "site.yml") in str(caught.value)


def test_a_folder_without_files(tmp_path):
    with pytest.raises(FleetError) as caught:
        _catalog.load([str(tmp_path / "nowhere")])
    assert caught.value.code == "catalog_missing"


@pytest.mark.parametrize(("text", "place"), [
    ("sources: [a]", "needs sources as a mapping"),
    ("releases: 5", "needs releases as a list"),
    ("windows: {of: x}", "needs windows as a list"),
    ("releases: [{release: '9', date: d, sources: [s], sets: 5}]", "release 9 needs sets as a list"),
    ("releases: [{release: '9', date: 2024-13-45, sources: [s], sets: []}]", "month must be"),
    ("releases: [{release: '9', release: '8', date: d, sources: [s], sets: []}]", "release is there twice"),
    ("supported_systems: {date: d, sources: [s], families: [a2]}", "needs families as a mapping"),
    ("supported_systems: {date: d, sources: [s], families: {a2: [myos]}}", 'such as "ubuntu 22.04 x86_64"'),
    ("supported_systems: {date: d, sources: [s], families: {a2: ubuntu 22.04}}", 'such as "ubuntu 22.04 x86_64"'),
    ("supported_systems: {date: d, sources: [s], families: {910: [ubuntu 22.04]}}", "names the family 910"),
    ("least_versions: [{families: [a2], products: [P], os: [ubuntu], driver: '1', date: d, sources: [s]}]", 'such as "ubuntu'),
    ("least_versions: [{families: [a2], products: [P], os: [ubuntu 22.04], driver: new, date: d, sources: [s]}]", "'new' for driver"),
    ("hw_base_versions: [{families: [a2], least_driver: [1], date: d, sources: [s]}]", "needs least_driver as a mapping"),
    ("hw_base_versions: [{families: [a2], least_driver: {1: new}, date: d, sources: [s]}]", "'new' for 1"),
])
def test_a_form_that_is_wrong_is_an_error_when_it_is_read(tmp_path, text, place):
    """Not a traceback, and not only on the first node whose system or board meets it."""
    with pytest.raises(FleetError) as caught:
        _catalog.load(folder(tmp_path, text))
    assert (caught.value.code, place in str(caught.value)) == ("catalog_invalid", True), str(caught.value)


def test_a_row_takes_the_place_of_ours_in_any_spelling(tmp_path):
    row = ROW.replace('"26.1.0"\n    date', '"25.0.rc1"\n    date')
    catalog = _catalog.load(folder(tmp_path, row))
    assert _catalog.resolve(catalog, "a2", "25.0.RC1")["driver"] == "26.1.0"


def test_a_folder_below_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder(tmp_path, ROW)
    assert "26.1.0" in {entry.release for entry in _catalog.load("~").sets if entry.sources == ("version.info of our firmware package",)}
