# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of the kernel's log that have to do with NPUs. Never waits, and reads a bounded part in a bounded time.

/dev/kmsg gives one record for each read, the oldest first, and EAGAIN at the end; EPIPE says that what was to come next has been
overwritten meanwhile (kernel, Documentation/ABI/testing/dev-kmsg).
"""

import errno
import os
import re
import time
from collections import deque

from .redact import redact

LINES = 20  # of one refused allocation
KEPT = 400  # lines about NPUs of one reading: those of several chips
BYTES, SECONDS = 16 << 20, 1.0  # the largest buffer that distributions have is 1 MiB
RECORD = 8192  # the kernel gives no longer one
LENGTH = 400  # of a line

# What the vendor's modules put in front (their log header in the open driver: "[ascend] [devdrv] [function line]"), names of its
# modules and nodes, the name of Rockchip's driver. "hisi" alone would bring the disks and the network of a Kunpeng host as well.
WORDS = re.compile(r"\[ascend\]|davinci|devdrv|devmm|drv_pcie|hisi_hdc|rknpu|(?<![a-z])npu(?![a-z])", re.IGNORECASE)
ADDRESS = re.compile(r"(?<![0-9a-f])(?<![0-9a-f]:)(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-f])", re.IGNORECASE)
ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
FIELDS = re.compile(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.DOTALL)


class Unread(Exception):
    """The kernel's log cannot be read; the text says why and what would help."""


def records(stream, clock=time.monotonic):
    """Texts of whole records from a descriptor that does not wait; ends at the end of the log, or when enough was read."""
    waiting, read, end = b"", 0, clock() + SECONDS
    while read < BYTES and clock() < end:
        try:
            data = os.read(stream, RECORD)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:
                continue
            raise
        if not data:
            break
        read += len(data)
        waiting += data
        # Lines that begin with a space belong to the record before: the device that it is about.
        *whole, waiting = re.split(rb"\n(?! )", waiting)
        for record in whole:
            yield record.decode("utf-8", "replace")
    if waiting.strip():
        yield waiting.decode("utf-8", "replace")


def shown(record):
    """A record as `dmesg` shows it, None for what is none."""
    match = FIELDS.match(record)
    if match is None:
        return None
    micros, text = int(match.group(3)), match.group(4).split("\n", 1)[0]
    text = ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), text)
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"[{micros // 1000000:5d}.{micros % 1000000:06d}] {redact(text)[:LENGTH]}"


def read(path):
    """[(line, addresses)] of the newest records about NPUs, or with a PCI address of whatever device. Unread."""
    kept: deque = deque(maxlen=KEPT)
    try:
        stream = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for record in records(stream):
                addresses = {found.lower() for found in ADDRESS.findall(record)}
                if addresses or WORDS.search(record):
                    line = shown(record)
                    if line is not None:
                        kept.append((line, addresses))
        finally:
            os.close(stream)
    except PermissionError:
        raise Unread(f"{path} may not be read: with kernel.dmesg_restrict=1 that needs CAP_SYSLOG") from None
    except OSError as error:
        raise Unread(f"{path} cannot be read: {error.strerror}") from None
    return list(kept)


def related(lines, addresses):
    """The newest of read()'s lines that have to do with chips at these PCI addresses: that name one (also without its domain, as AER of
    a port does), or that are about NPUs and name no other device."""
    wanted = {address.lower() for address in addresses if address}
    wanted |= {address.partition(":")[2] for address in wanted if address.count(":") == 2}
    return [line for line, found in lines if found & wanted or (WORDS.search(line) and not found)][-LINES:]
