# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vendor's links that say which version of CANN is in force, and where they lead. Private to the collection.

New layout (from 8.5.0): <base>/cann, and <base>/ascend-toolkit/latest kept for old users. Old layout: <base>/ascend-toolkit/latest.
Single component packages make a plain folder of the link's name (runtime package, measured): there is nothing to move then.
"""

import os
from collections import namedtuple

# ``text`` is what the link says, ``leads_to`` where that has to end; both None: it must not be there.
Link = namedtuple("Link", "path text leads_to")
_DEPTH = 20


def resolve(files, path, depth=0):
    """Return where ``path`` leads to below the root of ``files``; links are followed inside of it."""
    current = ""
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            current = os.path.dirname(current)
            continue
        step = current + "/" + part
        target = link_text(files, step)
        if target is None or depth > _DEPTH:
            current = step
        else:
            current = resolve(files, target if target.startswith("/") else current + "/" + target, depth + 1)
    return current or "/"


def link_text(files, path):
    """Return what a symbolic link says, or None where there is none."""
    try:
        return os.readlink(files.real(path))
    except OSError:
        return None


def leads(files, path):
    """Return where a link leads to, or None where there is no link."""
    return None if link_text(files, path) is None else resolve(files, path)


def toolkit_links(files, base, tree):
    """Return the links that have to lead to the toolkit (or nnrt) folder ``tree``, in the order in which they are moved."""
    cann, old = base + "/cann", base + "/ascend-toolkit"
    name = os.path.basename(tree)
    if tree in (cann, old + "/latest"):
        return []
    if os.path.dirname(tree) == old:
        links = [Link(old + "/latest", name, tree)]
        # In this layout it is a file of the vendor, or a link after a newer CANN was in force.
        if link_text(files, old + "/set_env.sh") is not None and files.exists(tree + "/set_env.sh"):
            links.append(Link(old + "/set_env.sh", "latest/set_env.sh", tree + "/set_env.sh"))
        # It would offer another version than the one in force.
        return links + ([Link(cann, None, None)] if leads(files, cann) else [])
    text = name if os.path.dirname(tree) == base else tree
    links = [Link(cann, text, tree)]
    if files.is_folder(old):
        links.append(Link(old + "/latest", "../cann", tree))
        if link_text(files, old + "/set_env.sh") is not None or not files.exists(old + "/set_env.sh"):
            links.append(Link(old + "/set_env.sh", "../cann/set_env.sh", tree + "/set_env.sh"))
    return links


def latest_link(top, tree):
    """Return the link of nnrt before 8.5.0, or of ATB, whose versions lie in ``top``."""
    return [] if tree == top + "/latest" else [Link(top + "/latest", os.path.basename(tree), tree)]


def astray(files, links):
    """Return in words which of ``links`` do not lead where they should."""
    words = []
    for link in links:
        found = leads(files, link.path)
        if found != link.leads_to:
            words.append("%s leads to %s, not to %s" % (link.path, found or "nothing", link.leads_to or "nothing"))
    return words
