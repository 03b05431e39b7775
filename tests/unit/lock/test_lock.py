# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock: made from a depot and the catalog, written, read, and asked."""

import copy
import itertools

import packages
import pytest
import yaml

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _depot
from ansible_collections.npu.fleet.plugins.module_utils._packages._signature import Trust
from ansible_collections.npu.fleet.plugins.plugin_utils import _lock

BOTH = ["a2/x86_64", "a2/aarch64"]
SET = {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "8.5.0", "docker_runtime": "7.3.0"}


@pytest.fixture
def depot(tmp_path):
    packages.depot(tmp_path / "depot")
    packages.depot(tmp_path / "depot", "aarch64")
    return tmp_path / "depot"


def scan(depot):
    return _depot.scan(str(depot), _depot.Wanted(), Trust())


def make(depot, words=BOTH, release="25.5.0", versions=None, reason=""):
    return _lock.make(scan(depot), words, release, _lock.sets(words, release, versions, reason))


def refused(function, *args, **kwargs):
    with pytest.raises(FleetError) as caught:
        function(*args, **kwargs)
    return caught.value


def test_a_whole_lock(depot):
    lock = make(depot)
    assert {key: lock[key] for key in ("lock", "release", "unlisted_reason", "sets")} == {
        "lock": 1, "release": "25.5.0", "unlisted_reason": None, "sets": {"a2": SET},
    }
    # Firmware is one file for both architectures.
    assert [(package["component"], package["family"], package["arch"]) for package in lock["packages"]] == [
        ("driver", "a2", "aarch64"), ("driver", "a2", "x86_64"), ("firmware", "a2", None),
        ("cann_toolkit", None, "aarch64"), ("cann_toolkit", None, "x86_64"),
        ("cann_kernels", "a2", "aarch64"), ("cann_kernels", "a2", "x86_64"),
        ("docker_runtime", None, "aarch64"), ("docker_runtime", None, "x86_64"),
    ]
    assert all(set(package) == set(_lock._PACKAGE) for package in lock["packages"])


def test_the_same_depot_gives_the_same_bytes(depot):
    first = _lock.text(make(depot))
    for words in itertools.permutations(BOTH):
        found = scan(depot)
        found["packages"].reverse()
        assert _lock.text(_lock.make(found, list(words), "25.5.0", _lock.sets(list(words), "25.5.0", None))) == first


def test_written_and_read_it_is_the_same(depot, tmp_path):
    lock = make(depot)
    (tmp_path / "npu.lock.yml").write_text(_lock.text(lock), encoding="utf-8")
    assert _lock.read(tmp_path / "npu.lock.yml") == lock
    assert yaml.safe_load(_lock.text(lock)) == lock


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_what_a_node_gets(depot, arch):
    selected = _lock.select(make(depot), "a2", arch)
    assert selected["versions"] == SET
    assert sorted(selected["packages"]) == ["cann_kernels", "cann_toolkit", "docker_runtime", "driver", "firmware"]
    driver = selected["packages"]["driver"]
    assert driver["file"] == packages.DRIVER.replace("x86-64", arch.replace("_", "-"))
    assert driver["source"] == str(depot / driver["file"])
    assert set(driver) == {"file", "size", "sha256", "source"}


@pytest.mark.parametrize(("family", "arch", "code"), [("a3", "x86_64", "lock_family"), ("a2", "aarch64", "lock_package")])
def test_a_node_that_the_lock_is_not_for(depot, family, arch, code):
    error = refused(_lock.select, make(depot, ["a2/x86_64"]), family, arch)
    assert error.code == code
    assert f"{family}/{arch}" in error.hint


def test_single_versions(depot):
    lock = make(depot, ["a2/x86_64"], None, {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": ""})
    assert lock["sets"] == {"a2": {"driver": "25.5.0", "firmware": "7.8.0.5.216"}}
    assert [package["component"] for package in lock["packages"]] == ["driver", "firmware"]
    assert sorted(_lock.select(lock, "a2", "x86_64")["packages"]) == ["driver", "firmware"]


def test_what_the_scan_has_to_read():
    resolved = _lock.sets(["a2/x86_64", "a3/aarch64"], "25.3.RC1", None)
    assert _lock.wanted_versions(resolved) == {
        "driver": ["25.3.rc1", "25.3.rc1.2"], "firmware": ["7.8.0.2.212"], "cann_toolkit": ["8.3.RC1"], "cann_kernels": ["8.3.RC1"],
        "docker_runtime": ["7.2.RC1"],
    }


# --- compatibility ----------------------------------------------------------------------------------------------------

UNLISTED = {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "8.5.0", "docker_runtime": "26.1.0"}


def test_an_unlisted_pair_needs_a_reason(depot):
    packages.write(depot / packages.FIRMWARE.replace("7.8.0.5.216", "7.8.0.6.201"),
                   {"./firmware/version.info": "Version=7.8.0.6.201\n"}, label=packages.FIRMWARE_LABEL)
    versions = {"firmware": "7.8.0.6.201"}
    error = refused(make, depot, ["a2/x86_64"], "25.5.0", versions)
    assert error.code == "unlisted"
    assert "7.8.0.5.216" in str(error)
    error = refused(make, depot, ["a2/x86_64"], None, dict(SET, **versions), " ")
    assert "npu_fleet_allow_unlisted_reason" in error.hint
    for release, given in (("25.5.0", versions), (None, dict(SET, **versions))):
        lock = make(depot, ["a2/x86_64"], release, given, "vendor's ticket 123")
        assert lock["unlisted_reason"] == "vendor's ticket 123"
        assert lock["sets"]["a2"]["firmware"] == "7.8.0.6.201"


def test_a_reason_that_is_not_needed_is_not_recorded(depot):
    assert make(depot, reason="just in case")["unlisted_reason"] is None


def test_what_a_window_allows_needs_no_reason():
    assert _lock.sets(["a2/x86_64"], None, UNLISTED)["unlisted_reason"] is None


@pytest.mark.parametrize(("words", "release", "versions", "code"), [
    ([], "25.5.0", {}, "lock_target"),
    (["a2"], "25.5.0", {}, "lock_target"),
    (["910b/x86_64"], "25.5.0", {}, "lock_target"),
    (["a2/amd64"], "25.5.0", {}, "lock_target"),
    (["a2/x86_64"], "", {}, "release_missing"),
    (["a2/x86_64"], "25.4.0", {}, "release_unknown"),
    (["a5/x86_64"], "25.5.0", {}, "release_family"),
    (["a2/x86_64"], None, {"toolkit": "8.5.0"}, "unknown_component"),
])
def test_variables_that_can_not_be_right(words, release, versions, code):
    assert refused(_lock.sets, words, release, versions).code == code


@pytest.mark.parametrize(("text", "list_", "words"), [
    ("a2/x86_64", "[a2/x86_64]", '["a2/x86_64"]'),
    ("[a2/x86_64,a2/aarch64]", "[a2/x86_64,a2/aarch64]", '["a2/x86_64", "a2/aarch64"]'),
])
def test_targets_as_text(text, list_, words):
    error = refused(_lock.targets, text)
    assert error.message == f"npu_fleet_lock_for is text, not a list; write {list_}."
    assert f"{{\"npu_fleet_lock_for\": {words}}}" in error.hint


# --- the depot has not what is needed -------------------------------------------------------------------------------

def test_everything_that_is_missing_is_named_at_once(depot):
    (depot / packages.FIRMWARE).unlink()
    (depot / packages.OPS).unlink()
    (depot / "driver.run").write_bytes(b"x")
    error = refused(make, depot)
    assert error.code == "lock_incomplete"
    assert f"firmware 7.8.0.5.216 for a2 on x86_64 in the depot, such as {packages.FIRMWARE}" in str(error)
    assert packages.OPS in str(error)
    assert error.hint == (
        "Copy them to the depot, or take a2/aarch64 and a2/x86_64 out of npu_fleet_lock_for. "
        "Names in the depot that no rule fits: driver.run. No lock was written."
    )


def test_one_package_that_is_missing_for_one_kind_of_node(depot):
    (depot / packages.DRIVER).unlink()
    assert refused(make, depot).hint == "Copy it to the depot, or take a2/x86_64 out of npu_fleet_lock_for. No lock was written."


def test_two_candidates(depot):
    """A repacked driver beside the original: which of them is meant, only somebody can say."""
    other = packages.DRIVER.replace(".run", "-custom.run")
    packages.write(depot / other, dict(packages.DRIVER_FILES, **{"./extra": "x"}))
    error = refused(make, depot)
    assert "2 packages of driver 25.5.0 for a2 on x86_64" in str(error)
    assert packages.DRIVER in str(error)
    assert other in str(error)


def test_a_broken_package_is_no_candidate(depot):
    data = (depot / packages.DRIVER).read_bytes()
    (depot / packages.DRIVER).write_bytes(data[:-5])
    error = refused(make, depot)
    assert f"{packages.DRIVER} is cut short" in str(error)
    assert len(error.observed) == 2


def test_no_operators_are_published_for_the_310(tmp_path):
    folder = tmp_path / "depot"
    release = {"driver": "24.1.0", "firmware": "7.5.0.2.220", "cann": "8.0.0", "docker_runtime": "6.0.0"}
    packages.write(folder / "A300-3010-npu-driver_24.1.0_linux-x86_64.run", {"./driver/version.info": "Version=24.1.0\n"})
    packages.write(folder / "A300-3010-npu-firmware_7.5.0.2.220.run", {"./firmware/version.info": "Version=7.5.0.2.220\n"})
    packages.write(folder / "Ascend-cann-toolkit_8.0.0_linux-x86_64.run", {"./a": "x"})
    packages.write(folder / "Ascend-docker-runtime_6.0.0_linux-x86_64.run", {"./a": "x"})
    lock = make(folder, ["310/x86_64"], "24.1.0")
    assert lock["sets"] == {"310": release}
    assert sorted(_lock.select(lock, "310", "x86_64")["packages"]) == ["cann_toolkit", "docker_runtime", "driver", "firmware"]


# --- files that are no lock -----------------------------------------------------------------------------------------

def changed(lock, change):
    lock = copy.deepcopy(lock)
    change(lock)
    return lock


@pytest.mark.parametrize(("change", "part"), [
    (lambda lock: lock.update(lock=2), "does not begin with `lock: 1`"),
    (lambda lock: lock.pop("sets"), "sets is missing or unknown"),
    (lambda lock: lock.update(extra=1), "extra is missing or unknown"),
    (lambda lock: lock.update(packages={}), "packages a list"),
    (lambda lock: lock["sets"].update(b200={}), "the set of b200"),
    (lambda lock: lock["sets"]["a2"].update(driver=25.5), "no text in quotes"),
    (lambda lock: lock["packages"][0].pop("size"), "package 1 must have family, arch"),
    (lambda lock: lock["packages"][0].update(sha256="0"), "no checksum"),
    (lambda lock: lock["packages"][0].update(size="1"), "has '1' for size"),
    (lambda lock: lock["packages"][0].update(file="driver.run"), "package 1 is no package"),
    (lambda lock: lock["packages"][0].update(version="25.5.1"), "has another version than its name"),
    (lambda lock: lock["packages"][0].update(arch="x86_64"), "has another arch than its name"),
    (lambda lock: lock["packages"].append(lock["packages"][0]), "is there twice"),
])
def test_a_lock_that_somebody_edited(depot, tmp_path, change, part):
    path = tmp_path / "npu.lock.yml"
    path.write_text(_lock.text(changed(make(depot), change)), encoding="utf-8")
    error = refused(_lock.read, path)
    assert error.code == "lock_invalid"
    assert part in str(error)
    assert str(path) in str(error)


@pytest.mark.parametrize(("content", "code"), [
    (b"", "lock_invalid"), (b"lock: [", "lock_invalid"), (b"\xff\xfe", "lock_invalid"), (None, "lock_missing")])
def test_no_lock_at_all(tmp_path, content, code):
    path = tmp_path / "npu.lock.yml"
    if content is not None:
        path.write_bytes(content)
    assert refused(_lock.read, path).code == code


def test_a_lock_that_is_not_there_is_looked_for_somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = refused(_lock.read, "npu.lock.yml")
    assert str(error) == f"The lock npu.lock.yml is not there (looked for in {tmp_path}). Write it with `ansible-playbook npu.fleet.lock`."
    assert error.__cause__ is None
    assert refused(_lock.read, f"{tmp_path}/npu.lock.yml").message == f"The lock {tmp_path}/npu.lock.yml is not there."


def test_notes(depot):
    found = scan(depot)
    found["packages"][0]["signature"] = {"file": "x.p7s", "verified": True, "signer": "CN = x", "crl": "x.crl", "crl_age_days": 40}
    found["packages"][1]["signature"] = {"file": "y.cms", "verified": False}
    found["unknown"] = ["driver.run"]
    lines = _lock.notes(found)
    assert lines[0].endswith("signed by CN = x; x.crl is 40 days old")
    assert "y.cms was not checked" in lines[1]
    count = len(found["packages"]) - 2
    assert lines[2].startswith(f"{count} packages have no signature (.p7s, .cms) beside them: only size and SHA-256 are locked. (")
    assert found["packages"][2]["file"] in lines[2]
    assert len(lines) == 4
    assert lines[-1].startswith("driver.run: ")


def test_packages_without_a_signature_are_one_line(depot):
    found = scan(depot)
    count = len(found["packages"])
    assert _lock.notes(found) == [f"{count} packages have no signature (.p7s, .cms) beside them: only size and SHA-256 are locked."]
    del found["packages"][1:]
    assert _lock.notes(found) == ["1 package has no signature (.p7s, .cms) beside it: only size and SHA-256 are locked."]
