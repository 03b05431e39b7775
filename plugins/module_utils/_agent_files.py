# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unpacks the agent's archive beside the versions that are there and moves the link. Private to the collection."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib

from ansible_collections.npu.fleet.plugins.module_utils._agent import MARKER, read_marker, tree_digest
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

LINK = "current"
LIMIT = 512 << 20  # of the unpacked archive; ours has about 20 MB
COMPILE_SECONDS = 300
FOLDER_MODE = 0o755


def state(home):
    """{"current": folder or None, "versions": complete folders, sorted}"""
    try:
        names = sorted(os.listdir(home))
    except OSError:
        return {"current": None, "versions": []}
    versions = [name for name in names if name != LINK and read_marker(os.path.join(home, name))]
    current = linked(home)
    return {"current": current if current in versions else None, "versions": versions}


def linked(home):
    """The folder that the link names, whatever is in it; None without a link."""
    try:
        return os.path.basename(os.readlink(os.path.join(home, LINK)))
    except OSError:
        return None


def describe(found):
    """Text for --diff."""
    lines = ["%s%s" % (name, " (current)" if name == found["current"] else "") for name in found["versions"]]
    return "".join(line + "\n" for line in lines)


def obsolete(names, folder, previous):
    """Names below home that are neither the new version nor the one before it: older versions and what an interrupted run left."""
    return sorted(name for name in names if name not in (folder, previous, LINK))


def install(home, src, version, sha256, *, python, run, check_mode):
    """Have `version` current. Returns changed, version, sha256, folder, removed, after."""
    before = state(home)
    folder = "%s-%s" % (version, sha256[:8])
    there = folder in before["versions"] and read_marker(os.path.join(home, folder))["sha256"] == sha256
    previous = before["current"]
    changed = not there or previous != folder
    if not changed or linked(home) == folder:
        names = []  # an older version stays until the next one comes, also when this one is only mended
    else:
        names = obsolete(os.listdir(home) if os.path.isdir(home) else [], folder, previous)
    result = {"changed": changed, "version": version, "sha256": sha256, "folder": folder, "removed": names}
    if check_mode or not changed:
        kept = set(before["versions"]) - set(names)
        result["after"] = {"current": folder, "versions": sorted(kept | {folder})} if changed else before
        return result
    make_folder(home)
    if not there:
        unpack(read_archive(src, sha256), home, folder, python, run)
        write_marker(os.path.join(home, folder), version, sha256)
    os.sync()
    move_link(home, folder)
    for name in names:
        delete(os.path.join(home, name))
    result["after"] = state(home)
    return result


def remove(home, check_mode):
    before = state(home)
    there = os.path.lexists(home)
    if there and not check_mode:
        delete(home)
    return {"changed": there, "removed": before["versions"], "after": {"current": None, "versions": []}}


def read_archive(src, sha256):
    """The tar stream, checked before anything of it is looked at. It is read once, so nobody can exchange it in between."""
    if not src or not os.path.isfile(src):
        raise FleetError("The archive of the agent is not on this node.", "archive_missing", object=src)
    try:
        with gzip.open(src, "rb") as stream:
            data = stream.read(LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FleetError("The archive of the agent cannot be read: %s." % error, "archive_broken", object=src) from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise FleetError(
            "The archive of the agent arrived with another checksum than it left with.", "archive_checksum", object=src,
            observed=found, hint="Expected %s; run again, and look at the disk of node and controller if it persists." % sha256,
        )
    return data


def safe(member):
    """A plain file or folder below where it is unpacked to."""
    parts = member.name.split("/")
    return (member.isfile() or member.isdir()) and not member.name.startswith("/") and ".." not in parts and "" not in parts


def unpack(data, home, folder, python, run):
    """Into a hidden folder first; modes are set by hand, since root's umask may hide files from whom they are for."""
    temporary = os.path.join(home, ".new-" + folder)
    delete(temporary)
    make_folder(temporary)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            if not safe(member):
                raise FleetError("The archive of the agent has an unsafe member: %s." % member.name, "archive_unsafe", object=member.name)
            path = os.path.join(temporary, member.name)
            content = archive.extractfile(member)
            if content is None:  # a folder
                make_folder(path)
                continue
            with open(path, "wb") as target:
                shutil.copyfileobj(content, target)
            os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)
    compile_files(temporary, os.path.join(home, folder), python, run)
    swap(temporary, home, folder)


def swap(temporary, home, folder):
    """What was there goes aside first and is deleted last: the link names a whole folder again after two renames."""
    old = os.path.join(home, ".old-" + folder)
    delete(old)
    if os.path.lexists(os.path.join(home, folder)):
        os.rename(os.path.join(home, folder), old)
    os.rename(temporary, os.path.join(home, folder))
    delete(old)


def compile_files(temporary, final, python, run):
    """Bytecode now: the agent is to register within a second of its start. Also proves that the node's Python is there."""
    result = run([python, "-I", "-m", "compileall", "-q", "-s", temporary, "-p", final, temporary], timeout=COMPILE_SECONDS)
    if result.rc != 0:
        said = (result.stdout + result.stderr).strip()[-500:]
        raise FleetError("The agent's files do not fit the node's Python %s: %s" % (python, said), "python_mismatch", object=python)
    for path, folders, files in os.walk(temporary):
        for name in folders:
            os.chmod(os.path.join(path, name), FOLDER_MODE)
        for name in files:
            if name.endswith(".pyc"):
                os.chmod(os.path.join(path, name), 0o644)


def write_marker(folder, version, sha256):
    path = os.path.join(folder, MARKER)
    tree = tree_digest(folder)
    with open(path, "w") as stream:
        json.dump({"version": version, "sha256": sha256, "tree": tree}, stream)
        stream.write("\n")
    os.chmod(path, 0o644)


def make_folder(path):
    if not os.path.isdir(path):
        os.makedirs(path)
    os.chmod(path, FOLDER_MODE)


def move_link(home, folder):
    """In one step, relative, so that it also holds under another root."""
    temporary = os.path.join(home, ".current.new")
    delete(temporary)
    os.symlink(folder, temporary)
    if os.path.isdir(os.path.join(home, LINK)) and not os.path.islink(os.path.join(home, LINK)):
        raise FleetError("%s is a folder, not a link." % os.path.join(home, LINK), "link_is_folder", object=os.path.join(home, LINK))
    os.rename(temporary, os.path.join(home, LINK))


def delete(path):
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)
