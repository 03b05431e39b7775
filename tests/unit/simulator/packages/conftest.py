# SPDX-License-Identifier: GPL-3.0-or-later
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from simpkg_sandbox import Sandbox
from simpkg_support import PACKAGES


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """build(component, *options) -> path of the package; each set of options is built once."""
    cache = {}

    def make(component, *options):
        key = (component, options)
        if key not in cache:
            out = tmp_path_factory.mktemp("packages")
            words = ["--out", str(out), "--component", component, "--space-mib", "1", *options]
            subprocess.run([sys.executable, str(PACKAGES / "build.py"), *words], check=True, capture_output=True)
            cache[key] = next(out.glob("*.run"))
        return cache[key]

    return make


@pytest.fixture
def sandbox(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("the packages install as root only; the pure parts are tested without it")
    box = Sandbox(tmp_path / "sandbox")
    yield box
    box.run("chattr -R -f -i /usr/local/Ascend")
    shutil.rmtree(tmp_path / "sandbox")
