# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that a driver might have, for the tests of what containers get of them."""

import os
from types import SimpleNamespace

import pytest
from agent_rig import make_node


@pytest.fixture
def tree(tmp_path):
    for name in ("lib64/driver", "dcmi", "odd/a1", "odd/a2"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "npu-smi").write_text("#!/bin/sh\n")
    (tmp_path / "link").symlink_to("npu-smi")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder-link").symlink_to("dcmi")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def cdi_settings(tree):
    """Two chips and a list with one folder that exists."""
    for name in ("davinci0", "davinci1", "davinci_manager", "hisi_hdc"):
        make_node(tree / name)
    (tree / "base.list").write_text(f"{tree}/dcmi\n{tree}/none\n")
    return SimpleNamespace(backend="ascend",
                           dev_root=str(tree), cdi_mounts=f"{tree}/base.list", cdi_links="family", cdi_folder=f"{tree}/cdi",
                           allocate_by="nodes", allocate_mode="both", allocate_mounts="auto", install_path="/nowhere", host_root="/",
                           host_paths=())
