# SPDX-License-Identifier: GPL-3.0-or-later
"""A package file is looked at before it runs: header, size, family, checksum."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _runfile

NAME = "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run"


def refused(path, sha256):
    with pytest.raises(FleetError) as caught:
        _runfile.check(str(path), path.name, sha256)
    return caught.value


def test_good(tmp_path, build):
    sha256 = build(tmp_path / NAME, label="ASCEND-HDK-910B-NPU FIRMWARE RUN PACKAGE")
    _runfile.check(str(tmp_path / NAME), NAME, sha256)
    _runfile.check(str(tmp_path / NAME), NAME, sha256.upper())


def test_checksum(tmp_path, build):
    sha256 = build(tmp_path / NAME)
    error = refused(tmp_path / NAME, "0" * 64)
    assert error.code == "checksum_differs"
    assert sha256 in str(error)


@pytest.mark.parametrize(("cut", "word"), [(-1, "cut short"), (-300, "cut short"), (1, "too long")])
def test_size(tmp_path, build, cut, word):
    path = tmp_path / NAME
    sha256 = build(path)
    content = path.read_bytes()
    path.write_bytes(content + b"x" if cut > 0 else content[:cut])
    error = refused(path, sha256)
    assert error.code == "package_truncated"
    assert word in str(error)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\necho no archive\n", b"\x7fELF makeself", b"<html>404</html>"])
def test_no_package(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    assert refused(tmp_path / NAME, "0" * 64).code == "package_invalid"


def test_missing(tmp_path):
    assert refused(tmp_path / NAME, "0" * 64).code == "package_missing"


def test_built_for_another_family(tmp_path, build):
    sha256 = build(tmp_path / NAME, label="ASCEND-HDK-310P-NPU FIRMWARE RUN PACKAGE")
    error = refused(tmp_path / NAME, sha256)
    assert error.code == "wrong_family"
    assert "a2" in str(error)
    assert "310p" in str(error)


def test_older_header_without_sizes(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(b'#!/bin/sh\n# generated using Makeself 2.2\nlabel="X"\nskip="3"\nx' + b"y" * 100)
    _runfile.check(str(path), NAME, _runfile.sha256_of(str(path)))
