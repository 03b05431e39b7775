# SPDX-License-Identifier: GPL-3.0-or-later
"""The host lock, the journal and the record."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _journal


def test_lock(tmp_path):
    with _journal.HostLock(str(tmp_path), "driver"):
        with pytest.raises(FleetError) as caught, _journal.HostLock(str(tmp_path), "firmware"):
            pytest.fail("two at once")
        assert caught.value.code == "busy"
        assert "driver, process" in str(caught.value)
    with _journal.HostLock(str(tmp_path), "firmware"):
        pass


def test_the_lock_is_waited_for(tmp_path):
    """A module whose controller was killed goes on and ends some time later."""
    holder = _journal.HostLock(str(tmp_path), "driver").__enter__()
    timer = threading.Timer(0.7, holder.__exit__)
    timer.start()
    started = time.monotonic()
    with _journal.HostLock(str(tmp_path), "firmware", 20):
        assert 0.6 < time.monotonic() - started < 10
        holder = json.loads((tmp_path / "packages.lock").read_text())
        assert (holder["component"], holder["pid"]) == ("firmware", os.getpid())
        assert sorted(holder) == ["boot_id", "component", "pid", "started"]
    timer.join()


def test_the_wait_for_the_lock_ends(tmp_path, monkeypatch):
    now, slept = [1000.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(_journal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_journal.time, "sleep", sleep)
    with _journal.HostLock(str(tmp_path), "driver"):
        with pytest.raises(FleetError, match="after 60 s: driver, process") as caught, _journal.HostLock(str(tmp_path), "firmware", 60):
            pytest.fail("two at once")
        assert (caught.value.code, caught.value.phase) == ("busy", "lock")
    assert 60 <= sum(slept) < 62
    assert min(slept) >= 0.2


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    code = (
        "import sys, os; sys.path[:0] = sys.argv[2].split(':')\n"
        "from ansible_collections.npu.fleet.plugins.module_utils._packages._journal import HostLock\n"
        "with HostLock(sys.argv[1], 'driver'): os.kill(os.getpid(), 9)\n"
    )
    paths = ":".join(path for path in sys.path if path)
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path), paths], check=False).returncode == -9
    with _journal.HostLock(str(tmp_path), "firmware"):
        pass


def test_journal(tmp_path):
    _journal.note(str(tmp_path / "new"), "start", component="driver", version="25.5.0")
    _journal.note(str(tmp_path / "new"), "end", component="driver", good=True)
    lines = [json.loads(line) for line in (tmp_path / "new" / "journal.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "end"]
    assert lines[0]["component"] == "driver"
    assert lines[0]["time"].endswith("Z")
    assert (tmp_path / "new" / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_record(tmp_path):
    place = str(tmp_path)
    assert _journal.installed(place) == {}
    _journal.remember(place, "driver", {"version": "25.5.0", "sha256": "x"})
    _journal.remember(place, "firmware", {"version": "7.8.0.5.216"})
    _journal.remember(place, "firmware", None)
    record = _journal.installed(place)
    assert sorted(record) == ["driver"]
    assert record["driver"]["version"] == "25.5.0"
    (tmp_path / "installed.json").write_text("{broken")
    assert _journal.installed(place) == {}


@pytest.mark.parametrize("torn", [b'{"event": "sta', b'{"event": "start"}', b"\xff\xfe", b"[1]"])
def test_a_torn_line_costs_only_itself(tmp_path, torn):
    (tmp_path / "journal.jsonl").write_bytes(b'{"event": "first"}\n' + torn)
    _journal.note(str(tmp_path), "next")
    events = [entry["event"] for entry in _journal.entries(str(tmp_path))]
    assert (events[0], events[-1]) == ("first", "next")
    assert len(events) == (3 if torn.endswith(b'"start"}') else 2)


def test_the_journal_does_not_grow_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(_journal, "_JOURNAL_LIMIT", 300)
    for number in range(20):
        _journal.note(str(tmp_path), "start", number=number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "journal.jsonl.1"]
    assert all(path.stat().st_size < 600 for path in tmp_path.iterdir())
    assert _journal.entries(str(tmp_path))[-1]["number"] == 19


def launch(place, version, component="driver"):
    _journal.note(place, "launched", component=component, version=version)


def test_the_boot_of_an_installation(tmp_path, monkeypatch):
    place = str(tmp_path)
    boot = {"id": "first"}
    monkeypatch.setattr(_journal, "boot_id", lambda: boot["id"])
    assert _journal.boot_of(place, "driver", "25.5.0") is None
    launch(place, "25.5.0")
    # cut before the record
    assert _journal.boot_of(place, "driver", "25.5.0") == "first"
    _journal.remember(place, "driver", {"version": "25.5.0"})
    boot["id"] = "second"
    launch(place, "25.5.2")
    # an upgrade that was cut before it changed anything: what is there was written in the first boot
    assert _journal.boot_of(place, "driver", "25.5.0") == "first"
    assert _journal.boot_of(place, "driver", "25.5.2") == "second"
    launch(place, "7.8.0.5.216", "firmware")
    assert _journal.boot_of(place, "driver", "25.5.2") == "second"
    assert _journal.boot_of(place, "driver", None) is None


def test_a_record_that_can_not_be_replaced_stays(tmp_path, monkeypatch):
    place = str(tmp_path)
    _journal.remember(place, "driver", {"version": "25.5.0"})

    def cut(*unused):
        raise KeyboardInterrupt

    monkeypatch.setattr(_journal.os, "rename", cut)
    with pytest.raises(KeyboardInterrupt):
        _journal.remember(place, "driver", {"version": "25.5.2"})
    assert _journal.installed(place)["driver"]["version"] == "25.5.0"
    monkeypatch.undo()
    _journal.remember(place, "driver", {"version": "25.5.2"})
    assert _journal.installed(place)["driver"]["version"] == "25.5.2"
