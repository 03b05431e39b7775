# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dockerd's daemon.json: our runtime in, our runtime out, everything else as it was. Private to the collection. Pure functions.

isulad has a file of the same form; what differs stands in a ``Dialect`` (``_engine_config_isulad.py``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ansible_collections.npu.fleet.plugins.module_utils._engine_docker import conflicts
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_json as places
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Edit, EngineFile, Wanted, files_of

DEFAULT_KEY = "default-runtime"
STOCK_RUNTIME = "runc"
# dockerd refuses these names for runtimes of the file (moby daemon/runtime_unix.go).
RESERVED = ("runc", "io.containerd.runc.v2", "io.containerd.runtime.v1.linux")

# Old dockerd took "true" for true; 23 and newer refuse to start then.
BOOLEANS = (
    "debug", "experimental", "icc", "init", "ip-forward", "ip-masq", "ip6tables", "iptables", "ipv6", "live-restore", "no-new-privileges",
    "raw-logs", "selinux-enabled", "tls", "tlsverify", "userland-proxy",
)  # fmt: skip
NUMBERS = ("default-shm-size-bytes", "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts", "mtu",
           "network-control-plane-mtu", "shutdown-timeout")  # fmt: skip

# A file that says nothing is noted as it was, so that it comes back as it was; a longer one than this says something about its admin only.
EMPTY_LIMIT = 200


@dataclass(frozen=True)
class Dialect:
    """What differs between engines with a daemon.json: the key of the arguments, names the engine keeps for itself, what a reload needs."""

    engine: str = "dockerd"
    args_key: str = "runtimeArgs"
    reserved: tuple[str, ...] = RESERVED
    bridges: bool = True
    checks_types: bool = True


DOCKERD = Dialect()


def plan_edit(found: dict, wanted: Wanted, dialect: Dialect = DOCKERD) -> Edit:
    """Return the change of daemon.json; FleetError where the file and the engine's command line contradict each other."""
    file = files_of(found, "main")[0]
    runtimes, default = found["effective"]["runtimes"], found["effective"]["default_runtime"]
    result = edit(file.data, file.path, wanted, found["note"], runtimes, dialect=dialect)
    result.path, result.before = file.path, places.decode(file.data, file.path)
    if result.remove and "config-file" in (found.get("flag_keys") or []):
        # An engine that is told its file by name does not start or reload without it (moby daemon/config, Reload).
        result.remove, result.text = False, "{}\n"
    _refuse_conflicts(found, file, wanted, result, dialect)
    if dialect.bridges and wanted.state == "absent" and (wanted.name in runtimes or default == wanted.name):
        result.bridge = bridge(result.text, default=default == wanted.name)
    return result


def _refuse_conflicts(found: dict, file: EngineFile, wanted: Wanted, edited: Edit, dialect: Dialect) -> None:
    both = conflicts(keys(edited.text), found.get("flag_keys") or [])
    unit = found["unit"]["name"]
    if both:
        raise FleetError(
            "{}: {} stands in the file and on the command line of {engine} ({}); {engine} refuses to start or reload like that. "
            "Nothing was changed.".format(file.path, ", ".join(f'"{key}"' for key in both), unit, engine=dialect.engine),
            "config_conflict",
            phase="check",
            object=file.path,
            observed=", ".join(both),
            hint=f"Keep each in one place: the file, or ExecStart (systemctl edit {unit}).",
        )
    if wanted.state == "absent" and found.get("default_flag") == wanted.name:
        raise FleetError(
            f"{dialect.engine} is started with --default-runtime={wanted.name}; without that runtime it would not start. "
            "Nothing was changed.",
            "config_conflict",
            phase="check",
            object=file.path,
            hint=f"Take the flag away with 'systemctl edit {unit}' first.",
        )


def edit(data: bytes | None, path: str, wanted: Wanted, record: dict, known_runtimes=(), *, dialect: Dialect = DOCKERD) -> Edit:
    """Return the new text of daemon.json.

    ``data`` is None where there is no file. ``record`` is what an earlier run noted on the node for this runtime. ``known_runtimes`` are
    those the engine has: a former default is given back only when it still exists.
    """
    if wanted.name in dialect.reserved:
        message = f"{wanted.name} is a name that {dialect.engine} keeps for itself."
        raise FleetError(message, "name_reserved", phase="edit", object=wanted.name)
    original = places.decode(data, path)
    text = original if original.strip() else "{}\n"
    top = read_top(text, path)
    change = _present if wanted.state == "present" else _absent
    edited = change(File(text, top, path, dialect), wanted, dict(record), known_runtimes)
    if dialect.checks_types:
        edited.warnings.extend(quoted_values(text, top, path))
    if not original.strip() and edited.text == text:
        edited.text = original  # nothing to say in a file that is not there
    if wanted.state == "present" and edited.text != original and not top.members and len(original) <= EMPTY_LIMIT:
        edited.note["empty_file"] = None if data is None else original
    elif wanted.state == "absent" and "empty_file" in record and not read_top(edited.text or "{}", path).members:
        edited.remove, edited.text = record["empty_file"] is None and data is not None, record["empty_file"] or ""
    edited.changed = edited.text != original
    _prove(original, edited, wanted, dialect)
    return edited


def read_top(text: str, path: str) -> places.Node:
    """Return the parsed file; an error with file, line and column when it is not one JSON object."""
    try:
        top = places.parse(text)
    except places.Malformed as error:
        raise places.error_at(text, path, error.offset, error.reason) from None
    if top.kind != "object":
        raise places.error_at(text, path, top.start, f"the file holds no JSON object but {_kind(top)}")
    return top


def _kind(node: places.Node) -> str:
    return {"array": "a list", "string": "a string", "number": "a number", "literal": "a bare word", "object": "an object"}[node.kind]


@dataclass(frozen=True)
class File:
    """A parsed file: its text, the top object, the path for messages and the dialect."""

    text: str
    top: places.Node
    path: str
    dialect: Dialect


def _runtimes(file: File) -> places.Node | None:
    text, top, path = file.text, file.top, file.path
    member = top.get("runtimes")
    if member is None:
        return None
    if member.value.kind != "object":
        raise places.error_at(text, path, member.value.start, f'the value of "runtimes" is no object but {_kind(member.value)}')
    return member.value


def _default(file: File) -> str | None:
    text, top, path = file.text, file.top, file.path
    member = top.get(DEFAULT_KEY)
    if member is None:
        return None
    if member.value.kind != "string":
        raise places.error_at(text, path, member.value.start, f'the value of "{DEFAULT_KEY}" is no string but {_kind(member.value)}')
    return str(places.value_of(text, member.value))


def _present(file: File, wanted: Wanted, note: dict, _known) -> Edit:
    text, top = file.text, file.top
    style = places.style_of(text, top)
    runtimes = _runtimes(file)
    former = _default(file)
    args = list(wanted.args or [])
    entry = {"path": wanted.path, file.dialect.args_key: args}
    if runtimes is None:
        text = places.add_member(text, top, "runtimes", {wanted.name: entry}, style)
        note["created_runtimes"] = True
    elif (there := runtimes.get(wanted.name)) is None:
        text = places.add_member(text, runtimes, wanted.name, entry, style)
    else:
        text, args = _correct(file, there.value, wanted, style)
    default = former
    if wanted.set_default and former != wanted.name:
        default = wanted.name
        note["previous_default"] = former
        text = _put_default(text, default, style)
    previous = former if default != former else note.get("previous_default")
    # A default that nobody asked for is nobody's expectation.
    return Edit(text, args=args, default=default if wanted.set_default else None, previous_default=previous, note=note)


def _correct(file: File, entry: places.Node, wanted: Wanted, style: places.Style) -> tuple[str, list[str]]:
    """Bring an existing entry of our name to the wanted path and arguments; other keys in it stay."""
    text, path = file.text, file.path
    if entry.kind != "object":
        raise places.error_at(text, path, entry.start, f"the runtime {wanted.name} is no object but {_kind(entry)}")
    if excluding := entry.get("runtimeType"):
        raise places.error_at(
            text, path, excluding.start, f"the runtime {wanted.name} has a runtimeType, which excludes a path",
            "Remove that entry or choose another name.",
        )  # fmt: skip
    start = entry.start
    found = entry.get("path")
    if found is None:
        text = places.add_member(text, entry, "path", wanted.path, style)
    elif places.value_of(text, found.value) != wanted.path:
        text = places.set_value(text, found.value, wanted.path, style)
    # The text before the entry has not moved, so it can be found again by its start.
    entry = places.parse_at(text, start)
    arguments = entry.get(file.dialect.args_key)
    present = places.value_of(text, arguments.value) if arguments else []
    if wanted.args is None or list(wanted.args) == (present or []):
        return text, list(present) if isinstance(present, list) else []
    if arguments is None:
        return places.add_member(text, entry, file.dialect.args_key, list(wanted.args), style), list(wanted.args)
    return places.set_value(text, arguments.value, list(wanted.args), style), list(wanted.args)


def _put_default(text: str, name: str, style: places.Style) -> str:
    top = places.parse(text)
    member = top.get(DEFAULT_KEY)
    if member is None:
        return places.add_member(text, top, DEFAULT_KEY, name, style)
    return places.set_value(text, member.value, name, style)


def _absent(file: File, wanted: Wanted, note: dict, known_runtimes) -> Edit:
    text = file.text
    runtimes = _runtimes(file)
    default = _default(file)
    previous = note.get("previous_default")
    warnings: list[str] = []
    remaining = set(known_runtimes) - {wanted.name} | set(file.dialect.reserved)
    if runtimes is not None:
        remaining |= {member.key for member in runtimes.members if member.key != wanted.name}
        if runtimes.get(wanted.name):
            text = places.remove_member(text, runtimes, wanted.name)
            if len(runtimes.members) == 1 and note.get("created_runtimes"):
                text = places.remove_member(text, places.parse(text), "runtimes")
    if default == wanted.name:
        if previous in remaining:
            default = previous
            text = _put_default(text, previous, places.style_of(text, places.parse(text)))
        else:
            if previous not in (None, wanted.name):
                warnings.append(f"The former default runtime {previous} does not exist any more; the engine's own default is used.")
            default = previous = None
            text = places.remove_member(text, places.parse(text), DEFAULT_KEY)
    return Edit(text, args=[], default=default, previous_default=previous, note={}, warnings=warnings)


def bridge(text: str, default: bool) -> str | None:
    """Return the text that must be loaded before ``text`` so that a reload forgets our runtime, or None where ``text`` itself does.

    dockerd (moby daemon/reload_unix.go) takes over ``runtimes`` and ``default-runtime`` at a reload only where the key stands in the file:
    a key that is gone changes nothing until a restart, and a restart would stop containers.
    """
    text = text if text.strip() else "{}\n"
    top = places.parse(text)
    style = places.style_of(text, top)
    bridged = text
    if top.get("runtimes") is None:
        bridged = places.add_member(bridged, places.parse(bridged), "runtimes", {}, style)
    if default and top.get(DEFAULT_KEY) is None:
        bridged = places.add_member(bridged, places.parse(bridged), DEFAULT_KEY, STOCK_RUNTIME, style)
    return None if bridged == text else bridged


def masked(text: str) -> str:
    """Return the file as a diff may show it."""
    return places.masked(text)


def keys(text: str) -> list[str]:
    """Return the top-level keys of a file that was read before."""
    return [member.key for member in places.parse(text).members] if text.strip() else []


def quoted_values(text: str, top: places.Node, path: str) -> list[str]:
    """Return warnings for switches and numbers that are written as strings."""
    warnings = []
    for member in top.members:
        if member.key in BOOLEANS + NUMBERS and member.value.kind == "string":
            line, _column = places.place(text, member.start)
            kind = "true or false" if member.key in BOOLEANS else "a number"
            warnings.append(f'{path}, line {line}: "{member.key}" is a string; docker 23 and newer want {kind} without quotes.')
    return warnings


def _prove(original: str, edited: Edit, wanted: Wanted, dialect: Dialect) -> None:
    """Raise when the edit touched anything but our keys: better no change than a wrong one."""
    before, after = (_without_ours(json.loads(text) if text.strip() else {}, wanted, dialect) for text in (original, edited.text))
    if before != after:
        raise FleetError("The edit of the engine's file would have changed foreign keys; nothing was written.", "edit_unsafe", phase="edit")


def _without_ours(config: dict, wanted: Wanted, dialect: Dialect) -> dict:
    rest = {key: value for key, value in config.items() if key not in ("runtimes", DEFAULT_KEY)}
    runtimes = dict(config.get("runtimes") or {})
    entry = runtimes.pop(wanted.name, None)
    rest["foreign runtimes"] = runtimes
    if wanted.state == "present":
        rest["foreign keys of ours"] = {key: value for key, value in (entry or {}).items() if key not in ("path", dialect.args_key)}
    if config.get(DEFAULT_KEY) != wanted.name and not wanted.set_default and wanted.state == "present":
        rest[DEFAULT_KEY] = config.get(DEFAULT_KEY)
    return rest
