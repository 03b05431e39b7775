# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files containerd reads, and what its parser says of a copy, on a host in a temporary root."""

import os
from pathlib import Path

import pytest
from cri_host import Host, config, dump

from ansible_collections.npu.fleet.plugins.module_utils import _engine_containerd as containerd
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

PLANTED = "hunter2-planted"


@pytest.fixture()
def host(tmp_path):
    return Host(tmp_path)


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


# --- imports that are not there ---


@pytest.mark.parametrize("number", ["1.6.20", "1.7.24", "2.1.9"])
@pytest.mark.parametrize(
    ("path", "data", "importer"),
    [
        (MAIN, "imports = ['/c/one.toml', '/c/none.toml']\n", MAIN),
        (MAIN, "imports = ['none.toml']\n", MAIN),
        ("/c/one.toml", "imports = ['/c/none.toml']\n", "/c/one.toml"),
    ],
)
def test_an_import_that_does_not_exist(host, number, path, data, importer):
    """The dump of 2.x skips it, and the daemon would not start."""
    host.version = number
    host.write("etc/containerd/config.toml", "imports = ['/c/one.toml']\n")
    host.write("c/one.toml", "")
    with pytest.raises(FleetError) as caught:
        host.engine().validate(path, data.encode(), None)
    assert caught.value.code == "parser_refused"
    assert f"{importer} imports " in caught.value.message
    assert "none.toml, which does not exist" in caught.value.message
    assert MAIN in caught.value.message
    assert not host.copies


def test_imports_that_are_all_right(host):
    host.version = "2.1.9"
    host.write("etc/containerd/config.toml", "imports = ['/c/none.toml']\n")
    engine = host.engine()
    # The dangling one is mended by this very change, or by writing what it names; a glob need not match.
    assert engine.validate(MAIN, b"imports = ['/none/*.toml']\n", None) == "by containerd config dump"
    assert engine.validate("/c/none.toml", b"x = 1\n", b"imports = ['@NPU_FLEET_COPY@']\n") == "by containerd config dump"
    with pytest.raises(FleetError, match="/c/none.toml, which does not exist"):
        engine.validate("/c/none.toml", None, b"imports = []\n")


def test_relative_imports_of_an_import_are_found_from_its_copy(host):
    """Else the parser of 1.x looks for them beside the copy in a private folder, and refuses."""
    host.write("etc/containerd/config.toml", "imports = ['/c/99.toml']\n")
    host.write("c/99.toml", "")
    host.write("c/more.toml", "")
    seen = {}

    def dumped(path):
        seen["copy"] = Path(Path(path).read_text().split("'")[1])
        assert (seen["copy"].parent / "more.toml").exists()
        seen["text"] = seen["copy"].read_text()
        return (1, "", f"containerd: failed to load TOML: {seen['copy']}: (1, 2): odd\n")

    host.dump = dumped
    with pytest.raises(FleetError) as caught:
        host.engine().validate("/c/99.toml", b"imports = ['more.toml']\n", b"imports = ['@NPU_FLEET_COPY@']\n")
    assert seen["text"] == "imports = ['more.toml']\n"
    assert not seen["copy"].name.endswith(".toml")
    assert sorted(os.listdir(host.root / "c")) == ["99.toml", "more.toml"]
    assert "/c/99.toml: (1, 2): odd" in caught.value.message
    assert "npu-fleet" not in caught.value.message


def test_a_value_that_the_parser_quotes(host):
    host.dump = (1, "", "containerd: (3, 3): Can't convert dXNlcjpwYXNzd29yZA==(string) to config.AuthConfig\n")
    with pytest.raises(FleetError) as caught:
        host.engine().validate(MAIN, b"x", None)
    assert "dXNl" not in str(caught.value.as_dict())
    assert "line 3: (3, 3): Can't convert ********(string) to config.AuthConfig" in caught.value.message
