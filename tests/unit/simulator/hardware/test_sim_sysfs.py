# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees below /sys and nodes in /dev, built in a folder: no mount, no privilege needed for the trees."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import struct

import npu_sim
import pytest
import sysfs_tree
from sysfs_tree import MAJOR


@pytest.fixture
def content():
    state = npu_sim.initial()
    npu_sim.personalise(state, "node1")
    me = os.getuid(), os.getgid()
    state["kernel"].update(node_owner=pwd.getpwuid(me[0]).pw_name, node_group=grp.getgrgid(me[1]).gr_name)
    return state


@pytest.fixture
def real(tmp_path):
    """A small machine: one PCI device with a driver, a class with a link and a file, one module."""
    root = tmp_path / "real"
    (root / "devices/pci0/0000:00:03.0").mkdir(parents=True)
    for folder in ("bus/pci/devices", "bus/pci/drivers/virtio-pci", "class/net", "class/mem", "class/firmware", "class/dmi", "module/loop"):
        (root / folder).mkdir(parents=True)
    (root / "bus/pci/devices/0000:00:03.0").symlink_to("../../../devices/pci0/0000:00:03.0")
    (root / "bus/pci/rescan").write_text("")
    (root / "class/net/eth0").symlink_to("../../devices/pci0/0000:00:03.0")
    (root / "class/mem/null").symlink_to("../../devices/virtual/mem/null")
    (root / "class/firmware/timeout").write_text("60\n")
    (root / "class/dmi/id").symlink_to("../../devices/virtual/dmi/id")
    return root


def build(tmp_path, tree):
    target = tmp_path / "target"
    target.mkdir(exist_ok=True)
    sysfs_tree.make_equal(target, tree)
    return target


def test_functions_exist_before_any_driver(tmp_path, content, real):
    target = build(tmp_path, sysfs_tree.pci_bus(content, real / "bus/pci"))
    assert len(os.listdir(target / "devices")) == 9
    function = target / "devices/0000:01:00.0"
    texts = {name: (function / name).read_text().strip() for name in ("vendor", "device", "class", "subsystem_device", "numa_node")}
    assert texts == {"vendor": "0x19e5", "device": "0xd802", "class": "0x120000", "subsystem_device": "0x3000", "numa_node": "1"}
    assert "DRIVER=" not in (function / "uevent").read_text()
    assert not (function / "driver").is_symlink()
    space = (function / "config").read_bytes()
    assert struct.unpack_from("<HH", space) == (0x19E5, 0xD802)
    assert space[9:12] == bytes([0, 0, 0x12])
    assert struct.unpack_from("<HH", space, 0x2C) == (0x19E5, 0x3000)


def test_the_machines_own_devices_stay(tmp_path, content, real):
    target = build(tmp_path, sysfs_tree.pci_bus(content, real / "bus/pci"))
    assert os.readlink(target / "devices/0000:00:03.0") == "../../../devices/pci0/0000:00:03.0"
    assert os.readlink(target / "drivers/virtio-pci") == str(real / "bus/pci/drivers/virtio-pci")
    assert (target / "rescan").exists()


def test_driver_link_follows_the_driver(tmp_path, content, real):
    content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
    target = build(tmp_path, sysfs_tree.pci_bus(content, real / "bus/pci"))
    link = target / "devices/0000:c1:00.0/driver"
    assert os.path.basename(os.readlink(link)) == "devdrv_device_driver"
    assert link.resolve() == target / "drivers/devdrv_device_driver"
    assert len(os.listdir(link)) == 8
    content["kernel"]["driver_loaded"] = False
    assert sysfs_tree.make_equal(target, sysfs_tree.pci_bus(content, real / "bus/pci")) is True
    assert not link.is_symlink()
    assert not (target / "drivers/devdrv_device_driver").exists()


def test_a_lost_chip_leaves_the_bus_in_place(tmp_path, content, real):
    target = build(tmp_path, sysfs_tree.pci_bus(content, real / "bus/pci"))
    inodes = target.stat().st_ino, (target / "devices").stat().st_ino, (target / "devices/0000:c1:00.0").stat().st_ino
    content["chips"][3]["present"] = False
    tree = sysfs_tree.pci_bus(content, real / "bus/pci")
    assert sysfs_tree.make_equal(target, tree) is True
    assert not (target / "devices/0000:82:00.0").exists()
    # the folders are mounted elsewhere: they must be the same ones
    assert inodes == (target.stat().st_ino, (target / "devices").stat().st_ino, (target / "devices/0000:c1:00.0").stat().st_ino)
    assert sysfs_tree.make_equal(target, tree) is False


def test_classes(tmp_path, content, real):
    content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
    target = build(tmp_path, sysfs_tree.classes(content, real / "class"))
    assert os.readlink(target / "mem/null") == "../../devices/virtual/mem/null"
    assert (target / "firmware/timeout").read_text() == "60\n"
    assert os.listdir(target / "net") == []  # a bind mount shows the live one
    assert (target / "dmi/id/product_name").read_text() == "Atlas 800T A2\n"
    assert (target / "devdrv-class/davinci5/dev").read_text() == f"{MAJOR}:5\n"
    assert (target / "davinci_manager/davinci_manager/dev").read_text().startswith(f"{MAJOR}:")


def test_what_is_mounted_inside_is_left_alone(tmp_path, content, real):
    target = build(tmp_path, sysfs_tree.classes(content, real / "class"))
    (target / "net/eth0").write_text("from a mount")
    sysfs_tree.make_equal(target, sysfs_tree.classes(content, real / "class"), keep=frozenset({"net"}))
    assert (target / "net/eth0").exists()


def test_modules_follow_the_driver(tmp_path, content, real):
    target = build(tmp_path, sysfs_tree.modules(content, real / "module"))
    assert os.listdir(target) == ["loop"]
    content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
    sysfs_tree.make_equal(target, sysfs_tree.modules(content, real / "module"))
    assert (target / "drv_pcie_host/version").read_text() == "25.5.0\n"
    assert (target / "loop").resolve() == real / "module/loop"


@pytest.mark.parametrize(
    ("kernel", "chips", "expected"),
    [
        ({"driver_loaded": False}, {}, []),
        ({"driver_loaded": True, "npu_nodes_appear": False}, {}, []),
        ({"driver_loaded": True, "driver_dead": True}, {}, []),
        ({"driver_loaded": True}, {}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"driver_loaded": True}, {2: {"present": False}, 5: {"phy_id": 13}}, [0, 1, 3, 4, 6, 7, 13]),
    ],
)
def test_which_nodes_exist(content, kernel, chips, expected):
    content["kernel"].update(kernel)
    for index, change in chips.items():
        content["chips"][index].update(change)
    names = sysfs_tree.node_numbers(content)
    managers = {"davinci_manager", "devmm_svm", "hisi_hdc"}
    assert set(names) == ({f"davinci{number}" for number in expected} | managers if expected else set())
    assert len(set(names.values())) == len(names)


def test_virtual_devices_have_nodes_of_their_own(content):
    content["kernel"]["driver_loaded"] = True
    content["chips"][0]["slices"] = [{"vdev_id": 100, "template": "vir02"}]
    content["chips"][1].update(slices=[{"vdev_id": 101, "template": "vir02"}], present=False)
    names = sysfs_tree.node_numbers(content)
    assert "vdavinci100" in names and "vdavinci101" not in names
    assert len(set(names.values())) == len(names)


def test_a_310b_board_has_nodes_of_its_own():
    content = npu_sim.initial("310b")
    content["kernel"]["driver_loaded"] = True
    names = sysfs_tree.node_numbers(content)
    assert {"davinci0", "davinci_manager", "davinci_manager_docker", "svm0", "hdmi"} <= set(names)
    assert len(set(names.values())) == len(names)


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_nodes_have_number_mode_and_owner_and_follow(tmp_path, content):
    content["kernel"].update(driver_loaded=True, node_mode="0666")
    (tmp_path / "foreign").write_text("")
    assert sysfs_tree.make_nodes(tmp_path, content) is True
    info = (tmp_path / "davinci3").stat()
    assert stat.S_ISCHR(info.st_mode)
    assert (os.major(info.st_rdev), os.minor(info.st_rdev), stat.S_IMODE(info.st_mode)) == (MAJOR, 3, 0o666)
    with pytest.raises(OSError, match="No such device or address"):
        os.open(tmp_path / "davinci3", os.O_RDWR)
    descriptor = os.open(tmp_path / "davinci3", os.O_PATH)
    try:
        mine = [one for one in npu_sim.holders() if one["pid"] == os.getpid()]
    finally:
        os.close(descriptor)
    assert [one["device"] for one in mine] == [str(tmp_path / "davinci3")]
    content["kernel"]["node_mode"] = "0660"
    content["chips"][3]["present"] = False
    content["chips"][4]["phy_id"] = 14
    sysfs_tree.make_nodes(tmp_path, content)
    assert sorted(os.listdir(tmp_path)) == sorted(["foreign", *sysfs_tree.node_numbers(content)])
    assert stat.S_IMODE((tmp_path / "davinci0").stat().st_mode) == 0o660
    content["kernel"]["driver_loaded"] = False
    sysfs_tree.make_nodes(tmp_path, content)
    assert os.listdir(tmp_path) == ["foreign"]


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_nodes_of_an_unknown_user_belong_to_root_until_it_exists(tmp_path, content):
    content["kernel"].update(driver_loaded=True, node_owner="no-such-user-here")
    assert sysfs_tree.make_nodes(tmp_path, content) is False
    assert (tmp_path / "davinci0").stat().st_uid == 0


def test_make_equal_changes_kinds_and_leaves_no_leftovers(tmp_path):
    target = build(tmp_path, {"a": b"file", "b/c": b"deep", "d": sysfs_tree.Link("a")})
    tree = {"a/x": b"now a folder", "b": sysfs_tree.Link("a"), "d": b"now a file"}
    assert sysfs_tree.make_equal(target, tree) is True
    assert sorted(os.listdir(target)) == ["a", "b", "d"]
    assert (target / "b").is_symlink()
    assert (target / "d").read_bytes() == b"now a file"
    assert (target / "a/x").read_bytes() == b"now a folder"
    assert sysfs_tree.make_equal(target, tree) is False
