# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd's config.toml and its imports: our runtime in, our runtime out. Private to the collection. Pure functions.

What containerd does with its files was measured on 1.6.20, 1.7.24 and 2.1.9 (docs/facts.md):

- One ``version`` counts for all files, that of the last one in load order that has the line; without any it is 1. It decides under which
  table the CRI plugin looks; an entry under another one is ignored without a word.
- Below 2.1 the whole table of a plugin in a later file replaces that of an earlier one, so an entry belongs into the last file that has the
  CRI plugin's table; and a file with any entry under ``runtimes`` loses the built-in one of runc.
- containerd 2 ignores the CRI plugin's table of version 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_mask
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml as toml
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml_edit as change
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_cri import (
    CRI_TABLES,
    HEAD,
    STOCK_RUNTIME,
    VERSIONED,
    Effective,
    Section,
    cri_table,
    edit_section,
    effective,
    note_created,
    nothing_left,
    prove,
    refuse_arguments,
    refuse_other_default,
)
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_json import decode, error_at
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_toml import Document, Path
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import COPY, Edit, EngineFile, Wanted, files_of

# Any of these in ``disabled_plugins`` turns off CRI, or the part of it that runs containers.
CRI_PLUGINS = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
LEGACY_SHIM = ("plugins", "io.containerd.runtime.v1.linux")
MERGES_SINCE = (2, 1)


def release(found: dict) -> tuple[int, int] | None:
    """Return major and minor of the containerd program that reads the files, or None where it is not known."""
    match = re.match(r"v?(\d+)\.(\d+)", str(found.get("binary_version") or found.get("version") or ""))
    return (int(match.group(1)), int(match.group(2))) if match else None


@dataclass(frozen=True)
class Tree:
    """All files of one containerd in load order, read, and what counts for them together."""

    files: list[tuple[EngineFile, Document]]
    version: int
    has_version: bool
    binary: tuple[int, int] | None

    @property
    def merges(self) -> bool:
        """Whether an import adds to the main file's tables instead of replacing them."""
        return self.binary is not None and self.binary >= MERGES_SINCE

    @property
    def cri(self) -> Path:
        """The table in which this containerd looks."""
        # 1.6 takes a higher number than 2 and still reads the tables of 2.
        return cri_table(min(self.version, 2) if self.binary is not None and self.binary[0] == 1 else self.version)


def read_tree(found: dict) -> Tree:
    """Return the files that were read on the node; FleetError for one that is no TOML."""
    files = [(one, toml.read(decode(one.data, one.path), one.path)) for one in files_of(found, "main", "import")]
    version = None
    for _file, document in files:
        there = document.data.get("version")
        if there is None:
            continue
        if isinstance(there, bool) or not isinstance(there, int) or there < 1:
            place = change.value_at(document, ("version",))
            raise error_at(document.text, document.path, place.start if place else 0, "the version is no number from 1 on")
        version = there
    return Tree(files, version or 1, version is not None, release(found))


masked = _engine_config_mask.masked


def plan_edit(found: dict, wanted: Wanted) -> Edit:
    """Return the change of one file of containerd."""
    tree, now = read_tree(found), effective(found.get("effective_text"))
    refuse_arguments(wanted)
    created: list[str] = []
    tree = _with_version(tree, now, wanted, created)
    _refuse_blind(tree, wanted)
    number = _choose(tree, wanted)
    file, document = tree.files[number]
    start = document if not created else toml.read(decode(file.data, file.path), file.path)
    section = Section(tree.cri, loses_stock=not tree.merges)
    note = _note(found["note"], created, wanted, file, document)
    edit = edit_section(document, section, wanted, note, now)
    after = toml.read(edit.text, file.path)
    prove(start, after, section, wanted)
    if tree.merges:
        documents = [after if place == number else other for place, (_file, other) in enumerate(tree.files)]
        refuse_other_default(documents, (*section.containerd, "default_runtime_name"), wanted)
    edit.path, edit.before, edit.changed = file.path, start.text, edit.text != start.text
    made = "file" in note.get("created", ())
    edit.remove = edit.changed and wanted.state == "absent" and made and nothing_left(after, wanted.name)
    edit.warnings += _warnings(tree, wanted)
    if edit.changed and file.role != "main":
        edit.check = check_text(tree, file.path)
    return edit


def _note(note: dict, created: list[str], wanted: Wanted, file: EngineFile, document: Document) -> dict:
    """Return the note as far as it speaks of the file to edit: only the main file is one that we make."""
    if file.role == "main":
        note = note_created(note, created)
        return {**note, "imports": document.get(("imports",))} if "imports" in created else note
    if wanted.state == "present":
        return dict(note)
    return {**note, "created": [part for part in note.get("created", ()) if part not in ("file", "imports", "version")]}


def _with_version(tree: Tree, now: Effective | None, wanted: Wanted, created: list[str]) -> Tree:
    """Return the tree with a version line in the main file where nothing depends on what its absence means."""
    depends = any(document.data.keys() & VERSIONED for _file, document in tree.files)
    if not tree.files or wanted.state == "absent":
        return tree
    file, document = tree.files[0]
    if file.data is not None and (tree.has_version or depends):
        return tree
    if now is None:
        raise FleetError(
            f"{file.path} does not say its version, and what containerd prints of its configuration could not be read.",
            "effective_unknown", phase="edit", object=file.path, hint="See what `containerd config default` says on the node.",
        )  # fmt: skip
    if file.data is None:
        created.append("file")
        document = toml.read(HEAD.format(wanted.name), file.path)
        if now.imports:
            # Later releases import a folder by themselves, as long as there is no file that says otherwise.
            created.append("imports")
            document = change.put(document, (), "imports", list(now.imports))
    created.append("version")
    version = tree.version if tree.has_version else now.version
    document = change.put(document, (), "version", version)
    return Tree([(file, document), *tree.files[1:]], version, True, tree.binary)


def _refuse_blind(tree: Tree, wanted: Wanted) -> None:
    """Raise where containerd would not look at an entry: CRI is off, or a file of version 1 on containerd 2."""
    if wanted.state == "absent":
        return
    main = tree.files[0][1].path
    if tree.binary is not None and tree.binary >= (2, 0) and tree.version == 1:
        raise FleetError(
            f"{main} is of version 1, whose CRI tables containerd {tree.binary[0]}.{tree.binary[1]} ignores. Nothing was changed.",
            "config_version", phase="check", object=main, observed="version 1",
            hint=f"Convert it: containerd -c {main} config migrate > {main}.new, look it over, and put it in place.",
        )  # fmt: skip
    for _file, document in tree.files:
        off = document.data.get("disabled_plugins")
        names = [name for name in off if name in CRI_PLUGINS] if isinstance(off, list) else []
        if names:
            raise FleetError(
                f"{document.path} turns off CRI (disabled_plugins has {', '.join(names)}), so kubelet can not use this containerd.",
                "cri_disabled", phase="check", object=document.path, observed=", ".join(names),
                hint="Take it out of disabled_plugins, or choose the engine that kubelet uses (npu_runtime_engine: NAME).",
            )  # fmt: skip


def _choose(tree: Tree, wanted: Wanted) -> int:
    """Return the number of the file to edit."""
    if not tree.files:
        raise FleetError("No file of containerd was read.", "config_missing", phase="edit")
    entry = (*tree.cri, "containerd", "runtimes", wanted.name)
    holding = [number for number, (_file, document) in enumerate(tree.files) if document.get(entry) is not None]
    having = [number for number, (_file, document) in enumerate(tree.files) if document.get(tree.cri) is not None]
    if not tree.merges and having and (wanted.state == "present" or having[-1] in holding):
        return having[-1]
    if len(holding) > 1:
        paths = [tree.files[number][0].path for number in holding]
        raise FleetError(
            f"The runtime {wanted.name} stands in several files: {', '.join(paths)}. Nothing was changed.",
            "config_conflict", phase="check", object=paths[-1], observed=", ".join(paths), hint="Leave it in one of them only.",
        )  # fmt: skip
    return holding[0] if holding else 0


def _warnings(tree: Tree, wanted: Wanted) -> list[str]:
    warnings = []
    for _file, document in tree.files:
        for table in set(CRI_TABLES.values()) - {tree.cri}:
            if document.get((*table, "containerd", "runtimes", wanted.name)) is not None:
                warnings.append(f'{document.path} has {wanted.name} under plugins."{table[1]}", too, where containerd does not look.')
        legacy = document.get((*LEGACY_SHIM, "runtime"))
        if legacy and legacy != STOCK_RUNTIME:
            warnings.append(
                f'{document.path} sets the program of plugins."{LEGACY_SHIM[1]}", which containerd 2 does not have; it was left as it is.'
            )
    return warnings


def check_text(tree: Tree, path: str) -> str:
    """Return a main file for the parser that loads the same files, with the one at ``path`` as a copy."""
    main = tree.files[0][1]
    imports = [COPY if file.path == path else file.path for file, _document in tree.files[1:]]
    if path not in [file.path for file, _document in tree.files]:
        imports.append(COPY)
    if main.get(("imports",)) is None:
        return f"imports = {change.render(imports)}\n{main.text}"
    return change.put(main, (), "imports", imports).text
