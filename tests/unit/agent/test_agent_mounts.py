# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the driver's files a container gets, by CDI and in the answer to kubelet."""

from types import SimpleNamespace

import pytest

from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_pod


@pytest.fixture
def mounts(package):
    import npu_agent.mounts

    return npu_agent.mounts


@pytest.fixture
def here(mounts):
    """An agent that sees the whole host as its own."""
    return mounts.hosts.Host("", ())


@pytest.mark.parametrize("case", [
    (["lib64", "npu-smi", "none"], False, [("lib64", "lib64"), ("npu-smi", "npu-smi")], None),
    (["link"], False, [], "link is a symbolic link and is left out; `cdi_links: allow`"),
    (["link"], True, [("npu-smi", "link")], None),
    (["folder-link/"], False, [], "folder-link is a symbolic link"),
    (["folder-lin*/"], False, [], "folder-link is a symbolic link"),
    (["npu-smi/"], False, [("npu-smi", "npu-smi")], None),
    (["dangling"], True, [], None),
    (["fifo"], True, [], "neither file nor folder"),
    (["odd/a*", "odd/z*"], False, [("odd/a1", "odd/a1"), ("odd/a2", "odd/a2")], None),
    (["dcmi", "lib64/../dcmi/"], False, [("dcmi", "dcmi")], None),
])
def test_mounts(mounts, tree, here, case):
    lines, links, wanted, problem = case
    found, problems = mounts.existing([(f"{tree}/{line}", None) for line in lines], links, here)
    assert found == [(f"{tree}/{host}", f"{tree}/{inside}") for host, inside in wanted]
    assert len(problems) == (problem is not None) and all(problem in text for text in problems)


@pytest.mark.parametrize("line", ["usr/lib", "..", "/usr/lib\0x", "/usr/lib\x07"])
def test_lines_that_are_no_paths(mounts, here, line):
    found, problems = mounts.existing([(line, None)], True, here)
    assert found == [] and "no plain absolute path" in problems[0]


def test_list(mounts, tmp_path):
    path = tmp_path / "base.list"
    lines, problems = mounts.read_list(str(path))
    assert lines == [] and "none of the driver's files" in problems[0]
    path.write_text("/a\n\n  /b \n#/c\n")
    assert mounts.read_list(str(path)) == (["/a", "/b"], [])
    path.write_text("".join(f"/p{number}\n" for number in range(129)))
    lines, problems = mounts.read_list(str(path))
    assert len(lines) == 128 and "129 lines" in problems[0]


@pytest.mark.parametrize(("setting", "families", "allowed"), [
    ("family", ["a2"], False), ("family", ["310b", "a2"], True), ("family", [], False), ("allow", ["a2"], True),
    ("refuse", ["310b"], False), ("family", ["a5"], True), ("refuse", ["a5"], False),
])
def test_links_are_allowed_where_the_vendor_needs_them(mounts, setting, families, allowed):
    assert mounts.links_allowed(setting, families) is allowed


def test_the_list_of_our_own_counts_where_the_runtime_is_not_installed(mounts, tree):
    (tree / "driver/lib64").mkdir(parents=True)
    (tree / "driver/version.info").touch()
    (tree / "base.list").write_text(f"{tree}/dcmi\n{tree}/none\n")
    settings = SimpleNamespace(cdi_mounts=f"{tree}/base.list", cdi_links="family", install_path=str(tree), host_root="/", host_paths=())
    assert mounts.of(settings, ["a2"]) == ([(f"{tree}/dcmi", f"{tree}/dcmi")], [])
    (tree / "base.list").unlink()
    found, problems = mounts.of(settings, ["310", "a2"])
    images = "/usr/local/Ascend/driver"
    assert found[:2] == [(f"{tree}/driver/lib64", f"{images}/lib64"), (f"{tree}/driver/version.info", f"{images}/version.info")]
    assert problems == [] and len({inside for _host, inside in found}) == len(found)


def test_libraries_of_the_family_950_are_links(mounts, tree, here):
    (tree / "libnl-3.so.200.26.0").touch()
    (tree / "libnl-3.so.200").symlink_to("libnl-3.so.200.26.0")
    assert mounts.existing([(f"{tree}/libnl*", None)], mounts.links_allowed("family", ["a5"]), here) == (
        [(f"{tree}/libnl-3.so.200.26.0", f"{tree}/libnl-3.so.{end}") for end in ("200", "200.26.0")], [])


def test_addresses_of_the_network_ports_come_with_servers(mounts):
    assert {family for family, lines in mounts.BUILT_IN.items() if "/etc/hccn.conf" in lines} == {"910", "a2", "a3"}


def test_every_family_has_a_list(mounts):
    from npu_agent._hardware._families import FAMILIES

    assert set(mounts.BUILT_IN) == set(FAMILIES)
    assert all(line.startswith("/") for lines in mounts.BUILT_IN.values() for line in lines)


def test_many_containers_at_once_cost_one_look(mounts, tree, monkeypatch):
    (tree / "driver/lib64").mkdir(parents=True)
    settings = SimpleNamespace(allocate_by="nodes", allocate_mode="both", allocate_mounts="auto", cdi_mounts=f"{tree}/none",
                               cdi_links="family", install_path=str(tree), host_root="/", host_paths=())
    looks, now, of = [], [100.0], mounts.of
    monkeypatch.setattr(mounts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(mounts, "of", lambda *arguments: looks.append(arguments[1]) or of(*arguments))
    given = [mounts.for_container(settings, ["a2"]) for _container in range(5)]
    assert looks == [["a2"]] and given == [[(f"{tree}/driver/lib64", "/usr/local/Ascend/driver/lib64")]] * 5
    assert mounts.for_container(settings, ["310b"]) == given[0] and looks[1:] == [["310b"]]
    (tree / "driver/lib64").rmdir()
    now[0] += mounts.RECENT_SECONDS + 0.01
    assert mounts.for_container(settings, ["310b"]) == []
    settings.allocate_mounts = "never"
    assert mounts.for_container(settings, ["a2"]) == []


# --- through folders of the host

@pytest.fixture
def pod(mounts, tmp_path):
    """A host in a folder, two parts of which are seen, and files that the image has under the host's paths."""
    root = tmp_path / "host"
    for path in ("usr/lib64/libdcmi.so.1", "usr/lib64/urma/x", "usr/local/bin/npu-smi", "etc/hccn.conf", "opt/lib.so", "usr/bin/tool"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    for name, target in (("libdcmi.so", "libdcmi.so.1"), ("whole", "/usr/lib64/libdcmi.so.1"), ("back", "../../usr/local/bin/npu-smi"),
                         ("away", "/opt/lib.so"), ("circle", "circle"), ("image", str(tmp_path / "image.so")), ("folder", "/usr/local")):
        (root / "usr/lib64" / name).symlink_to(target)
    (tmp_path / "image.so").touch()
    return mounts.hosts.Host(str(root), ("/usr/lib64", "/usr/local/bin"))


@pytest.mark.parametrize(("line", "found", "unseen"), [
    ("/usr/lib64/libdcmi.so.1", [("/usr/lib64/libdcmi.so.1", "/usr/lib64/libdcmi.so.1")], None),
    ("/usr/lib64/libdcmi.so", [("/usr/lib64/libdcmi.so.1", "/usr/lib64/libdcmi.so")], None),
    ("/usr/lib64/whole", [("/usr/lib64/libdcmi.so.1", "/usr/lib64/whole")], None),
    ("/usr/lib64/back", [("/usr/local/bin/npu-smi", "/usr/lib64/back")], None),
    ("/usr/lib64/libdcmi*", [("/usr/lib64/libdcmi.so.1", f"/usr/lib64/libdcmi.so{end}") for end in ("", ".1")], None),
    ("/usr/lib64/folder/bin/npu-smi", [("/usr/lib64/folder/bin/npu-smi", "/usr/lib64/folder/bin/npu-smi")], None),
    ("/usr/local/bin", [("/usr/local/bin", "/usr/local/bin")], None),
    ("/usr/lib64/none", [], None), ("/usr/lib64/circle", [], None), ("/usr/lib64/circle/x", [], None),
    ("/usr/lib64/away", [], "/usr/lib64/away"), ("/usr/lib64/image", [], "/usr/lib64/image"),
    ("/usr/lib64/folder", [], "/usr/lib64/folder"),
    ("/etc/hccn.conf", [], "/etc/hccn.conf"), ("/etc/*.conf", [], "/etc/*.conf"), ("/usr/bin/tool", [], "/usr/bin/tool"),
    ("/usr/lib64/../bin/tool", [], "/usr/bin/tool"), ("/usr/lib6", [], "/usr/lib6"), ("/usr", [], "/usr"),
])
def test_what_is_given_was_seen_on_the_host(mounts, pod, line, found, unseen):
    """And what cannot be seen is told: a pod that gets a file on one node and not on another says nobody why."""
    given, problems = mounts.existing([(line, None)], True, pod)
    assert given == found and len(problems) == (unseen is not None)
    assert all(f"do not get {unseen}," in text and "install the vendor's container runtime" in text for text in problems)


def test_the_image_has_nothing_to_say_about_the_host(mounts, tmp_path):
    """The test's own file system stands for the image. What an engine is to mount and the host lacks, the engine makes as a folder."""
    empty = mounts.hosts.Host(str(tmp_path), ())
    assert mounts.existing([("/usr/bin", None), ("/etc/passwd", None), ("/usr/*", None)], True, empty) == ([], [])


@pytest.mark.parametrize("runtime", [False, True])
def test_both_lists_are_judged_on_the_host(mounts, tree, tmp_path, runtime):
    (tmp_path / "host/opt/a/driver/lib64").mkdir(parents=True)
    (tmp_path / "list").write_text("/opt/a/driver/lib64\n/etc/hccn.conf\n")
    settings = SimpleNamespace(allocate_by="cdi", cdi_mounts=str(tmp_path / "list") if runtime else "/nowhere", cdi_links="family",
                               install_path="/opt/a", host_root=str(tmp_path / "host"), host_paths=("/opt/a/driver",))
    found, (problem,) = mounts.of(settings, ["a2"])
    assert found == [("/opt/a/driver/lib64", "/opt/a/driver/lib64" if runtime else f"{mounts.DRIVER}/lib64")]
    assert "/etc/hccn.conf" in problem and ("/usr/local/dcmi" in problem) is not runtime
    assert mounts.problems(settings, {"a2"}) == [problem]


#: Of the driver's files for containers, what the agent's pod cannot see, and therefore names.
UNSEEN = {
    "310": ["/var/queue_schedule", "/etc/hccl_rootinfo.json", "/etc/ascend_install.info", "/etc/hdcBasic.cfg", "/etc/sys_version.conf",
            "/home/data/miniD/driver/lib64"],
    "310p": ["/var/queue_schedule", "/etc/hccl_rootinfo.json", "/etc/ascend_install.info", "/etc/hdcBasic.cfg", "/etc/sys_version.conf"],
    "310b": ["/usr/local/dcmi", "/var/queue_schedule", "/etc/hccl_rootinfo.json"],
    **dict.fromkeys(("910", "a2", "a3"), ["/var/queue_schedule", "/etc/hccl_rootinfo.json", "/etc/ascend_install.info", "/etc/hccn.conf"]),
    "a5": ["/var/queue_schedule", "/etc/hccl_rootinfo.json", "/etc/ascend_install.info"],
}


def test_what_the_pod_does_not_see_is_what_no_safe_mount_brings(mounts, tmp_path):
    assert set(UNSEEN) == set(mounts.BUILT_IN)
    for family, unseen in UNSEEN.items():
        seen = ["/usr/local/Ascend/driver", *(path for path, _kind in _agent_pod.SEEN[_agent_pod.profile_of([family])])]
        host = mounts.hosts.Host(str(tmp_path), tuple(seen))
        found, (problem,) = mounts.existing(mounts.built_in((family,), "/usr/local/Ascend"), True, host)
        assert found == [] and f"do not get {', '.join(unseen)}, whether" in problem
