# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine with CDI makes of fully qualified device names (Container Device Interface; specifications in JSON only)."""

import json
import os


class Unresolved(Exception):
    pass


def load(folders):
    """{kind: specification}; a later folder counts more, as /var/run/cdi does beside /etc/cdi. Files that cannot be read are left out."""
    found = {}
    for folder in folders:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if not name.endswith(".json"):
                continue
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as stream:
                    spec = json.load(stream)
                found[spec["kind"]] = spec
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return found


def resolve(names, folders):
    """{"env": {}, "devices": [], "mounts": []} of all names together, entries in the form of a plugin's answer."""
    merged = {"env": {}, "devices": [], "mounts": []}
    if not names:
        return merged
    specs, edits, missing = load(folders), [], []
    for name in names:
        kind, _equals, device = name.partition("=")
        match = [each for each in specs.get(kind, {}).get("devices", []) if each["name"] == device]
        if not match:
            missing.append(name)
            continue
        common = specs[kind].get("containerEdits", {})
        edits += [match[0].get("containerEdits", {}), *([common] if common not in edits else [])]
    if missing:
        raise Unresolved(f"unresolvable CDI devices {', '.join(missing)}")
    for edit in edits:
        for line in edit.get("env", []):
            key, _equals, value = line.partition("=")
            merged["env"][key] = value
        for device in edit.get("deviceNodes", []):
            merged["devices"].append({"container_path": device["path"], "host_path": device.get("hostPath", device["path"]),
                                      "permissions": device.get("permissions", "rwm")})
        for mount in edit.get("mounts", []):
            merged["mounts"].append({"container_path": mount["containerPath"], "host_path": mount["hostPath"],
                                     "read_only": "ro" in mount.get("options", [])})
    return merged
