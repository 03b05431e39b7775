# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes a chip come last in preferred allocation. It never changes whether the chip may take work.

A chip's rank is the sum of its reasons: 2 for one that lies in the chip (a fault code of level SubHealthFault, ECC errors, a link that
flaps), 1 for one of the moment (too hot, its NUMA node short of memory). So a chip that is ill comes after one that is only hot, and one
with two reasons after one with one.
"""

import os
import re
from collections import namedtuple

CHIP, MOMENT = 2, 1  # weights
BELOW_LIMIT = 5.0  # °C under the chip's own throttle threshold: from there on it is about to be slowed down
HYSTERESIS = 5.0  # °C
LINK_TEXT = "its link went down several times"
ECC_TEXTS = {"double": "ECC double-bit errors", "isolated": "memory pages were isolated"}

Degraded = namedtuple("Degraded", "rank texts review")  # review: when the next reason ends by time alone, or None


class Signs:
    """The reasons of one chip. All times are monotonic."""

    def __init__(self):
        self.until = {}  # text: when it ends, of reasons that an event gave
        self.ecc = {}  # counter: its last value
        self.hot = None  # the text while it is too hot

    def judge(self, record, codes, told, now, *, flapped, pressure, settings):
        """codes: {code: Fault} of all that stand, told: that events brought now; flapped: its link went down, and not only once."""
        end = now + settings.degraded_seconds
        for code, fault in told.items():
            if fault.level == "SubHealthFault" and code not in codes:
                self.until[subhealth(code)] = end
        if flapped:
            self.until[LINK_TEXT] = end
        telemetry = record.get("telemetry") or {}
        self.take_ecc(telemetry.get("ecc") or {}, end)
        self.take_temperature(telemetry, settings.degraded_temperature)
        self.until = {text: end for text, end in self.until.items() if now < end}
        texts = sorted({subhealth(code) for code, fault in codes.items() if fault.level == "SubHealthFault"} | set(self.until))
        rank = CHIP * len(texts)
        moment = ([self.hot] if self.hot else []) + list(pressure)
        return Degraded(rank + MOMENT * len(moment), tuple(texts + moment), min(self.until.values(), default=None))

    def take_ecc(self, ecc, end):
        """Counters go up for good; one that went down was set back, and counts from there."""
        for name, text in ECC_TEXTS.items():
            value = ecc.get(name)
            if value is None:
                continue
            if value > self.ecc.get(name, value):
                self.until[text] = end
            self.ecc[name] = value

    def take_temperature(self, telemetry, setting):
        """Without a reading what was known stays."""
        degrees, own = telemetry.get("temperature_c"), telemetry.get("temperature_limit_c")
        if not setting:
            self.hot = None
        elif degrees is not None:
            limit = min(setting, own - BELOW_LIMIT) if own and own > BELOW_LIMIT else setting
            if degrees >= limit:
                self.hot = f"its temperature has reached {limit:g} °C"
            elif degrees < limit - HYSTERESIS:
                self.hot = None


def subhealth(code):
    return f"fault code {code}: SubHealthFault"


def memory_pressure(sysfs_root, percent, before=()):
    """{NUMA node: text} of the nodes with less memory available than `percent` of what they have; 0 is never.

    A node's meminfo has no MemAvailable, so it is what is free and what the kernel gives back on demand: the page cache in both its lists
    and reclaimable slab. That counts some cache which cannot go (shared memory is not in those lists, dirty pages are), so it is a
    little too high, never too low. A node without memory, or one that cannot be read, says nothing.

    before: what was answered last time; a node in it has to have a quarter more than the limit until it is let go (of a high limit,
    half of what is left to all of it).
    It reads one small file of the kernel per node (0.1 ms or so); once in 10 s is plenty.
    """
    folder = os.path.join(sysfs_root, "devices/system/node")
    short = {}
    if not percent:
        return short
    relief = percent + min(percent / 4, (100 - percent) / 2)
    try:
        names = os.listdir(folder)
    except OSError:
        return short
    for name in names:
        match = re.fullmatch("node([0-9]+)", name)
        if match is None:
            continue
        values = meminfo(os.path.join(folder, name, "meminfo"))
        total, free = values.get("MemTotal"), values.get("MemFree")
        if not total or free is None:
            continue
        available = free + sum(values.get(key, 0) for key in ("Active(file)", "Inactive(file)", "SReclaimable"))
        node = int(match.group(1))
        if available * 100 < total * (relief if node in before else percent):
            short[node] = f"NUMA node {node} is short of memory (limit {percent:g} %)"
    return short


def meminfo(path):
    """{name: kB} of lines such as 'Node 0 MemFree:  1234 kB'."""
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return {name: int(value) for name, value in re.findall(r"^Node +[0-9]+ +([^:\n]+): +([0-9]+)", stream.read(), re.MULTILINE)}
    except OSError:
        return {}
