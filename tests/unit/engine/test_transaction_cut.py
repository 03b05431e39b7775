# SPDX-License-Identifier: GPL-3.0-or-later
"""The transaction on full disks, on files that can not be renamed over, and killed: either the old or the new bytes, and no secrets."""

import errno
import json
import os
import signal
import stat
import subprocess

import fake_engine
import pytest
from fake_engine import EXPECT, GONE, MAIN, NEW, OLD, Host

from ansible_collections.npu.fleet.plugins.module_utils import _engine
from ansible_collections.npu.fleet.plugins.module_utils import _files as files
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

CANARY = "canary-77"


@pytest.fixture()
def host(tmp_path, monkeypatch):
    monkeypatch.setattr(_engine, "choose", lambda *_arguments: (fake_engine, None))
    return Host(tmp_path)


# --- the disk ---


class Broken:
    """os.NAME that fails for files whose path has a certain word."""

    def __init__(self, monkeypatch, name, word, code=errno.ENOSPC, times=1):
        self.real, self.word, self.code, self.times = getattr(os, name), word, code, times
        monkeypatch.setattr(os, name, self)

    def __call__(self, first, *rest, **options):
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
        if self.word in path and self.times:
            self.times -= 1
            raise OSError(self.code, os.strerror(self.code))
        return self.real(first, *rest, **options)


@pytest.mark.parametrize("word", ["etc/fake/.main.conf", "var/lib/npu-fleet/backups", "var/lib/npu-fleet/engines"])
@pytest.mark.parametrize("call", ["fchmod", "fsync", "rename"])
def test_a_full_disk_at_any_write_leaves_the_old_file(host, monkeypatch, call, word):
    Broken(monkeypatch, call, word)
    with pytest.raises(FleetError) as caught:
        host.commit()
    assert (caught.value.code, caught.value.observed) == ("file_error", "ENOSPC")
    assert "df -h" in caught.value.hint
    assert (host.text(), host.world["running"], host.world["calls"], host.left()) == (OLD, True, [], [])
    assert host.next_run()["changed"]
    assert (host.text(), host.world["loaded"]["ascend"]) == (NEW, "/opt/ascend")


def test_a_disk_that_is_full_for_good(tmp_path, monkeypatch):
    """A real file system of 64 KiB with nothing left on it."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("may not mount")
    try:
        monkeypatch.setattr(_engine, "choose", lambda *_arguments: (fake_engine, None))
        host = Host(folder)
        host.commit(restart="never", text=OLD + "# first\n")
        before = host.text()
        with open(folder / "filler", "wb", buffering=0) as stream, pytest.raises(OSError):
            while True:
                stream.write(b"x" * 512)
        with pytest.raises(FleetError) as caught:
            host.commit("x" * 8000, validate=False)
        assert caught.value.observed == "ENOSPC"
        assert (host.text(), host.left()) == (before, [])
        # In place, too: nothing of the old bytes is lost.
        os.link(host.at(MAIN), folder / "second-name")
        with pytest.raises(FleetError):
            files.write(files.snapshot(str(host.at(MAIN))), b"y" * 8000)
        assert host.text() == before
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_on_the_way_back_is_written_in_place(host, monkeypatch):
    class Full(fake_engine.Engine):
        def systemctl(self, verb):
            Broken(monkeypatch, "fchown", "etc/fake/.main.conf", times=1 if verb == "restart" else 0)
            return super().systemctl(verb)

    monkeypatch.setattr(fake_engine, "Engine", Full)
    with pytest.raises(FleetError, match="byte for byte; faked answers"):
        host.commit(NEW + "broken\n")
    assert (host.text(), host.world["running"]) == (OLD, True)


def test_what_can_not_be_put_back_is_said_loudly(host, monkeypatch):
    class Stuck(fake_engine.Engine):
        def systemctl(self, verb):
            Broken(monkeypatch, "fchown", "etc/fake/.main.conf", errno.EROFS)
            return super().systemctl(verb)

    monkeypatch.setattr(fake_engine, "Engine", Stuck)
    with pytest.raises(FleetError) as caught:
        host.commit(NEW + "broken\n")
    assert f"THE OLD BYTES OF {MAIN} COULD NOT BE PUT BACK" in str(caught.value)
    (backup,) = (host.root / "var/lib/npu-fleet/backups").iterdir()
    assert str(backup) in str(caught.value)
    assert backup.read_text() == OLD


def test_a_write_in_place_that_fails_half_way_gives_the_old_bytes_back(host, monkeypatch):
    os.link(host.at(MAIN), host.root / "second-name")
    real, calls = os.pwrite, []

    def half(descriptor, data, offset):
        calls.append(offset)
        if len(calls) == 1:
            return real(descriptor, data[: len(data) // 2], offset)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, data, offset)

    monkeypatch.setattr(files.os, "pwrite", half)
    with pytest.raises(FleetError) as caught:
        files.write(files.snapshot(str(host.at(MAIN))), b"x" * 20)
    assert (caught.value.observed, host.text()) == ("EIO", OLD)


# --- files that can not be renamed over ---


def test_a_hard_link_is_written_in_place(host):
    os.link(host.at(MAIN), host.root / "etc/other-name")
    result = host.commit()
    assert (host.root / "etc/other-name").read_text() == NEW
    assert result["actions"] == ["write in place: it has 2 hard links", "restart"]
    with pytest.raises(FleetError, match="byte for byte"):
        host.commit(OLD + "broken\n" * 3)
    assert (host.root / "etc/other-name").read_text() == host.text() == NEW
    result = host.commit(OLD, expect=GONE, state="absent")
    assert (host.root / "etc/other-name").read_text() == OLD


def test_a_file_that_is_mounted_is_written_in_place(host):
    source = host.root / "etc/source.conf"
    source.write_text(OLD)
    if subprocess.run(["mount", "--bind", str(source), str(host.at(MAIN))], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("may not mount")
    try:
        result = host.commit()
        assert source.read_text() == NEW
        assert result["actions"] == ["write in place: it is a mount point", "restart"]
        with pytest.raises(FleetError, match="byte for byte; faked answers"):
            host.commit(OLD + "broken\n")
        assert source.read_text() == NEW
        assert host.left() == []
    finally:
        subprocess.run(["umount", str(host.at(MAIN))], check=True)


# --- killed ---


def killed_at(host, number, text, monkeypatch):
    """Commit in a child that kills itself at its ``number``-th change of the disk or the engine; return whether it came to that."""
    child = os.fork()
    if child == 0:
        try:
            left = [number]

            def counted(real):
                def call(*arguments, **options):
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1
                    return real(*arguments, **options)

                return call

            for name in ("rename", "fsync", "unlink", "mkdir", "fchmod", "ftruncate", "pwrite"):
                setattr(os, name, counted(getattr(os, name)))
            fake_engine.Engine.systemctl = counted(fake_engine.Engine.systemctl)
            host.commit(text)
            os._exit(0)
        except FleetError:
            os._exit(1)
        except BaseException:
            os._exit(2)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) in (0, 1)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("text", [NEW, NEW + "broken\n"])
def test_killed_anywhere(tmp_path, monkeypatch, text, linked):
    """Wherever a run is killed: the file is the old or the new one, and the next run ends in the new one, or gives the old one back."""
    monkeypatch.setattr(_engine, "choose", lambda *_arguments: (fake_engine, None))
    number, seen = 0, set()
    while True:
        host = Host(tmp_path / str(number))
        if linked:
            os.link(host.at(MAIN), host.root / "second")
        if not killed_at(host, number, text, monkeypatch):
            break
        assert host.text() in (OLD, text)
        seen.add(host.text())
        if number % 2:
            host.next_run()
            assert host.text() == NEW
        else:
            host.set(refuses="ascend")
            if host.next_run_fails():
                assert host.text() == OLD
        assert host.world["running"]
        assert host.left() == []
        assert not linked or (host.root / "second").read_text() == host.text()
        number += 1
    assert number > 15
    assert seen == {OLD, text}


# --- secrets ---


def test_a_password_shows_up_nowhere(host, monkeypatch, capfd):
    shown = []
    shown.append(host.commit())
    for text in (OLD + "unknown\n", NEW + "broken\n", OLD + "# nothing\n"):
        with pytest.raises(FleetError) as caught:
            host.commit(text, expect=dict(EXPECT, name="other"))
        shown.extend([str(caught.value), caught.value.as_dict()])
    for path in (host.root / "var/lib/npu-fleet/engines").iterdir():
        shown.append(path.read_text())
    assert CANARY not in json.dumps(shown) + "".join(capfd.readouterr())
    for copy in (host.root / "var/lib/npu-fleet/backups").iterdir():
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
