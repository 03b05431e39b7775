# SPDX-License-Identifier: GPL-3.0-or-later
"""The archive that brings the agent to a node: the same bytes everywhere, made of what is pinned."""

import os
import subprocess
import sys
import sysconfig
import tarfile

import pytest
from agent_rig import REPO
from delivery_rig import WHEELS, pack

from ansible_collections.npu.fleet.plugins.module_utils import _agent_files
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive


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


def test_the_program_of_the_archive_runs(package, tmp_path):
    """By the same way in as `python -m npu_agent`, which looks after signals first."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "npu_agent").symlink_to(package / "npu_agent")
    (tmp_path / "site-packages").symlink_to(sysconfig.get_paths()["purelib"])
    program = tmp_path / "bin/npu-agent"
    program.write_text(_agent_archive.LAUNCHER.format(python=sys.executable))
    done = subprocess.run([sys.executable, "-I", str(program), "check"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "the configuration is good\n"), done.stderr
    assert "from npu_agent.__main__ import main" in program.read_text()


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
    assert error.value.code == "wheels" and "grpcio" in str(error.value)
    hint = error.value.hint
    assert "npu_agent_wheelhouse" in hint
    assert [platform for platform in _agent_archive.PLATFORMS if f"--platform {platform}_x86_64 " not in hint] == []
    assert "--python-version 3.11" in hint


def test_a_controller_without_pip_is_told_so(tmp_path):
    no_pip = [sys.executable, "-c", "raise SystemExit('python: No module named pip')"]
    with pytest.raises(FleetError) as error:
        pack(tmp_path, tmp_path, pip=no_pip)
    assert "ensurepip" in error.value.hint
    assert "wheelhouse" not in error.value.hint


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FleetError, match="could not be packed"):
        _agent_archive.pack("3.11", "x86_64", tmp_path / "file")


def pins(pattern):
    for path in (REPO / "roles/npu_agent/files/npu_agent/requirements").glob(pattern):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        yield path.name, sorted(line.partition("==")[0] for line in lines)


def test_the_pins_are_exact():
    assert len(dict(pins("python*.txt"))) == 2
    assert [names for _file, names in pins("python*.txt") if names != sorted(WHEELS)] == []


def test_what_images_have_more_has_nothing_twice():
    """And nothing that is compiled for one Python but what the client cannot do without."""
    ((_file, names),) = pins("labels-python*.txt")
    assert "kubernetes" in names and not set(names) & set(WHEELS) and len(names) == len(set(names))
    assert _agent_archive.requirements((3, 9), "labels-python") == _agent_archive.requirements((3, 13), "labels-python")


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


@pytest.mark.long
def test_as_a_task(tmp_path, wheelhouse):
    (tmp_path / "play.yml").write_text(PLAY % {"python": sys.executable, "folder": tmp_path, "wheels": wheelhouse})
    place = next(path for path in sys.path if os.path.isdir(os.path.join(path, "ansible_collections/npu/fleet")))
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": place, "ANSIBLE_HOME": str(tmp_path / "ansible"), "ANSIBLE_LOCALHOST_WARNING": "false"}
    done = subprocess.run([sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(tmp_path / "play.yml")], env=env,
                          capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "home").exists() and "failed=0" in done.stdout
