# SPDX-License-Identifier: GPL-3.0-or-later
"""The built-in levels of fault codes against the vendor's own files: `make test-shared SHARED=DIR` (DIR/files/device-plugin.*.json)."""

import json
import os
import pathlib
import sys

import pytest

from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive

SHARED = pathlib.Path(os.environ["NPU_SHARED"])
NAME = "device-plugin.faultCode.json"
FOLDERS = [folder for folder in (SHARED / "files", SHARED / "samples" / "files", SHARED) if (folder / NAME).is_file()]
pytestmark = pytest.mark.skipif(not FOLDERS, reason=f"the folder has no {NAME}")


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    _agent_archive.write_sources(folder)
    sys.path.insert(0, str(folder))
    import npu_agent.faults

    yield npu_agent.faults
    sys.path.remove(str(folder))


def test_every_code_has_the_vendors_level(faults):
    lists = json.loads((FOLDERS[0] / NAME).read_text(encoding="utf-8"))
    wanted = {}
    for word in faults.ORDER[:-1]:  # a code in two lists keeps the worse one, which comes later
        wanted.update((f"{int(code, 16):08X}", word) for code in lists.pop(f"{word}Codes"))
    assert lists == {} and faults.load().levels == wanted


def test_the_vendors_own_files_change_nothing(faults):
    for name in (NAME, "device-plugin.faultCustomization.json"):
        read, own = faults.load(str(FOLDERS[0] / name)), faults.load()
        assert read.levels == own.levels and read.rules == own.rules
