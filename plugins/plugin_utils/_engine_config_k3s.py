# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The containerd of k3s and rke2: a drop-in or a block in the template, never the file they generate. Private to the collection. Pure.

k3s writes config.toml anew at each start, from a Go template: an own one where there is one, with ``{{ template "base" . }}`` for its
built-in part. The template is text here and never read as TOML. From version 3 of the file on (containerd 2) its folder of drop-ins is
better; with version 2 a drop-in would replace the whole CRI table, so there it is the template.
"""

from __future__ import annotations

import posixpath
import re

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_cri as cri
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml as toml
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml_edit as change
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_cri import HEAD, Effective, Section
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_json import decode, error_at
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_mask import masked as masked_toml
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_mask import masked_lines
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import COPY, Edit, EngineFile, Wanted, files_of

BASE = '{{ template "base" . }}\n'


def masked(text: str) -> str:
    """Return a template or a drop-in as a diff may show it."""
    return masked_lines(text) if "{{" in text else masked_toml(text)


def plan_edit(found: dict, wanted: Wanted) -> Edit:
    """Return the change of one drop-in or of the template."""
    form, label = found["k3s"], found["engine"]
    version = form["version"]
    if version is None:
        raise FleetError(
            f"{label} has not written its containerd configuration yet, so its form is not known.", "engine_not_started", phase="edit",
            object=found["config_path"], hint=f"Start {label} once (systemctl start {found['unit']['name']}), then run again.",
        )  # fmt: skip
    cri.refuse_arguments(wanted)
    section = Section(cri.cri_table(version), loses_stock=False)
    generated = next(iter(files_of(found, "generated")), None)
    now = cri.effective(found.get("effective_text")) or cri.effective(_text(generated))
    template = _template_file(found)
    dropin = None
    if not _block(_text(template), template.path, wanted.name):
        dropin = _dropin_file(found, section, version, wanted)
    if dropin is not None:
        edit = _edit_dropin(found, dropin, section, wanted, now)
        edit.check = _dropin_check(generated, found, dropin) if edit.changed and generated else None
    else:
        edit = _edit_template(found, template, section, wanted, now)
        edit.check = _template_check(generated, wanted.name, edit) if edit.changed and generated else None
    edit.warnings += _other_templates(found, template, wanted.name)
    return edit


def _text(file: EngineFile | None) -> str:
    return decode(file.data, file.path) if file else ""


def _template_file(found: dict) -> EngineFile:
    path = found["k3s"]["template_path"]
    return next((one for one in files_of(found, "template") if one.path == path), EngineFile(path, "template", None, None))


def _other_templates(found: dict, template: EngineFile, name: str) -> list[str]:
    return [
        f"{one.path} has {name}, too, and {found['engine']} does not read that template now; it was left as it is."
        for one in files_of(found, "template")
        if one.path != template.path and _block(_text(one), one.path, name)
    ]


# --- drop-ins ---


def _dropin_file(found: dict, section: Section, version: int, wanted: Wanted) -> EngineFile | None:
    """Return the drop-in to edit, None where the template is the place: the one that holds the entry, else one of our own."""
    folder = found["k3s"]["dropin_folder"]
    if folder is None or version < 3:
        return None
    files = files_of(found, "dropin")
    holding = [one for one in files if toml.read(_text(one), one.path).get((*section.runtimes, wanted.name)) is not None]
    if len(holding) > 1:
        paths = ", ".join(one.path for one in holding)
        raise FleetError(
            f"The runtime {wanted.name} stands in several files: {paths}. Nothing was changed.", "config_conflict", phase="check",
            object=holding[-1].path, observed=paths, hint="Leave it in one of them only.",
        )  # fmt: skip
    if holding:
        return holding[0]
    own = posixpath.join(folder, _own(wanted.name))
    return next((one for one in files if one.path == own), EngineFile(own, "dropin", None, None))


def _edit_dropin(found: dict, file: EngineFile, section: Section, wanted: Wanted, now: Effective | None) -> Edit:
    text = _text(file)
    start = toml.read(text, file.path)
    created: list[str] = []
    document = start
    if wanted.state == "present" and not start.statements:
        # A drop-in that says another version than the main file makes tables vanish; one that says the same can not.
        document = change.put(toml.read(text or HEAD.format(wanted.name), file.path), (), "version", _version_said(found))
        created = ["version"] + (["file"] if file.data is None else [])
    edit = cri.edit_section(document, section, wanted, cri.note_created(found["note"], created), now)
    after = toml.read(edit.text, file.path)
    cri.prove(start, after, section, wanted)
    _refuse_other_default(found, file, after, section, wanted)
    edit.path, edit.before, edit.changed = file.path, text, edit.text != text
    made = "file" in found["note"].get("created", ()) and posixpath.basename(file.path) == _own(wanted.name)
    edit.remove = edit.changed and wanted.state == "absent" and made and cri.nothing_left(after, wanted.name)
    return edit


def _own(name: str) -> str:
    return f"99-npu-fleet-{name}.toml"


def _refuse_other_default(found: dict, file: EngineFile, after: toml.Document, section: Section, wanted: Wanted) -> None:
    """Raise where another file undoes the edit: the generated one, or a drop-in behind ours (they are read sorted by name)."""
    dropins = [toml.read(_text(one), one.path) for one in files_of(found, "dropin") if one.path != file.path]
    generated = [toml.read(_text(one), one.path) for one in files_of(found, "generated")]
    key, label = (*section.containerd, "default_runtime_name"), found["engine"]
    documents = [*generated, *sorted([*dropins, after], key=lambda one: one.path)]
    set_there = not any(one.get(key) for one in documents[len(generated) :])
    hint = f"Take `default-runtime` out of /etc/rancher/{label}/config.yaml and restart {label} first."
    cri.refuse_other_default(documents, key, wanted, hint if set_there else None)


def _version_said(found: dict) -> int:
    """Return the version that the generated file says: 4 has the tables of 3 and is another number."""
    data = toml.read(_text(next(iter(files_of(found, "generated")))), found["config_path"]).data
    return data.get("version") or found["k3s"]["version"]


def _dropin_check(generated: EngineFile, found: dict, file: EngineFile) -> str:
    """Return the generated file with its drop-ins named one by one, ours as a copy."""
    document = toml.read(_text(generated), generated.path)
    others = [one.path for one in files_of(found, "dropin") if one.path != file.path]
    return change.put(document, (), "imports", [*others, COPY]).text


# --- the template, as text ---


def _markers(name: str) -> tuple[str, str]:
    return f"# BEGIN npu.fleet runtime {name}", f"# END npu.fleet runtime {name}"


def _block(text: str, path: str, name: str) -> tuple[int, int] | None:
    """Return where our block stands, marker lines included; FleetError for markers that are no pair."""
    begin, end = (
        list(re.finditer(rf"^[ \t]*{re.escape(marker)}[ \t]*\r?(?:\n|\Z)", text, re.MULTILINE)) for marker in _markers(name)
    )
    if not begin and not end:
        return None
    if len(begin) != 1 or len(end) != 1 or end[0].start() < begin[0].end():
        raise error_at(
            text, path, (begin or end)[-1].start(), f"the markers of npu.fleet for {name} are no pair",
            "Make it one BEGIN line and one END line behind it, or take both away.",
        )  # fmt: skip
    return begin[0].start(), end[0].end()


def _by_hand(text: str, name: str, block: tuple[int, int] | None) -> int | None:
    """Return where somebody else's table of our name stands in the template, by the look of its header."""
    part = rf"(?:\"{re.escape(name)}\"|'{re.escape(name)}'|{re.escape(name)})"
    header = rf"^[ \t]*\[[^\]\n]*\bruntimes[\"']?[ \t]*\.[ \t]*{part}[ \t]*(?:\.[ \t]*[\"']?options[\"']?[ \t]*)?\]"
    for match in re.finditer(header, text, re.MULTILINE):
        if block is None or not block[0] <= match.start() < block[1]:
            return match.start()
    return None


def _edit_template(found: dict, file: EngineFile, section: Section, wanted: Wanted, now: Effective | None) -> Edit:
    text, label, name = _text(file), found["engine"], wanted.name
    note = dict(found["note"])
    block = _block(text, file.path, name)
    by_hand = _by_hand(text, name, block)
    _refuse_default(label, file.path, wanted, now)
    if by_hand is not None:
        in_effect = now.runtimes.get(name) if now else None
        program = toml.dig(in_effect, ("options", "BinaryName"))
        if wanted.state == "present" and block is None and program == wanted.path:
            return Edit(text, None, None, None, note, path=file.path, before=text)
        raise error_at(
            text, file.path, by_hand, f"somebody else's table of the runtime {name} stands here, and a template can only be edited as text",
            "Take these lines out by hand, then run again.",
        )  # fmt: skip
    newline = change.newline_of(text)
    if wanted.state == "absent":
        new = _without_block(text, block, note, newline)
        made = "file" in note.get("created", ())
        edit = Edit(new, None, None, None, {}, path=file.path, before=text)
        edit.changed, edit.remove = new != text, made and new in ("", BASE)
        return edit
    lines = _block_lines(section, wanted, now, file.path)
    if block is not None:
        there = text[block[0] : block[1]]
        new_block = newline.join(lines) + (newline if there.endswith("\n") else "")
        new = text[: block[0]] + new_block + text[block[1] :]
    else:
        created = set(note.get("created", ()))
        start = text
        if file.data is None:
            start, created = BASE, created | {"file"}
        if start and not start.endswith("\n"):
            start, created = start + newline, created | {"newline"}
        new = start + (newline if start else "") + newline.join(lines) + newline
        if created:
            note["created"] = sorted(created)
    return Edit(new, None, None, None, note, path=file.path, before=text, changed=new != text)


def _without_block(text: str, block: tuple[int, int] | None, note: dict, newline: str) -> str:
    if block is None:
        return text
    before, after = text[: block[0]], text[block[1] :]
    if before == newline or before.endswith("\n" + newline):
        before = before[: -len(newline)]
    if not after and "newline" in note.get("created", ()) and before.endswith(newline):
        before = before[: -len(newline)]
    return before + after


def _refuse_default(label: str, path: str, wanted: Wanted, now: Effective | None) -> None:
    """Raise where the default runtime would have to change: in a template its line stands in the built-in part."""
    hint = f"Set `default-runtime: {wanted.name}` in /etc/rancher/{label}/config.yaml."
    if wanted.state == "present" and wanted.set_default and (now is None or now.default != wanted.name):
        raise FleetError(
            f"The default runtime of {label} can not be set in {path}.", "default_unsupported", phase="check", object=path, hint=hint
        )
    if wanted.state == "absent" and now is not None and now.default == wanted.name:
        raise FleetError(
            f"{wanted.name} is the default runtime of {label}; without it no pod would start. Nothing was changed.", "config_conflict",
            phase="check", object=path, hint=f"Take `default-runtime` out of /etc/rancher/{label}/config.yaml and restart {label} first.",
        )  # fmt: skip


def _block_lines(section: Section, wanted: Wanted, now: Effective | None, path: str) -> list[str]:
    """Return our block, lines without ends. It stands behind the base part, so it can not take a key from a table there."""
    if now is None:
        raise FleetError(
            f"What runc's entry is in effect is not known, so none like it can be put into {path}.", "effective_unknown", phase="edit",
            object=path, hint="Start the engine once, then run again.",
        )  # fmt: skip
    values = cri.runtime_values(now.runtimes.get(cri.STOCK_RUNTIME) or {}, str(wanted.path))
    body = change.add_table(toml.read("", path), (*section.runtimes, wanted.name), values, section.runtimes, section.quote).text
    if "{{" in body:
        message = "The runtime's entry holds '{{', which means something else in a template."
        raise FleetError(message, "path_invalid", phase="edit", object=path)
    begin, end = _markers(wanted.name)
    return [begin, *body.splitlines(), end]


def _template_check(generated: EngineFile, name: str, edit: Edit) -> str | None:
    """Return what the template will give, as far as it can be known: the present file with the new block in place of the old one."""
    text = _text(generated)
    old, new = _block(text, generated.path, name), _block(edit.text, edit.path, name)
    if old is not None:
        text = text[: old[0]] + text[old[1] :]
    if new is not None:
        text += ("" if text.endswith("\n") else "\n") + edit.text[new[0] : new[1]]
    return text
