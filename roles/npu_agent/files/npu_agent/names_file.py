# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of names on disk: read with care, written in one step, by one agent at a time.

Only what is no table of ours is put aside. A file that cannot be read now, or that a newer agent has written, stays as it is, and nothing
is written until it can be read: names that were made up meanwhile must not take the place of those that pods know.
"""

import fcntl
import json
import os
import re
import stat
import threading
from collections import namedtuple

from .files import replace, sweep
from .log import Once

FILE = "names.json"
SCHEMA = 1
LIMIT = 1 << 20  # bytes; 1,024 chips need a third of it
ASIDE = 10  # files that were put aside are kept, at most
CLOSE_SECONDS = 0.5
KNOWN = ("vdie", "serial", "device_id", "pci_address", "phy_id")
NUMBERS = ("device_id", "phy_id")
NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]{0,63}-(0|[1-9][0-9]{0,5})")


# What the id of a chip was given to pods as: its physical id (-1: that plays no part), the form with its resource, and what else of the
# node containers got with it, as they see it: device nodes, an address.
Given = namedtuple("Given", "phy_id form places", defaults=((),))


class Newer(Exception):
    """Of a schema that is not known here."""


class NamesFile:
    """`trouble`: why names are not kept now, "" when they are. `due`: the file should be read (again)."""

    def __init__(self, folder, log, read_only=False):
        self.folder, self.path = folder, os.path.join(folder, FILE)
        self.log, self.say, self.read_only = log, Once(log), read_only
        self.trouble, self.due = "", True
        self.kept = None  # the text that the file has, as far as we know; None: there is none
        self.lock, self.idle = None, False
        self.writer = None

    def read(self):
        """{name: (known, given, slices)} of the file, {} without one; None while nobody can tell what it says."""
        try:
            text = self.text()
            entries = {} if text is None else parse(text)
        except OSError as error:
            self.blocked(f"{self.path} cannot be read: {error.strerror}; chips have their driver's numbers until it can")
            return None
        except Newer as error:
            self.blocked(f"{self.path} is left as it is: {error}")
            return None
        except (ValueError, RecursionError) as error:
            if self.read_only or not self.put_aside(error):
                self.blocked(f"{self.path} cannot be used: {error}")
                return None
            text, entries = None, {}
        self.due, self.kept, self.trouble = False, text, ""
        self.say.over()
        return entries

    def text(self):
        """None without a file. ValueError for what is no text of a file, OSError."""
        try:
            # A pipe of that name would wait for a writer.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ValueError("it is no ordinary file")
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read(LIMIT + 1).decode("utf-8")

    def blocked(self, cause):
        self.due, self.trouble = True, cause
        self.say("names of chips are not kept", "warning", cause=cause)

    def put_aside(self, cause):
        """Neither trusted nor lost; the last one of many gives way. True when the name is free."""
        places = [f"{self.path}.broken{number or ''}" for number in range(ASIDE)]
        aside = next((path for path in places if not os.path.lexists(path)), places[-1])
        try:
            os.rename(self.path, aside)
        except OSError as error:
            self.log("a broken table of names stays", "error", cause=f"{self.path} cannot be moved to {aside}: {error.strerror}")
            return False
        self.log("names of chips are started anew", "error", cause=f"{self.path} cannot be used: {cause}; it is now {aside}")
        return True

    # --- writing

    def save(self, text):
        """Off the caller's thread: a disk that is busy must not hold up the service. What did not come through is tried again."""
        if self.read_only or self.idle or self.due or text == self.kept or (self.writer is not None and self.writer.is_alive()):
            return
        self.writer = threading.Thread(target=self.write, args=(text,), name="names", daemon=True)
        self.writer.start()

    def write(self, text):
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            if not self.own():
                self.failed(f"another agent keeps {self.path}", "info")
                return
            found = self.text()
            if found is not None and found != self.kept:
                self.due = True  # another agent has had its turn
                return
            replace(self.path, text, 0o600)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            self.failed(f"{self.path} cannot be written: {why}; after a renumbering chips get other names", "warning")
            return
        self.kept, self.trouble = text, ""
        self.say.over()

    def failed(self, cause, level):
        self.trouble = cause
        self.say("names of chips are not kept", level, cause=cause)

    def own(self):
        """Of several agents with one folder only one writes. The folder itself is locked, so nothing is left behind."""
        if self.lock is not None and os.fstat(self.lock).st_nlink == 0:
            self.let_go()  # the folder was removed
        if self.lock is not None:
            return True
        lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:
            pass  # a file system without locks
        self.lock = lock
        sweep(self.path)
        return True

    def let_go(self):
        if self.lock is not None:
            os.close(self.lock)
        self.lock = None

    def stand_by(self, idle):
        """While another agent serves, it keeps the names; afterwards ours are those that it has left."""
        if idle and not self.idle:
            self.close()
        self.due = self.due or (self.idle and not idle)
        self.idle = idle

    def close(self):
        if self.writer is not None:
            self.writer.join(CLOSE_SECONDS)
        self.let_go()


def render(entries):
    """entries: [(name, known, given, slices)]; what is not known of the last two is left out."""
    names = {}
    for name, known, given, slices in sorted(entries, key=lambda entry: entry[0]):
        names[name] = dict(known)
        if given is not None:
            names[name]["given"] = {"phy_id": given.phy_id, "form": given.form, **({"places": list(given.places)} if given.places else {})}
        if slices is not None:
            names[name]["slices"] = [[one["vdev_id"], one["template"]] for one in slices]
    return json.dumps({"schema": SCHEMA, "names": names}, indent=1) + "\n"


def parse(text):
    """What render() was given, as {name: (known, given, slices)}. ValueError says what is wrong with it. Keys that are not known
    here are of an agent that knows more."""
    if len(text) > LIMIT:
        raise ValueError("it is too long")
    top = json.loads(text)
    if not isinstance(top, dict) or not is_number(top.get("schema")) or not isinstance(top.get("names"), dict):
        raise ValueError(f"it is no table of names with schema {SCHEMA}")
    if top["schema"] > SCHEMA:
        raise Newer(f"a newer npu-agent has written it (schema {top['schema']}, this one knows {SCHEMA})")
    if top["schema"] != SCHEMA:
        raise ValueError(f"it is no table of names with schema {SCHEMA}")
    entries = {}
    for name, found in top["names"].items():
        if not NAME.fullmatch(name) or not isinstance(found, dict) or not set(KNOWN) <= set(found):
            raise ValueError(f"the entry {name[:40]!r} is none of ours")
        for key in KNOWN:
            if found[key] is not None and not (is_number(found[key]) if key in NUMBERS else isinstance(found[key], str)):
                raise ValueError(f"{key} of {name} is {str(found[key])[:40]!r}")
        known = {key: found[key] for key in KNOWN}
        entries[name] = known, parse_given(name, found.get("given")), parse_slices(name, found.get("slices"))
    return entries


def parse_given(name, given):
    if given is None:
        return None
    if not isinstance(given, dict) or not is_number(given.get("phy_id")) or not isinstance(given.get("form"), str):
        raise ValueError(f"given of {name} is {str(given)[:40]!r}")
    places = given.get("places", [])
    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        raise ValueError(f"places of {name} are {str(places)[:40]!r}")
    return Given(given["phy_id"], given["form"], tuple(places))


def parse_slices(name, slices):
    if slices is None:
        return None
    pairs = isinstance(slices, list) and all(isinstance(one, list) and len(one) == 2 for one in slices)
    if not pairs or not all(is_number(vdev_id) and isinstance(template, (str, type(None))) for vdev_id, template in slices):
        raise ValueError(f"slices of {name} are {str(slices)[:40]!r}")
    return [{"vdev_id": vdev_id, "template": template} for vdev_id, template in slices]


def is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)
