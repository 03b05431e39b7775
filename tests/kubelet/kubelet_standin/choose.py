# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ids a container gets. The order of these rules is kubelet's (source); `split` has Topology Manager's part."""

import random

from . import topology


class Refused(Exception):
    """The container cannot have its devices, in kubelet's words."""


def shuffled(ids):
    """Kubelet takes ids out of a map: their order is never the same (measured)."""
    return random.sample(sorted(ids), len(ids))


def ids_for(name, resource, needed, *, reusable, in_use, mask, ask):
    """Set of ids to call Allocate with.

    reusable: ids of init containers that have ended. in_use: ids of all pods.
    mask: NUMA nodes to take from, or None. ask(available, must_include, size): the plugin's preference, None when it offers none.
    """
    if resource is None:
        raise Refused(f"cannot allocate unregistered device {name}")
    if not resource.healthy:
        raise Refused(f"no healthy devices present; cannot allocate unhealthy devices {name}")
    chosen = set(shuffled(reusable)[:needed])
    if len(chosen) == needed:
        return chosen
    available = resource.healthy - in_use
    if len(available) < needed - len(chosen):
        missing = needed - len(chosen)
        raise Refused(f"requested number of devices unavailable for {name}. Requested: {missing}, Available: {len(available)}")
    aligned, elsewhere, without = topology.split(available, {device: resource.numa(device) for device in resource.devices}, mask)

    def preferred(among):
        return set(ask(among | chosen, set(chosen), needed) or []) & among

    if needed - len(chosen) < len(aligned):
        sources = [lambda: preferred(aligned), lambda: aligned]
    else:
        # As many as wanted, or fewer, are where they should be: kubelet takes them itself (measured: no call then).
        sources = [lambda: aligned, lambda: preferred(available), lambda: elsewhere, lambda: without]
    for source in sources:
        if len(chosen) < needed:
            chosen |= set(shuffled(source() - chosen)[: needed - len(chosen)])
    return chosen
