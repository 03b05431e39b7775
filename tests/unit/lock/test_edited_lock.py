# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks that somebody has edited, merged or made to hurt: one sentence each, never a traceback or a hang."""

import copy

import pytest
import yaml

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _lock, _yaml

CANARY = "pa55-w0rd-canary"
LOCK = {
    "lock": 1, "release": "25.5.0", "unlisted_reason": None, "sets": {"a2": {"driver": "25.5.0"}},
    "packages": [{
        "family": "a2", "arch": "x86_64", "component": "driver", "version": "25.5.0",
        "file": "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run", "size": 5, "sha256": "a" * 64, "source": "http://depot/x.run",
        "signature": None,
    }],
}
TEXT = _lock.text(LOCK)
# Twelve lines that stand for 9 ** 12 words.
BOMB = "[&a0 [x,x,x,x,x,x,x,x,x]," + ",".join(f"&a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)) + "]"


def fault(tmp_path, text):
    path = tmp_path / "npu.lock.yml"
    path.write_bytes(text.encode())
    with pytest.raises(FleetError) as caught:
        _lock.read(path)
    assert caught.value.code == "lock_invalid"
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize(("old", "new", "part"), [
    ("release: 25.5.0", f"release: &b {BOMB}", "anchor"),
    ("family: a2", f"family: {BOMB}", "anchor"),
    ("release: 25.5.0", "release: &r [*r]", "anchor"),
    ("release: 25.5.0", "release: 2024-13-45", "month must be"),
    ("release: 25.5.0", "release: !!int abc", "invalid literal"),
    ("release: 25.5.0", "release: !!python/object/apply:os.system [id]", "constructor"),
    ("release: 25.5.0", f"release: {'[' * 20000}", "valid"),
    ("release: 25.5.0", "release: 25.5.0\nrelease: 25.5.1", "release is there twice"),
    ("sets:", "packages: []\nsets:", "packages is there twice"),
    ("release: 25.5.0", "release: 25.5", "release is 25.5, which is no text"),
    ("unlisted_reason: null", "unlisted_reason: [x]", "unlisted_reason is ['x']"),
    ("lock: 1", "lock: true", "does not begin"),
    ("sets:", "1: x\nfoo: y\nsets:", "1, foo is missing or unknown"),
    ("size: 5", "size: true", "has True for size"),
    ("driver: 25.5.0", "driver: banana", "the version 'banana'"),
    ("  a2:", "  310:", "310 and 910 stand in quotes"),
    ("http://depot/", f"http://user:{CANARY}@depot/", "in its source"),
    ("x.run", f"x.run?token={CANARY}", "in its source"),
    ("signature: null", "signature: {signer: x}", "in its signature"),
])
def test_an_edited_lock_is_refused_in_words(tmp_path, old, new, part):
    assert TEXT.count(old) == 1
    said = fault(tmp_path, TEXT.replace(old, new))
    assert part in said
    assert CANARY not in said


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT])
def test_line_ends_and_marks_of_an_editor_do_no_harm(tmp_path, text):
    path = tmp_path / "npu.lock.yml"
    path.write_bytes(text.encode())
    assert _lock.read(path) == LOCK


def test_the_lock_that_is_written_is_one_that_is_read(tmp_path):
    """A set that is used twice must not become an anchor."""
    lock = copy.deepcopy(LOCK)
    lock["sets"]["a3"] = lock["sets"]["a2"]
    path = tmp_path / "npu.lock.yml"
    path.write_text(_lock.text(lock))
    assert _lock.read(path) == lock


def test_plain_yaml():
    assert _yaml.load("a: &x [1]\nb: *x\n") == {"a": [1], "b": [1]}
    assert _yaml.load("") is None
    assert _yaml.load("", aliases=False) is None
    with pytest.raises(yaml.YAMLError):
        _yaml.load("a: &x [1]\nb: *x\n", aliases=False)
