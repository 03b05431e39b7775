# SPDX-License-Identifier: GPL-3.0-or-later
"""The CDI file on this node: written when it would say something else, removed when there is nothing to say, never taken from others."""

import json
import os
import stat
from typing import Optional

from . import cdi, files, mounts, nodes
from .backends.ascend import manager_nodes
from .log import Once

DEFAULT_FOLDER = "/etc/cdi"
FOLDER_MODE = 0o755


class Trouble(Exception):
    """Why the file is not what it should be, for an operator."""


def path_in(folder):
    return os.path.join(folder, cdi.FILE)


def wanted(sight, settings):
    """(text or None, problems) for what look.py saw. None: no chip of this node can be given to a container."""
    if unsure(sight.chips, settings.dev_root):
        raise Trouble("the driver does not tell which slices (vNPUs) its chips have, and this node has some; try again")
    return specification(sight.chips, settings)


def added(text, sight, settings):
    """The same where not everything is known: what the file says now (text, None: there is none), and what was seen beside it."""
    chips = [chip for chip in sight.chips if not unsure([chip], settings.dev_root)]
    before = json.loads(text) if text and text.strip() else None
    return specification(chips, settings, None if before is None or cdi.faults(before) else before)


def specification(chips, settings, before=None):
    whole, slices = offered(chips, settings.dev_root)
    for name in names_in(before):
        if name.isdecimal():
            whole.add(int(name))
        elif name != cdi.ALL:
            slices.add(int(name[len(cdi.slice_name("")):]))
    if not whole and not slices:
        return None, []
    families = sorted({chip["family"] for chip in chips})
    found, problems = mounts.of(settings, families) if families else ([], [])
    spec = cdi.document(whole, slices, manager_nodes(families, settings.dev_root), found, settings.dev_root)
    if before is not None:
        cdi.keep_shared(spec, before)
    if settings.allocate_by == "cdi" and "mounts" not in spec["containerEdits"]:
        # Nothing else would bring the driver's files into the container.
        why = "; ".join(problems) or "the list names nothing that exists"
        raise Trouble(f"containers would get chips without the driver's files: {why}")
    faults = cdi.faults(spec)
    if faults:
        raise Trouble(f"the CDI specification of this node would be wrong and is not written: {'; '.join(faults)}")
    return cdi.text(spec), problems


def names_in(spec):
    return [device["name"] for device in spec["devices"]] if spec else []


def offered(chips, dev_root):
    """(physical ids of whole chips, vdev ids of slices) whose device nodes can be given. A chip with slices is not there as a whole."""
    whole, slices = set(), set()
    for chip in chips:
        vdev_ids = [entry["vdev_id"] for entry in chip.get("slices") or ()]
        slices.update(vdev_id for vdev_id in vdev_ids if nodes.number_of(f"{dev_root}/vdavinci{vdev_id}") is not None)
        if chip["device_node_present"] and not chip.get("node_trouble") and not vdev_ids:
            whole.add(chip["phy_id"])
    return whole, slices


def unsure(chips, dev_root):
    """Whether a chip may have slices that were not told."""
    return any(chip.get("slices") is None for chip in chips) and bool(nodes.slice_nodes(dev_root))


def certain(sight):
    """Everything was seen: what is not there does not exist. Otherwise nothing may be concluded from what is missing."""
    return sight.complete and (bool(sight.chips) or not sight.present)


def read(folder) -> Optional[str]:
    """Text of our file, None when there is none. Trouble when the name is somebody else's."""
    path = path_in(folder)
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise Trouble(f"{path} is no ordinary file: move it away")
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Trouble(f"{path} cannot be read: {error.strerror}") from None
    try:
        ours = not text.strip() or json.loads(text)["kind"] == cdi.KIND
    except (ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise Trouble(f"{path} was not written by npu-agent: move it away")
    return text


def write(folder, text):
    """Replace the file in one step. Engines of all users may read it, whatever our umask is."""
    path = path_in(folder)
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder)
            os.chmod(folder, FOLDER_MODE)
        files.replace(path, text, 0o644)  # engines read *.json and *.yaml only, so a half one is never seen
    except OSError as error:
        raise Trouble(f"{path} cannot be written: {error.strerror}{way_out(folder)}") from None


def remove(folder):
    """True when there was a file of ours."""
    if read(folder) is None:
        return False
    try:
        os.unlink(path_in(folder))
        files.settle(folder)
    except OSError as error:
        raise Trouble(f"{path_in(folder)} cannot be removed: {error.strerror}{way_out(folder)}") from None
    return True


def way_out(folder):
    # The unit opens this one folder below a read-only /etc when it starts; a folder that came later is not the one it opened.
    return f"; in the service this means that {folder} was not there when it started: `mkdir -p {folder}; systemctl restart npu-agent`"


def put(folder, text):
    """Have the file say this (None: have no file). The word for what was done, or None."""
    if text is None:
        return "removed" if remove(folder) else None
    if read(folder) == text and stat.S_IMODE(os.stat(path_in(folder)).st_mode) == 0o644:
        return None
    write(folder, text)
    return "written"


class Keeper:
    """Keeps the file in step with what is seen, from the thread that looks: the file is right before kubelet hears of a chip."""

    def __init__(self, settings, log):
        self.settings, self.log, self.say = settings, log, Once(log)

    def keep(self, sight):
        """The sight, with what went wrong here. A chip that the file does not name takes no work where Allocate relies on it.

        While not everything is known the file is added to, and nothing is taken out of it.
        """
        settings = self.settings
        if certain(sight):
            sight = sight._replace(problems=[*sight.problems, *self.lacking(sight)])
        if not settings.cdi_folder:
            return sight
        try:
            folder, done = settings.cdi_folder, None
            if certain(sight) and not unsure(sight.chips, settings.dev_root):
                text, problems = wanted(sight, settings)
                done = put(folder, text)
            else:
                before = read(folder)
                text, problems = added(before, sight, settings)
                text = before if text is None else text
                done = None if text is None else put(folder, text)
        except Trouble as trouble:
            return self.without(sight, str(trouble))
        except Exception as error:  # the chips are served all the same
            return self.without(sight, f"keeping the CDI specification failed: {error!r}")
        if done:
            self.log(f"CDI specification {done}", path=path_in(folder), devices=[chip["phy_id"] for chip in sight.chips])
        if problems and settings.allocate_by != "cdi":  # there they are the node's
            self.say("CDI specification", "warning", problems=problems)
        else:
            self.say.over()
        return self.described(sight, text)

    def lacking(self, sight):
        """What containers lack of the driver's files."""
        try:
            return mounts.problems(self.settings, {chip["family"] for chip in sight.chips})
        except Exception as error:  # the chips are served all the same
            return [f"looking for the driver's files failed: {error!r}"]

    def described(self, sight, text):
        """The sight, where the file is relied on, with a word on each chip that it does not name."""
        if self.settings.allocate_by != "cdi":
            return sight
        names, missing = set(names_in(json.loads(text)) if text and text.strip() else ()), {}
        for chip in sight.chips:
            wanted = [cdi.slice_name(one["vdev_id"]) for one in chip.get("slices") or ()] or [str(chip["phy_id"])]
            if not names.issuperset(wanted):
                missing[chip["phy_id"]] = f"{path_in(self.settings.cdi_folder)} does not name it, and chips are given by it"
        chips = [dict(chip, not_described=missing[chip["phy_id"]]) if chip["phy_id"] in missing else chip for chip in sight.chips]
        return sight._replace(chips=chips) if missing else sight

    def without(self, sight, trouble):
        chips = sight.chips
        if self.settings.allocate_by == "cdi":
            chips = [dict(chip, not_described=trouble) for chip in chips]
        return sight._replace(chips=chips, problems=[*sight.problems, trouble])
