# SPDX-License-Identifier: GPL-3.0-or-later
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "nodes"), str(TESTS / "cri")]
