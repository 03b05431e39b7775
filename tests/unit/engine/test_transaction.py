# SPDX-License-Identifier: GPL-3.0-or-later
"""The transaction with an engine that restarts: its order, what it refuses, and what a run that fails or is killed leaves behind."""

import json
import os
import stat
import subprocess
import time

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


def test_an_engine_that_hangs_may_hold_pods_all_the_same(host, monkeypatch):
    class Hung(fake_engine.Engine):
        def facts(self):
            return dict(super().facts(), active=False, error="no answer")

    monkeypatch.setattr(fake_engine, "Engine", Hung)
    host.set(pods=["default/train-0"])
    assert host.read()["restart_kills"] == ["default/train-0"]
    with pytest.raises(FleetError) as caught:
        host.commit()
    assert (caught.value.code, host.text(), host.world["calls"]) == ("would_kill", OLD, [])
    host.set(running=False)
    assert host.read()["restart_kills"] == []


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
    assert CANARY not in str(caught.value)


def test_it_starts_without_the_runtime(host, monkeypatch):
    with pytest.raises(FleetError, match="does not have the runtime ascend.*byte for byte; faked answers"):
        host.commit(OLD + "# ascend in the wrong table\n")
    assert (host.text(), host.world["calls"]) == (OLD, ["restart", "restart"])


# --- the record ---


def test_a_change_that_an_older_release_left_pending_can_be_undone(host):
    folder = host.root / "var/lib/npu-fleet"
    (folder / "engines").mkdir(parents=True)
    (folder / "main.conf.old").write_text("# before the cut\n")
    digest = files.sha256(OLD.encode())
    pending = {"sha256": digest, "backup": str(folder / "main.conf.old"), "expect": EXPECT}
    (folder / "engines/fake.json").write_text(json.dumps({"schema": 1, "runtimes": {"x": {"a": 1}}, "pending": pending}))
    assert (host.read()["pending"], host.read(name="x")["note"]) == (True, {"a": 1})
    host.write(IMPORT, "broken\n")
    with pytest.raises(FleetError, match="byte for byte"):
        host.commit(None)
    assert host.text() == "# before the cut\n"
    assert (record(host)["schema"], record(host)["pending"], record(host)["runtimes"]) == (2, {}, {"x": {"a": 1}})


def test_a_change_of_another_file_that_was_cut_is_undone_too(host, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fake_engine.Engine, "take_over", interrupt)
        with pytest.raises(KeyboardInterrupt):
            host.commit(ENTRY, OURS)
    assert host.text(OURS) == ENTRY
    with pytest.raises(FleetError, match=f"As before, byte for byte: {OURS} and {MAIN}; faked answers"):
        host.commit(OLD + "broken\n")
    assert (host.text(OURS), host.text()) == (None, OLD)


def test_each_file_has_backups_of_its_own(host):
    host.write(IMPORT, OLD)
    names = {os.path.basename(host.commit(OLD + ENTRY, path)["backup_file"]) for path in (MAIN, IMPORT)}
    assert {name.split(".conf.")[0] for name in names} == {"etc-fake-main", "etc-fake-conf.d-10-admin"}


# --- time ---


def test_an_engine_that_never_answers_is_waited_for_no_longer_than_the_deadline(host, monkeypatch):
    class Deaf(fake_engine.Engine):
        def take_over(self):
            self.done.append("restart")
            self.change(running=self.text_is_old())

        def text_is_old(self):
            return host.text() == OLD

        def failed(self):
            return False

    monkeypatch.setattr(fake_engine, "Engine", Deaf)
    began = time.monotonic()
    with pytest.raises(FleetError, match="faked does not answer: connection refused.*byte for byte; faked answers"):
        host.commit(timeout=1)
    assert time.monotonic() - began < 5
    assert host.text() == OLD


# --- the journal of a failure ---


class Talking(fake_engine.Engine):
    """Its journal shows the last three lines, as journalctl shows the last twenty."""

    def systemctl(self, verb):
        trouble = super().systemctl(verb)
        lines = [f"{verb}: refused", "panic: broken"] if trouble else [f"{verb}: one", "two", "three"]
        self.change(journal=self.world.get("journal", []) + (lines if verb != "reset-failed" else []))
        return trouble

    def journal(self):
        return "\n".join(self.world.get("journal", [])[-3:])


def test_the_journal_is_that_of_the_failure_not_of_the_good_start_after_it(host, monkeypatch):
    monkeypatch.setattr(fake_engine, "Engine", Talking)
    with pytest.raises(FleetError) as caught:
        host.commit(NEW + "broken\n")
    assert host.world["running"]
    assert caught.value.observed == "restart: refused\npanic: broken"
    assert caught.value.message.endswith("Journal of faked:\nrestart: refused\npanic: broken")


def test_one_that_stays_down_has_its_last_lines_too(host, monkeypatch):
    monkeypatch.setattr(fake_engine, "Engine", Talking)
    host.set(refuses="runc")
    with pytest.raises(FleetError, match="faked is DOWN") as caught:
        host.commit()
    assert caught.value.observed == "restart: refused\npanic: broken\nAfter the way back:\nstart: refused"
