# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container gets: the answers of plugins merged as kubelet hands them to the engine, and what the engine makes of them."""

import os
import stat

from . import cdi


class NotCreated(Exception):
    """The engine cannot create the container: the message that the pod shows."""


def merge(responses, pod_env):
    """Several resources of one container: the first answer for a name or container path counts (source). The pod's own value of a
    variable wins over the plugin's, because it comes later."""
    merged = {"env": {}, "devices": [], "mounts": [], "annotations": {}, "cdi_devices": []}
    for response in responses:
        for field, name in (("env", "envs"), ("annotations", "annotations")):
            for key, value in response[name].items():
                merged[field].setdefault(key, value)
        for field in ("devices", "mounts"):
            known = {entry["container_path"] for entry in merged[field]}
            for entry in response[field]:
                if entry["container_path"] not in known:
                    known.add(entry["container_path"])
                    merged[field].append(dict(entry))
        merged["cdi_devices"] += [each["name"] for each in response["cdi_devices"] if each["name"] not in merged["cdi_devices"]]
    merged["env"].update(pod_env)
    return merged


def create(merged, cdi_folders):
    """`merged` with what stands behind it on this host; NotCreated.

    cdi_folders: where an engine with CDI reads specifications; None for an engine without CDI, which drops the names silently (measured:
    the pod runs without the device). With CDI their edits are in env, devices and mounts, after what the plugin's answers brought.
    """
    given = {**merged, "env": dict(merged["env"]), "devices": [dict(each) for each in merged["devices"]],
             "mounts": [dict(each) for each in merged["mounts"]]}
    if cdi_folders is None:
        given["cdi_devices"] = []
    else:
        try:
            edits = cdi.resolve(given["cdi_devices"], cdi_folders)
        except cdi.Unresolved as error:
            raise NotCreated(f"CDI device injection failed: {error}") from error
        given["env"].update(edits["env"])
        given["devices"] += edits["devices"]
        given["mounts"] += edits["mounts"]
    for device in given["devices"]:
        device.update(node(device["host_path"]))
    for mount in given["mounts"]:
        if not os.path.exists(mount["host_path"]):
            raise NotCreated(f"stat {mount['host_path']}: no such file or directory")
    return given


def node(path):
    """{"type": c, b or file, "major", "minor", "mode"} of a device node on the host; major and minor are None for what is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise NotCreated(f"lstat {path}: no such file or directory") from None  # measured
    kind = "c" if stat.S_ISCHR(found.st_mode) else "b" if stat.S_ISBLK(found.st_mode) else "file"
    major, minor = (None, None) if kind == "file" else (os.major(found.st_rdev), os.minor(found.st_rdev))
    return {"type": kind, "major": major, "minor": minor, "mode": stat.S_IMODE(found.st_mode)}
