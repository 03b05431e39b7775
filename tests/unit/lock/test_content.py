# SPDX-License-Identifier: GPL-3.0-or-later
"""A package is what its name says and its content does not contradict."""

import hashlib
import io
import subprocess
import sys
from pathlib import Path

import packages
import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _content

BUILD = Path(__file__).parents[2] / "simulator" / "packages" / "build.py"


def describe(tmp_path, name, files, **options):
    packages.write(tmp_path / name, files, **options)
    return _content.describe(str(tmp_path / name))


def refused(tmp_path, name, files, **options):
    with pytest.raises(FleetError) as caught:
        describe(tmp_path, name, files, **options)
    return caught.value


def test_driver(tmp_path):
    found = describe(tmp_path, packages.DRIVER, packages.DRIVER_FILES)
    data = (tmp_path / packages.DRIVER).read_bytes()
    assert found["sha256"] == hashlib.sha256(data).hexdigest()
    assert found["size"] == len(data)
    assert [found[key] for key in ("component", "version", "family", "arch")] == ["driver", "25.5.0", "a2", "x86_64"]
    assert found["content"] == {
        "component": "driver", "version": "25.5.0", "release": "25.5.0", "family": None, "arch": "x86_64", "compression": "gzip",
    }


def test_firmware(tmp_path):
    found = describe(tmp_path, packages.FIRMWARE, packages.FIRMWARE_FILES, label=packages.FIRMWARE_LABEL)
    assert [found[key] for key in ("component", "version", "family", "arch")] == ["firmware", "7.8.0.5.216", "a2", None]
    assert [found["content"][key] for key in ("component", "family", "release")] == ["firmware", "a2", "25.5.0"]


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz", "none"])
def test_compressions(tmp_path, compression):
    found = describe(tmp_path, packages.DRIVER, packages.DRIVER_FILES, compression=compression)
    assert (found["content"]["compression"], found["content"]["version"]) == (compression, "25.5.0")


def test_an_unknown_compression_is_unknown(tmp_path):
    found = describe(tmp_path, packages.DRIVER, packages.DRIVER_FILES, compression="zstd")
    assert (found["content"]["compression"], found["content"]["version"]) == ("unknown", None)
    assert found["version"] == "25.5.0"


def test_each_byte_is_read_once(tmp_path):
    """One pass over several GB, whatever there is to find."""
    packages.write(tmp_path / packages.DRIVER, dict(packages.DRIVER_FILES, **{"./driver/big": bytes(3 << 20)}))
    data = (tmp_path / packages.DRIVER).read_bytes()

    class Once(io.BytesIO):
        taken = 0

        def read(self, size=-1):
            part = super().read(size)
            self.taken += len(part)
            return part

        def seek(self, *args):
            raise AssertionError("a stream from a server has no seek")

    stream = Once(data)
    assert _content.describe_stream(stream, packages.DRIVER, len(data))["sha256"] == hashlib.sha256(data).hexdigest()
    assert stream.taken == len(data)


def test_unpacking_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(_content, "_UNPACKED", 1 << 20)
    late = {"./a": bytes(2 << 20), **packages.DRIVER_FILES}
    found = describe(tmp_path, packages.DRIVER, late)
    assert found["content"]["version"] is None
    assert found["sha256"] == hashlib.sha256((tmp_path / packages.DRIVER).read_bytes()).hexdigest()


def test_the_file_spelling_of_hdk_22(tmp_path):
    """Version is what npu-smi prints, package_version what the file is named by ("Ascend packages" fact sheet, 1.3)."""
    files = {"./driver/version.info": "Version=22.0.3\npackage_version=6.0.RC1\n"}
    found = describe(tmp_path, "Ascend-hdk-310p-npu-driver_6.0.rc1_linux-aarch64.run", files)
    assert found["version"] == "6.0.rc1"


def test_versions_of_the_parts_of_a_bundle_are_not_its_own(tmp_path):
    found = describe(tmp_path, packages.TOOLKIT, {"./share/info/runtime/version.info": "Version=7.7.0\n"})
    assert found["content"]["version"] is None


@pytest.mark.parametrize(("name", "files", "label", "words"), [
    (packages.DRIVER.replace("25.5.0", "25.5.1"), packages.DRIVER_FILES, "X", ["25.5.1 by its name", "25.5.0 / 25.5.0 by its content"]),
    (packages.DRIVER.replace("x86-64", "aarch64"), packages.DRIVER_FILES, "X", ["aarch64 by its name", "x86_64 by its content"]),
    (packages.DRIVER, packages.FIRMWARE_FILES, "X", ["driver by its name", "firmware by its content"]),
    (packages.DRIVER, packages.DRIVER_FILES, packages.FIRMWARE_LABEL, ["driver by its name", "firmware by its content"]),
    (packages.TOOLKIT, {"./toolkit/version.info": "Version=8.3.RC1\n"}, "X", ["8.5.0 by its name", "8.3.RC1 by its content"]),
    (packages.TOOLKIT, {"./share/info/x/scene.info": "arch=aarch64\n"}, "X", ["x86_64 by its name", "aarch64 by its content"]),
    (packages.OPS, {"./opp/kernel/ascend310p/add.o": "x"}, "X", ["a2 by its name", "310p by its content"]),
    (packages.RUNTIME, packages.DRIVER_FILES, "X", ["docker_runtime by its name", "driver by its content"]),
])
def test_name_and_content_contradict(tmp_path, name, files, label, words):
    error = refused(tmp_path, name, files, label=label)
    assert error.code == "package_contradicts"
    assert [word for word in [name, *words] if word not in str(error)] == []


def test_a_label_of_another_family(tmp_path):
    error = refused(tmp_path, packages.FIRMWARE, packages.FIRMWARE_FILES, label=packages.FIRMWARE_LABEL.replace("910B", "310P"))
    assert error.code == "wrong_family"


@pytest.mark.parametrize(("with_sha", "place"), [(True, slice(-200, -199)), (False, slice(-150, -20))])
def test_a_damaged_payload(tmp_path, with_sha, place):
    """Without a checksum in the header, damage is seen where it can not be unpacked."""
    data = bytearray(packages.content(packages.DRIVER_FILES, with_sha=with_sha))
    data[place] = bytes(byte ^ 0xFF for byte in data[place])
    (tmp_path / packages.DRIVER).write_bytes(bytes(data))
    with pytest.raises(FleetError) as caught:
        _content.describe(str(tmp_path / packages.DRIVER))
    assert caught.value.code == "package_damaged"


def test_a_header_without_a_checksum(tmp_path):
    """makeself writes zeros when it was not asked for one."""
    data = packages.content(packages.DRIVER_FILES, with_sha=False).replace(b'label="', b'SHA="' + b"0" * 64 + b'"\nlabel="')
    (tmp_path / packages.DRIVER).write_bytes(data.replace(b'skip="6"', b'skip="7"'))
    assert _content.describe(str(tmp_path / packages.DRIVER))["content"]["version"] == "25.5.0"


@pytest.mark.parametrize("size", [-1, 1])
def test_a_file_of_another_size(tmp_path, size):
    data = packages.content(packages.DRIVER_FILES)
    data = data + b"x" if size > 0 else data[:-1]
    (tmp_path / packages.DRIVER).write_bytes(data)
    with pytest.raises(FleetError) as caught:
        _content.describe(str(tmp_path / packages.DRIVER))
    assert caught.value.code == "package_truncated"
    with pytest.raises(FleetError) as caught:
        _content.describe_stream(io.BytesIO(data), packages.DRIVER, None)
    assert caught.value.code == "package_truncated"


def test_an_answer_that_ends_too_early():
    data = packages.content(packages.DRIVER_FILES)
    with pytest.raises(FleetError) as caught:
        _content.describe_stream(io.BytesIO(data[:-10]), packages.DRIVER, len(data))
    assert caught.value.code == "package_damaged"


@pytest.mark.parametrize("data", [b"", b"<html>404</html>", b"PK\x03\x04"])
def test_no_package(tmp_path, data):
    (tmp_path / packages.DRIVER).write_bytes(data)
    with pytest.raises(FleetError) as caught:
        _content.describe(str(tmp_path / packages.DRIVER))
    assert caught.value.code == "package_invalid"


def test_simulated_packages(tmp_path):
    """Made by makeself itself, with the files of the measured packages."""
    subprocess.run([sys.executable, BUILD, "--out", tmp_path, "--family", "a3", "--arch", "aarch64"], check=True, capture_output=True)
    found = {entry["component"]: entry for entry in (_content.describe(str(path)) for path in tmp_path.glob("*.run"))}
    assert sorted(found) == ["cann_kernels", "cann_toolkit", "docker_runtime", "driver", "firmware"]
    sums = dict(reversed(line.split()) for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert {entry["file"]: entry["sha256"] for entry in found.values()} == sums
    assert found["driver"]["content"]["version"] == found["driver"]["version"]
    assert found["firmware"]["content"]["family"] == "a3"
    assert {entry["arch"] for entry in found.values()} == {"aarch64", None}


def test_a_simulated_package_for_another_family(tmp_path):
    command = [sys.executable, BUILD, "--out", tmp_path, "--component", "firmware", "--mode", "wrong-family"]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(FleetError) as caught:
        _content.describe(str(next(tmp_path.glob("*.run"))))
    assert caught.value.code == "wrong_family"
