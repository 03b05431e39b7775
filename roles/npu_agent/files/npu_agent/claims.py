# SPDX-License-Identifier: GPL-3.0-or-later
"""Which chips nobody may get for now, because a pod has them under another id, or may get another chip's node. Pure.

Kubelet knows ids, not hardware. Three things make it give one chip to two pods:
  form    a chip is offered in another form than before (whole, shared, sliced, under another resource): what pods have of it under the
          old ids is unknown to the list of the new ones.
  number  a chip has another number than before: kubelet keeps the answer to Allocate for each container, in its checkpoint too, and a
          container that it restarts gets the device nodes of that answer (its source), which may be another chip's by now. The same holds
          for nodes that go by no number, and for addresses: all of these are its places.
  name    a chip has another id than before, since a resource was renamed, or another backend serves it: the pod has it by the old one.
So what an id was given out as last is remembered with its name (Identity.given), whoever serves now, and when that is not what it is now,
the chip is barred until kubelet has told that no pod has the id (PodResources). An answer that came too early proves nothing: see
SURE_SECONDS, GIVEN_SECONDS. An id of ours that nobody knows may be any device, so it bars all.
"""

from collections import namedtuple

from .names_file import Given

# From the first registration with a kubelet: when it has just started, it does not know its pods yet, and tells of none; those that a
# reboot has ended are admitted again in this time, with the answers it has kept, unless their chips are unhealthy.
SURE_SECONDS = 60.0
# From a change until the question: what was allocated just before is told 40 ms later (measured).
GIVEN_SECONDS = 1.0

# One id that a pod has. name: of the chip, as identity.py has it; number: that in the name; vdev_id, share: None where it has none.
Claim = namedtuple("Claim", "resource id pod name number vdev_id share")
# One form in which a chip is offered. base: the resource of the whole chip.
Offer = namedtuple("Offer", "identity resource base chip")


def claim(resource, unit, pod, pattern):
    """The Claim of an id; None for one that is none of ours. pattern: of the backend's ids."""
    match = pattern.fullmatch(unit)
    if match is None:
        return None
    prefix, vdev_id, number, share = match.groups()
    numbers = [None if text is None else int(text) for text in (number, vdev_id, share)]
    return Claim(resource, unit, pod, f"{prefix}{numbers[0]}", *numbers)


def form_of(offer, shares):
    kind = "sliced" if offer.chip.slice is not None else "shared" if shares > 1 else "whole"
    return f"{kind} {offer.base}"


def given_as(offer, shares):
    """What its id is given out as now. Where the chip's number plays no part it is -1: slices have nodes of their own, and a chip may have
    no number."""
    number = None if offer.chip.slice is not None else offer.chip.phy_id
    return Given(-1 if number is None else number, form_of(offer, shares), offer.chip.places)


def numbers_differ(before, now):
    return before.phy_id != now.phy_id and min(before.phy_id, now.phy_id) >= 0


def places_differ(before, now):
    return bool(before.places and now.places and before.places != now.places)


def renumbered(before, now):
    return now is None or numbers_differ(before, now) or places_differ(before, now)


def alike(before, now):
    """Whether nothing of it is outdated: places that are not known, of then or of now, are no other ones."""
    return before[:2] == now[:2] and not places_differ(before, now)


def is_of(resource, form):
    """Whether a resource is that of a form; kinds of slices have it with a word behind."""
    kind, _blank, base = form.partition(" ")
    return resource == base or (kind == "sliced" and resource.startswith(f"{base}-"))


def units_of(offer, shares):
    """Its ids towards kubelet."""
    shared = shares > 1 and offer.chip.slice is None
    return [f"{offer.chip.id}-{share}" for share in range(shares)] if shared else [offer.chip.id]


class Claims:
    """`waiting`: something is barred until kubelet tells more."""

    def __init__(self, pattern, distinct=True):
        self.pattern, self.distinct = pattern, distinct  # of the backend's ids; whether no other plugin has such ids
        self.held: list = []
        self.claims: list = []  # what of it is ours
        self.asked, self.sure = float("-inf"), False
        self.since: dict = {}  # {identity key: when what it was given out as was seen to be outdated}
        self.waiting, self.trouble = False, ""  # why kubelet does not tell

    def take(self, held, asked, sure):
        """held: {(resource, id): "namespace/pod"}; None: there is nobody to ask, on a kubelet without PodResources. asked: when that was
        asked. sure: something has been registered with this kubelet for SURE_SECONDS."""
        self.held = sorted((held or {}).items())
        self.asked, self.sure = asked, sure

    def judge(self, entries, offers, shares, now):
        """{(resource, chip id): why nobody may get it}. Brings up to date what the entries (Identity) were given out as."""
        here = {offer.identity.key: offer for offer in offers if not offer.chip.gone}
        strange = self.read(entries, offers, shares)
        present = {place for offer in here.values() for place in places_of(offer.chip)}
        for entry in entries:
            self.settle(entry, here.get(entry.key), shares, strange=strange, present=present, now=now)
        self.since = {entry.key: self.since[entry.key] for entry in entries if entry.key in self.since}
        known, outdated = {entry.name: entry for entry in entries}, {}
        for entry in entries:
            for place in stale(entry):
                outdated.setdefault(place, []).append(entry)
        bars = {}
        for offer in offers:
            chip = offer.chip
            why = "" if chip.gone else self.strange_why(offer, known, strange) or self.own_why(offer, shares)
            if not why and not chip.gone:
                why = self.others_why(offer, outdated)
            if why:
                bars[offer.resource, chip.id] = why
        self.waiting = bool(bars)
        return bars

    def read(self, entries, offers, shares):
        """Find out what of all that pods have is ours; returns the claims of ids that nobody is offered."""
        offered = {(offer.resource, unit): offer.identity.name for offer in offers for unit in units_of(offer, shares)}
        forms = {given_as(offer, shares).form for offer in offers} | {entry.given.form for entry in entries if entry.given is not None}
        self.claims, strange = [], []
        for (resource, unit), pod in self.held:
            name = offered.get((resource, unit))
            if name is not None:
                self.claims.append(Claim(resource, unit, pod, name, None, None, None))
                continue
            one = self.strange(resource, unit, pod, entries, any(is_of(resource, form) for form in forms))
            if one is not None:
                self.claims.append(one)
                strange.append(one)
        return strange

    def strange(self, resource, unit, pod, entries, ours):
        """The Claim of an id that nobody is offered, None where it is none of ours. ours: the resource is, or was."""
        if ours or self.distinct:
            mine = [entry for entry in entries if share_of(unit, entry.name)]
            mine.sort(key=lambda entry: (entry.given is not None and is_of(resource, entry.given.form), len(entry.name)))
            one = claim(resource, unit, pod, self.pattern)
            if mine and (ours or one is not None) and (one is None or one.name != mine[-1].name):
                return Claim(resource, unit, pod, mine[-1].name, None, None, None)
            if one is not None:
                return one
        return Claim(resource, unit, pod, "", None, None, None) if ours else None

    def settle(self, entry, offer, shares, *, strange, present, now):
        """Forget what an id was given out as, when that is outdated and no pod has it any more. present: places of what is here."""
        if offer is not None and offer.chip.barred:
            return  # nobody gets it anyway, and its form may not be known
        current = None if offer is None else given_as(offer, shares)
        if entry.given is None and offer is not None and offer.chip.healthy:
            entry.given = current
        if entry.given is not None and current is not None and alike(entry.given, current):
            entry.given = entry.given._replace(places=entry.given.places or current.places)
            self.since.pop(entry.key, None)
            return
        if entry.given is None or (current is None and not stale(entry) & present):
            self.since.pop(entry.key, None)
            return
        since = self.since.setdefault(entry.key, now)
        free = self.holder(entry.name, self.claims if renumbered(entry.given, current) else strange) is None
        if free and self.sure and self.asked >= since + GIVEN_SECONDS:
            entry.given = current
            self.since.pop(entry.key, None)

    def strange_why(self, offer, known, strange):
        for one in strange:
            if hits(one, offer.chip, offer.identity.name, known):
                return (f"pod {one.pod} still has {one.id} of {one.resource}, which is this chip in another form or by an older number: it "
                        "is free when that pod is gone")
            if self.unclear(one, offer, known):
                return (f"pod {one.pod} still has {one.id} of {one.resource}, and nobody knows which device that is: delete that pod, "
                        "which has it by an id of before")
        return ""

    def unclear(self, one, offer, known):
        """Whether a claim may be of any device, this one too: nothing tells what its id was given out as."""
        entry = known.get(one.name)
        if entry is None:
            return one.number is None or offer.chip.phy_id is None
        return not self.pattern.fullmatch(entry.name) and not stale(entry)

    def own_why(self, offer, shares):
        given, now, name = offer.identity.given, given_as(offer, shares), offer.identity.name
        if given is None or alike(given, now) or offer.chip.barred:
            return ""
        if not renumbered(given, now):
            return (f"it was offered as {given.form} before, and is {now.form} now: waiting for kubelet to tell that no pod has {name} "
                    "that way")
        if places_differ(given, now):
            return (f"it was {', '.join(given.places)} and is {', '.join(now.places)} now, but kubelet gives a container that it restarts "
                    f"what it got before: {self.wait(name)}")
        return (f"it was /dev/davinci{given.phy_id} and is /dev/davinci{now.phy_id} now, but kubelet gives a container that it restarts "
                f"the old node: {self.wait(name)}")

    def others_why(self, offer, outdated):
        for place in sorted(places_of(offer.chip)):
            for entry in outdated.get(place, ()):
                if entry.key != offer.identity.key:
                    return (f"kubelet may give its {kind_of(place)} {place} to a container of a pod that has {entry.name}: "
                            f"{self.wait(entry.name)}")
        return ""

    def wait(self, name):
        held = self.holder(name, self.claims)
        return f"delete pod {held.pod}, which has {held.id}" if held else f"waiting for kubelet to tell that no pod has {name}"

    def holder(self, name, claims):
        return next((one for one in claims if one.name == name), None)


def share_of(unit, name):
    """Whether an id is this chip's, whole or a share of it."""
    return unit == name or (unit.startswith(f"{name}-") and unit[len(name) + 1:].isdecimal())


def kind_of(place):
    return "node" if place.startswith("/") else "address"


def places_of(chip):
    """What containers get with it, as they see it."""
    return {*chip.places, *([] if chip.phy_id is None else [f"/dev/davinci{chip.phy_id}"])}


def stale(entry):
    """The places in answers that kubelet may have kept for this name."""
    given = entry.given
    return set() if given is None else {*given.places, *([f"/dev/davinci{given.phy_id}"] if given.phy_id >= 0 else [])}


def hits(one, chip, name, known):
    """Whether a claim of an id that is offered no more may be of this chip's hardware."""
    if one.vdev_id is not None and chip.slice is not None:
        return one.vdev_id == chip.slice.vdev_id
    return one.name == name or (one.name not in known and one.number is not None and one.number == chip.phy_id)
