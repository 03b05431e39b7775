# SPDX-License-Identifier: GPL-3.0-or-later
"""Which chips of those that are free fit a request best: the cheapest choice there is, by `cost`.

A cost is a tuple, the most important part first:
  service     chips that are out of service, which kubelet's older list still has: only where nothing else is left;
  repeats     several shares of one request lie on distinct chips;
  touched     HCCS rings, modules, cards, NUMA nodes that the request spreads over: a job runs at the speed of its links;
  ranks       then degraded chips come last;
  use         the shares that these chips have given out already (what kubelet does not offer is in use);
  ...         what else RULES says for the family: which rests are left in those groups.

Why the answer is the cheapest: the first two parts are sums over chips, and each further share of one chip costs more than the one
before. So one takes the cheapest shares, and only among those that cost the same is there a choice. Where those are further shares of
chips that are in it already, no group notices, and again the cheapest are taken. Where they are first shares, each chip is taken or
not: ranks and use are sums over the chips that are taken, the other parts sums over groups, and groups lie in groups; inside an
innermost group chips differ in rank and use only, so the cheapest n of them are taken, and the cheapest way to take n of a larger
group follows from the cheapest ways to take some of each of its parts. What is cheapest for each n is built up from the inside (a
knapsack over a tree).
"""

from collections import namedtuple

PART_BITS = 32

# Where chips sit. By physical ids and cards: names stay when chips are numbered anew.
KEYS = {
    "numa": lambda chip: -1 if chip.numa_node is None else chip.numa_node,
    "card": lambda chip: -1 if chip.card_id is None else chip.card_id,
    "module": lambda chip: chip.phy_id // 2 if chip.card_id is None else chip.card_id,
    "four": lambda chip: chip.phy_id // 4,
    "eight": lambda chip: chip.phy_id // 8,
    "position": lambda chip: chip.phy_id % 8,
}
# The free counts of a ring or card of four that fit a need best, the best first (facts A7).
FIT = {1: (1, 3, 2, 4), 2: (2, 4, 3), 3: (3, 4), 4: (4,)}


def pairs(number):
    return number * (number - 1) // 2


def fit(free, taken):
    order = FIT.get(taken, ())
    return order.index(free) if free in order else (free if taken else 0)


# What taking some of a group's free chips costs. None is negative; what is not touched costs nothing, but for `apart`.
MEASURES = {
    "touched": lambda free, taken: int(taken > 0),
    "split": lambda free, taken: int(0 < taken < free),  # a rest is left
    "apart": lambda free, taken: pairs(free) - pairs(taken),  # less, the more of a request's chips lie together
    "fit": fit,
    "odd": lambda free, taken: (free - taken) % 2 if taken else 0,
    "rest": lambda free, taken: free - taken if taken else 0,
}

# nest: names of KEYS, a group of each lies in one of the name before. touched, rest: (name of the nest, measure), the most important first.
Rule = namedtuple("Rule", "nest touched rest")


def rule(nest, *words):
    parts = [tuple(word.split()) for word in words]
    touched = tuple(part for part in parts if part[1] == "touched")
    return Rule(tuple(nest.split()), touched, tuple(part for part in parts if part not in touched))


_NUMA = ("numa split", "numa apart", "numa rest")
_FOURS = ("split", "apart", "fit", "odd")
# Requests that a card (a module of A3 with its two dies, linked by SIO) can hold stay on it, others use as few as can be.
_CARDS = ("card touched", "numa touched", "card split", *_NUMA)

RULES = {
    "310": rule("numa card", "card touched", "numa touched", *(f"card {word}" for word in _FOURS), *_NUMA),  # 300I: four chips a card
    "310b": rule("numa card", *_CARDS),
    "310p": rule("numa card", *_CARDS),  # 300I Duo: two chips a card
    "910": rule("four numa", "four touched", *(f"four {word}" for word in _FOURS), "numa touched", *_NUMA),  # HCCS rings {0-3} {4-7}
    "a2": rule("numa", "numa touched", *_NUMA),  # the eight chips are a full mesh
    "a3": rule("numa module", "module touched", "numa touched", "module split", *_NUMA),
    "a5": rule("four numa", "four touched", "numa touched", "four split", "four apart", *_NUMA),  # Atlas 350: meshes of four
}
# A2 Box16: rings {0-7} {8-15}. What no ring can hold takes equal halves at the same positions of both.
BOX_RING = rule("eight numa", "eight touched", "numa touched", "eight split", "eight apart", *_NUMA)
BOX_HALVES = rule("position", "position touched")
OTHER = rule("numa", "numa touched", *_NUMA)  # of what nothing more is known


def rule_of(board, size):
    if board.family == "a2" and any(chip.phy_id >= 8 for chip in board.chips.values()):
        return BOX_RING if size <= 8 else BOX_HALVES
    return RULES.get(board.family, OTHER)


def prefer(board, available, must_include, size, shares):
    """`size` ids (kubelet's, as in board.units), those of `must_include` first; all there are when they are fewer. Unknown ones are left
    out. The order of what is given has no influence."""
    must = order(name for name in set(must_include) if name in board.units)[:max(size, 0)]
    open_ids, taken = {}, {}  # of each chip: ids that are left, number of ids that are taken
    for name in order(name for name in set(available).difference(must) if name in board.units):
        open_ids.setdefault(board.units[name].id, []).append(name)
    for name in must:
        taken[board.units[name].id] = taken.get(board.units[name].id, 0) + 1
    chosen = list(must)
    for chip in further(board, open_ids, taken, size - len(must), shares):
        chosen.append(open_ids[chip].pop(0))
    return chosen


def order(names):
    """Ascend910-2 before Ascend910-10."""
    return sorted(names, key=lambda name: (len(name), name))


def further(board, open_ids, taken, need, shares):
    """The ids of `need` chips to take a share of, beside those that are taken; a chip may be there several times."""
    if need <= 0:
        return []
    prices, used = [], {}
    for name, ids in open_ids.items():
        have = taken.get(name, 0)
        used[name] = shares - have - len(ids)
        out = int(not board.chips[name].healthy)
        prices += [((out, int(number > 0)), name, number) for number in range(have, have + min(len(ids), need))]
    prices.sort(key=lambda item: item[0])
    if need >= len(prices):
        return [name for _price, name, _number in prices]
    limit = prices[need][0]
    sure = [name for price, name, _number in prices if price < limit]
    tied = [(name, number) for price, name, number in prices if price == limit]
    if limit[1]:
        tied.sort(key=lambda item: (board.chips[item[0]].rank, used[item[0]] + item[1], len(item[0]), item[0]))
        return sure + [name for name, _number in tied[:need - len(sure)]]
    free = [board.chips[name] for name in {*open_ids, *taken}]
    rules = rule_of(board, sum(taken.values()) + need)
    open_chips = {name: (board.chips[name].rank, used[name]) for name, _number in tied}
    return sure + choose(rules, free, {*taken, *sure}, open_chips, need - len(sure))


def choose(rules, free, inside, tied, need):
    """The `need` chip ids of `tied` that make the cheapest choice together with `inside`. free: the chips that count as free.
    tied: {chip id: (rank, shares that are given out)}."""
    free = sorted(free, key=lambda chip: (chip.phy_id or 0, len(chip.id), chip.id))
    place = {chip.id: number for number, chip in enumerate(free)}
    levels = {name: number for number, name in enumerate(rules.nest)}
    # A cost is one number, each part in bits of its own: touched, rank, use, rest.
    shifts = [PART_BITS * number for number in reversed(range(len(rules.touched) + 2 + len(rules.rest)))]
    rank_shift, use_shift = shifts[len(rules.touched):len(rules.touched) + 2]
    del shifts[len(rules.touched):len(rules.touched) + 2]
    prices = [[] for _name in rules.nest]
    for shift, (name, measure) in zip(shifts, rules.touched + rules.rest):
        prices[levels[name]].append((shift, MEASURES[measure]))

    def ways(chips, depth):
        """[(cost, places in `free`)]: the cheapest way to take 0, 1, 2 … of the tied chips among these."""
        if depth == len(rules.nest):
            own = sorted((*tied[chip.id], place[chip.id]) for chip in chips if chip.id in tied)[:need]
            table: list = [(0, ())]
            for rank, use, number in own:
                table.append((table[-1][0] + (rank << rank_shift) + (use << use_shift), (*table[-1][1], number)))
            return table
        table = [(0, ())]
        for group in parts(chips, rules.nest[depth]):
            count, base = len(group), sum(chip.id in inside for chip in group)
            own = [
                (price + sum(measure(count, base + number) << shift for shift, measure in prices[depth]), places)
                for number, (price, places) in enumerate(ways(group, depth + 1))
            ]
            table = joined(table, own, need)
        return table

    return [free[number].id for number in ways(free, 0)[need][1]]


def parts(chips, name):
    """The chips by their groups, in the order of the first of each."""
    groups = {}
    for chip in chips:
        groups.setdefault(KEYS[name](chip), []).append(chip)
    return groups.values()


def joined(left, right, need):
    """The cheapest ways to take 0, 1, 2 … of two sets of groups; equal costs go to the lower numbers."""
    table: list = [None] * (min(len(left) + len(right) - 2, need) + 1)
    for first, (price, places) in enumerate(left):
        for second, (more, others) in enumerate(right[:len(table) - first]):
            way = (price + more, places + others)
            if table[first + second] is None or way < table[first + second]:
                table[first + second] = way
    return table


def cost(board, available, chosen, shares):
    """What choosing these ids out of those that are available costs. Lower is better."""
    taken, free = {}, {}
    for name in chosen:
        taken[board.units[name].id] = taken.get(board.units[name].id, 0) + 1
    for name in {*available, *chosen}:
        free[board.units[name].id] = free.get(board.units[name].id, 0) + 1
    rules = rule_of(board, len(chosen))

    def groups(parts):
        for name, measure in parts:
            depth, found = rules.nest.index(name) + 1, {}
            for chip in (board.chips[name] for name in free):
                path = tuple(KEYS[word](chip) for word in rules.nest[:depth])
                found.setdefault(path, []).append(chip.id in taken)
            yield sum(MEASURES[measure](len(group), sum(group)) for group in found.values())

    return (
        sum(count for name, count in taken.items() if not board.chips[name].healthy),
        sum(count - 1 for count in taken.values()),
        *groups(rules.touched),
        sum(board.chips[name].rank * count for name, count in taken.items()),
        sum(shares - free[name] + number for name, count in taken.items() for number in range(count)),
        *groups(rules.rest),
    )
