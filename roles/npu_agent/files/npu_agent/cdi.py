# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of this node's NPUs for container engines (Container Device Interface, CDI). Pure: what it says and what it may say.

An engine that knows CDI gives a container what stands here when it is asked for `npu.fleet/ascend=0`: by kubelet (`allocate_by: cdi`),
or by `docker run --device`, `podman run --device`, `nerdctl run --device`. Names are physical ids (N of /dev/davinciN), the nodes of
slices (vdavinciN), and `all`.

Version 0.5.0 is the lowest one that allows names that begin with a digit and host paths of device nodes. An engine ignores a file with a
version that is newer than it knows, so a higher one would shut out engines for nothing.

Device nodes have no major and minor numbers: the engine reads them when the container is made, so a driver that comes back with other
numbers needs no new file.
"""

import json
import re

VERSION = "0.5.0"
VENDOR, CLASS = "npu.fleet", "ascend"
KIND = f"{VENDOR}/{CLASS}"
ALL = "all"
FILE = "npu-fleet-ascend.json"
# Everything is in the container already, so the vendor's runtime, where it is the default, shall add nothing: it takes the last value that
# the environment has, and CDI's comes last. With it nobody gets other chips by naming them in a pod's environment.
ENVIRONMENT = ["ASCEND_VISIBLE_DEVICES=void"]
# As the vendor's runtime mounts.
MOUNT_OPTIONS = ["ro", "nosuid", "rbind", "rprivate"]


def name_of(chip):
    """The name of a chip.Chip in the specification."""
    return str(chip.phy_id) if chip.slice is None else slice_name(chip.slice.vdev_id)


def slice_name(vdev_id):
    return f"vdavinci{vdev_id}"


def qualified(name):
    """That name towards engines and kubelet."""
    return f"{KIND}={name}"


def device_node(host, inside):
    node = {"path": inside, "permissions": "rw"}
    return node if host == inside else {"path": inside, "hostPath": host, "permissions": "rw"}


def document(phy_ids, slices, managers, mounts, dev_root):
    """The specification of whole chips and of slices (vdev ids), at least one of them. `managers` and `mounts` are [(host path,
    container path)] of what exists.

    What all chips share stands once, at the top: an engine applies it once however many chips a container gets.
    """
    chips = [(str(number), device_node(f"{dev_root}/davinci{number}", f"/dev/davinci{number}")) for number in sorted(phy_ids)]
    chips += [(slice_name(number), device_node(f"{dev_root}/vdavinci{number}", f"/dev/davinci{number}")) for number in sorted(slices)]
    devices = [{"name": name, "containerEdits": {"deviceNodes": [node]}} for name, node in chips]
    devices.append({"name": ALL, "containerEdits": {"deviceNodes": [node for _name, node in chips]}})
    shared: dict = {"env": list(ENVIRONMENT)}
    if managers:
        shared["deviceNodes"] = [device_node(host, inside) for host, inside in managers]
    if mounts:
        shared["mounts"] = [{"hostPath": host, "containerPath": inside, "options": list(MOUNT_OPTIONS)} for host, inside in mounts]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices, "containerEdits": shared}


def keep_shared(spec, before):
    """Add what all chips share in `before` and lack in `spec`: manager nodes, mounts."""
    for key, unique in (("deviceNodes", "path"), ("mounts", "containerPath")):
        kept = before.get("containerEdits", {}).get(key, [])
        there = {entry[unique] for entry in kept}
        every = [*kept, *(entry for entry in spec["containerEdits"].get(key, []) if entry[unique] not in there)]
        if every:
            spec["containerEdits"][key] = every


def text(spec):
    return json.dumps(spec, indent=2) + "\n"


# --- The rules: SPEC.md, schema.json and pkg/parser of container-device-interface, as of version 0.5.0.

_QUALIFIER = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?\Z")  # a dot needs 0.6.0
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_TOP = {"cdiVersion": str, "kind": str, "devices": list, "containerEdits": dict}
_DEVICE_KEYS = {"name": str, "containerEdits": dict}
_EDITS = {"env": list, "deviceNodes": list, "mounts": list, "hooks": list}
_NODE = {"path": str, "hostPath": str, "type": str, "major": int, "minor": int, "fileMode": int, "permissions": str, "uid": int, "gid": int}
_MOUNT = {"hostPath": str, "containerPath": str, "type": str, "options": list}
_HOOK = {"hookName": str, "path": str, "args": list, "env": list, "timeout": int}


def faults(spec):
    """What is wrong with a specification, one text each; none when an engine takes it. An engine ignores a file with one fault entirely,
    and says so in its log only."""
    if not isinstance(spec, dict):
        return ["the specification is no mapping"]
    found = _keys(spec, "", _TOP, ("cdiVersion", "kind", "devices"))
    if found:
        return found
    if spec["cdiVersion"] != VERSION:
        found.append(f"cdiVersion is {spec['cdiVersion']!r}, these rules are those of {VERSION}")
    vendor, _slash, kind = spec["kind"].partition("/")
    if not _QUALIFIER.match(vendor):
        found.append(f"kind: the vendor {vendor!r} must begin with a letter, end with a letter or digit, and have only those and '_.-'")
    if not _CLASS.match(kind):
        found.append(f"kind: the class {kind!r} must begin with a letter, end with a letter or digit, and have only those and '_-'")
    if not spec["devices"]:
        found.append("devices: there is none")
    names = set()
    for number, device in enumerate(spec["devices"]):
        where = f"devices[{number}]"
        wrong = _keys(device, where, _DEVICE_KEYS, ("name", "containerEdits"))
        found += wrong
        if wrong:
            continue
        if not _DEVICE.match(device["name"]):
            found.append(f"{where}: the name {device['name']!r} must begin and end with a letter or digit, and have only those and '_.:-'")
        if device["name"] in names:
            found.append(f"{where}: the name {device['name']!r} is there twice")
        names.add(device["name"])
        if not any(device["containerEdits"].values()):
            found.append(f"{where}: containerEdits is empty")
        found += _edits(device["containerEdits"], f"{where}.containerEdits")
    return found + _edits(spec.get("containerEdits", {}), "containerEdits")


def _keys(value, where, known, required):
    """Faults of one mapping: its keys and their types."""
    prefix = f"{where}: " if where else ""
    if not isinstance(value, dict):
        return [f"{prefix}must be a mapping"]
    found = [f"{prefix}there is no key {key!r} in CDI {VERSION}" for key in value if key not in known]
    found += [f"{prefix}{key} is missing" for key in required if key not in value]
    for key, kind in known.items():
        if key in value and (not isinstance(value[key], kind) or isinstance(value[key], bool)):
            found.append(f"{prefix}{key} must be {'a number' if kind is int else {str: 'text', list: 'a list', dict: 'a mapping'}[kind]}")
    return found


def _edits(edits, where):
    found = _keys(edits, where, _EDITS, ())
    if found:
        return found
    found += _variables(edits.get("env", []), f"{where}.env")
    for key, known, required, unique in (
        ("deviceNodes", _NODE, ("path",), "path"), ("mounts", _MOUNT, ("hostPath", "containerPath"), "containerPath"),
        ("hooks", _HOOK, ("hookName", "path"), None),
    ):
        seen = set()
        for number, item in enumerate(edits.get(key, [])):
            place = f"{where}.{key}[{number}]"
            wrong = _keys(item, place, known, required)
            found += wrong or _item(item, place)
            if wrong or unique is None:
                continue
            if item[unique] in seen:
                found.append(f"{place}: {unique} {item[unique]} is there twice")
            seen.add(item[unique])
    return found


def _variables(entries, where):
    return [f"{where}: {entry!r} is not NAME=VALUE" for entry in entries
            if not isinstance(entry, str) or "\0" in entry or entry.find("=") < 1]


def _item(item, where):
    """Faults of a device node, mount or hook whose keys are right."""
    found = []
    for key in ("path", "hostPath", "containerPath"):
        if key in item and (not item[key].startswith("/") or "\0" in item[key] or ".." in item[key].split("/")):
            found.append(f"{where}: {key} {item[key]!r} is no absolute path")
    if "hookName" in item:
        if item["hookName"] not in _HOOKS:
            found.append(f"{where}: hookName {item['hookName']!r} is none of {', '.join(_HOOKS)}")
        found += _variables(item.get("env", []), f"{where}.env")
    elif "containerPath" not in item:
        if item.get("type", "") not in ("", "b", "c", "u", "p"):
            found.append(f"{where}: type {item['type']!r} is none of b, c, u, p")
        if set(item.get("permissions", "")) - set("rwm"):
            found.append(f"{where}: permissions {item['permissions']!r} has other letters than r, w, m")
    for key in ("options", "args"):
        if not all(isinstance(word, str) for word in item.get(key, [])):
            found.append(f"{where}: {key} must be a list of texts")
    return found
