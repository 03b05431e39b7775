# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated board shows what public logs of real ones show."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "simulator" / "rockchip"))
from rockchip_tree import SOCS, STACKS, Board, Node, content, tree


def nodes(board):
    return sorted(path for path, value in content(board).items() if isinstance(value, Node))


def test_the_npu_is_behind_the_gpu_in_the_numbers(tmp_path):
    root = tree(tmp_path)
    assert (root / "sys/class/drm/card1/device/uevent").read_text().startswith("DRIVER=RKNPU\n")
    assert "OF_COMPATIBLE_0=rockchip,rk3588-rknpu\n" in (root / "sys/class/drm/renderD129/device/uevent").read_text()
    assert (root / "sys/class/drm/card0/device/uevent").read_text().startswith("DRIVER=panthor\n")
    assert (root / "proc/device-tree/compatible").read_bytes() == b"radxa,rock-5b\0rockchip,rk3588\0"
    assert (root / "sys/bus/platform/devices/fdab0000.npu/driver").resolve().name == "RKNPU"


def test_without_a_gpu_it_has_the_first_numbers():
    assert [path for path in nodes(Board(gpu=False)) if "dri" in path] == ["dev/dri/card0", "dev/dri/card2", "dev/dri/renderD128"]


@pytest.mark.parametrize("stack, own", [
    ("rknpu-drm", ["dev/dri/card1", "dev/dri/renderD129"]), ("rknpu-misc", ["dev/rknpu"]), ("rocket", ["dev/accel/accel0"]),
])
def test_nodes_of_each_stack(stack, own):
    others = ["dev/dma_heap/system", "dev/dri/card0", "dev/dri/card2", "dev/dri/renderD128", "dev/mpp_service", "dev/rga"]
    assert nodes(Board(stack=stack)) == sorted(own + others)
    assert nodes(Board(stack=stack, gone=(own[0].removeprefix("dev/"),))) == sorted(own[1:] + others)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("soc", sorted(SOCS))
def test_an_unbound_driver_leaves_the_device_alone(soc, stack):
    there = content(Board(soc=soc, stack=stack, bound=False))
    assert "DRIVER=" not in there[f"sys/devices/platform/{SOCS[soc][0][0]}.npu/uevent"]
    assert not any("rknpu" in path.rpartition("/")[2] or "accel" in path for path in there)


@pytest.mark.parametrize("stack", STACKS)
def test_a_broken_driver_has_nodes_that_nobody_can_open(tmp_path, stack):
    good, bad = content(Board(stack=stack)), content(Board(stack=stack, broken=True))
    changed = [path for path in good if good[path] != bad[path]]
    assert sorted(changed) == sorted(path for path in nodes(Board(stack=stack)) if path not in nodes(Board(stack=stack, bound=False)))
    root = tree(tmp_path, stack=stack, broken=True)
    with pytest.raises(OSError, match="No such device"):
        (root / changed[0]).open()


@pytest.mark.parametrize("board, text", [
    (Board(), "NPU load:  Core0:  0%, Core1:  0%, Core2:  0%,\n"),
    (Board(load=(63, 65, 64)), "NPU load:  Core0: 63%, Core1: 65%, Core2: 64%,\n"),
    (Board(soc="rk3576"), "NPU load:  Core0:  0%, Core1:  0%,\n"),
    (Board(soc="rk3566"), "NPU load:  0%\n"),
])
def test_load_is_printed_as_on_real_boards(board, text):
    assert content(board)["sys/kernel/debug/rknpu/load"] == text


def test_an_early_driver_has_no_load():
    there = content(Board(soc="rk3568", driver_version="0.4.2", procfs=True))
    assert there["proc/rknpu/version"] == "RKNPU driver: v0.4.2\n"
    assert not [path for path in there if path.endswith("rknpu/load")]
