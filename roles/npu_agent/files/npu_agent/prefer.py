# SPDX-License-Identifier: GPL-3.0-or-later
"""Which chips of those that are free fit a request best."""

KEYS = {
    "numa": lambda chip: -1 if chip.numa_node is None else chip.numa_node,
    "card": lambda chip: -1 if chip.card_id is None else chip.card_id,
    "ring4": lambda chip: chip.phy_id // 4,
}
# What chips of one request should share, the most important first: HCCS rings {0-3} {4-7} of a 910, the card of which two or four
# chips sit (A3: its two dies are linked by SIO), the NUMA node. The eight chips of an A2 server are a full mesh.
NEAR = {
    "310": ("numa", "card"), "310b": ("numa", "card"), "310p": ("numa", "card"), "910": ("ring4", "numa"), "a2": ("numa",),
    "a3": ("numa", "card"), "a5": ("numa", "card"),
}


def prefer(chips, available, must_include, size, near):
    """`size` ids out of `available`, those of `must_include` first.

    chips: {id: chip with numa_node, card_id, phy_id}; unknown ids are left out (kubelet fills up an answer that is too short).
    near: names of KEYS, outermost first. The request goes where it just fits, so that wide requests that come later find room.
    """
    chosen = [name for name in sorted(set(must_include)) if name in chips][:size]
    free = {name for name in available if name in chips and name not in chosen}
    # What a container has already draws the rest to it.
    for key in [KEYS[word] for word in near]:
        groups = {key(chips[name]) for name in chosen}
        beside = {name for name in free if key(chips[name]) in groups}
        if chosen and len(beside) >= size - len(chosen):
            free = beside
    return chosen + pick(chips, free, size - len(chosen), near)


def pick(chips, free, size, near):
    """Best fit, level by level: one group that is just big enough, else the biggest and the rest from the others."""
    order = sorted(free, key=lambda name: (chips[name].phy_id, name))
    if size <= 0:
        return []
    if not near or size >= len(order):
        return order[:size]
    groups = {}
    for name in order:
        groups.setdefault(KEYS[near[0]](chips[name]), []).append(name)
    enough = [group for group in groups.values() if len(group) >= size]
    if enough:
        return pick(chips, min(enough, key=len), size, near[1:])
    biggest = max(groups.values(), key=len)
    return biggest + pick(chips, free - set(biggest), size - len(biggest), near)
