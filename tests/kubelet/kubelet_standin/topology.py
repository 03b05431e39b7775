# SPDX-License-Identifier: GPL-3.0-or-later
"""Topology Manager, scope container: which NUMA nodes a container's devices should come from. Pure functions; masks are frozensets of
NUMA node numbers. The algorithm is that of kubelet's source; what was measured of it is marked."""

import itertools

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def masks(host_nodes):
    nodes = sorted(host_nodes)
    return [frozenset(part) for size in range(1, len(nodes) + 1) for part in itertools.combinations(nodes, size)]


def hints(host_nodes, numa, available, reusable, request):
    """[(mask, preferred)] for one resource, or None when its devices have no topology.

    numa: {device id: list of NUMA nodes} of all devices, healthy or not. A node that the host has not is in no mask, so devices that name
    only such nodes leave an empty list (measured: such pods are rejected).
    """
    if not any(numa.values()):
        return None
    smallest, found = len(host_nodes), []
    for mask in masks(host_nodes):
        if sum(1 for nodes in numa.values() if mask & set(nodes)) >= request:
            smallest = min(smallest, len(mask))
        placed = [device for device in reusable if numa.get(device)]
        if any(not mask & set(numa[device]) for device in placed):
            continue
        if len(placed) + sum(1 for device in available if mask & set(numa.get(device, []))) >= request:
            found.append(mask)
    return [(mask, len(mask) == smallest) for mask in found]


def merge(policy, host_nodes, all_hints):
    """(mask or None for anywhere, may be admitted) from the hints of each resource of a container."""
    if policy == "none":
        return None, True
    everywhere = frozenset(host_nodes)
    offers = [[(None, True)] if each is None else each or [(None, False)] for each in all_hints]
    if policy == "single-numa-node":
        offers = [[(mask, preferred) for mask, preferred in offer if preferred and (mask is None or len(mask) == 1)] for offer in offers]
    best = (everywhere, False)
    for choice in itertools.product(*offers):
        mask = everywhere.intersection(*(mask for mask, _preferred in choice if mask is not None))
        candidate = (mask, all(preferred for _mask, preferred in choice))
        if mask and order(candidate) < order(best):
            best = candidate
    mask, preferred = best
    if policy == "single-numa-node" and mask == everywhere:
        mask = None
    return mask, preferred or policy == "best-effort"


def order(hint):
    """Preferred ones first, then narrow ones, then low node numbers."""
    mask, preferred = hint
    return not preferred, len(mask), sorted(mask)


def split(available, numa, mask):
    """(aligned, elsewhere, without topology) of the free devices; without a mask all belong to the last."""
    if mask is None or not any(numa.values()):
        return set(), set(), set(available)
    aligned = {device for device in available if mask & set(numa.get(device, []))}
    elsewhere = {device for device in available - aligned if any(node >= 0 for node in numa.get(device, []))}
    return aligned, elsewhere, available - aligned - elsewhere
