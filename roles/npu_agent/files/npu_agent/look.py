# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at the Ascend chips of this node: what the detector knows of them, and how they are, asked anew each time."""

import os
import time
from typing import Any

from . import backends, nodes
from ._hardware._dcmi_client import DcmiError, find_library
from ._hardware._detect import detect
from ._hardware._query import QueryError
from .backends.base import Sight, blind
from .captives import Left
from .driver import EVENT_SECONDS, SLOW, Answer, Driver
from .signals import Watch

DETECT_SECONDS = 60.0  # names, addresses and serial numbers come from slow places of the board and hardly change
MORE_SECONDS = 30.0  # the same of temperatures, ECC counters, virtual devices
SURE_SECONDS = 5.0  # a virtual device that is just being made may have a node before the driver tells of it
LOST_SECONDS = 60.0
LOST = "more fault events came at once than could be kept: what they told is known from asking the driver only"
HANGS = "the driver does not come back from a query for this chip"
NOTHING = Answer({}, {}, {}, {})
IDENTITY = ("phy_id", "logic_id", "card_id", "device_id", "name", "family", "pci_address", "numa_node", "serial", "vdie")


class Told:
    """What the driver has told already, for the detector, which would ask a client."""

    def __init__(self, **answers):
        self.answers = answers

    def call(self, command, _timeout):
        return self.answers[command]


class Looker:
    """`look` again and again; `wait` between. tell: gets a Sight at once when something happens, also during a look that takes long.

    meanwhile: called whenever something may have happened; it may raise to end a look.
    """

    def __init__(self, settings, watch=None, *, signals=None, tell=None, meanwhile=lambda: None, clock=time.monotonic):
        self.settings, self.clock = settings, clock
        self.watch, self.signals, self.tell, self.halt = watch or Watch(), signals, tell, meanwhile
        self.driver: Any = None
        self.captives: list = []  # of the image before, see captives.py
        self.found: Any = None  # what the detector found; None: the driver could not be asked
        self.shown: list = []  # what it found of the chips of the newest sight
        self.found_at, self.starts = 0.0, 0
        self.unknown: set = set()  # places of chips that were too slow to say who they are
        self.identities: dict = {}  # place: what DCMI told last of who the chip is
        self.states, self.conditions, self.slices = NOTHING, {}, {}
        self.condition_due, self.slices_due = None, float("-inf")  # the condition comes with the second look
        self.slices_changes = 0  # of device nodes, as above, when virtual devices were asked for
        self.slice_nodes: dict = {}  # N of /dev/vdavinciN: when it was seen first
        self.foreign: dict = {}  # place: such N that the chip was asked about, so that they are none of its
        self.changes = self.identified = 0  # of device nodes and PCI functions: told of, and taken into account
        self.lost_until = float("-inf")  # so long it is told that fault events were left out
        self.told_at = float("-inf")  # when a sight was told between looks
        self.news = False  # something happened that should be looked at soon

    def close(self):
        if self.driver is not None:
            self.driver.close()

    # --- one look

    def look(self):
        """One look. Takes at most a few times query_timeout and never raises for what the node is like."""
        self.news = False
        try:
            return self.seen()
        except DcmiError as error:
            self.found = None
            found = self.detect(missing=[QueryError("dcmi", error.code, error.message)])
            nobody = error.code == "dcmi_library_missing" and self.driver is None  # what a driver has told once is not forgotten
            if nobody and self.settings.dcmi == "optional" and found["device_nodes"]:
                return unasked(found, self.settings)
            return self.unanswered(unusable(found, self.settings))

    def unanswered(self, sight):
        """The same, with the chips of the sight before: where a driver that cannot be asked has left no node, that is known for certain."""
        events = self.events(self.shown)
        if sight.present is None and not self.shown and not backends.known(self.settings):
            return Sight(False, [], [], True)  # where nobody has ever seen one, a library that was left behind is no NPU
        if sight.complete or not self.shown:
            return sight
        chips = [self.record(known, {"error": "; ".join(sight.problems)}) for known in self.shown]
        judge_nodes(chips, self.settings.dev_root)
        return sight._replace(present=True, chips=chips, events=events)

    def open(self):
        """Have a driver, by the library that is there now: another version of it may lie elsewhere. A worker goes on without its file."""
        if self.driver is not None and os.path.exists(self.driver.library):
            return
        library = self.settings.dcmi_library or find_library(self.settings.install_path)
        there = os.path.exists(library)
        if self.driver is None and not there:
            raise DcmiError(f"there is no {library}", "dcmi_library_missing")
        if self.driver is None:
            self.driver = Driver(library, self.settings, self.watch, clock=self.clock, meanwhile=self.meanwhile)
            for one in self.captives:
                self.driver.inherit(one["place"], Left(one["pid"]), one["since"])
                self.identities.update({place(chip): chip for chip in one["chips"]})
        elif there:
            self.driver.use(library)

    def seen(self):
        self.open()
        found = self.identify() if self.outdated() else self.found
        states = self.driver.ask("health")
        known = {place(chip) for chip in found["chips"] if chip["card_id"] is not None}
        there = {where for where in {**states.records, **states.hung, **states.errors} if where[1] is not None}
        cards = {where[0] for where in {**states.hung, **states.errors} if where[1] is None}
        if {where for where in known ^ there if where[0] not in cards}:
            # Other chips than before. Who is there now is asked at once: one may have come, or left its place to another.
            found = self.identify()
            states = self.driver.ask("health")
        self.keep_slow(states)
        self.found, self.states = found, states  # together: sights between are of either the old or the new chips
        self.more()
        return self.sight()

    def keep_slow(self, states):
        """A chip that has not answered yet, and has time left, is as it was; how old that is, `asked_at` tells."""
        for where in [where for where, text in states.errors.items() if text == SLOW]:
            before = [chip for chip in self.states.records if where in (chip, (chip[0], None))]
            if before:
                del states.errors[where]
            for chip in before:
                states.records[chip], states.asked[chip] = self.states.records[chip], self.states.asked[chip]

    def outdated(self):
        changed = self.signals is not None and self.signals.count != self.identified
        known = self.unknown and not self.unknown.intersection(self.driver.slow())
        return changed or known or self.found is None or self.driver.starts != self.starts or self.clock() - self.found_at > DETECT_SECONDS

    def identify(self):
        """Who the chips are. Ids come first: they are known then even where the rest hangs."""
        self.identified = self.signals.count if self.signals is not None else 0
        listed, answer = self.driver.ask("list"), self.driver.ask("chips")
        for where, record in answer.records.items():
            known = self.identities.get(where, {}) if record["error"] else {}
            # What could not be read this time is what it was: a chip must not lose its name because the board is slow.
            self.identities[where] = {key: known.get(key) if value is None else value for key, value in record.items()}
        silent = [where for where in {**listed.records, **answer.hung, **answer.errors} if where not in answer.records]
        cards = [where[0] for where in silent if where[1] is None]
        silent += [where for where in self.identities if where[0] in cards and where[1] is not None and where not in silent]
        chips = [self.identities[where] for where in answer.records]
        for where in [where for where in silent if where[1] is not None]:
            chips.append({**blank(where), **self.identities.get(where, {}), **listed.records.get(where, {}), "error": None})
        found = self.detect(Told(open=self.driver.version, chips=chips, health=[]))
        found["chips"] = settle(found)
        self.found_at, self.starts = self.clock(), self.driver.starts
        # Who is slow is asked again when it is not so any more.
        self.unknown = {where for where, text in {**listed.errors, **answer.errors}.items() if text == SLOW}
        return found

    def detect(self, dcmi=None, missing=()):
        settings = self.settings
        return detect(None, settings.sysfs_root, settings.dev_root, dcmi=dcmi, timeout=settings.query_timeout,
                      install_path=settings.install_path, missing=missing)

    def more(self):
        """What is asked more seldom. Virtual devices decide what is registered, so they come with the first look."""
        now, changes = self.clock(), self.signals.count if self.signals is not None else 0
        if now >= self.slices_due or changes != self.slices_changes:
            self.slices_changes, there = changes, self.see_slices(now)
            old = {number for number in there if now - self.slice_nodes[number] >= SURE_SECONDS}
            answered = self.driver.ask("slices").records
            for where, told in answered.items():
                if told["slices"] is not None:
                    self.slices[where], self.foreign[where] = told, old
                else:  # what was known last
                    self.slices.setdefault(where, told)
            unexplained = any(self.unexplained(where) for where in answered)
            self.slices_due = now + (SURE_SECONDS if unexplained else MORE_SECONDS)
        if self.condition_due is None:
            self.condition_due = now
        elif now >= self.condition_due:
            answer = self.driver.ask("condition")
            slow = {where: self.conditions[where] for where, text in answer.errors.items() if text == SLOW and where in self.conditions}
            self.conditions = {**slow, **answer.records}
            self.condition_due = now + MORE_SECONDS

    def see_slices(self, now):
        """The N of /dev/vdavinciN that are there."""
        there = nodes.slice_nodes(self.settings.dev_root)
        self.slice_nodes = {number: self.slice_nodes.get(number, now) for number in there}
        for where in self.foreign:
            self.foreign[where] = self.foreign[where] & there
        return there

    def unexplained(self, where):
        """Nodes of virtual devices that no chip is known to have and that may be this one's."""
        known = {one["vdev_id"] for told in self.slices.values() for one in told["slices"] or ()}
        return sorted(set(self.slice_nodes) - known - self.foreign.get(where, set()))

    def sight(self):
        """What is known now."""
        self.see_slices(self.clock())
        events = self.events(self.found["chips"])
        hung, excuses = self.driver.hung(), {where: {"error": text} for where, text in self.states.errors.items()}
        excuses.update({where: {"hung": seconds, "error": HANGS} for where, seconds in hung.items()})
        chips, problems, silent = [], [error["message"] for error in self.found["query"]["errors"]], []
        complete, numbers, unused = self.found["query"]["ok"], {}, set(excuses)
        self.shown = []
        told = {record["pci_address"] for record in self.identities.values() if record["pci_address"]}
        for known in self.found["chips"]:
            where = place(known)
            name = f"the NPU {known['pci_address'] or known['card_id'] is not None and where or 'of unknown address'}"
            matching = [key for key in (where, (where[0], None)) if key in excuses]
            unused -= set(matching)
            excuse = excuses[matching[0]] if matching else None
            if known["card_id"] is None and known["pci_address"] in told:
                continue  # the driver told of it and does not now: gone, for whoever remembers it
            if known["card_id"] is None:
                silent.append(f"{name} is left out: the driver does not know it")
            elif known["phy_id"] is None or known["family"] is None:
                nameless = not known["name"] or known["family"] is not None
                error = known["error"] or {"message": "the driver does not tell its number or name" if nameless
                                           else f"its name, {known['name']}, is of no family that is known"}
                problems.append(f"{name} is left out: {excuse['error'] if excuse else error['message']}")
                complete = complete and not excuse
            elif self.settings.family not in ("auto", known["family"]) or (where not in self.states.records and not excuse):
                continue  # of no interest, or gone since the detection
            elif known["phy_id"] in numbers:
                problems.append(f"{name} has the physical id {known['phy_id']} of {numbers[known['phy_id']]} and is left out")
            else:
                numbers[known["phy_id"]] = name
                chips.append(self.record(known, excuse))
                self.shown.append(known)
        problems += [] if unused else silent  # they may be of the cards that follow
        problems += [LOST] if self.clock() < self.lost_until else []
        problems += [f"card {where[0]} is left out: {excuses[where]['error']}" for where in sorted(unused, key=str)]
        judge_nodes(chips, self.settings.dev_root)
        return Sight(self.found["present"], chips, problems, complete and not unused, events)

    def record(self, known, excuse):
        """One chip, as health and units take it; None stands for what nobody knows. device_node is a path, slices are virtual devices,
        strange_slices N of /dev/vdavinciN that may be its without the driver having told so, hung is in seconds, asked_at the monotonic
        time at which the driver was asked for its health. judge_nodes() adds node_trouble."""
        where, settings = place(known), self.settings
        state = {} if excuse else self.states.records[where]
        told = self.slices.get(where) or {"slices": None, "aicore_count": None}
        condition = self.conditions.get(where)
        node = f"{settings.dev_root}/davinci{known['phy_id']}"
        function = f"{settings.sysfs_root}/bus/pci/devices/{known['pci_address']}"
        record = {key: known.get(key) for key in IDENTITY}
        record.update(
            aicore_count=told["aicore_count"] or float(self.identities.get(where, {}).get("aicore_count") or 0) or None,
            driver_bound=os.path.exists(f"{function}/driver") if known["evidence"]["pci"] and known["pci_address"] else None,
            device_node=node, device_node_present=os.path.exists(node),
            health_code=state.get("health_code"), error_codes=state.get("error_codes"), dropped=state.get("dropped", False),
            error=state["error"]["message"] if state.get("error") else None, hung=None, unasked=False,
            asked_at=self.states.asked.get(where),
            telemetry={key: condition[key] for key in ("temperature_c", "temperature_limit_c", "ecc")} if condition else None,
            slices=told["slices"], strange_slices=self.unexplained(where),
        )
        record.update(excuse or {})
        return record

    def events(self, chips):
        """Fault events since the last time, by the physical ids that kubelet's names are made of. chips: as the detector found them."""
        if self.driver is None:
            return []
        if self.driver.lost:
            self.driver.lost, self.lost_until = False, self.clock() + LOST_SECONDS
        numbers = {chip["logic_id"]: chip["phy_id"] for chip in chips if chip["logic_id"] is not None}
        taken = [event for event in self.driver.take_events() if event["logic_id"] in numbers]
        keys = ("code", "assertion", "severity", "at")
        return [{"phy_id": numbers[event["logic_id"]], **{key: event[key] for key in keys}} for event in taken]

    # --- whenever something happens

    def meanwhile(self):
        """Tell what is known without asking the driver, which may take long: fault events, hangs, device nodes, bound drivers."""
        self.halt()
        changes, events, hang, back = self.signals.count if self.signals is not None else 0, False, False, False
        if self.driver is not None:
            events, hang, back = bool(self.driver.events), self.driver.new_hang, self.driver.back
            self.driver.new_hang = self.driver.back = False
        changed, self.changes = changes != self.changes, changes
        self.news = self.news or changed or events or back
        now = self.clock()
        if events and not (changed or hang) and now < self.told_at + EVENT_SECONDS:
            return  # a storm: Driver.wait() sees to it that they are not forgotten
        if (changed or events or hang) and self.found is not None and self.tell is not None:
            self.told_at = now
            self.tell(self.sight())

    def wait(self, seconds):
        """Until something happens, at most so long."""
        if self.driver is not None:
            self.driver.wait(seconds)
        else:
            self.watch.wait(seconds)
            self.meanwhile()


def blank(where):
    keys = ("logic_id", "phy_id", "pci_address", "name", "serial", "vdie", "product_name", "aicore_count")
    return {**dict.fromkeys(keys), "card_id": where[0], "device_id": where[1]}


def place(record):
    return record["card_id"], record["device_id"]


def settle(found):
    """The chips, with what follows for certain where one of them did not tell: all others are known."""
    chips = [dict(chip) for chip in found["chips"]]
    families = {chip["family"] for chip in chips if chip["family"]}
    numbers = {chip["device_node"] for chip in chips}
    nodes = [node for node in found["device_nodes"] if node not in numbers]
    nameless = [chip for chip in chips if chip["card_id"] is not None and chip["phy_id"] is None]
    strangers = [chip for chip in chips if chip["card_id"] is None]  # whose node it may be as well
    if len(nodes) == len(nameless) == 1 and not strangers:
        nameless[0].update(device_node=nodes[0], phy_id=int(os.path.basename(nodes[0])[len("davinci"):]))
    if len(families) == 1 and not found["unknown"]:
        for chip in chips:
            chip["family"] = chip["family"] or min(families)
    return chips


def unusable(found, settings):
    """A node without an NPU, or one whose driver cannot be asked: two very different things."""
    error = (found["query"]["error"] or {}).get("message", "")
    if not found["present"] and not found["device_nodes"]:
        unseen = blind(settings)
        if error and not unseen:
            # A board without PCI looks like this when its driver is dead, and a server without NPU where somebody has left the library.
            return Sight(None, [], [f"no NPU is on PCI or has a device node; there is a driver's library, but it refuses: {error}"], False)
        return Sight(bool(unseen), [], unseen, not unseen)
    where = ", ".join(chip["pci_address"] or "?" for chip in found["chips"])
    seen = f"{len(found['chips'])} NPUs on PCI ({where})" if where else "device nodes of an NPU"
    driver = "the chips cannot be asked" if found["driver"]["loaded"] else "the driver is not loaded"
    return Sight(True, [], [f"this node has {seen}, but {driver}: {error or 'nobody to ask'}"], False)


def unasked(found, settings):
    """Without a DCMI library: a chip for each device node, and of it only what the PCI functions tell for certain."""
    paths = {int(os.path.basename(path)[len("davinci"):]): path for path in found["device_nodes"]}
    functions, families = found["chips"], {function["family"] for function in found["chips"]}
    if settings.family != "auto" and (not families or families == {settings.family}):
        families = {settings.family}
    if len(families) != 1 or None in families:
        kinds = ", ".join(sorted(family or "unknown" for family in families)) or "no NPU"
        return Sight(True, [], [f"nobody tells what the chips of {', '.join(paths.values())} are: there is no DCMI library, and PCI shows "
                                f"{kinds}; install the driver's libraries, or set `family`"], False)
    only = functions[0] if len(functions) == len(paths) == 1 else {}
    bound = {bool(function["evidence"]["driver"]) for function in functions}
    chips = []
    for phy_id, path in sorted(paths.items()):
        chip = dict.fromkeys((*IDENTITY, "aicore_count", "health_code", "error_codes", "error", "hung", "telemetry", "asked_at"))
        chip.update(
            phy_id=phy_id, family=min(families), pci_address=only.get("pci_address"), numa_node=only.get("numa_node"),
            driver_bound=min(bound) if len(bound) == 1 else None, device_node=path, device_node_present=os.path.exists(path),
            dropped=False, unasked=True, slices=None if nodes.slice_nodes(settings.dev_root) else [], strange_slices=[],
        )
        chips.append(chip)
    judge_nodes(chips, settings.dev_root)
    return Sight(True, chips, [], True)


def judge_nodes(chips, dev_root):
    """Add to each record why its device nodes are no good, "" where they are."""
    for chip, trouble in zip(chips, nodes.troubles(chips, dev_root)):
        chip["node_trouble"] = trouble
