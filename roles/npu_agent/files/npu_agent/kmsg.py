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
KEPT = 400  # records of one reading: those of several chips
BYTES, SECONDS = 16 << 20, 1.0  # the largest buffer that distributions have is 1 MiB
RECORD = 8192  # the kernel gives no longer one
LENGTH = 400  # of a line
RAW = 4 * LENGTH  # of a record: a secret that is cut in two might not look like one, and escapes are longer than what they stand for

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
        if len(waiting) > 2 * RECORD:  # no kernel gives that
            waiting = b""
    if waiting.strip():
        yield waiting.decode("utf-8", "replace")


def shown(micros, text):
    """A record as `dmesg` shows it, without secrets."""
    text = ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), text)
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"[{micros // 1000000:5d}.{micros % 1000000:06d}] {redact(text, RAW)[:LENGTH]}"


def short(addresses):
    """These PCI addresses, also without their domain, as AER of a port tells them."""
    wanted = {address.lower() for address in addresses if address}
    return wanted | {address.partition(":")[2] for address in wanted if address.count(":") == 2}


def read(path, addresses):
    """[(microseconds, text, its addresses)] of the newest records that have to do with chips at these PCI addresses: that name one, or that
    are about NPUs and name no other device. Unread."""
    kept: deque = deque(maxlen=KEPT)
    wanted = short(addresses)
    try:
        stream = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for record in records(stream):
                found = {address.lower() for address in ADDRESS.findall(record)}
                match = FIELDS.match(record) if found & wanted or (not found and WORDS.search(record)) else None
                if match is not None:
                    kept.append((int(match.group(3)), match.group(4).split("\n", 1)[0][:RAW + 1], found))
        finally:
            os.close(stream)
    except PermissionError:
        raise Unread(f"{path} may not be read: with kernel.dmesg_restrict=1 that needs CAP_SYSLOG") from None
    except OSError as error:
        raise Unread(f"{path} cannot be read: {error.strerror}") from None
    return list(kept)


def related(kept, addresses):
    """The newest of read()'s records that have to do with chips at these PCI addresses: [(microseconds, text)]"""
    wanted = short(addresses)
    return [(micros, text) for micros, text, found in kept if found & wanted or not found][-LINES:]


def lines(path, groups):
    """For each group of PCI addresses the lines of the kernel's log that have to do with it. Unread."""
    kept = read(path, [address for addresses in groups for address in addresses])
    found = [related(kept, addresses) for addresses in groups]
    texts = {record: shown(*record) for record in dict.fromkeys(record for records in found for record in records)}
    return [[texts[record] for record in records] for records in found]
