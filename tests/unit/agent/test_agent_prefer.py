# SPDX-License-Identifier: GPL-3.0-or-later
"""Preferred allocation: the cost by hand-written cases (facts/device-plugin.md A7), and the choice against all there are."""

import itertools
import random

import boards
import pytest


@pytest.fixture(scope="module")
def prefer(package):
    import npu_agent.prefer

    return npu_agent.prefer


def board(family, count, *, per_card=1, per_numa=None, shares=1, ranks=None, ill=()):
    """Chips 0..count-1, per_card on each card, per_numa on each NUMA node (None: unknown)."""
    chips = [
        boards.chip(number, family, numa_node=None if per_numa is None else number // per_numa, card_id=number // per_card,
                    healthy=number not in ill, rank=(ranks or {}).get(number, 0))
        for number in range(count)
    ]
    return boards.board(chips, shares)


def ids(numbers):
    return [f"c{number}" for number in numbers]


def numbers(names):
    return sorted(int(name[1:]) for name in names)


# --- the rules of the vendor, written by hand: which of two choices is the better one

RINGS = {"family": "910", "count": 8, "per_numa": 4}
DUO = {"family": "310p", "count": 8, "per_card": 2, "per_numa": 4}
A3 = {"family": "a3", "count": 16, "per_card": 2, "per_numa": 8}
BOX = {"family": "a2", "count": 16, "per_numa": 4}
A2 = {"family": "a2", "count": 8, "per_numa": 4}
FOURS = {"family": "310", "count": 8, "per_card": 4, "per_numa": 8}
MESH = {"family": "a5", "count": 8, "per_numa": 8}

BETTER = [
    # HCCS rings of four: the best free count for a need of 1 is 1, then 3, 2, 4
    (RINGS, [0, 4, 5, 6], [0], [4]), (RINGS, [0, 1, 4, 5, 6], [4], [0]), (RINGS, [0, 1, 4, 5, 6, 7], [0], [4]),
    # for 2 it is 2, 4, 3
    (RINGS, [0, 1, 4, 5, 6, 7], [0, 1], [4, 5]), (RINGS, [0, 1, 2, 4, 5, 6, 7], [4, 5], [0, 1]), (RINGS, [0, 1, 4, 5, 6], [0, 1], [4, 5]),
    # a request that a ring can hold does not leave it
    (RINGS, [0, 1, 4, 5, 6, 7], [4, 5, 6, 7], [0, 1, 4, 5]), (RINGS, [0, 4, 5, 6, 7], [4, 5], [0, 4]),
    # more than a ring: as few rests as can be, and as many together as can be
    (RINGS, range(8), [0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5, 6]), (RINGS, range(8), [0, 1, 2, 3, 4], [0, 1, 2, 4, 5]),
    # a card of four is like a ring
    (FOURS, [0, 4, 5, 6], [0], [4]), (FOURS, [0, 1, 4, 5, 6, 7], [0, 1], [4, 5]), (FOURS, [0, 1, 4, 5, 6, 7], [4, 5, 6, 7], [0, 1, 4, 5]),
    # a Duo's two chips together, and a single one from the broken pair
    (DUO, [1, 2, 3], [2, 3], [1, 2]), (DUO, [1, 2, 3], [1], [2]), (DUO, [0, 2, 6, 7], [6, 7], [0, 2]),
    # modules of A3: even requests take whole pairs, also on the other NUMA node
    (A3, [0, 2, 4, 14, 15], [14, 15], [0, 2]), (A3, range(16), [0, 1, 2, 3], [0, 1, 2, 4]),
    (A3, [0, 1, 2, 4, 8, 9], [0, 1, 8, 9], [0, 1, 2, 4]),
    (A3, [0, 2, 3], [0], [2]), (A3, [0, 1, 8, 10, 11], [8, 10, 11], [0, 1, 8]),
    # eight chips of A2 are a mesh, so the NUMA node counts
    (A2, range(8), [0, 1, 2, 3], [0, 1, 4, 5]), (A2, [1, 2, 4, 5, 6, 7], [1, 2], [4, 5]), (A2, [0, 1, 2, 4, 5, 6, 7], [0], [4]),
    # sixteen are two rings of eight; 10, 12 and 14 are equal halves at the same positions
    (BOX, range(16), [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 8, 9, 10, 11]), (BOX, [0, 1, *range(8, 16)], [8, 9, 10], [0, 1, 8]),
    (BOX, range(16), [0, 1, 2, 3, 4, 8, 9, 10, 11, 12], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    (BOX, range(16), [0, 1, 2, 3, 4, 8, 9, 10, 11, 12], [0, 1, 2, 3, 4, 9, 10, 11, 12, 13]),
    (BOX, range(16), [*range(7), *range(8, 15)], [*range(8), *range(10, 16)]),
    # meshes of four
    (MESH, [0, 1, 4, 5, 6, 7], [4, 5, 6], [0, 1, 4]), (MESH, range(8), [4, 5, 6, 7], [2, 3, 4, 5]),
    # a degraded chip is better than one more ring, module, card or NUMA node
    ({**RINGS, "ranks": {0: 1}}, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3], [1, 2, 3, 4]), ({**A3, "ranks": {0: 2}}, [0, 1, 2, 4], [0, 1], [2, 4]),
    ({**DUO, "ranks": {0: 1}}, [0, 1, 2, 4], [0, 1], [2, 4]), ({**A2, "ranks": {0: 1}}, [0, 1, 4], [0, 1], [1, 4]),
    ({**FOURS, "ranks": {0: 1}}, [0, 1, 4], [0, 1], [1, 4]), ({**MESH, "ranks": {0: 1}}, [0, 1, 4], [0, 1], [1, 4]),
    ({**BOX, "ranks": {8: 1}}, range(16), [*range(5), *range(8, 13)], [*range(5), *range(9, 14)]),
    # where that is equal it comes last, whatever rests are left
    ({**RINGS, "ranks": {0: 1}}, [0, 4, 5, 6], [4], [0]), ({**RINGS, "ranks": {0: 1}}, range(8), [4, 5, 6, 7], [0, 1, 2, 3]),
    ({**DUO, "ranks": {0: 1}}, [0, 2, 3], [2], [0]), ({**A3, "ranks": {0: 1}}, [0, 1, 2], [1], [0]),
    # a chip that is out of service is worse than anything
    ({**RINGS, "ill": [0]}, [0, 1, 2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2, 3]),
    ({**DUO, "ill": [0], "ranks": {2: 2, 4: 2}}, [0, 1, 2, 4], [2, 4], [0, 1]),
]


@pytest.mark.parametrize("case", BETTER, ids=range(len(BETTER)))
def test_the_better_choice_costs_less(prefer, case):
    kind, free, good, bad = case
    here = board(**kind)
    prices = [prefer.cost(here, ids(free), ids(choice), 1) for choice in (good, bad)]
    assert prices[0] < prices[1]


def test_degraded_chips_come_last_and_ill_ones_after_them(prefer):
    here = board(**RINGS, ranks={0: 1, 1: 2}, ill=[2])
    answer = [numbers(prefer.prefer(here, ids(range(8)), [], size, 1)) for size in (4, 6, 7)]
    assert answer == [[4, 5, 6, 7], [0, 3, 4, 5, 6, 7], [0, 1, 3, 4, 5, 6, 7]]
    assert numbers(prefer.prefer(here, ids([0, 1, 2]), [], 1, 1)) == [0]
    assert numbers(prefer.prefer(here, ids([1, 2, 4]), ids([2]), 2, 1)) == [1, 2]  # degraded, but on the ring of what must be in
    assert numbers(prefer.prefer(here, ids([2, 3, 4, 5]), [], 3, 1)) == [3, 4, 5]


@pytest.mark.parametrize(("free", "must", "size", "wanted"), [
    (range(8), [6], 3, [4, 5, 6]),  # drawn to what must be in
    (range(8), [0, 4], 4, [0, 1, 2, 4]),
    ([4, 5, 6, 7], [0], 2, [0, 4]),  # kubelet may name what it does not offer again
    (range(8), [1, 2, 3], 2, [1, 2]),
    ([0, 1], [], 5, [0, 1]),  # too few: kubelet fills up
    ([0, 1, 99], [98], 2, [0, 1]),  # ids that nobody knows
    (range(8), [], 0, []), (range(8), [], -1, []), ([], [], 1, []),
])
def test_must_include_and_odd_requests(prefer, free, must, size, wanted):
    here = board(**RINGS)
    answer = prefer.prefer(here, ids(free), ids(must), size, 1)
    assert numbers(answer) == wanted and len(set(answer)) == len(answer)


def test_physical_ids_decide_not_names(prefer):
    """Chips that were numbered anew: c0 is now davinci7, and so on."""
    here = board(**RINGS)
    here = boards.board([chip._replace(phy_id=7 - chip.phy_id) for chip in here.chips.values()])
    assert numbers(prefer.prefer(here, ids([0, 1, 2, 3, 4]), [], 1, 1)) == [4]
    assert numbers(prefer.prefer(here, ids(range(8)), [], 2, 1)) == [6, 7]  # davinci0 and 1


# --- shares

def test_shares_lie_on_distinct_and_least_used_chips(prefer):
    here = board(**DUO, shares=4)
    assert sorted(here.units)[:2] == ["c0-0", "c0-1"] and len(here.units) == 32
    free = [name for name in here.units if name not in ("c0-0", "c0-1", "c1-3", "c2-0", "c3-1")]
    assert prefer.prefer(here, free, [], 2, 4) == ["c4-0", "c5-0"]  # one card, nobody on it
    assert prefer.prefer(here, free, ["c4-0"], 2, 4) == ["c4-0", "c5-0"]
    answer = prefer.prefer(here, free, [], 8, 4)
    assert len({name.split("-")[0] for name in answer}) == 8
    assert sorted(prefer.prefer(here, ["c1-0", "c1-1", "c0-2"], [], 3, 4)) == ["c0-2", "c1-0", "c1-1"]
    worse = board(**DUO, shares=4, ranks={4: 1})
    assert prefer.prefer(worse, ["c4-0", "c5-0", "c5-1"], [], 2, 4) == ["c4-0", "c5-0"]  # two chips, of which one is degraded
    assert prefer.prefer(worse, ["c4-0", "c4-1", "c5-0", "c5-1"], [], 3, 4)[2:] == ["c5-1"]
    assert prefer.prefer(worse, ["c4-0", "c5-0"], [], 1, 4) == ["c5-0"]
    ill = board(**DUO, shares=4, ill=[4])
    assert prefer.prefer(ill, ["c4-0", "c5-0", "c5-1"], [], 2, 4) == ["c5-0", "c5-1"]


def test_1600_shares(prefer):
    here = board("310p", 16, per_card=2, per_numa=8, shares=100)
    assert len(here.units) == 1600
    for size in (1, 2, 16, 800, 1600):
        answer = prefer.prefer(here, list(here.units), [], size, 100)
        assert len(set(answer)) == size and set(answer) <= set(here.units)
    counts = [sum(name.startswith(f"c{chip}-") for name in prefer.prefer(here, list(here.units), [], 800, 100)) for chip in range(16)]
    assert counts == [50] * 16


# --- against all there are

def cases(amount, most, seed):
    """Random boards, free sets, needs and musts."""
    dice = random.Random(seed)
    for _number in range(amount):
        family, count, per_card = dice.choice([
            ("910", 8, 1), ("910", 4, 1), ("a2", 8, 1), ("a2", 16, 1), ("a3", 16, 2), ("310", 12, 4), ("310p", 10, 2), ("310p", 6, 1),
            ("310b", 2, 1), ("a5", 8, 1),
        ])
        kind = {"family": family, "count": count, "per_card": per_card, "per_numa": dice.choice([None, 2, 3, 4, 8])}
        kind["ranks"] = {number: dice.randint(0, 2) for number in range(count)} if dice.random() < 0.3 else {}
        kind["ill"] = [number for number in range(count) if dice.random() < 0.05]
        kind["shares"] = dice.choice([1, 1, 1, 1, 2, 3])
        yield kind, dice, most


def check(prefer, kind, dice, most, need=None):
    here = board(**kind)
    free = dice.sample(sorted(here.units), dice.randint(1, min(most, len(here.units))) if need is None else most)
    need = need or dice.randint(1, len(free))
    must = dice.sample(free, dice.randint(0, need)) if dice.random() < 0.3 else []
    answer = prefer.prefer(here, free, must, need, kind["shares"])
    assert len(answer) == len(set(answer)) == need and set(must) <= set(answer) <= set(free)
    rest = [name for name in free if name not in must]
    best = min(
        prefer.cost(here, free, [*must, *more], kind["shares"]) for more in itertools.combinations(rest, need - len(must))
    )
    assert prefer.cost(here, free, answer, kind["shares"]) == best, (kind, free, must, need)
    dice.shuffle(free)
    assert prefer.prefer(here, free, must[::-1], need, kind["shares"]) == answer


def test_no_choice_is_better(prefer):
    for case in cases(1500, 9, 5):
        check(prefer, *case)


def test_no_choice_of_16_is_better(prefer):
    """Whole nodes of 16 chips; for A3 the widest choice there is: half of them."""
    dice = random.Random(16)
    for family, per_card, per_numa, need in (("a3", 2, 4, 8), ("310", 4, 8, 4), ("a2", 1, 8, 12)):
        kind = {"family": family, "count": 16, "per_card": per_card, "per_numa": per_numa, "ranks": {5: 1}, "shares": 1}
        check(prefer, kind, dice, 16, need)


@pytest.mark.long
def test_no_choice_is_better_at_length(prefer):
    for case in itertools.chain(cases(6000, 10, 55), cases(150, 16, 161)):
        check(prefer, *case)


def test_every_family_has_a_rule(prefer):
    from npu_agent._hardware._families import FAMILIES

    assert set(prefer.RULES) == set(FAMILIES)
