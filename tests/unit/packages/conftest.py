# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared fixtures: small self-extracting files with a header like makeself's, for tests of what looks at such files or runs them."""

import hashlib

import pytest
from install_rig import machine  # noqa: F401  (a fixture)

HEADER = """#!/bin/sh
# This script was generated using Makeself 2.4.5
label="{label}"
totalsize="{size}"
skip="{lines}"
{script}
exit $?
"""


def _build(path, script="exit 0", label="ASCEND_RUN_PACKAGE", payload=b"payload\n" * 40):
    """Write a package whose header is ``script``; return its sha256."""
    lines = HEADER.count("\n") + script.count("\n")
    text = HEADER.format(label=label, size=len(payload), lines=lines, script=script).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text + payload)
    path.chmod(0o755)
    return hashlib.sha256(text + payload).hexdigest()


@pytest.fixture
def build():
    return _build
