# SPDX-License-Identifier: GPL-3.0-or-later
"""The short form of `make soak`."""

import subprocess
import sys

from agent_rig import REPO


def test_soak():
    command = [sys.executable, str(REPO / "tests/soak/soak.py"), "--kubelet", "6", "--agent", "8", "--faults", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing left behind" in done.stdout
