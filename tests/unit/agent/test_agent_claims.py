# SPDX-License-Identifier: GPL-3.0-or-later
"""Which chips nobody may get for now, because a pod has them in another form, or may get another chip's node."""

import boards
import pytest
from agent_rig import make_node
from node_rig import A2, P310, record, sight, slices_of, state, told


@pytest.fixture
def claims(package):
    import npu_agent.claims

    return npu_agent.claims


@pytest.fixture
def ids(package):
    """The pattern of ids of the backend ascend."""
    from npu_agent.backends import ascend

    return ascend.ID


OTHER = "example.com/npu"


@pytest.mark.parametrize(("unit", "found"), [
    ("Ascend910-3", ("Ascend910-3", 3, None, None)), ("Ascend310P-0-7", ("Ascend310P-0", 0, None, 7)),
    ("npu-12", ("npu-12", 12, None, None)),
    ("Ascend310P-2c-100-1", ("Ascend310P-1", 1, 100, None)), ("Ascend910-10c.3cpu.16g.ndvpp-116-15", ("Ascend910-15", 15, 116, None)),
    ("Ascend310-0", ("Ascend310-0", 0, None, None)), ("GPU-3", None), ("Ascend910", None), ("Ascend910-", None), ("Ascend910-x", None),
    ("Ascend910-0-1-2", None), ("xAscend910-0", None), ("Ascend910-0\n", None), ("Ascend910B3-0", None),
])
def test_ids(claims, ids, unit, found):
    one = claims.claim(A2, unit, "a/b", ids)
    assert (one and (one.name, one.number, one.vdev_id, one.share)) == found


def offers(claims, *chips, base=P310):
    """Of (number of the name, physical id) whole, or (number, physical id, vdev id) a slice; with what the identities were given out as."""
    from npu_agent.identity import Identity

    made, identities = [], {}
    for number, phy_id, *vdev_id in chips:
        identity = identities.setdefault(number, Identity(f"Ascend310P-{number}", {}))
        if vdev_id:
            one = boards.sliced(phy_id, vdev_id[0])._replace(id=f"Ascend310P-2c-{vdev_id[0]}-{number}")
        else:
            one = boards.chip(phy_id, "310p", id=f"Ascend310P-{number}")
        made.append(claims.Offer(identity, f"{base}-2c" if vdev_id else base, base, one))
    return list(identities.values()), made


# what is offered, shares, what a pod has, which of the offers nobody may get (by their place)
HELD = {
    "the same": (((0, 0), (1, 1)), 1, (P310, "Ascend310P-0"), ()),
    "nothing of ours": (((0, 0), (1, 1)), 1, ("nvidia.com/gpu", "GPU-0"), ()),
    "whole, now shared": (((0, 0), (1, 1)), 4, (P310, "Ascend310P-0"), (0,)),
    "a share, now whole": (((0, 0), (1, 1)), 1, (P310, "Ascend310P-1-3"), (1,)),
    "a share that is still one": (((0, 0), (1, 1)), 4, (P310, "Ascend310P-1-3"), ()),
    "a share of more than there are now": (((0, 0), (1, 1)), 2, (P310, "Ascend310P-1-3"), (1,)),
    "whole, now slices": (((0, 0, 100), (0, 0, 101), (1, 1)), 1, (P310, "Ascend310P-0"), (0, 1)),
    "a slice, now whole": (((0, 0), (1, 1)), 1, (f"{P310}-2c", "Ascend310P-2c-100-0"), (0,)),
    "a slice that is still one": (((0, 0, 100), (1, 1)), 1, (f"{P310}-2c", "Ascend310P-2c-100-0"), ()),
    "a slice of another kind": (((0, 0, 100), (0, 0, 101), (1, 1)), 1, (f"{P310}-4c", "Ascend310P-4c-100-0"), (0,)),
    "a slice that is another chip's now": (((0, 0), (1, 1, 100)), 1, (f"{P310}-2c", "Ascend310P-2c-100-0"), (0, 1)),
    "a slice that was removed": (((0, 0, 101), (1, 1)), 1, (f"{P310}-2c", "Ascend310P-2c-100-0"), ()),
    "another resource": (((0, 0), (1, 1)), 1, (OTHER, "Ascend310P-0"), (0,)),
    "a share of another resource": (((0, 0), (1, 1)), 4, (OTHER, "Ascend310P-1-0"), (1,)),
    "a slice of another resource": (((0, 0, 100), (0, 0, 101)), 1, (f"{OTHER}-2c", "Ascend310P-2c-101-0"), (1,)),
    "another prefix": (((0, 4), (1, 1)), 1, ("huawei.com/Ascend310", "Ascend310-4"), (0,)),
    "a name that nobody has": (((0, 5), (1, 1)), 1, (P310, "Ascend310P-5"), (0,)),
    "a share of a chip that has another's number": (((0, 1), (1, 0)), 1, (P310, "Ascend310P-1-3"), (1,)),
    "a name that nobody has, of no number": (((0, 0), (1, 1)), 1, (P310, "Ascend310P-5"), ()),
}


@pytest.mark.parametrize("case", HELD.values(), ids=HELD)
def test_what_a_pod_has_in_another_form(claims, ids, case):
    chips, shares, (resource, unit), barred = case
    entries, made = offers(claims, *chips)
    made_claims = claims.Claims(ids)
    made_claims.take({(resource, unit): "default/one"}, 0, True)
    bars = made_claims.judge(entries, made, shares, 0)
    assert set(bars) == {(made[place].resource, made[place].chip.id) for place in barred} and made_claims.waiting == bool(barred)
    assert all("pod default/one" in why and unit in why and resource in why for why in bars.values())
    made_claims.take({}, 3, True)
    assert made_claims.judge(entries, made, shares, 3) == {} and not made_claims.waiting


# what was given out as, what is offered now, shares, ids that a pod has, which offers are barred before and after a sure answer
WHOLE, SHARED, SLICED = f"whole {P310}", f"shared {P310}", f"sliced {P310}"
GIVEN = {
    "the same": (((0, WHOLE),), ((0, 0),), 1, (), (), ()),
    "the same, and a pod has it": (((0, WHOLE),), ((0, 0),), 1, ("Ascend310P-0",), (), ()),
    "never": ((None,), ((0, 3),), 1, (), (), ()),
    "another number": (((3, WHOLE),), ((0, 0),), 1, (), (0,), ()),
    "another number, and a pod has it": (((3, WHOLE),), ((0, 0),), 1, ("Ascend310P-0",), (0,), (0,)),
    "two changed their numbers": (((1, WHOLE), (0, WHOLE)), ((0, 0), (1, 1)), 1, (), (0, 1), ()),
    "and a pod has one": (((1, WHOLE), (0, WHOLE)), ((0, 0), (1, 1)), 1, ("Ascend310P-0",), (0, 1), (0, 1)),
    "a ring of three": (((1, WHOLE), (2, WHOLE), (0, WHOLE)), ((0, 0), (1, 1), (2, 2)), 1, ("Ascend310P-0",), (0, 1, 2), (0, 1)),
    "one moved into a number that was never given": (((5, WHOLE), None), ((0, 0), (1, 1)), 1, ("Ascend310P-0",), (0,), (0,)),
    "one moved, and a new one has its number": (((1, WHOLE), None), ((0, 0), (1, 1)), 1, ("Ascend310P-0",), (0, 1), (0, 1)),
    "another form": (((0, WHOLE),), ((0, 0),), 4, (), (0,), ()),
    "another form, and a pod has the new one": (((0, WHOLE),), ((0, 0),), 4, ("Ascend310P-0-2",), (0,), ()),
    "whole, now slices": (((0, WHOLE),), ((0, 0, 100), (0, 0, 101)), 1, (), (0, 1), ()),
    "slices, now whole": (((-1, SLICED),), ((0, 0),), 1, (), (0,), ()),
    "slices of a chip with another number": (((-1, SLICED),), ((0, 5, 100),), 1, ("Ascend310P-2c-100-0",), (), ()),
    "another resource": (((0, "whole example.com/npu"),), ((0, 0),), 1, (), (0,), ()),
    "number and form": (((3, SHARED),), ((0, 0),), 1, (), (0,), ()),
}


@pytest.mark.parametrize("case", GIVEN.values(), ids=GIVEN)
def test_what_an_id_was_given_out_as(claims, ids, case):
    given, chips, shares, held, before, after = case
    entries, made = offers(claims, *chips)
    for entry, value in zip(entries, given, strict=True):
        entry.given = value and claims.Given(*value)
    one = claims.Claims(ids)

    def barred(now):
        bars = one.judge(entries, made, shares, now)
        return [place for place, offer in enumerate(made) if (offer.resource, offer.chip.id) in bars]

    assert barred(10) == list(before)  # nobody has asked kubelet
    pods = {(f"{P310}-2c" if "2c" in unit else P310, unit): "default/one" for unit in held}
    for asked, sure in ((12, False), (10.5, True)):  # too early for kubelet, too early for what was allocated just before
        one.take(pods, asked, sure)
        assert barred(12) == list(before)
    one.take(pods, 12, True)
    assert barred(12) == list(after)
    one.take({}, 15, True)
    assert barred(15) == [] and not one.waiting
    assert all(offer.identity.given == claims.given_as(offer, shares) for offer in made)


def test_reasons(claims, ids):
    entries, made = offers(claims, (0, 1), (1, 0), (2, 2))
    entries[0].given, entries[1].given = claims.Given(0, WHOLE), claims.Given(1, WHOLE)
    one = claims.Claims(ids)
    one.take({(P310, "Ascend310P-0"): "ns/training-7"}, 0, False)
    reasons = [one.judge(entries, made, 1, 0).get((P310, f"Ascend310P-{number}"), "") for number in range(3)]
    restart = "but kubelet gives a container that it restarts the old node"
    assert reasons == [
        f"it was /dev/davinci0 and is /dev/davinci1 now, {restart}: delete pod ns/training-7, which has Ascend310P-0",
        f"it was /dev/davinci1 and is /dev/davinci0 now, {restart}: waiting for kubelet to tell that no pod has Ascend310P-1", "",
    ]
    entries[1].given = claims.Given(0, WHOLE)
    one.take({(P310, "Ascend310P-0"): "ns/training-7"}, 0, False)
    why = one.judge(entries, made, 1, 0)[P310, "Ascend310P-1"]
    assert why == ("kubelet may give its node /dev/davinci0 to a container of a pod that has Ascend310P-0: delete pod ns/training-7, "
                   "which has Ascend310P-0")
    entries[1].given, entries[2].given = None, claims.Given(2, SHARED)
    assert f"it was offered as {SHARED} before, and is {WHOLE} now" in one.judge(entries, made, 1, 0)[P310, "Ascend310P-2"]


def test_a_kubelet_without_pod_resources_ends_the_wait_by_time(claims, ids):
    entries, made = offers(claims, (0, 0))
    entries[0].given = claims.Given(5, WHOLE)
    one = claims.Claims(ids)
    for asked, sure, barred in ((0, False, True), (60, True, False)):
        one.judge(entries, made, 1, 0)
        one.take(None, asked, sure)
        assert bool(one.judge(entries, made, 1, asked)) == barred


def test_what_nobody_could_get_was_not_given_out(claims, ids):
    entries, made = offers(claims, (0, 0))
    one = claims.Claims(ids)
    for number in range(3):
        made[0] = made[0]._replace(chip=made[0].chip._replace(phy_id=number, healthy=False))
        assert one.judge(entries, made, 1, 0) == {} and entries[0].given is None
    made[0] = made[0]._replace(chip=made[0].chip._replace(healthy=True))
    one.judge(entries, made, 1, 0)
    assert entries[0].given == claims.Given(2, WHOLE)
    # What is barred for another reason, perhaps because its form is not known, is not forgotten.
    made[0] = made[0]._replace(chip=made[0].chip._replace(barred="its slices are not known", phy_id=7))
    for now in (100, 110):
        one.take({}, now, True)
        one.judge(entries, made, 1, now)
    assert entries[0].given == claims.Given(2, WHOLE)


# --- the node

def units(node, resource=A2):
    return {name: (chip.phy_id, chip.healthy) for name, chip in node.boards[resource].units.items()}


def test_a_pod_that_has_a_whole_chip_keeps_its_shares_from_others(make):
    node = make(shares=2)
    node.update(sight(record(0, family="310p"), record(1, family="310p")), 0)
    assert told(node, 1, [(P310, "Ascend310P-0", "a/one")], sure=False) == {P310}
    assert state(node.boards[P310]) == {"Ascend310P-0-0": False, "Ascend310P-0-1": False, "Ascend310P-1-0": True, "Ascend310P-1-1": True}
    assert "pod a/one still has Ascend310P-0" in node.boards[P310].chips["Ascend310P-0"].barred
    node.update(sight(record(0, family="310p"), record(1, family="310p")), 2)
    assert not node.boards[P310].units["Ascend310P-0-0"].healthy  # until kubelet says otherwise
    assert told(node, 3) == {P310} and node.boards[P310].count() == (4, 4)


def test_numbers_and_forms_are_remembered_through_a_restart(make, tmp_path):
    folder = str(tmp_path / "state")
    node = make(state_dir=folder)
    node.update(sight(record(0), record(1), record(2)), 0)
    node.names.file.writer.join(10)
    node = make(state_dir=folder)
    node.update(sight(record(1, vdie="die0"), record(0, vdie="die1"), record(2)), 0)
    assert units(node) == {"Ascend910-0": (1, False), "Ascend910-1": (0, False), "Ascend910-2": (2, True)}
    node.names.close()
    node = make(state_dir=folder, shares=2)  # and again, before anything was settled
    node.update(sight(record(1, vdie="die0"), record(0, vdie="die1"), record(2)), 0)
    assert node.boards[A2].count() == (0, 6)
    told(node, 5, sure=False)
    assert node.boards[A2].count() == (0, 6)
    told(node, 60)
    assert node.boards[A2].count() == (6, 6)
    node.names.file.writer.join(10)
    node.names.save()
    node.names.close()
    node = make(state_dir=folder, shares=2)
    node.update(sight(record(1, vdie="die0"), record(0, vdie="die1"), record(2)), 0)
    assert node.boards[A2].count() == (6, 6)


def test_slices_that_are_made_of_a_chip_that_a_pod_has(make, tmp_path):
    make_node(tmp_path / "vdavinci100")
    node = make()
    node.update(sight(record(0, family="310p"), record(1, family="310p")), 0)
    sliced = record(0, family="310p", slices=slices_of((100, "vir02")))
    node.update(sight(sliced, record(1, family="310p")), 10)
    assert state(node.boards[f"{P310}-2c"]) == {"Ascend310P-2c-100-0": False} and state(node.boards[P310]) == {"Ascend310P-1": True}
    told(node, 10.5, sure=True)  # what was allocated just before the change is not told yet
    assert node.boards[f"{P310}-2c"].count() == (0, 1) and node.claims.waiting
    told(node, 13, [(P310, "Ascend310P-0", "a/one")])
    assert "pod a/one still has Ascend310P-0" in node.boards[f"{P310}-2c"].units["Ascend310P-2c-100-0"].barred
    told(node, 16)
    assert node.boards[f"{P310}-2c"].count() == (1, 1) and not node.claims.waiting


def test_a_card_that_was_exchanged_unseen_leaves_no_hole(make):
    """Its old name goes when kubelet tells that no pod has it; until then the new card may be what such a pod gets."""
    node = make()
    node.update(sight(record(0), record(1)), 0)
    node.update(sight(record(0), record(1, vdie="new"), complete=False, problems=["card 5"]), 1)
    node.update(sight(record(0), record(1, vdie="new")), 2)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-1": False, "Ascend910-2": False}
    assert "its node /dev/davinci1" in node.boards[A2].units["Ascend910-2"].reason
    told(node, 5, [(A2, "Ascend910-1", "a/one")])
    node.update(sight(record(0), record(1, vdie="new")), 6)
    assert node.boards[A2].count() == (1, 3) and "delete pod a/one" in node.boards[A2].units["Ascend910-2"].reason
    told(node, 9)
    node.update(sight(record(0), record(1, vdie="new"), complete=False), 10)
    assert node.boards[A2].count() == (2, 3)
    node.update(sight(record(0), record(1, vdie="new")), 11)
    assert state(node.boards[A2]) == {"Ascend910-0": True, "Ascend910-2": True}
    assert [entry.name for entry in node.names.entries] == ["Ascend910-0", "Ascend910-2"]


def test_why_kubelet_does_not_tell_shows_while_it_matters(make):
    node = make()
    node.claims.trouble = "kubelet does not tell which pods have chips: no"
    node.update(sight(record(0), record(1)), 0)
    assert node.problems == []
    node.update(sight(record(1, vdie="die0"), record(0, vdie="die1")), 1)
    assert node.problems == ["kubelet does not tell which pods have chips: no"]


def test_a_refusal_says_how_the_chip_is_offered_now(make, tmp_path):
    from npu_agent import allocate

    for name in ("vdavinci100", "davinci0"):
        make_node(tmp_path / name)
    node = make()
    node.update(sight(record(0, family="310p"), record(1, family="310p")), 0)
    node.update(sight(record(0, family="310p", slices=slices_of((100, "vir02"))), record(1, family="310p")), 1)
    with pytest.raises(allocate.Refused) as refused:
        allocate.answer(["Ascend310P-0"], node.boards[P310], node.settings)
    assert str(refused.value) == (
        "Ascend310P-0 is no id of huawei.com/Ascend310P any more: its chip is Ascend310P-2c-100-0 of huawei.com/Ascend310P-2c now; "
        "kubelet's list was older than that change, a new pod gets another chip")
    with pytest.raises(allocate.Refused, match=r"Ascend310P-2c-100-0 \(PCI .*\) is given to nobody now: it was offered as whole"):
        allocate.answer(["Ascend310P-2c-100-0"], node.boards[f"{P310}-2c"], node.settings)
