# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CRI plugin's table in one TOML file of containerd: an entry like runc's with another program. Private to the collection. Pure.

Used for containerd's own files and for drop-ins of k3s and rke2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml as toml
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml_edit as change
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_json import error_at
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_toml import Document, Path, dig
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Edit, Wanted

STOCK_RUNTIME = "runc"
# The shim that hands a container to the program in ``options.BinaryName``; v1 of it takes the same options (gone in containerd 2).
SHIM = "io.containerd.runc.v2"
SHIMS = (SHIM, "io.containerd.runc.v1")
CRI_TABLES: dict[int, Path] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
}
# What these keys mean when they are not there (containerd internal/cri/config), so they need no line in our entry.
_DEFAULTS = {"sandboxer": "podsandbox", "sandbox_mode": "podsandbox"}
# Keys of a file that mean something else in another version of it.
VERSIONED = frozenset({"plugins", "disabled_plugins", "required_plugins"})
HEAD = "# Made by npu.fleet for the container runtime {}.\n"


def cri_table(version: int) -> Path:
    """Return the path of the CRI plugin's table in files of a ``version`` (4 has that of 3)."""
    return CRI_TABLES[min(max(version, 1), 3)]


@dataclass(frozen=True)
class Effective:
    """What the engine has in effect by its own word: the version it prints, runtimes by name, the default one, its imports."""

    version: int
    runtimes: dict
    default: str | None
    imports: tuple[str, ...] = ()


def effective(text: str | None) -> Effective | None:
    """Return what ``containerd config dump`` printed, or None where it printed nothing that can be read."""
    if not text:
        return None
    # Warnings of containerd may stand among it, in the form of its log.
    text = "".join(line for line in text.splitlines(keepends=True) if not re.match(r'(?:time="|WARN|INFO)', line))
    try:
        data = toml.library().loads(text)
    except ValueError:
        return None
    version = data.get("version") if isinstance(data.get("version"), int) else 1
    section = dig(data, (*cri_table(version), "containerd"))
    section = section if isinstance(section, dict) else {}
    runtimes = section.get("runtimes")
    imports = data.get("imports")
    return Effective(
        version, runtimes if isinstance(runtimes, dict) else {}, section.get("default_runtime_name") or None,
        tuple(imports) if isinstance(imports, list) else (),
    )  # fmt: skip


def note_created(note: dict, parts: list[str]) -> dict:
    """Return a note that names ``parts`` as made by us, among those it names already."""
    created = sorted({*note.get("created", ()), *parts})
    return {**note, "created": created} if created else dict(note)


def nothing_left(document: Document, name: str) -> bool:
    """Return whether nothing but our own first line is in a file, not even a comment of the admin's."""
    ours = ("", HEAD.format(name).strip())
    return not document.statements and all(line.strip() in ours for line in document.text.splitlines())


def refuse_other_default(documents: list[Document], key: Path, wanted: Wanted, hint: str | None = None) -> None:
    """Raise where the last one of merged files that names a default runtime undoes the edit of another one.

    ``documents``: all files in load order, the edited one as it is to be; ``key``: where the default stands.
    """
    last = next((one for one in reversed(documents) if one.get(key)), None)
    default = last.get(key) if last else None
    if wanted.state == "present" and wanted.set_default and default != wanted.name:
        what = f"sets the default runtime {default} and is read after the file in which {wanted.name} would be set"
    elif wanted.state == "absent" and default == wanted.name:
        what = f"names {wanted.name} as the default runtime, and its entry is taken out of another file"
    else:
        return
    path = last.path if last else ""
    raise FleetError(
        f"{path} {what}. Nothing was changed.", "config_conflict", phase="check", object=path, observed=str(default),
        hint=hint or f"Take {key[-1]} out of {path}.",
    )  # fmt: skip


def refuse_arguments(wanted: Wanted) -> None:
    """Raise for arguments: runtimes of CRI engines are programs without any."""
    if wanted.args:
        raise FleetError(
            f"A runtime of {wanted.engine} takes no arguments, only a program.", "args_unsupported", phase="arguments", object=wanted.name,
            hint="Leave args out; a small script as path may add them.",
        )  # fmt: skip


@dataclass(frozen=True)
class Section:
    """Where runtimes stand in a file: the path above ``containerd``; whether a first entry hides the built-in one of runc."""

    cri: Path
    loses_stock: bool

    @property
    def containerd(self) -> Path:
        """The table with the default runtime."""
        return (*self.cri, "containerd")

    @property
    def runtimes(self) -> Path:
        """The table of runtimes."""
        return (*self.cri, "containerd", "runtimes")

    @property
    def quote(self) -> str:
        """The quotes in which containerd itself writes this table's name."""
        return "'" if self.cri == CRI_TABLES[3] else '"'


def edit_section(document: Document, section: Section, wanted: Wanted, note: dict, now: Effective | None) -> Edit:
    """Return the edit of one document. ``note["created"]`` names what was made in it for us, by earlier runs and by this one so far."""
    work = _Work(document, section, wanted, note, now)
    edit = work.present() if wanted.state == "present" else work.absent()
    edit.changed = edit.text != document.text
    return edit


class _Work:
    """One document on its way from what is there to what is wanted."""

    def __init__(self, document: Document, section: Section, wanted: Wanted, note: dict, now: Effective | None) -> None:
        self.document, self.section, self.wanted, self.note, self.now = document, section, wanted, note, now
        self.created: list[str] = []
        self.entry = (*section.runtimes, wanted.name)

    def _table(self, keys: Path) -> dict:
        value = self.document.get(keys)
        if value is not None and not isinstance(value, dict):
            place = change.value_at(self.document, keys)
            raise error_at(self.document.text, self.document.path, place.start if place else 0, f"{keys[-1]} is no table")
        return value or {}

    def _put(self, table: Path, key: str, value: object) -> None:
        self.document = change.put(self.document, table, key, value, self.section.quote)

    def present(self) -> Edit:
        """Bring the runtime in, or to what it should be."""
        section, wanted = self.section, self.wanted
        self._table(section.runtimes)
        self._note_inline()
        former = self.document.get((*section.containerd, "default_runtime_name"))
        # A default that nobody asked for is nobody's expectation: another file may name another one.
        default = self._default(former if isinstance(former, str) else None) if wanted.set_default else None
        values = runtime_values(self._stock(), str(wanted.path))
        self._table(self.entry)
        if self.document.get(self.entry) is not None:  # an empty one is there, too
            self._correct(values)
        else:
            if section.loses_stock and not self._table(section.runtimes) and (self.now is None or STOCK_RUNTIME in self.now.runtimes):
                self._add_stock()
            self._add(self.entry, values)
        if self._lacks_stock():
            self._add_stock()
        self.note = note_created(self.note, self.created)
        previous = self.note.get("previous_default")
        return Edit(self.document.text, args=None, default=default, previous_default=previous, note=self.note)

    def _add_stock(self) -> None:
        """Write runc's entry, and note what it was: a later removal takes back only what still is that."""
        values = _plain(self._stock()) or {"runtime_type": SHIM}
        self._add((*self.section.runtimes, STOCK_RUNTIME), values)
        self.created.append(STOCK_RUNTIME)
        self.note[STOCK_RUNTIME] = values

    def _lacks_stock(self) -> bool:
        """Return whether the default runtime is runc and no file has it: the CRI plugin does not load then (measured on 1.6.20)."""
        section = self.section
        if not section.loses_stock or self.now is None or STOCK_RUNTIME in {*self.now.runtimes, *self._table(section.runtimes)}:
            return False
        if self._table((*section.containerd, "default_runtime")).get("runtime_type"):
            return False  # that table is the default then
        default = self.document.get((*section.containerd, "default_runtime_name")) or self.now.default
        return default in (None, STOCK_RUNTIME)

    def _note_inline(self) -> None:
        """Note the first inline table that is made for the entry: empty again, it must go, while an empty one of the admin's stays."""
        found = change.inline_at(self.document, self.entry)
        if found is not None and len(found[1]) > 1:
            self.created.append(f"inline:{len(self.entry) - len(found[1]) + 1}")

    def _default(self, former: str | None) -> str:
        section, name = self.section, self.wanted.name
        if self._table((*section.containerd, "default_runtime")).get("runtime_type"):
            raise FleetError(
                f"{self.document.path} has a table default_runtime, which containerd prefers to default_runtime_name. Nothing was changed.",
                "config_conflict", phase="check", object=self.document.path, observed="default_runtime",
                hint="Make it an entry under runtimes with a name, and name that in default_runtime_name.",
            )  # fmt: skip
        if former != name:
            self.note["previous_default"] = former
            headers = len([one for one in self.document.statements if one.kind == "table"])
            self._put(section.containerd, "default_runtime_name", name)
            if len([one for one in self.document.statements if one.kind == "table"]) > headers:
                self.created.append("containerd")
        return name

    def _stock(self) -> dict:
        """Return the entry of runc in effect: by the engine's word, else by this file."""
        if self.now is not None:
            found = self.now.runtimes.get(STOCK_RUNTIME) or self._nearest(self.now.runtimes)
        else:
            runtimes = self._table(self.section.runtimes)
            found = runtimes.get(STOCK_RUNTIME)
            if found is None:
                raise FleetError(
                    f"What runc's entry is in effect is not known: {self.document.path} has none, and containerd printed nothing.",
                    "effective_unknown", phase="edit", object=self.document.path,
                    hint=f"`containerd --config {self.document.path} config dump` on the node says what is wrong.",
                )  # fmt: skip
        return found if isinstance(found, dict) else {}

    def _nearest(self, runtimes: dict) -> dict:
        """Without runc: the default runtime's cgroup driver is the one kubelet works with; without that one, too, it is our entry's."""
        default = self.now.default if self.now else None
        options = toml.dig(runtimes.get(default if default in runtimes else self.wanted.name), ("options",))
        if isinstance(options, dict) and "SystemdCgroup" in options:
            return {"runtime_type": SHIM, "options": {"SystemdCgroup": options["SystemdCgroup"]}}
        return {"runtime_type": SHIM}

    def _add(self, keys: Path, values: dict) -> None:
        self.document = change.add_table(self.document, keys, values, self.section.runtimes, self.section.quote)

    def _correct(self, values: dict) -> None:
        """Bring an entry that is there to the program, the shim and the cgroup driver; its other keys stay."""
        there, options = self._table(self.entry), (*self.entry, "options")
        if there.get("runtime_type") not in SHIMS:
            self._put(self.entry, "runtime_type", values["runtime_type"])
        if not self.document.under(options) and change.inline_at(self.document, options) is None:
            self.document = change.add_table(self.document, options, values["options"], self.entry, self.section.quote)
            return
        if self._table(options).get("BinaryName") != values["options"]["BinaryName"]:
            self._put(options, "BinaryName", values["options"]["BinaryName"])
        systemd = bool(values["options"].get("SystemdCgroup"))
        if bool(self._table(options).get("SystemdCgroup")) != systemd:
            self._put(options, "SystemdCgroup", systemd)

    def absent(self) -> Edit:
        """Take the runtime out, and what was made for it as far as nothing else needs it."""
        section, name = self.section, self.wanted.name
        made, warnings = list(self.note.get("created", ())), []
        others = {key for key in self._table(section.runtimes) if key != name}
        known = others | {key for key in (self.now.runtimes if self.now else {}) if key != name}
        default = self.document.get((*section.containerd, "default_runtime_name"))
        default, previous = (default if isinstance(default, str) else None), self.note.get("previous_default")
        if default == name:
            if previous in known | {STOCK_RUNTIME}:
                self._put(section.containerd, "default_runtime_name", previous)
                default = previous
            else:
                if previous not in (None, name):
                    warnings.append(f"The former default runtime {previous} does not exist any more; the engine's own default is used.")
                self._refuse_no_default(others)
                self.document = change.remove(self.document, (*section.containerd, "default_runtime_name"))
                default = previous = None
        self.document = change.remove(self.document, self.entry)
        stock = (*section.runtimes, STOCK_RUNTIME)
        if STOCK_RUNTIME in made and others == {STOCK_RUNTIME} and default in (None, STOCK_RUNTIME) and self._as_written(stock, warnings):
            self.document = change.remove(self.document, stock)
        self._drop_inline(made)
        if "containerd" in made:
            self.document = change.drop_header(self.document, section.containerd)
        if "file" in made:
            self._empty_file(made, warnings)
        elif "version" in made and not self.document.data.keys() & VERSIONED:
            self.document = change.remove(self.document, ("version",))
        return Edit(self.document.text, args=None, default=default, previous_default=previous, note={}, warnings=warnings)

    def _as_written(self, keys: Path, warnings: list[str]) -> bool:
        """Return whether what we made still is what we wrote; the admin's later work on it stays, with a warning."""
        there = self.document.get(keys)
        if there is None or there == self.note.get(keys[-1]):
            return there is not None
        warnings.append(f"{self.document.path}: {keys[-1]} was written by npu.fleet and has been changed since, so it stays as it is.")
        return False

    def _empty_file(self, made: list[str], warnings: list[str]) -> None:
        """Empty a file that we made where nothing but ours is in it; a file that stays still needs its version and its imports."""
        imports = ("imports",)
        if self.document.data.keys() - {"version", "imports"}:
            return
        if self.document.get(imports) is not None and not ("imports" in made and self._as_written(imports, warnings)):
            return
        empty = change.remove(change.remove(self.document, imports), ("version",))
        if nothing_left(empty, self.wanted.name):
            self.document = empty

    def _drop_inline(self, made: list[str]) -> None:
        first = next((int(part.partition(":")[2]) for part in made if part.startswith("inline:")), len(self.entry))
        for length in range(len(self.section.runtimes), first - 1, -1):
            keys = self.section.runtimes[:length]
            if self.document.get(keys) == {} and change.inline_at(self.document, keys) is not None:
                self.document = change.remove(self.document, keys)

    def _refuse_no_default(self, others: set[str]) -> None:
        """Raise where containerd would be left with runc as default and without runc: its CRI plugin would not load."""
        if others and STOCK_RUNTIME not in others and self.section.loses_stock:
            raise FleetError(
                f"{self.document.path}: {self.wanted.name} is the default runtime and there is no entry of runc to take its place. "
                "Nothing was changed.",
                "config_conflict", phase="check", object=self.document.path, observed=", ".join(sorted(others)),
                hint="Name another one in default_runtime_name first.",
            )  # fmt: skip


def _plain(entry: dict) -> dict:
    """Return an entry without what is the same as not there (Go's zero values, known defaults)."""
    plain = {key: value for key, value in entry.items() if value not in ("", 0, [], {}, None) and _DEFAULTS.get(key) != value}
    options = entry.get("options")
    if isinstance(options, dict):
        kept = {key: value for key, value in options.items() if value not in ("", 0, [], {}, None) or key == "SystemdCgroup"}
        plain.pop("options", None)
        if kept:
            plain["options"] = kept
    return plain


def runtime_values(stock: dict, program: str) -> dict:
    """Return the entry of a runtime that is like ``stock`` with another program."""
    plain = _plain(stock)
    options = plain.pop("options", {})
    if plain.get("runtime_type") not in SHIMS:
        # Another shim has other keys and options; what kubelet cares about is the cgroup driver.
        plain = {}
        options = {key: value for key, value in options.items() if key == "SystemdCgroup"}
    systemd = {key: options.pop(key) for key in ("SystemdCgroup",) if key in options}
    options.pop("BinaryName", None)
    values: dict = {"runtime_type": plain.pop("runtime_type", SHIM), **plain}
    values["options"] = {"BinaryName": program, **options, **systemd}
    return values


def prove(before: Document, after: Document, section: Section, wanted: Wanted) -> None:
    """Raise when anything but our keys has changed."""
    ours: list[Path] = [(*section.runtimes, wanted.name), (*section.containerd, "default_runtime_name")]
    if (before.get((*section.runtimes, STOCK_RUNTIME)) is None) != (after.get((*section.runtimes, STOCK_RUNTIME)) is None):
        ours.append((*section.runtimes, STOCK_RUNTIME))
    ours += [(key,) for key in ("version", "imports") if (before.get((key,)) is None) != (after.get((key,)) is None)]
    change.prove(before, after, ours)
