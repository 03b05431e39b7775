# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, inventory text, call log, image layers, folder and processes: all that needs no engine."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile

import pytest
import yaml
from npu_nodes import Call, Nodes, NodesError, base, default_tag, image, numbered, run, to_yaml
from npu_nodes.nodes import authorized_keys, check_name, parse_calls


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NPU_NODES_DIR", "NPU_NODES_NETWORK", "NPU_NODES_CACHE", "NPU_NODES_MIRROR"):
        monkeypatch.delenv(name, raising=False)


def test_numbered_names():
    assert numbered("npu", None) == ["npu"]
    assert numbered("npu", 2) == ["npu1", "npu2"]


@pytest.mark.parametrize("name", ["npu1", "lab-1", "ab"])
def test_good_names(name):
    check_name(name)


@pytest.mark.parametrize("name", ["a", "Npu1", "1npu", "npu_1", "npu-", "../x", "", "a" * 64])
def test_bad_names(name):
    with pytest.raises(NodesError, match="host name"):
        check_name(name)


def test_inventory_text_is_the_same_to_a_yaml_reader():
    data = {"g": {"hosts": {"n1": {"ansible_host": "10.0.0.1"}, "n2": {}}, "vars": {"args": '-o "A b" #c: d', "n": "007"}}}
    assert yaml.safe_load(to_yaml(data)) == data


def test_calls_are_parsed_and_torn_lines_left_out():
    text = "2026-01-01T00:00:00.000+0000 root exec /bin/sh -c 'echo  a'\ntorn\n2026-01-01T00:00:01.000+0000 ops login \n"
    assert parse_calls(text) == [
        Call("2026-01-01T00:00:00.000+0000", "root", "exec", "/bin/sh -c 'echo  a'"),
        Call("2026-01-01T00:00:01.000+0000", "ops", "login", ""),
    ]


def test_host_keys_are_always_checked(tmp_path):
    args = Nodes(tmp_path).ssh_args()
    assert "StrictHostKeyChecking=yes" in args
    assert f"UserKnownHostsFile={tmp_path}/ssh/known_hosts" in args


@pytest.mark.parametrize("network", ["172.30.0.0/33", "x", "10.0.0.0/24"])
def test_bad_networks_are_refused(tmp_path, network):
    with pytest.raises(NodesError, match=r"NPU_NODES_NETWORK|too small"):
        Nodes(tmp_path, network)


def test_a_folder_with_other_things_is_neither_used_nor_destroyed(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    nodes = Nodes(tmp_path)
    with pytest.raises(NodesError, match=r"thesis\.txt"):
        nodes.image([])
    if os.geteuid() == 0:
        nodes.destroy()
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_addresses_are_not_used_again_soon(tmp_path, monkeypatch):
    nodes = Nodes(tmp_path, "10.9.0.0/22")
    monkeypatch.setattr(nodes, "_containers", lambda: {"kept": "10.9.1.2"})
    seen = [nodes._next_address() for _ in range(600)]
    assert not {address.rsplit(".", 1)[1] for address in seen} & {"0", "255"}
    assert "10.9.1.2" not in seen
    assert len(set(seen)) == len(seen)


def test_without_engine_the_way_out_is_named(tmp_path):
    with pytest.raises(NodesError, match=r"nodes\.py prepare"):
        Nodes(tmp_path).names()


def test_overlay_goes_below_usr_and_is_the_same_each_time(tmp_path):
    (tmp_path / "lib/systemd").mkdir(parents=True)
    (tmp_path / "lib/systemd/a.service").write_text("[Unit]\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/link").symlink_to("/lib/systemd/a.service")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/tool").write_text("#!/bin/sh\n")
    (tmp_path / "usr/bin/tool").chmod(0o755)
    first = image.overlay_tar(tmp_path)
    os.utime(tmp_path / "etc", (1, 1))
    assert image.overlay_tar(tmp_path) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        entries = {entry.name: entry for entry in tar}
    assert set(entries) == {"etc", "etc/link", "usr", "usr/bin", "usr/bin/tool", "usr/lib/systemd", "usr/lib/systemd/a.service"}
    assert entries["usr/bin/tool"].mode & 0o777 == 0o755
    assert entries["etc/link"].linkname == "/lib/systemd/a.service"
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}


def test_missing_overlay_is_named(tmp_path):
    with pytest.raises(NodesError, match="no-such"):
        image.overlay_tar(tmp_path / "no-such")


@pytest.mark.parametrize("shim", [True, False])
def test_shim_is_in_the_image_only_where_needed(shim):
    with tarfile.open(fileobj=io.BytesIO(image.own_files(shim))) as tar:
        assert (f"{image.HOME}/oci-shim" in tar.getnames()) is shim


def test_authorized_keys_are_closed_to_others():
    with tarfile.open(fileobj=io.BytesIO(authorized_keys(b"ssh-ed25519 AAAA x\n"))) as tar:
        assert {entry.name: oct(entry.mode) for entry in tar} == {".ssh": "0o700", ".ssh/authorized_keys": "0o600"}


def test_base_key_follows_its_inputs():
    key = base.cache_key(["a", "b"], "x86_64", "setup")
    assert key == base.cache_key(["b", "a"], "x86_64", "setup")
    both = ["a", "b"]
    others = [(["a"], "x86_64", "setup"), (both, "aarch64", "setup"), (both, "x86_64", ""), (both, "x86_64", "setup", "sid")]
    assert len({key, *(base.cache_key(*inputs) for inputs in others)}) == 5


@pytest.mark.parametrize("suite, client, stale", [("bookworm", False, False), ("trixie", True, False), ("sid", True, True)])
def test_a_suite_is_built_with_what_it_needs(tmp_path, suite, client, stale):
    packages = base.wanted_packages(["extra"], suite)
    assert ("docker-cli" in packages) is client and {"extra", "containerd"} <= set(packages)
    argv = base.build_argv(tmp_path / "out.tar", packages, suite)
    assert argv[-3:] == [suite, str(tmp_path / "out.tar"), "-"]
    assert ('--aptopt=Acquire::Check-Valid-Until "false"' in argv) is stale


def test_bases_of_suites_stand_side_by_side(tmp_path):
    keys = {}
    for suite in base.SUITES:
        keys[suite] = base.cache_key(base.wanted_packages([], suite), os.uname().machine, (base.FILES / "setup-base.sh").read_text(), suite)
        folder = tmp_path / ("" if suite == base.SUITE else suite)
        folder.mkdir(exist_ok=True)
        (folder / f"base-{keys[suite]}.tar").touch()
    found = {suite: base.ensure(tmp_path, tmp_path / "work", tmp_path / "log", suite=suite) for suite in base.SUITES}
    assert {suite: key for suite, (key, _) in found.items()} == keys
    assert len({tar for _, tar in found.values()}) == len(base.SUITES)


def test_images_of_suites_have_names_of_their_own(tmp_path):
    assert [default_tag(suite) for suite in ("bookworm", "sid")] == ["latest", "sid"]
    with pytest.raises(NodesError, match="no base system jessie; there are bookworm, trixie, sid"):
        Nodes(tmp_path).image([], suite="jessie")
    with pytest.raises(NodesError, match="prepare --suite sid"):
        Nodes(tmp_path).image([], suite="sid")


def test_a_given_mirror_wins_over_the_machine(monkeypatch):
    monkeypatch.setenv("NPU_NODES_MIRROR", "http://mirror.example/debian")
    assert base.lines_for_mirror() == [f"deb http://mirror.example/debian {base.SUITE} main"]


def test_command_failure_shows_its_words():
    with pytest.raises(NodesError, match=r"(?s)`sh -c.*ended with 3.*no luck"):
        run.run(["sh", "-c", "echo no luck >&2; exit 3"], 10)


def test_command_at_its_deadline_goes_with_its_children(tmp_path):
    with pytest.raises(NodesError, match="had not ended after"):
        run.run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"], 0.5)
    run.wait_until("child gone", lambda: run.start_time(int((tmp_path / "child").read_text())) is None, 5)


def test_stale_pid_file_names_no_stranger(tmp_path):
    file = tmp_path / "pid"
    run.write_pid(file, os.getpid())
    assert run.read_pid(file) == os.getpid()
    file.write_text(f"{os.getpid()} 12\n")
    assert run.read_pid(file) is None
    file.write_text("garbage")
    assert run.read_pid(file) is None


def test_end_goes_on_to_sigkill():
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    child.stdout.readline()
    run.end({child.pid: run.start_time(child.pid)}, ((signal.SIGTERM, 0.3), (signal.SIGKILL, 5)))
    assert child.wait(5) == -signal.SIGKILL


def test_state_survives(tmp_path):
    nodes = Nodes(tmp_path)
    nodes._remember(base="x")
    nodes._remember(next_address=5)
    assert json.loads((tmp_path / "state.json").read_text()) == {"base": "x", "next_address": 5}
