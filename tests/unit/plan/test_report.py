# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of a fleet as a report: each status, the table, the page, and the file that a run takes as its ceiling."""

import json
from html.parser import HTMLParser

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _plan, _report, _report_page

from .observed import bare, component, converged
from .test_plan import READY

EVIL = '<script>alert("x")</script> & "quoted" \'single\''
MADE = "2026-01-01T00:00:00Z"


def fleet():
    """One node of each status."""
    refused, plain = converged(), bare()
    refused["components"]["driver"] = component("26.0.rc1", running="26.0.rc1")
    refused["product"] = EVIL
    plain.update(present=False, chips=[])
    observed = {"e-plain": plain, "d-same": converged(), "c-new": bare(), "b-refused": refused, "a-away": None, "f-failed": None}
    plans = {name: _plan.make_plan(npu, READY) if npu and npu["present"] else None for name, npu in observed.items()}
    names = list(observed)
    errors = [EVIL if name == "f-failed" else None for name in names]
    away = [name == "a-away" for name in names]
    return _report.report(names, list(observed.values()), list(plans.values()), errors, away, made=MADE)


def test_each_node_has_its_status():
    whole = fleet()
    assert {name: one["status"] for name, one in whole["nodes"].items()} == {
        "a-away": "unreachable", "b-refused": "refused", "c-new": "planned", "d-same": "unchanged", "e-plain": "no_npu",
        "f-failed": "failed",
    }
    counted = {"unreachable": 1, "failed": 1, "refused": 1, "planned": 1, "unchanged": 1, "no_npu": 1, "reboots": 1}
    assert (whole["summary"], whole["made"]) == (counted, MADE)


def test_a_node_that_only_waits_for_its_reboot_is_planned():
    npu = converged()
    npu.update(reboot_required=True)
    assert _report.entry(npu, _plan.make_plan(npu, READY))["status"] == "planned"


def test_the_table_has_every_node_those_that_need_somebody_first():
    lines = _report.table(fleet())
    heads = [line.split()[0] for line in lines if line[0] != " "][:-1]
    assert heads == ["a-away", "f-failed", "b-refused", "c-new", "d-same", "e-plain"]
    text = "\n".join(lines)
    for part in ("driver         install    - -> 25.5.0", "driver         none       25.5.0 -> 25.5.0", "No NPU", "26.0.rc1 is installed"):
        assert part in text
    assert lines[-1].startswith("6 node(s): 1 unreachable, 1 failed, 1 refused, 1 planned")


def test_the_table_of_a_node_is_what_a_run_shows():
    plan = _plan.make_plan(bare(), READY)
    shown = "\n".join(_report.table(fleet()))
    for line in _plan.render(plan):
        assert line in shown


class Page(HTMLParser):
    """Open tags, those left open, and what would be fetched from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.wrong = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_page_is_whole_and_fetches_nothing():
    text = _report_page.page(fleet())
    page = Page(text)
    assert (page.open, page.wrong) == ([], [])
    assert "script" not in page.tags
    assert page.links
    assert all(link.startswith("#") for link in page.links)
    assert "url(" not in text
    assert "@import" not in text


def test_every_text_on_the_page_is_escaped():
    text = _report_page.page(fleet())
    assert EVIL not in text
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(&quot;x&quot;)") >= 3  # product twice, error once


def test_the_page_shows_what_an_operator_approves():
    text = _report_page.page(fleet())
    for part in ("26.0.rc1 is installed", "Time: about", "npu_fleet_allow_downgrade", "Way back", "cann_kernels", "@media print"):
        assert part in text


def test_a_bare_node_has_nothing_to_go_back_to():
    plan = _plan.make_plan(bare(), READY)
    whole = _report.report(["n"], [bare()], [plan], [None], [False], made=MADE)
    assert "Way back: nothing is installed yet" in _report_page.page(whole)
    plan["components"][0]["from"] = "25.2.0"
    assert "Way back: its packages lie on the node" in _report_page.page(whole)


def test_the_report_survives_its_file_and_is_a_ceiling(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(fleet()))
    whole = _report.read(str(path))
    ceilings = {name: _report.approved(whole, name) for name in [*whole["nodes"], "not-in-it"]}
    assert len(ceilings["c-new"]["packages"]) == 5
    for name in ("a-away", "b-refused", "d-same", "e-plain", "f-failed", "not-in-it"):
        assert ceilings[name]["packages"] == [], name
    assert _plan.make_plan(bare(), dict(READY, ceiling=ceilings["c-new"]))["refused"] == []
    refused = _plan.make_plan(bare(), dict(READY, ceiling=ceilings["not-in-it"]))["refused"]
    assert {one["code"] for one in refused} == {"beyond_approved"}
    assert _plan.make_plan(converged(), dict(READY, ceiling=ceilings["not-in-it"]))["refused"] == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "nodes": {}}', '{"format": 1}'])
def test_what_is_no_plan_is_said_with_its_path(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(FleetError, match=r"plan\.json is no plan that npu\.fleet\.plan wrote"):
        _report.read(path)


def test_a_plan_that_is_not_there():
    with pytest.raises(FleetError) as caught:
        _report.read("nope.json")
    assert caught.value.message == "nope.json is not there."
    assert "`ansible-playbook npu.fleet.plan`" in caught.value.hint


@pytest.mark.parametrize(("verdict", "release", "line"), [
    ("matched", "25.5.0", "Versions: as in release 25.5.0 of the catalog."),
    ("allowed", "25.5.0", "Versions: release 25.5.0, no row of the catalog, but allowed together by it."),
    ("unlisted", None, "Versions: not listed together in the catalog."),
    (None, "25.5.0", "Versions: release 25.5.0, not judged by the catalog."),
])
def test_what_the_catalog_says_of_the_versions(verdict, release, line):
    plan = dict(_plan.make_plan(bare(), READY), verdict=verdict, release=release)
    whole = _report.report(["n"], [bare()], [plan], [None], [False], made=MADE)
    assert f"<p>{line}</p>" in _report_page.page(whole)


@pytest.mark.parametrize("one", [
    "x", [], None, {"status": "planned"}, {"status": "planned", "plan": None}, {"status": "unchanged", "plan": {}},
    {"status": "planned", "plan": {"packages": None, "engine": {"action": "none"}, "reboot_expected": False}},
    {"status": "planned", "plan": {"packages": [{}], "engine": {"action": "none"}, "reboot_expected": False}},
    {"status": "planned", "plan": {"packages": [], "engine": None, "reboot_expected": False}},
    {"status": "planned", "plan": {"packages": [], "engine": {"action": "none"}, "reboot_expected": None}},
])
def test_a_plan_that_somebody_edited_is_no_ceiling(one):
    """Above all it is not the same as none, which would allow everything."""
    with pytest.raises(FleetError) as caught:
        _report.approved({"format": 1, "nodes": {"n1": one}}, "n1")
    assert caught.value.code == "plan_unreadable"


def test_brackets_without_an_end_are_no_plan(tmp_path):
    (tmp_path / "plan.json").write_text("[" * 100000)
    with pytest.raises(FleetError):
        _report.read(tmp_path / "plan.json")
