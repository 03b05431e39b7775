# SPDX-License-Identifier: GPL-3.0-or-later
"""The file with the names of chips: what it says, who may write it, what becomes of one that is broken or cannot be reached."""

import json
import os
import shutil
import stat
import threading
import time
from pathlib import Path

import pytest
from names_rig import chip, given


def path(tmp_path):
    return tmp_path / "state/names.json"


def test_the_file_is_ours_alone_and_whole(names, tmp_path):
    given(names(), chip(0, "a"))
    assert stat.S_IMODE(os.stat(path(tmp_path)).st_mode) == 0o600 and stat.S_IMODE(os.stat(tmp_path / "state").st_mode) == 0o700
    assert json.loads(path(tmp_path).read_text()) == {"schema": 1, "names": {"Ascend910-0": {
        "vdie": "a", "serial": None, "device_id": 0, "pci_address": "0000:00:00.0", "phy_id": 0}}}
    assert os.listdir(tmp_path / "state") == ["names.json"]


def test_written_only_when_it_says_something_else(names, tmp_path):
    table = names()
    given(table, chip(0, "a"))
    before = os.stat(path(tmp_path)).st_mtime_ns
    given(table, chip(0, "a"))
    given(names(), chip(0, "a"))
    assert os.stat(path(tmp_path)).st_mtime_ns == before
    given(table, chip(1, "a"))
    assert os.stat(path(tmp_path)).st_mtime_ns != before


GOOD = {"vdie": "a", "serial": None, "device_id": 0, "pci_address": None, "phy_id": 5}


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"schema": 0, "names": {}}', b'{"names": {}}', b'{"schema": 1, "names": []}',
    json.dumps({"schema": 1, "names": {"Ascend910-x": GOOD}}).encode(), json.dumps({"schema": 1, "names": {"Ascend910-0": {}}}).encode(),
    json.dumps({"schema": 1, "names": {"../x-0": GOOD}}).encode(), json.dumps({"schema": 1, "names": {"Ascend910-00": GOOD}}).encode(),
    json.dumps({"schema": 1, "names": {"Ascend910-0": {**GOOD, "phy_id": "5"}}}).encode(),
    json.dumps({"schema": 1, "names": {"Ascend910-0": {**GOOD, "vdie": 5}}}).encode(), b" " * (2 << 20), b"[" * 100000,
    json.dumps({"schema": 1, "names": {"Ascend910-0": {**GOOD, "given": [0, "x"]}}}).encode(),
    json.dumps({"schema": 1, "names": {"Ascend910-0": {**GOOD, "slices": [100]}}}).encode(),
    json.dumps({"schema": 1, "names": {"Ascend910-0": {**GOOD, "given": {"phy_id": 0, "form": "x", "places": [1]}}}}).encode(),
])
def test_a_broken_file_is_neither_trusted_nor_lost(names, tmp_path, content):
    path(tmp_path).parent.mkdir()
    path(tmp_path).write_bytes(content)
    for number in ("", "1"):
        table = names()
        assert given(table, chip(3, "a")) == [3]
        assert [(event, level) for event, level, _fields in table.events] == [("names of chips are started anew", "error")]
        aside = Path(f"{path(tmp_path)}.broken{number}")
        assert aside.read_bytes() == content and str(aside) in table.events[0][2]["cause"]
        path(tmp_path).write_bytes(content)


def test_a_file_that_cannot_be_moved_away_stays(names, tmp_path, monkeypatch):
    path(tmp_path).parent.mkdir()
    path(tmp_path).write_text("{")

    def refuse(*_words):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    table = names()
    given(table, chip(0, "a"))
    given(table, chip(1, "a"))
    assert path(tmp_path).read_text() == "{" and "cannot be used" in table.trouble
    assert table.events[0][:2] == ("a broken table of names stays", "error") and "Read-only file system" in table.events[0][2]["cause"]


def test_files_that_were_put_aside_are_not_more_and_more(names, tmp_path):
    path(tmp_path).parent.mkdir()
    for number in range(15):
        path(tmp_path).write_text(f"{{ {number}")
        names()
    aside = sorted(name for name in os.listdir(tmp_path / "state") if "broken" in name)
    assert len(aside) == 10 and (tmp_path / "state/names.json.broken9").read_text() == "{ 14"
    (tmp_path / "state/names.json.broken9").unlink()
    (tmp_path / "state/names.json.broken9/full").mkdir(parents=True)  # nothing can take its place
    path(tmp_path).write_text("{ 15")
    table = names()
    assert given(table, chip(0, "a")) == [0] and path(tmp_path).read_text() == "{ 15" and "cannot be used" in table.trouble


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_put_aside(names, tmp_path, kind):
    path(tmp_path).parent.mkdir()
    os.mkfifo(path(tmp_path)) if kind == "pipe" else path(tmp_path).mkdir()
    table = names()
    assert given(table, chip(0, "a")) == [0] and path(tmp_path).is_file() and not table.trouble
    assert os.path.lexists(f"{path(tmp_path)}.broken")


def test_a_file_that_cannot_be_read_for_a_moment_stays(names, tmp_path, monkeypatch):
    given(names(), chip(0, "a"), chip(1, "b"))
    before, opened = path(tmp_path).read_text(), os.open

    def refuse(name, *more):
        if str(name).endswith("names.json"):
            raise OSError(24, "Too many open files")
        return opened(name, *more)

    monkeypatch.setattr(os, "open", refuse)
    table = names()
    assert given(table, chip(1, "a"), chip(0, "b")) == [1, 0]  # their numbers, for want of better
    assert "Too many open files" in table.trouble and os.listdir(tmp_path / "state") == ["names.json"]
    assert path(tmp_path).read_text() == before
    monkeypatch.undo()
    assert given(table, chip(1, "a"), chip(0, "b")) == [0, 1] and not table.trouble
    assert json.loads(path(tmp_path).read_text())["names"]["Ascend910-0"]["phy_id"] == 1
    assert [event for event, _level, _fields in table.events] == ["names of chips are not kept"]


def test_a_newer_agents_file_is_left_alone(names, tmp_path):
    given(names(), chip(0, "a"))
    text = path(tmp_path).read_text().replace('"schema": 1', '"schema": 2')
    path(tmp_path).write_text(text)
    table = names()
    assert given(table, chip(3, "a")) == [3] and given(table, chip(4, "a")) == [3]
    assert path(tmp_path).read_text() == text and os.listdir(tmp_path / "state") == ["names.json"]
    assert "a newer npu-agent has written it (schema 2, this one knows 1)" in table.trouble and len(table.events) == 1


def test_more_keys_are_of_an_agent_that_knows_more(names, tmp_path):
    given(names(), chip(0, "a"))
    top = json.loads(path(tmp_path).read_text())
    top["names"]["Ascend910-0"]["later"] = top["later"] = [1]
    path(tmp_path).write_text(json.dumps(top))
    table = names()
    assert given(table, chip(5, "a")) == [0] and table.events == []


def test_what_kubelet_was_told_is_kept_with_the_name(names, tmp_path):
    from npu_agent.names_file import Given

    table = names()
    given(table, chip(0, "a"), chip(1, "b"))
    table.entries[0].given = told = Given(0, "whole x", ("/dev/a", "h:1"))
    table.entries[1].slices = [{"vdev_id": 100, "template": "vir02"}, {"vdev_id": 101, "template": None}]
    given(table, chip(0, "a"), chip(1, "b"))
    later = names()
    assert [(entry.given, entry.slices) for entry in later.entries] == [(told, None), (None, table.entries[1].slices)]
    # A name that another chip takes over is still the one that pods know.
    (first, second) = later.assign([chip(0, "new"), chip(1, "b")], True)
    assert (first.name, first.given, first.slices) == ("Ascend910-0", told, None) and second.slices


def test_reading_changes_nothing(names, tmp_path):
    path(tmp_path).parent.mkdir()
    path(tmp_path).write_text("{")
    table = names(read_only=True)
    assert given(table, chip(0, "a")) == [0] and os.listdir(tmp_path / "state") == ["names.json"] and path(tmp_path).read_text() == "{"
    path(tmp_path).unlink()
    given(names(read_only=True), chip(0, "a"))
    assert os.listdir(tmp_path / "state") == []


def test_of_two_agents_one_writes(names, tmp_path):
    first = names()
    given(first, chip(0, "a"), chip(1, "b"))
    second = names(beside=True)
    assert given(second, chip(5, "a"), chip(1, "b")) == [0, 1]  # it knows the names
    assert "another agent keeps" in second.trouble and json.loads(path(tmp_path).read_text())["names"]["Ascend910-0"]["phy_id"] == 0
    # The first one has seen something else, and then ends: its word counts.
    given(first, chip(0, "a"), chip(1, "new"), complete=False)
    first.close()
    given(second, chip(0, "a"), chip(1, "new"))
    assert given(second, chip(0, "a"), chip(1, "new")) == [0, 2] and not second.trouble
    assert sorted(json.loads(path(tmp_path).read_text())["names"]) == ["Ascend910-0", "Ascend910-1", "Ascend910-2"]


def test_one_that_stands_by_leaves_the_names_to_the_other(names, tmp_path):
    from npu_agent.names_file import Given

    first, second = names(), names(beside=True)
    given(first, chip(0, "a"))
    key = first.entries[0].key
    first.stand_by(True)
    given(second, chip(0, "a"), chip(1, "new"))
    given(second, chip(0, "a"), chip(1, "new"))
    second.entries[0].given = Given(7, "whole x")
    given(second, chip(0, "a"), chip(1, "new"))
    given(first, chip(3, "b"))
    assert sorted(json.loads(path(tmp_path).read_text())["names"]) == ["Ascend910-0", "Ascend910-1"]
    second.close()
    first.stand_by(False)
    assert given(first, chip(0, "a"), chip(3, "b")) == [0, 3]
    assert first.entries[0].given == Given(7, "whole x") and first.entries[0].key == key  # the same chip, so its health is remembered
    assert sorted(json.loads(path(tmp_path).read_text())["names"]) == ["Ascend910-0", "Ascend910-1", "Ascend910-3"]


def test_what_a_killed_writer_has_left_goes(names, tmp_path):
    path(tmp_path).parent.mkdir()
    for name in (".names.json-1-2.new", ".other-1-2.new"):
        (tmp_path / "state" / name).touch()
    given(names(), chip(0, "a"))
    assert sorted(os.listdir(tmp_path / "state")) == [".other-1-2.new", "names.json"]


def test_the_end_waits_for_the_disk_but_not_for_ever(names, tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _descriptor: release.wait(60))
    table = names()
    table.assign([chip(0, "a")], True)
    table.save()
    began = time.monotonic()
    table.close()
    assert 0.4 < time.monotonic() - began < 30 and table.file.writer.is_alive()
    release.set()
    table.close()
    assert not table.file.writer.is_alive() and path(tmp_path).exists()


def test_a_folder_that_was_replaced_is_locked_anew(names, tmp_path):
    table = names()
    given(table, chip(0, "a"))
    shutil.rmtree(tmp_path / "state")
    given(table, chip(1, "a"))
    other = names(beside=True)
    given(other, chip(2, "a"))
    assert json.loads(path(tmp_path).read_text())["names"]["Ascend910-0"]["phy_id"] == 1 and "another agent" in other.trouble


def test_no_folder_is_said_once(names):
    table = names(folder=None)
    assert given(table, chip(0, "a")) == [0] and given(table, chip(1, "a")) == [0]
    assert [(event, fields["cause"]) for event, _level, fields in table.events] == [
        ("names of chips are not kept", "`state_dir` is empty: after a renumbering chips get other names"),
    ]


def test_a_folder_that_cannot_be_written_is_said_once_and_tried_again(names, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    table = names(folder=blocked / "state")
    for number in range(3):
        assert given(table, chip(number, "a")) == [0]
    assert [event for event, _level, _fields in table.events] == ["names of chips are not kept"]
    assert "Not a directory" in table.events[0][2]["cause"]
    blocked.unlink()
    given(table, chip(2, "a"))
    assert json.loads((blocked / "state/names.json").read_text())["names"]["Ascend910-0"]["phy_id"] == 2
    shutil.rmtree(blocked)
    blocked.write_text("")
    given(table, chip(3, "a"))
    assert len(table.events) == 2  # a new time, said again


def test_a_crash_leaves_the_old_file(names, tmp_path, monkeypatch):
    given(names(), chip(0, "a"))
    before = path(tmp_path).read_text()

    def full(*_words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    table = names()
    given(table, chip(1, "a"))
    assert path(tmp_path).read_text() == before and os.listdir(tmp_path / "state") == ["names.json"]
    assert "No space left on device" in table.events[0][2]["cause"]
