# SPDX-License-Identifier: GPL-3.0-or-later
"""What a board with a Rockchip SoC shows of its NPU below /sys, /proc and /dev: pure functions of a board, and `tree()`, which makes them.

A tree maps a relative path to text (a file), to a `Link` (a symbolic link), to a `Node` (a character device) or to None (a folder).
Sources: the public driver rknpu 0.9.8, mainline's accel/rocket, and public logs of boards.
Beside the NPU there are a GPU and a display, as on every such board: both are DRM devices too, and neither may be taken for the NPU.
Python 3.6, as what looks at boards has to run there.
"""

import contextlib
import os
import stat
from collections import namedtuple
from pathlib import Path

STACKS = ("rknpu-drm", "rknpu-misc", "rocket")

#: SoC: (addresses of the cores, the first one names the NPU; name of a board; its own compatible string). The RK3588S is an RK3588.
SOCS = {
    "rk3588": (("fdab0000", "fdac0000", "fdad0000"), "Radxa ROCK 5B", "radxa,rock-5b"),
    "rk3583": (("fdab0000", "fdac0000"), "Rockchip RK3583 EVB", "rockchip,rk3583-evb"),
    "rk3576": (("27700000", "27708000"), "Radxa ROCK 4D", "radxa,rock-4d"),
    "rk3568": (("fde40000",), "Radxa ROCK 3A", "radxa,rock-3a"),
    "rk3566": (("fde40000",), "Radxa ZERO 3", "radxa,zero-3w"),
    "rk3562": (("ff300000",), "Rockchip RK3562 EVB", "rockchip,rk3562-evb"),
}
#: SoCs whose device tree calls the NPU by the name of another one.
COMPATIBLE = {"rk3583": "rk3588", "rk3566": "rk3568"}
#: Numbers of devices that every kernel has and everybody may open, so that a look by open() finds a living device behind each node.
DEVICES = {"npu-card": (1, 3), "npu-render": (1, 5), "gpu-card": (1, 7), "gpu-render": (1, 8), "display": (1, 9), "other": (1, 4)}
DEAD = (511, 1048575)  # no driver has it: opening such a node fails


class Link(str):
    """Target of a symbolic link."""


#: A character device.
Node = namedtuple("Node", "major minor mode")


class Board:
    """What one board is like. `bound` false: the kernel has no driver for its NPU. `gone`: names of device nodes that are missing.
    `broken`: the driver says that it is there, and opening its nodes fails. `modes`: (name, mode) of nodes that are not 0660."""

    def __init__(self, *, soc="rk3588", stack="rknpu-drm", driver_version="0.9.8", bound=True, gpu=True, broken=False, debugfs=True,
                 procfs=False, load=(), model="", serial="c3d9b8674f4b94f6", gone=(), modes=()):
        self.soc, self.stack, self.driver_version = soc, stack, driver_version
        self.bound, self.gpu, self.broken, self.debugfs, self.procfs = bound, gpu, broken, debugfs, procfs
        self.load, self.model, self.serial, self.gone, self.modes = load, model, serial, gone, modes

    @property
    def cores(self):
        """Addresses of the cores."""
        return SOCS[self.soc][0]

    @property
    def number(self):
        """N of cardN: the GPU registers first where there is one, which is why the number tells nothing."""
        return 1 if self.gpu else 0


def _device(name, compatible, driver):
    """A device of the device tree, below /sys/devices/platform."""
    here = f"sys/devices/platform/{name}"
    base, _dot, kind = name.partition(".")
    lines = [f"DRIVER={driver}"] if driver else []
    lines += [f"OF_NAME={kind}", f"OF_FULLNAME=/{kind}@{base}", f"OF_COMPATIBLE_0={compatible}", "OF_COMPATIBLE_N=1"]
    lines += [f"MODALIAS=of:N{kind}T(null)C{compatible}"]
    tree = {
        f"{here}/uevent": "\n".join(lines) + "\n",
        f"{here}/subsystem": Link("../../../bus/platform"),
        f"{here}/power/runtime_status": "suspended\n",
        f"{here}/of_node": Link(f"../../../firmware/devicetree/base/{kind}@{base}"),
        f"sys/firmware/devicetree/base/{kind}@{base}/compatible": compatible + "\0",
        f"sys/bus/platform/devices/{name}": Link(f"../../../devices/platform/{name}"),
    }
    if driver:
        tree[f"{here}/driver"] = Link(f"../../../bus/platform/drivers/{driver}")
        tree[f"sys/bus/platform/drivers/{driver}/{name}"] = Link(f"../../../../devices/platform/{name}")
    return tree


def _class_device(kind, parent, name, devname, numbers):
    """One device node of a driver: its folder below the device, and the link to it below /sys/class."""
    here = f"sys/devices/platform/{parent}/{kind}/{name}"
    return {
        f"{here}/uevent": f"MAJOR={numbers[0]}\nMINOR={numbers[1]}\nDEVNAME={devname}\n",
        f"{here}/dev": f"{numbers[0]}:{numbers[1]}\n",
        f"{here}/device": Link(f"../../../{parent}"),
        f"{here}/subsystem": Link(f"../../../../../class/{kind}"),
        f"sys/class/{kind}/{name}": Link(f"../../devices/platform/{parent}/{kind}/{name}"),
    }


def _drm(parent, number, card, render):
    tree = _class_device("drm", parent, f"card{number}", f"dri/card{number}", DEVICES[card])
    tree[f"dev/dri/card{number}"] = Node(*DEVICES[card], mode=0o660)
    tree[f"dev/dri/by-path/platform-{parent}-card"] = Link(f"../card{number}")
    if render:
        name = f"renderD{128 + number}"
        tree.update(_class_device("drm", parent, name, f"dri/{name}", DEVICES[render]))
        tree[f"dev/dri/{name}"] = Node(*DEVICES[render], mode=0o660)
        tree[f"dev/dri/by-path/platform-{parent}-render"] = Link(f"../{name}")
    return tree


def _graphics(board):
    """GPU (if the board has its driver) and display: what the NPU must not be mixed up with."""
    tree = {}
    if board.gpu:
        tree.update(_device("fb000000.gpu", "arm,mali-valhall-csf", "panthor"))
        tree.update(_drm("fb000000.gpu", 0, "gpu-card", "gpu-render"))
    tree.update(_device("display-subsystem", "rockchip,display-subsystem", "rockchip-drm"))
    tree.update(_drm("display-subsystem", 2, "display", None))
    tree["sys/devices/platform/display-subsystem/drm/card2/card2-HDMI-A-1/status"] = "disconnected\n"
    tree["sys/devices/platform/display-subsystem/drm/card2/card2-HDMI-A-1/device"] = Link("../../card2")
    tree["sys/class/drm/card2-HDMI-A-1"] = Link("../../devices/platform/display-subsystem/drm/card2/card2-HDMI-A-1")
    tree["sys/class/drm/version"] = "drm 1.1.0 20060810\n"
    for name in ("dev/rga", "dev/mpp_service", "dev/dma_heap/system"):
        tree[name] = Node(*DEVICES["other"], mode=0o600)
    return tree


def _load(board):
    """As the driver prints it: two blanks after "load:", a comma behind every core, the last one too; one core has no name."""
    values = (*board.load, *(0,) * len(board.cores))[: len(board.cores)]
    if len(values) == 1:
        return f"NPU load: {values[0]:2d}%\n"
    return "NPU load:  " + " ".join(f"Core{core}: {value:2d}%," for core, value in enumerate(values)) + "\n"


def _driver_files(board):
    """Files of the vendor's driver in debugfs and, by the kernel's configuration, in /proc."""
    version = tuple(int(part) for part in board.driver_version.split("."))
    files = {
        "version": f"RKNPU driver: v{board.driver_version}\n", "power": "off\n", "freq": "1000000000\n", "volt": "825000\n",
        "delayms": "3000\n", "reset": "on\n",
    }
    if version >= (0, 7, 2):  # the early driver of the RK3568 has no load
        files["load"] = _load(board)
    tree = {}
    if board.debugfs:
        tree.update({f"sys/kernel/debug/rknpu/{name}": text for name, text in files.items()})
    if board.procfs:
        tree.update({f"proc/rknpu/{name}": text for name, text in files.items()})
    return tree


def _vendor_npu(board):
    name = f"{board.cores[0]}.npu"
    tree = _device(name, f"rockchip,{COMPATIBLE.get(board.soc, board.soc)}-rknpu", "RKNPU" if board.bound else None)
    if not board.bound:
        return tree
    # Trap: this driver's devfreq always says that it is fully loaded.
    frequency = {"cur_freq": 1000000000, "load": "100@1000000000Hz", "governor": "rknpu_ondemand"}
    tree.update({f"sys/class/devfreq/{name}/{key}": f"{value}\n" for key, value in frequency.items()})
    tree.update(_driver_files(board))
    if board.stack == "rknpu-drm":
        tree.update(_drm(name, board.number, "npu-card", "npu-render"))
        return tree
    numbers = DEVICES["npu-card"]
    tree["sys/devices/virtual/misc/rknpu/uevent"] = f"MAJOR={numbers[0]}\nMINOR={numbers[1]}\nDEVNAME=rknpu\n"
    tree["sys/devices/virtual/misc/rknpu/dev"] = f"{numbers[0]}:{numbers[1]}\n"
    tree["sys/class/misc/rknpu"] = Link("../../devices/virtual/misc/rknpu")
    tree["dev/rknpu"] = Node(*numbers, mode=0o600)
    return tree


def _rocket(board):
    """Mainline: a device for each core, and one device node of the driver's own device "rknn" for all of them."""
    tree = {}
    for address in board.cores:
        tree.update(_device(f"{address}.npu", f"rockchip,{board.soc}-rknn-core", "rocket" if board.bound else None))
    if board.bound:
        tree["sys/devices/platform/rknn/uevent"] = "MODALIAS=platform:rknn\n"
        tree["sys/bus/platform/devices/rknn"] = Link("../../../devices/platform/rknn")
        tree.update(_class_device("accel", "rknn", "accel0", "accel/accel0", DEVICES["npu-card"]))
        tree["dev/accel/accel0"] = Node(*DEVICES["npu-card"], mode=0o660)
    return tree


def content(board):
    """All of a board: below sys/, proc/ and dev/."""
    _cores, model, own = SOCS[board.soc]
    base = "sys/firmware/devicetree/base"
    tree = {
        f"{base}/compatible": f"{own}\0rockchip,{board.soc}\0",
        f"{base}/model": (board.model or model) + "\0",
        f"{base}/serial-number": board.serial + "\0",
        "proc/device-tree": Link("/sys/firmware/devicetree/base"),
        "sys/bus/platform/drivers": None,
        "sys/class/drm": None,
    }
    tree.update(_graphics(board))
    own = _rocket(board) if board.stack == "rocket" else _vendor_npu(board)
    if board.broken:
        own = {path: value._replace(major=DEAD[0], minor=DEAD[1]) if isinstance(value, Node) else value for path, value in own.items()}
    tree.update(own)
    for name in board.gone:
        tree.pop(f"dev/{name}")
    for name, mode in board.modes:
        tree[f"dev/{name}"] = tree[f"dev/{name}"]._replace(mode=mode)
    return tree


def write(root, tree):
    """Makes the tree below a folder; what is there stays, what has the same name is replaced."""
    for path, value in sorted(tree.items()):
        target = root / path
        if value is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
        if isinstance(value, Link):
            target.symlink_to(value)
        elif isinstance(value, Node):
            _make_node(target, value)
        else:
            target.write_text(value)


def _make_node(target, node):
    os.mknod(target, stat.S_IFCHR | 0o600, os.makedev(node.major, node.minor))
    target.chmod(node.mode)


def tree(root, **board):
    """A board below a folder: root/sys, root/proc and root/dev. The keywords are the fields of `Board`.

    Returns root. Needs the right to make device nodes. /proc/device-tree leads into this folder, not into the machine's own /sys.
    """
    root = Path(root)
    whole = content(Board(**board))
    whole["proc/device-tree"] = Link("../sys/firmware/devicetree/base")
    write(root, whole)
    return root
