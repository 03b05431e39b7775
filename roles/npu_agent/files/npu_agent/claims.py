# SPDX-License-Identifier: GPL-3.0-or-later
"""Which chips nobody may get for now, because a pod has them under another id, or may get another chip's node. Pure.

Kubelet knows ids, not hardware. Two things make it give one chip to two pods:
  form    a chip is offered in another form than before (whole, shared, sliced, under another resource): what pods have of it under the
          old ids is unknown to the list of the new ones.
  number  a chip has another number than before: kubelet keeps the answer to Allocate for each container, in its checkpoint too, and a
          container that it restarts gets the device nodes of that answer (its source), which may be another chip's by now.
So what an id was given out as last is remembered with its name (Identity.given), and when that is not what it is now, the chip is barred
until kubelet has told that no pod has the id (PodResources). An answer that came too early proves nothing: see SURE_SECONDS, GIVEN_SECONDS.
"""

from collections import namedtuple

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
    """(physical id, form), see Identity.given. Where the chip's number plays no part it is -1: slices have nodes of their own, and a
    chip may have no number."""
    number = None if offer.chip.slice is not None else offer.chip.phy_id
    return -1 if number is None else number, form_of(offer, shares)


def renumbered(before, now):
    return now is None or (before[0] != now[0] and min(before[0], now[0]) >= 0)


class Claims:
    """`waiting`: something is barred until kubelet tells more."""

    def __init__(self, pattern):
        self.pattern = pattern  # of the backend's ids
        self.claims: list = []
        self.asked, self.sure = float("-inf"), False
        self.since: dict = {}  # {identity key: when what it was given out as was seen to be outdated}
        self.waiting, self.trouble = False, ""  # why kubelet does not tell

    def take(self, held, asked, sure):
        """held: {(resource, id): "namespace/pod"}; None: there is nobody to ask, on a kubelet without PodResources. asked: when that was
        asked. sure: something has been registered with this kubelet for SURE_SECONDS."""
        found = [claim(resource, unit, pod, self.pattern) for (resource, unit), pod in sorted((held or {}).items())]
        self.claims = [one for one in found if one is not None]
        self.asked, self.sure = asked, sure

    def judge(self, entries, offers, shares, now):
        """{(resource, chip id): why nobody may get it}. Brings up to date what the entries (Identity) were given out as."""
        here = {offer.identity.key: offer for offer in offers if not offer.chip.gone}
        strange = self.strange(offers, shares)
        numbers = {offer.chip.phy_id for offer in here.values()}
        for entry in entries:
            self.settle(entry, here.get(entry.key), shares, strange=strange, numbers=numbers, now=now)
        self.since = {entry.key: self.since[entry.key] for entry in entries if entry.key in self.since}
        names, outdated = {entry.name for entry in entries}, {}
        for entry in entries:
            if stale(entry) is not None:
                outdated.setdefault(stale(entry), []).append(entry)
        bars = {}
        for offer in offers:
            chip = offer.chip
            why = "" if chip.gone else self.strange_why(chip, offer.identity.name, names, strange) or self.own_why(offer, shares)
            if not why and not chip.gone:
                why = self.others_why(chip, [entry for entry in outdated.get(chip.phy_id, ()) if entry.key != offer.identity.key])
            if why:
                bars[offer.resource, chip.id] = why
        self.waiting = bool(bars)
        return bars

    def strange(self, offers, shares):
        """The claims of ids that nobody is offered."""
        ids = {(offer.resource, offer.chip.id) for offer in offers}

        def offered(one):
            if shares <= 1 or one.vdev_id is not None:
                return (one.resource, one.id) in ids
            return one.share is not None and one.share < shares and (one.resource, one.name) in ids

        return [one for one in self.claims if not offered(one)]

    def settle(self, entry, offer, shares, *, strange, numbers, now):
        """Forget what an id was given out as, when that is outdated and no pod has it any more. numbers: of the chips that are here."""
        if offer is not None and offer.chip.barred:
            return  # nobody gets it anyway, and its form may not be known
        current = None if offer is None else given_as(offer, shares)
        if entry.given is None and offer is not None and offer.chip.healthy:
            entry.given = current
        if entry.given in (None, current) or (current is None and stale(entry) not in numbers):
            self.since.pop(entry.key, None)
            return
        since = self.since.setdefault(entry.key, now)
        free = self.holder(entry.name, self.claims if renumbered(entry.given, current) else strange) is None
        if free and self.sure and self.asked >= since + GIVEN_SECONDS:
            entry.given = current
            self.since.pop(entry.key, None)

    def strange_why(self, chip, name, names, strange):
        for one in strange:
            if hits(one, chip, name, names):
                return (f"pod {one.pod} still has {one.id} of {one.resource}, which is this chip in another form or by an older number: it "
                        "is free when that pod is gone")
        return ""

    def own_why(self, offer, shares):
        given, now, name = offer.identity.given, given_as(offer, shares), offer.identity.name
        if given is None or given == now or offer.chip.barred:
            return ""
        if not renumbered(given, now):
            return f"it was offered as {given[1]} before, and is {now[1]} now: waiting for kubelet to tell that no pod has {name} that way"
        return (f"it was /dev/davinci{given[0]} and is /dev/davinci{now[0]} now, but kubelet gives a container that it restarts the old "
                f"node: {self.wait(name)}")

    def others_why(self, chip, entries):
        if not entries:
            return ""
        return (f"kubelet may give its node /dev/davinci{chip.phy_id} to a container of a pod that has {entries[0].name}: "
                f"{self.wait(entries[0].name)}")

    def wait(self, name):
        held = self.holder(name, self.claims)
        return f"delete pod {held.pod}, which has {held.id}" if held else f"waiting for kubelet to tell that no pod has {name}"

    def holder(self, name, claims):
        return next((one for one in claims if one.name == name), None)


def stale(entry):
    """The number of the node in answers that kubelet may have kept for this name; None where there is none."""
    return entry.given[0] if entry.given is not None and entry.given[0] >= 0 else None


def hits(one, chip, name, names):
    """Whether a claim of an id that is offered no more may be of this chip's hardware."""
    if one.vdev_id is not None and chip.slice is not None:
        return one.vdev_id == chip.slice.vdev_id
    return one.name == name or (one.name not in names and one.number == chip.phy_id)
