# SPDX-License-Identifier: GPL-3.0-or-later
"""Backends: kinds of devices that the agent serves. What one has to answer stands in base.py; only the one in use is imported."""

import functools
import importlib

ASCEND, ROCKCHIP = "ascend", "rockchip"
NAMES = (ASCEND, ROCKCHIP, "paths", "remote")
AUTO = "auto"


@functools.cache
def by_name(name):
    return importlib.import_module(f".{name}", __name__).BACKEND


def of(settings):
    return by_name(choose(settings)[0])


def choose(settings):
    """(name of the backend, why) of these settings. A card in a board is why somebody bought the board: it wins over the SoC's own NPU."""
    if settings.backend != AUTO:
        return settings.backend, "`backend` says so"
    if not board(settings):
        return ASCEND, "this node has no Rockchip NPU"
    if cards(settings):
        return ASCEND, "this node has an Ascend NPU, beside the one of its Rockchip SoC"
    return ROCKCHIP, "this node has a Rockchip NPU and no Ascend one"


def board(settings):
    from .._hardware._rknpu import find  # noqa: PLC0415  a backend that was chosen needs no look

    return find(settings.sysfs_root, settings.dev_root, settings.proc_root)


def cards(settings):
    """Whether this node has anything of an Ascend NPU: a PCI function, or a device node."""
    from .._hardware._detect import detect  # noqa: PLC0415

    found = detect(None, settings.sysfs_root, settings.dev_root)
    return found["present"] or bool(found["device_nodes"])
