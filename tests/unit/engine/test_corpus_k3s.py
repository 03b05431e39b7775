# SPDX-License-Identifier: GPL-3.0-or-later
"""The corpus of k3s and rke2: the place is right, the template stays text, the generated file is never written."""

import base64
import json
from pathlib import Path

import engine_corpus as corpus
import pytest
from engine_corpus import CANARY, RUNTIME, tomllib

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config as config

BASE = '{{ template "base" . }}\n'
BLOCK = """# BEGIN npu.fleet runtime ascend
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ascend]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ascend.options]
    BinaryName = "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"
    SystemdCgroup = true
# END npu.fleet runtime ascend
"""


@pytest.fixture(params=corpus.cases("k3s"))
def case(request, tmp_path):
    tree, home = corpus.k3s_tree(request.param, tmp_path)
    return tree, home, corpus.told("k3s", request.param)


def files(home):
    return {path.relative_to(home): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}


def test_place_effect_and_way_back(case):
    tree, home, told = case
    before, was = files(home), corpus.rendered(tree, home)
    plan = tree.apply()
    assert Path(plan.edit.path) == home / told["edits"]
    after, now = files(home), corpus.rendered(tree, home)
    assert [path for path in after if after[path] != before.get(path)] == [Path(told["edits"])]
    assert after[Path(told["edits"])].startswith(before.get(Path(told["edits"]), b""))
    runtimes = now["plugins"][corpus.TABLES[told["version"]][1]]["containerd"]["runtimes"]
    ours, stock = runtimes.pop("ascend"), runtimes["runc"]
    assert ours == {**stock, "options": {"BinaryName": RUNTIME, **stock["options"]}}
    assert now == was
    again = tree.apply()
    assert (again.edit.changed, again.edit.note) == (False, plan.edit.note)
    assert tree.apply("absent").edit.changed
    assert files(home) == before
    assert tree.note == {}
    assert not tree.apply("absent").edit.changed


def test_what_is_checked_is_what_will_be_read(case):
    tree, _home, told = case
    plan = tree.plan()
    text = base64.b64decode(plan.commit["check"]).decode()
    if told["edits"].endswith(".tmpl"):
        table = tomllib.loads(text)["plugins"][corpus.TABLES[told["version"]][1]]
        assert table["containerd"]["runtimes"]["ascend"]["options"]["BinaryName"] == RUNTIME
    else:
        assert tomllib.loads(text)["imports"][-1] == "@NPU_FLEET_COPY@"
    assert set(plan.commit["expected"]) >= {str(path) for path, _role in tree.files}
    assert CANARY not in json.dumps(config.diff(tree.found(), plan))


def test_the_block_is_this_text(tmp_path):
    tree, home = corpus.k3s_tree("v2", tmp_path)
    tree.apply()
    assert (home / "config.toml.tmpl").read_text() == BASE + "\n" + BLOCK


def test_another_program_later_changes_the_block_only(tmp_path):
    tree, home = corpus.k3s_tree("v2-template", tmp_path)
    before = files(home)
    tree.apply()
    with (home / "config.toml.tmpl").open("a") as stream:
        stream.write("# written later\n")
    text = (home / "config.toml.tmpl").read_text()
    tree.apply(path="/opt/new")
    assert (home / "config.toml.tmpl").read_text() == text.replace(RUNTIME, "/opt/new")
    tree.apply("absent")
    assert (home / "config.toml.tmpl").read_bytes() == before[Path("config.toml.tmpl")] + b"# written later\n"


HAND = '\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes."ascend"]\n  runtime_type = "io.containerd.runc.v2"\n'


def test_somebody_elses_table_is_never_doubled(tmp_path):
    tree, home = corpus.k3s_tree("v2-template", tmp_path)
    with (home / "config.toml.tmpl").open("a") as stream:
        stream.write(HAND)
    for state in ("present", "absent"):
        with pytest.raises(FleetError) as caught:
            tree.plan(state)
        assert (caught.value.code, ", line 7, column 1: " in caught.value.message) == ("config_invalid", True)
    # In effect as wanted, it is left as it is.
    options = f'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ascend.options]\n  BinaryName = "{RUNTIME}"\n'
    with (home / "config.toml").open("a") as stream:
        stream.write(HAND + options)
    assert not tree.plan().edit.changed


BEGIN, END = BLOCK.splitlines(keepends=True)[0], BLOCK.splitlines(keepends=True)[-1]


@pytest.mark.parametrize("marks", [BEGIN, END + BEGIN, BLOCK + BLOCK])
def test_markers_that_are_no_pair(tmp_path, marks):
    tree, home = corpus.k3s_tree("v2-template", tmp_path)
    with (home / "config.toml.tmpl").open("a") as stream:
        stream.write(marks)
    with pytest.raises(FleetError, match="markers of npu.fleet for ascend are no pair"):
        tree.plan()


def test_another_runtimes_block_is_not_ours(tmp_path):
    tree, home = corpus.k3s_tree("v2", tmp_path)
    tree.apply(name="ascend-2")
    text = (home / "config.toml.tmpl").read_text()
    tree.note = {}
    tree.apply()
    tree.apply("absent")
    assert (home / "config.toml.tmpl").read_text() == text


def test_the_default_is_k3s_own_option(tmp_path):
    tree, _home = corpus.k3s_tree("v2", tmp_path)
    with pytest.raises(FleetError) as caught:
        tree.plan(set_default=True)
    assert (caught.value.code, "default-runtime: ascend" in caught.value.hint) == ("default_unsupported", True)


def test_the_default_in_a_drop_in(tmp_path):
    tree, home = corpus.k3s_tree("v3-drop-in", tmp_path)
    before = files(home)
    tree.apply(set_default=True)
    now = corpus.rendered(tree, home)["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]
    assert now["default_runtime_name"] == "ascend"
    tree.apply("absent")
    assert files(home) == before


def test_a_k3s_that_has_not_started_yet(tmp_path):
    tree, _home = corpus.k3s_tree("v2", tmp_path)
    tree.more["k3s"]["version"] = None
    with pytest.raises(FleetError) as caught:
        tree.plan()
    assert (caught.value.code, "systemctl start k3s.service" in caught.value.hint) == ("engine_not_started", True)


def test_a_drop_in_says_the_version_of_the_generated_file(tmp_path):
    """Two versions in one load make tables vanish without a word (measured on 2.1.9)."""
    tree, home = corpus.k3s_tree("v3-drop-in", tmp_path)
    generated = home / "config.toml"
    generated.write_text(generated.read_text().replace("version = 3", "version = 4"))
    plan = tree.apply()
    assert tomllib.loads(plan.edit.text)["version"] == 4


DEFAULT = "[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'NAME'\n"


def test_a_default_in_a_later_drop_in_is_named(tmp_path):
    tree, home = corpus.k3s_tree("v3-drop-in", tmp_path)
    later = home / corpus.told("k3s", "v3-drop-in")["folder"] / "99-z.toml"
    later.parent.mkdir(exist_ok=True)
    later.write_text("version = 3\n" + DEFAULT.replace("NAME", "kata"))
    tree.files.append((later, "dropin"))
    with pytest.raises(FleetError) as caught:
        tree.plan(set_default=True)
    assert (caught.value.code, caught.value.object) == ("config_conflict", str(later))
    assert tree.apply().expect["default"] is None
    later.write_text("version = 3\n" + DEFAULT.replace("NAME", "ascend"))
    with pytest.raises(FleetError) as caught:
        tree.plan("absent")
    assert (caught.value.code, caught.value.hint) == ("config_conflict", f"Take default_runtime_name out of {later}.")


def test_k3s_own_option_is_named_where_it_needs_our_entry(tmp_path):
    tree, home = corpus.k3s_tree("v3-drop-in", tmp_path)
    tree.apply()
    with (home / "config.toml").open("a") as stream:
        stream.write("\n" + DEFAULT.replace("NAME", "ascend"))
    with pytest.raises(FleetError) as caught:
        tree.plan("absent")
    assert (caught.value.code, "`default-runtime`" in caught.value.hint) == ("config_conflict", True)
