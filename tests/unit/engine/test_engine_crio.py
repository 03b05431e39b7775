# SPDX-License-Identifier: GPL-3.0-or-later
"""cri-o as an engine. Its socket speaks HTTP and gRPC at once; here each has a server of its own."""

import base64
import errno
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from cri_host import EXPECT, GONE, WRAPPER, Host
from cri_server import pod, version

from ansible_collections.npu.fleet.plugins.module_utils import _cri, _engine, _grpc
from ansible_collections.npu.fleet.plugins.module_utils import _engine_crio as crio
from ansible_collections.npu.fleet.plugins.module_utils import _engine_steps as steps
from ansible_collections.npu.fleet.plugins.module_utils import _files as files
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import snapshot
from ansible_collections.npu.fleet.plugins.modules.oci_runtime_node import argument_spec

PLANTED = "hunter2-planted"
MAIN = "/etc/crio/crio.conf"


def toml(names=("crun", "ascend"), default="crun", cdi='"/etc/cdi",\n'):
    text = f'[crio]\n[crio.runtime]\ndefault_runtime = "{default}"\ncdi_spec_dirs = [\n{cdi}]\n'
    for name in names:
        path = WRAPPER if name == "ascend" else f"/usr/bin/{name}"
        text += f'[crio.runtime.runtimes.{name}]\nruntime_path = "{path}"\nruntime_type = "oci"\n'
    return text


def test_what_a_configuration_says():
    assert crio.configured(toml()) == {"runtimes": {"crun": "/usr/bin/crun", "ascend": WRAPPER}, "default_runtime": "crun", "error": None}
    assert crio.configured(None) == {"runtimes": {}, "default_runtime": None, "error": None}
    assert "line 2" in crio.configured("\n[x")["error"]
    assert crio.configured("[crio.runtime]\nruntimes = 1\n")["runtimes"] == {}


class CrioHost(Host):
    def __init__(self, root):
        super().__init__(root, crio)
        self.unit_name = "crio.service"
        self.unit["CanReload"] = "yes"
        self.command = "/usr/bin/crio $CRIO_CONFIG_OPTIONS"
        self.socket = root / "var/run/crio/crio.sock"
        self.printed = (0, toml(), "")
        self.live = toml()
        self.seen = []
        self.write("usr/bin/crio", "").chmod(0o755)
        self.write(MAIN, "# main\n")

    def run(self, argv, timeout, cwd=None, **more):
        result = super().run(argv, timeout, cwd, **more)
        if os.path.basename(argv[0]) == "crio":
            if argv[-1] == "config":
                config, folder = argv[argv.index("--config") + 1], argv[argv.index("--config-dir") + 1]
                files = [Path(config), *sorted(Path(folder).rglob("*"))]
                self.seen.append({path.name: path.read_text() for path in files if path.is_file()})
                said = self.printed[2].replace("COPY", config)
                return result._replace(rc=self.printed[0], stdout=self.printed[1], stderr=said, timed_out=self.printed[0] is None)
            return result._replace(stdout="crio version 1.31.2\nVersion:        1.31.2\nGitCommit: x\n")
        return result


@pytest.fixture()
def host(tmp_path, monkeypatch):
    host = CrioHost(tmp_path)
    # One socket can not hold both of the test's servers.
    monkeypatch.setattr(crio, "live_config", lambda _path, _timeout: host.live and crio.toml.parse(host.live))
    yield host
    host.stop()


@pytest.fixture()
def serve(host):
    pytest.importorskip("grpc")
    return lambda **more: host.serve({"sandboxImage": "x"}, number="1.31.2", name="cri-o", **more)


def test_facts(host, serve):
    serve(handlers=["", "crun", "ascend"], pods=pod("b", "ascend") + pod("a", ""))
    engine = host.engine()
    facts = engine.facts()
    assert facts["runtimes"]["ascend"] == {"path": WRAPPER, "args": [], "type": "oci"}
    assert (facts["default_runtime"], facts["handlers"], facts["cdi"]) == ("crun", ["ascend", "crun"], True)
    assert (facts["version"], facts["containers_running"]) == ("1.31.2", 2)
    assert engine.unmet(facts, EXPECT) is None
    assert engine.unmet(facts, GONE)
    assert engine.users("ascend", facts) == ["space/b"]


def test_cdi_that_is_off_or_not_told(host, serve):
    serve()
    host.live = toml(cdi="")
    assert host.engine().facts()["cdi"] is False
    host.live = None
    facts = host.engine().facts()
    assert (facts["cdi"], facts["default_runtime"]) == (None, None)


def test_files_in_their_order(host):
    host.command = "/usr/bin/crio -d /etc/other"
    for name in ("99-x.conf", "10-crio.conf", "b/1.conf", "b.conf"):
        host.write("etc/other/" + name, "")
    answer = host.engine().read()
    assert [one["path"] for one in answer["files"]] == [
        MAIN, "/etc/other/10-crio.conf", "/etc/other/99-x.conf", "/etc/other/b/1.conf", "/etc/other/b.conf",
    ]
    assert [one["role"] for one in answer["files"]] == ["main"] + ["dropin"] * 4
    assert answer["writable"] == [MAIN, "/etc/other/*.conf"]
    assert answer["effective_text"] == toml()


def test_a_new_drop_in_is_judged_among_the_others(host):
    host.write("etc/crio/crio.conf.d/10-crio.conf", "ten")
    host.write("etc/crio/crio.conf.d/99-npu-fleet-ascend.conf", "before")
    path = "/etc/crio/crio.conf.d/99-npu-fleet-ascend.conf"
    assert host.engine().validate(path, b"after", None) == "by crio config"
    assert host.seen[-1] == {"crio.conf": "# main\n", "10-crio.conf": "ten", "99-npu-fleet-ascend.conf": "after"}
    host.engine().validate(path, None, None)
    assert host.seen[-1] == {"crio.conf": "# main\n", "10-crio.conf": "ten"}
    host.engine().validate(MAIN, b"new", None)
    assert host.seen[-1]["crio.conf"] == "new"


def test_a_file_that_is_refused(host):
    host.printed = (1, "", f"time=x level=fatal\nunable to decode configuration COPY: toml: line 4: bad password={PLANTED}\n")
    with pytest.raises(FleetError) as caught:
        host.engine().validate(MAIN, b"x", None)
    assert caught.value.code == "parser_refused"
    assert f"new {MAIN}, line 4" in caught.value.message
    assert f"configuration {MAIN}:" in caught.value.message
    assert PLANTED not in str(caught.value.as_dict())


def test_without_the_program(host):
    (host.root / "usr/bin/crio").unlink()
    engine = host.engine()
    assert engine.validate(MAIN, b"x", None).startswith("not checked")
    assert engine.read()["effective_text"] is None
    assert not crio.installed(str(host.root))


def test_a_reload_is_enough_where_it_brings_the_runtime(host, serve):
    serve()
    engine = host.engine()
    assert engine.takes_over_by == "reload"
    assert engine.take_over() is None
    assert engine.done == ["reload"]


def test_a_reload_that_brings_nothing_is_followed_by_a_restart(host, serve, monkeypatch):
    monkeypatch.setattr(crio, "RELOAD_SECONDS", 0.3)
    serve()
    host.live = toml(names=("crun",))
    engine = host.engine()
    assert engine.take_over() is None
    assert engine.done == ["reload", "restart"]


def test_a_reload_that_does_not_bring_the_default(host, serve, monkeypatch):
    monkeypatch.setattr(crio, "RELOAD_SECONDS", 0.3)
    serve()
    host.printed = (0, toml(default="ascend"), "")
    engine = host.engine()
    assert engine.take_over() is None
    assert engine.done == ["reload", "restart"]


def test_no_restart_that_would_end_containers(host, serve, monkeypatch):
    monkeypatch.setattr(crio, "RELOAD_SECONDS", 0.3)
    serve(pods=pod("b", "crun"))
    host.unit["KillMode"] = "control-group"
    host.process(os.getpid(), unit="crio.service")
    host.process(55, words=["/usr/bin/conmon", "-c", "id-b-a"], comm="conmon", unit="crio.service")
    host.live = toml(names=("crun",))
    engine = host.engine()
    assert "would end running containers" in engine.take_over()
    assert engine.done == ["reload"]


def test_a_reload_ends_nothing_whatever_a_restart_would_end(host, serve):
    serve(pods=pod("b", "crun"))
    host.unit["KillMode"] = "control-group"
    host.process(os.getpid(), unit="crio.service")
    host.process(55, words=["/usr/bin/conmon", "-c", "id-b-a"], comm="conmon", unit="crio.service")
    engine = host.engine()
    assert engine.restart_kills(engine.facts()) == []
    host.unit["CanReload"] = "no"
    engine = host.engine()
    assert engine.restart_kills(engine.facts()) == ["space/b"]


DROPIN = "/etc/crio/crio.conf.d/99-npu-fleet-ascend.conf"


def test_a_new_drop_in_is_made_ready_outside_of_the_folder_that_cri_o_reads(host):
    host.write("etc/crio/crio.conf.d/10-crio.conf", "")
    engine = host.engine()
    before = snapshot(str(host.root) + DROPIN)
    stage = engine.stage_folder(before.target)
    assert stage == str(host.root / "etc/crio")
    assert engine.stage_folder(str(host.root / "etc/crio/crio.conf")) is None
    seen = []

    def look():
        seen.append((sorted(os.listdir(host.root / "etc/crio/crio.conf.d")), len(os.listdir(stage))))

    assert files.write(before, b"new", look, stage=stage) is None
    assert seen == [(["10-crio.conf"], 3)]
    assert (host.root / DROPIN[1:]).read_bytes() == b"new"
    assert sorted(os.listdir(stage)) == ["crio.conf", "crio.conf.d"]
    files.write_back(before, snapshot(before.target), None, stage)
    assert sorted(os.listdir(host.root / "etc/crio/crio.conf.d")) == ["10-crio.conf"]


@pytest.mark.parametrize("how", ["device", "mount", "missing"])
def test_a_folder_of_drop_ins_that_is_a_file_system_of_its_own(host, monkeypatch, how):
    host.write("etc/crio/crio.conf.d/10-crio.conf", "")
    before = snapshot(str(host.root) + DROPIN)
    stage = host.engine().stage_folder(before.target)
    moved = []
    real = (os.stat, os.rename)

    def other_device(path, *words, **more):
        found = real[0](path, *words, **more)
        return SimpleNamespace(st_dev=found.st_dev + 1) if path == stage else found

    def rename(source, target):
        moved.append(os.path.dirname(source))
        if how == "mount" and moved[-1] == stage:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real[1](source, target)

    if how == "device":
        monkeypatch.setattr(files.os, "stat", other_device)
    monkeypatch.setattr(files.os, "rename", rename)
    files.write(before, b"new", stage=stage + "/none" if how == "missing" else stage)
    monkeypatch.undo()
    assert moved == ([stage] if how == "mount" else []) + [os.path.dirname(before.target)]
    assert (host.root / DROPIN[1:]).read_bytes() == b"new"
    assert sorted(os.listdir(stage + "/crio.conf.d")) == ["10-crio.conf", os.path.basename(DROPIN)]
    assert sorted(os.listdir(stage)) == ["crio.conf", "crio.conf.d"]


def test_what_a_cut_run_has_left(host):
    name = os.path.basename(DROPIN)
    for path in ("crio.conf.d/.10-crio.conf.ab12.npu-fleet", f"crio.conf.d/.{name}.ab12.npu-fleet", f".{name}.cd34.npu-fleet"):
        host.write("etc/crio/" + path, "half")
    for path in ("crio.conf.d/.mine", "crio.conf.d/x.npu-fleet", ".crio.conf.ab12.npu-fleet"):
        host.write("etc/crio/" + path, "admin's, or another file's")
    engine = host.engine()
    assert [one["path"] for one in engine.read()["files"]] == [MAIN, "/etc/crio/crio.conf.d/.mine", "/etc/crio/crio.conf.d/x.npu-fleet"]
    files.sweep(str(host.root) + DROPIN, engine.stage_folder(str(host.root) + DROPIN))
    assert sorted(os.listdir(host.root / "etc/crio/crio.conf.d")) == [".mine", "x.npu-fleet"]
    assert sorted(os.listdir(host.root / "etc/crio")) == [".crio.conf.ab12.npu-fleet", "crio.conf", "crio.conf.d"]


def test_a_commit_stages_and_sweeps_there(host, serve, monkeypatch):
    serve(handlers=["crun", "ascend"])
    host.write("etc/crio/crio.conf.d/.99.ab12.npu-fleet", "half")
    monkeypatch.setattr(_engine, "choose", lambda *_arguments: (crio, None))
    folders = []
    real = files.put_in_place
    monkeypatch.setattr(files, "put_in_place", lambda path, target: (folders.append(os.path.dirname(path)), real(path, target)))
    params = {name: option.get("default") for name, option in argument_spec().items()}
    params.update(
        name="ascend", path=WRAPPER, root=str(host.root), timeout=2, engine="auto", file=DROPIN, expect=EXPECT, validate=False,
        content=base64.b64encode(b"new").decode(), expected={MAIN: snapshot(str(host.root) + MAIN).sha256, DROPIN: ""},
    )
    steps.commit(params, host.run)
    assert os.listdir(host.root / "etc/crio/crio.conf.d") == [os.path.basename(DROPIN)]
    assert str(host.root / "etc/crio") in folders
    assert str(host.root / "etc/crio/crio.conf.d") not in folders


def test_a_unit_without_reload(host):
    host.unit["CanReload"] = "no"
    assert host.engine().takes_over_by == "restart"


def test_the_entry_of_npu_info(host, serve):
    serve(handlers=["crun", "ascend"])
    entry = crio.observe(host.run, str(host.root), 5)
    assert (entry["name"], entry["active"], entry["cdi"]) == ("crio", True, True)
    assert entry["configured"]["runtimes"]["ascend"] == WRAPPER
    assert crio.Engine(host.run, str(host.root), 5, 5).version() == "1.31.2"


def test_one_that_is_down(host):
    host.unit["ActiveState"] = "inactive"
    entry = crio.observe(host.run, str(host.root), 5)
    assert entry["active"] is False
    assert entry["version"] == "1.31.2"


# --- HTTP over its socket ---


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(toml()) + toml().encode(), True),
        (b"HTTP/1.0 200 OK\r\n\r\n" + toml().encode(), True),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\n\r\n[broken", False),
        (b"", False),
        (b"nonsense\r\n\r\n", False),
    ],
)
def test_the_configuration_in_force(tmp_path, answer, found):
    path = str(tmp_path / "c.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    asked = []

    def work():
        connection = listener.accept()[0]
        with connection:
            asked.append(connection.recv(4096))
            connection.sendall(answer)

    thread = threading.Thread(target=work)
    thread.start()
    live = crio.live_config(path, 5)
    thread.join(5)
    listener.close()
    assert asked[0].startswith(b"GET /config HTTP/1.1\r\n")
    assert (live is not None) == found
    if found:
        assert crio.runtimes_of(live)[1] == "crun"


def test_no_socket(tmp_path):
    assert crio.live_config(str(tmp_path / "none"), 5) is None


def test_versions_by_cri(host):
    pytest.importorskip("grpc")
    host.serve(answers={"Version": version("1.31.2", "cri-o")})
    with pytest.raises(FleetError) as caught:
        _cri.status(str(host.socket), 5)
    assert caught.value.observed == f"gRPC status {_grpc.UNIMPLEMENTED}"
