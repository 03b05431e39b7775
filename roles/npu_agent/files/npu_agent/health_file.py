# SPDX-License-Identifier: GPL-3.0-or-later
"""What must outlast the agent of a chip's health: fault codes that came too often, and that it flaps. A restart would release both.

The file is there to be removed: with the agent started anew after that, nothing is known of such chips. Times in it are monotonic, which
holds until the machine boots again; then the wall clock says how long ago they were.
"""

import json
import os
import threading
import time
from typing import Optional

from .files import replace
from .identity import evidence, pair

FILE = "health.json"
SCHEMA = 1
LIMIT = 1 << 20  # bytes
PAUSE_SECONDS = 1.0  # between two writes, whatever a chip does
CLOSE_SECONDS = 0.5
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def path_in(folder):
    return os.path.join(folder, FILE)


class HealthFile:
    """folder: "" for none. read_only: nothing is written. idle: another agent serves this node, and writes, see stand_by()."""

    def __init__(self, folder, log, read_only=False, *, clock=time.monotonic, wall=time.time, boot_id=None):
        self.path, self.log, self.read_only, self.idle = path_in(folder) if folder else "", log, read_only, False
        self.clock, self.wall, self.boot_id = clock, wall, read_boot_id() if boot_id is None else boot_id
        self.entries = []  # (known, separated, flap) of chips that were not seen since it was read
        self.sign: Optional[list] = []  # what the file says; None: perhaps something else
        self.written, self.writer = float("-inf"), None
        self.failed = False
        if self.path:
            self.read()

    def read(self):
        try:
            with open(self.path, "rb") as stream:
                text = stream.read(LIMIT + 1)
            self.entries = parse(text, self.clock(), self.wall(), self.boot_id)
            self.sign = None
        except FileNotFoundError:
            self.entries = []
        except (OSError, ValueError, RecursionError) as error:
            self.log("what was kept of the chips' health is not used", "warning", cause=f"{self.path}: {error}")

    def stand_by(self, idle):
        """What another agent has found out meanwhile is in the file."""
        if self.idle and not idle:
            self.read()
        self.idle = idle

    def recall(self, known, wanted):
        """[(number, separated, flap)] of Health.lasting() for chips that are seen now, once each.

        known: what is known of each chip there is, seen now or not: evidence that two of them share says nothing. wanted: numbers in it.
        """
        if not self.entries:
            return []
        paired = {number: place for number, place in pair(known, [entry[0] for entry in self.entries]).items() if number in wanted}
        found = [(number, *self.entries[place][1:]) for number, place in paired.items()]
        self.entries = [entry for place, entry in enumerate(self.entries) if place not in paired.values()]
        return found

    def save(self, chips):
        """Have the file say it, soon, where something else holds than before. chips: [(known, what Health.lasting() says)]."""
        chips = [(known, lasting) for known, lasting in chips if lasting is not None]
        sign = [(dict(known), lasting.sign) for known, lasting in chips] + [(known, None) for known, *_rest in self.entries]
        now = self.clock()
        if not self.path or self.read_only or self.idle or sign == self.sign or now < self.written + PAUSE_SECONDS:
            return
        if self.writer is not None and self.writer.is_alive():
            return
        kept = [(known, lasting.separated, lasting.flap) for known, lasting in chips] + self.entries
        text = render(kept, now, self.wall(), self.boot_id)
        self.written = now
        self.writer = threading.Thread(target=self.write, args=(text, sign), name="health", daemon=True)
        try:
            self.writer.start()
        except RuntimeError:
            self.writer = None  # the next look tries again

    def write(self, text, sign):
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            replace(self.path, text, 0o600)
        except OSError as error:
            if not self.failed:
                self.log("the chips' health is not kept", "warning", cause=f"{self.path} cannot be written: {error.strerror}")
            self.failed = True
            return
        self.sign, self.failed = sign, False

    def close(self):
        if self.writer is not None:
            self.writer.join(CLOSE_SECONDS)


def read_boot_id():
    try:
        with open(BOOT_ID, encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def render(entries, now, wall, boot_id):
    """entries: [(known, {code: monotonic time}, None or (monotonic time, text))]"""
    chips = [
        {"known": dict(known), "separated": separated, "flap": list(flap) if flap else None} for known, separated, flap in entries
    ]
    return json.dumps({"schema": SCHEMA, "boot_id": boot_id, "monotonic": now, "time": wall, "chips": chips}, indent=1) + "\n"


def parse(text, now, wall, boot_id):
    """What render() was given, with times of this boot. ValueError for what it did not make."""
    if len(text) > LIMIT:
        raise ValueError("it is too long")
    top = json.loads(text.decode("utf-8"))
    try:
        if top["schema"] != SCHEMA:
            raise ValueError(f"it has schema {top['schema']!r}, this npu-agent knows {SCHEMA}")
        ago = 0.0 if boot_id and top["boot_id"] == boot_id else max(0.0, wall - number(top["time"])) + number(top["monotonic"]) - now
        entries = []
        for chip in top["chips"]:
            separated = {str(code): min(now, number(at) - ago) for code, at in chip["separated"].items()}
            flap = None if chip["flap"] is None else (min(now, number(chip["flap"][0]) - ago), str(chip["flap"][1]))
            evidence(chip["known"])
            entries.append((dict(chip["known"]), separated, flap))
        return entries
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"it is none of ours ({error!r})") from None


def number(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:
        raise ValueError(f"{str(value)[:40]!r} is no time")
    return float(value)
