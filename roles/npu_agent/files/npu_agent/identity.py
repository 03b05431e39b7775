# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of chips that last: kubelet knows a chip by its name, and the driver may number the chips anew at the next start.

A chip is known again by the strongest evidence that was seen of it then and is seen now: the id of its die; the serial number of its card
with its place on the card (the chips of a Duo have one serial number); its PCI address with that place; its physical id. What is stronger
and differs makes it another chip: a new card in an old slot. Evidence that two chips share, now or in the table, says nothing, nor does
what makers leave in where nobody has set it.

The first name of a chip is the vendor's, with its physical id. It keeps that name when its physical id changes. A new chip takes over its
natural name from a chip that is not there any more; where that name is in use, it gets the lowest number that no name has.
"""

from collections import Counter
from typing import Any, Optional

from ._hardware._labels import is_set
from .names_file import KNOWN, NamesFile, render


class Identity:
    """One chip: its name, what is known of it, and a key that no other chip has while this process lives.

    given: names_file.Given, as which its name was given to pods last, None: never, or no pod has it. slices: those that the driver
    told last, None: it never did.
    """

    count = 0

    def __init__(self, name, known, given=None, slices=None):
        Identity.count += 1
        self.key = f"{name}/{Identity.count}"
        self.name, self.known = name, known
        self.given: Optional[tuple] = given
        self.slices: Optional[list] = slices

    def __repr__(self):
        return f"Identity({self.key}, {self.known})"


def evidence(known):
    """What tells a chip from others, the strongest first; None where it is not known."""
    place = known.get("device_id") or 0
    vdie, serial, address = known.get("vdie"), known.get("serial"), known.get("pci_address")
    serial, address = (serial, place) if is_set(serial) else None, (address, place) if address else None
    return vdie if is_set(vdie) else None, serial, address, known.get("phy_id")


def unshared(items):
    """The evidence of chips without what two of them have in common."""
    counts = [Counter(column) for column in zip(*items)]
    return [tuple(value if count[value] == 1 else None for value, count in zip(item, counts)) for item in items]


def same(one, other):
    """At which strength two chips are the same one (0 is the strongest), None when they are not."""
    for strength, (mine, yours) in enumerate(zip(one, other)):
        if mine is not None and yours is not None:
            return strength if mine == yours else None
    return None


def pair(seen, kept, may=lambda number, place: True):
    """{number: place}: which of the chips seen is which of those kept, the strongest evidence first; both: what is known of chips.

    seen: all chips that are known to be there, so that what two of them share is no evidence. may: whether two can be the same at all.
    """
    seen, kept = (unshared([evidence(known) for known in chips]) for chips in (seen, kept))
    pairs = []
    for number, mine in enumerate(seen):
        for place, yours in enumerate(kept):
            strength = same(mine, yours) if may(number, place) else None
            if strength is not None:
                pairs.append((strength, number, place))
    found: dict = {}
    for _strength, number, place in sorted(pairs):
        if number not in found and place not in found.values():
            found[number] = place
    return found


class Names:
    """The table of names, and its file in `folder` ("": none). backend: says how chips are called."""

    def __init__(self, folder, log, read_only=False, *, backend):
        self.log, self.backend = log, backend
        self.file: Any = NamesFile(folder, log, read_only) if folder else None
        self.entries: list = []
        self.last: Any = None
        if self.file is None:
            log("names of chips are not kept", "warning", cause="`state_dir` is empty: after a renumbering chips get other names")
        self.refresh()

    @property
    def trouble(self):
        """Why names are not kept, though they should be."""
        return self.file.trouble if self.file is not None else ""

    def refresh(self):
        """Take over what the file says, where it has to be read."""
        found = self.file.read() if self.file is not None and self.file.due else None
        if found is None:
            return
        mine = {entry.name: entry for entry in self.entries}
        self.entries, self.last = [], None
        for name, (known, given, slices) in found.items():
            entry = Identity(name, known, given, slices)
            if name in mine and same(evidence(mine[name].known), evidence(known)) is not None:
                entry.key = mine[name].key  # the same chip: what is remembered of its health stays
            elif name in mine:
                entry.given = mine[name].given or given  # another one had this name, and pods may have got that one
            self.entries.append(entry)

    def save(self):
        """Have the file say what is known now, soon."""
        if self.file is not None:
            self.file.save(render([(entry.name, entry.known, entry.given, entry.slices) for entry in self.entries]))

    def stand_by(self, idle):
        if self.file is not None:
            self.file.stand_by(idle)

    def close(self):
        if self.file is not None:
            self.file.close()

    # --- names

    def assign(self, records, complete):
        """[Identity], one for each record, in its order; no name is there twice.

        records: dicts with KNOWN and what the backend goes by. complete: a chip that is not among them is not there, so its name may be
        taken over.
        """
        self.refresh()
        found = [
            {**{key: record.get(key) for key in KNOWN}, "prefix": self.backend.prefix(record), "natural": self.backend.natural(record)}
            for record in records
        ]
        if self.last is None or self.last[0] != found:
            self.last = found, self.settle(found, complete)
        return self.last[1]

    def settle(self, found, complete):
        identities = self.recognise(found)
        present = {identity.name for identity in identities if identity is not None}
        new = [number for number, identity in enumerate(identities) if identity is None]
        # Who gets its natural name comes first, so that nobody else gets it as the lowest free one.
        for number in sorted(new, key=lambda number: (self.taken(found[number]["natural"], present, complete), rank(found[number]))):
            name = found[number]["natural"]
            if self.taken(name, present, complete):
                name = self.lowest(found[number]["prefix"])
            before = next((entry for entry in self.entries if entry.name == name), None)
            identities[number] = Identity(name, bare(found[number]))
            if before is not None:
                self.log("name taken over", id=name, before=before.known, now=bare(found[number]))
                self.entries.remove(before)
                identities[number].given = before.given  # pods know names, not hardware
            self.entries.append(identities[number])
        self.learn(identities, found)
        return identities

    def recognise(self, found):
        """For each record the entry that is the same chip, or None."""
        paired = pair(found, [entry.known for entry in self.entries],
                      lambda number, place: self.entries[place].name.startswith(found[number]["prefix"]))
        return [self.entries[paired[number]] if number in paired else None for number in range(len(found))]

    def taken(self, name, present, complete):
        return name is None or name in present or (not complete and any(entry.name == name for entry in self.entries))

    def lowest(self, prefix):
        names = {entry.name for entry in self.entries}
        return next(name for name in (f"{prefix}{number}" for number in range(len(names) + 1)) if name not in names)

    def learn(self, identities, found):
        """Note what is known now; a place belongs to the chip that was seen there last."""
        for identity, record in zip(identities, found):
            for key in KNOWN:
                if record[key] is not None:
                    identity.known[key] = record[key]
        places = [evidence(identity.known)[2:] for identity in identities]
        for entry in self.entries:
            if entry not in identities:
                _vdie, _serial, address, phy_id = evidence(entry.known)
                if address in [place[0] for place in places]:
                    entry.known["pci_address"] = None
                if phy_id in [place[1] for place in places]:
                    entry.known["phy_id"] = None
        self.entries = [entry for entry in self.entries if entry.given or any(item is not None for item in evidence(entry.known))]


def rank(found):
    """The order in which new chips get their names."""
    return found["phy_id"] or 0, found["vdie"] or ""


def bare(found):
    return {key: found[key] for key in KNOWN}
