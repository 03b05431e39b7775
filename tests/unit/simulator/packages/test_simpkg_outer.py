# SPDX-License-Identifier: GPL-3.0-or-later
"""The self-extracting layer: "driver package, measured", sections 1-3. Nothing here lets an inner script run on this machine."""

import hashlib
import io
import os
import re
import subprocess
import tarfile

import pytest


def run(path, *words, cwd=None, **env):
    environment = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(
        [str(path), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, cwd=cwd, check=False
    )


@pytest.fixture
def driver(build):
    return build("driver")


def test_help_goes_to_stderr(driver):
    done = run(driver, "--help")
    assert (done.returncode, done.stdout) == (0, "")
    assert "--install-for-all" in done.stderr


@pytest.mark.parametrize("word", ["--nodeps", "--pylocal", "--install", "bare", "--ful", "--install-pat=/x"])
def test_unknown_word_prints_the_help_and_unpacks_nothing(driver, word, tmp_path):
    done = run(driver, "--full", word, HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "--install-for-all" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_info_and_list_and_tar(driver):
    assert "ASCEND-HDK_DRIVER_RUN_PACKAGE" in run(driver, "--info").stdout
    assert "driver/lib64/libdcmi.so" in run(driver, "--list").stdout
    assert "drv_pcie_host 25.5.0" in run(driver, "--tar", "xOf", "./driver/host/drv_pcie_host.ko").stdout


def test_extract_without_execution(driver, tmp_path):
    done = run(driver, "--noexec", f"--extract={tmp_path}/x", HOME=str(tmp_path))
    assert done.returncode == 0
    assert "Verifying archive integrity... All good." in done.stdout
    assert "Uncompressing ASCEND-HDK_DRIVER_RUN_PACKAGE" in done.stdout
    assert "SHA256 checksums are OK" in done.stderr
    assert (tmp_path / "x/driver/lib64/libdcmi.so").is_file()


def test_quiet_prints_nothing_of_the_outer_layer(driver, tmp_path):
    assert run(driver, "--quiet", "--noexec", HOME=str(tmp_path)).stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode, text", [("truncated", "Unexpected archive size"), ("altered", "Error in SHA256 checksums")])
def test_bad_archive_is_rc_2_without_a_line_of_the_driver(build, mode, text, tmp_path):
    done = run(build("driver", "--mode", mode), "--full", "--quiet", HOME=str(tmp_path))
    assert done.returncode == 2
    assert text in done.stderr
    assert "[Driver]" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("env, used", [({"TMPDIR": "t", "HOME": "h"}, "t"), ({"HOME": "h"}, "h"), ({}, "c")])
def test_where_it_unpacks(driver, tmp_path, env, used):
    """Folders that can not be written show in the message where the archive goes: TMPDIR, else HOME, else the current folder."""
    for name in ("t", "h", "c"):
        (tmp_path / name).mkdir()
    watch = tmp_path / "bin"
    watch.mkdir()
    (watch / "mkdir").write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >> {tmp_path}/made\nexec /bin/mkdir "$@"\n')
    (watch / "mkdir").chmod(0o755)
    env = {key: str(tmp_path / value) for key, value in env.items()}
    done = run(driver, "--noexec", cwd=tmp_path / "c", **{**env, "PATH": f"{watch}:{os.environ['PATH']}"})
    assert done.returncode == 0
    made = (tmp_path / "made").read_text().splitlines()
    assert len(made) == 1 and made[0].startswith(f"{tmp_path / used}/selfgz")
    assert not os.path.exists(made[0])


def test_a_deleted_current_folder_is_rc_1(driver, tmp_path):
    command = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && {driver} --noexec"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 1


def test_no_room(driver, tmp_path):
    (tmp_path / "df").write_text("#!/bin/sh\necho 'header'\necho 'x 1 1 3 1% /'\n")
    (tmp_path / "df").chmod(0o755)
    (tmp_path / "home").mkdir()
    done = run(driver, "--noexec", HOME=str(tmp_path / "home"), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "Not enough space left in" in done.stderr
    assert [path.name[:6] for path in (tmp_path / "home").iterdir()] == ["selfgz"]


def test_sums_and_reproducible_build(build, tmp_path):
    first = build("driver")
    second = build("driver", "--hang-at", "before-payload")
    assert first.read_bytes() == second.read_bytes()
    line = (first.parent / "SHA256SUMS").read_text()
    assert line == f"{hashlib.sha256(first.read_bytes()).hexdigest()}  {first.name}\n"


def test_padding_gives_a_size(build):
    assert build("firmware", "--padding-kib", "300").stat().st_size - build("firmware").stat().st_size > 300 * 1024


@pytest.mark.parametrize("component, member, key", [
    ("driver", "./driver/version.info", "Version=25.5.0"), ("firmware", "./firmware/version.info", "package_version=25.5.0"),
    ("cann_toolkit", "./version.info", "Version=8.5.0"), ("cann_kernels", "./version.info", "Version=8.5.0"),
    ("docker_runtime", "./version.info", "Version=7.3.0"),
])  # fmt: skip
def test_the_version_can_be_read_without_running_the_package(build, component, member, key):
    """Header of SKIP lines, then a gzip'ed tar: what a scan of the depot looks at."""
    data = build(component).read_bytes()
    skip = int(re.search(rb"^skip=(\d+)$", data, re.MULTILINE).group(1))
    payload = data.split(b"\n", skip)[-1]
    with tarfile.open(fileobj=io.BytesIO(payload), mode="r:gz") as archive:
        assert f"{key}\n" in archive.extractfile(member).read().decode()


def test_the_tool_says_the_version_of_its_package(build, tmp_path):
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libdcmi.so").write_bytes(b"x")
    (tmp_path / "driver" / "npu-smi").write_text('TOOL_VERSION = "@NPU_SMI_VERSION@"\n')
    package = build("driver", "--driver", "25.3.rc1", "--payload", str(tmp_path))
    done = run(package, "--tar", "-xO", "./driver/tools/npu-smi")
    assert done.stdout == 'TOOL_VERSION = "25.3.rc1"\n', done.stderr
