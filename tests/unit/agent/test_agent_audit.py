# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose an allocation was, by what kubelet shows: a table. Times are seconds; an allocation without a time of its own was at 10."""

from types import SimpleNamespace

import pytest

R, OTHER = "huawei.com/Ascend910", "huawei.com/Ascend310P"
NEVER = float("-inf")


@pytest.fixture
def audit_match(package):
    import npu_agent.audit_match

    return npu_agent.audit_match


def row(pod, *ids, container="c", resource=R, namespace="n"):
    return SimpleNamespace(namespace=namespace, pod=pod, container=container, resource=resource, ids=frozenset(ids))


@pytest.fixture
def settle(audit_match, package):
    """settle([(ids, at, pods before)], rows, asked): what each allocation is settled as, "namespace/pod/container" or the note; None: not
    yet. The rows are Rows of holders.py."""
    from npu_agent.holders import Row

    def run(allocations, rows, asked, refused=NEVER):
        entries = [audit_match.Entry(b"", {(R, name) for name in ids}, at, before) for ids, at, before in allocations]
        given = {}
        for entry in sorted(entries, key=lambda entry: entry.at):
            given.update(dict.fromkeys(entry.keys, entry.at))
        found = audit_match.match(entries, [Row(**vars(one)) for one in rows], asked, given, refused)
        return [tell(found.get(entry)) for entry in entries], entries

    return run


def tell(found):
    if found is None:
        return None
    return f"{found.namespace}/{found.pod}/{found.container}" if found.pod else found.note


ONE = [(("a", "b"), 10.0, ())]


@pytest.mark.parametrize(("rows", "asked", "expected"), [
    ([row("p", "a", "b")], 10.1, "n/p/c"),
    ([row("p", "a", "b"), row("q", "x"), row("p", "y", container="d")], 10.1, "n/p/c"),
    ([row("p", "a", "b", container="d"), row("p", "a", "b", "z", container="e")], 10.1, "n/p/d"),  # exactly these ids come first
    ([row("p", "a", "b", "z")], 10.1, "n/p/c"),  # more than it asked for: ids of an init container
    ([row("p", "a")], 10.1, None),  # fewer: somebody else's
    ([row("p", "a"), row("p", "b", container="d")], 10.1, None),
    ([row("p", "a", "b", resource=OTHER)], 10.1, None),
    ([row("p")], 10.1, None),
    ([], 10.1, None),
    ([row("p", "a", "b")], 10.0, None),  # asked before, so another pod's
    ([row("p", "a", "b")], 9.0, None),
])
def test_by_ids(settle, rows, asked, expected):
    assert settle(ONE, rows, asked)[0] == [expected]


def test_a_pod_that_had_the_ids_before_is_the_one_only_if_nobody_else_comes(settle, audit_match):
    """A kubelet before 1.34 shows pods that have ended."""
    old = [(("a",), 10.0, {"n/old"})]
    told, (entry,) = settle(old, [row("old", "a")], 10.1)
    assert told == [None] and entry.second == audit_match.Found("n", "old", "c")
    told, (entry,) = settle(old, [row("old", "a"), row("new", "a")], 10.1)
    assert told == ["n/new/c"]
    # Not shown any more: the same name again is a pod that was made anew, as a StatefulSet does.
    told, (entry,) = settle(old, [], 10.1)
    assert told == [None] and entry.before == set()


def test_two_pods_with_the_same_ids_are_not_guessed(settle):
    told, (entry,) = settle([(("a",), 10.0, ())], [row("p", "a"), row("q", "a")], 10.1)
    assert told == [None] and entry.second.pod is None and "n/p, n/q" in entry.second.note


INIT = [(("a",), 10.0, ()), (("a", "b"), 10.2, ())]


@pytest.mark.parametrize("case", [
    # An init container had a, then a container of the same pod a and b.
    (INIT, [row("p", "a", "b")], NEVER, ["n/p/None", "n/p/c"]),
    (INIT, [row("p", "a", "b")], 9.0, ["n/p/None", "n/p/c"]),  # a refusal before both is no end of this pod
    (INIT, [], NEVER, [None, None]),
    # It had more than the container after it: kubelet keeps the rest for the pod and does not show it.
    ([(("a", "b", "c"), 10.0, ()), (("b",), 10.2, ())], [row("p", "b")], NEVER, ["n/p/None", "n/p/c"]),
    # Two init containers.
    ([(("a",), 10.0, ()), (("a",), 10.1, ()), (("a",), 10.2, ())], [row("p", "a")], NEVER, ["n/p/None", "n/p/None", "n/p/c"]),
    # Between the two a pod was refused, so they are of two pods: of the first one nothing is known any more.
    (INIT, [row("q", "a", "b")], 10.1, ["again", "n/q/c"]),
    # Too long between them for one pod's admission.
    ([(("a",), 10.0, ()), (("a", "b"), 15.0, ())], [row("q", "a", "b")], NEVER, ["again", "n/q/c"]),
])
def test_init_containers_are_named_by_who_comes_after(settle, audit_match, case):
    allocations, rows, refused, expected = case
    told, _entries = settle(allocations, rows, 20.0, refused)
    assert told == [audit_match.AGAIN.note if word == "again" else word for word in expected]


def test_an_answer_from_between_two_allocations_is_the_first_ones(settle):
    assert settle(INIT, [row("p", "a")], 10.1)[0] == ["n/p/c", None]


def test_the_note_of_an_init_container_says_so(audit_match, package):
    from npu_agent.holders import Row

    entry = audit_match.Entry(b"", {(R, "a")}, 10.0)
    later = audit_match.Entry(b"", {(R, "a")}, 10.1)
    found = audit_match.match([entry, later], [Row("n", "p", "c", R, frozenset("a"))], 11.0, {(R, "a"): 10.1}, NEVER)
    assert found[entry] == ("n", "p", None, audit_match.LIKELY) and found[later] == ("n", "p", "c", None)
    entry.handed_on = True
    found = audit_match.match([entry], [Row("n", "p", "c", R, frozenset("a"))], 11.0, {(R, "a"): 10.1}, NEVER)
    assert found[entry] == ("n", "p", None, audit_match.INIT)


# --- the parts of a line

def test_a_line_is_bounded(package):
    from npu_agent import audit

    call = audit.Call(R, [f"{n:03d}" + "x" * 1000 for n in range(400)], [], {}, "no", 0.0012344, None, 5.0, 1750000000.25)
    line = audit.line_of(call)
    assert len(line["ids"]) == 256 and line["ids_left_out"] == 144 and {len(name) for name in line["ids"]} == {80}
    assert line["time"] == "2025-06-15T15:06:40.250Z" and line["milliseconds"] == 1.234 and line["outcome"] == "refused"


def test_codes_of_a_chip(package):
    """What was polled and what events told, the worst first, with the vendor's level and what it means."""
    from npu_agent import audit, faults

    levels = faults.Levels({"80E01801": "SeparateNPU", "A2301002": "RestartBusiness"})
    past = SimpleNamespace(standing=SimpleNamespace(codes={"80E01801": (True, 1.0, 3), "81078603": (False, 1.0, 3)}))
    health = SimpleNamespace(memory={"key": past}, levels=levels)
    seen = {"x": (SimpleNamespace(key="key"), {"phy_id": 3, "family": "a2", "error_codes": ["A2301002", "12345678"]}, False),
            "y": (SimpleNamespace(key="other"), {"phy_id": 4, "family": "a2", "error_codes": ["A2301002"]}, False)}
    chip = SimpleNamespace(id="Ascend910-3", phy_id=3, family="a2")
    assert audit.codes_of(SimpleNamespace(seen=seen, health=health), chip) == [
        {"chip": "Ascend910-3", "code": "80E01801", "level": "SeparateNPU", "meaning": "the chip has to be taken out"},
        {"chip": "Ascend910-3", "code": "A2301002", "level": "RestartBusiness", "meaning": "the job has to be started again"},
        {"chip": "Ascend910-3", "code": "12345678", "level": None, "meaning": "not a known code"},
    ]
    health.memory = {}
    assert audit.codes_of(SimpleNamespace(seen={}, health=health), chip) == []
