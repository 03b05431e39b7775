# SPDX-License-Identifier: GPL-3.0-or-later
"""Which fault codes stand on a chip, from what was polled and what events told, and which of them have come too often or last too long."""

from collections import namedtuple

from . import faults

# The vendor counts this one as a link that is down: a fault of the network. Its plugin tells its scheduler, and goes on offering the chip,
# also with the rule by which it "pre-separates" one whose link stays down (docs/facts.md F): a job on one server needs no link.
LINK_DOWN = "81078603"

# level: word or None for a code that nobody knows; severity: 0 to 3 as an event told it, None for one that was only polled;
# often: why it has a worse level than its code.
Fault = namedtuple("Fault", "level severity often", defaults=(None, ""))
NEVER = float("-inf")


class Standing:
    """The codes of one chip. All times are monotonic.

    An event counts at once. Only a poll that was asked after the newest event takes a code away again: an answer that is older does not
    know of the event, and a recovery event may get lost or come twice, so that it alone makes no chip healthy.
    """

    def __init__(self):
        self.codes = {}  # code: (whether it stands, time of its newest event, severity)
        self.times = {}  # code: times at which it came, of codes that are counted
        self.downs = []  # times at which the link went down
        self.separated = {}  # code: when it was there last, of codes that came too often
        self.counted = set()  # codes that stand and were counted
        self.since = {}  # code: since when it stands
        self.lasting = {}  # code: since when it is away, or when it was looked at last, of codes that have stood too long
        self.polled = None  # the record that was taken last, and when it was asked for
        self.asked = NEVER
        self.told = False  # whether the driver has told codes, or that there are none
        self.listed = False  # whether it has told a list of them

    def take(self, record, events, now, levels):
        """The events of a chip and its record. Returns ({code: Fault} that events told, [codes that came]) of this time."""
        told, came, begun, before = {}, [], set(), set(self.codes)
        for code in [code for code in self.lasting if self.recovered(code, levels) <= now]:
            del self.lasting[code]
        for event in events:
            code, kind, at = event["code"], event["assertion"], event.get("at", now)
            stands, _at, severity = self.codes.get(code, (False, NEVER, None))
            if kind != "recover":  # the worst of several severities
                severity = max(event["severity"], severity or 0, told[code].severity if code in told else 0)
                told[code] = Fault(levels.of(code), severity)
            if kind == "once" or (kind == "occur" and not stands):
                came.append(code)
            if kind == "occur":
                if not stands:
                    begun.add(code)
                self.codes[code] = (True, at, severity)
            elif kind == "recover" and code in self.codes:
                self.codes[code] = (False, at, severity)
        first = not self.told
        self.poll(record, now, came)
        self.downs = (self.downs + [now for code in came if code == LINK_DOWN])[-2:]
        self.counted = self.counted.intersection(self.codes).difference(came)
        again = [code for code in self.last(now, levels, begun, first) if code not in self.counted]
        for code in [code for code in came if code not in levels.lasting] + again:
            self.count(code, now, levels)
        self.separated.update((code, now) for code in self.separated if code in self.codes)
        self.lasting.update((code, now) for code in self.lasting if code in self.codes or code in before or code in came)
        return told, came

    def last(self, now, levels, begun, first):
        """The codes that have stood too long from now on. begun: those that an event told just now. first: nobody knows since when the
        others stand, so they count as having done so."""
        self.since = {code: now if code in begun else self.since.get(code, NEVER if first else now) for code in self.codes}
        found = [code for code, since in self.since.items() if code in levels.lasting and code not in self.lasting and self.stands(code)
                 and now >= since + levels.lasting[code].timeout]
        self.lasting.update((code, now) for code in found)
        return found

    def stands(self, code):
        """Whether it is there for sure, of self.codes: no event has told its end, or an answer that was asked for later still has it."""
        return self.codes[code][0] or self.codes[code][1] < self.asked

    def poll(self, record, now, came):
        if record is not self.polled:  # the same record again is no newer answer
            asked = record.get("asked_at")
            self.polled, self.asked = record, now if asked is None else asked
        codes, number = record.get("error_codes"), record.get("health_code")
        if codes is not None:
            self.told = self.listed = True
        elif number == 0:  # a driver that cannot list codes, but says that all is well
            codes, self.told = (), True
        elif number is not None and not self.listed:
            # One that never lists them, and says how bad it is: what events have told the end of is in that number no more.
            codes = [code for code, (stands, _at, _severity) in self.codes.items() if stands]
        else:
            return
        for code in codes:
            if code not in self.codes:
                came.append(code)
                self.codes[code] = (True, NEVER, None)
        for code in [code for code in self.codes if code not in codes and self.codes[code][1] < self.asked]:
            del self.codes[code]

    def count(self, code, now, levels):
        rule = levels.rule(code)
        if code in self.codes:
            self.counted.add(code)
        if rule is None:
            return
        times = self.times[code] = [*self.times.get(code, ()), now][-rule.times:]
        if len(times) == rule.times and now - times[0] <= rule.window:
            self.separated[code] = now

    def flapped(self, now, seconds):
        """Whether the link went down twice within so many seconds."""
        return len(self.downs) > 1 and now - self.downs[0] <= seconds

    def faults(self, now, levels, path=""):
        """{code: Fault} of all that stands, a code that came too often with the level of its rule. path: of the file that keeps those."""
        found = {code: Fault(levels.of(code), severity) for code, (_stands, _time, severity) in self.codes.items()}
        for code in self.lasting:
            rule = levels.lasting[code]
            level = min(rule.level, "SubHealthFault", key=faults.rank) if code == LINK_DOWN else rule.level
            often = f" (it stood for {rule.timeout} s; this ends when it has been away for {rule.recover} s)"
            if code not in found or levels.of(code) or level not in faults.HEALTHY:  # of an unknown one its severity may tell worse
                found[code] = Fault(faults.worse(level, levels.of(code)), None, often)
        for code in list(self.separated):
            rule, end = levels.rule(code), self.release(code, levels)
            if rule is None or (end is not None and now >= end):
                del self.separated[code]  # its time is over, or the rule was taken out of the file
            else:
                anew = f"{path} is removed and then npu-agent started anew" if path else "npu-agent starts anew"
                end = anew if rule.release is None else f"it has been away for {rule.release} s"
                often = f" (it came {rule.times} times within {rule.window} s; this ends when {end})"
                level = faults.worse(rule.level, levels.of(code))
                if code not in found or faults.rank(found[code].level) <= faults.rank(level):
                    found[code] = Fault(level, None, often)
        return found

    def release(self, code, levels):
        """When a code that came too often is released by time alone; None: not by time."""
        rule = levels.rule(code)
        if rule is None or rule.release is None or code in self.codes:
            return None
        return self.separated[code] + rule.release

    def recovered(self, code, levels):
        """When a code that has stood too long is so no more; infinite while it stands."""
        if code not in levels.lasting:
            return NEVER  # the rule was taken out of the file
        return float("inf") if code in self.codes else self.lasting[code] + levels.lasting[code].recover

    def reviews(self, levels):
        """When time alone may change what stands."""
        ends = [self.release(code, levels) for code in self.separated]
        ends += [self.recovered(code, levels) for code in self.lasting if code not in self.codes]
        ends += [since + levels.lasting[code].timeout for code, since in self.since.items()
                 if code in levels.lasting and code not in self.lasting and self.stands(code)]
        return [end for end in ends if end is not None]
