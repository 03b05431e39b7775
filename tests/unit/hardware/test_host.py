# SPDX-License-Identifier: GPL-3.0-or-later
"""Host facts and the holders of NPUs, from a made /proc."""

import os

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _host

ONE, TWO = "a" * 64, "0123456789abcdef" * 4
POD = "6263c610-a21e-45a3-bb48-cc367c370f76"


def process(proc, pid, comm, files, cgroup="0::/system.slice/x.service\n"):
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(comm + "\n")
    (folder / "cgroup").write_text(cgroup)
    for number, target in enumerate(files):
        os.symlink(target, folder / "fd" / str(number))


def test_holders(tmp_path):
    process(tmp_path, 12, "python3", ["/dev/davinci3", "/dev/davinci_manager", "/dev/davinci3", "/dev/null"], f"0::/docker-{ONE}.scope\n")
    process(tmp_path, 9, "sh", ["/dev/null", "socket:[1]"])
    process(tmp_path, 100, "job", ["/dev/vdavinci101 (deleted)"], f"1:name=systemd:/kubepods/burstable/pod{POD}/{ONE}/{TWO}\n0::/\n")
    process(tmp_path, 7, "edge", ["/tmp/dev/davinci0", "/dev/davinci0x", "/dev/hisi_hdc"])
    process(tmp_path, 101, "npu-agent", ["/dev/davinci_manager"], "0::/system.slice/npu-agent.service\n")
    (tmp_path / "200").mkdir()  # ended while it was read
    assert _host.holders(str(tmp_path)) == [
        {"pid": 12, "comm": "python3", "device": "/dev/davinci3", "container": ONE, "pod_uid": None, "unit": f"docker-{ONE}.scope"},
        {"pid": 12, "comm": "python3", "device": "/dev/davinci_manager", "container": ONE, "pod_uid": None, "unit": f"docker-{ONE}.scope"},
        {"pid": 100, "comm": "job", "device": "/dev/vdavinci101", "container": TWO, "pod_uid": POD, "unit": None},
        {"pid": 101, "comm": "npu-agent", "device": "/dev/davinci_manager", "container": None, "pod_uid": None,
         "unit": "npu-agent.service"},
    ]


def test_our_own_container_is_the_host(tmp_path):
    process(tmp_path, 12, "python3", ["/dev/davinci3"], f"0::/docker/{ONE}/init.scope\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"0::/docker/{ONE}/user.slice\n")
    (holder,) = _host.holders(str(tmp_path))
    assert (holder["container"], holder["unit"]) == (None, "init.scope")


def test_no_proc(tmp_path):
    assert _host.holders(str(tmp_path / "nowhere")) == []


def test_holder_of_this_very_machine(tmp_path):
    assert all(holder["pid"] != os.getpid() for holder in _host.holders())


@pytest.mark.parametrize(("text", "container"), [
    (f"0::/system.slice/docker-{ONE}.scope\n", ONE),
    (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{TWO}.scope\n", TWO),
    (f"0::/machine.slice/libpod-{TWO}.scope/container\n", TWO),
    ("0::/init.scope\n", None), (f"0::/{ONE}f\n", None), ("", None), (None, None),
])
def test_container_of(text, container):
    assert _host.container_of(text) == container


@pytest.mark.parametrize(("text", "uid"), [
    (f"0::/kubepods/burstable/pod{POD}/{ONE}\n", POD),
    (f"0::/kubepods.slice/kubepods-besteffort-pod{POD.replace('-', '_')}.slice/cri-containerd-{ONE}.scope\n", POD),
    ("0::/kubepods/pod1/x\n", None), (f"0::/system.slice/docker-{ONE}.scope\n", None), (None, None),
])
def test_pod_of(text, uid):
    assert _host.pod_of(text) == uid


@pytest.mark.parametrize(("text", "own", "unit"), [
    ("0::/system.slice/npu-agent.service\n", None, "npu-agent.service"),
    ("0::/system.slice/npu-agent.service/workers\n", None, "npu-agent.service"),
    ("0::/system.slice/system-job.slice/job@1.service\n", None, "job@1.service"),
    ("4:memory:/job.service\n1:name=systemd:/system.slice/npu-agent.service\n0::/\n", None, "npu-agent.service"),
    ("1:name=systemd:/\n0::/system.slice/npu-agent.service\n", None, "npu-agent.service"),
    ("0::/user.slice/user-0.slice/session-3.scope\n", None, "session-3.scope"),
    # Others may call theirs what they like.
    ("0::/user.slice/user-1.slice/user@1.service/app.slice/npu-agent.service\n", None, "user@1.service"),
    (f"0::/system.slice/docker-{ONE}.scope/system.slice/npu-agent.service\n", None, f"docker-{ONE}.scope"),
    (f"0::/docker/{ONE}/system.slice/npu-agent.service\n", None, None),
    # A node that is a container itself.
    (f"0::/docker/{ONE}/system.slice/npu-agent.service\n", ONE, "npu-agent.service"),
    (f"0::/system.slice/docker-{ONE}.scope/system.slice/npu-agent.service\n", ONE, "npu-agent.service"),
    (f"0::/docker/{ONE}/docker/{TWO}/system.slice/npu-agent.service\n", ONE, None),
    ("0::/kubepods/pod1/npu-agent.service\n", None, None),
    ("0::/\n", None, None), ("odd", None, None), ("", None, None), (None, None, None),
])
def test_unit_of(text, own, unit):
    assert _host.unit_of(text, own) == unit


@pytest.mark.parametrize(("text", "expected"), [
    ('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n', ("debian", "12", "Debian GNU/Linux 12 (bookworm)")),
    ("# ID=no\nNAME='openEuler'\nID=\"openEuler\"\nVERSION_ID=\"22.03\"\n", ("openEuler", "22.03", None)),
    ("ID=kylin\nPRETTY_NAME=\"broken\n", ("kylin", None, '"broken')),
    ("", (None, None, None)),
])
def test_os_release(tmp_path, text, expected):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(text)
    assert tuple(_host.os_release(str(tmp_path))[key] for key in ("id", "version_id", "pretty_name")) == expected


def test_os_release_falls_back(tmp_path):
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/os-release").write_text("ID=x\n")
    assert _host.os_release(str(tmp_path))["id"] == "x"


def test_users(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nHwHiAiUser:x:1000:1000::/home:/bin/sh\n")
    assert _host.users_present(["HwHiAiUser", "other"], str(tmp_path)) == {"HwHiAiUser": True, "other": False}
    assert _host.users_present(["root", "no-such-user"]) == {"root": True, "no-such-user": False}


def test_boot_time(tmp_path):
    assert _host.boot_time(str(tmp_path)) is None
    (tmp_path / "stat").write_text("cpu 1 2\nxbtime 4\nbtime 1701200000\nprocesses 7\n")
    assert _host.boot_time(str(tmp_path)) == 1701200000


def test_host_facts(tmp_path):
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("one\n")
    (tmp_path / "sys/kernel/osrelease").write_text("6.1.0-18-amd64\n")
    facts = _host.host(str(tmp_path), str(tmp_path))
    assert (facts["boot_id"], facts["kernel"], facts["os"]["id"]) == ("one", "6.1.0-18-amd64", None)
    assert set(facts) == {"hostname", "os", "arch", "kernel", "boot_id", "python"}
