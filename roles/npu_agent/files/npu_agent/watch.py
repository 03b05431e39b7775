# SPDX-License-Identifier: GPL-3.0-or-later
"""Notices what happens in kubelet's folder for device plugins, and to that folder.

A kubelet that starts deletes every socket there and makes its own anew, perhaps with the same inode number (measured). inotify tells at
once: of names in the folder, and of each folder and link on the way to it, so that one that comes later or takes the place of another
is noticed too. A look now and then finds what inotify cannot see, such as a file system mounted over the folder.

A host has only so many inotify instances for a user (128 is common), and others may have taken them all (seen in the field: the vendor's
plugin then lives on and never registers). Then a look twice a second does the work, and `trouble` says so.
"""

import asyncio
import errno
import os
import stat
from typing import Any, Optional

from ._hardware._way import walk
from .inotify import CREATE, DELETE, DELETE_SELF, MOVE_SELF, MOVED_FROM, MOVED_TO, ONLY_FOLDERS, OVERFLOW, UNMOUNT, Inotify

SLOW, QUICK = 30.0, 0.5  # seconds between two looks: with inotify, without
TRIES = 5  # of a way that changes while it is walked
MASK = CREATE | DELETE | MOVED_TO | MOVED_FROM | DELETE_SELF | MOVE_SELF | ONLY_FOLDERS


def stamp(path):
    """What tells one socket file from its successor of the same name; None when there is no socket.

    The inode number alone does not: it may be used again at once.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


GONE = "kubelet's folder was replaced, and this container still has the old one; the next one gets the new one"


def is_gone(path):
    """Whether a folder was deleted under a mount of it, as a container has one: nothing comes there any more. On a host no path leads to
    such a folder."""
    try:
        return os.stat(path).st_nlink == 0
    except OSError:
        return False


def is_mount(path):
    """Whether something is mounted there; of a folder of the same file system only the kernel's list tells."""
    wanted = os.path.realpath(path)
    for letter in "\\ \t\n":
        wanted = wanted.replace(letter, f"\\{ord(letter):03o}")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            return any(line.split(" ")[4] == wanted for line in stream)
    except (OSError, IndexError):
        return False


def way_to(path):
    """([(folder, name)], the folder itself or None): each step on the way to `path`, links followed; it ends where something is missing."""
    steps, place = walk(path)
    for number, step in enumerate(steps, 1):
        here = os.path.join(*step)
        if not os.path.islink(here) and not os.path.isdir(here):
            return steps[:number], None
    return steps, place


class Folder:
    """Calls every one of `listeners` when something happened in the folder or on the way to it, and at each look.

    `trouble`: why inotify cannot be used, None while it can.
    """

    def __init__(self, path, log, inotify=Inotify):
        self.path, self.log, self.open = path, log, inotify
        self.listeners = set()
        self.inotify: Any = None
        self.timer: Any = None
        self.trouble: Optional[str] = None
        self.moved = False
        self.watches = {}  # watch: (folder, names that matter there; None: all)

    def look(self):
        """Watch what has the names now, tell everybody, and look again later. The first call starts it."""
        self.follow()
        for listener in list(self.listeners):
            listener()
        self.timer = asyncio.get_running_loop().call_later(QUICK if self.trouble else SLOW, self.look)

    def gone(self):
        """Whether this container's mount is of a folder that kubelet has no more: deleted, or moved aside."""
        return self.moved or is_gone(self.path)

    def follow(self):
        try:
            if self.inotify is None:
                self.inotify = self.open()
                asyncio.get_running_loop().add_reader(self.inotify.descriptor, self.read)
            self.watch()
        except OSError as error:
            self.without(error)
            return
        if self.trouble:
            self.trouble = None
            self.log("kubelet's folder is watched by inotify again")

    def watch(self):
        """Watch each step on the way and the folder. Watches hold on to a folder, not to its name, so those of old ones go."""
        kept, every = {}, set(self.watches)
        for _unused in range(TRIES):
            before, kept = kept, self.add_all()
            every.update(kept)
            if kept == before:
                break  # nothing has changed since the watches are there
        for watch in every - set(kept):
            self.inotify.remove(watch)
        self.watches = kept

    def add_all(self):
        steps, folder = way_to(self.path)
        wanted = {}
        for place, name in steps:
            wanted.setdefault(place, set()).add(name)
        if folder is not None:
            wanted[folder] = None
        kept = {}
        for place, names in wanted.items():
            try:
                kept[self.inotify.add(place, MASK)] = (place, names)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):  # gone since; the next look finds its way
                    raise
        return kept

    def without(self, error):
        if self.inotify is not None:
            self.close_inotify()
        if self.trouble is None:
            what = {errno.EMFILE: "all inotify instances of this user are taken (fs.inotify.max_user_instances)",
                    errno.ENOSPC: "all inotify watches of this user are taken (fs.inotify.max_user_watches)"}.get(error.errno, str(error))
            self.trouble = f"{what}: kubelet's folder is looked at every {QUICK:g} s instead"
            self.log("kubelet's folder is not watched by inotify", "warning", cause=self.trouble,
                     hint="raise the limit with sysctl; `find /proc/*/fd -lname 'anon_inode:inotify' | cut -d/ -f3 | sort | uniq -c` "
                          "shows who has how many")

    def read(self):
        matters = False
        for watch, mask, name in self.inotify.read():
            names = self.watches.get(watch, (None, ()))[1]
            if mask & MOVE_SELF and names is None and is_mount(self.path):
                self.moved = True  # no path on this side leads to what has its name now
            matters = matters or bool(mask & (DELETE_SELF | MOVE_SELF | UNMOUNT | OVERFLOW)) or names is None or name in names
        if matters:
            self.timer.cancel()
            self.look()

    def close_inotify(self):
        asyncio.get_running_loop().remove_reader(self.inotify.descriptor)
        self.inotify.close()
        self.inotify, self.watches = None, {}

    def close(self):
        if self.timer is not None:
            self.timer.cancel()
        if self.inotify is not None:
            self.close_inotify()
