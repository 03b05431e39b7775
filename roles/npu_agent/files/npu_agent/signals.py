# SPDX-License-Identifier: GPL-3.0-or-later
"""What tells at once that something changed at the chips: their device nodes, the kernel's own events, a call from another thread.

All of it, and the processes that ask the driver, are waited for in one poll(): nothing wakes this thread up while nothing happens.
"""

import errno
import os
import re
import select
import socket
import time
from typing import Any

from .inotify import ATTRIB, CREATE, DELETE, DELETE_SELF, IGNORED, MOVE_SELF, MOVED_FROM, MOVED_TO, ONLY_FOLDERS, OVERFLOW, UNMOUNT, Inotify

NODE = re.compile(r"v?davinci[0-9]+\Z|davinci_manager(?:_docker)?\Z")
NAMES = CREATE | DELETE | ATTRIB | MOVED_TO | MOVED_FROM | ONLY_FOLDERS
FOLDER = DELETE_SELF | MOVE_SELF | UNMOUNT | OVERFLOW | IGNORED  # the folder itself went, or names may have been lost
QUICK = 1.0  # seconds between two looks at the folder without inotify
NETLINK_KOBJECT_UEVENT, KERNEL_GROUP = 15, 1
# A function that comes, goes, is bound or unbound, and is an accelerator or the vendor's (OEM cards have other vendors, 310B boards another
# class); the driver's device nodes. The rest of a busy host is of no interest.
MATTERS = re.compile(rb"\0(?:PCI_CLASS=1200[0-9A-F]{2}|PCI_ID=19E5:[0-9A-F]{4}|DEVNAME=v?davinci[0-9]+)\0")


class Watch:
    """Descriptors, and for each a callable that reads what is there."""

    def __init__(self):
        self.poll = select.poll()
        self.takers = {}

    def add(self, descriptor, taker):
        self.takers[descriptor] = taker
        self.poll.register(descriptor, select.POLLIN)

    def remove(self, descriptor):
        if self.takers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def wait(self, seconds):
        """Until something is there, at most so long (None: for ever); calls the takers. True when there was something."""
        ready = self.poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        for descriptor, _events in ready:
            taker = self.takers.get(descriptor)  # an earlier one may have removed it
            if taker is not None:
                taker()
        return bool(ready)


class Bell:
    """Wakes the thread that waits, from any other."""

    def __init__(self, watch):
        self.watch = watch
        self.ends = os.pipe()
        for end in self.ends:
            os.set_blocking(end, False)
        watch.add(self.ends[0], self.hear)

    def ring(self):
        try:
            os.write(self.ends[1], b"!")
        except OSError:
            pass  # full: it is ringing already

    def hear(self):
        os.read(self.ends[0], 4096)

    def close(self):
        self.watch.remove(self.ends[0])
        for end in self.ends:
            os.close(end)


def names_in(places):
    """{path} of what is in these folders and matters."""
    found = set()
    for folder, pattern in places:
        try:
            found.update(os.path.join(folder, name) for name in os.listdir(folder) if pattern.match(name))
        except OSError:
            pass
    return found


class Signals:
    """`count` changes with each change that was seen. `trouble`: why changes of device nodes are seen late, None: at once.

    Folders may be replaced or come later: call `follow` now and then. places: [(folder, pattern of names that matter)], the first one is
    always there. uevents: pattern of the kernel's events that matter, None: none does.
    """

    def __init__(self, watch, dev_root, log, clock=time.monotonic, inotify=Inotify, *, places=None, uevents=MATTERS):
        self.watch, self.dev_root, self.log, self.clock, self.open = watch, dev_root, log, clock, inotify
        self.places, self.matters = places or [(dev_root, NODE)], uevents
        self.patterns: dict = {}  # watch: pattern
        self.count, self.trouble = 0, None
        self.inotify: Any = None
        self.netlink: Any = None
        self.names: set = set()
        self.due = None  # when the folder must be looked at without inotify
        if uevents is not None:
            self.uevents()
        self.follow()

    def follow(self):
        """Watch the folders that have the names now. Watches hold on to a folder, not to its name; one that is there already stays."""
        try:
            if self.inotify is None:
                self.inotify = self.open()
                self.watch.add(self.inotify.descriptor, self.read)
            before = self.patterns
            self.patterns = {number: pattern for number, pattern in map(self.follow_one, self.places) if number is not None}
            if before and set(self.patterns) - set(before):
                self.count += 1  # what came into a new folder before it was watched was told to nobody
        except OSError as error:
            self.without(error)
            return
        if self.trouble is not None:
            self.trouble = self.due = None
            self.log("device nodes are watched by inotify again")

    def follow_one(self, place):
        """(watch or None, pattern)"""
        folder, pattern = place
        try:
            return self.inotify.add(folder, NAMES | DELETE_SELF | MOVE_SELF), pattern
        except OSError as error:
            if place is self.places[0] or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return None, pattern  # it comes with its driver; the folder above is watched for its name

    def without(self, error):
        if self.inotify is not None:
            self.watch.remove(self.inotify.descriptor)
            self.inotify.close()
            self.inotify, self.patterns = None, {}
        if self.trouble is None:
            what = {errno.EMFILE: "all inotify instances of this user are taken (fs.inotify.max_user_instances)",
                    errno.ENOSPC: "all inotify watches of this user are taken (fs.inotify.max_user_watches)"}.get(error.errno, str(error))
            self.trouble = f"{what}: {self.dev_root} is looked at every {QUICK:g} s instead"
            self.log("device nodes are not watched by inotify", "warning", cause=self.trouble)
            self.names, self.due = names_in(self.places), self.clock() + QUICK

    def read(self):
        for number, mask, name in self.inotify.read():
            pattern = self.patterns.get(number)
            if mask & FOLDER or pattern is None or pattern.match(name):
                self.count += 1

    def uevents(self):
        """The kernel tells them to every process of the host's network namespace that may listen; elsewhere there are none."""
        try:
            self.netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT)
            self.netlink.bind((0, KERNEL_GROUP))
        except OSError:
            if self.netlink is not None:
                self.netlink.close()
            self.netlink = None
            return
        self.watch.add(self.netlink.fileno(), self.hear)

    def hear(self):
        try:
            for _turn in range(256):  # the rest the next time
                data, (sender, _groups) = self.netlink.recvfrom(8192)
                if sender == 0 and self.matters.search(data):  # 0: the kernel itself
                    self.count += 1
        except BlockingIOError:
            return
        except OSError:
            self.count += 1  # ENOBUFS: there were too many, ours may have been among them

    def left(self, now):
        """Seconds until the folder must be looked at; None with inotify. Looks when they are over."""
        if self.due is None:
            return None
        if now >= self.due:
            names = names_in(self.places)
            if names != self.names:
                self.names, self.count = names, self.count + 1
            self.due = now + QUICK
        return self.due - now

    def close(self):
        if self.inotify is not None:
            self.watch.remove(self.inotify.descriptor)
            self.inotify.close()
        if self.netlink is not None:
            self.watch.remove(self.netlink.fileno())
            self.netlink.close()
