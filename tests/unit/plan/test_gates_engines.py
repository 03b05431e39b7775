# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers of the gates through each engine: what is called, what is read, and that nothing stays."""

import os
import shutil
from collections import namedtuple

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _gates_engines as engines
from ansible_collections.npu.fleet.plugins.module_utils._command import run as really_run
from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import socket_of

Result = namedtuple("Result", "argv rc stdout stderr timed_out seconds")


def recorder(answers, calls):
    def run(argv, timeout, stdin=None):
        calls.append(list(argv))
        for words, (rc, out, err, hung) in answers.items():
            if words in " ".join(argv):
                return Result(argv, rc, out, err, hung, 0.1)
        return Result(argv, 0, "", "", False, 0.1)

    return run


def ls(*names):
    """What `ls -ln` prints: of GNU coreutils 9.1, and of busybox, which has more blanks."""
    lines = ["total 0", "lrwxrwxrwx 1 0 0 13 Nov 30 12:00 fd -> /proc/self/fd", "drwxr-xr-x 2 0 0   0 Nov 30 12:00 pts"]
    lines += [f"crw-rw---- 1 0 0 {236 + n},   {n} Nov 30 12:00 {name}" for n, name in enumerate(names)]
    lines.append("crw-rw-rw-    1 0        0           5,   0 Nov 30  2026 tty")
    return "\n".join(lines) + "\n"


def test_device_numbers_of_a_container():
    seen = engines.reading(Result([], 0, ls("null", "zero", "davinci0"), "", False, 1.0), 9)
    assert seen["nodes"] == {"fd": None, "pts": None, "null": "236:0", "zero": "237:1", "davinci0": "238:2", "tty": "5:0"}


def test_nodes_in_folders_carry_the_folders_name():
    told = "/dev:\n" + ls("null", "zero") + "\n/dev/dri:\n" + ls("card0", "renderD128") + "\n/dev/pts:\ntotal 0\n"
    seen = engines.reading(Result([], 0, told, "", False, 1.0), 9)
    assert (seen["nodes"]["dri/card0"], seen["nodes"]["dri/renderD128"], seen["nodes"]["zero"]) == ("236:0", "237:1", "237:1")
    assert seen["started"]


GIVEN = {
    "env": {"A": "b,c", "ASCEND_X": "0,1"}, "devices": [{"host_path": "/dev/zero", "container_path": "/dev/davinci7", "permissions": "rw"}],
    "mounts": [{"host_path": "/opt/x", "container_path": "/opt/y", "read_only": True}],
}


def test_docker_gives_what_a_plugin_answered_by_its_own_runtime(tmp_path):
    calls = []
    engines.Docker(recorder({}, calls), "docker", engines.OWN, str(tmp_path / "w")).start(0, GIVEN, 9)
    line = " ".join(calls[0])
    assert "--device /dev/zero:/dev/davinci7:rw" in line
    assert "--volume /opt/x:/opt/y:ro" in line
    assert "--env ASCEND_X=0,1" in line
    assert "--runtime" not in line


def test_no_value_of_a_variable_is_a_word_of_a_command(tmp_path):
    """But for those of plugin and runtime, which name chips. It comes by a file that nobody else can read, and that goes."""
    seen = []

    def run(argv, timeout, stdin=None):
        path = argv[argv.index("--env-file") + 1]
        with open(path, encoding="utf-8") as stream:
            seen.append((" ".join(argv), stream.read(), os.stat(path).st_mode & 0o777, path))
        return Result(argv, 0, "", "", False, 0.1)

    tried = engines.Docker(run, "docker", engines.OWN, str(tmp_path / "w"))
    tried.start(0, dict(GIVEN, env={"TOKEN": "canary-1", "LD_LIBRARY_PATH": "/canary-2", "ASCEND_VISIBLE_DEVICES": "0"}), 9)
    ((line, text, mode, path),) = seen
    assert "canary" not in line
    assert "--env ASCEND_VISIBLE_DEVICES=0" in line
    assert (text, mode) == ("LD_LIBRARY_PATH=/canary-2\nTOKEN=canary-1\n", 0o600)
    assert not os.path.exists(path)


def test_docker_cannot_give_a_value_with_a_line_break(tmp_path):
    tried = engines.Docker(recorder({}, []), "docker", engines.OWN, str(tmp_path / "w"))
    answer = tried.start(0, dict(GIVEN, env={"TOKEN": "a\nB=canary"}), 9)
    assert not answer["started"]
    assert "TOKEN" in answer["error"]
    assert "canary" not in answer["error"]


def test_a_spec_has_what_a_plugin_answered(tmp_path):
    made = engines.spec(str(tmp_path), "n", GIVEN, ["x"])
    assert made["linux"]["devices"][0]["path"] == "/dev/davinci7"
    assert (made["linux"]["devices"][0]["major"], made["linux"]["devices"][0]["minor"]) == (1, 5)
    assert made["linux"]["resources"]["devices"][1:] == [{"allow": True, "type": "c", "major": 1, "minor": 5, "access": "rw"}]
    assert made["mounts"][-1] == {"destination": "/opt/y", "type": "bind", "source": "/opt/x", "options": ["rbind", "ro"]}
    assert "A=b,c" in made["process"]["env"]


def test_the_engines_own_runtime_needs_no_program(tmp_path):
    calls = []
    tried = engines.engine_for(recorder({}, calls), {"name": "containerd"}, engines.OWN, "/opt/ascend", str(tmp_path / "w"))
    assert tried.prepare() is None
    tried.start(0, dict(GIVEN, devices=[]), 9)
    assert "--runc-binary" not in calls[-1]


@pytest.mark.parametrize(("result", "started", "words"), [
    ((0, ls("null", "zero", "davinci0"), "", False), True, None),
    ((125, "", "docker: Error: unknown runtime ascend.\nSee 'docker run --help'.\n", False), False, "unknown runtime ascend"),
    ((1, "", "", False), False, "ended with 1"),
    ((0, "", "", False), False, "no answer"),
    ((None, ls("null", "zero"), "", True), True, "did not end within 9 s"),
    ((1, "", "proxy http://u:canary-77@p:1 refused", False), False, "refused"),
])
def test_what_a_command_tells(result, started, words):
    rc, out, err, hung = result
    seen = engines.reading(Result([], rc, out, err, hung, 1.0), 9)
    assert seen["started"] is started
    assert seen["error"] is None if words is None else words in seen["error"]
    assert "canary-77" not in str(seen)


def test_docker_leaves_nothing(tmp_path):
    calls = []
    tried = engines.Docker(recorder({"run --rm": (125, "", "bad", False)}, calls), "docker", "ascend", str(tmp_path / "w"))
    assert tried.prepare() is None
    assert not tried.ask(0, "0,1", 9)["started"]
    tried.ask(1, None, 9)
    assert tried.clean() == []
    assert [argv[1] for argv in calls] == ["ps", "rmi", "import", "run", "run", "ps", "rmi"]
    assert "ASCEND_VISIBLE_DEVICES=0,1" in calls[3]
    assert "--env" not in calls[4]


def test_docker_says_what_it_could_not_remove(tmp_path):
    calls = []
    tried = engines.Docker(recorder({"ps --all": (0, "abc\ndef\n", "", False)}, calls), "docker", "ascend", str(tmp_path / "w"))
    assert tried.clean() == ["container abc", "container def"]
    assert ["docker", "rm", "--force", "--volumes", "abc", "def"] in calls


@pytest.mark.parametrize("answer", [(1, "", "Cannot connect to the Docker daemon", False), (None, "", "", True)])
def test_who_cannot_be_asked_has_not_said_that_nothing_is_left(tmp_path, answer):
    run = recorder({"ps --all": answer, "list --quiet": answer}, [])
    for tried in (engines.Docker(run, "docker", "ascend", str(tmp_path / "w")),
                  engines.Containerd(run, ["ctr"], "/s", "/opt/r", str(tmp_path / "w"))):
        (left,) = tried.clean()
        assert "does not list containers: %s" % (answer[2] or "no answer") in left


def test_an_image_that_cannot_be_made_is_the_reason(tmp_path):
    tried = engines.Docker(recorder({"import": (1, "", "no space left on device", False)}, []), "docker", "ascend", str(tmp_path / "w"))
    assert "no space left on device" in tried.prepare()


@pytest.mark.parametrize(("engine", "kind"), [
    ("docker", engines.Docker), ("containerd", engines.Containerd), ("k3s", engines.Containerd), ("rke2", engines.Containerd),
    ("crio", engines.Bundle), ("isulad", engines.Bundle),
])
def test_each_engine_has_its_way(engine, kind, tmp_path):
    assert type(engines.engine_for(None, {"name": engine}, "ascend", "/opt/r", str(tmp_path), root=str(tmp_path))) is kind


@pytest.mark.parametrize(("engine", "path"), [
    ({"name": "containerd"}, "/run/containerd/containerd.sock"), ({"name": "k3s"}, "/run/k3s/containerd/containerd.sock"),
    ({"name": "rke2"}, "/run/k3s/containerd/containerd.sock"), ({"name": "containerd", "socket": "unix:///run/x.sock"}, "/run/x.sock"),
])
def test_where_containerd_listens(engine, path):
    assert socket_of(engine) == path


def test_ctr_of_each_distribution(tmp_path):
    def make(path):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("")
        target.chmod(0o755)
        return str(target)

    k3s, rke2, ctr = make("usr/local/bin/k3s"), make("var/lib/rancher/rke2/bin/ctr"), make("usr/bin/ctr")
    assert engines.client_of("k3s", str(tmp_path)) == [k3s, "ctr"]
    assert engines.client_of("rke2", str(tmp_path)) == [rke2]
    assert engines.client_of("containerd", str(tmp_path)) == [ctr]


def test_containerd_gets_a_spec_and_its_folder_goes(tmp_path):
    calls = []
    work = tmp_path / "work"
    answers = {" run ": (0, ls("null", "zero", "davinci1"), "", False)}
    tried = engines.Containerd(recorder(answers, calls), ["ctr"], "/s", "/opt/r", str(work))
    assert tried.prepare() is None
    assert tried.ask(3, "0,1", 9)["nodes"]["davinci1"] == "238:2"
    assert calls[-1] == ["ctr", "--address", "/s", "--namespace", "npu-fleet-gate", "run", "--rm", "--runc-binary", "/opt/r",
                         "--config", str(work / "3/config.json"), "npu-fleet-gate-3"]
    assert '"ASCEND_VISIBLE_DEVICES=0,1"' in (work / "3/config.json").read_text()
    assert os.path.isdir(work / "rootfs/dev")
    assert tried.clean() == []
    assert not work.exists()


def test_containers_of_a_killed_run_are_removed_first(tmp_path):
    calls = []
    listed = iter(["old-1\n", "", ""])

    def run(argv, timeout, stdin=None):
        calls.append(argv[5:])
        return Result(argv, 0, next(listed) if argv[5:7] == ["containers", "list"] else "", "", False, 0.1)

    assert engines.Containerd(run, ["ctr"], "/s", "/opt/r", str(tmp_path / "w")).prepare() is None
    assert calls[1:3] == [["tasks", "delete", "--force", "old-1"], ["containers", "delete", "old-1"]]


def test_a_runtime_that_nobody_names_is_the_reason(tmp_path):
    for path in (None, "ascend"):
        assert "which program" in engines.Containerd(recorder({}, []), ["ctr"], "/s", path, str(tmp_path / "w")).prepare()


def test_a_mount_inside_of_our_folder_is_never_removed_through(tmp_path, monkeypatch):
    work = tmp_path / "w"
    (work / "rootfs").mkdir(parents=True)
    monkeypatch.setattr(engines, "_lines", lambda path: [f"36 35 98:0 / {work}/rootfs/usr rw - ext4 /dev/sda rw"])
    assert engines.Bundle(recorder({}, []), "/opt/r", str(work)).clean() == [f"mount {work}/rootfs/usr"]
    assert (work / "rootfs").exists()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runc"), reason="needs root and runc")
def test_a_runtime_is_called_as_an_engine_does(tmp_path):
    """runc gives no chip and refuses nothing, but it is a real runtime."""
    tried = engines.Bundle(really_run, shutil.which("runc"), str(tmp_path / "w"))
    assert tried.prepare() is None
    probed = tried.ask(0, "0", 30)
    if not probed["started"]:
        tried.clean()
        pytest.skip(f"runc cannot start a container here: {probed['error']}")
    assert {"null", "zero", "tty"} <= set(probed["nodes"])
    assert (probed["timed_out"], probed["error"]) == (False, None)
    assert tried.clean() == []
    assert not (tmp_path / "w").exists()
