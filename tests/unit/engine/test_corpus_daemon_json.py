# SPDX-License-Identifier: GPL-3.0-or-later
"""The corpus of daemon.json files, of dockerd and of isulad: only our keys change, and there and back gives the same bytes."""

import json
import shutil
import subprocess

import engine_corpus as corpus
import pytest
from engine_corpus import CANARY, RUNTIME

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config as config

CASES = [(engine, name) for engine in ("docker", "isulad") for name in corpus.cases(engine)]
ARGS_KEY = {"docker": "runtimeArgs", "isulad": "runtime-args"}
DOCKERD = shutil.which("dockerd")
# The white space inside an empty "runtimes" of the admin's is the one thing that is not kept.
NOT_SAME_BYTES = {"odd-order-and-space.json"}


def json_tree(engine, name, root):
    path = root / name
    path.write_bytes((corpus.CORPUS / engine / name).read_bytes())
    return corpus.Tree(root, engine.partition("/")[0], [(path, "main")]), path


def value(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if text.strip() else {}


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_only_our_keys_change(tmp_path, engine, name):
    tree, path = json_tree(engine, name, tmp_path)
    before, old_bytes = value(path), path.read_bytes()
    assert tree.apply().edit.changed
    after = value(path)
    entry = {"path": RUNTIME, ARGS_KEY[engine]: []}
    assert after == {**before, "runtimes": {**before.get("runtimes", {}), "ascend": entry}}
    assert [key for key in after if key in before] == list(before)
    assert path.read_bytes().replace(b"\r\n", b"").count(b"\r") == 0
    if old_bytes.strip():
        assert (b"\r\n" in path.read_bytes(), path.read_bytes().endswith(b"\n")) == (b"\r\n" in old_bytes, old_bytes.endswith(b"\n"))


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_there_and_back_gives_the_same_bytes(tmp_path, engine, name, default):
    tree, path = json_tree(engine, name, tmp_path)
    before = path.read_bytes()
    there = tree.apply(set_default=default)
    again = tree.apply(set_default=default)
    assert (again.edit.changed, again.edit.note) == (False, there.edit.note)
    if default:
        assert value(path)["default-runtime"] == "ascend"
    tree.apply("absent")
    if name in NOT_SAME_BYTES:
        assert value(path) == json.loads(before)
    else:
        assert path.read_bytes() == before
    assert tree.note == {}


@pytest.mark.parametrize(("name", "line"), corpus.broken("docker"))
def test_a_broken_file_is_left_alone(tmp_path, name, line):
    tree, path = json_tree("docker/broken", name, tmp_path)
    before = path.read_bytes()
    for state in ("present", "absent"):
        with pytest.raises(FleetError) as caught:
            tree.plan(state)
        error = caught.value
        assert (error.code, error.object) == ("config_invalid", str(path))
        assert f"{path}, line {line}, column " in error.message
        assert CANARY not in json.dumps(error.as_dict())
    assert path.read_bytes() == before


def test_quoted_booleans_are_named(tmp_path):
    tree, _path = json_tree("docker", "quoted-booleans.json", tmp_path)
    assert [text.split(", ")[1].split(":")[0] for text in tree.plan().warnings] == ["line 2", "line 3", "line 4"]


def test_no_canary_is_shown(tmp_path):
    tree, path = json_tree("docker", "deep-proxies.json", tmp_path)
    assert CANARY in path.read_text()
    shown = json.dumps(config.diff(tree.found(), tree.plan()))
    assert CANARY not in shown
    assert shown.count("********") == 4


@pytest.mark.parametrize("name", ["lcr", "runc"])
def test_isulad_keeps_names_for_itself(tmp_path, name):
    tree, _path = json_tree("isulad", "as-packaged.json", tmp_path)
    with pytest.raises(FleetError) as caught:
        tree.plan(name=name)
    assert caught.value.code == "name_reserved"


def test_isulad_needs_no_bridge(tmp_path):
    tree, _path = json_tree("isulad", "as-packaged.json", tmp_path)
    tree.apply(set_default=True)
    effective = {"runtimes": {"ascend": {"path": RUNTIME, "args": [], "type": None}}, "default_runtime": "ascend", "handlers": None}
    tree.more["effective"] = effective
    plan = tree.plan("absent")
    assert plan.commit["bridge"] is None
    assert json.loads(plan.edit.text)["default-runtime"] == "lcr"


def test_dockerd_itself_takes_the_files(tmp_path):
    if DOCKERD is None or "--validate" not in subprocess.run([DOCKERD, "--help"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("no dockerd with --validate here (docker 23 and newer)")
    for name in ("tabs.json", "crlf.json", "nvidia-default.json", "no-newline-at-end.json"):
        tree, path = json_tree("docker", name, tmp_path)
        tree.apply()
        done = subprocess.run([DOCKERD, "--validate", "--config-file", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
