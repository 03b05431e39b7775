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
    names = known(settings)
    if names:
        return ASCEND, (f"this node has had Ascend NPUs ({', '.join(names[:4])}), and none is seen now; for the one of its Rockchip SoC "
                        "set `backend: rockchip`")
    return ROCKCHIP, "this node has a Rockchip NPU and no Ascend one"


def known(settings):
    """Names of Ascend chips that this node has had: one that is lost is no reason to serve something else, and pods may still have it."""
    if not settings.state_dir:
        return []
    from ..names_file import NamesFile, Newer, parse  # noqa: PLC0415

    pattern = by_name(ASCEND).ids(settings)
    try:
        text = NamesFile(settings.state_dir, None, read_only=True).text()
        return [name for name in parse(text or "") if pattern.fullmatch(name)] if text else []
    except (OSError, ValueError, RecursionError, Newer):
        return []


def board(settings):
    from .._hardware._rknpu import find  # noqa: PLC0415  a backend that was chosen needs no look

    return find(settings.sysfs_root, settings.dev_root, settings.proc_root)


def cards(settings):
    """Whether this node has anything of an Ascend NPU: a PCI function, or a device node."""
    from .._hardware._detect import detect  # noqa: PLC0415

    found = detect(None, settings.sysfs_root, settings.dev_root)
    return found["present"] or bool(found["device_nodes"])
