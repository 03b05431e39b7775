# SPDX-License-Identifier: GPL-3.0-or-later
"""Which fault codes stand on a chip, from what was polled and what events told, and which of them have come too often."""

from collections import namedtuple

from . import faults

LINK_DOWN = "81078603"  # the vendor counts this one as a link that is down

# level: word or None for a code that nobody knows; severity: 0 to 3 as an event told it, None for one that was only polled;
# often: why it has a worse level than usual.
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
        self.separated = {}  # code: when it was there last, of codes that came too often
        self.polled = None  # the record that was taken last, and when it was asked for
        self.asked = NEVER

    def take(self, record, events, now, levels):
        """The events of a chip and its record. Returns ({code: Fault} that events told, [codes that came]) of this time."""
        told, came = {}, []
        for event in events:
            code, kind, at = event["code"], event["assertion"], event.get("at", now)
            stands, _at, severity = self.codes.get(code, (False, NEVER, None))
            if kind != "recover":  # the worst of several severities
                severity = max(event["severity"], severity or 0, told[code].severity if code in told else 0)
                told[code] = Fault(levels.of(code), severity)
            if kind == "once" or (kind == "occur" and not stands):
                came.append(code)
            if kind == "occur":
                self.codes[code] = (True, at, severity)
            elif kind == "recover" and code in self.codes:
                self.codes[code] = (False, at, severity)
        self.poll(record, now, came)
        for code in came:
            self.count(code, now, levels)
        for code in self.separated:
            if code in self.codes:
                self.separated[code] = now
        return told, came

    def poll(self, record, now, came):
        if record is not self.polled:  # the same record again is no newer answer
            asked = record.get("asked_at")
            self.polled, self.asked = record, now if asked is None else asked
        codes = record.get("error_codes")
        if codes is None and record.get("health_code") == 0:
            codes = ()  # a driver that cannot list codes, but says that all is well
        if codes is None:
            return
        for code in codes:
            if code not in self.codes:
                came.append(code)
                self.codes[code] = (True, NEVER, None)
        for code in [code for code in self.codes if code not in codes and self.codes[code][1] < self.asked]:
            del self.codes[code]

    def count(self, code, now, levels):
        rule = levels.rule(code)
        if rule is None and code != LINK_DOWN:
            return
        times = self.times.setdefault(code, [])
        times.append(now)
        del times[: -max(2, rule.times if rule else 0)]
        if rule and len(times) >= rule.times and now - times[-rule.times] <= rule.window:
            self.separated[code] = now

    def flapped(self, code, now, seconds):
        """Whether a counted code has come twice within so many seconds."""
        times = self.times.get(code, ())
        return len(times) > 1 and now - times[-2] <= seconds

    def faults(self, now, levels, path=""):
        """{code: Fault} of all that stands, a code that came too often with the level of its rule. path: of the file that keeps those."""
        found = {code: Fault(levels.of(code), severity) for code, (_stands, _time, severity) in self.codes.items()}
        for code in list(self.separated):
            rule, end = levels.rule(code), self.release(code, levels)
            if rule is None or (end is not None and now >= end):
                del self.separated[code]  # its time is over, or the rule was taken out of the file
            else:
                anew = f"{path} is removed and then npu-agent started anew" if path else "npu-agent starts anew"
                end = anew if rule.release is None else f"it has been away for {rule.release} s"
                often = f" (it came {rule.times} times within {rule.window} s; this ends when {end})"
                found[code] = Fault(faults.worse(rule.level, levels.of(code)), None, often)
        return found

    def release(self, code, levels):
        """When a code that came too often is released by time alone; None: not by time."""
        rule = levels.rule(code)
        if rule is None or rule.release is None or code in self.codes:
            return None
        return self.separated[code] + rule.release

    def releases(self, levels):
        ends = [self.release(code, levels) for code in self.separated]
        return [end for end in ends if end is not None]
