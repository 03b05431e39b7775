# SPDX-License-Identifier: GPL-3.0-or-later
"""The corpus of containerd files: what is in effect differs in our keys only, by containerd's own word where it is there."""

import base64
import json
from pathlib import Path

import engine_corpus as corpus
import pytest
from engine_corpus import CANARY, RUNTIME, tomllib

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config as config

CASES = corpus.cases("containerd")


@pytest.fixture(params=CASES)
def tree(request, tmp_path):
    return corpus.containerd_tree(request.param, tmp_path)


def comments(data):
    return [line.partition(b"#")[2] for line in data.splitlines() if b"#" in line]


def by_containerd(tree):
    return corpus.section_of(tree.say(tree))


def in_memory(tree):
    """Each file as data, without what is ours."""
    both = {}
    for path, data in tree.data().items():
        both[path] = tomllib.loads((data or b"").decode())
        for table in corpus.TABLES.values():
            section = both[path].get("plugins", {}).get(table[1], {}).get("containerd", {})
            section.get("runtimes", {}).pop("ascend", None)
    return both


def test_only_our_keys_change(tree):
    before, (section, rest) = tree.data(), by_containerd(tree)
    plan = tree.apply()
    assert plan.edit.changed
    after, (new_section, new_rest) = tree.data(), by_containerd(tree)
    assert new_rest == rest
    ours = new_section["runtimes"].pop("ascend")
    assert new_section == section
    stock = section["runtimes"].get("runc")
    if stock is None:
        stock = {**section["runtimes"]["nvidia"], "privileged_without_host_devices": False}
    assert ours["options"]["BinaryName"] == RUNTIME
    assert {**ours, "options": {**ours["options"], "BinaryName": ""}} == {**stock, "options": {**stock["options"], "BinaryName": ""}}
    assert [path for path in before if before[path] != after.get(path)] == [path for path in before if str(path) == plan.edit.path]
    for path, data in before.items():
        assert all(line in comments(after[path]) for line in comments(data or b""))
        lines = iter((after[path] or b"").splitlines())
        assert all(line in lines for line in (data or b"").splitlines() if b"{" not in line), "a line of the admin's is gone or moved"


def test_the_file_that_counts_is_edited(tree, request):
    told = corpus.told("containerd", request.node.callspec.params["tree"])
    assert tree.plan().edit.path.endswith("/etc/containerd/" + told.get("edits", "config.toml"))


@pytest.mark.parametrize("default", [False, True])
def test_there_and_back_gives_the_same_bytes(tree, default, request):
    refused = corpus.told("containerd", request.node.callspec.params["tree"]).get("no_default")
    if default and refused:
        with pytest.raises(FleetError) as caught:
            tree.plan(set_default=True)
        assert caught.value.code == refused
        return
    before, section = tree.data(), by_containerd(tree)
    there = tree.apply(set_default=default)
    assert tree.data() != before
    if default:
        assert by_containerd(tree)[0]["default_runtime_name"] == "ascend"
    again = tree.apply(set_default=default)
    assert (again.edit.changed, again.edit.note) == (False, there.edit.note)
    back = tree.apply("absent")
    assert back.edit.changed
    assert tree.data() == before
    assert by_containerd(tree) == section
    assert tree.note == {}
    assert not tree.apply("absent").edit.changed


def test_in_two_steps_the_default_comes_and_all_goes(tree, request):
    if corpus.told("containerd", request.node.callspec.params["tree"]).get("no_default"):
        return
    before = tree.data()
    tree.apply()
    tree.apply(set_default=True)
    assert not tree.apply().edit.changed
    tree.apply("absent")
    assert tree.data() == before


def test_without_a_note_nothing_foreign_is_lost(tree):
    """The record on the node is gone: what we made beside the entry may stay, everything else is as it was."""
    before = in_memory(tree)
    tree.apply()
    tree.note = {}
    tree.apply("absent")
    after = in_memory(tree)
    for path, data in before.items():
        kept = corpus.deep(data, after[path])
        assert kept == after[path]
        assert b"ascend" not in tree.data()[path].replace(b"npu.fleet for the container runtime ascend", b"").replace(
            b"ascend-docker-runtime", b""
        )


def test_another_program_later(tree):
    before = tree.data()
    tree.apply()
    middle = tree.data()
    plan = tree.apply(path="/opt/new/runtime")
    assert plan.edit.changed
    for path, data in middle.items():
        assert tree.data()[path] == (data and data.replace(f'BinaryName = "{RUNTIME}"'.encode(), b'BinaryName = "/opt/new/runtime"')) or (
            tree.data()[path] == data.replace(f"BinaryName = '{RUNTIME}'".encode(), b"BinaryName = '/opt/new/runtime'")
        )
    tree.apply("absent")
    assert tree.data() == before


def test_no_canary_is_shown(tree):
    there = tree.plan(set_default=False)
    shown = json.dumps(config.diff(tree.found(), there)) + json.dumps(there.warnings)
    assert CANARY not in shown
    if CANARY.encode() in b"".join(data or b"" for data in tree.data().values()):
        assert shown.count("********") >= 9
        assert "registry.example" in shown


def test_the_text_to_check_loads_the_copy(tree):
    plan = tree.plan()
    main, *imports = [path for path, _role in tree.files]
    if plan.edit.path == str(main):
        assert plan.commit["check"] is None
        return
    text = base64.b64decode(plan.commit["check"]).decode()
    assert tomllib.loads(text)["imports"] == ["@NPU_FLEET_COPY@" if str(path) == plan.edit.path else str(path) for path in imports]
    if corpus.real(tree):
        copy, checked = tree.root / "copy.toml", tree.root / "checked.toml"
        copy.write_text(plan.edit.text)
        checked.write_text(text.replace("@NPU_FLEET_COPY@", str(copy)))
        assert "ascend" in corpus.section_of(corpus.dump(checked))[0]["runtimes"]


@pytest.mark.parametrize(("name", "line"), corpus.broken("containerd"))
def test_a_broken_file_is_left_alone(tmp_path, name, line):
    data = (corpus.CORPUS / "containerd/broken" / name).read_bytes()
    path = tmp_path / "config.toml"
    path.write_bytes(data)
    said = corpus.STOCK.format(2, 'plugins."io.containerd.grpc.v1.cri"')
    tree = corpus.Tree(tmp_path, "containerd", [(path, "main")], None, binary_version="1.6.20", effective_text=said)
    for state in ("present", "absent"):
        with pytest.raises(FleetError) as caught:
            tree.plan(state)
        error = caught.value
        assert (error.code, error.object) == ("config_invalid", str(path))
        assert f"{path}, line {line}" in error.message
        assert len(error.message.split(": ", 1)[1]) > 15
        assert CANARY not in json.dumps(error.as_dict())
    assert path.read_bytes() == data


ONLY_OURS = f"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ascend]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ascend.options]
    BinaryName = "{RUNTIME}"
    SystemdCgroup = true
"""


@pytest.mark.skipif(corpus.CONTAINERD is None, reason="needs containerd")
def test_by_containerd_a_file_with_our_entry_alone_is_healed(tmp_path):
    """The file that an installer of old left: `containerd config dump` has no runc, which is the default, so CRI does not load."""
    tree = corpus.containerd_tree("v2-version-only", tmp_path)
    tree.files[0][0].write_text(ONLY_OURS)
    before, _rest = by_containerd(tree)
    assert (before["default_runtime_name"], list(before["runtimes"])) == ("runc", ["ascend"])
    tree.apply()
    after, _rest = by_containerd(tree)
    assert after["runtimes"].pop("runc")["options"] == {"SystemdCgroup": True}
    assert after == before
    assert not tree.apply().edit.changed


@pytest.mark.skipif(corpus.CONTAINERD is None, reason="needs containerd")
@pytest.mark.parametrize("case", ["no-file", "v2-without-runtimes"])
def test_by_containerd_the_admins_cgroup_driver_outlives_us(tmp_path, case):
    """kubeadm's manual has the admin set SystemdCgroup in runc's entry, which we wrote: it is the admin's from then on."""
    tree = corpus.containerd_tree(case, tmp_path)
    plan = tree.apply()
    path = Path(plan.edit.path)
    path.write_text(path.read_text().replace("SystemdCgroup = false", "SystemdCgroup = true"))
    assert by_containerd(tree)[0]["runtimes"]["runc"]["options"] == {"SystemdCgroup": True}
    tree.apply()
    plan = tree.apply("absent")
    assert not plan.edit.remove
    section = by_containerd(tree)[0]
    assert section["runtimes"]["runc"]["options"] == {"SystemdCgroup": True}
    assert "ascend" not in section["runtimes"]
