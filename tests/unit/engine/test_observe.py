# SPDX-License-Identifier: GPL-3.0-or-later
"""What npu_info hears about engines, and how dockerd's command line, unit and answers are read."""

import hashlib
import json

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _engine
from ansible_collections.npu.fleet.plugins.module_utils import _engine_docker as docker
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._command import Result, run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

# Cut from the answer of dockerd 20.10.24 (Debian 12) through client 20.10.24.
INFO = {
    "ServerVersion": "20.10.24+dfsg1", "ContainersRunning": 3, "LiveRestoreEnabled": True, "DefaultRuntime": "runc",
    "Runtimes": {"ascend": {"path": "/a", "runtimeArgs": ["--x"]}, "io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}},
}  # fmt: skip


def test_a_running_dockerd(node):
    node.write('{"runtimes": {"ascend": {"path": "/a"}}}')
    node.set(containers={"c1": "runc"})
    (engine,) = _engine.observe(run, str(node.root))
    assert engine == {
        "name": "docker", "version": "20.10.24+dfsg1", "active": True, "config_path": "/etc/docker/daemon.json",
        "config_sha256": hashlib.sha256(node.config.read_bytes()).hexdigest(),
        "runtimes": {"ascend": "/a", "runc": "runc"}, "default_runtime": "runc", "live_restore": False, "containers_running": 1,
        "configured": {"runtimes": {"ascend": "/a"}, "default_runtime": None, "error": None}, "error": None, "kubelet": False, "cdi": False,
    }  # fmt: skip
    assert [call for call in node.state["calls"] if call[0] == "docker"] == [["docker", "info", "--format", "{{json .}}"]]


def test_no_docker_is_no_engine(node):
    node.remove_docker()
    assert _engine.observe(run, str(node.root)) == []


def test_the_client_alone_is_no_engine(node):
    (node.root / "usr/sbin/dockerd").unlink()
    assert _engine.observe(run, str(node.root)) == []


def test_a_dockerd_that_is_down_says_so_and_has_no_zeroes(node):
    node.set(active=False)
    (engine,) = _engine.observe(run, str(node.root))
    assert engine["active"] is False
    assert engine["version"] == "20.10.24+dfsg1"
    assert engine["error"].startswith("Cannot connect to the Docker daemon")
    assert engine["containers_running"] is None
    assert engine["config_sha256"] is None


def test_a_missing_client_is_an_error_of_the_engine(node):
    (node.root / "usr/bin/docker").unlink()
    (engine,) = _engine.observe(run, str(node.root))
    assert (engine["active"], "client was not found" in engine["error"]) == (False, True)


def test_a_file_that_can_not_be_read_is_an_error_beside_the_facts(node):
    node.config.mkdir(parents=True)
    (engine,) = _engine.observe(run, str(node.root))
    assert engine["active"] is True
    assert "is not a regular file" in engine["error"]
    assert engine["configured"] == {"runtimes": {}, "default_runtime": None, "error": engine["error"]}


def test_a_runtime_that_only_dockerd_remembers_is_not_configured(node):
    node.write('{"runtimes": {"ascend": {"path": "/a"}}}')
    node.write("{}", load=False)
    run([str(node.root / "usr/bin/systemctl"), "reload", "docker"], 20)
    (engine,) = _engine.observe(run, str(node.root))
    assert engine["runtimes"]["ascend"] == "/a"
    assert engine["configured"] == {"runtimes": {}, "default_runtime": None, "error": None}


def test_a_default_on_the_command_line_counts_as_configured(node):
    node.set(command="/usr/sbin/dockerd -H fd:// --default-runtime=ascend")
    (engine,) = _engine.observe(run, str(node.root))
    assert engine["configured"] == {"runtimes": {}, "default_runtime": "ascend", "error": None}


@pytest.mark.parametrize(
    ("data", "runtimes", "default"),
    [
        (None, {}, None),
        (b" \n", {}, None),
        (b"{}", {}, None),
        (b'{"runtimes": null, "default-runtime": ""}', {}, None),
        (b'{"runtimes": {"a": {"path": "/a", "runtimeArgs": ["--token=canary"]}, "b": {"runtimeType": "io.b.v1"}, "c": {}},'
         b' "default-runtime": "a", "proxies": {"http-proxy": "http://u:canary@p"}}', {"a": "/a", "b": "io.b.v1", "c": ""}, "a"),
    ],
)  # fmt: skip
def test_what_the_file_says(data, runtimes, default):
    assert docker.configured(data, "/d.json") == {"runtimes": runtimes, "default_runtime": default, "error": None}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{\n  "http-proxy": "http://u:canary@p",\n  canary\n}', "/d.json, line 3: it is not JSON."),
        (b'{"a": "\\canary"}', "/d.json, line 1: it is not JSON."),
        (b'{"a": 1} canary', "/d.json, line 1: it is not JSON."),
        (b'\xef\xbb\xbf{}', "/d.json, line 1: it is not JSON."),
        (b'{\n"canary": "\xff"}', "/d.json, line 2: it is not UTF-8 text."),
        (b'["canary"]', "/d.json, line 1: it is not a JSON object."),
        (b'{"runtimes": ["canary"]}', '/d.json, line 1: "runtimes" is not an object of objects.'),
        (b'{"runtimes": {"a": "canary"}}', '/d.json, line 1: "runtimes" is not an object of objects.'),
        (b'{"default-runtime": ["canary"]}', '/d.json, line 1: "default-runtime" is not a text.'),
        (b"[" * 100000, "/d.json, line 1: "),
    ],
)  # fmt: skip
def test_a_broken_file_is_told_without_its_content(data, error):
    found = docker.configured(data, "/d.json")
    assert found["error"].startswith(error)
    assert (found["runtimes"], found["default_runtime"], "canary" in found["error"]) == ({}, None, False)


@pytest.mark.parametrize("error", [OSError("no"), ValueError("odd"), FleetError("gone", "command_missing")])
def test_it_never_raises(node, error):
    def broken(argv, timeout, **_options):
        raise error

    (engine,) = _engine.observe(broken, str(node.root))
    assert engine["active"] is False
    assert str(error) in engine["error"]
    assert engine["configured"] == {"runtimes": {}, "default_runtime": None, "error": engine["error"]}


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (Result(["docker"], -9, "", "", True, 20.0), "'docker info' did not answer within 20 s."),
        (Result(["docker"], 1, "", "permission denied\n", False, 0.1), "permission denied"),
        (Result(["docker"], 0, "host: {}", "", False, 0.1), "'docker info' ended with 0: output is not JSON"),
        (Result(["docker"], 0, '{"host": {}}', "", False, 0.1), "'docker info' ended with 0: output is not that of dockerd"),
        (Result(["docker"], 0, '{"ServerErrors": ["no daemon"]}', "", False, 0.1), "no daemon"),
        (Result(["docker"], 1, "", "error during connect: https://me:canary@h/info\n", False, 0.1), "error during connect: https://********@h/info"),
    ],
)  # fmt: skip
def test_answers_that_are_none(node, result, error):
    info = docker.query_info(lambda *_a, **_k: result, str(node.root), 20)
    assert (info["active"], info["error"]) == (False, error)


def test_an_answer():
    info = docker.parse_info(json.dumps(INFO))
    assert info["runtimes"]["ascend"] == {"path": "/a", "args": ["--x"], "type": None}
    assert (info["live_restore"], info["containers_running"], info["error"]) == (True, 3, None)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("/usr/sbin/dockerd -H fd:// --containerd=/run/c.sock", {"host": ["fd://"], "containerd": ["/run/c.sock"]}),
        ("dockerd -H tcp://192.0.2.1:2375 -H unix:///x -D", {"host": ["tcp://192.0.2.1:2375", "unix:///x"], "debug": ["true"]}),
        ("dockerd --host=fd:// --debug --config-file /srv/d.json", {"host": ["fd://"], "debug": ["true"], "config-file": ["/srv/d.json"]}),
        ("dockerd -Hfd:// --live-restore=false", {"host": ["fd://"], "live-restore": ["false"]}),
        ("dockerd", {}),
        ("", {}),
    ],
)
def test_flags(words, flags):
    assert docker.parse_flags(words.split()) == flags


@pytest.mark.parametrize(
    ("keys", "words", "both"),
    [
        (["hosts", "debug"], "dockerd -H fd://", ["hosts"]),
        (["debug"], "dockerd -D", ["debug"]),
        (["insecure-registries", "data-root"], "dockerd --insecure-registry=x -g /d", ["data-root", "insecure-registries"]),
        (["runtimes"], "dockerd --add-runtime a=/a", []),
        (["hosts"], "dockerd", []),
    ],
)
def test_conflicts(keys, words, both):
    assert docker.conflicts(keys, [docker.flag_key(flag) for flag in docker.parse_flags(words.split())]) == both


def test_the_unit_with_its_environment(tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/systemctl").write_text("#!/bin/sh\n")
    (tmp_path / "usr/bin/systemctl").chmod(0o755)
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "etc/default/docker").write_text("# comment\nDOCKER_OPTS=\"--config-file=/srv/docker.json -H tcp://x\"\n")
    shown = (
        "LoadState=loaded\nActiveState=inactive\nMainPID=0\nKillMode=process\nCanReload=yes\nEnvironment=LEVEL=warn\n"
        "EnvironmentFiles=/etc/default/docker (ignore_errors=yes)\n"
        "ExecStart={ path=/usr/sbin/dockerd ; argv[]=/usr/sbin/dockerd -H fd:// --log-level=${LEVEL} $DOCKER_OPTS $NONE ;"
        " ignore_errors=no ; start_time=[n/a] }\n"
    )
    process = docker.observe_process(lambda *_a, **_k: Result([], 0, shown, "", False, 0.1), str(tmp_path))
    assert process["words"] == ["/usr/sbin/dockerd", "-H", "fd://", "--log-level=warn", "--config-file=/srv/docker.json", "-H", "tcp://x"]
    assert process["config_path"] == "/srv/docker.json"
    assert process["unit"]["state"] == "inactive"


def test_the_running_command_line_wins_over_the_unit(node):
    process = node.root / "proc/77"
    process.mkdir(parents=True)
    (process / "comm").write_text("dockerd\n")
    (process / "cmdline").write_bytes(b"dockerd\0--config-file\0/etc/other.json\0")
    (node.root / "run").mkdir()
    (node.root / "run/docker.pid").write_text("77\n")
    assert docker.observe_process(run, str(node.root))["config_path"] == "/etc/other.json"
    (process / "comm").write_text("sleep\n")
    assert docker.observe_process(run, str(node.root))["config_path"] == "/etc/docker/daemon.json"


def test_without_systemd(node):
    (node.root / "usr/bin/systemctl").unlink()
    unit = units.query_unit(run, str(node.root), 20, docker.UNIT)
    assert (unit["loaded"], unit["state"], unit["command"]) == (False, None, [])


def test_auto(node):
    assert _engine.choose("auto", run, str(node.root)) == (docker, False)
    node.remove_docker()
    with pytest.raises(FleetError) as caught:
        _engine.choose("auto", run, str(node.root))
    assert caught.value.code == "engine_missing"
    with pytest.raises(FleetError, match="docker is not installed.*apt-get install docker.io"):
        _engine.choose("docker", run, str(node.root))


INFO_UP = {"active": True, "error": None, "default_runtime": "runc", "runtimes": {"ascend": {"path": "/a", "args": ["-x"]}}}


@pytest.mark.parametrize(
    ("info", "expect", "missing"),
    [
        ({}, {}, None),
        ({}, {"args": ["-x"]}, None),
        ({}, {"args": []}, "other arguments"),
        ({}, {"path": "/b"}, "is /a"),
        ({}, {"name": "other"}, "does not have the runtime other"),
        ({}, {"default": "ascend"}, "default runtime is runc"),
        ({}, {"default": "nvidia"}, None),
        ({"default_runtime": "ascend"}, {"default": "ascend"}, None),
        ({"active": False, "error": "gone"}, {}, "does not answer: gone"),
        ({}, {"state": "absent"}, "still has the runtime"),
        ({"default_runtime": "ascend"}, {"state": "absent"}, "default runtime is still ascend"),
        ({"runtimes": {}}, {"state": "absent"}, None),
    ],
)
def test_unmet(info, expect, missing):
    found = docker.unmet({**INFO_UP, **info}, {"state": "present", "name": "ascend", "path": "/a", "args": None, "default": None, **expect})
    assert found is None if missing is None else missing in found
