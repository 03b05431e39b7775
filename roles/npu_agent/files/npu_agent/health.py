# SPDX-License-Identifier: GPL-3.0-or-later
"""The health rule: which chip may take work. The only place that decides it for pods; its levels are _hardware/_health.py's.

DCMI tells one number per chip (dcmi_get_device_health): 0 no fault, 1 minor, 2 major, 3 critical, 0xFFFFFFFF no such device; npu-smi
prints the same as OK, Warning, Alarm, Critical, UNKNOWN. It lists fault codes beside it, which the vendor has sorted into levels
(faults.py): of these NotHandleFault and SubHealthFault leave a chip in service, and those are what DCMI calls minor; so the default
`unhealthy_from: major` agrees with it.

Kubelet knows two states only: the text Healthy, and any other. judge() says what a chip's record says by itself; Health adds what time
does: a chip that was out of service comes back after `recovery_seconds` without a fault, one that went out `flap_count` times within
`flap_window` stays out until `flap_hold` after its last fault, and while nothing is known of a chip it keeps its state for
`keep_last_state`. A chip that nobody has asked for longer than good_for() is not known any more, whoever should have asked it.
What is remembered is lost when the agent starts anew, and a chip that is well then is taken at its word; but for a chip that flaps and
codes that came too often, see health_file.py.
"""

from collections import namedtuple

from . import degraded, faults
from ._hardware._health import LEVELS
from .health_file import path_in
from .standing import LINK_DOWN, NEVER, Fault, Standing

WORDS = {0: "OK", 1: "minor", 2: "major", 3: "critical"}
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
HUNG_STEPS = (86400, 3600, 600, 60, 30, 10, 5, 1, 0)  # a text that changed with each second would be logged with each look
LOOK_SECONDS = 30.0  # for a look at a node where much is slow: a new process may need 20 s (START_SECONDS of driver.py)
HELD_UP = 5.0  # seconds
UNKNOWN = faults.Levels({})

# healthy: True, False, or None: nothing is known. loss: whether going out of service for this counts as flapping. A driver that was
# unbound, a device node or a CDI specification that is away is somebody's doing or comes with the whole node; the rest is the chip's.
# ask: whether only an answer that the driver was asked for later shows that the fault is over.
Finding = namedtuple("Finding", "healthy reason loss ask", defaults=(True,))
Verdict = namedtuple("Verdict", "healthy reason rank degraded review")
# What outlasts a restart. separated: {code: when it was there last}. flap: None, or (when the last fault was there, which one).
# sign: differs where it has to be kept anew.
Lasting = namedtuple("Lasting", "separated flap sign")


def judge(record, unhealthy_from, levels=UNKNOWN):
    """(True, note), (False, reason), or (None, cause) when nobody told how this chip is. record: see look.py; a key may be missing.

    levels: faults.Levels; without it no code is known, and the DCMI number decides.
    """
    codes = {code: Fault(levels.of(code)) for code in record.get("error_codes") or ()}
    finding = find(record, codes, unhealthy_from)
    return finding.healthy, finding.reason


def find(record, codes, unhealthy_from):
    """The Finding of one look; codes: {code: Fault} of all that stand, polled or told by an event."""
    if record.get("driver_bound") is False:
        return Finding(False, record.get("node_trouble") or "no driver is bound to its PCI function", False)
    if record.get("device_node_present") is False:
        return Finding(False, f"its device node {record.get('device_node') or ''} is missing".replace("  ", " "), False)
    if record.get("node_trouble"):
        return Finding(False, record["node_trouble"], False)
    if record.get("not_described"):
        return Finding(False, record["not_described"], False, ask=False)
    if record.get("dropped"):
        return Finding(False, "the driver says that the chip is gone or not ready", True)
    if record.get("hung") is not None:
        least = next((step for step in HUNG_STEPS if record["hung"] >= step), 0)
        return Finding(False, f"the driver has not come back from a query for more than {least} s", True)
    if record.get("unfit"):
        return Finding(False, record["unfit"], True)
    probe = record.get("probe")
    if probe and not probe["healthy"]:
        return Finding(False, f"the probe says: {probe['text'] or 'unhealthy'}", True, ask=False)
    if any(unfit(fault, unhealthy_from) for fault in codes.values()):
        return Finding(False, fault_text(codes), True)
    return by_number(record, codes, unhealthy_from)


def by_number(record, codes, unhealthy_from):
    """What the DCMI health number says where no code keeps the chip from work."""
    number, polled = record.get("health_code"), record.get("error_codes") or ()
    if number is None:
        if record.get("unasked") and not record.get("error"):
            return Finding(True, "nobody tells its health: no DCMI library", False)
        return Finding(None, record.get("error") or "DCMI told no health", False)
    text = "" if number == 0 and not codes else f"DCMI health {WORDS.get(number, hex(number))}"
    if codes:
        text += f", error codes {', '.join(sorted(codes))}"
    if number not in WORDS:
        return Finding(False, text, True)
    # The number is the worst of what the listed codes stand for, so they say it better where all are known. A code that only an event told
    # explains no number: that is of another time.
    explained = bool(polled) and all(fault.level for fault in codes.values())
    return Finding(explained or number < LEVELS[unhealthy_from], text, True)


def unfit(fault, unhealthy_from):
    """Whether a chip with this fault may not take work. Of an unknown code an event still tells the severity, on DCMI's scale."""
    if fault.level is not None:
        return fault.level not in faults.HEALTHY
    return fault.severity is not None and fault.severity >= LEVELS[unhealthy_from]


def fault_text(codes):
    """The worst code, its level and what that means; how many others there are, since a list of 128 helps nobody."""
    worst = sorted(codes, key=lambda code: (-severity(codes[code]), code))
    first = codes[worst[0]]
    known = f"{first.level}, {faults.MEANING[first.level]}" if first.level else f"{WORDS.get(first.severity, 'severe')}, not a known one"
    others = f"; also {', '.join(worst[1:4])}" if worst[1:] else ""
    more = f" and {len(worst) - 4} more" if len(worst) > 4 else ""
    return f"fault code {worst[0]}: {known}{first.often}{others}{more}"


def severity(fault):
    """Where a fault stands among others: by its level; unknown ones above those that leave the chip in service, below the rest."""
    return faults.rank(fault.level) if fault.level else 1.5 if fault.severity else -1


def good_for(settings):
    """Seconds after which an answer of the driver is too old to go by. While looks take place it does not come to that: one is due each
    poll_seconds, a chip that does not answer is told of within two query_timeout, and keep_last_state covers a driver that is away."""
    return settings.poll_seconds + 2 * settings.query_timeout + max(settings.keep_last_state, LOOK_SECONDS)


class Past:
    """What is remembered of one chip. Times are monotonic; None: there was none."""

    def __init__(self):
        self.standing, self.signs = Standing(), degraded.Signs()
        self.told = None  # whether kubelet was told Healthy; None: it was told nothing yet
        self.reason = ""  # the last one
        self.known_at = None  # when something was known last
        self.fault_at, self.fault = None, ""  # the last fault: when it was there last, and which
        self.fault_asked = NEVER  # when the answer was asked for that was the newest then
        self.answered, self.good_until = NEVER, NEVER  # when the newest answer came, and is too old by the settings of that time
        self.well_since = None  # since when the chip has been without a fault on end
        self.losses = []  # when it went out of service
        self.flapping = False


class Health:
    """One for all chips of a node. memory: {key: Past}, to go on with after a change of settings; drop a key to forget a chip."""

    def __init__(self, settings, levels, memory=None):
        self.settings, self.levels = settings, levels
        self.memory = {} if memory is None else memory

    def judge(self, key, record, events, now, pressure=()):
        """The Verdict on the chip with this lasting key.

        record: of look.py; give the same object when it is judged again because time has passed. events: of this chip, in the order in
        which they came. pressure: texts why its NUMA node is short of memory. now: monotonic seconds.
        """
        past = self.memory.setdefault(key, Past())
        asked = past.standing.asked
        news, came = past.standing.take(record, events, now, self.levels)
        old = self.old(past, past.standing.asked > asked, now)
        codes = past.standing.faults(now, self.levels, self.settings.state_dir and path_in(self.settings.state_dir))
        found = find(record, codes, self.settings.unhealthy_from)
        past.flapping = past.flapping and bool(self.settings.flap_count)  # a change of settings ends it
        if found.healthy is False:
            self.fault(past, found, now)
            due = None  # until another look
        elif any(unfit(fault, self.settings.unhealthy_from) for fault in news.values()):
            due = self.happened(past, Finding(False, fault_text(news), True), now, found.healthy)
        elif found.healthy is None:
            due = self.unknown(past, found.reason, now)
        elif old:
            past.well_since, due = None, None
            past.told, past.reason = False, f"nobody has asked the driver for it for more than {good_for(self.settings):g} s"
            past.fault, past.fault_asked = past.reason, past.standing.asked
        else:
            due = self.well(past, found.reason, now)
        flapped = LINK_DOWN in came and past.standing.flapped(now, self.settings.degraded_seconds)
        signs = past.signs.judge(record, codes, news, now, flapped=flapped, pressure=pressure, settings=self.settings)
        reviews = [due, past.good_until if past.told else None, signs.review, *past.standing.reviews(self.levels)]
        review = min((time for time in reviews if time is not None), default=None)
        return Verdict(past.told, past.reason, signs.rank, signs.texts, review)

    def lasting(self, key):
        """Lasting of a chip, None where there is nothing to keep."""
        past = self.memory.get(key)
        if past is None or not (past.flapping or past.standing.separated):
            return None
        stands = [(code, code in past.standing.codes) for code in sorted(past.standing.separated)]
        flap = (past.fault_at, past.fault) if past.flapping else None
        return Lasting(dict(past.standing.separated), flap, (stands, past.flapping and past.well_since is None))

    def recall(self, key, separated, flap, now):
        """Go on with what was kept of a chip, also by another agent meanwhile: the worse holds. A flap that is over is over."""
        past = self.memory.setdefault(key, Past())
        mine = past.standing.separated
        mine.update((code, max(at, mine.get(code, NEVER))) for code, at in separated.items())
        if flap is not None and not past.flapping and now < flap[0] + self.settings.flap_hold:
            past.flapping, past.told, past.well_since = True, False, None
            past.fault_at, past.fault = flap

    def old(self, past, new, now):
        """Whether the newest answer is too old to go by. new: it has just come."""
        past.answered = now if new else past.answered
        good_until = past.answered + good_for(self.settings)
        # Settings may change in between: with a shorter period the next look is yet to come, with a longer one it comes later.
        past.good_until = good_until if new else max(past.good_until, good_until)
        if now >= past.good_until + HELD_UP:
            # The review of that time is late, so this whole process was held up (stopped, frozen), and with it who looks at the chips.
            past.good_until = now + good_for(self.settings)
        return now >= past.good_until

    def fault(self, past, found, now):
        if past.told and found.loss and self.settings.flap_count:
            past.losses = [*past.losses, now][-self.settings.flap_count:]
            many = len(past.losses) == self.settings.flap_count
            past.flapping = past.flapping or (many and now - past.losses[0] <= self.settings.flap_window)
        past.told, past.reason = False, found.reason
        past.known_at = past.fault_at = now
        past.fault_asked = past.standing.asked if found.ask else NEVER
        past.fault, past.well_since = found.reason, None

    def happened(self, past, found, now, well):
        """A fault that is over as soon as it is known: the chip has to be well from now on."""
        self.fault(past, found, now)
        if not well:
            return now + self.settings.keep_last_state
        past.well_since, past.reason = now, self.waiting(past)
        return self.due(past)

    def unknown(self, past, cause, now):
        """The state stays for a while; what nobody can see is not counted as being well."""
        past.well_since = None
        if past.known_at is None:
            past.told, past.reason, past.fault = False, cause, cause
            return None
        end = past.known_at + self.settings.keep_last_state
        if now < end:
            if past.told:
                past.reason = f"last known state; {cause}"
            return end
        past.told, past.reason = False, f"no answer for more than {self.settings.keep_last_state:g} s: {cause}"
        past.fault = cause
        return None

    def well(self, past, note, now):
        past.known_at = now
        if past.told is False:
            # What the driver was asked before the fault, or with it, does not tell that the fault is over.
            if past.well_since is None and past.standing.asked > past.fault_asked:
                past.well_since = now
            due = None if past.well_since is None else self.due(past)
            if due is None or now < due:
                past.reason = self.waiting(past)
                return due
        past.told, past.reason, past.flapping = True, note, False
        return None

    def waiting(self, past):
        """Why a chip without a fault is out of service. It says no time of day and no rest, since each change of a text is logged."""
        if past.flapping:
            often = f"went out of service {self.settings.flap_count} times within {self.settings.flap_window:g} s"
            return f"{often}, so it has to be without a fault for {self.settings.flap_hold:g} s; the last one: {past.fault}"
        return f"has to be without a fault for {self.settings.recovery_seconds:g} s; the last one: {past.fault}"

    def due(self, past):
        """When a chip that stays well takes work again."""
        due = past.well_since + self.settings.recovery_seconds
        return max(due, past.fault_at + self.settings.flap_hold) if past.flapping else due
