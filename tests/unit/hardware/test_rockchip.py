# SPDX-License-Identifier: GPL-3.0-or-later
"""A Rockchip board in the form of a server, beside one, and as npu_info shows it."""

import os
import pathlib
import sys

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _observe
from ansible_collections.npu.fleet.plugins.module_utils._hardware import _detect, _families, _rockchip
from ansible_collections.npu.fleet.plugins.module_utils._packages import _node
from ansible_collections.npu.fleet.plugins.modules import npu_info

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "simulator" / "rockchip"))
from rockchip_tree import SOCS, STACKS, tree

KEYS = set(_detect.blank()) | {"evidence"}


def look(root, **more):
    return _rockchip.detect(f"{root}/sys", f"{root}/dev", f"{root}/proc", **more)


@pytest.fixture
def observe(tmp_path, monkeypatch):
    """npu_info on a board below tmp_path; the parts that ask systemd and engines of this machine are left out."""
    monkeypatch.setattr(_observe._engine, "observe", lambda run, root: [])
    monkeypatch.setattr(_observe._agent, "observe", lambda root, run: {"version": None, "active": False})
    (tmp_path / "root/etc").mkdir(parents=True)

    def observe(**board):
        tree(tmp_path, **board)
        return npu_info.observe({
            "root": f"{tmp_path}/root", "sysfs_root": f"{tmp_path}/sys", "dev_root": f"{tmp_path}/dev", "proc_root": f"{tmp_path}/proc",
            "npu_smi": None, "dcmi_library": None, "timeout": 5,
        })

    return observe


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("soc", sorted(SOCS))
def test_each_soc_with_each_stack(tmp_path, soc, stack):
    found = look(tree(tmp_path, soc=soc, stack=stack))
    [chip] = found["chips"]
    assert set(chip) == KEYS
    assert (found["present"], found["family"], found["families"], found["product"]) == (True, soc, [soc], SOCS[soc][1])
    assert (chip["name"], chip["family"], chip["stack"], chip["health"], chip["error"]) == (soc.upper(), soc, stack, "OK", None)
    assert (chip["cores"], chip["pci_address"], chip["serial"]) == (len(SOCS[soc][0]), None, "c3d9b8674f4b94f6")
    assert chip["evidence"] == {"pci": None, "driver": "rocket" if stack == "rocket" else "RKNPU", "device_node": True}
    assert found["driver"] == {"loaded": True, "version": None if stack == "rocket" else "0.9.8"}
    assert found["query"] == {"ok": True, "source": "sysfs", "error": None, "errors": []}


def test_both_nodes_of_the_npu_and_none_of_the_gpu(tmp_path):
    found = look(tree(tmp_path))
    nodes = [f"{tmp_path}/dev/dri/card1", f"{tmp_path}/dev/dri/renderD129"]
    assert (found["chips"][0]["device_nodes"], found["device_nodes"], found["chips"][0]["device_node"]) == (nodes, nodes, nodes[1])


def test_a_machine_without_one(tmp_path):
    for name in ("sys", "dev", "proc"):
        (tmp_path / name).mkdir()
    assert look(tmp_path) is None


def test_a_kernel_without_the_driver(tmp_path):
    found = look(tree(tmp_path, bound=False), says=lambda dev: ["RKNPU 27700000.npu: error -EBUSY: can't request region"])
    [chip] = found["chips"]
    assert (chip["health"], chip["device_nodes"], chip["evidence"]["driver"]) == (None, [], None)
    assert (found["query"]["ok"], found["query"]["error"]["code"], found["driver"]["loaded"]) == (False, "npu_driver_missing", False)
    assert "has no driver" in chip["error"]["message"]
    assert chip["error"]["message"].endswith("; the kernel says: RKNPU 27700000.npu: error -EBUSY: can't request region")


@pytest.mark.parametrize("gone", ["dri/card1", "dri/renderD129"])
def test_one_node_of_two_is_not_enough(tmp_path, gone):
    found = look(tree(tmp_path, gone=(gone,)), says=lambda dev: [])
    [chip] = found["chips"]
    assert (chip["health"], chip["evidence"]["device_node"], len(chip["device_nodes"])) == (None, False, 1)
    assert (found["query"]["error"]["code"], found["query"]["ok"]) == ("npu_broken", False)
    assert f"{tmp_path}/dev/{gone} is missing" in found["query"]["error"]["message"]


def test_a_driver_that_is_there_and_does_not_work(tmp_path):
    """A node without a driver behind its number cannot be opened by root either."""
    root = tree(tmp_path)
    node = root / "dev/dri/renderD129"
    node.unlink()
    os.mknod(node, 0o20660, os.makedev(511, 1048575))
    (root / "dev/kmsg").write_text(
        "6,1,1,-;usb 1-1: new device\n3,2,2,-;RKNPU fdab0000.npu: error -EBUSY: can't request region\n3,3,3,-;RKNPU: job\x07 timeout\n"
    )
    found = look(root)
    assert (found["chips"][0]["health"], found["query"]["ok"]) == ("Critical", False)
    assert found["query"]["error"]["message"].endswith(
        "renderD129 cannot be opened: No such device or address; the kernel says: RKNPU fdab0000.npu: error -EBUSY: can't request region "
        "/ RKNPU: job timeout"
    )


def test_who_may_not_try_does_not_know(tmp_path):
    found = look(tree(tmp_path), opened=lambda path: None)
    assert (found["chips"][0]["health"], found["chips"][0]["error"], found["query"]["ok"]) == (None, None, True)


def test_only_the_last_lines_of_a_long_log(tmp_path):
    (tmp_path / "kmsg").write_text("".join(f"6,{number},1,-;RKNPU: line {number}\n" for number in range(9000)))
    assert _rockchip.kernel_says(str(tmp_path)) == [f"RKNPU: line {number}" for number in (8997, 8998, 8999)]
    assert _rockchip.kernel_says(str(tmp_path / "nowhere")) == []


# --- beside a card ------------------------------------------------------------------------------------------------------

def test_a_card_wins_over_the_board(tmp_path, tree_of_cards):
    board = look(tree(tmp_path / "board"))
    joined = _rockchip.join(tree_of_cards, board)
    assert (joined["backend"], joined["family"], len(joined["chips"])) == ("ascend", "a2", 1)
    assert joined["notes"] == ["The RK3588 of this board has an NPU of its own, which is left alone: the cards are what this node offers."]
    assert joined["unknown"] == []


def test_a_card_alone_is_as_it_was(tree_of_cards):
    joined = _rockchip.join(tree_of_cards, None)
    assert {key: joined[key] for key in tree_of_cards} == tree_of_cards
    assert (joined["backend"], joined["notes"]) == ("ascend", [])


@pytest.fixture
def tree_of_cards(tmp_path):
    folder = tmp_path / "cards/sys/bus/pci/devices/0000:c1:00.0"
    folder.mkdir(parents=True)
    (tmp_path / "cards/dev").mkdir()
    for name, value in {"vendor": "0x19e5", "device": "0xd802", "class": "0x120000"}.items():
        (folder / name).write_text(value + "\n")
    return _detect.detect(None, f"{tmp_path}/cards/sys", f"{tmp_path}/cards/dev")


# --- npu_info -----------------------------------------------------------------------------------------------------------

def test_npu_info_of_a_board(observe):
    npu = observe()
    assert (npu["present"], npu["backend"], npu["family"], npu["product"]) == (True, "rockchip", "rk3588", "Radxa ROCK 5B")
    assert npu["versions"]["driver"] == {"on_disk": None, "running": "0.9.8"}
    assert {state["state"] for state in npu["components"].values()} == {"absent"}
    # No packages of a vendor: what runs is not held against what is on disk.
    assert (npu["query"]["error"], npu["reboot_required"], npu["notes"]) == (None, False, [])
    assert (npu["chips"][0]["device_groups"], npu["device_group"]) == ([0], 0)


def test_npu_info_without_any_npu(observe, tmp_path):
    for name in ("sys", "dev", "proc"):
        (tmp_path / name).mkdir()
    npu = npu_info.observe({"root": f"{tmp_path}/root", "sysfs_root": f"{tmp_path}/sys", "dev_root": f"{tmp_path}/dev",
                            "proc_root": f"{tmp_path}/proc", "npu_smi": None, "dcmi_library": None, "timeout": 5})
    assert (npu["present"], npu["backend"], npu["query"]["ok"]) == (False, None, True)


def test_groups_that_may_open_a_node(tmp_path):
    root = tree(tmp_path, modes=(("dri/card1", 0o600),))
    os.chown(root / "dev/dri/renderD129", 0, 106)
    os.chown(root / "dev/dri/card1", 0, 44)
    nodes = [str(root / "dev/dri" / name) for name in ("card1", "renderD129")]
    assert _node.groups_of([*nodes, str(root / "dev/gone")]) == [106]


def test_a_process_that_holds_the_npu_is_seen_and_one_of_the_gpu_is_not(observe, tmp_path):
    folder = tmp_path / "proc/77"
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text("frigate\n")
    (folder / "fd/3").symlink_to(tmp_path / "dev/dri/renderD129")
    (folder / "fd/4").symlink_to(tmp_path / "dev/dri/renderD128")
    assert [(holder["comm"], holder["device"]) for holder in observe()["holders"]] == [("frigate", f"{tmp_path}/dev/dri/renderD129")]


# --- families -----------------------------------------------------------------------------------------------------------

def test_layers_and_resources():
    for family in _families.FAMILIES:
        assert (_families.backend_of(family), "driver" in _families.layers_of(family)) == ("ascend", True)
    for soc in SOCS:
        assert (_families.backend_of(soc), _families.layers_of(soc)) == ("rockchip", ())
        assert _families.resource_of(soc) == "rockchip.com/rknpu"
    assert _families.resource_of("rk3588", "rocket") == "rockchip.com/rocket"
    assert _families.resource_of("a2") == "huawei.com/Ascend910"
    assert (_families.backend_of(None), _families.resource_of(None), "driver" in _families.layers_of(None)) == (None, None, True)
