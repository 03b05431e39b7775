# SPDX-License-Identifier: GPL-3.0-or-later
"""The NPUs of Rockchip boards: laid out in a folder as the kernel shows them. A node is /dev/null's device under the node's name, where
the test may make one; what is compared else is the name."""

import os
import shutil

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _rknpu


class Board:
    """sysfs, /dev and /proc of one board below `root`."""

    def __init__(self, root):
        self.roots = [str(root / name) for name in ("sys", "dev", "proc")]
        self.sysfs, self.dev, self.proc = (root / name for name in ("sys", "dev", "proc"))
        for folder in (self.sysfs, self.dev, self.proc):
            folder.mkdir()

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def link(self, path, target):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, path)

    def names(self, *names):
        self.write(self.proc / "device-tree/compatible", "\0".join(names) + "\0")

    def device(self, address, compatible, driver=None):
        device = self.sysfs / "devices/platform" / address
        lines = [f"DRIVER={driver}"] if driver else []
        self.write(device / "uevent", "\n".join([*lines, f"OF_COMPATIBLE_0={compatible}", "OF_COMPATIBLE_N=1", ""]))
        self.link(self.sysfs / "bus/platform/devices" / address, device)
        if driver:
            self.link(self.sysfs / "bus/platform/drivers" / driver / address, device)
        return device

    def class_node(self, kind, name, device, *, path=None):
        self.link(self.sysfs / "class" / kind / name / "device", device)
        if path:
            self.node(path)

    def node(self, path):
        target = self.dev / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(target, 0o600 | 0o020000, os.stat("/dev/null").st_rdev)

    def find(self):
        return _rknpu.find(*self.roots)


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path)


def drm(board, soc="rk3588", address="fdab0000.npu", card=1, render=129):
    device = board.device(address, f"rockchip,{soc}-rknpu", "RKNPU")
    board.class_node("drm", f"card{card}", device, path=f"dri/card{card}")
    board.class_node("drm", f"renderD{render}", device, path=f"dri/renderD{render}")
    return device


@pytest.mark.parametrize(("names", "tree", "address", "expected"), [
    (["radxa,rock-5c", "rockchip,rk3588s"], "rk3588", "fdab0000.npu", ("rk3588", 3)),
    (["radxa,rock-5b", "rockchip,rk3588"], "rk3588", "fdab0000.npu", ("rk3588", 3)),
    (["vendor,board", "rockchip,rk3583", "rockchip,rk3588"], "rk3588", "fdab0000.npu", ("rk3583", 2)),
    (["friendlyarm,nanopi-m5", "rockchip,rk3576"], "rk3576", "27700000.npu", ("rk3576", 2)),
    (["radxa,zero-3w", "rockchip,rk3566"], "rk3568", "fde40000.npu", ("rk3566", 1)),
    (["firefly,roc", "rockchip,rk3568"], "rk3568", "fde40000.npu", ("rk3568", 1)),
    (["vendor,board", "rockchip,rk3562"], "rk3562", "ff300000.npu", ("rk3562", 1)),
    ([], "rk3588", "fdab0000.npu", ("rk3588", 3)),
    (["vendor,board", "rockchip,rv1126b"], "rv1126b", "21f00000.npu", ("rv1126", None)),
])
def test_the_soc_is_the_boards(board, names, tree, address, expected):
    if names:
        board.names(*names)
    drm(board, tree, address)
    (found,) = board.find()
    assert (found["soc"], found["cores"]) == expected
    assert (found["address"], found["stack"]) == (address, "rknpu-drm")
    assert found["problems"] == []


def test_nodes_are_found_by_their_device_whatever_their_numbers(board):
    other = board.device("fb000000.gpu", "rockchip,rk3588-mali", "panthor")
    display = board.device("display-subsystem", "rockchip,display-subsystem", "rockchip-drm")
    for name, device in (("card0", display), ("card1", other), ("renderD128", other), ("card0-HDMI-A-1", display)):
        board.class_node("drm", name, device, path=f"dri/{name}")
    drm(board, card=2, render=129)
    helper = board.device("rknpu_dev.4.auto", "", "RKNPU")
    (found,) = board.find()
    assert found["device_nodes"] == [f"{board.dev}/dri/card2", f"{board.dev}/dri/renderD129"]
    assert helper.name not in str(found)


def test_built_in_and_version_from_either_place(board):
    """No list of modules is looked at."""
    drm(board)
    assert board.find()[0]["driver_version"] is None
    board.write(board.sysfs / "module/rknpu/version", "DRIVER_MAJOR.DRIVER_MINOR.DRIVER_PATCHLEVEL\n")
    assert (board.find()[0]["driver_version"], board.find()[0]["problems"]) == (None, [])
    board.write(board.sysfs / "module/rknpu/version", "0.9.3\n")
    assert board.find()[0]["driver_version"] == "0.9.3"
    board.write(board.sysfs / "kernel/debug/rknpu/version", "RKNPU driver: v0.9.6\n")
    assert board.find()[0]["driver_version"] == "0.9.6"
    board.write(board.proc / "rknpu/version", "RKNPU driver: v0.9.8\n")
    assert board.find()[0]["driver_version"] == "0.9.8"
    assert board.find()[0]["problems"] == []
    # A file that says nothing, or cannot be read, is passed over; and nothing is wrong with an NPU whose driver does not tell.
    board.write(board.proc / "rknpu/version", "\n")
    assert board.find()[0]["driver_version"] == "0.9.6"
    (board.sysfs / "kernel/debug/rknpu/version").unlink()
    (board.sysfs / "kernel/debug/rknpu/version").mkdir()
    assert board.find()[0]["driver_version"] == "0.9.3"
    (board.sysfs / "module/rknpu/version").unlink()
    assert (board.find()[0]["driver_version"], board.find()[0]["problems"]) == (None, [])


def test_misc_build(board):
    board.device("fde40000.npu", "rockchip,rk3568-rknpu", "RKNPU")
    board.link(board.sysfs / "class/misc/rknpu", board.sysfs / "devices/virtual/misc/rknpu")
    (board.sysfs / "devices/virtual/misc/rknpu").mkdir(parents=True)
    board.node("rknpu")
    (found,) = board.find()
    assert (found["stack"], found["device_nodes"], found["problems"]) == ("rknpu-misc", [f"{board.dev}/rknpu"], [])
    (board.dev / "rknpu").unlink()
    (found,) = board.find()
    assert found["device_nodes"] == []
    assert found["missing_nodes"] == [f"{board.dev}/rknpu"]
    assert found["problems"] == [f"its device node {board.dev}/rknpu is missing"]


def test_a_link_is_no_node(board):
    """Nor is it one beside a node: the vendor's runtime would take it for the node of the other build."""
    drm(board)
    assert board.find()[0]["problems"] == []
    os.symlink("dri/renderD129", board.dev / "rknpu")
    (found,) = board.find()
    assert [os.path.basename(path) for path in found["device_nodes"]] == ["card1", "renderD129"]
    assert found["problems"] == [f"{board.dev}/rknpu is a symbolic link, no device node: remove it"]
    (board.dev / "rknpu").unlink()
    (board.dev / "dri/card1").unlink()
    os.symlink("renderD129", board.dev / "dri/card1")
    assert board.find()[0]["problems"] == [f"{board.dev}/dri/card1 is a symbolic link, no device node: remove it"]


@pytest.mark.parametrize("stack", ["rknpu-misc", "rocket"])
def test_a_link_is_a_problem_in_every_stack(board, stack):
    if stack == "rocket":
        board.device("fdab0000.npu", "rockchip,rk3588-rknn-core", "rocket")
        board.class_node("accel", "accel0", board.device("rknn", "", None), path="accel/accel0")
    else:
        board.device("fdab0000.npu", "rockchip,rk3588-rknpu", "RKNPU")
        board.node("dri/renderD129")
    os.symlink("dri/renderD129", board.dev / "rknpu")
    (found,) = board.find()
    assert (found["stack"], found["problems"]) == (stack, [f"{board.dev}/rknpu is a symbolic link, no device node: remove it"])


@pytest.mark.parametrize("bound", [("RKNPU", "RKNPU"), (None, "RKNPU"), ("RKNPU", None)])
def test_two_npus_with_one_node_are_one(board, bound):
    for address, driver in zip(("fdab0000.npu", "fde00000.npu"), bound):  # noqa: B905  Python 3.6 knows no `strict`
        board.device(address, "rockchip,rk3588-rknpu", driver)
    board.node("rknpu")
    (found,) = board.find()
    assert (found["driver_bound"], found["device_nodes"], found["problems"]) == (True, [f"{board.dev}/rknpu"], [])


def test_two_npus_with_nodes_of_their_own_are_two(board):
    drm(board)
    drm(board, address="fde00000.npu", card=2, render=130)
    board.device("fdf00000.npu", "rockchip,rk3588-rknpu")
    board.device("fdf10000.npu", "rockchip,rk3588-rknpu")
    assert [one["address"] for one in board.find()] == ["fdab0000.npu", "fde00000.npu", "fdf00000.npu", "fdf10000.npu"]


def test_no_driver(board):
    board.device("fdab0000.npu", "rockchip,rk3588-rknpu")
    (found,) = board.find()
    assert (found["driver_bound"], found["device_nodes"]) == (False, [])
    assert "fdab0000.npu has no driver" in found["problems"][0]


def test_rocket_is_one_npu_of_three_cores(board):
    board.names("radxa,rock-5b", "rockchip,rk3588")
    for address in ("fdab0000.npu", "fdac0000.npu", "fdad0000.npu"):
        board.device(address, "rockchip,rk3588-rknn-core", "rocket")
    virtual = board.device("rknn", "", None)
    board.class_node("accel", "accel0", virtual, path="accel/accel0")
    foreign = board.device("fc000000.other", "vendor,other", "other")
    board.class_node("accel", "accel1", foreign, path="accel/accel1")
    (found,) = board.find()
    assert (found["stack"], found["cores"], found["address"], found["soc"]) == ("rocket", 3, "fdab0000.npu", "rk3588")
    assert found["device_nodes"] == [f"{board.dev}/accel/accel0"]


def test_no_npu(board):
    board.device("fb000000.gpu", "rockchip,rk3588-mali", "panthor")
    board.node("rknpu")  # of whom is not known
    assert board.find() == []
    shutil.rmtree(board.sysfs)
    assert board.find() == []


@pytest.mark.parametrize(("text", "cores"), [
    ("NPU load:  Core0:  0%, Core1:  0%, Core2:  0%,\n", [0, 0, 0]),
    ("NPU load:  Core0:  21%, Core1:  11%, Core2:  0%,", [21, 11, 0]),
    ("NPU load:  Core0:  0%, Core1:  7%,", [0, 7]),
    ("NPU load:  0%", [0]),
    ("NPU load:  63%\n", [63]),
    ("NPU load:    %\n", [0]),
    ("NPU load: Core0:   %, Core1: 25%, Core2:   %,", [0, 25, 0]),
    ("NPU load: Core0: 429496%, Core1: 0%, Core2: 100%,", [None, 0, 100]),
    ("NPU load:  101%", [None]),
])
def test_load(text, cores):
    assert _rknpu.load(text) == cores


@pytest.mark.parametrize("text", ["", "100@1000000000Hz", "NPU load:", "NPU load:  Core99: 1%,", "RKNPU driver: v0.9.8"])
def test_what_is_no_load(text):
    with pytest.raises(ValueError, match="no load of an NPU"):
        _rknpu.load(text)


def test_usage_reads_no_file_that_wakes_the_npu(board, monkeypatch):
    board.write(board.proc / "rknpu/power", "off\n")
    board.write(board.sysfs / "kernel/debug/rknpu/load", "NPU load:  Core0:  0%, Core1:  3%, Core2:  0%,\n")
    board.write(board.proc / "rknpu/load", "what?\n")
    for folder in (board.proc / "rknpu", board.sysfs / "kernel/debug/rknpu"):
        board.write(folder / "freq", "1000000000\n")
    seen, real = [], _rknpu.read
    monkeypatch.setattr(_rknpu, "read", lambda path: seen.append(path) or real(path))
    assert _rknpu.usage(*map(str, (board.sysfs, board.proc))) == {"load": [0, 3, 0], "power": False}
    assert seen
    assert not [path for path in seen if path.endswith("freq")]
    assert _rknpu.usage("/nowhere", "/nowhere") == {"load": None, "power": None}
