# SPDX-License-Identifier: GPL-3.0-or-later
"""The sets that passed the gates, those that did not, and what a reader gets of them."""

import hashlib
import json
import os

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._packages import _good, _journal, _progress
from ansible_collections.npu.fleet.plugins.modules import npu_gates, npu_node_record

OLD = {"driver": "25.3.rc1", "firmware": "7.8.0.2.212"}
NEW = {"driver": "25.5.0", "firmware": "7.8.0.5.216"}
NEWER = {"driver": "25.5.2", "firmware": "7.8.0.7.220"}
DRIVER = "Ascend-hdk-910b-npu-driver_%s_linux-x86-64.run"
FIRMWARE = "Ascend-hdk-910b-npu-firmware_%s.run"


def digest(version):
    """The checksum of a package of this version, which is its own text."""
    return hashlib.sha256(version.encode()).hexdigest()


class Node:
    def __init__(self, folder):
        self.state, self.cache = str(folder / "state"), str(folder / "cache")

    def install(self, versions):
        for component, version in versions.items():
            name = (DRIVER if component == "driver" else FIRMWARE) % version
            sha256 = digest(version)
            os.makedirs(os.path.join(self.cache, sha256), exist_ok=True)
            with open(os.path.join(self.cache, sha256, name), "w") as stream:
                stream.write(version)
            _journal.remember(self.state, component, {"version": version, "file": name, "sha256": sha256})

    def promote(self, versions, **more):
        return _good.promote(self.state, versions, self.cache, **more)

    def read(self):
        return _good.read(self.state, self.cache)

    def sets(self):
        sets = [self.read()["good"][name] for name in ("current", "previous")]
        return [one and {name: package["version"] for name, package in one["components"].items()} for one in sets]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_nothing_known(node):
    assert node.read() == {"installed": {}, "good": {"current": None, "previous": None}, "failed": [], "unlisted_reason": None}
    assert not os.path.exists(node.state)
    assert _good.kept(node.state) is None


def test_promotion(node):
    node.install(OLD)
    assert node.promote(OLD)
    assert not node.promote(OLD)
    assert node.sets() == [OLD, None]
    node.install(NEW)
    assert node.promote(NEW, check_mode=True)
    assert node.sets() == [OLD, None]
    assert node.promote(dict(NEW, driver="25.5.0"))
    assert node.sets() == [NEW, OLD]
    assert not node.promote(NEW)
    assert node.sets() == [NEW, OLD]
    node.install(NEWER)
    node.promote(NEWER)
    assert node.sets() == [NEWER, NEW]
    node.install(NEW)
    node.promote(NEW)
    assert node.sets() == [NEW, NEWER]


def test_shape(node):
    node.install(NEW)
    node.promote(NEW)
    found = node.read()
    assert sorted(found) == ["failed", "good", "installed", "unlisted_reason"]
    assert sorted(found["installed"]["driver"]) == ["boot_id", "file", "sha256", "time", "version"]
    current = found["good"]["current"]
    assert sorted(current) == ["components", "time"]
    assert current["components"]["driver"] == {
        "version": "25.5.0", "file": DRIVER % "25.5.0", "sha256": digest("25.5.0"), "cached": True,
    }  # fmt: skip
    os.unlink(os.path.join(node.cache, digest("25.5.0"), DRIVER % "25.5.0"))
    assert node.read()["good"]["current"]["components"]["driver"]["cached"] is False
    json.dumps(found)


@pytest.mark.parametrize(("passes", "still"), [
    ({**NEW, "cann_toolkit": "8.5.0"}, [OLD]), (NEW, [OLD]), ({"driver": "25.5.0"}, [NEW, OLD]), ({**NEW, "driver": "25.5.2"}, [NEW, OLD]),
], ids=["with CANN", "itself", "only its driver", "another driver"])
def test_what_passes_has_not_failed(node, passes, still):
    for versions in (NEW, OLD):
        _good.mark_failed(node.state, versions, "no answer")
    node.promote(passes)
    assert [one["components"] for one in node.read()["failed"]] == still


@pytest.mark.parametrize("text", ["25.5", "25.5.1", ""], ids=["truncated", "altered", "empty"])
def test_a_damaged_package_is_no_way_back(node, text):
    node.install(NEW)
    node.promote(NEW)
    with open(os.path.join(node.cache, digest("25.5.0"), DRIVER % "25.5.0"), "w") as stream:
        stream.write(text)
    packages = node.read()["good"]["current"]["components"]
    assert {name: package["cached"] for name, package in packages.items()} == {"driver": False, "firmware": True}


def test_a_lost_record_is_made_up_from_the_cache(node):
    node.install(NEW)
    os.unlink(os.path.join(node.state, "installed.json"))
    node.promote(NEW)
    packages = node.read()["good"]["current"]["components"]
    assert {name: package["sha256"] for name, package in packages.items()} == {name: digest(v) for name, v in NEW.items()}


def test_a_package_that_nobody_knows(node):
    node.promote(NEW)
    assert node.read()["good"]["current"]["components"]["driver"] == {"version": "25.5.0", "file": None, "sha256": None, "cached": False}
    node.install(NEW)
    # now it is known
    assert node.promote(NEW)
    assert node.read()["good"]["current"]["components"]["driver"]["cached"]


def test_what_stays_in_the_cache(node):
    node.install(OLD)
    node.promote(OLD)
    node.install(NEW)
    node.promote(NEW)
    node.install(NEWER)
    assert _good.kept(node.state) == {digest(version) for one in (OLD, NEW, NEWER) for version in one.values()}


def test_failed_sets(node):
    assert not _good.clear_failed(node.state)
    assert _good.mark_failed(node.state, NEW, "L1 driver: no answer")
    assert not _good.mark_failed(node.state, NEW, "L1 driver: no answer")
    assert _good.mark_failed(node.state, NEW, "L1 firmware")
    assert _good.mark_failed(node.state, NEWER, "x", check_mode=True)
    assert [(one["components"], one["reason"]) for one in node.read()["failed"]] == [(NEW, "L1 firmware")]
    _good.mark_failed(node.state, NEWER, "y")
    assert _good.clear_failed(node.state, NEW)
    assert [one["components"] for one in node.read()["failed"]] == [NEWER]
    # what passes the gates has not failed
    node.promote(NEWER)
    assert node.read()["failed"] == []


def test_failed_sets_do_not_grow_for_ever(node):
    for number in range(30):
        _good.mark_failed(node.state, {"driver": f"25.0.{number}"}, "x")
    assert len(node.read()["failed"]) == 20
    assert node.read()["failed"][-1]["components"] == {"driver": "25.0.29"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"good": 1, "failed": {}}', '{"good": {"current": null}}'])
def test_a_broken_file_is_an_empty_one(node, text):
    os.makedirs(node.state)
    with open(os.path.join(node.state, "sets.json"), "w") as stream:
        stream.write(text)
    assert node.read()["good"] == {"current": None, "previous": None}
    node.install(NEW)
    node.promote(NEW)
    assert node.sets() == [NEW, None]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", []),
        ("[Driver] [2026-11-29 14:55:01] [INFO]Start time: x\n[Driver] [2026-11-29 14:55:19] [INFO]upgradePercentage:10%\n"
         "[Driver] [2026-11-29 14:56:01] [INFO]upgradePercentage:100%\n", [(10, 18), (100, 60)]),
        ("upgradePercentage:40%\n", [(40, None)]),
        ("[Driver] [2026-99-29 14:55:01] [INFO]upgradePercentage:40%\n", [(40, None)]),
        ("upgradePercentage:\n", []),
    ],
)
def test_progress(log, expected):
    assert _progress.parse(log) == [{"percent": percent, "seconds": seconds} for percent, seconds in expected]


# --- the modules around it ------------------------------------------------------------------------------------------

PASSED = {"passed": True, "gates": [{"gate": "L0"}, {"gate": "L1"}]}


@pytest.mark.parametrize(
    ("changes", "answer", "recorded"),
    [
        ({}, PASSED, True),
        ({"record": False}, PASSED, False),
        ({}, dict(PASSED, passed=False), False),
        # gates that say nothing of versions prove none
        ({}, {"passed": True, "gates": [{"gate": "L0"}, {"gate": "L3"}]}, False),
        ({"versions": {}}, PASSED, False),
    ],
)
def test_only_what_passed_every_gate_is_promoted(tmp_path, changes, answer, recorded):
    params = dict({"record": True, "versions": NEW, "root": str(tmp_path), "cache_dir": "/var/cache/npu-fleet"}, **changes)
    state = str(tmp_path / "var/lib/npu-fleet")
    assert npu_gates.promote(params, answer, True) is recorded
    assert not os.path.exists(state)
    assert npu_gates.promote(params, answer, False) is recorded
    assert bool(_good.read(state)["good"]["current"]) is recorded
    assert npu_gates.promote(params, answer, False) is False


def test_mark_and_clear(tmp_path):
    state = str(tmp_path)
    mark = {"action": "mark_failed", "components": NEW, "reason": "L1"}
    assert npu_node_record.change(mark, True, state)
    assert npu_node_record.change(mark, False, state)
    assert not npu_node_record.change(mark, False, state)
    assert not npu_node_record.change({"action": "clear_failed", "components": OLD}, False, state)
    assert npu_node_record.change({"action": "clear_failed", "components": None}, False, state)
    assert _good.read(state)["failed"] == []


def test_what_a_cut_run_installed_is_recorded_by_the_gates(node):
    """A plan has nothing to do for it, so no package module is called that could record it."""
    node.install(OLD)
    node.promote(OLD)
    _journal.note(node.state, "launched", component="driver", version="25.5.0", file=DRIVER % "25.5.0", sha256="5" * 64)
    _journal.remember(node.state, "firmware", {"version": "7.8.0.5.216", "file": "x", "sha256": "6" * 64})
    os.makedirs(os.path.join(node.cache, "work", "unpacked"))
    assert node.promote(NEW, check_mode=True)
    assert _journal.installed(node.state)["driver"]["version"] == "25.3.rc1"
    assert node.promote(NEW)
    assert _journal.installed(node.state)["driver"]["sha256"] == "5" * 64
    assert node.read()["good"]["current"]["components"]["driver"]["sha256"] == "5" * 64
    assert not os.path.exists(os.path.join(node.cache, "work"))
    assert not node.promote(NEW)


def test_the_unpacked_package_of_a_run_at_work_stays(node):
    os.makedirs(os.path.join(node.cache, "work", "unpacked"))
    with _journal.HostLock(node.state, "driver"):
        node.promote(NEW)
    assert os.path.exists(os.path.join(node.cache, "work", "unpacked"))
