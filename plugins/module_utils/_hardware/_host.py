# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host around the chips: system, kernel, users, and the processes that hold an NPU's device nodes."""

import os
import platform
import pwd
import re
import shlex

# A chip's node, a virtual chip's node, or the manager that every user of the driver opens.
HELD = re.compile(r"^/dev/(v?davinci[0-9]+|davinci_manager(?:_docker)?)(?: \(deleted\))?$")
CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
# kubelet's cgroup of a pod: the systemd driver writes the uid with underscores.
POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?![0-9a-f])")
UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(?:service|scope)\Z")


def under(root, path):
    """This absolute path below another root."""
    return os.path.join(root, path.lstrip("/"))


def read(path):
    """Text of a file, None when there is none or it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return None


def listed(path):
    """Names in a folder, sorted; none when there is no such folder."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def os_release(root="/"):
    """id, version_id and pretty_name as os-release(5) has them; None for what it does not say."""
    values = {}
    text = read(under(root, "/etc/os-release")) or read(under(root, "/usr/lib/os-release")) or ""
    for line in text.splitlines():
        key, sign, value = line.strip().partition("=")
        if sign and not key.startswith("#"):
            try:
                values[key] = "".join(shlex.split(value))
            except ValueError:
                values[key] = value
    return {"id": values.get("ID"), "version_id": values.get("VERSION_ID"), "pretty_name": values.get("PRETTY_NAME")}


def host(root="/", proc_root="/proc"):
    """Who this machine is and which boot of it this is."""
    uname = platform.uname()
    boot_id = read(os.path.join(proc_root, "sys/kernel/random/boot_id"))
    release = read(os.path.join(proc_root, "sys/kernel/osrelease"))
    return {
        "hostname": uname.node,
        "os": os_release(root),
        "arch": uname.machine,
        "kernel": (release or uname.release).strip(),
        "boot_id": boot_id.strip() if boot_id else None,
        "python": platform.python_version(),
    }


def boot_time(proc_root="/proc"):
    """When this kernel started, in seconds since the epoch; None when it does not say."""
    found = re.search(r"^btime (\d+)$", read(os.path.join(proc_root, "stat")) or "", re.MULTILINE)
    return int(found.group(1)) if found else None


def users_present(names, root="/"):
    """{name: is there such a user}. The machine's own user database, which may be more than a file, is asked for root /."""
    if os.path.realpath(root) != "/":
        lines = (read(under(root, "/etc/passwd")) or "").splitlines()
        known = {line.split(":")[0] for line in lines}
        return {name: name in known for name in names}
    answer = {}
    for name in names:
        try:
            pwd.getpwnam(name)
            answer[name] = True
        except KeyError:
            answer[name] = False
    return answer


def container_of(cgroup_text):
    """Id of the innermost container that this cgroup text names (docker, containerd and cri-o all use 64 hex digits)."""
    found = CONTAINER.findall(cgroup_text or "")
    return found[-1] if found else None


def pod_of(cgroup_text):
    """Uid of the innermost pod that this cgroup text names, as the API server writes it."""
    found = POD.findall(cgroup_text or "")
    return found[-1].replace("_", "-") if found else None


def unit_of(cgroup_text, own_container=None):
    """Name of the unit of this machine's systemd that this cgroup text names.

    It is the outermost part that is no slice, as systemd's own cg_path_get_unit has it: units of users and of a systemd in a container
    stand further in and may bear any name. What lies around our own container is not of this machine.
    """
    paths = {}
    for line in (cgroup_text or "").splitlines():
        controllers, sign, path = line.partition(":")[2].partition(":")
        if sign and controllers in ("", "name=systemd"):
            paths[controllers] = path
    for controllers in ("name=systemd", ""):
        parts = paths.get(controllers, "").split("/")
        inside = [number + 1 for number, part in enumerate(parts) if own_container and own_container in part]
        parts = [part for part in parts[inside[-1] if inside else 0:] if part and not part.endswith(".slice")]
        if parts and UNIT.match(parts[0]):
            return parts[0]
    return None


def holders(proc_root="/proc", nodes=()):
    """Processes that have an NPU's node open: a node that is one's by its name, or one of ``nodes``.

    Other users' processes are only seen by root; one that ends meanwhile is left out.
    """
    own = container_of(read(os.path.join(proc_root, "self", "cgroup")))
    found = []
    for pid in sorted(int(name) for name in listed(proc_root) if name.isdigit()):
        folder = os.path.join(proc_root, str(pid))
        links = os.path.join(folder, "fd")
        devices = sorted({device for device in (_held(os.path.join(links, name), nodes) for name in listed(links)) if device})
        if devices:
            cgroup = read(os.path.join(folder, "cgroup"))
            container = container_of(cgroup)
            unit = unit_of(cgroup, own)
            comm = (read(os.path.join(folder, "comm")) or "").strip() or None
            container = None if container == own else container
            holder = {"pid": pid, "comm": comm, "container": container, "pod_uid": pod_of(cgroup) if container else None, "unit": unit}
            found += [dict(holder, device=device) for device in devices]
    return found


def _held(link, nodes):
    """The device node behind a file descriptor's link, if it is one of an NPU."""
    try:
        target = os.readlink(link)
    except OSError:
        return None
    match = HELD.match(target)
    if match:
        return "/dev/" + match.group(1)
    return target if target in nodes else None
