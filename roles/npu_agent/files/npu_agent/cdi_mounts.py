# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the driver's files a container gets: the lines of the vendor runtime's own list that exist on this node.

The rules are the vendor's: one absolute path a line, at most 128, patterns allowed, what does not exist is skipped, a symbolic link only
where links are allowed (there ASCEND_ALLOW_LINK=True, which the boards with a 310B need).
"""

import errno
import glob
import os
import stat

LIMIT = 128
LINK_FAMILIES = ("310b",)


def links_allowed(setting, family):
    return setting == "allow" or (setting == "family" and family in LINK_FAMILIES)


def read_list(path):
    """(lines, problems) of the list."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            lines = [line.strip() for line in stream]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return [], [f"there is no {path}: containers get device nodes, but none of the driver's files"]
        return [], [f"{path} cannot be read: {error.strerror}"]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) > LIMIT:
        return lines[:LIMIT], [f"{path} has {len(lines)} lines; the first {LIMIT} count, as in the vendor's runtime"]
    return lines, []


def mounts(lines, links):
    """([(host path, container path)], problems). A link's host path is what it leads to; the container sees it under the listed name."""
    found, problems = {}, []
    for line in lines:
        if not line.startswith("/") or "\0" in line or not line.isprintable():
            problems.append(f"{line!r} of the list is no plain absolute path")
            continue
        for path in map(os.path.normpath, sorted(glob.glob(line)) if glob.has_magic(line) else [line]):
            try:
                link = stat.S_ISLNK(os.lstat(path).st_mode)
                kind = os.stat(path).st_mode
            except (OSError, ValueError):
                continue
            if link and not links:
                problems.append(f"{path} is a symbolic link and is left out; `cdi_links: allow` takes such ones in")
            elif not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                problems.append(f"{path} is neither file nor folder and is left out")
            else:
                found[path] = os.path.realpath(path) if link else path
    return [(host, inside) for inside, host in found.items()], problems


def of(settings, family):
    """([(host path, container path)], problems) of this node."""
    lines, problems = read_list(settings.cdi_mounts)
    found, more = mounts(lines, links_allowed(settings.cdi_links, family))
    return found, problems + more
