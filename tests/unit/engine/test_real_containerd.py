# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's steps against a real containerd with folders of its own; a stand-in for systemctl starts and ends it.

Where there is no containerd, or no root, nothing of this runs.
"""

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _cri
from ansible_collections.npu.fleet.plugins.module_utils import _engine_containerd as containerd
from ansible_collections.npu.fleet.plugins.module_utils import _engine_steps as steps
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.modules.oci_runtime_node import argument_spec

BINARY = shutil.which("containerd")
pytestmark = pytest.mark.skipif(not BINARY or os.geteuid() != 0, reason="needs root and a containerd")

WRAPPER = "/bin/true"
EXPECT = {"state": "present", "name": "ascend", "path": WRAPPER, "args": None, "default": None}
TABLE = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
RUNC = f'[{TABLE}.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
ASCEND = f'[{TABLE}.ascend]\n  runtime_type = "io.containerd.runc.v2"\n  [{TABLE}.ascend.options]\n    BinaryName = "{WRAPPER}"\n'

SYSTEMCTL = '''#!{python}
import json, os, signal, subprocess, sys, time

PLACE, BINARY = {place!r}, {binary!r}
CONFIG, SOCKET, PID = (os.path.join(PLACE, name) for name in ("config.toml", "containerd.sock", "pid"))


def pid():
    try:
        number = int(open(PID).read())
        os.kill(number, 0)
        return number if open("/proc/%d/stat" % number).read().split()[2] != "Z" else 0
    except (OSError, ValueError):
        return 0


def stop():
    number = pid()
    if number:
        os.kill(number, signal.SIGTERM)
        while pid():
            time.sleep(0.02)


def start():
    path = os.path.join(PLACE, "log")
    with open(path, "ab") as log:
        before = log.tell()
        process = subprocess.Popen([BINARY, "--config", CONFIG], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    open(PID, "w").write(str(process.pid))
    end = time.time() + 20
    while time.time() < end and process.poll() is None:
        if b"successfully booted" in open(path, "rb").read()[before:]:
            return 0
        time.sleep(0.05)
    sys.stderr.write("Job for containerd.service failed because the control process exited with error code.\\n")
    return 1


verb = sys.argv[1]
with open(os.path.join(PLACE, "calls"), "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if verb == "show" and sys.argv[2] != "containerd.service":
    print("LoadState=not-found")
elif verb == "show":
    number = pid()
    print("LoadState=loaded\\nActiveState=%s\\nMainPID=%d\\nKillMode=process\\nCanReload=no" % ("active" if number else "failed", number))
    print("ExecStart={{ path=%s ; argv[]=%s --config %s ; ignore_errors=no ; }}" % (BINARY, BINARY, CONFIG))
elif verb in ("restart", "stop", "start"):
    if verb != "start":
        stop()
    sys.exit(start() if verb != "stop" else 0)
'''


class Host:
    def __init__(self, place):
        self.place = place
        self.config = place / "config.toml"
        self.socket = str(place / "containerd.sock")
        (place / "bin").mkdir()
        program = place / "bin/systemctl"
        program.write_text(SYSTEMCTL.format(python=sys.executable, place=str(place), binary=BINARY))
        program.chmod(0o755)
        self.head = (
            f'version = 2\nroot = "{place}/root"\nstate = "{place}/state"\n[grpc]\n  address = "{self.socket}"\n'
            f'[plugins."io.containerd.internal.v1.opt"]\n  path = "{place}/opt"\n'
        )

    def systemctl(self, verb):
        return subprocess.run([self.place / "bin/systemctl", verb, "containerd.service"], check=False).returncode

    def pid(self):
        return int((self.place / "pid").read_text())

    def params(self, **values):
        params = {name: option.get("default") for name, option in argument_spec().items()}
        params.update(engine="containerd", name="ascend", path=WRAPPER, timeout=20, command_timeout=10)
        params.update(state_folder=str(self.place / "record"), **values)
        return params

    def read(self):
        return steps.read(self.params(), run)

    def commit(self, text, **values):
        files = self.read()["files"]
        expected = {one["path"]: one["sha256"] or "" for one in files}
        content = None if text is None else base64.b64encode(text.encode()).decode()
        return steps.commit(self.params(**dict({"expected": expected, "content": content, "expect": EXPECT, "note": {}}, **values)), run)


@pytest.fixture()
def host(tmp_path, monkeypatch):
    # A socket's path may not be longer than 107 bytes.
    place = Path("/tmp") / f"npu-fleet-{os.getpid()}"
    place.mkdir(mode=0o700)
    host = Host(place)
    monkeypatch.setenv("PATH", f"{place}/bin:{os.environ['PATH']}")
    yield host
    host.systemctl("stop")
    for mount in reversed([line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(place) in line.split()[1]]):
        subprocess.run(["umount", "--lazy", mount], check=False)
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture()
def old(host):
    """A running containerd with the admin's file."""
    text = "# rack 7\n" + host.head + RUNC
    host.config.write_text(text)
    assert host.systemctl("start") == 0
    return text


def test_read(host, old):
    answer = host.read()
    assert answer["active"], answer["error"]
    assert answer["version"] == answer["binary_version"]
    assert answer["binary"] == BINARY
    assert answer["config_path"] == str(host.config)
    assert answer["socket"] == host.socket
    assert answer["effective"]["default_runtime"] == "runc"
    assert answer["effective"]["handlers"] == ["runc"]
    assert answer["takes_over_by"] == "restart"
    assert answer["restart_kills"] == []
    assert (answer["load_version"], answer["effective_error"]) == (2, None)
    assert containerd.configured(answer["effective_text"])["default_runtime"] == "runc"
    assert json.dumps(answer)


def test_a_runtime_is_taken_over_and_a_second_time_nothing_is_done(host, old):
    before = host.pid()
    first = host.commit(old + ASCEND)
    assert (first["changed"], first["actions"], first["killed"]) == (True, ["restart"], [])
    assert first["validation"] == "by containerd config dump"
    assert first["effective"]["runtimes"]["ascend"]["path"] == WRAPPER
    assert "ascend" in first["effective"]["handlers"]
    after = host.pid()
    assert after != before
    second = host.commit(None)
    assert (second["changed"], second["actions"]) == (False, [])
    assert host.pid() == after
    gone = host.commit(old, expect=dict(EXPECT, state="absent"))
    assert gone["actions"] == ["restart"]
    assert "ascend" not in gone["effective"]["runtimes"]


@pytest.mark.parametrize(
    ("more", "line", "words"),
    [("[broken\n", True, "refuses"), ('[plugins."io.containerd.grpc.v1.cri"]\nmax_concurrent_downloads = "x"\n', None, "refuses")],
)
def test_a_file_that_the_parser_refuses(host, old, more, line, words):
    pid = host.pid()
    with pytest.raises(FleetError) as caught:
        host.commit(old + more)
    assert caught.value.code == "parser_refused"
    assert words in caught.value.message
    if line:
        assert f"line {len(old.splitlines()) + 1}" in caught.value.message
    assert host.config.read_text() == old
    assert host.pid() == pid


def test_a_default_that_has_no_entry_is_seen_before_anything_is_written(host, old):
    """The parser takes it, CRI would not load."""
    with pytest.raises(FleetError) as caught:
        host.commit(old + f'[{TABLE[:-9]}]\n  default_runtime_name = "nope"\n')
    assert caught.value.code == "parser_refused"
    assert "nope" in caught.value.message
    assert host.config.read_text() == old


@pytest.mark.parametrize("bad", ["default", "syntax"])
def test_the_old_file_comes_back_where_containerd_or_its_cri_part_does_not(host, old, bad):
    """Nothing is checked before, so that the restart is the judge: the unit is active without CRI, or it does not start."""
    text = old + (f'[{TABLE[:-9]}]\n  default_runtime_name = "nope"\n' if bad == "default" else "[broken\n")
    began = time.monotonic()
    with pytest.raises(FleetError) as caught:
        host.commit(text, validate=False)
    assert caught.value.code == "engine_rejected"
    assert ("unknown service" if bad == "default" else "failed") in caught.value.message
    assert host.config.read_text() == old
    assert _cri.status(host.socket, 5)["ready"]
    assert time.monotonic() - began < 60


def test_a_containerd_that_was_killed_is_started(host, old):
    os.kill(host.pid(), signal.SIGKILL)
    while host.read()["active"]:
        time.sleep(0.1)
    done = host.commit(old + ASCEND)
    assert done["actions"] == ["start"]
    assert _cri.status(host.socket, 5)["ready"]


def test_the_files_are_those_that_containerd_reads(host):
    """Its own dump names them, in no order; the order shows in who wins."""
    place = host.place
    for name, text in {
        "b/10.toml": "oom_score = 10\n", "b/9.toml": "oom_score = 9\n", "b/.dot.toml": "oom_score = 8\n",
        "a/x.toml": 'imports = ["y.toml"]\n', "a/y.toml": "oom_score = 1\n", "a/z.toml": "oom_score = 2\n", "a/none.conf": "",
    }.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("version = 2\n" + text)
    lines = [f"{place}/b/*.toml", "a/x.toml", f"{place}/a/z.toml", f"{place}/b/9.toml"]
    host.config.write_text(f"version = 2\nimports = {json.dumps(lines)}\n" + host.head.partition("\n")[2])
    answer = host.read()
    files = [one["path"] for one in answer["files"]]
    names = [str(Path(path).relative_to(place)) for path in files]
    assert names == ["config.toml", "b/.dot.toml", "b/10.toml", "b/9.toml", "a/x.toml", "a/z.toml", "a/y.toml"]
    dumped = containerd.imports_of(answer["effective_text"])
    if containerd.numbers(answer["binary_version"]) < (2, 0):
        assert sorted(dumped) == sorted(files)
    assert "oom_score = 1\n" in answer["effective_text"]


def test_a_drop_in_is_checked_in_its_place(host, old):
    """Its copy is read where the main file names it, and nothing else changes."""
    dropin = host.place / "conf.d/99.toml"
    dropin.parent.mkdir()
    main = "version = 2\nimports = ['@NPU_FLEET_COPY@']\n" + host.head.partition("\n")[2] + RUNC
    engine = containerd.Engine(run, "/", 10, 10)
    assert engine.validate(str(dropin), b"version = 2\noom_score = 3\n", main.encode()) == "by containerd config dump"
    with pytest.raises(FleetError) as caught:
        engine.validate(str(dropin), b"version = 2\noom_score = 'x'\n", main.encode())
    assert "line 2" in caught.value.message
    assert not list(dropin.parent.iterdir())


def test_a_file_changed_by_somebody_else(host, old):
    with pytest.raises(FleetError) as caught:
        host.commit(old + ASCEND, expected={str(host.config): hashlib.sha256(b"other").hexdigest()})
    assert caught.value.code == "file_changed"
    assert host.config.read_text() == old
