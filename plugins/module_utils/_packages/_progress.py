# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a package has come, by what it prints. Pure. Private to the collection."""

import datetime
import re

# "[Driver] [2026-11-29 14:55:19] [INFO]upgradePercentage:40%" (driver package, measured).
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\]")
_PERCENT = re.compile(r"upgradePercentage:\s*(\d{1,3})\s*%")


def parse(log):
    """Return [{percent, seconds}] in the order of the output; seconds count from its first time stamp, None without one."""
    begin, found = None, []
    for line in log.splitlines():
        stamp = _time(line)
        begin = begin or stamp
        percent = _PERCENT.search(line)
        if percent:
            seconds = int((stamp - begin).total_seconds()) if stamp and begin else None
            found.append({"percent": int(percent.group(1)), "seconds": seconds})
    return found


def _time(line):
    stamp = _STAMP.search(line)
    try:
        return datetime.datetime.strptime(stamp.group(1), "%Y-%m-%d %H:%M:%S") if stamp else None
    except ValueError:
        return None
