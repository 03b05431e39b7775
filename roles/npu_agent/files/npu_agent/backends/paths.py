# SPDX-License-Identifier: GPL-3.0-or-later
"""Any device that is a node below /dev: `devices` says which paths are a resource's, each node is one id.

    backend: paths
    devices:
      - resource: cambricon.com/mlu
        paths: ["/dev/cambricon_dev[0-9]*"]
        with: [/dev/cambricon_ctl, "/dev/cambricon-caps/cap{n}"]
        env_ids: CAMBRICON_VISIBLE_DEVICES

An id is the name of the resource and the number at the end of the path: mlu-3. It stays with the path. A path without a number, or with
one that another has, gets the lowest number that is free.
Health is what can be seen without knowing the device: its node is there, is a character device and no link, is no other one's device
under a second name, and with `open: true` can be opened.
"""

import os
import re

from .. import nodes
from ..opener import Opener
from .base import Backend, Looker, Refused, Sight, blind, in_container, merged, on_host, pattern, record
from .declared import NUMBER, prefix_of

AT_END = re.compile(r"(?:.*[^0-9])?([0-9]+)\Z")
MAGIC = re.compile(r"[*?\[]")
ANYTHING = re.compile(r"")


class Paths(Backend):
    name = "paths"
    facts = (("numa_node", "NUMA node"),)

    def looker(self, settings, watch=None, **more):
        once: dict = {}  # {path: entry} of what was there since the start: a node that is lost stays in the capacity
        opener = Opener(settings)
        return Looker(lambda clock: look(settings, clock, once, opener.refusals), settings, watch, over=opener.close, **more)

    def places(self, settings):
        """/dev, and each folder on the way to a path that no pattern stands in the way of."""
        folders = {settings.dev_root}
        for path in (path for entry in settings.devices for path in entry["paths"] + entry["with"]):
            steps = path[len("/dev/"):].split("/")[:-1]
            for end in range(1, len(steps) + 1):
                if any(MAGIC.search(step) or "{" in step for step in steps[:end]):
                    break
                folders.add("/".join([settings.dev_root, *steps[:end]]))
        return [(folder, names_that_matter(folder, settings)) for folder in sorted(folders, key=len)]

    def ids(self, settings):
        return pattern(sorted({re.escape(prefix_of(entry["resource"])) for entry in settings.devices}, key=len, reverse=True))

    def give(self, chips, settings):
        devices, variables, numbers = {}, [], {}
        for chip in chips:
            path = chip.device_node
            entry = entry_of(path, settings)
            why = trouble(path, entry, settings) if entry else f"`devices` does not name {path} any more"
            if why:
                raise Refused(f"{chip.id} cannot be given: {why}; see `npu-agent discover` on this node")
            for node in [path, *beside(path, entry, settings)]:
                devices[node] = in_container(node, settings)
            variables += list(entry["envs"].items())
            if entry["env_ids"]:
                numbers.setdefault(entry["env_ids"], []).append(number_of(path) or os.path.basename(path))
        envs = merged(variables + [(name, value) for name, values in numbers.items() for value in sorted(values, key=order)])
        return {"envs": envs, "devices": list(devices.items()), "mounts": [], "cdi": []}


def order(text):
    return len(text), text


def names_that_matter(folder, settings):
    """/dev is busy: of it only names that begin like those that were declared. What has a folder of its own is looked at whole."""
    if folder != settings.dev_root:
        return ANYTHING
    firsts = {MAGIC.split(path[len("/dev/"):].split("/")[0].split("{")[0])[0] for entry in settings.devices
              for path in entry["paths"] + entry["with"]}
    return re.compile("|".join(sorted(re.escape(first) for first in firsts)))


def look(settings, clock, once, refusals):
    asked, unseen = clock(), blind(settings)
    problems = list(unseen)
    seen = [] if unseen else [(path, entry) for entry in settings.devices for path in found(entry, settings)]
    for path, entry in seen:
        # What a pattern matches beside devices is no device that was lost. A path that is written out is one.
        if path in once or nodes.number_of(path) is not None or path in literal(entry, settings):
            once[path] = entry
        else:
            problems.append(f"{path} is left out: it is no device node, and a pattern of `devices` matches it")
    # A path that is written out is a device, whether it is there or not: one that is lost must not be less of them.
    once.update((path, entry) for entry in ([] if unseen else settings.devices) for path in literal(entry, settings))
    same, chips = nodes.same_device(once), []
    refused = refusals([path for path, entry in once.items() if entry["open"] and nodes.number_of(path) is not None])
    taken: dict = {}  # natural id: path
    for path, entry in sorted(once.items(), key=lambda item: order(item[0])):
        prefix, number = prefix_of(entry["resource"]), number_of(path) or "0"
        natural = f"{prefix}{int(number)}" if len(number) <= 6 else None
        if natural in taken:
            natural = None
        taken[natural] = path
        chips.append(record(
            family=prefix[:-1], name=os.path.basename(path), numa_node=numa_node(path, settings), vdie=in_container(path, settings),
            device_node=path, device_node_present=os.path.lexists(path), node_trouble=trouble(path, entry, settings) or same.get(path, ""),
            unfit=unopened(path, refused.get(path)), asked_at=asked, natural=natural, prefix=prefix, resource=entry["resource"],
            places=[in_container(path, settings)],
        ))
    return Sight(bool(chips or unseen), chips, problems, not unseen)


def found(entry, settings):
    return [path for wanted in entry["paths"] for path in nodes.matching(on_host(wanted, settings))]


def entry_of(path, settings):
    """The entry that names this path on the host; patterns of two entries never match the same one."""
    return next((entry for entry in settings.devices if path in found(entry, settings) or path in literal(entry, settings)), None)


def literal(entry, settings):
    """Paths without a pattern: they are the entry's whether they exist or not."""
    return [on_host(path, settings) for path in entry["paths"] if not MAGIC.search(path)]


def trouble(path, entry, settings):
    """Why no container may get this node, "" where it may."""
    if not os.path.lexists(path):
        return f"its device node {path} is missing"
    lacking = [one for one in required(path, entry, settings) if not nodes.is_device(one) or os.path.islink(one)]
    if nodes.trouble(path):
        return f"{path} is no device node: remove it, and load its driver anew"
    return f"there is no device node {lacking[0]}, which `with` names" if lacking else ""


def unopened(path, why):
    return f"{path} cannot be opened: {why}; see `dmesg`" if why else None


def beside(path, entry, settings):
    """What a container gets with this node: of patterns, what there is."""
    every = [one for wanted in own(path, entry) for one in nodes.matching(on_host(wanted, settings))]
    return [one for one in dict.fromkeys(every) if nodes.number_of(one) is not None]


def required(path, entry, settings):
    """Of these, what must be there: a path that is no pattern."""
    return [on_host(wanted, settings) for wanted in own(path, entry) if not MAGIC.search(wanted)]


def own(path, entry):
    """`with`, for this node. One without a number at its end has no node that goes by the number."""
    number = number_of(path)
    return [one.replace(NUMBER, number or "") for one in entry["with"] if number is not None or NUMBER not in one]


def number_of(path):
    match = AT_END.match(os.path.basename(path))
    return match.group(1) if match else None


def numa_node(path, settings):
    """Of the device behind a node; None where the kernel does not know."""
    number = nodes.number_of(path)
    if number is None:
        return None
    try:
        with open(f"{settings.sysfs_root}/dev/char/{os.major(number)}:{os.minor(number)}/device/numa_node", encoding="ascii") as stream:
            node = int(stream.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


BACKEND = Paths()
