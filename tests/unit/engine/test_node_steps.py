# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and commit on a node with a stand-in engine: what is written, what the engine is told, and the ways back."""

import base64
import json
import os
import stat

import pytest
from conftest import RUNTIME

from ansible_collections.npu.fleet.plugins.module_utils import _files as files
from ansible_collections.npu.fleet.plugins.module_utils._engine_docker import Engine
from ansible_collections.npu.fleet.plugins.module_utils._engine_record import Record
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

OLD = '{\n  "debug": true\n}\n'
NEW = '{\n  "debug": true,\n  "runtimes": {"ascend": {"path": "%s", "runtimeArgs": []}}\n}\n' % RUNTIME  # noqa: UP031
BAD = '{"unknown-key": 1, "runtimes": {"ascend": {"path": "/x"}}}'
EXPECT = {"state": "present", "name": "ascend", "path": RUNTIME, "args": [], "default": None}
GONE = {"state": "absent", "name": "ascend", "path": None, "args": None, "default": None}


def b64(text):
    return base64.b64encode(text.encode()).decode()


def change(node, text=NEW, **values):
    """Commit ``text`` over what is there now."""
    return node.commit(**{"expected": expected(node), "content": b64(text), "expect": EXPECT, **values})


def expected(node):
    return {"/etc/docker/daemon.json": files.snapshot(str(node.config)).sha256 or ""}


def take_over(node):
    """Commit without new bytes, as the controller does for a file that the engine has not taken over yet."""
    return node.commit(expected=expected(node), content=None, expect=EXPECT)


def backups(node):
    return sorted((node.root / "var/lib/npu-fleet/backups").glob("*"))


# --- read ---


def test_read_changes_nothing(node):
    node.write(OLD)
    before = node.tree()
    found = node.read()
    assert node.tree() == before
    (file,) = found["files"]
    assert base64.b64decode(file["content"]).decode() == OLD
    assert (file["path"], file["role"], file["exists"], file["mode"]) == ("/etc/docker/daemon.json", "main", True, "0644")
    assert (found["engine"], found["config_path"], found["writable"]) == ("docker", "/etc/docker/daemon.json", ["/etc/docker/daemon.json"])
    assert (found["takes_over_by"], found["restart_kills"], found["kubelet"], found["effective_text"]) == ("reload", [], False, None)
    assert found["flag_keys"] == ["hosts"]
    assert found["program"] == {"exists": True, "executable": True}
    assert found["unit"] == {"name": "docker.service", "loaded": True, "state": "active", "kill_mode": "process", "can_reload": True}


def test_read_without_a_file(node):
    found = node.read()
    (file,) = found["files"]
    assert (file["exists"], file["content"], file["sha256"], file["mode"]) == (False, "", None, None)
    assert not (node.root / "etc/docker").exists()


def test_read_names_containers_that_need_the_runtime(node):
    node.write(NEW)
    node.set(containers={"trainer": "ascend", "web": "runc"})
    assert node.read(state="absent")["users"] == ["trainer"]
    assert node.read(state="present")["users"] == []


def test_a_file_that_dockerd_does_not_read_is_refused(node):
    with pytest.raises(FleetError, match="reads /etc/docker/daemon.json, not /etc/other.json"):
        node.read(config_path="/etc/other.json")
    assert node.read(config_path="/etc/docker//daemon.json")["config_path"] == "/etc/docker/daemon.json"


# --- commit ---


def test_commit_writes_reloads_and_keeps_a_private_copy(node):
    node.write(OLD)
    result = change(node)
    assert node.config.read_text() == NEW
    assert node.verbs() == ["reload"]
    assert (result["changed"], result["actions"], result["reload_required"]) == (True, ["reload"], False)
    assert result["effective"]["runtimes"]["ascend"] == {"path": RUNTIME, "args": [], "type": None}
    assert result["validation"].startswith("as JSON only: dockerd 20.10.24+dfsg1 has no --validate")
    (copy,) = backups(node)
    assert (copy.read_text(), str(copy)) == (OLD, result["backup_file"])
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in node.config.parent.iterdir()) == ["daemon.json"]


def test_commit_without_backup_leaves_none(node):
    node.write(OLD)
    assert change(node, backup=False)["backup_file"] is None
    assert backups(node) == []


def test_equal_copies_are_kept_once(node):
    node.write(OLD)
    change(node)
    node.write(OLD)
    change(node)
    assert len(backups(node)) == 1


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_missing_folder_and_file_are_made(node, mask):
    former = os.umask(mask)
    try:
        change(node)
    finally:
        os.umask(former)
    assert stat.S_IMODE(node.config.stat().st_mode) == 0o644
    assert stat.S_IMODE(node.config.parent.stat().st_mode) == 0o755
    assert backups(node) == []


def test_mode_owner_attributes_and_link_stay(node):
    real = node.root / "srv/docker.json"
    real.parent.mkdir()
    real.write_text(OLD)
    os.chmod(real, 0o640)
    os.chown(real, 1234, 2345)
    os.setxattr(real, "user.note", b"mine")
    node.config.parent.mkdir()
    node.config.symlink_to("../../srv/docker.json")
    change(node)
    info = real.stat()
    assert os.readlink(node.config) == "../../srv/docker.json"
    assert real.read_text() == NEW
    assert (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (0o640, 1234, 2345)
    assert os.getxattr(real, "user.note") == b"mine"


def test_changed_in_between_writes_nothing(node):
    node.write(OLD)
    before_it = expected(node)
    node.write('{"debug": false}')
    before = node.tree()
    with pytest.raises(FleetError) as caught:
        node.commit(expected=before_it, content=b64(NEW), expect=EXPECT)
    assert caught.value.code == "file_changed"
    assert {path for path in node.tree() if "npu-fleet" not in path} == set(before)
    assert node.config.read_text() == '{"debug": false}'
    assert node.verbs() == []


def test_two_runs_at_once(node):
    node.write(OLD)
    lock = str(node.root / "var/lib/npu-fleet/engines/docker.lock")
    with files.locked(lock), pytest.raises(FleetError, match="Another run"):
        change(node)
    assert node.config.read_text() == OLD


def test_never_writes_and_says_what_is_left(node):
    node.write(OLD)
    result = change(node, restart="never")
    assert node.config.read_text() == NEW
    assert node.verbs() == []
    assert (result["changed"], result["actions"], result["reload_required"]) == (True, [], True)


def test_a_dockerd_that_is_down_is_started(node):
    node.write(OLD)
    node.set(active=False, down="failed")
    result = change(node)
    assert node.verbs() == ["reset-failed", "start"]
    assert (result["actions"], result["effective"]["runtimes"]["ascend"]["path"]) == (["start"], RUNTIME)


def test_a_missing_client_stops_before_writing(node):
    node.write(OLD)
    (node.root / "usr/bin/docker").unlink()
    with pytest.raises(FleetError) as caught:
        change(node)
    assert (caught.value.code, node.config.read_text()) == ("client_missing", OLD)
    assert change(node, restart="never")["changed"]


# --- the engine's own parser ---


def test_dockerd_validates_the_copy_with_its_own_flags(node):
    node.write(OLD)
    node.set(validate=True, command="/usr/sbin/dockerd -H fd:// --config-file=/etc/docker/daemon.json")
    assert change(node)["validation"] == "by dockerd --validate"
    (call,) = [call for call in node.state["calls"] if "--validate" in call]
    assert call[:3] == ["dockerd", "--validate", "--config-file"]
    assert os.path.basename(call[3]) == "daemon.json"
    assert call[3] != str(node.config)
    assert not os.path.exists(os.path.dirname(call[3]))
    assert call[4:] == ["--host=fd://"]


def test_what_dockerd_refuses_is_not_written(node):
    node.write(OLD)
    node.set(validate=True)
    with pytest.raises(FleetError, match="unknown-key.*Nothing was written") as caught:
        change(node, BAD)
    assert caught.value.code == "parser_refused"
    assert node.config.read_text() == OLD
    assert node.verbs() == []
    assert [path.name for path in node.config.parent.iterdir()] == ["daemon.json"]
    assert not node.read()["pending"]


def test_validation_can_be_left_out(node):
    node.write(OLD)
    node.set(validate=True)
    assert change(node, validate=False)["validation"] == "not checked (validate=false)"
    assert not [call for call in node.state["calls"] if "--validate" in call]


# --- the ways back ---


def test_a_refused_reload_puts_the_bytes_back(node):
    node.write(OLD)
    os.chmod(node.config, 0o640)
    with pytest.raises(FleetError) as caught:
        change(node, BAD)
    error = caught.value
    assert (error.code, node.config.read_text(), stat.S_IMODE(node.config.stat().st_mode)) == ("engine_rejected", OLD, 0o640)
    assert node.verbs() == ["reload", "reload"]
    assert "does not have the runtime ascend" in str(error)
    assert "byte for byte; dockerd answers." in str(error)
    assert "journalctl -u docker" in error.hint
    assert "Error reconfiguring the daemon" in error.observed
    assert node.state["active"]
    assert Record("docker", str(node.root)).pending == {}


def test_a_refused_first_file_is_taken_away_again(node):
    with pytest.raises(FleetError):
        change(node, BAD)
    assert not node.config.exists()


def test_a_dockerd_that_dies_is_started_with_the_old_file(node):
    node.write(OLD)
    node.set(dies_on_reload=True)
    with pytest.raises(FleetError, match="byte for byte; dockerd answers"):
        change(node)
    assert node.config.read_text() == OLD
    assert node.verbs() == ["reload", "reset-failed", "start"]
    assert node.state["active"]


def test_a_start_that_fails_once(node):
    node.write(OLD)
    node.set(active=False, down="failed", fail_starts=1)
    with pytest.raises(FleetError, match="'systemctl start docker.service' failed: Job for docker.service failed") as caught:
        change(node)
    assert node.config.read_text() == OLD
    assert node.verbs() == ["reset-failed", "start", "reset-failed", "start"]
    assert node.state["active"]
    assert "failed to start daemon: stand-in was told to" in caught.value.observed


def test_a_dockerd_that_stays_down_is_said_to_be_down(node):
    node.write(OLD)
    node.set(active=False, down="failed", fail_starts=9)
    with pytest.raises(FleetError, match="dockerd is DOWN .* It was down before this run, too"):
        change(node)
    assert node.config.read_text() == OLD


def test_the_way_back_does_not_overwrite_a_third_party(node, monkeypatch):
    node.write(OLD)
    third = '{"debug": true, "bip": "192.0.2.1/24"}'

    def interfere(self):
        node.config.write_text(third)
        return "it has something else"

    monkeypatch.setattr(Engine, "take_over", interfere)
    with pytest.raises(FleetError, match="left as it is"):
        change(node)
    assert node.config.read_text() == third


def test_the_journal_is_masked(node):
    node.write(OLD)
    node.set(deaf=True, journal=["proxy http://me:canary-1@192.0.2.1:3128 failed", "token=canary-2"])
    with pytest.raises(FleetError) as caught:
        change(node)
    assert "canary" not in str(caught.value) + json.dumps(caught.value.as_dict())
    assert "http://********@192.0.2.1:3128" in caught.value.observed


# --- a run that was cut ---


def cut(node, monkeypatch, method):
    """Commit, and die where ``method`` of the engine is called."""

    def die(self, *_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Engine, method, die)
        with pytest.raises(KeyboardInterrupt):
            change(node)


def test_cut_between_write_and_reload_is_taken_up(node, monkeypatch):
    node.write(OLD)
    cut(node, monkeypatch, "take_over")
    assert node.config.read_text() == NEW
    assert "ascend" not in node.state["loaded"]["runtimes"]
    assert node.read()["pending"]
    result = take_over(node)
    assert (result["changed"], result["actions"], node.verbs()) == (True, ["reload"], ["reload"])
    assert "ascend" in node.state["loaded"]["runtimes"]
    assert not node.read()["pending"]


def test_cut_and_then_refused_goes_back_to_the_file_before_the_cut(node, monkeypatch):
    node.write(OLD)
    cut(node, monkeypatch, "take_over")
    node.set(deaf=True)
    with pytest.raises(FleetError, match="byte for byte"):
        take_over(node)
    assert node.config.read_text() == OLD


def test_cut_while_the_file_was_new_and_then_refused_takes_it_away(node, monkeypatch):
    cut(node, monkeypatch, "take_over")
    node.set(deaf=True)
    with pytest.raises(FleetError, match="byte for byte"):
        take_over(node)
    assert not node.config.exists()


def test_a_pending_change_that_was_taken_over_meanwhile_is_history(node):
    node.write(OLD)
    change(node, restart="never")
    node.write(NEW)  # dockerd has loaded it by a restart of its own
    newer = NEW.replace("true", "false")
    node.set(deaf=True)
    with pytest.raises(FleetError):
        change(node, newer, expect=dict(EXPECT, args=["--new"]))
    assert node.config.read_text() == NEW


def test_cut_before_the_rename_leaves_the_old_file(node, monkeypatch):
    rename = files.put_in_place

    def die(path, target):
        if target == str(node.config):
            raise KeyboardInterrupt
        rename(path, target)

    node.write(OLD)
    with monkeypatch.context() as patch:
        patch.setattr(files, "put_in_place", die)
        with pytest.raises(KeyboardInterrupt):
            change(node)
    assert node.config.read_text() == OLD
    assert node.read()["pending"]
    node.set(deaf=True)
    with pytest.raises(FleetError):
        change(node)
    assert node.config.read_text() == OLD
    node.set(deaf=False)
    assert change(node)["actions"] == ["reload"]


def test_a_broken_record_is_an_error_with_its_path(node):
    path = node.root / "var/lib/npu-fleet/engines/docker.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(FleetError, match="docker.json can not be read"):
        node.read()


# --- removal ---


def test_removal_goes_over_a_bridge_so_that_a_reload_forgets(node):
    node.write('{"debug": true, "runtimes": {"ascend": {"path": "/x"}}, "default-runtime": "ascend"}')
    bridge = '{"debug": true, "runtimes": {}, "default-runtime": "runc"}'
    result = change(node, '{"debug": true}', bridge=b64(bridge), expect=GONE, state="absent", path=None, note={})
    assert node.config.read_text() == '{"debug": true}'
    assert result["actions"] == ["reload", "reload"]
    assert result["effective"] == {
        "runtimes": {"runc": {"path": "runc", "args": [], "type": None}}, "default_runtime": "runc", "handlers": None,
    }


def test_removal_without_a_bridge_is_not_believed(node):
    node.write('{"debug": true, "runtimes": {"ascend": {"path": "/x"}}}')
    before = node.config.read_text()
    with pytest.raises(FleetError, match="still has the runtime ascend"):
        change(node, '{"debug": true}', expect=GONE, state="absent", path=None)
    assert node.config.read_text() == before


def test_removal_does_not_start_a_dockerd_that_is_down(node):
    node.write('{"runtimes": {"ascend": {"path": "/x"}}}')
    node.set(active=False)
    result = change(node, '{"runtimes": {}}', expect=GONE, state="absent", path=None)
    assert (result["changed"], result["reload_required"], node.verbs()) == (True, False, [])


def test_notes_live_from_registration_to_removal(node):
    node.write(OLD)
    note = {"previous_default": "nvidia"}
    change(node, note=note)
    assert node.read()["note"] == note
    path = node.root / "var/lib/npu-fleet/engines/docker.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    change(node, '{"runtimes": {}}', expect=GONE, state="absent", path=None, note={})
    assert node.read()["note"] == {}
    assert node.read(name="other")["note"] == {}
