# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver package's option matrix: "driver package, measured", section 2. Only the file with the rules is sourced."""

import subprocess

import pytest
from simpkg_support import PACKAGES

SCRIPT = 'cd "$1"; . ./driver/options.sh; shift; parse_options "$@"; check_options && echo "ok $type" || echo "$option_code $option_error"'


def verdict(*words):
    done = subprocess.run(["bash", "-c", SCRIPT, "test", str(PACKAGES), *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    "words",
    [
        "--full --quiet",
        "--quiet --full",
        "--run",
        "--devel --quiet",
        "--docker --quiet",
        "--debug",
        "--upgrade --quiet",
        "--upgrade --force",
        "--full --force --quiet",
        "--full --install-for-all --install-path=/usr/local/Ascend",
        "--full --install-username=a --install-usergroup=b",
        "--full --vnpu_guest",
        "--version",
        "--check",
        "--uninstall",
        "--uninstall --force",
        "--full --norebuild",
    ],
)
def test_accepted(words):
    assert verdict(*words.split()).startswith("ok")


@pytest.mark.parametrize(
    "words, code, text",
    [
        ("", "0x0004", "Unrecognized parameters. Try"),
        ("--/dir", "0x0004", "Unrecognized parameters: --/dir"),
        ("--full --run", "0x0004", "only support one type"),
        ("--full --full", "0x0004", "only support one type"),
        ("--upgrade --full", "0x0004", "parameter needs to be used with"),
        ("--quiet", "0x0004", ""),
        ("--version --quiet", "0x0004", ""),
        ("--check --quiet", "0x0004", ""),
        ("--uninstall --quiet", "0x0004", ""),
        ("--uninstall --quiet --force", "0x0004", ""),
        ("--debug --quiet", "0x0004", ""),
        ("--devel --force", "0x0004", "parameter needs to be used with"),
        ("--upgrade --install-path=/x", "0x0004", ""),
        ("--upgrade --install-for-all", "0x0004", ""),
        ("--upgrade --install-username=a --install-usergroup=a", "0x0004", ""),
        ("--docker --install-for-all", "0x0004", ""),
        ("--full --install-username=a", "0x0004", "not specified at the same time"),
        ("--devel --vnpu_guest", "0x0004", "parameter needs to be used with"),
        ("--full --install-path=", "0x0003", "input error"),
        ("--full --install-path=relative", "0x0003", "input error"),
        ("--full --install-path=/a;b", "0x0003", "regular-expression"),
    ],
)
def test_refused(words, code, text):
    answer = verdict(*words.split())
    assert answer.startswith(code) and text in answer
