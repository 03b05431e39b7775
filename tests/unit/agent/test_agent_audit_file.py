# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of the audit: whole lines, bounded, for its owner alone; whatever stands in its place, nothing but the line is lost."""

import errno
import json
import os
import random
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from agent_rig import until


@pytest.fixture
def audit_file(package):
    import npu_agent.audit_file

    return npu_agent.audit_file


class Said(list):
    def __call__(self, event, level="info", **fields):
        self.append((event, fields))


@pytest.fixture
def made(audit_file, tmp_path):
    said = Said()
    file = audit_file.AuditFile(str(tmp_path / "audit.jsonl"), said, limit=100)
    return file, tmp_path / "audit.jsonl", said


def test_lines_for_the_owner_alone(made):
    file, path, said = made
    assert file.write([b"one", b"two"]) == 0 and file.write([b"three"]) == 0
    assert path.read_text() == "one\ntwo\nthree\n" and path.stat().st_mode & 0o777 == 0o600 and said == []


def test_it_does_not_grow_for_ever(made):
    file, path, _said = made
    lines = [b"%019d" % number for number in range(23)]
    for line in lines:
        assert file.write([line]) == 0
    old = path.with_name("audit.jsonl.1")
    assert old.read_bytes() + path.read_bytes() == b"".join(line + b"\n" for line in lines[15:])  # 5 lines a file, the first ones are gone
    assert sorted(os.listdir(path.parent)) == ["audit.jsonl", "audit.jsonl.1"] and old.stat().st_size <= 100
    assert file.write([b"x" * 500]) == 0 and path.read_bytes() == b"x" * 500 + b"\n"  # longer than the limit: in a file of its own


def test_moved_away_by_somebody(made):
    """logrotate without a signal, and a folder that is made anew."""
    file, path, _said = made
    file.write([b"one"])
    path.rename(path.with_name("moved"))
    assert file.write([b"two"]) == 0 and path.read_text() == "two\n"


@pytest.mark.parametrize("kind", ["no folder", "folder", "pipe", "link", "device", "file in the way"])
def test_what_cannot_be_written_is_told_once_and_written_again_later(made, kind, tmp_path):
    file, path, said = made
    if kind == "no folder":
        file.path = str(tmp_path / "none/audit.jsonl")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "target").write_text("precious")
        path.symlink_to(tmp_path / "target")
    elif kind == "device":
        path.symlink_to("/dev/full")
    else:
        path.write_text("")
        file.path = str(path / "x")
    assert file.write([b"one", b"two"]) == 2 and file.write([b"three"]) == 1
    assert [event for event, _fields in said] == ["the audit cannot be written"] and "audit_file" in said[0][1]["hint"]
    assert file.trouble.startswith(f"the audit cannot be written to {file.path}: ")
    if kind == "link":
        assert (tmp_path / "target").read_text() == "precious"
    file.path = str(tmp_path / "good")
    assert file.write([b"four"]) == 0 and file.trouble == "" and (tmp_path / "good").read_text() == "four\n"
    assert said[-1][0] == "the audit is written again"


def test_what_was_in_the_way_may_go_before_there_is_a_line(made, monkeypatch):
    file, path, said = made
    path.mkdir()
    file.write([b"one"])
    file.again()
    assert file.trouble and len(said) == 1
    path.rmdir()
    path.write_text("old\n")
    monkeypatch.setattr(os, "fstatvfs", lambda _stream: SimpleNamespace(f_blocks=100, f_bavail=0))
    file.again()
    assert "No space left" in file.trouble and len(said) == 2  # another cause
    monkeypatch.setattr(os, "fstatvfs", lambda _stream: SimpleNamespace(f_blocks=0, f_bavail=0))
    file.again()
    assert file.trouble == "" and said[2:] == [("the audit is written again", {"file": str(path)})]
    file.again()
    assert len(said) == 3 and path.read_text() == "old\n"


def test_a_log_that_is_read_again(audit_file, package):
    from npu_agent.log import Log

    reader, writer = os.pipe()
    log = Log(descriptor=writer)
    audit = audit_file.AuditLog(log)
    log.waiting, audit.trouble = b"x" * (1 << 20), "nobody reads"
    audit.again()
    assert audit.trouble
    while log.waiting:
        os.read(reader, 1 << 20)
        audit.again()
    assert audit.trouble == ""


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from npu_agent.audit_file import AuditFile
file = AuditFile(sys.argv[2], lambda event, level="info", **fields: print(event, fields.get("cause")))
resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))
print([file.write([b"x" * 29]) for _unused in range(3)])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(file.write([b"after"]))
"""


def test_no_room_for_a_whole_line(package, tmp_path):
    """The kernel takes part of a line and then no more, as a full disk does (here a limit of the process): nothing is run together."""
    path = tmp_path / "audit.jsonl"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(package), str(path)], capture_output=True, text=True, check=True, timeout=60)
    assert "[0, 1, 1]" in done.stdout and done.stdout.splitlines()[-1] == "0", done.stdout
    assert path.read_text() == "x" * 29 + "\n" + "x" * 20 + "\nafter\n"


def test_a_full_disk_by_its_number(made, monkeypatch):
    file, _path, said = made

    def full(_stream, _data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    assert file.write([b"one"]) == 1 and said[0][1]["cause"] == "No space left on device"


# --- what has no line yet

def lines(*numbers, **more):
    return [json.dumps({"allocation": f"{number:x}-0", "resource": "r", "ids": ["a"], "outcome": "given", **more}).encode()
            for number in numbers]


def test_what_waits_is_kept_and_found_by_the_next(audit_file, tmp_path):
    path = tmp_path / "audit.jsonl"
    kept = audit_file.Kept(str(path))
    assert kept.load() == []
    kept.save(lines(1, 2, 3))
    assert path.with_name("audit.jsonl.pending").stat().st_mode & 0o777 == 0o600
    audit_file.AuditFile(str(path), Said()).write(lines(2))  # killed between the two
    assert [entry["allocation"] for entry in audit_file.Kept(str(path)).load()] == ["1-0", "3-0"]
    path.rename(path.with_name("audit.jsonl.1"))  # and a rotation between them
    found = audit_file.Kept(str(path))
    assert [entry["allocation"] for entry in found.load()] == ["1-0", "3-0"]
    found.save([])
    assert sorted(os.listdir(tmp_path)) == ["audit.jsonl.1"]


@pytest.mark.parametrize("data", [
    b"", b"{", b"[]\n", b"null\n1\n", b'{"allocation": 1, "ids": [], "resource": "r", "outcome": "given"}\n', b"\xff\xfe\n",
    b'{"allocation": "x-0", "ids": [], "resource": "r", "outcome": "given"}\n', b'{"allocation": "1-0", "ids": [], "outcome": "given"}\n',
    b'{"allocation": "1-0", "ids": [[]], "resource": "r", "outcome": "given"}\n', b'{"allocation": "1-0", "ids": null}\n',
])
def test_what_is_no_entry_is_left_out(audit_file, tmp_path, data):
    kept = audit_file.Kept(str(tmp_path / "a"))
    (tmp_path / "a.pending").write_bytes(data + lines(7)[0] + b"\n")
    expected = [] if data == b"{" else ["7-0"]  # run together with the one before, which had no end
    assert [entry["allocation"] for entry in kept.load()] == expected


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from npu_agent.audit_file import AuditFile
file = AuditFile(sys.argv[2], print, limit=20000)
number = int(sys.argv[3])
while True:
    file.write([b"%09d " % number + b"x" * (number % 300)])
    number += 1
"""


def test_a_kill_at_any_time_leaves_whole_lines(package, tmp_path):
    path, chance, number = tmp_path / "audit.jsonl", random.Random(3), 0
    old = path.with_name("audit.jsonl.1")

    def size():
        try:
            return path.stat().st_size
        except FileNotFoundError:  # it has just become the old one
            return 0

    for _unused in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(package), str(path), str(number)])
        try:
            until(size, what="a first line")
            time.sleep(0.2 + chance.random() * 0.1)
        finally:
            writer.kill()
            writer.wait()
        found = [line for one in (old, path) if one.exists() for line in one.read_text().splitlines()]
        assert all(line == f"{line[:9]} " + "x" * (int(line[:9]) % 300) for line in found), found[-3:]
        number = int(found[-1][:9]) + 1
        assert [int(line[:9]) for line in found] == list(range(number - len(found), number))


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO])
def test_what_only_writing_shows_is_over_by_writing_only(package, tmp_path, monkeypatch, number):
    from npu_agent import audit_file

    events = []
    audit = audit_file.AuditFile(str(tmp_path / "a.jsonl"), lambda event, *_level, **_fields: events.append(event))
    write = os.write

    def refuse(stream, data):
        if stream > 2:
            raise OSError(number, os.strerror(number))
        return write(stream, data)

    with monkeypatch.context() as patched:
        patched.setattr(audit_file.os, "write", refuse)
        for _line in range(3):
            assert audit.write([b"x"]) == 1
            audit.again()
            assert audit.trouble
    assert events == ["the audit cannot be written"]
    assert audit.write([b"x"]) == 0 and not audit.trouble and events[-1] == "the audit is written again"
