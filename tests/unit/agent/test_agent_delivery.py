# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's files on a node: whole or not at all, one version back, nothing from outside the archive."""

import gzip
import hashlib
import io
import os
import shutil
import sys
import tarfile

import pytest
from delivery_rig import local_run

from ansible_collections.npu.fleet.plugins.module_utils import _agent, _agent_files
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive


def install(home, archive, check=False, **changes):
    values = {"src": archive.path, "version": archive.version, "sha256": archive.sha256, **changes}
    return _agent_files.install(str(home), values.pop("src"), values.pop("version"), values.pop("sha256"),
                                python=changes.get("python", sys.executable), run=local_run, check_mode=check)


def variant(archive, folder, change):
    """The same archive with one more file in it: another version of the agent."""
    files = {}
    with tarfile.open(archive.path) as members:
        for member in members:
            if member.isfile():
                files[member.name] = members.extractfile(member).read()
    files[f"npu_agent/{change}.txt"] = change.encode()
    return _agent_archive.write_archive(files, change, "test", folder, folder / f"{change}.json")


def test_install_is_whole_and_readable(archive, tmp_path):
    home, old = tmp_path / "home", os.umask(0o077)
    try:
        result = install(home, archive)
    finally:
        os.umask(old)
    assert result["changed"] and result["removed"] == [] and result["after"] == {"current": archive.folder, "versions": [archive.folder]}
    assert os.readlink(home / "current") == archive.folder
    for path, folders, files in os.walk(home):
        for name in folders:
            assert os.stat(os.path.join(path, name)).st_mode & 0o755 == 0o755
        for name in files:
            assert os.stat(os.path.join(path, name)).st_mode & 0o444 == 0o444
    assert list((home / "current/npu_agent/__pycache__").glob("serve.*.pyc"))
    assert _agent.read_marker(str(home / "current")) == {"version": archive.version, "sha256": archive.sha256}
    assert install(home, archive)["changed"] is False


def test_upgrade_keeps_one_version_back(archive, tmp_path):
    home = tmp_path / "home"
    versions = [archive] + [variant(archive, tmp_path, name) for name in ("0.2.0", "0.3.0")]
    for version in versions[:2]:
        install(home, version)
    assert sorted(os.listdir(home)) == sorted(["current", archive.folder, versions[1].folder])
    (home / ".new-rest").mkdir()  # what an interrupted run left
    result = install(home, versions[2])
    assert result["removed"] == sorted([archive.folder, ".new-rest"])
    assert sorted(os.listdir(home)) == sorted(["current", versions[1].folder, versions[2].folder])
    back = install(home, versions[1], src=None)  # it is still there: nothing to unpack
    assert back["changed"] and os.readlink(home / "current") == versions[1].folder


def test_check_mode_changes_nothing(archive, tmp_path):
    result = install(tmp_path / "home", archive, check=True, src=None)
    assert result["changed"] and result["after"]["current"] == archive.folder and not (tmp_path / "home").exists()


def test_interrupted_install_is_made_anew(archive, tmp_path):
    home = tmp_path / "home"
    install(home, archive)
    (home / "current" / _agent.MARKER).unlink()
    assert install(home, archive)["changed"]
    assert _agent.read_marker(str(home / "current"))["sha256"] == archive.sha256


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = {
    "folder gone": lambda current: shutil.rmtree(current / "npu_agent"),
    "file gone": lambda current: (current / "npu_agent/serve.py").unlink(),
    "file cut": lambda current: cut(current / "npu_agent/_hardware/_dcmi.py"),
    "file emptied": lambda current: (current / "bin/npu-agent").write_bytes(b""),
    "file added": lambda current: (current / "site-packages/grpcio.py").write_text("import os\n"),
    "old marker": lambda current: (current / _agent.MARKER).write_text('{"version": "0.1.0", "sha256": "abc"}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_unpacked_again(archive, tmp_path, damage):
    home = tmp_path / "home"
    before = variant(archive, tmp_path, "0.0.9")
    install(home, before)
    install(home, archive)
    whole = _agent.tree_digest(str(home / "current"))
    link = os.lstat(home / "current").st_ino
    DAMAGES[damage](home / "current")
    assert _agent.read_marker(str(home / "current")) is None
    predicted = install(home, archive, check=True)
    result = install(home, archive)
    assert result["changed"] and result["removed"] == [] and predicted == result
    assert _agent.tree_digest(str(home / "current")) == whole
    assert _agent.read_marker(str(home / "current"))["sha256"] == archive.sha256
    assert sorted(os.listdir(home)) == sorted(["current", before.folder, archive.folder])  # one version back is still there
    assert os.lstat(home / "current").st_ino != link  # a new link: the service sees that it is older than its files
    assert install(home, archive)["changed"] is False


def test_bytecode_is_no_damage(archive, tmp_path):
    home = tmp_path / "home"
    install(home, archive)
    shutil.rmtree(home / "current/npu_agent/__pycache__")
    (home / "current/bin/__pycache__").mkdir()
    (home / "current/bin/__pycache__/x.pyc").write_bytes(b"x")
    assert install(home, archive)["changed"] is False


def test_a_repair_that_fails_leaves_what_is_there(archive, tmp_path):
    home = tmp_path / "home"
    install(home, archive)
    (home / "current/npu_agent/serve.py").unlink()
    with pytest.raises(FleetError):
        install(home, archive, src=None)
    with pytest.raises(FleetError):
        install(home, archive, python="/bin/false")
    assert (home / "current/npu_agent/cli.py").exists()
    assert install(home, archive)["changed"]
    assert sorted(os.listdir(home)) == sorted(["current", archive.folder])


@pytest.mark.parametrize("left", [".old-", ".new-"])
def test_a_repair_that_was_cut_between_its_renames(archive, tmp_path, left):
    home = tmp_path / "home"
    install(home, archive)
    (home / archive.folder).rename(home / (left + archive.folder))
    assert install(home, archive)["changed"]
    assert sorted(os.listdir(home)) == sorted(["current", archive.folder])


def repack(folder, *members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for member in members:
            made.addfile(member, io.BytesIO(b"x" * member.size))
    path = folder / "bad.tar.gz"
    with gzip.open(path, "wb") as target:
        target.write(stream.getvalue())
    return str(path), hashlib.sha256(stream.getvalue()).hexdigest()


def member(name, kind=tarfile.REGTYPE, link=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize("bad", [
    member("../evil"), member("/evil"), member("a/../../evil"), member("link", tarfile.SYMTYPE, "/etc"),
    member("hard", tarfile.LNKTYPE, "x"), member("node", tarfile.CHRTYPE),
])
def test_unsafe_members_are_refused(tmp_path, bad):
    path, sha256 = repack(tmp_path, bad)
    with pytest.raises(FleetError) as error:
        _agent_files.install(str(tmp_path / "home"), path, "1", sha256, python=sys.executable, run=local_run, check_mode=False)
    assert error.value.code == "archive_unsafe" and not (tmp_path / "evil").exists() and not (tmp_path / "home/current").exists()


@pytest.mark.parametrize(("data", "code"), [(None, "archive_missing"), (b"not gzip", "archive_broken"), ("cut", "archive_broken"),
                                            (gzip.compress(b"other", mtime=0), "archive_checksum")])
def test_bad_archives_are_refused_before_they_are_opened(archive, tmp_path, data, code):
    src = tmp_path / "x.tar.gz"
    if data == "cut":
        with open(archive.path, "rb") as whole:
            src.write_bytes(whole.read()[:-100])
    elif data is not None:
        src.write_bytes(data)
    with pytest.raises(FleetError) as error:
        install(tmp_path / "home", archive, src=str(src))
    assert error.value.code == code and not (tmp_path / "home/current").exists()


def test_remove(archive, tmp_path):
    home = tmp_path / "home"
    install(home, archive)
    assert _agent_files.remove(str(home), True)["changed"] and home.exists()
    assert _agent_files.remove(str(home), False)["removed"] == [archive.folder] and not home.exists()
    assert _agent_files.remove(str(home), False)["changed"] is False
