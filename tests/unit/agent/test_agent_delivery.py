# SPDX-License-Identifier: GPL-3.0-or-later
"""How the agent reaches a node: archive, files, service. Against folders and a runner that answers from a table."""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import namedtuple

import jinja2
import pytest
from agent_rig import REPO

from ansible_collections.npu.fleet.plugins.module_utils import _agent, _agent_files, _agent_service
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive

Result = namedtuple("Result", "argv rc stdout stderr timed_out seconds")
WHEELS = {"grpcio": "1.85.3", "protobuf": "7.36.2", "PyYAML": "6.0.4", "typing_extensions": "4.16.0"}


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory):
    """Tiny wheels with the pinned names, so that the packer meets pip but no index."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    for name, version in WHEELS.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name.lower()}/__init__.py", f"version = {version!r}\n")
            wheel.writestr(f"{stem}.data/purelib/{name.lower()}_extra.py", "")
            wheel.writestr(f"{stem}.data/scripts/tool", "#!python\n")
            wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return folder


def pack(cache, wheelhouse, version="3.11", **more):
    return _agent_archive.pack(version, "x86_64", cache, wheelhouse=str(wheelhouse), python=sys.executable, **more)


@pytest.fixture(scope="module")
def archive(tmp_path_factory, wheelhouse):
    return pack(tmp_path_factory.mktemp("cache"), wheelhouse)


def local_run(argv, timeout, **_unused):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    return Result(argv, done.returncode, done.stdout, done.stderr, False, 0)


# --- archive

def test_same_archive_everywhere(archive, wheelhouse, tmp_path):
    old = os.umask(0o077)
    try:
        again = pack(tmp_path / "other", wheelhouse)
    finally:
        os.umask(old)
    assert again.sha256 == archive.sha256 and again.folder == archive.folder == f"{archive.version}-{archive.sha256[:8]}"
    with tarfile.open(archive.path) as members:
        names = members.getnames()
        assert names == sorted(names)
        for member in members.getmembers():
            assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
            assert member.mode == (0o755 if member.isdir() or member.name == "bin/npu-agent" else 0o644)
            assert _agent_files.safe(member)
    assert {"npu_agent/serve.py", "npu_agent/device_plugin.proto", "npu_agent/_hardware/_detect.py", "bin/npu-agent"} <= set(names)
    assert {"site-packages/grpcio/__init__.py", "site-packages/grpcio_extra.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith("tool")]


def test_a_second_pack_only_looks(archive, wheelhouse, tmp_path):
    cache = tmp_path / "cache"
    first = pack(cache, wheelhouse)
    stamp = os.stat(first.path).st_mtime_ns
    assert pack(cache, wheelhouse, pip=["false"]) == first and os.stat(first.path).st_mtime_ns == stamp
    os.unlink(first.path)
    assert pack(cache, wheelhouse, pip=["false"]) == first and os.path.exists(first.path)


def test_other_python_other_archive(archive, tmp_path, wheelhouse):
    assert pack(tmp_path, wheelhouse, version="3.12").sha256 != "" and _agent_archive.requirements((3, 12)).name == "python3.10.txt"
    assert _agent_archive.requirements((3, 9)).name == "python3.9.txt"


@pytest.mark.parametrize(("version", "arch", "python", "code"), [
    ("3.8", "x86_64", "/usr/bin/python3", "python_version"), ("three", "x86_64", "/usr/bin/python3", "python_version"),
    ("3.11", "riscv64", "/usr/bin/python3", "architecture"), ("3.11", "x86_64", "python3", "python_path"),
])
def test_pack_refuses(tmp_path, version, arch, python, code):
    with pytest.raises(FleetError) as error:
        _agent_archive.pack(version, arch, tmp_path, python=python)
    assert error.value.code == code


def test_pip_that_fails_says_what_to_do(tmp_path):
    with pytest.raises(FleetError) as error:
        _agent_archive.pack("3.11", "x86_64", tmp_path, wheelhouse=str(tmp_path))
    assert error.value.code == "wheels" and "wheelhouse" in str(error.value) and "grpcio" in str(error.value)


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FleetError, match="could not be packed"):
        _agent_archive.pack("3.11", "x86_64", tmp_path / "file")


def test_the_pins_are_exact():
    for path in (REPO / "roles/npu_agent/files/npu_agent/requirements").glob("*.txt"):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert sorted(line.partition("==")[0] for line in lines) == sorted(WHEELS)


def test_the_cache_does_not_grow_for_ever(archive, tmp_path):
    cache = tmp_path / "archives"
    def make(n):
        return _agent_archive.write_archive({"a": str(n).encode()}, "1", "test", cache, cache / f"{n}.json")

    made = [make(n) for n in range(_agent_archive.KEPT + 3)]
    assert len(list(cache.glob("*.tar.gz"))) == _agent_archive.KEPT and os.path.exists(made[-1].path)


PLAY = """
- hosts: localhost
  gather_facts: false
  connection: local
  module_defaults:
    npu.fleet.agent_files: {python_version: "3.11", python: "%(python)s", arch: x86_64, cache_dir: "%(folder)s/cache",
                            wheelhouse: "%(wheels)s", home: "%(folder)s/home"}
  vars: {ansible_python_interpreter: "%(python)s"}
  tasks:
    - npu.fleet.agent_files: {}
      check_mode: true
      register: dry
    - ansible.builtin.stat: {path: "%(folder)s/home"}
      register: home
    - npu.fleet.agent_files: {}
      register: first
    - npu.fleet.agent_files: {}
      register: again
    - npu.fleet.agent_files: {observed_sha256: "{{ first.sha256 }}"}
      vars: {ansible_python_interpreter: /no/such/python}  # nothing may run on the node
      register: known
    - npu.fleet.agent_files: {arch: riscv64}
      register: refused
      ignore_errors: true
    - npu.fleet.agent_files: {state: absent}
      register: gone
    - ansible.builtin.assert:
        that:
          - dry is changed and not home.stat.exists
          - dry.sha256 == first.sha256 and dry.folder == first.folder
          - first is changed and first.version == known.version
          - again is not changed and known is not changed
          - refused is failed and refused.error.code == 'architecture'
          - gone is changed and gone.removed == [first.folder]
"""


def test_as_a_task(tmp_path, wheelhouse):
    (tmp_path / "play.yml").write_text(PLAY % {"python": sys.executable, "folder": tmp_path, "wheels": wheelhouse})
    place = next(path for path in sys.path if os.path.isdir(os.path.join(path, "ansible_collections/npu/fleet")))
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": place, "ANSIBLE_HOME": str(tmp_path / "ansible"), "ANSIBLE_LOCALHOST_WARNING": "false"}
    done = subprocess.run([sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(tmp_path / "play.yml")], env=env,
                          capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "home").exists() and "failed=0" in done.stdout


# --- files on the node

def install(home, archive, check=False, **changes):
    values = {"src": archive.path, "version": archive.version, "sha256": archive.sha256, **changes}
    return _agent_files.install(str(home), values.pop("src"), values.pop("version"), values.pop("sha256"),
                                python=changes.get("python", sys.executable), run=local_run, check_mode=check)


def variant(archive, folder, change):
    """The same archive with one more file in it: another version of the agent."""
    files = {}
    with tarfile.open(archive.path) as members:
        for member in members:
            if member.isfile():
                files[member.name] = members.extractfile(member).read()
    files[f"npu_agent/{change}.txt"] = change.encode()
    return _agent_archive.write_archive(files, change, "test", folder, folder / f"{change}.json")


def test_install_is_whole_and_readable(archive, tmp_path):
    home, old = tmp_path / "home", os.umask(0o077)
    try:
        result = install(home, archive)
    finally:
        os.umask(old)
    assert result["changed"] and result["removed"] == [] and result["after"] == {"current": archive.folder, "versions": [archive.folder]}
    assert os.readlink(home / "current") == archive.folder
    for path, folders, files in os.walk(home):
        for name in folders:
            assert os.stat(os.path.join(path, name)).st_mode & 0o755 == 0o755
        for name in files:
            assert os.stat(os.path.join(path, name)).st_mode & 0o444 == 0o444
    assert list((home / "current/npu_agent/__pycache__").glob("serve.*.pyc"))
    assert _agent.read_marker(str(home / "current")) == {"version": archive.version, "sha256": archive.sha256}
    assert install(home, archive)["changed"] is False


def test_upgrade_keeps_one_version_back(archive, tmp_path):
    home = tmp_path / "home"
    versions = [archive] + [variant(archive, tmp_path, name) for name in ("0.2.0", "0.3.0")]
    for version in versions[:2]:
        install(home, version)
    assert sorted(os.listdir(home)) == sorted(["current", archive.folder, versions[1].folder])
    (home / ".new-rest").mkdir()  # what an interrupted run left
    result = install(home, versions[2])
    assert result["removed"] == sorted([archive.folder, ".new-rest"])
    assert sorted(os.listdir(home)) == sorted(["current", versions[1].folder, versions[2].folder])
    back = install(home, versions[1], src=None)  # it is still there: nothing to unpack
    assert back["changed"] and os.readlink(home / "current") == versions[1].folder


def test_check_mode_changes_nothing(archive, tmp_path):
    result = install(tmp_path / "home", archive, check=True, src=None)
    assert result["changed"] and result["after"]["current"] == archive.folder and not (tmp_path / "home").exists()


def test_interrupted_install_is_made_anew(archive, tmp_path):
    home = tmp_path / "home"
    install(home, archive)
    (home / "current" / _agent.MARKER).unlink()
    assert install(home, archive)["changed"]
    assert _agent.read_marker(str(home / "current"))["sha256"] == archive.sha256


def repack(folder, *members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for member in members:
            made.addfile(member, io.BytesIO(b"x" * member.size))
    path = folder / "bad.tar.gz"
    with gzip.open(path, "wb") as target:
        target.write(stream.getvalue())
    return str(path), hashlib.sha256(stream.getvalue()).hexdigest()


def member(name, kind=tarfile.REGTYPE, link=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize("bad", [
    member("../evil"), member("/evil"), member("a/../../evil"), member("link", tarfile.SYMTYPE, "/etc"),
    member("hard", tarfile.LNKTYPE, "x"), member("node", tarfile.CHRTYPE),
])
def test_unsafe_members_are_refused(tmp_path, bad):
    path, sha256 = repack(tmp_path, bad)
    with pytest.raises(FleetError) as error:
        _agent_files.install(str(tmp_path / "home"), path, "1", sha256, python=sys.executable, run=local_run, check_mode=False)
    assert error.value.code == "archive_unsafe" and not (tmp_path / "evil").exists() and not (tmp_path / "home/current").exists()


@pytest.mark.parametrize(("data", "code"), [(None, "archive_missing"), (b"not gzip", "archive_broken"), ("cut", "archive_broken"),
                                            (gzip.compress(b"other", mtime=0), "archive_checksum")])
def test_bad_archives_are_refused_before_they_are_opened(archive, tmp_path, data, code):
    src = tmp_path / "x.tar.gz"
    if data == "cut":
        with open(archive.path, "rb") as whole:
            src.write_bytes(whole.read()[:-100])
    elif data is not None:
        src.write_bytes(data)
    with pytest.raises(FleetError) as error:
        install(tmp_path / "home", archive, src=str(src))
    assert error.value.code == code and not (tmp_path / "home/current").exists()


def test_remove(archive, tmp_path):
    home = tmp_path / "home"
    install(home, archive)
    assert _agent_files.remove(str(home), True)["changed"] and home.exists()
    assert _agent_files.remove(str(home), False)["removed"] == [archive.folder] and not home.exists()
    assert _agent_files.remove(str(home), False)["changed"] is False


# --- service

class Systemd:
    """Answers systemctl and journalctl like a systemd with one unit, and keeps what it was told."""

    def __init__(self, root, active=False, enabled=False):
        self.root, self.active, self.enabled = root, active, enabled
        self.started = time.monotonic() if active else 0
        self.calls, self.fail = [], None

    def __call__(self, argv, timeout, **_unused):
        self.calls.append(argv)
        words = argv[1:]
        if argv[0].endswith("npu-agent"):
            text = open(argv[-1]).read()
            bad = "bad" in text
            return Result(argv, 2 if bad else 0, "", f"{argv[-1]} line 1: there is no setting 'bad'" if bad else "", False, 0)
        if argv[0] == "journalctl":
            return Result(argv, 0, "last words\n", "", False, 0)
        if self.fail in words:
            return Result(argv, 1, "", "Job failed.", False, 0)
        if words[0] == "show":
            lines = {"ActiveState": "active" if self.active else "inactive", "UnitFileState": "enabled" if self.enabled else "disabled",
                     "ExecMainStartTimestampMonotonic": str(int(self.started * 1e6)), "NeedDaemonReload": "no"}
            return Result(argv, 0, "".join(f"{key}={value}\n" for key, value in lines.items()), "", False, 0)
        if words[0] in ("start", "restart"):
            self.active, self.started = True, time.monotonic()
        if words[0] == "enable":
            self.enabled = True
        if words[0] == "disable":
            self.active = self.enabled = False
        return Result(argv, 0, "", "", False, 0)

    def verbs(self):
        return [argv[1] for argv in self.calls if argv[0] == "systemctl" and argv[1] not in ("show", "reset-failed")]


@pytest.fixture
def node(tmp_path, monkeypatch):
    program = tmp_path / "opt/npu-agent/current/bin/npu-agent"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(_agent_service, "ask_ready", lambda _url: {"state": "serving", "reasons": []})
    monkeypatch.setattr(_agent_service.wait_settled, "__kwdefaults__", {**_agent_service.wait_settled.__kwdefaults__,
                                                                       "ask": lambda _url: {"state": "serving", "reasons": []}})
    time.sleep(0.01)
    return tmp_path


def present(node, systemd, config="poll_seconds: 1\n", unit="[Service]\n", check=False):
    return _agent_service.present(str(node), systemd, config, unit, url="x", ready_seconds=1, check_mode=check)


def test_first_run_then_nothing(node):
    systemd = Systemd(node)
    result = present(node, systemd)
    assert result["actions"] == [f"write {_agent.CONFIG}", f"write {_agent.UNIT}", "enable", "start"]
    assert systemd.verbs() == ["daemon-reload", "enable", "start"] and result["state"] == "serving"
    assert (node / "etc/npu-agent/config.yaml").read_text() == "poll_seconds: 1\n"
    assert os.stat(node / "etc/systemd/system/npu-agent.service").st_mode & 0o777 == 0o644
    systemd.calls.clear()
    result = present(node, systemd)
    assert not result["changed"] and systemd.verbs() == [] and result["diff"] == []
    assert result["after"]["started_after_files"] is True


def test_another_configuration_restarts(node):
    systemd = Systemd(node)
    present(node, systemd)
    systemd.calls.clear()
    result = present(node, systemd, config="poll_seconds: 2\n")
    assert result["actions"] == [f"write {_agent.CONFIG}", "restart"] and systemd.verbs() == ["daemon-reload", "restart"]
    assert result["diff"][0]["before"] == "poll_seconds: 1\n" and result["diff"][0]["after"] == "poll_seconds: 2\n"


@pytest.mark.parametrize("touched", ["etc/npu-agent/config.yaml", "etc/systemd/system/npu-agent.service", "opt/npu-agent/current"])
def test_a_run_that_was_cut_before_its_restart_is_finished(node, touched):
    """H08: the files are right already, the process is older than they are."""
    systemd = Systemd(node)
    present(node, systemd)
    time.sleep(0.02)
    os.utime(node / touched)
    systemd.calls.clear()
    result = present(node, systemd)
    assert result["actions"] == ["restart"] and result["reasons"] == ["the service was started before its files changed"]


def test_refused_configuration_changes_nothing(node):
    systemd = Systemd(node)
    with pytest.raises(FleetError) as error:
        present(node, systemd, config="bad: 1\n")
    assert error.value.code == "config_refused" and f"{_agent.CONFIG} line 1" in str(error.value)
    assert not (node / "etc").exists() and systemd.verbs() == []


def test_service_in_check_mode(node):
    systemd = Systemd(node)
    result = present(node, systemd, check=True)
    assert result["changed"] and not (node / "etc").exists() and systemd.verbs() == []
    assert [part["after"] for part in result["diff"]] == ["poll_seconds: 1\n", "[Service]\n"]
    (node / "opt/npu-agent/current/bin/npu-agent").unlink()
    assert present(node, systemd, check=True)["changed"]  # the files would come in the same run
    with pytest.raises(FleetError, match="is not on this node"):
        present(node, systemd)


def test_a_service_that_does_not_start_shows_its_words(node):
    systemd = Systemd(node)
    systemd.fail = "start"
    with pytest.raises(FleetError) as error:
        present(node, systemd)
    assert error.value.observed == "last words" and "Job failed" in str(error.value)


def test_waiting_for_readiness():
    answers = [None, {"state": "starting"}, {"state": "waiting_for_kubelet"}]
    found = _agent_service.wait_settled("x", 5, None, ask=lambda _url: answers.pop(0), sleep=lambda _seconds: None)
    assert found["state"] == "waiting_for_kubelet"


def test_not_ready_in_time_tells_why():
    clock = iter(range(100))
    with pytest.raises(FleetError) as error:
        _agent_service.wait_settled(
            "x", 3, Systemd("/"), ask=lambda _url: {"state": "driver_unusable", "reasons": ["no driver"]}, clock=lambda: next(clock),
            sleep=lambda _seconds: None,
        )
    assert "driver_unusable" in str(error.value) and "no driver" in str(error.value) and "last words" in error.value.observed


def test_absent(node):
    systemd = Systemd(node)
    present(node, systemd)
    systemd.calls.clear()
    assert _agent_service.absent(str(node), systemd, True)["changed"] and systemd.active
    result = _agent_service.absent(str(node), systemd, False)
    assert result["actions"] == ["stop", "disable", f"remove {_agent.CONFIG}", f"remove {_agent.UNIT}"]
    assert not (node / "etc/npu-agent").exists() and not systemd.active
    assert _agent_service.absent(str(node), systemd, False)["changed"] is False


# --- texts

def render(name, **variables):
    from ansible.plugins.filter.core import FilterModule

    folder = REPO / "roles/npu_device_plugin/templates"
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), trim_blocks=True, keep_trailing_newline=True)  # noqa: S701  no HTML
    environment.filters.update(FilterModule().filters())
    return environment.get_template(name).render(**variables)


def test_unit_keeps_out_of_the_known_traps():
    text = render("npu-agent.service.j2", npu_device_plugin_memory_max="256M")
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert text.startswith("# Written by") and settings["MemoryMax"] == "256M"
    assert settings["ExecStart"] == f"{_agent_service.PROGRAM} serve" and settings["ProtectSystem"] == "full"
    traps = {"PrivateDevices", "ProtectKernelLogs", "BindPaths", "ReadWritePaths", "BindReadOnlyPaths", "PrivateTmp", "DynamicUser", "User",
             "ProtectKernelTunables", "OOMScoreAdjust", "DevicePolicy"}
    assert not traps & set(settings)
    assert "CAP_SYS_ADMIN" not in settings["CapabilityBoundingSet"]


def test_configuration_is_what_the_agent_takes(package, tmp_path):
    from npu_agent import config

    values = {"allocate_mode": "env", "poll_seconds": 5, "resource_name": "huawei.com/a-b", "listen": "[::]:8083"}
    (tmp_path / "config.yaml").write_text(render("config.yaml.j2", npu_device_plugin_config=values))
    settings = config.load(str(tmp_path / "config.yaml"), {})
    assert (settings.allocate_mode, settings.poll_seconds, settings.listen) == ("env", 5.0, ("::", 8083))
    (tmp_path / "config.yaml").write_text(render("config.yaml.j2", npu_device_plugin_config={}))
    assert config.load(str(tmp_path / "config.yaml"), {}).allocate_mode == "both"


# --- observation

def test_observe_a_node_without_agent(tmp_path):
    def no_systemctl(argv, timeout, **_unused):
        raise FleetError("not found", "command_missing")

    assert _agent.observe(str(tmp_path), no_systemctl) == {
        "version": None, "archive_sha256": None, "config_sha256": None, "unit_sha256": None, "active": False, "enabled": False,
        "started_after_files": None,
    }


def test_observe_and_converged(node):
    systemd = Systemd(node)
    present(node, systemd)
    (node / "opt/npu-agent/current" / _agent.MARKER).write_text(json.dumps({"version": "0.1.0", "sha256": "abc"}))
    seen = _agent.observe(str(node), systemd)
    assert (seen["version"], seen["archive_sha256"], seen["active"], seen["enabled"]) == ("0.1.0", "abc", True, True)
    assert _agent.converged(seen, "abc", "poll_seconds: 1\n", "[Service]\n")
    assert not _agent.converged(seen, "abd", "poll_seconds: 1\n", "[Service]\n")
    assert not _agent.converged(seen, "abc", "poll_seconds: 2\n", "[Service]\n")


def test_start_is_counted_in_monotonic_time():
    """E19: the wall clock that systemd noted may be wrong by years."""
    shown = {"ActiveState": "active", "ExecMainStartTimestampMonotonic": "5000000"}
    assert _agent.started_at(shown, now=1000.0, monotonic=65.0) == 940.0
    assert _agent.started_at({"ActiveState": "inactive", "ExecMainStartTimestampMonotonic": "5"}) is None
