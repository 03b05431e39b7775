# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd's files: what is refused and why, what an entry that is there becomes, and what a removal must not break. Pure."""

import sys

import pytest
from engine_corpus import CANARY, RUNTIME, STOCK, read_answer, tomllib, wanted

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config as config
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_cri as cri
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_toml as toml

MAIN = "/etc/containerd/config.toml"
CRI = 'plugins."io.containerd.grpc.v1.cri"'
CRI3 = "plugins.'io.containerd.cri.v1.runtime'"
RUNC = f'[{CRI}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
SAID = STOCK.format(2, CRI) + f"[{CRI}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"


def plan(*texts, state="present", note=None, said=SAID, binary="1.6.20", **more):
    """``texts``: the main file and its imports (None: no file)."""
    files = [(MAIN if not number else f"/etc/containerd/conf.d/{number}.toml", "import" if number else "main", text and text.encode())
             for number, text in enumerate(texts)]  # fmt: skip
    found = read_answer("containerd", files, effective_text=said, binary_version=binary, note=note or {})
    found.update({key: more.pop(key) for key in ("effective_error", "active") if key in more})
    return config.plan(found, wanted("containerd", state, **more))


@pytest.mark.parametrize(
    ("texts", "options", "code", "words"),
    [
        (('[plugins.cri]\nsandbox_image = "x"\n',), {"binary": "2.1.9"}, "config_version", "version 1, whose CRI tables containerd 2.1"),
        (('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n',), {}, "cri_disabled", "disabled_plugins has io.containerd"),
        (('disabled_plugins = ["cri"]\n',), {}, "cri_disabled", "disabled_plugins has cri"),
        (("version = 2\n",), {"args": ["--debug"]}, "args_unsupported", "takes no arguments"),
        (("version = 2\n",), {"said": None}, "effective_unknown", "containerd printed nothing"),
        ((None,), {"said": None}, "effective_unknown", "does not say its version"),
        ((f"version = 2\n{RUNC.replace('runc', 'ascend', 1)}", f"version = 2\n{RUNC.replace('runc', 'ascend', 1)}"),
         {"binary": "2.1.9"}, "config_conflict", "stands in several files: /etc/containerd/config.toml, /etc/containerd/conf.d/1.toml"),
    ],
)  # fmt: skip
def test_refused(texts, options, code, words):
    with pytest.raises(FleetError) as caught:
        plan(*texts, **options)
    assert (caught.value.code, words in caught.value.message) == (code, True), caught.value.message
    assert caught.value.hint


def test_why_nothing_is_known_is_said_without_secrets():
    with pytest.raises(FleetError) as caught:
        plan("version = 2\n", said=None, effective_error=f'Can\'t convert password="{CANARY}"(string) to int')
    said = caught.value.message.partition("Its parser says: ")[2]
    assert said.startswith("Can't convert ")
    assert said.endswith("********(string) to int")
    assert CANARY not in str(caught.value.as_dict())


def test_without_a_dump_the_files_own_runc_is_copied():
    text = plan(f"version = 2\n{RUNC}[{CRI}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n", said=None).edit.text
    entry = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["ascend"]
    assert entry == {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": RUNTIME, "SystemdCgroup": True}}


ENTRY, SHIM = f"[{CRI}.containerd.runtimes.ascend", 'runtime_type = "io.containerd.runc.v2"'
BINARY = f'BinaryName = "{RUNTIME}"'


@pytest.mark.parametrize(
    ("there", "after"),
    [
        # Another program: only that, in the same quotes.
        (f"{ENTRY}]\n {SHIM} # x\n  {ENTRY}.options]\n    BinaryName = '/old' # y\n    SystemdCgroup = true\n    Root = \"/r\"\n",
         f"{ENTRY}]\n {SHIM} # x\n  {ENTRY}.options]\n    BinaryName = '{RUNTIME}' # y\n    SystemdCgroup = true\n    Root = \"/r\"\n"),
        # The cgroup driver is not runc's.
        (f"{ENTRY}]\n{SHIM}\noptions = {{{BINARY}, SystemdCgroup = false}}\n",
         f"{ENTRY}]\n{SHIM}\noptions = {{{BINARY}, SystemdCgroup = true}}\n"),
        # The shim of containerd 1.2, which cgroup v2 and containerd 2 do not have.
        (f'{ENTRY}]\nruntime_type = "io.containerd.runtime.v1.linux"\n',
         f"{ENTRY}]\n{SHIM}\n\n{ENTRY}.options]\n  {BINARY}\n  SystemdCgroup = true\n"),
        # Empty, as a table and as an inline table.
        (f"{ENTRY}]\n", f"{ENTRY}]\n  {SHIM}\n\n{ENTRY}.options]\n  {BINARY}\n  SystemdCgroup = true\n"),
        (f"[{CRI}.containerd]\nruntimes.ascend = {{}}\n",
         f"[{CRI}.containerd]\nruntimes.ascend = {{{SHIM}, options = {{ {BINARY}, SystemdCgroup = true }}}}\n"),
    ],
)  # fmt: skip
def test_an_entry_that_is_there_is_mended(there, after):
    edit = plan(f"version = 2\n{RUNC}{there}").edit
    entry = tomllib.loads(edit.text)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["ascend"]
    assert (entry["runtime_type"], entry["options"]["BinaryName"], entry["options"]["SystemdCgroup"]) == (SHIM.split('"')[1], RUNTIME, True)
    assert edit.text == f"version = 2\n{RUNC}{after}"
    assert not plan(edit.text).edit.changed


def test_below_2_1_the_last_file_with_the_table_counts():
    hidden = f'version = 2\n{RUNC}[{CRI}.containerd.runtimes.ascend]\nruntime_type = "io.containerd.runc.v2"\n'
    last = f"version = 2\n{RUNC}"
    assert plan(hidden, last).edit.path == "/etc/containerd/conf.d/1.toml"
    assert plan(hidden, last, binary="2.1.9").edit.path == MAIN
    assert plan(hidden, last, state="absent").edit.path == MAIN


def test_one_version_counts_for_all_files():
    table = "[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '/x'\n"
    said = STOCK.format(3, CRI3)
    edit = plan("version = 2\n", "version = 3\n" + table, binary="2.1.9", said=said).edit
    assert "'io.containerd.cri.v1.runtime'" in edit.text.replace('"', "'")
    # 1.6 takes 3 without a word and goes on looking in the tables of 2.
    assert "io.containerd.grpc.v1.cri" in plan("version = 3\n").edit.text


def test_an_entry_where_containerd_does_not_look_is_named():
    (warning,) = plan(f"version = 2\n{RUNC}[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.ascend]\n").warnings
    assert "where containerd does not look" in warning


def test_the_old_shims_block_is_left_and_named():
    (warning,) = plan(f'version = 2\n{RUNC}[plugins."io.containerd.runtime.v1.linux"]\nruntime = "{RUNTIME}"\n').warnings
    assert "containerd 2 does not have" in warning


NVIDIA = f'[{CRI}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'


def test_runc_that_we_wrote_stays_while_others_need_it():
    there = plan("version = 2\n").edit
    text = there.text + NVIDIA
    back = plan(text, state="absent", note=there.note).edit
    assert "runtimes.runc]" in back.text
    assert "ascend" not in back.text


def test_no_default_without_a_runtime_is_left():
    text = f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "ascend"\n{NVIDIA}{NVIDIA.replace("nvidia", "ascend")}'
    with pytest.raises(FleetError, match="no entry of runc to take its place"):
        plan(text, state="absent")
    assert 'default_runtime_name = "nvidia"' in plan(text, state="absent", note={"previous_default": "nvidia"}).edit.text
    gone = plan(text + RUNC, state="absent", note={"previous_default": "kata"})
    assert "default_runtime_name" not in gone.edit.text
    assert "kata does not exist any more" in gone.warnings[0]


@pytest.mark.parametrize(
    ("stock", "values"),
    [
        ({}, {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/p"}}),
        (
            {"runtime_type": "io.containerd.runc.v1", "privileged_without_host_devices": True, "cni_conf_dir": "",
             "sandboxer": "podsandbox", "options": {"BinaryName": "/usr/bin/runc", "IoUid": 0, "Root": "/r", "SystemdCgroup": False}},
            {"runtime_type": "io.containerd.runc.v1", "privileged_without_host_devices": True,
             "options": {"BinaryName": "/p", "Root": "/r", "SystemdCgroup": False}},
        ),
        (
            {"runtime_type": "io.containerd.crun.v1", "runtime_path": "/s", "options": {"ConfigPath": "/c", "SystemdCgroup": True}},
            {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/p", "SystemdCgroup": True}},
        ),
    ],
)  # fmt: skip
def test_what_is_copied_from_runc(stock, values):
    assert cri.runtime_values(stock, "/p") == values


def test_without_a_toml_reader_the_command_is_named(monkeypatch):
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FleetError) as caught:
        toml.read("a = 1\n", MAIN)
    assert caught.value.code == "library_missing"
    assert f"{sys.executable} -m pip install tomli" in caught.value.hint


def test_the_arguments_of_a_commit():
    planned = plan("version = 2\n", "[debug]\nlevel = 'info'\n")
    commit = planned.commit
    assert (commit["file"], commit["remove"], commit["bridge"], commit["check"]) == (MAIN, False, None, None)
    assert set(commit["expected"]) == {MAIN, "/etc/containerd/conf.d/1.toml"}
    assert all(len(digest) == 64 for digest in commit["expected"].values())
    made = plan(None)
    assert made.commit["expected"] == {MAIN: ""}
    gone = plan(made.edit.text, state="absent", note=made.edit.note)
    assert (gone.commit["remove"], gone.commit["content"], config.diff(read_answer("containerd", []), gone)["after"]) == (True, None, "")


def test_a_file_that_is_made_keeps_the_imports_of_none():
    said = 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + STOCK.format(3, CRI3)
    there = plan(None, "version = 3\n", binary="2.2.1", said=said).edit
    assert (there.path, tomllib.loads(there.text)["imports"]) == (MAIN, ["/etc/containerd/conf.d/*.toml"])
    assert tomllib.loads(there.text)["version"] == 3
    assert not plan(there.text, "version = 3\n", binary="2.2.1", said=said, note=there.note).edit.changed
    assert plan(there.text, "version = 3\n", binary="2.2.1", said=said, note=there.note, state="absent").edit.remove


# --- only what still is what we wrote is taken back ---

CGROUP = ("SystemdCgroup = false", "SystemdCgroup = true")
STAYS = "runc was written by npu.fleet and has been changed since, so it stays as it is."


@pytest.mark.parametrize("before", [None, "# mine\n", f'version = 2\n[{CRI}]\nsandbox_image = "x"\n'])
def test_an_entry_of_runc_that_the_admin_changed_stays(before):
    said = SAID.replace("true", "false")
    there = plan(before, said=said).edit
    assert there.note["runc"] == {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": False}}
    changed = there.text.replace(*CGROUP)
    both = said.replace("false", "true") + changed.partition(".runtimes.runc.options]\n    SystemdCgroup = true\n")[2]
    again = plan(changed, said=both, note=there.note).edit
    assert (again.changed, again.note) == (False, there.note)
    gone = plan(changed, said=both, note=there.note, state="absent")
    section = tomllib.loads(gone.edit.text)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert section == {"runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}}}
    assert tomllib.loads(gone.edit.text)["version"] == 2
    assert (gone.edit.remove, gone.commit["remove"], gone.warnings) == (False, False, [f"{MAIN}: {STAYS}"])
    # Unchanged, it goes with ours.
    gone = plan(there.text, said=said, note=there.note, state="absent")
    assert (gone.edit.text if before else gone.edit.remove, gone.warnings) == (before or True, [])


def test_a_note_that_does_not_say_what_runc_was_takes_nothing():
    there = plan(None).edit
    gone = plan(there.text, note={"created": there.note["created"]}, state="absent")
    assert (gone.edit.remove, "runtimes.runc]" in gone.edit.text, gone.warnings) == (False, True, [f"{MAIN}: {STAYS}"])


IMPORTING = 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + STOCK.format(3, CRI3)


@pytest.mark.parametrize(
    ("old", "new", "warned"),
    [
        ('["/etc/containerd/conf.d/*.toml"]', '["/etc/containerd/conf.d/*.toml", "/opt/x.toml"]', 1),  # imports of the admin's own
        ("version = 3\n", "version = 3\noom_score = -999\n", 0),  # a key that needs the imports beside it
        ("version = 3\n", "version = 3\n# why this file is here\n", 0),  # a comment
    ],
)
def test_a_file_that_we_made_goes_only_if_nothing_else_is_in_it(old, new, warned):
    there = plan(None, binary="2.2.1", said=IMPORTING).edit
    assert there.note["imports"] == ["/etc/containerd/conf.d/*.toml"]
    changed = there.text.replace(old, new)
    assert changed != there.text
    gone = plan(changed, binary="2.2.1", said=IMPORTING, note=there.note, state="absent")
    data = tomllib.loads(gone.edit.text)
    assert (gone.edit.remove, data["version"], "plugins" in data, len(gone.warnings)) == (False, 3, False, warned)
    assert data["imports"] == tomllib.loads(changed)["imports"]


def test_the_note_of_the_main_file_does_not_remove_an_import():
    main = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    own = f"version = 2\n{NVIDIA.replace('nvidia', 'ascend')}"
    edit = plan(main, own, state="absent", note={"created": ["file", "runc", "version"]}).edit
    assert (edit.path, edit.changed, edit.remove, edit.text) == ("/etc/containerd/conf.d/1.toml", True, False, "version = 2\n")


# --- the default runtime, where files merge ---

OURS3 = (
    f"[{CRI3}.containerd.runtimes.ascend]\n  runtime_type = 'io.containerd.runc.v2'\n"
    f"  [{CRI3}.containerd.runtimes.ascend.options]\n    BinaryName = '{RUNTIME}'\n"
)


def default3(name):
    return f"version = 3\n[{CRI3}.containerd]\n  default_runtime_name = '{name}'\n"


def merged(*texts, active="ascend", **more):
    """A plan for an engine of 2.1 that has our runtime and ``active`` as default in effect."""
    files = [(MAIN if not number else f"/etc/containerd/conf.d/{number}.toml", "import" if number else "main", text.encode())
             for number, text in enumerate(texts)]  # fmt: skip
    found = read_answer("containerd", files, effective_text=STOCK.format(3, CRI3), binary_version="2.1.9")
    runtimes = {"ascend": {"path": RUNTIME, "args": [], "type": None}, "runc": {"path": "", "args": [], "type": None}}
    found["effective"] = {"runtimes": runtimes, "default_runtime": active, "handlers": None}
    return config.plan(found, wanted("containerd", **more))


def test_a_default_that_nobody_asked_for_is_not_expected():
    """Another default in a later file is the admin's: with nothing to change there is nothing to restart for."""
    planned = merged(default3("ascend") + OURS3, default3("nvidia"), active="nvidia")
    assert (planned.edit.changed, planned.missing, planned.commit, planned.expect["default"]) == (False, None, None, None)
    planned = merged(default3("ascend") + OURS3, active="runc", set_default=True)
    assert (planned.edit.changed, planned.missing) == (False, "its default runtime is runc")


@pytest.mark.parametrize(
    ("texts", "state", "named"),
    [
        ((default3("ascend") + OURS3, default3("nvidia")), "present", 1),
        (("version = 3\n", "version = 3\n", default3("nvidia")), "present", 2),
        (("version = 3\n" + OURS3, default3("ascend")), "absent", 1),
        ((default3("ascend"), "version = 3\n" + OURS3), "absent", 0),
    ],
)
def test_a_default_in_another_file_that_counts_is_named(texts, state, named):
    with pytest.raises(FleetError) as caught:
        merged(*texts, state=state, set_default=state == "present", **({"path": None} if state == "absent" else {}))
    path = f"/etc/containerd/conf.d/{named}.toml" if named else MAIN
    assert (caught.value.code, caught.value.object, path in caught.value.hint) == ("config_conflict", path, True)


def test_a_default_in_a_file_that_does_not_count_is_no_conflict():
    assert merged(default3("nvidia"), default3("ascend") + OURS3, active="runc", set_default=True).edit.changed is False
    assert merged(default3("ascend"), default3("nvidia"), "version = 3\n" + OURS3, state="absent", path=None).edit.changed
    # Below 2.1 the last file with the table counts alone, and that is the one to edit.
    text = f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "nvidia"\n{RUNC}'
    assert 'default_runtime_name = "ascend"' in plan(text, text, set_default=True).edit.text


# --- a file with our entry and without runc, whose CRI plugin does not load ---


def alone(default=""):
    entry = f"{ENTRY}]\n{SHIM}\n{ENTRY}.options]\n{BINARY}\nSystemdCgroup = true\n"
    return f"version = 2\n{default and f'[{CRI}.containerd]{chr(10)}default_runtime_name = {default!r}{chr(10)}'}{entry}"


@pytest.mark.parametrize("default", ["", "runc"])
def test_runc_comes_back_beside_our_entry(default):
    text = alone(default)
    said = text if default else text.replace("version = 2\n", f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "runc"\n')
    edit = plan(text, said=said).edit
    section = tomllib.loads(edit.text)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    # The cgroup driver is that of our entry, which was a copy of runc's once.
    stock = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    assert section["runtimes"]["runc"] == stock
    assert section["runtimes"]["ascend"] == {**stock, "options": {"BinaryName": RUNTIME, "SystemdCgroup": True}}
    assert edit.note == {"created": ["runc"], "runc": stock}
    again = plan(edit.text, said=edit.text, note=edit.note).edit
    assert (again.changed, again.note) == (False, edit.note)
    assert "runc]" not in plan(edit.text, said=edit.text, note=edit.note, state="absent").edit.text


def test_runc_comes_back_beside_another_entry():
    text = f"version = 2\n{NVIDIA}"
    edit = plan(text, said=text).edit
    assert set(tomllib.loads(edit.text)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]) == {"ascend", "nvidia", "runc"}


@pytest.mark.parametrize(
    ("text", "said", "more"),
    [
        (alone("ascend"), alone("ascend"), {}),  # another default
        (alone(), alone(), {"set_default": True}),
        (alone(), SAID, {}),  # runc is in effect
        (alone().replace("grpc.v1.cri", "cri.v1.runtime").replace("= 2", "= 3"),
         STOCK.format(3, CRI3).replace("runtimes.runc", "runtimes.x"), {"binary": "2.1.9"}),  # where files merge, the built-in one stays
        (f'{alone()}[{CRI}.containerd.default_runtime]\n{SHIM}\n', alone(), {}),  # the deprecated table is the default
    ],
)  # fmt: skip
def test_runc_is_not_added_where_containerd_does_not_need_it(text, said, more):
    edit = plan(text, said=said, **more).edit
    assert "runtimes.runc" not in edit.text
    assert "runc" not in edit.note
