# SPDX-License-Identifier: GPL-3.0-or-later
"""All chips of this node: who they are, whether they may take work, and under which resource kubelet hears of them."""

from collections import namedtuple

from . import backends, health, units
from .board import Board
from .chip import Chip
from .claims import Claims, Offer
from .degraded import memory_pressure
from .health_file import HealthFile
from .identity import Names

PRESSURE_SECONDS = 10.0
Seen = namedtuple("Seen", "identity record gone")


class Node:
    """`boards` has one Board per resource; a resource that was there once stays, with an empty list if need be.

    next_review: monotonic time at which time alone may change a verdict, or None. read_only: names are looked up, not kept.
    """

    def __init__(self, settings, log, encode, levels, read_only=False):
        self.settings, self.log, self.encode = settings, log, encode
        self.backend = backends.of(settings)
        self.health = health.Health(settings, levels)
        self.names = Names(settings.state_dir, log, read_only, backend=self.backend)
        self.kept = HealthFile(settings.state_dir, log, read_only)
        self.boards = {}
        self.present = None  # None: not looked yet
        self.problems, self.looked = [], []
        self.sight = None  # the newest one
        self.next_review = None
        self.silent = ""  # why nothing is known of the chips any more
        self.seen = {}  # name: Seen, of all chips since the start but those that lost their name
        self.short, self.short_at = {}, None  # {NUMA node: text} of those that are short of memory, and when that was looked at
        self.chosen = None  # the resource of the family that has `resource_name`: the only kind that there was at first
        self.claims = Claims(self.backend.ids(settings), self.backend.distinct)
        self.forms: dict = {}  # {name of a chip: ["id of resource"]}: how it is offered now
        self.warned: set = set()  # families whose shares were spoken about

    def update(self, sight, now):
        """Take what look.py saw. The names of the resources whose list changed."""
        self.present, self.sight, self.silent = sight.present, sight, ""
        self.take(sight, now)
        return self.judge(now, sight.events)

    def silence(self, reason, now):
        """Until the next update no chip may take work. Judges nothing: judging may be what fails. The resources whose list changed."""
        self.silent, chips = reason, {}
        for resource, board in self.boards.items():
            chips[resource] = {name: chip._replace(healthy=False, reason=reason) for name, chip in board.chips.items()}
        return self.publish(chips, [], now)

    def stand_by(self, idle, now):
        """Another agent serves this node, or (not `idle`) it has ended, and the chips have the names that it has left."""
        self.names.stand_by(idle)
        self.kept.stand_by(idle)
        if not idle and self.sight is not None:
            self.take(self.sight, now)
            self.judge(now, ())

    def review(self, now):
        """Judge again by what was seen last: time has passed."""
        return self.judge(now, ())

    def hold(self, held, now, *, asked, sure):
        """What kubelet told of who has which chip, see Claims.take(). The names of the resources whose list changed."""
        self.claims.take(held, asked, sure)
        return self.judge(now, ())

    def reload(self, settings, levels):
        """The next update or review goes by other settings. What is remembered of the chips stays."""
        self.settings = settings
        self.health = health.Health(settings, levels, self.health.memory)

    def take(self, sight, now):
        self.looked = list(sight.problems)
        records, numbers = [], set()
        for record in sight.chips:
            if record["phy_id"] is not None and record["phy_id"] in numbers:
                # Two devices with one id make kubelet count one chip twice (measured); the first one keeps it.
                self.looked.append(f"{record.get('pci_address')} has the physical id {record['phy_id']} of another chip and is left out")
                continue
            numbers.add(record["phy_id"])
            records.append(record)
        before, self.seen = self.seen, {}
        known = {seen.identity.key: seen.record for seen in before.values()}
        for identity, record in zip(self.names.assign(records, sight.complete), records):
            last = known.pop(identity.key, {})
            self.seen[identity.name] = Seen(identity, dict(record, **slices_of(record, last, identity)), False)
        self.recall(now)
        entries = {entry.key: entry for entry in self.names.entries}
        places = {place_of(record) for record in records}
        for name, old in before.items():
            key = old.identity.key
            if key not in known:
                continue
            # A chip that was there stays in the capacity, so that its loss is seen, until another one has its name, until it turns out to
            # be one that has a name already, or until another one has its place and no pod has its name.
            if key not in entries or (sight.complete and place_of(old.record) in places and entries[key].given is None):
                self.names.entries = [entry for entry in self.names.entries if entry.key != key]
                self.health.memory.pop(key, None)
            else:
                gone = old.gone or sight.complete or old.record["phy_id"] in numbers
                why = None if gone else "; ".join(sight.problems) or "it was not seen"
                self.seen[name] = Seen(entries[key], missing(old.record, gone, why), gone)

    def recall(self, now):
        """Go on with what was kept of the health of chips that are seen now."""
        entries, seen = self.names.entries, {seen.identity.key for seen in self.seen.values()}
        wanted = {number for number, entry in enumerate(entries) if entry.key in seen}
        for number, separated, flap in self.kept.recall([entry.known for entry in entries], wanted):
            self.health.recall(entries[number].key, separated, flap, now)

    def judge(self, now, events):
        self.problems, reviews = [*self.looked, *filter(None, [self.names.trouble])], []
        if self.short_at is None or now - self.short_at >= PRESSURE_SECONDS:
            self.short = memory_pressure(self.settings.sysfs_root, self.settings.degraded_memory, self.short)
            self.short_at = now
        resources = self.resources()
        lists = {resource: {} for resource in self.boards}
        offers = []
        for identity, record, gone in self.seen.values():
            mine = [event for event in events if event["phy_id"] == record["phy_id"] and not gone]
            pressure = [text for node, text in self.short.items() if node == record.get("numa_node")]
            verdict = self.health.judge(identity.key, record, mine, now, pressure)
            if verdict.review is not None:
                reviews.append(verdict.review)
            chip = Chip(
                identity.name, record["phy_id"], record["family"], record.get("pci_address"), record.get("numa_node"),
                record.get("card_id"), record.get("device_node"), None, verdict.healthy, verdict.reason, verdict.rank,
                tuple(verdict.degraded), gone, record.get("logic_id"), record.get("node_trouble") or "", tuple(record.get("places") or ()),
            )
            if record["family"] not in resources:
                continue
            self.warn(record["family"])
            base = resources[record["family"]]
            offered, problems = units.forms(chip, record, base, self.settings)
            self.problems += problems
            offers += [Offer(identity, resource, base, form) for resource, form in offered]
        bars = self.claims.judge(self.names.entries, offers, self.settings.shares, now)
        self.problems += filter(None, [self.claims.waiting and self.claims.trouble])
        self.forms.clear()
        for identity, resource, _base, form in offers:
            lists.setdefault(resource, {})[form.id] = units.withheld(form, self.silent or bars.get((resource, form.id), ""))
            self.forms.setdefault(identity.name, []).append(f"{form.id} of {resource}")
        self.names.save()
        self.kept.save([(seen.identity.known, self.health.lasting(seen.identity.key)) for seen in self.seen.values()])
        return self.publish(lists, reviews, now)

    def publish(self, lists, reviews, now):
        """lists: {resource: {id: Chip}}. reviews: monotonic times. The resources whose list changed."""
        changed = {resource for resource, chips in lists.items() if self.board(resource).publish(chips, self.settings.shares, now)}
        self.next_review = min([*reviews, *(board.due for board in self.boards.values() if board.due is not None)], default=None)
        return changed

    def warn(self, family):
        """Say once what `shares` needs on chips of this family."""
        if self.settings.shares > 1 and family not in self.warned:
            self.warned.add(family)
            needs = self.backend.sharing(family)
            if needs:
                self.log("shares", "warning", cause=f"`shares` is {self.settings.shares}: {needs}")

    def board(self, resource):
        if resource not in self.boards:
            self.boards[resource] = Board(resource, self.log, self.encode, self.forms)
        return self.boards[resource]

    def resources(self):
        """{family: resource} of the families that are served. A chip belongs to one resource, and a resource has one kind of chip."""
        kinds: dict = {seen.record["family"]: self.backend.resource(seen.record) for seen in self.seen.values()}
        wanted = self.settings.resource_name
        if not wanted:
            return kinds
        if self.chosen is None and len(set(kinds.values())) == 1:
            self.chosen = min(kinds.values())
        served = {family: wanted for family, kind in kinds.items() if kind == self.chosen}
        if len(served) < len(kinds):
            others = ", ".join(sorted(set(kinds) - set(served)))
            now = f"none of {others} has it"
            if served:
                now = f"{', '.join(sorted(served))} has it until npu-agent starts anew, but not {others}"
            self.problems.append(f"`resource_name` is {wanted}, but this node has several kinds of chips, and a pod must know what it "
                                 f"gets: {now}; set `family` to the one to serve, or leave `resource_name` empty")
        return served


def place_of(record):
    """Where a chip sits; a value of its own where that is not known."""
    return (record["pci_address"], record.get("device_id") or 0) if record.get("pci_address") else id(record)


def slices_of(record, last, identity):
    """The slices of a chip: as told now, or else to this process, or else to one before; None where they never were."""
    slices = record.get("slices")
    if slices is not None:
        identity.slices = slices
    elif last.get("slices_told"):
        slices = last["slices"]
    told = slices is not None
    return {"slices": slices if told else identity.slices, "slices_told": told}


def missing(record, gone, why):
    """The record of a chip that was not seen this time."""
    unknown = dict.fromkeys((
        "driver_bound", "device_node_present", "node_trouble", "health_code", "error_codes", "hung", "telemetry", "probe", "unfit"))
    return {**record, **unknown, "dropped": gone, "error": why}
