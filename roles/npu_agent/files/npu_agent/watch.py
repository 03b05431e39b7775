# SPDX-License-Identifier: GPL-3.0-or-later
"""Notices what happens in kubelet's folder for device plugins.

A kubelet that starts deletes every socket there and makes its own anew, perhaps with the same inode number (measured). inotify tells at
once; a look every half second finds what inotify cannot see: a folder that came later or was replaced, a watch that was lost.
"""

import asyncio
import ctypes
import os
import stat
import struct
from typing import Any

POLL = 0.5
CREATE, DELETE, MOVED_TO, MOVED_FROM = 0x100, 0x200, 0x80, 0x40
DELETE_SELF, MOVE_SELF = 0x400, 0x800
MASK = CREATE | DELETE | MOVED_TO | MOVED_FROM | DELETE_SELF | MOVE_SELF
EVENT = struct.Struct("iIII")


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


class Folder:
    """Wakes whoever waits when names in the folder change, and at least every POLL seconds."""

    def __init__(self, path):
        self.path = path
        self.event = asyncio.Event()
        self.descriptor: Any = None
        self.watched = None
        self.libc = ctypes.CDLL(None, use_errno=True)

    def start(self):
        descriptor = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            return  # the user's inotify instances are used up: the half-second look remains
        self.descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self.read)
        self.watch()

    def watch(self):
        """Watch the folder that has the name now; a watch holds on to the old one when it is replaced."""
        if self.descriptor is None:
            return
        try:
            found = os.stat(self.path)
            identity = (found.st_dev, found.st_ino)
        except OSError:
            identity = None
        if identity != self.watched:
            self.watched = identity
            if identity is not None:
                self.libc.inotify_add_watch(self.descriptor, os.fsencode(self.path), MASK)
                self.event.set()

    def read(self):
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:
            return
        offset = 0
        while offset + EVENT.size <= len(data):
            _watch, mask, _cookie, length = EVENT.unpack_from(data, offset)
            offset += EVENT.size + length
            if mask & (DELETE_SELF | MOVE_SELF):
                self.watched = None
        self.event.set()

    async def wait(self, *others, timeout=POLL):
        """Until something happened here, or one of the other events is set, or the time is up."""
        self.watch()
        tasks = [asyncio.ensure_future(event.wait()) for event in (self.event, *others)]
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        self.event.clear()

    def close(self):
        if self.descriptor is not None:
            asyncio.get_running_loop().remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None
