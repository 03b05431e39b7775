# SPDX-License-Identifier: GPL-3.0-or-later
"""inotify, the few calls of it that are needed."""

import ctypes
import os
import struct

CREATE, DELETE, MOVED_TO, MOVED_FROM, ATTRIB = 0x100, 0x200, 0x80, 0x40, 0x4
DELETE_SELF, MOVE_SELF, UNMOUNT, OVERFLOW, IGNORED, ONLY_FOLDERS = 0x400, 0x800, 0x2000, 0x4000, 0x8000, 0x01000000
EVENT = struct.Struct("iIII")


class Inotify:
    """OSError where the kernel refuses: EMFILE when all instances of the user are taken (128 for all its processes is common)."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise self.error()

    def error(self):
        number = ctypes.get_errno()
        return OSError(number, os.strerror(number))

    def add(self, path, mask):
        watch = self.libc.inotify_add_watch(self.descriptor, os.fsencode(path), mask)
        if watch < 0:
            raise self.error()
        return watch

    def remove(self, watch):
        self.libc.inotify_rm_watch(self.descriptor, watch)

    def read(self):
        """[(watch, mask, name)]"""
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:
            return []
        events, offset = [], 0
        while offset + EVENT.size <= len(data):
            watch, mask, _cookie, length = EVENT.unpack_from(data, offset)
            offset += EVENT.size
            events.append((watch, mask, os.fsdecode(data[offset:offset + length].rstrip(b"\0"))))
            offset += length
        return events

    def close(self):
        os.close(self.descriptor)
