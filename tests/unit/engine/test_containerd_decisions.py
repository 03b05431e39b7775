# SPDX-License-Identifier: GPL-3.0-or-later
"""What is decided about containerd from texts alone."""

import pytest
from cri_host import WRAPPER, dump

from ansible_collections.npu.fleet.plugins.module_utils import _engine_containerd as containerd
from ansible_collections.npu.fleet.plugins.module_utils import _engine_cri as cri


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
