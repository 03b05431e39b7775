# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""cri-o: a drop-in of our own in /etc/crio/crio.conf.d. Private to the collection. Pure functions.

cri-o reads crio.conf, then the drop-ins sorted by name; each adds to what was before, and the last one that sets a key wins (crio.conf(5)).
So a file with our entry alone takes nothing away.
"""

from __future__ import annotations

import posixpath

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_mask
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml as toml
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml_edit as change
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_cri import HEAD, nothing_left, refuse_arguments, refuse_other_default
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_json import decode
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_toml import Document, Path
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Edit, EngineFile, Wanted, files_of

FOLDER = "/etc/crio/crio.conf.d"
RUNTIME: Path = ("crio", "runtime")
RUNTIMES: Path = (*RUNTIME, "runtimes")
STOCK_RUNTIME = "runc"
# Not to be copied from another runtime's entry: its program, its own configuration, and a switch that says "as the default runtime".
_OWN = ("runtime_path", "runtime_config_path", "inherit_default_runtime")


masked = _engine_config_mask.masked


def plan_edit(found: dict, wanted: Wanted) -> Edit:
    """Return the change of one file of cri-o: the one that has the entry, else a drop-in of our own."""
    refuse_arguments(wanted)
    files = [one for one in files_of(found, "main", "dropin") if not leftover(one.path)]
    documents = [(one, toml.read(decode(one.data, one.path), one.path)) for one in files]
    file, start = _choose(documents, found, wanted)
    name = wanted.name
    if wanted.state == "present":
        edit = _present(start, file, documents, found, wanted)
    else:
        edit = _absent(start, documents, wanted, found["note"])
    after = toml.read(edit.text, file.path)
    change.prove(start, after, [(*RUNTIMES, name), (*RUNTIME, "default_runtime")])
    refuse_other_default(_in_order(documents, file, after), (*RUNTIME, "default_runtime"), wanted)
    edit.path, edit.before = file.path, start.text
    edit.changed = edit.text != start.text
    made = "file" in found["note"].get("created", ()) and posixpath.basename(file.path) == _own(name)
    edit.remove = edit.changed and wanted.state == "absent" and made and nothing_left(after, name)
    return edit


def leftover(path: str) -> bool:
    """Return whether a file is what a run that was killed left behind: cri-o's folder has no pattern that would pass it over."""
    name = posixpath.basename(path)
    return name.startswith(".") and name.endswith(".npu-fleet")


def _own(name: str) -> str:
    return f"99-npu-fleet-{name}.conf"


def _in_order(documents: list[tuple[EngineFile, Document]], file: EngineFile, after: Document) -> list[Document]:
    """Return the documents in cri-o's order, the edited one as it is to be."""
    main = [after if one.path == file.path else document for one, document in documents if one.role == "main"]
    dropins = [document for one, document in documents if one.role != "main" and one.path != file.path]
    if file.role != "main":
        dropins.append(after)
    return main + sorted(dropins, key=lambda one: posixpath.basename(one.path))


def _choose(documents: list[tuple[EngineFile, Document]], found: dict, wanted: Wanted) -> tuple[EngineFile, Document]:
    holding = [pair for pair in documents if pair[1].get((*RUNTIMES, wanted.name)) is not None]
    if len(holding) > 1:
        paths = ", ".join(file.path for file, _document in holding)
        raise FleetError(
            f"The runtime {wanted.name} stands in several files: {paths}. Nothing was changed.", "config_conflict", phase="check",
            object=holding[-1][0].path, observed=paths, hint="Leave it in one of them only.",
        )  # fmt: skip
    if holding:
        return holding[0]
    # The node says which folder cri-o reads, by what it lets be written: the main file, then the drop-ins.
    folder = posixpath.dirname(found["writable"][-1]) if len(found["writable"]) > 1 else FOLDER
    own = posixpath.join(folder, _own(wanted.name))
    there = [pair for pair in documents if pair[0].path == own]
    return there[0] if there else (EngineFile(own, "dropin", None, None), toml.read("", own))


def _merged(first: dict, second: dict) -> dict:
    merged = dict(first)
    for key, value in second.items():
        there = merged.get(key)
        merged[key] = _merged(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return merged


def _effective(found: dict, documents: list[tuple[EngineFile, Document]]) -> dict:
    """Return the runtimes in effect: by `crio config` where it could be asked, else by the files."""
    data: dict = {}
    try:
        data = toml.library().loads(found.get("effective_text") or "")
    except ValueError:
        pass
    for _file, document in documents:
        data = _merged(data, document.data)
    runtimes = toml.dig(data, RUNTIMES)
    return runtimes if isinstance(runtimes, dict) else {}


def _values(runtimes: dict, program: str) -> dict:
    stock = runtimes.get(STOCK_RUNTIME)
    if not isinstance(stock, dict):
        # Without an entry of runc (newer ones have crun only) the other's monitor is right and its root is not.
        other = next((value for key, value in sorted(runtimes.items()) if key == "crun" and isinstance(value, dict)), {})
        stock = {key: value for key, value in other.items() if key.startswith("monitor_")}
    values: dict = {"runtime_path": program, "runtime_type": "oci"}
    values.update({key: value for key, value in stock.items() if key not in _OWN and value not in ("", 0, [], {}, None)})
    return values


def _present(start: Document, file: EngineFile, documents: list, found: dict, wanted: Wanted) -> Edit:
    document, name, note = start, wanted.name, dict(found["note"])
    created = set(note.get("created", ()))
    entry = (*RUNTIMES, name)
    if document.get(entry) is None:
        if file.data is None:
            document = toml.read(HEAD.format(name), file.path)
            created.add("file")
        document = change.add_table(document, entry, _values(_effective(found, documents), str(wanted.path)), RUNTIMES)
    elif document.get((*entry, "runtime_path")) != wanted.path:
        document = change.put(document, entry, "runtime_path", wanted.path)
    default = start.get((*RUNTIME, "default_runtime"))
    default = default if isinstance(default, str) else None
    if wanted.set_default and default != name:
        note["previous_default"] = default
        headers = len([one for one in document.statements if one.kind == "table"])
        document = change.put(document, RUNTIME, "default_runtime", name)
        if len([one for one in document.statements if one.kind == "table"]) > headers:
            created.add("runtime")
    if created:
        note["created"] = sorted(created)
    # A default that nobody asked for is nobody's expectation: another file may name another one.
    return Edit(document.text, None, name if wanted.set_default else None, note.get("previous_default"), note)


def _absent(start: Document, documents: list, wanted: Wanted, note: dict) -> Edit:
    document, name = start, wanted.name
    previous = note.get("previous_default")
    default = document.get((*RUNTIME, "default_runtime"))
    default = default if isinstance(default, str) else None
    warnings = []
    known = {key for _file, one in documents for key in (one.get(RUNTIMES) or {}) if key != name} | {STOCK_RUNTIME, "crun"}
    if default == name:
        if previous in known:
            document, default = change.put(document, RUNTIME, "default_runtime", previous), previous
        else:
            if previous not in (None, name):
                warnings.append(f"The former default runtime {previous} does not exist any more; the engine's own default is used.")
            document, default, previous = change.remove(document, (*RUNTIME, "default_runtime")), None, None
    document = change.remove(document, (*RUNTIMES, name))
    if "runtime" in note.get("created", ()):
        document = change.drop_header(document, RUNTIME)
    return Edit(document.text, None, default, previous, {}, warnings=warnings)
