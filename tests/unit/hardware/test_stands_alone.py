# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent carries _hardware without Ansible, and nodes may run an old Python."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _hardware

FOLDER = pathlib.Path(_hardware.__file__).parent
# A module of ours is imported as part of another package; ansible is blocked; a real question goes through the whole chain.
SCRIPT = """
import sys
for name in ("ansible", "ansible_collections"):
    sys.modules[name] = None
sys.path.insert(0, {folder!r})
import importlib, pkgutil
package = importlib.import_module("carrier._hardware")
for module in pkgutil.iter_modules(package.__path__):
    importlib.import_module("carrier._hardware." + module.name)
from carrier._hardware._dcmi_client import DcmiClient
from carrier._hardware._detect import detect
with DcmiClient({library!r}, 20) as client:
    found = detect(None, {folder!r}, {folder!r}, dcmi=client)
print(len(found["chips"]), found["chips"][0]["name"], found["query"]["source"])
"""


def pythons():
    found = {"this": sys.executable}
    for version in ("3.6", "3.7", "3.9"):
        path = os.environ.get("NPU_PYTHON_" + version.replace(".", "")) or shutil.which("python" + version)
        if path and subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode == 0:
            found[version] = path
    return found


@pytest.mark.parametrize("how", ["folder", "zip"])
@pytest.mark.parametrize("version", sorted(pythons()))
def test_imports_and_works_without_ansible(version, how, tmp_path, odd_library):
    carrier = tmp_path / "carrier"
    shutil.copytree(FOLDER, carrier / "_hardware", ignore=shutil.ignore_patterns("__pycache__"))
    (carrier / "__init__.py").touch()
    folder = str(tmp_path)
    if how == "zip":
        folder = shutil.make_archive(str(tmp_path / "agent"), "zip", tmp_path, "carrier")
        shutil.rmtree(carrier)
    script = SCRIPT.format(folder=folder, library=odd_library())
    result = subprocess.run([pythons()[version], "-c", script], check=False, capture_output=True, text=True, cwd="/", timeout=60)
    assert result.stderr == ""
    assert result.stdout == "2 910B4 dcmi\n"


def test_no_file_is_left_out():
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names >= {"__init__", "_dcmi", "_dcmi_client", "_detect", "_families", "_host", "_npu_smi", "_pci", "_query"}
