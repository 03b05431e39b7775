# SPDX-License-Identifier: GPL-3.0-or-later
"""Load parts of tests/simulator/packages under names that nothing else in a common pytest run has."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[3] / "simulator" / "packages"
sys.path.insert(0, str(PACKAGES))


def load(path):
    name = "simpkg_" + Path(path).name.replace("-", "_").removesuffix(".py")
    loader = SourceFileLoader(name, str(PACKAGES / path))
    module = module_from_spec(spec_from_loader(name, loader))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = written
    return module
