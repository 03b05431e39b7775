# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose an allocation was: kubelet's Allocate has ids only, and PodResources shows a moment later which container has them. Pure.

What PodResources does not show: init containers that end (its source). Kubelet gives their ids to the containers of the same pod that
come after (its source), so an allocation whose ids were allocated again at once was an init container's, or one of a pod that kubelet
refused for another reason. GetPreferredAllocation tells the two apart, but kubelet does not always call it.
"""

from collections import namedtuple

# Between two allocations of one pod: kubelet makes them one after the other when it admits it, and no other pod's between them. A pod that
# has run, ended and made room for another takes longer.
SAME_POD_SECONDS = 1.0
NAME_SECONDS = 30.0  # for which a line waits for a name

Found = namedtuple("Found", "namespace pod container note", defaults=(None,))
AGAIN = Found(None, None, None, "its chips were given out again before kubelet showed a pod with them")
INIT = "kubelet shows no init containers: named by the pod that got these chips again, as chips that it had already"
LIKELY = ("kubelet shows no init containers: this pod had these chips right afterwards, so it was one of its own, unless kubelet refused "
          "another pod in between")


class Entry:
    """An allocation that has no name yet. data: its line. keys: {(resource, id)}. before: "namespace/pod" of those that had some
    of them until then.

    second: who it is if nothing better comes. handed_on: kubelet said of some of the ids that the pod that gets them has them already.
    due, tries: of the next question, see audit.py.
    """

    def __init__(self, data, keys, at, before=()):
        self.data, self.keys, self.at, self.before = data, frozenset(keys), at, set(before)
        self.deadline, self.second, self.due, self.tries = at + NAME_SECONDS, None, at, 0
        self.handed_on = False


def match(entries, rows, asked, given, refused):
    """{entry: Found} of those that this answer settles.

    rows: what PodResources showed, when it was asked at `asked`: an answer to a question from before an allocation proves nothing. given:
    {(resource, id): when it was allocated last}. refused: when an allocation was refused last; that ends a pod's admission.
    """
    holders: dict = {}
    for row in rows:
        for unit in row.ids:
            holders.setdefault((row.resource, unit), []).append(row)
    found = {}
    for entry in entries:
        if asked <= entry.at:
            continue
        entry.before &= {name(row) for key in entry.keys for row in holders.get(key, ())}
        again = {key for key in entry.keys if entry.at < given.get(key, entry.at) < asked}
        settled = by_successor(entry, again, holders, given, refused) if again else by_ids(entry, holders)
        if settled is not None:
            found[entry] = settled
    return found


def by_ids(entry, holders):
    """The container that has all of its ids, and no more where there is one; a pod that had them before only when nothing else comes:
    a kubelet before 1.34 shows pods that have ended, too."""
    first, *others = (holders.get(key, ()) for key in entry.keys)
    rows = [row for row in first if all(row in other for other in others)]
    rows.sort(key=lambda row: len(row.ids))
    fresh = [row for row in rows if name(row) not in entry.before]
    entry.second = None
    if len({name(row) for row in fresh}) == 1:
        return found_in(fresh[0])
    if len({name(row) for row in rows}) == 1:
        entry.second = found_in(rows[0])
    elif fresh:
        entry.second = Found(None, None, None, f"kubelet shows these chips with several pods: {', '.join(sorted({*map(name, fresh)}))}")
    return None


def by_successor(entry, again, holders, given, refused):
    last = max(given[key] for key in again)
    if last - entry.at > SAME_POD_SECONDS or entry.at < refused < last:
        return AGAIN
    pods = {(row.namespace, row.pod) for key in again for row in holders.get(key, ()) if name(row) not in entry.before}
    if len(pods) != 1:
        return None
    namespace, pod = pods.pop()
    return Found(namespace, pod, None, INIT if entry.handed_on else LIKELY)


def found_in(row):
    return Found(row.namespace, row.pod, row.container)


def name(row):
    return f"{row.namespace}/{row.pod}"
