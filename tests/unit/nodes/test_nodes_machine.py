# SPDX-License-Identifier: GPL-3.0-or-later
"""What a machine offers, read from its texts; which way is taken, and what is said about it."""

import pytest
from npu_nodes import machine

ALL_41 = "Name:\tpython3\nCapBnd:\t000001ffffffffff\n"
NO_SYS_RESOURCE = "CapBnd:\t000001fffeffffff\n"
PURE = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
HYBRID = "31 24 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
EVERY = {"cpu", "cpuset", "io", "memory", "pids"}


@pytest.mark.parametrize(
    ("status", "last", "expected"),
    [
        (ALL_41, 40, []),
        (NO_SYS_RESOURCE, 40, ["CAP_SYS_RESOURCE"]),
        (ALL_41, 41, ["capability 41"]),
        ("CapBnd:\t0000000000000000\n", 1, ["CAP_CHOWN", "CAP_DAC_OVERRIDE"]),
    ],
)
def test_missing_capabilities(status, last, expected):
    assert machine.missing_capabilities(status, last) == expected


def test_controllers_taken_by_v1_are_not_there_for_v2():
    text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t8\t1\nblkio\t0\t9\t1\nmemory\t0\t9\t0\nhugetlb\t0\t1\t1\n"
    assert machine.v2_controllers(text) == {"io", "hugetlb"}


@pytest.mark.parametrize(("mountinfo", "expected"), [(PURE, ["/sys/fs/cgroup"]), (HYBRID, ["/sys/fs/cgroup/unified"]), ("", [])])
def test_cgroup2_mounts(mountinfo, expected):
    assert machine.cgroup2_mounts(mountinfo) == expected


@pytest.mark.parametrize(
    ("missing", "controllers", "mounts", "shim", "said"),
    [
        ([], EVERY, ["/sys/fs/cgroup"], False, "the machine's own cgroup v2; plain runc"),
        (["CAP_SYS_RESOURCE"], EVERY, ["/sys/fs/cgroup"], True, "because root lacks CAP_SYS_RESOURCE in its bounding set"),
        ([], EVERY - {"memory"}, ["/sys/fs/cgroup"], True, "because cgroup v2 has no controller memory"),
        ([], {"hugetlb"}, ["/sys/fs/cgroup/unified"], True, "mounted privately (the machine runs cgroup v1)"),
    ],
)
def test_the_way_and_its_reason(missing, controllers, mounts, shim, said):
    way = machine.decide_way(missing, controllers, mounts)
    assert way.shim is shim
    assert said in machine.describe(way)


@pytest.mark.parametrize(
    ("absent", "version", "expected"),
    [
        ([], "12", []),
        (["docker", "dockerd"], "12", ["docker.io"]),
        (["docker", "dockerd"], "13", ["docker-cli", "docker.io"]),
        (["unshare", "nsenter", "mmdebstrap"], "", ["mmdebstrap", "util-linux"]),
    ],
)
def test_missing_packages_are_named(absent, version, expected):
    assert machine.missing_packages(set(machine.TOOLS) - set(absent), version) == expected


def test_missing_tools_end_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine.shutil, "which", lambda tool, path: None if tool == "mmdebstrap" else "/usr/bin/" + tool)
    with pytest.raises(machine.NodesError, match=r"apt-get install --no-install-recommends -y mmdebstrap$"):
        machine.check_tools()


DEB822 = """\
# comment: not a field
Types: deb deb-src
# URIs: http://old.example/debian
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/security
Suites: trixie-security
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: https://vendor.example/apt
Suites: stable-tools
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 AbC=
"""
ONE_LINE = """\
deb [arch=amd64 signed-by=/etc/apt/k.gpg] http://mirror.example/debian bookworm main non-free # here
deb-src http://mirror.example/debian bookworm main
deb http://vendor.example/apt ./
deb http://mirror.example/security bookworm-security main
"""


def test_debian_mirror_from_deb822():
    assert machine.debian_lines(machine.parse_deb822(DEB822), "bookworm") == [
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian bookworm main",
        "deb http://mirror.example/security bookworm-security main",
    ]


def test_a_suite_without_security_mirror():
    lines = machine.debian_lines(machine.parse_deb822(DEB822), "sid", with_security=False)
    assert lines == ["deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian sid main"]


def test_debian_mirror_from_one_line_sources():
    assert machine.debian_lines(machine.parse_one_line(ONE_LINE), "bookworm") == [
        "deb [signed-by=/etc/apt/k.gpg] http://mirror.example/debian bookworm main",
        "deb http://mirror.example/security bookworm-security main",
    ]


def test_a_machine_that_is_not_debian_has_no_mirror():
    ubuntu = "Types: deb\nURIs: http://mirror.example/ubuntu\nSuites: noble noble-security\nComponents: main universe\n"
    assert machine.debian_lines(machine.parse_deb822(ubuntu), "bookworm") == []


def test_sources_of_a_machine_are_read_from_both_kinds_of_files(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d/debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/debian.sources.save").write_text(DEB822.replace("mirror", "saved"))
    uris = [source.uri for source in machine.machine_sources(tmp_path)]
    assert uris.count("http://mirror.example/debian") == 2
    assert not any("saved" in uri for uri in uris)
