# SPDX-License-Identifier: GPL-3.0-or-later
"""The corpus of cri-o: a drop-in of our own that is like runc, or the file that has the entry already."""

from pathlib import Path

import engine_corpus as corpus
import pytest
from engine_corpus import RUNTIME, tomllib

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config_crio as crio


@pytest.fixture()
def crio_tree(tmp_path, monkeypatch):
    folder = tmp_path / "crio.conf.d"
    monkeypatch.setattr(crio, "FOLDER", str(folder))

    def build(case, **extra):
        source = corpus.CORPUS / "crio" / case
        folder.mkdir()
        main = tmp_path / "crio.conf"
        if (source / "crio.conf").exists():
            main.write_bytes((source / "crio.conf").read_bytes())
        for path in source.glob("[0-9]*.conf"):
            (folder / path.name).write_bytes(path.read_bytes())
        for name, text in extra.items():
            (folder / name.replace("_", "-", 1).replace("_", ".")).write_text(text)
        return corpus.Tree(tmp_path, "crio", [(main, "main")] + [(path, "dropin") for path in sorted(folder.glob("*.conf"))])

    return build


def merged(tree):
    data = {}
    for path, _role in sorted(tree.files, key=lambda one: (one[1] != "main", one[0].name)):
        data = corpus.deep(data, tomllib.loads(path.read_text()) if path.exists() else {})
    return data


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("case", corpus.cases("crio"))
def test_effect_and_way_back(crio_tree, case, default):
    tree = crio_tree(case)
    before, was = tree.data(), merged(tree)
    plan = tree.apply(set_default=default)
    assert Path(plan.edit.path).name == "99-npu-fleet-ascend.conf"
    runtime = merged(tree)["crio"]["runtime"]
    stock = was.get("crio", {}).get("runtime", {}).get("runtimes", {}).get("runc", {})
    assert runtime["runtimes"]["ascend"] == {**stock, "runtime_path": RUNTIME, "runtime_type": "oci"}
    assert (runtime.get("default_runtime") == "ascend") == default
    again = tree.apply(set_default=default)
    assert (again.edit.changed, again.edit.note) == (False, plan.edit.note)
    assert tree.apply("absent").edit.remove
    assert {path: data for path, data in tree.data().items() if data is not None or path in before} == before


VENDOR_HEAD = '# by the installer\n[crio.runtime]\ndefault_runtime = "nvidia"\n'
VENDOR = VENDOR_HEAD + '[crio.runtime.runtimes.ascend]\nruntime_path = "/old"\nruntime_type = "oci"\n'


def test_an_entry_that_is_there_is_mended_in_its_file(crio_tree):
    tree = crio_tree("vendor-drop-in", **{"99_ascend_conf": VENDOR})
    plan = tree.apply()
    assert (Path(plan.edit.path).name, plan.edit.text) == ("99-ascend.conf", VENDOR.replace("/old", RUNTIME))
    assert not tree.apply().edit.changed
    tree.apply("absent")
    assert Path(plan.edit.path).read_text() == VENDOR_HEAD


def test_a_later_default_is_named(crio_tree):
    tree = crio_tree("nothing", **{"99_z_conf": '[crio.runtime]\ndefault_runtime = "crun"\n'})
    with pytest.raises(FleetError) as caught:
        tree.plan(set_default=True)
    assert (caught.value.code, Path(caught.value.object).name) == ("config_conflict", "99-z.conf")


def test_without_runc_only_the_monitor_is_taken_over(crio_tree):
    text = '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\nruntime_root = "/run/crun"\nmonitor_path = "/usr/bin/conmon"\n'
    tree = crio_tree("nothing", **{"10_crun_conf": text})
    tree.apply()
    assert merged(tree)["crio"]["runtime"]["runtimes"]["ascend"] == {
        "runtime_path": RUNTIME, "runtime_type": "oci", "monitor_path": "/usr/bin/conmon",
    }  # fmt: skip


def test_what_crio_prints_counts(crio_tree):
    tree = crio_tree("nothing")
    said = '[crio.runtime.runtimes.runc]\nruntime_path = ""\nruntime_root = "/run/runc"\nmonitor_cgroup = "system.slice"\n'
    tree.more["effective_text"] = said
    tree.apply()
    entry = merged(tree)["crio"]["runtime"]["runtimes"]["ascend"]
    assert (entry["runtime_root"], entry["monitor_cgroup"]) == ("/run/runc", "system.slice")


def test_arguments_are_refused(crio_tree):
    with pytest.raises(FleetError) as caught:
        crio_tree("nothing").plan(args=["--debug"])
    assert caught.value.code == "args_unsupported"


def test_the_folder_is_the_one_the_node_names(crio_tree):
    tree = crio_tree("nothing")
    tree.more["writable"] = ["/opt/crio/crio.conf", "/opt/crio/crio.conf.d/*.conf"]
    assert tree.plan().edit.path == "/opt/crio/crio.conf.d/99-npu-fleet-ascend.conf"


def test_another_default_in_a_later_drop_in_is_not_expected(crio_tree):
    tree = crio_tree("nothing", **{"99_a_conf": VENDOR.replace("nvidia", "ascend").replace("/old", RUNTIME)})
    tree.more["effective"] = {"runtimes": {"ascend": {"path": RUNTIME, "args": [], "type": None}}, "default_runtime": "x", "handlers": None}
    plan = tree.plan()
    assert (plan.edit.changed, plan.missing, plan.expect["default"]) == (False, None, None)
    assert tree.plan(set_default=True).missing == "its default runtime is x"


def test_a_default_in_another_file_is_not_left_without_its_entry(crio_tree):
    tree = crio_tree("nothing", **{"99_z_conf": '[crio.runtime]\ndefault_runtime = "ascend"\n'})
    tree.apply()
    with pytest.raises(FleetError) as caught:
        tree.plan("absent")
    assert (caught.value.code, Path(caught.value.object).name) == ("config_conflict", "99-z.conf")


def test_a_default_behind_an_entry_in_the_main_file_is_named(crio_tree):
    tree = crio_tree("nothing", **{"10_z_conf": '[crio.runtime]\ndefault_runtime = "crun"\n'})
    tree.files[0][0].write_text(VENDOR)
    with pytest.raises(FleetError) as caught:
        tree.plan(set_default=True)
    assert Path(caught.value.object).name == "10-z.conf"


def test_leftovers_of_a_killed_run_hold_nothing(crio_tree):
    tree = crio_tree("nothing")
    own = Path(tree.plan().edit.path)
    left = own.with_name(f".{own.name}.ab12.npu-fleet")
    left.write_text(tree.plan().edit.text)
    tree.files.append((left, "dropin"))
    plan = tree.apply()
    assert (plan.edit.path, plan.edit.changed) == (str(own), True)
    assert str(left) not in plan.commit["expected"]
    assert tree.apply("absent").edit.path == str(own)


def test_the_note_of_our_drop_in_does_not_remove_another_one(crio_tree):
    tree = crio_tree("nothing", **{"99_ascend_conf": VENDOR.removeprefix(VENDOR_HEAD)})
    tree.note = {"created": ["file"]}
    edit = tree.plan("absent").edit
    assert (Path(edit.path).name, edit.changed, edit.remove) == ("99-ascend.conf", True, False)
