# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd as an engine: its pure decisions, and a host in a temporary root whose CRI is a real gRPC server in this process."""

import os
from pathlib import Path

import pytest
from cri_host import EXPECT, GONE, WRAPPER, Host, config, dump
from cri_server import pod, version

from ansible_collections.npu.fleet.plugins.module_utils import _engine_containerd as containerd
from ansible_collections.npu.fleet.plugins.module_utils import _engine_cri as cri
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

PLANTED = "hunter2-planted"


# --- pure ---


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/containerd.service\n", "containerd.service"),
        ("12:devices:/x.service\n1:name=systemd:/docker/0a/system.slice/containerd.service\n0::/\n", "containerd.service"),
        ("0::/system.slice/docker.service/inner\n", "docker.service"),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/c.service\n", "c.service"),
        ("0::/user.slice/session-1.scope\n", None),
        ("3:cpu:/system.slice/other.service\n", None),
        ("", None),
        ("nonsense\n", None),
    ],
)
def test_the_unit_of_a_process(text, unit):
    assert cri.unit_of(text) == unit


@pytest.mark.parametrize(
    ("words", "held"),
    [
        (["/usr/bin/containerd-shim-runc-v2", "-namespace", "moby", "-id", "abc", "-address", "/s"], ("moby", "abc")),
        (["containerd-shim-runc-v2", "-id", "abc"], ("k8s.io", "abc")),
        (["/usr/bin/conmon", "-b", "/x", "-c", "abc", "--exit-dir", "/y"], ("k8s.io", "abc")),
        (["conmon", "--cid", "abc", "-x"], ("k8s.io", "abc")),
        (["conmon", "-c"], None),
        ([], None),
    ],
)
def test_what_a_shim_holds(words, held):
    assert cri.held_by(words) == held


@pytest.mark.parametrize(
    ("word", "same"),
    [("-config", "--config"), ("-config=/x", "--config=/x"), ("-c", "-c"), ("-c=/x", "-c=/x"), ("--config", "--config"), ("-", "-")],
)
def test_flags_with_one_dash(word, same):
    assert cri.double_dashed(word) == same


@pytest.mark.parametrize(
    ("line", "numbers", "pattern"),
    [
        ("/a/*.toml", (1, 6), "/a/*.toml"),
        ("/a/../b.toml", (1, 6), "/b.toml"),
        ("x.toml", (1, 6), "/etc/c/x.toml"),
        ("conf.d/*.toml", (1, 6), "/run/where/conf.d/*.toml"),
        ("conf.d/*.toml", (1, 7), "/etc/c/conf.d/*.toml"),
        ("./conf.d/*.toml", (2, 1), "/etc/c/conf.d/*.toml"),
        ("x?.toml", (1, 6), "/etc/c/x?.toml"),
    ],
)
def test_the_place_of_an_import(line, numbers, pattern):
    assert containerd.import_pattern(line, "/etc/c/config.toml", numbers, "/run/where") == pattern


@pytest.mark.parametrize(
    ("text", "numbers"), [("1.6.20~ds1", (1, 6)), ("2.1.9+unknown", (2, 1)), ("v1.7.24-k3s1", (1, 7)), ("", (99, 99)), (None, (99, 99))]
)
def test_numbers_of_a_version(text, numbers):
    assert containerd.numbers(text) == numbers


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("failed to load TOML: /etc/x: (3, 2): unexpected token", 3),
        ("failed to unmarshal TOML at row 12 column 37: toml: expected ']'", 12),
        ("invalid plugin key URI", None),
    ],
)
def test_the_line_of_a_refusal(text, line):
    assert containerd.refusal_line(text) == line


@pytest.mark.parametrize(
    ("text", "imports", "number"),
    [
        ("version = 2\nimports = ['/a', \"b\"]", ["/a", "b"], 2),
        ("imports = []", [], None),
        ("version = '2'", None, None),
        ("version = true", None, None),
        ("[broken", None, None),
        ("{{ template \"base\" . }}", None, None),
        ("[plugins]\nversion = 3\nimports = ['/x']", None, None),
    ],
)
def test_what_a_file_says(text, imports, number):
    assert containerd.imports_of(text) == imports
    assert containerd.version_of(text) == number


@pytest.mark.parametrize(
    ("text", "address"), [("[grpc]\naddress = '/x.sock'", "/x.sock"), ("[grpc]\naddress = 1", None), ("", None), ("[broken", None)]
)
def test_the_socket_in_a_file(text, address):
    assert containerd.address_of(text) == address


@pytest.mark.parametrize("table", ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "cri"])
def test_what_a_dump_comes_to(table):
    # 2.x prints what is left of the old table beside the new one.
    more = "" if table == "io.containerd.grpc.v1.cri" else "[plugins.'io.containerd.grpc.v1.cri']\nstream_server_port = '0'\n"
    assert containerd.configured(dump(table, more=more)) == {
        "runtimes": {"runc": "io.containerd.runc.v2", "ascend": WRAPPER}, "default_runtime": "runc", "error": None,
    }
    assert containerd.dump_trouble(dump(table, more=more)) is None
    assert "default runtime nope" in containerd.dump_trouble(dump(table, default="nope", more=more))


def test_a_dump_without_cri():
    assert containerd.configured("version = 2\n") == {"runtimes": {}, "default_runtime": None, "error": None}
    assert containerd.dump_trouble("version = 2\n") is None
    assert containerd.configured(None) == {"runtimes": {}, "default_runtime": None, "error": None}
    assert "line 1" in containerd.configured("[broken")["error"]


def test_programs_of_runtimes():
    found = containerd.runtimes_of({
        "runc": {"runtimeType": "t", "options": None},
        "v1": {"runtime_type": "io.containerd.runtime.v1.linux", "options": {"Runtime": "/r"}},
        "kata": {"runtime_type": "io.containerd.kata.v2", "runtime_path": "/k"},
        "odd": "no table",
    })
    assert found["runc"] == {"path": "", "args": [], "type": "t"}
    assert {name: runtime["path"] for name, runtime in found.items()} == {"runc": "", "v1": "/r", "kata": "/k"}


# --- a host ---


@pytest.fixture()
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture()
def serve(host):
    pytest.importorskip("grpc")
    yield host.serve
    host.stop()


def test_the_process_at_the_socket_decides(host, serve):
    """Two of them: kubelet's is not the one in PATH, and reads another file."""
    host.write("opt/k/bin/containerd", "").chmod(0o755)
    host.write("etc/k/config.toml", "version = 2\n")
    host.process(os.getpid(), words=["/opt/k/bin/containerd", "-config", "/etc/k/config.toml"], exe="/opt/k/bin/containerd")
    serve(config())
    engine = host.engine()
    assert engine.pid == os.getpid()
    assert engine.config_path == "/etc/k/config.toml"
    assert engine.binary() == str(host.root / "opt/k/bin/containerd")
    assert engine.unit["name"] == "containerd.service"
    assert engine.unit["loaded"]
    engine.require()
    assert engine.read()["files"][0]["path"] == "/etc/k/config.toml"


def test_a_program_that_was_replaced_while_it_runs(host, serve):
    host.process(os.getpid(), exe="/usr/bin/containerd (deleted)")
    serve(config())
    assert host.engine().binary() == str(host.root / "usr/bin/containerd")


def test_kubelets_endpoint_is_the_socket(host, serve):
    words = ["kubelet", "--container-runtime-endpoint=unix:///run/other/containerd.sock"]
    host.process(9, words=words, comm="kubelet", unit="kubelet.service")
    host.process(os.getpid(), unit="other.service")
    serve(config(), path=host.root / "run/other/containerd.sock")
    engine = host.engine()
    assert engine.socket_path == "/run/other/containerd.sock"
    assert engine.unit["name"] == "other.service"
    assert engine.facts()["active"]


@pytest.mark.parametrize(
    ("command", "text", "path"),
    [
        ("/usr/bin/containerd", "version = 2\n", "/run/containerd/containerd.sock"),
        ("/usr/bin/containerd", "[grpc]\naddress = '/run/mine.sock'\n", "/run/mine.sock"),
        ("/usr/bin/containerd -a /run/flag.sock", "[grpc]\naddress = '/run/mine.sock'\n", "/run/flag.sock"),
        ("/usr/bin/containerd --address=/run/flag.sock", "", "/run/flag.sock"),
    ],
)
def test_the_socket_where_no_kubelet_is(host, command, text, path):
    host.command = command
    host.write("etc/containerd/config.toml", text)
    assert host.engine().socket_path == path


def test_a_containerd_that_is_down(host):
    host.unit["ActiveState"] = "inactive"
    host.command = "/usr/bin/containerd --config /etc/c.toml"
    engine = host.engine()
    facts = engine.facts()
    assert (engine.pid, engine.config_path) == (None, "/etc/c.toml")
    assert facts["active"] is False
    assert facts["containers_running"] is None
    assert "No such file" in facts["error"]
    assert engine.unmet(facts, EXPECT).startswith("containerd does not answer")
    assert engine.restart_kills(facts) == []
    assert not engine.running()
    assert engine.failed()


def test_a_socket_that_systemd_holds(host, serve, monkeypatch):
    host.unit["MainPID"] = "77"
    host.process(77, words=["/usr/bin/containerd", "--config", "/etc/x.toml"])
    serve(config())
    monkeypatch.setattr(cri, "listener", lambda _path: 1)
    engine = host.engine()
    assert (engine.pid, engine.config_path) == (77, "/etc/x.toml")


def test_a_containerd_started_by_hand_is_not_ours_to_restart(host, serve):
    host.process(os.getpid(), unit=None)
    serve(config())
    engine = host.engine()
    assert engine.facts()["active"]
    with pytest.raises(FleetError) as caught:
        engine.require()
    assert caught.value.code == "engine_unmanaged"


def test_another_file_than_the_engine_reads(host, serve):
    host.process(os.getpid(), words=["containerd", "--config", "/etc/real.toml"])
    serve(config())
    assert host.engine("/etc//real.toml").config_path == "/etc/real.toml"
    with pytest.raises(FleetError) as caught:
        host.engine("/etc/wrong.toml")
    assert caught.value.code == "config_path_mismatch"


# --- what it says ---


def test_facts(host, serve):
    pods = pod("b", "ascend") + pod("a", "") + pod("old", "ascend", ready=False)
    host.process(os.getpid())
    serve(config(enableCDI=True, registry={"auth": {"password": PLANTED}}), pods=pods)
    engine = host.engine()
    facts = engine.facts()
    assert facts == {
        "active": True, "version": "1.6.20~ds1", "error": None,
        "runtimes": {"runc": {"path": "", "args": [], "type": "io.containerd.runc.v2"},
                     "ascend": {"path": WRAPPER, "args": [], "type": "io.containerd.runc.v2"}},
        "default_runtime": "runc", "live_restore": None, "containers_running": 2, "handlers": ["ascend", "runc"], "cdi": True,
    }
    assert engine.unmet(facts, EXPECT) is None
    assert engine.unmet(facts, GONE) == "it still has the runtime ascend"
    assert engine.unmet(facts, dict(EXPECT, default="ascend")) == "its default runtime is runc"
    assert engine.users("ascend", facts) == ["space/b", "space/old"]
    assert engine.users("nvidia", facts) == []
    assert not engine.failed()


def test_cdi_of_an_engine_that_does_not_know_it(host, serve):
    serve(config())
    assert host.engine().facts()["cdi"] is False


def test_a_containerd_that_does_not_tell_options(host, serve):
    told = config()
    for runtime in told["containerd"]["runtimes"].values():
        runtime["options"] = {}
    serve(told, number="1.4.13", services=("runtime.v1alpha2.RuntimeService",))
    engine = host.engine()
    facts = engine.facts()
    assert {name: runtime["path"] for name, runtime in facts["runtimes"].items()} == {"runc": "", "ascend": WRAPPER}
    assert engine.unmet(facts, EXPECT) is None


def test_a_handler_that_cri_does_not_list(host, serve):
    """Its record of the configuration is not what it serves."""
    serve(config(), handlers=["", "runc"])
    engine = host.engine()
    assert engine.unmet(engine.facts(), EXPECT) == "CRI does not list the handler ascend"


def test_an_engine_without_cri_is_down_for_good(host, serve):
    """The unit is active, the socket answers, and kubelet can not use it: containerd 1.7 whose file names only our runtime."""
    host.process(os.getpid())
    serve(answers={"Version": version()}, services=("containerd.services.version.v1.Version",))
    engine = host.engine()
    facts = engine.facts()
    assert facts["active"] is False
    assert "unknown service" in facts["error"] or "not found" in facts["error"].lower()
    assert engine.running()
    assert engine.failed()


def test_an_engine_that_is_not_ready(host, serve):
    serve(config(), ready=False)
    facts = host.engine().facts()
    assert facts["active"] is False
    assert facts["error"] == "it is not ready: not yet"


def test_the_entry_of_npu_info(host, serve):
    host.process(os.getpid())
    serve(config())
    entry = containerd.observe(host.run, str(host.root), 5)
    assert entry["name"] == "containerd"
    assert entry["runtimes"] == {"runc": "io.containerd.runc.v2", "ascend": WRAPPER}
    assert entry["configured"]["runtimes"]["ascend"] == WRAPPER
    assert entry["socket"] == "/run/containerd/containerd.sock"
    assert len(entry["config_sha256"]) == 64
    assert (entry["kubelet"], entry["error"], entry["cdi"]) == (None, None, False)


def test_the_entry_of_one_whose_file_is_broken(host):
    host.dump = (1, "", f"containerd: failed to load TOML: /etc/x: (3, 2): password={PLANTED}\n")
    entry = containerd.observe(host.run, str(host.root), 5)
    assert entry["active"] is False
    assert "(3, 2)" in entry["configured"]["error"]
    assert PLANTED not in str(entry)


# --- what a restart ends ---


ENDED = ["moby/0123456789ab", "space/b"]


@pytest.mark.parametrize(("mode", "kills"), [("control-group", ENDED), ("mixed", ENDED), ("process", []), ("none", [])])
def test_what_a_restart_ends(host, serve, mode, kills):
    host.unit["KillMode"] = mode
    host.process(os.getpid())
    shim = "/usr/bin/containerd-shim-runc-v2"
    host.process(101, words=[shim, "-namespace", "k8s.io", "-id", "id-b-a"], comm="containerd-shim-runc-v2")
    host.process(102, words=[shim, "-namespace", "moby", "-id", "0123456789abcdef"], comm="containerd-shim-runc-v2")
    host.process(103, words=[shim, "-namespace", "k8s.io", "-id", "id-a-a"], comm="containerd-shim-runc-v2", unit="other.service")
    host.process(104, words=["sleep"], comm="sleep")
    serve(config(), pods=pod("b", "ascend") + pod("a", ""))
    engine = host.engine()
    assert engine.restart_kills(engine.facts()) == kills


# --- files ---


def paths(engine):
    return [one["path"] for one in engine.read()["files"]]


def test_files_in_the_order_in_which_they_are_loaded(host):
    """As measured: breadth first, globs sorted as text, each file once."""
    host.write("etc/containerd/config.toml", "version = 2\nimports = ['/c/b/*.toml', '/c/one.toml', '/c/none.toml', '/c/b/9.toml']\n")
    host.write("c/b/10.toml", "imports = ['/c/last.toml', '/etc/containerd/config.toml']\n")
    host.write("c/b/9.toml", "")
    host.write("c/b/.hidden.toml", "")
    host.write("c/b/x.conf", "")
    host.write("c/one.toml", "version = 3\n")
    host.write("c/last.toml", "")
    os.symlink("9.toml", host.root / "c/b/same.toml")
    answer = host.engine().read()
    assert [one["path"] for one in answer["files"]] == [
        "/etc/containerd/config.toml", "/c/b/.hidden.toml", "/c/b/10.toml", "/c/b/9.toml", "/c/one.toml", "/c/last.toml",
    ]
    assert [one["role"] for one in answer["files"]] == ["main"] + ["import"] * 5
    assert answer["load_version"] == 3
    assert "/c/b/*.toml" in answer["writable"]
    assert "/c/last.toml" in answer["writable"]


def test_the_version_that_counts_where_nobody_says_one(host):
    host.write("etc/containerd/config.toml", "")
    assert host.engine().read()["load_version"] == 1


@pytest.mark.parametrize(("number", "found"), [("1.6.20", "/where/d/x.toml"), ("1.7.24", "/etc/containerd/d/x.toml")])
def test_a_relative_glob(host, number, found):
    host.version = number
    host.unit["MainPID"] = "5"
    host.process(5, cwd="/where")
    host.write("etc/containerd/config.toml", "imports = ['d/*.toml']\n")
    host.write("etc/containerd/d/x.toml", "")
    host.write("where/d/x.toml", "")
    assert paths(host.engine())[1:] == [found]


def test_only_the_star_is_a_wildcard(host):
    host.write("etc/containerd/config.toml", "imports = ['/c/[ab]*.toml', '/c/?.toml']\n")
    for name in ("a.toml", "[ab]x.toml", "y.toml", "?.toml"):
        host.write("c/" + name, "")
    assert paths(host.engine())[1:] == ["/c/[ab]x.toml", "/c/?.toml"]


def test_what_containerd_2_imports_by_itself(host):
    host.version = "2.2.0"
    host.write("c/x.toml", "")
    host.dump = (0, "imports = ['/c/*.toml']\n" + dump("io.containerd.cri.v1.runtime"), "")
    assert paths(host.engine())[1:] == ["/c/x.toml"]
    host.write("etc/containerd/config.toml", "imports = []\n")
    assert paths(host.engine())[1:] == []


def test_a_file_that_is_no_toml_is_given_as_it_is(host):
    host.write("etc/containerd/config.toml", "[broken")
    host.dump = (1, "", "containerd: failed to load TOML: x: (1, 2): unclosed\n")
    answer = host.engine().read()
    assert answer["files"][0]["exists"]
    assert answer["effective_text"] is None
    assert answer["effective_error"] == "failed to load TOML: x: (1, 2): unclosed"


def test_no_file(host):
    (host.root / "etc/containerd/config.toml").unlink()
    answer = host.engine().read()
    assert answer["files"][0]["exists"] is False
    assert "runtimes.runc" in answer["effective_text"]
    assert answer["writable"] == ["/etc/containerd/config.toml"]
    assert not host.copies


def test_too_many_imports(host, monkeypatch):
    monkeypatch.setattr(containerd, "MAX_IMPORTS", 3)
    host.write("etc/containerd/config.toml", "imports = ['/c/*.toml']\n")
    for number in range(5):
        host.write(f"c/{number}.toml", "")
    with pytest.raises(FleetError) as caught:
        host.engine().read()
    assert caught.value.code == "too_many_imports"


def test_reading_changes_nothing(host, serve):
    host.process(os.getpid())
    serve(config())
    before = sorted((path, path.stat().st_mtime_ns) for path in host.root.rglob("*") if path.is_file())
    host.engine().read()
    assert sorted((path, path.stat().st_mtime_ns) for path in host.root.rglob("*") if path.is_file()) == before


# --- the parser's judgement ---

MAIN = "/etc/containerd/config.toml"


def test_a_copy_that_the_parser_takes(host):
    engine = host.engine()
    assert engine.validate(MAIN, b"version = 2\n", None) == "by containerd config dump"
    path, text, cwd = host.copies[-1]
    assert text == "version = 2\n"
    assert not Path(path).exists()
    assert cwd == str(host.root)


def test_relative_imports_are_found_from_the_copy(host):
    data = b"imports = ['conf.d/*.toml']\n"
    host.engine().validate(MAIN, data, None)
    path, text, _cwd = host.copies[-1]
    assert Path(path).parent == host.root / "etc/containerd"
    assert not path.endswith(".toml")
    assert text == data.decode()
    assert not Path(path).exists()


def test_a_drop_in_is_judged_inside_a_main_file(host):
    seen = {}

    def dumped(path):
        seen["main"] = Path(path).read_text()
        seen["copy"] = Path(seen["main"].split("'")[1]).read_text()
        return (0, dump(), "")

    host.dump = dumped
    host.engine().validate("/c/99.toml", b"new", b"imports = ['@NPU_FLEET_COPY@']\n")
    assert seen["copy"] == "new"


@pytest.mark.parametrize(
    ("said", "line", "words"),
    [
        ("containerd: failed to load TOML: COPY: (3, 2): unexpected token", ", line 3", f"{MAIN}: (3, 2)"),
        ("time=x level=error\ncontainerd: failed to unmarshal TOML at row 7 column 1: toml: bad", ", line 7", "toml: bad"),
        (f"containerd: (3, 1): Can't convert password={PLANTED} to int", ", line 3", "Can't convert"),
        ("", "", "ended with 1"),
    ],
)
def test_a_copy_that_the_parser_refuses(host, said, line, words):
    host.dump = (1, "", said + "\n")
    with pytest.raises(FleetError) as caught:
        host.engine().validate(MAIN, b"x", None)
    assert caught.value.code == "parser_refused"
    assert f"new {MAIN}{line}:" in caught.value.message
    assert words in caught.value.message
    assert PLANTED not in str(caught.value.as_dict())
    assert caught.value.object == MAIN


def test_a_parser_that_does_not_end(host):
    host.dump = (None, "", "")
    with pytest.raises(FleetError) as caught:
        host.engine().validate(MAIN, b"x", None)
    assert "within 5 s" in caught.value.message


def test_what_the_parser_takes_and_cri_would_not(host):
    host.dump = (0, dump(names=("ascend",)), "")
    with pytest.raises(FleetError) as caught:
        host.engine().validate(MAIN, b"x", None)
    assert "default runtime runc has no entry" in caught.value.message


def test_what_can_not_be_checked(host):
    assert host.engine().validate("/c/x.toml", None, None).startswith("not checked: a file that is removed")
    (host.root / "usr/bin/containerd").unlink()
    assert host.engine().validate(MAIN, b"x", None) == "not checked: the program of containerd was not found"


def test_it_is_taken_over_by_a_restart(host, serve):
    host.process(os.getpid())
    serve(config())
    engine = host.engine()
    assert engine.take_over() is None
    assert engine.done == ["restart"]
    assert [str(host.root / "usr/bin/systemctl"), "restart", "containerd.service"] in host.calls
