# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the driver's files a container gets, by CDI or in the answer to kubelet: what exists of the vendor runtime's own list, or of
ours where that runtime is not installed.

The rules are the vendor's: one absolute path a line, at most 128, patterns allowed, what does not exist is skipped, a symbolic link only
where links are allowed (there ASCEND_ALLOW_LINK=True, which the boards with a 310B need; with the libraries of the UB bus, which come
under names of their versions, the vendor's runtime allows them by itself). All of it is read-only, and nothing is promised that was not
seen on the host (host.py); what cannot be seen is told.
"""

import errno
import functools
import glob
import os
import stat
import time

from . import host as hosts

LIMIT = 128
# When many containers come at once, one look serves them all. A container starts later than that after the answer (kubelet shows it some
# 40 ms later, measured), so what is there may change in between anyway.
RECENT_SECONDS = 0.05
_recent: dict = {}  # {question: (monotonic time, answer)}, one at most
LINK_FAMILIES = ("310b", "a5")
# Where images look for the driver, whatever path it has on the host.
DRIVER = "/usr/local/Ascend/driver"

# As the vendor's base.list, by the kinds of boards that it knows; what the hook mounts beside it; and two files that CANN looks for and
# users add by hand (facts/ascend-docker-runtime.md, section 7).
_EVERYWHERE = [
    f"{DRIVER}/lib64", f"{DRIVER}/include", f"{DRIVER}/topo", f"{DRIVER}/version.info", "/usr/local/dcmi", "/usr/local/bin/npu-smi",
    "/var/queue_schedule", "/etc/hccl_rootinfo.json", "/etc/ascend_install.info",
]
_BOARD = ["/etc/hdcBasic.cfg", "/etc/sys_version.conf"]
_BOARD_310B = [
    *_BOARD, "/usr/local/sbin/npu-smi", "/var/slogd", "/var/dmp_daemon", "/etc/ld.so.conf.d/mind_so.conf",
    *(f"/usr/lib64/{name}" for name in (
        "libaicpu_processer.so", "libaicpu_prof.so", "libaicpu_sharder.so", "libaicpu_scheduler.so", "libadump.so", "libtsd_eventclient.so",
        "libdcmi.so", "libmpi_dvpp_adapter.so", "libstackcore.so", "aicpu_kernels", "libsemanage.so.2", "libmmpa.so", "libdrvdsmi.so",
    )),
    # Of the distribution: in one of these folders.
    *(f"{folder}/{name}" for folder in ("/usr/lib64", "/usr/lib/aarch64-linux-gnu") for name in ("libcrypto.so.1.1", "libyaml-0.so.2")),
]
_UB = [f"/usr/lib64/{name}" for name in ("libummu*", "liburma*", "urma", "libnl*")] + [
    f"/usr/bin/{name}" for name in ("urma_admin", "urma_perftest", "urma_ping")
]
_SERVER = [*_EVERYWHERE, "/etc/hccn.conf"]  # addresses of the chips' network ports
BUILT_IN = {
    "310": [*_EVERYWHERE, *_BOARD, f"{DRIVER}/tools", "/usr/local/sbin/npu-smi", "/home/data/miniD/driver/lib64"],
    "310p": [*_EVERYWHERE, *_BOARD], "310b": [*_EVERYWHERE, *_BOARD_310B],
    "910": _SERVER, "a2": _SERVER, "a3": _SERVER, "a5": [*_EVERYWHERE, *_UB],
}


def links_allowed(setting, families):
    return setting == "allow" or (setting == "family" and any(family in LINK_FAMILIES for family in families))


def runtime_installed(settings):
    """The vendor's runtime comes with its list and takes it away again."""
    return os.path.exists(settings.cdi_mounts)


def of(settings, families):
    """([(host path, container path)], problems) of what a container with chips of these families gets on this node."""
    links, host = links_allowed(settings.cdi_links, families), hosts.of(settings)
    if runtime_installed(settings):
        lines, problems = read_list(settings.cdi_mounts)
        found, more = existing([(line, None) for line in lines], links, host)
        return found, problems + more
    return existing(built_in(tuple(families), settings.install_path), links, host)


@functools.lru_cache(maxsize=16)
def built_in(families, install_path):
    """((host path or pattern, container path), ...) of BUILT_IN for these families, each once."""
    listed = dict.fromkeys(line for family in families for line in BUILT_IN[family])
    return tuple((host_path(line, install_path), line) for line in listed)


def answered(settings):
    """Whether the answer to kubelet has mounts."""
    if settings.allocate_by == "cdi" or settings.allocate_mode == "env" or settings.allocate_mounts == "never":
        return False
    return settings.allocate_mounts == "always" or not runtime_installed(settings)


def for_container(settings, families):
    """[(host path, container path)] for the answer to kubelet, as it was at most RECENT_SECONDS ago."""
    if not answered(settings):
        return []
    question, now = (*families, settings.cdi_links, settings.cdi_mounts, settings.install_path), time.monotonic()
    when, found = _recent.get(question, (float("-inf"), []))
    if now - when > RECENT_SECONDS:
        found = of(settings, families)[0]
        _recent.clear()
        _recent[question] = now, found
    return found


def problems(settings, families):
    """What containers with chips of these families lack of the driver's files, one text each."""
    return of(settings, sorted(families))[1] if families and (settings.allocate_by == "cdi" or answered(settings)) else []


def host_path(line, install_path):
    """A line of BUILT_IN where the driver is installed elsewhere."""
    return f"{install_path}/driver{line[len(DRIVER):]}" if line.startswith(f"{DRIVER}/") else line


def read_list(path):
    """(lines, problems) of the list."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            lines = [line.strip() for line in stream]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return [], [f"there is no {path} any more: containers get device nodes, but none of the driver's files"]
        return [], [f"{path} cannot be read: {error.strerror}"]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) > LIMIT:
        return lines[:LIMIT], [f"{path} has {len(lines)} lines; the first {LIMIT} count, as in the vendor's runtime"]
    return lines, []


@functools.lru_cache(maxsize=2 * LIMIT)
def read_line(line):
    """(it is a plain absolute path, it is a pattern)"""
    return line.startswith("/") and "\0" not in line and line.isprintable(), glob.has_magic(line)


def existing(lines, links, host):
    """([(host path, container path)], problems) of [(path or pattern, container path or None: the same)]. A link's host path is what it
    leads to; the container sees it under the listed name."""
    found, problems, unseen, folders = {}, [], [], {}
    for line, inside in lines:
        plain, pattern = read_line(line)
        if not plain:
            problems.append(f"{line!r} of the list is no plain absolute path")
            continue
        path_or_pattern = os.path.normpath(line)  # a slash at the end would follow a link
        matching = host.matching(path_or_pattern) if pattern and host.sees(path_or_pattern) else [path_or_pattern]
        for path in matching:
            try:
                real, why = judged(path, links, host, folders)
            except (OSError, ValueError):
                continue
            if real is None:
                unseen.append(path)
            elif why:
                problems.append(f"{path} is {why}")
            else:
                found[path if pattern or inside is None else inside] = real
    return [(there, inside) for inside, there in found.items()], problems + ([unseen_text(unseen)] if unseen else [])


def judged(path, links, host, folders):
    """(what the host has to mount for it, why it must not); None for the first: it is not seen. OSError: there is nothing.
    folders: {folder: where it leads to} of those that were looked at already."""
    folder, name = os.path.split(path)
    if folder not in folders:
        folders[folder] = host.leads_to(folder).rstrip("/")
    real = here = f"{folders[folder]}/{name}"
    if not (host.sees(path) and host.sees(here)):
        return None, ""
    kind = host.mode(here)
    link = stat.S_ISLNK(kind)
    if link:
        real = host.leads_to(here)
        if not host.sees(real):
            return None, ""
        kind = host.mode(real)
    if link and not links:
        return real, "a symbolic link and is left out; `cdi_links: allow` takes such ones in"
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        return real, "neither file nor folder and is left out"
    return real if link else path, ""


def unseen_text(paths):
    return (f"containers do not get {', '.join(paths)}, whether this host has them or not: npu-agent does not see these places of it. "
            "Where pods need them, install the vendor's container runtime, which mounts them itself with `allocate_by: nodes`; or run "
            "npu-agent as a service")
