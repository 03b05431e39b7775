# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of chips that last: kubelet knows a chip by its name, and the driver may number the chips anew at the next start.

A chip is known again by the strongest evidence that was seen of it then and is seen now: the id of its die; the serial number of its card
with its place on the card (the chips of a Duo have one serial number); its PCI address with that place; its physical id. What is stronger
and differs makes it another chip: a new card in an old slot. Evidence that two chips share, now or in the table, says nothing, nor does
what makers leave in where nobody has set it.

The first name of a chip is the vendor's, with its physical id. It keeps that name when its physical id changes. A new chip takes over its
natural name from a chip that is not there any more; where that name is in use, it gets the lowest number that no name has.
"""

import json
import os
import re
import threading
from collections import Counter
from typing import Any

from ._hardware._families import FAMILIES, device_id
from .files import replace
from .log import Once

FILE = "names.json"
SCHEMA = 1
LIMIT = 1 << 20  # bytes; 1,024 chips need a fifth of it
KNOWN = ("vdie", "serial", "device_id", "pci_address", "phy_id")
NAME = re.compile(r"[A-Za-z0-9]{1,32}-(0|[1-9][0-9]{0,5})")
# Serial numbers and die ids that were never set.
UNSET = re.compile(r"[0\W_]*|[F\W_]*|N/?A|NONE|NULL|UNKNOWN|DEFAULT( STRING)?|NOT (SPECIFIED|AVAILABLE)|TO BE FILLED BY O\.?E\.?M\.?")


class Identity:
    """One chip: its name, what is known of it, and a key that no other chip has while this process lives."""

    count = 0

    def __init__(self, name, known):
        Identity.count += 1
        self.key = f"{name}/{Identity.count}"
        self.name, self.known = name, known

    def __repr__(self):
        return f"Identity({self.key}, {self.known})"


def evidence(known):
    """What tells a chip from others, the strongest first; None where it is not known."""
    place = known.get("device_id") or 0
    vdie, serial, address = known.get("vdie"), known.get("serial"), known.get("pci_address")
    serial, address = (serial, place) if is_set(serial) else None, (address, place) if address else None
    return vdie if is_set(vdie) else None, serial, address, known.get("phy_id")


def is_set(text):
    return bool(text) and not UNSET.fullmatch(text.strip().upper())


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


class Names:
    """The table of names, and its file in `folder` ("": none)."""

    def __init__(self, folder, log):
        self.path: Any = os.path.join(folder, FILE) if folder else None  # None: nothing is kept
        self.log, self.say = log, Once(log)
        self.entries: list = []
        self.last: Any = None
        self.kept, self.writer = "", None
        if self.path is None:
            log("names of chips are not kept", "warning", cause="`state_dir` is empty: after a renumbering chips get other names")
        else:
            self.load()

    # --- names

    def assign(self, records, complete):
        """[Identity], one for each record, in its order; no name is there twice.

        records: dicts with KNOWN and `family`. complete: a chip that is not among them is not there, so its name may be taken over.
        """
        found = [{**{key: record.get(key) for key in KNOWN}, "prefix": FAMILIES[record["family"]]["device_prefix"]} for record in records]
        if self.last is None or self.last[0] != found:
            self.last = found, self.settle(found, [record["family"] for record in records], complete)
        self.save()
        return self.last[1]

    def settle(self, found, families, complete):
        identities = self.recognise(found)
        present = {identity.name for identity in identities if identity is not None}
        new = [number for number, identity in enumerate(identities) if identity is None]
        natural = {number: device_id(families[number], found[number]["phy_id"]) for number in new}
        # Who gets its natural name comes first, so that nobody else gets it as the lowest free one.
        for number in sorted(new, key=lambda number: (self.taken(natural[number], present, complete), found[number]["phy_id"])):
            name = natural[number]
            if self.taken(name, present, complete):
                name = self.lowest(found[number]["prefix"])
            for entry in self.entries:
                if entry.name == name:
                    self.log("name taken over", id=name, before=entry.known, now=bare(found[number]))
            self.entries = [entry for entry in self.entries if entry.name != name]
            identities[number] = Identity(name, bare(found[number]))
            self.entries.append(identities[number])
        self.learn(identities, found)
        return identities

    def recognise(self, found):
        """For each record the entry that is the same chip, or None."""
        seen, stored = (unshared([evidence(known) for known in chips]) for chips in (found, [entry.known for entry in self.entries]))
        pairs = []
        for number, record in enumerate(found):
            for entry, known in zip(self.entries, stored):
                strength = same(seen[number], known) if entry.name.startswith(record["prefix"]) else None
                if strength is not None:
                    pairs.append((strength, number, entry))
        identities: list = [None] * len(found)
        for _strength, number, entry in sorted(pairs, key=lambda pair: pair[:2]):
            if identities[number] is None and entry not in identities:
                identities[number] = entry
        return identities

    def taken(self, name, present, complete):
        return name in present or (not complete and any(entry.name == name for entry in self.entries))

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
        self.entries = [entry for entry in self.entries if any(item is not None for item in evidence(entry.known))]

    # --- the file

    def load(self):
        try:
            with open(self.path, encoding="utf-8") as stream:
                text = stream.read(LIMIT + 1)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, UnicodeDecodeError) as error:
            self.put_aside(str(error))
            return
        try:
            self.entries = parse(text)
            self.kept = text
        except (ValueError, RecursionError) as error:
            self.put_aside(str(error))

    def put_aside(self, cause):
        """Neither trusted nor lost."""
        aside = next(path for path in (f"{self.path}.broken{'' if number == 0 else number}" for number in range(1000))
                     if not os.path.lexists(path))
        try:
            os.rename(self.path, aside)
            self.log("names of chips are started anew", "error", cause=f"{self.path} cannot be used: {cause}; it is now {aside}")
        except OSError as error:
            self.log("names of chips are not kept", "error", cause=f"{self.path} cannot be used: {cause}; nor moved away: {error}")
            self.path = None

    def save(self):
        """Off the caller's thread: a disk that is busy must not hold up the service. What did not come through is tried again."""
        if self.path is None or (self.writer is not None and self.writer.is_alive()):
            return
        text = render(self.entries)
        if text != self.kept:
            self.writer = threading.Thread(target=self.write, args=(text,), name="names", daemon=True)
            self.writer.start()

    def write(self, text):
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            replace(self.path, text, 0o600)
        except OSError as error:
            self.say("names of chips are not kept", "warning", cause=f"{self.path} cannot be written: {error.strerror}; after a "
                     "renumbering chips get other names")
            return
        self.kept = text
        self.say.over()


def bare(found):
    return {key: found[key] for key in KNOWN}


def render(entries):
    names = {entry.name: entry.known for entry in sorted(entries, key=lambda entry: entry.name)}
    return json.dumps({"schema": SCHEMA, "names": names}, indent=1) + "\n"


def parse(text):
    """[Identity] of a file's text. ValueError says what is wrong with it."""
    if len(text) > LIMIT:
        raise ValueError("it is too long")
    top = json.loads(text)
    if not isinstance(top, dict) or top.get("schema") != SCHEMA or not isinstance(top.get("names"), dict):
        raise ValueError(f"it is no table of names with schema {SCHEMA}")
    entries = []
    for name, known in top["names"].items():
        if not NAME.fullmatch(name) or not isinstance(known, dict) or set(known) != set(KNOWN):
            raise ValueError(f"the entry {name[:40]!r} is none of ours")
        for key, value in known.items():
            allowed = int if key in ("device_id", "phy_id") else str
            if value is not None and (not isinstance(value, allowed) or isinstance(value, bool)):
                raise ValueError(f"{key} of {name} is {str(value)[:40]!r}")
        entries.append(Identity(name, known))
    return entries
