# SPDX-License-Identifier: GPL-3.0-or-later
"""Booting nodes takes root, an engine and a minute: those tests are collected only when this folder is named to pytest."""

from pathlib import Path

HERE = Path(__file__).resolve().parent


def pytest_ignore_collect(collection_path, config):
    if collection_path.resolve() != HERE / "test_nodes.py":
        return None
    asked = [Path(str(word).split("::")[0]).resolve() for word in config.invocation_params.args if not str(word).startswith("-")]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True
