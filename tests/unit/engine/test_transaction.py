# SPDX-License-Identifier: GPL-3.0-or-later
"""The transaction with an engine that restarts: its order, what it refuses, and what a run that fails or is killed leaves behind."""

import errno
import json
import os
import signal
import stat
import subprocess

import fake_engine
import pytest
from fake_engine import EXPECT, GONE, IMPORT, MAIN, NEW, OLD, OURS, Host

from ansible_collections.npu.fleet.plugins.module_utils import _engine
from ansible_collections.npu.fleet.plugins.module_utils import _files as files
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

CANARY = "canary-77"
ENTRY = "runtime ascend /opt/ascend\n"


@pytest.fixture()
def host(tmp_path, monkeypatch):
    monkeypatch.setattr(_engine, "choose", lambda *_arguments: (fake_engine, None))
    return Host(tmp_path)


def record(host):
    return json.loads((host.root / "var/lib/npu-fleet/engines/fake.json").read_text())


# --- the order ---


def test_a_change_is_checked_written_and_taken_over_by_a_restart(host):
    os.chmod(host.at(MAIN), 0o640)
    result = host.commit()
    assert host.text() == NEW
    assert (host.world["calls"], host.world["checks"]) == (["restart"], [[MAIN, NEW, None]])
    assert (result["changed"], result["actions"], result["killed"], result["not_checked"]) == (True, ["restart"], [], None)
    assert result["validation"] == "by faked"
    assert stat.S_IMODE(host.at(MAIN).stat().st_mode) == 0o640
    assert record(host)["pending"] == {}
    assert os.path.basename(result["backup_file"]).startswith("etc-fake-main.conf.")


def test_what_is_there_already_restarts_nothing(host):
    host.commit()
    result = host.commit()
    assert (result["changed"], result["actions"], host.world["calls"]) == (False, [], ["restart"])


def test_a_new_import_and_its_removal(host):
    check = "main text for @NPU_FLEET_COPY@"
    import base64

    result = host.commit(ENTRY, OURS, check=base64.b64encode(check.encode()).decode())
    assert (host.text(OURS), host.text()) == (ENTRY, OLD)
    assert host.world["checks"] == [[OURS, ENTRY, check]]
    assert (result["backup_file"], result["actions"]) == (None, ["restart"])
    gone = host.commit(None, OURS, remove=True, expect=GONE, state="absent")
    assert host.text(OURS) is None
    assert (gone["changed"], gone["actions"]) == (True, ["restart"])
    assert "ascend" not in gone["effective"]["runtimes"]


def test_a_removal_that_is_refused_gives_the_file_back_with_its_looks(host):
    host.commit(ENTRY, OURS)
    os.chmod(host.at(OURS), 0o600)
    host.write(IMPORT, "# admin needs ascend\nneeds\n")
    host.set(refuses="needs")
    with pytest.raises(FleetError, match="failed.*byte for byte; faked is DOWN"):
        host.commit(None, OURS, remove=True, expect=GONE, state="absent")
    assert host.text(OURS) == ENTRY
    assert stat.S_IMODE(host.at(OURS).stat().st_mode) == 0o600


def test_a_removal_that_was_cut_can_be_undone_with_its_looks(host, monkeypatch):
    host.commit(ENTRY, OURS)
    os.chmod(host.at(OURS), 0o640)
    with monkeypatch.context() as patch:
        patch.setattr(fake_engine.Engine, "take_over", interrupt)
        with pytest.raises(KeyboardInterrupt):
            host.commit(None, OURS, remove=True, expect=GONE, state="absent")
    assert host.text(OURS) is None
    host.write(IMPORT, "broken\n")
    with pytest.raises(FleetError, match="As before|byte for byte"):
        host.commit(None, OURS, expect=GONE, state="absent")
    assert host.text(OURS) == ENTRY
    assert stat.S_IMODE(host.at(OURS).stat().st_mode) == 0o640


def interrupt(*_arguments):
    raise KeyboardInterrupt


def test_pods_that_a_restart_would_end_are_named_before_anything_is_written(host):
    host.set(pods=["default/train-0", "default/train-1"])
    with pytest.raises(FleetError) as caught:
        host.commit()
    assert (caught.value.code, caught.value.observed) == ("would_kill", "default/train-0, default/train-1")
    assert "npu_runtime_disruption: allow" in caught.value.hint
    assert (host.text(), host.world["calls"], host.world["checks"]) == (OLD, [], [])
    assert not (host.root / "var/lib/npu-fleet/backups").exists()
    result = host.commit(disruption="allow")
    assert (result["killed"], result["actions"]) == (["default/train-0", "default/train-1"], ["restart"])


def test_never_only_writes_and_kills_nothing(host):
    host.set(pods=["default/train-0"])
    result = host.commit(restart="never")
    assert (host.text(), result["actions"], result["reload_required"], result["killed"]) == (NEW, [], True, [])
    assert list(record(host)["pending"]) == [MAIN]


# --- somebody else ---


@pytest.mark.parametrize("path", [MAIN, IMPORT])
def test_a_file_that_changed_since_it_was_read(host, path):
    expected = host.expected()
    host.write(path, "# mine now\n")
    with pytest.raises(FleetError) as caught:
        host.commit(expected=expected)
    assert (caught.value.code, caught.value.object) == ("file_changed", str(host.at(path)))
    assert (host.text(path), host.world["calls"]) == ("# mine now\n", [])
    assert host.text() == (OLD if path == IMPORT else "# mine now\n")


def test_an_import_that_came_since(host):
    expected = host.expected()
    host.write("/etc/fake/conf.d/50-new.conf", "# new\n")
    with pytest.raises(FleetError, match="50-new.conf was changed by somebody else"):
        host.commit(expected=expected)
    assert host.text() == OLD


def test_an_import_that_went_since(host):
    expected = host.expected()
    host.at(IMPORT).unlink()
    with pytest.raises(FleetError) as caught:
        host.commit(expected=expected)
    assert (caught.value.code, host.text()) == ("file_changed", OLD)


@pytest.mark.parametrize("path", [MAIN, IMPORT])
def test_a_file_that_changes_while_the_copy_is_checked(host, monkeypatch, path):
    def validate(_self, *_arguments):
        host.write(path, "# mine now\n")
        return "by faked"

    monkeypatch.setattr(fake_engine.Engine, "validate", validate)
    with pytest.raises(FleetError) as caught:
        host.commit()
    assert (caught.value.code, host.text(path), host.world["calls"]) == ("file_changed", "# mine now\n", [])
    assert host.text() == (OLD if path == IMPORT else "# mine now\n")


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/fake/conf.d/sub/x.conf", "/etc/fake/conf.d/x.toml", "/etc/fake/conf.d/../x.conf"])
def test_a_file_that_is_not_the_engines_is_not_written(host, path):
    with pytest.raises(FleetError) as caught:
        host.commit(ENTRY, path)
    assert caught.value.code == "file_not_writable"
    assert not host.at(path).exists()


def test_two_at_once_the_second_names_the_first(host):
    lock = host.root / "var/lib/npu-fleet/engines/fake.lock"
    with files.locked(str(lock)), pytest.raises(FleetError) as caught:
        host.commit()
    assert caught.value.code == "locked"
    assert f"process {os.getpid()} of user " in str(caught.value)
    assert host.text() == OLD


def test_two_at_once_the_second_waits(host):
    lock = str(host.root / "var/lib/npu-fleet/engines/fake.lock")
    os.makedirs(os.path.dirname(lock))
    holder = subprocess.Popen(["flock", lock, "sh", "-c", "echo held; sleep 0.5"], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    assert host.commit(timeout=20)["changed"]
    holder.wait()


# --- the engine refuses ---


def test_the_parser_refuses(host):
    before = host.text()
    with pytest.raises(FleetError) as caught:
        host.commit(OLD + "unknown key\n")
    assert (caught.value.code, host.text(), host.world["calls"]) == ("parser_refused", before, [])
    assert host.left() == []


@pytest.mark.parametrize("running", [True, False])
def test_the_engine_refuses_to_start(host, running):
    host.set(running=running)
    os.chmod(host.at(MAIN), 0o604)
    os.chown(host.at(MAIN), 12, 34)
    with pytest.raises(FleetError) as caught:
        host.commit(NEW + "broken\n")
    info = host.at(MAIN).stat()
    assert (host.text(), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (OLD, 0o604, 12, 34)
    assert (caught.value.code, host.world["running"]) == ("engine_rejected", True)
    assert "failed: near" in str(caught.value)
    assert "byte for byte; faked answers." in str(caught.value)
    assert record(host)["pending"] == {}


def test_both_reasons_are_told_when_the_way_back_fails_too(host):
    host.write(IMPORT, "broken\n")
    with pytest.raises(FleetError) as caught:
        host.commit()
    assert host.text() == OLD
    assert "'systemctl restart fake.service' failed" in str(caught.value)
    assert "faked is DOWN ('systemctl start fake.service' failed" in str(caught.value)


def test_it_starts_without_the_runtime(host, monkeypatch):
    with pytest.raises(FleetError, match="does not have the runtime ascend.*byte for byte; faked answers"):
        host.commit(OLD + "# ascend in the wrong table\n")
    assert (host.text(), host.world["calls"]) == (OLD, ["restart", "restart"])


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
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], capture_output=True, check=False).returncode:
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
    if subprocess.run(["mount", "--bind", str(source), str(host.at(MAIN))], capture_output=True, check=False).returncode:
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
