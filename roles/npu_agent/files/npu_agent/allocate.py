# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container gets with its chips. Obeys exactly the ids that kubelet sends and keeps nothing; what comes with a chip, its backend
says.

Kubelet has chosen the ids, by a list that may be some milliseconds older than ours; so a chip that is out of service is given all the
same (the container finds out, and kubelet has been told). One that is gone is not: its number may be another chip's by now.
"""

import re

from . import backends, claims
from .backends.base import Refused

MANY = 16
PCI = re.compile(r"[0-9a-fA-F]{4,8}:")


def answer(ids, board, settings):
    """{"envs": {...}, "devices": [(host path, container path)], "mounts": [(host path, container path)], "cdi": [name]} for one container.

    ids: kubelet's, as in board.units; two shares of a chip are that chip. Without ids it is empty.
    """
    backend = backends.of(settings)
    chips = chosen(ids, board, backend.ids(settings))
    return backend.give(chips, settings) if chips else {"envs": {}, "devices": [], "mounts": [], "cdi": []}


def chosen(ids, board, pattern):
    """The chips of these ids, once each, in the order of their names."""
    found = {}
    for name in ids:
        chip = board.units.get(name)
        if chip is None:
            raise Refused(unknown(name[:80], board, pattern))
        if chip.gone:
            raise Refused(f"{chip.id}{place(chip)} is gone from this node: {chip.reason}; kubelet was told so, a new pod gets "
                          "another chip; see `npu-agent discover` and `dmesg` there")
        if chip.barred:
            raise Refused(f"{chip.id}{place(chip)} is given to nobody now: {chip.barred}; kubelet was told so, a new pod gets "
                          "another chip")
        found[chip.id] = chip
    return sorted(found.values(), key=lambda chip: (len(chip.id), chip.id))


def place(chip):
    """Where it sits, for a text."""
    if not chip.pci_address:
        return ""
    return f" ({'PCI ' if PCI.match(chip.pci_address) else ''}{chip.pci_address})"


def unknown(name, board, pattern):
    """Kubelet asks for what the newest list does not have: it had an older one."""
    asked = claims.claim(board.resource, name, "", pattern)
    forms = board.forms.get(asked.name, ()) if asked else ()
    if forms:
        return (f"{name} is no id of {board.resource} any more: its chip is {listed(forms)} now; kubelet's list was older than that "
                "change, a new pod gets another chip")
    return (f"{name} is no id of {board.resource} on this node (there are: {listed(board.units)}); kubelet's list was older than a change "
            "there, a new pod gets another chip; if not, restart kubelet on that node")


def listed(names):
    """For a text that must stay short."""
    return ", ".join(names) if 0 < len(names) <= MANY else f"{len(names)} others"
