# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the driver's files a container gets, by CDI and in the answer to kubelet."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def mounts(package):
    import npu_agent.mounts

    return npu_agent.mounts


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
def test_mounts(mounts, tree, case):
    lines, links, wanted, problem = case
    found, problems = mounts.existing([(f"{tree}/{line}", None) for line in lines], links)
    assert found == [(f"{tree}/{host}", f"{tree}/{inside}") for host, inside in wanted]
    assert len(problems) == (problem is not None) and all(problem in text for text in problems)


@pytest.mark.parametrize("line", ["usr/lib", "..", "/usr/lib\0x", "/usr/lib\x07"])
def test_lines_that_are_no_paths(mounts, line):
    found, problems = mounts.existing([(line, None)], True)
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
    settings = SimpleNamespace(cdi_mounts=f"{tree}/base.list", cdi_links="family", install_path=str(tree))
    assert mounts.of(settings, ["a2"]) == ([(f"{tree}/dcmi", f"{tree}/dcmi")], [])
    (tree / "base.list").unlink()
    found, problems = mounts.of(settings, ["310", "a2"])
    images = "/usr/local/Ascend/driver"
    assert found[:2] == [(f"{tree}/driver/lib64", f"{images}/lib64"), (f"{tree}/driver/version.info", f"{images}/version.info")]
    assert problems == [] and len({inside for _host, inside in found}) == len(found)


def test_libraries_of_the_family_950_are_links(mounts, tree):
    (tree / "libnl-3.so.200.26.0").touch()
    (tree / "libnl-3.so.200").symlink_to("libnl-3.so.200.26.0")
    assert mounts.existing([(f"{tree}/libnl*", None)], mounts.links_allowed("family", ["a5"])) == (
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
                               cdi_links="family", install_path=str(tree))
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
