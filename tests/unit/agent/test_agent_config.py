# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's settings: what is refused and in which words, what a new file means for a service that runs. No process."""

import json
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
from kubelet_standin import registration


@pytest.fixture
def config(package):
    import npu_agent.config

    return npu_agent.config


@pytest.fixture
def reload(package):
    import npu_agent.reload

    return npu_agent.reload


@pytest.mark.parametrize(("text", "words"), [
    ("allocate_mod: env\n", "line 1: there is no setting 'allocate_mod' (did you mean allocate_mode?)"),
    ("\nallocate_mode: cdi\n", "line 2: allocate_mode is 'cdi'; allowed: devices, env, both"),
    ("poll_seconds: 0\n", "allowed: seconds from 0.1 to 3600"),
    ("poll_seconds: true\n", "poll_seconds is True"),
    ("\npoll_seconds: 1" + "0" * 400 + "\n", "line 2: poll_seconds is 1000"),
    ("shares: 1" + "0" * 400 + "\n", "allowed: a whole number from 1 to 100"),
    ("\nshares: 1" + "0" * 5000 + "\n", "line 2: shares"),
    ("family: 311\n", "line 1: family is '311'; allowed: auto, 310"),
    ("on_stop: true\n", "on_stop is True; allowed: keep, drain"),
    ("poll_seconds: [1]\n", "poll_seconds is [1]"),
    ("listen: true\n", "listen is True; allowed: HOST:PORT"),
    ("listen: 'x:99999'\n", "allowed: HOST:PORT"),
    ("listen: '::1:8083'\n", "allowed: HOST:PORT"),
    ("listen: 'x:'\n", "allowed: HOST:PORT"),
    ("listen: '-1'\n", "allowed: HOST:PORT"),
    ("listen: 'node..example:8083'\n", "single dots between"),
    ("listen: '.:8083'\n", "single dots between"),
    ("listen: '" + "x" * 64 + ".example:8083'\n", "or a DNS name"),
    ("listen: \"a\\0b:8083\"\n", "or a DNS name"),
    ("kubelet_dir: relative\n", "kubelet_dir is 'relative'; allowed: an absolute path"),
    ("host_paths: /a, b\n", "allowed: absolute paths with commas between"),
    ("host_paths: [/a]\n", "allowed: absolute paths with commas between"),
    ("kubelet_dir: /" + "x" * 80 + "\n", "at most 67 bytes"),
    ("poll_seconds: 1\npoll_seconds: 2\n", "line 2: poll_seconds is set a second time"),
    ("- a\n", "must be a list of 'key: value' lines"),
    ("a: [\n", "is not YAML"),
    ("a: \x01\n", "is not YAML"),
    ("shares: 1.5\n", "shares is 1.5; allowed: a whole number from 1 to 100"),
    ("flap_count: -1\n", "allowed: a whole number from 0 to 1000"),
    ("flap_count: .inf\n", "allowed: a whole number from 0 to 1000"),
    ("poll_seconds: .nan\n", "allowed: seconds from 0.1 to 3600"),
    ("degraded_memory: x\n", "allowed: a number from 0 to 100"),
    ("log_level: info\nallocate_by: cdi\n", "line 2: allocate_by is 'cdi', so cdi_folder must be set"),
    ("allocate_mounts: always\nallocate_by: cdi\ncdi_folder: /x\n", "line 1: allocate_mounts is 'always', but with `allocate_by: cdi`"),
    ("stuck_retry: 1\nquery_timeout: 2\n", "line 1: stuck_retry is 1.0, which is less than query_timeout"),
    ("query_timeout: 100\n", "default: stuck_retry is 60.0, which is less than query_timeout"),
    ("probe: /x\nprobe_timeout: 100\n", "line 2: probe_timeout is 100.0, which is more than probe_period"),
])
def test_bad_configuration(config, tmp_path, text, words):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(config.ConfigError) as error:
        config.load(str(file), {})
    assert words in str(error.value)
    assert "default: " in words or str(file) in str(error.value)


def test_paths_with_commas_between(config):
    assert config.load(None, {"NPU_AGENT_HOST_PATHS": "/a/, /b"}).host_paths == ("/a", "/b") and config.load(None, {}).host_paths == ()


SECRET = "s3cr3t"  # noqa: S105  a canary
ENTRY = "backend: paths\ndevices: [{resource: a.b/x, paths: [/dev/a], %s}]\n"
LIST = "devices: has a value that YAML cannot read as what it looks like"


@pytest.mark.parametrize(("text", "words"), [
    (ENTRY % f"envs: {{T: !!int '{SECRET}'}}", f"line 2: {LIST}"),
    (ENTRY % f"envs: {{T: !!bool '{SECRET}'}}", f"line 2: {LIST}"),
    (ENTRY % f"envs: {{T: !!timestamp '{SECRET}'}}", f"line 2: {LIST}"),
    (ENTRY % f"envs: {{T: !secret {SECRET}}}", f"line 2: {LIST}"),
    (ENTRY % f"envs: {{T: !{SECRET} x}}", f"line 2: {LIST}"),
    (ENTRY % f"envs: {{T: !!python/object:{SECRET} x}}", f"line 2: {LIST}"),
    (ENTRY % f"envs: {{T: {SECRET}, D: 2026-13-45}}", f"line 2: {LIST}"),
    (ENTRY % f"? [{SECRET}] : b", f"line 2: {LIST}"),
    (ENTRY % f"envs: {{T: *{SECRET}}}", "line 2: is not YAML: found undefined alias (not shown)"),
    (ENTRY % f"envs: {{T: !{SECRET}!x y}}", "line 2: is not YAML: found undefined tag handle (not shown)"),
    (ENTRY % f"envs: {{T: {SECRET}, T: b}}", "line 2: devices: a key is there twice"),
    (ENTRY % f"resource: a.b/{SECRET}", "line 2: devices: a key is there twice"),
    (f"backend: paths\ndevices:\n- resource: a.b/x\n  paths: [/dev/a]\n  envs:\n    T: {SECRET}\n    T: a\n", "line 7: devices: a key"),
    ("backend: paths\ndevices: &a [*a]\n", f"line 2: {LIST}"),
    (f"backend: paths\ndevices:\n - resource: a.b/x\n   envs: {{T: {SECRET}: b}}\n", "is not YAML"),
    (f"backend: paths\ndevices:\n - resource: a.b/x\n   paths: [/dev/a]\n   envs: {{T: {SECRET}:\n", "expected ',' or '}', but got ':'"),
    ("devices: " + "[" * 5000 + "\n", "is not YAML: it is nested too deeply"),
    (f"probe: !!int '{SECRET}'\n", "line 1: probe: has a value that YAML cannot read"),
])
def test_faults_of_yaml_are_told_without_the_words_of_the_file(config, tmp_path, text, words):
    """What is read badly may be a token."""
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(config.ConfigError) as error:
        config.load(str(file), {})
    assert words in str(error.value) and SECRET not in str(error.value) and str(file) in str(error.value)


def test_a_line_that_yaml_cannot_read_takes_no_other_along(config, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("backend: paths\ndevices: [{resource: a.b/x, paths: [/dev/a]}]\nendpoints: !x 1\nodd: 1\n")
    with pytest.raises(config.ConfigError) as error:
        config.load(str(file), {})
    assert [fault.split(": ")[0][len(str(file)):] for fault in error.value.faults] == [" line 3", " line 4"]


def test_all_faults_are_told_at_once(config, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a: 1\nlog_level: loud\n")
    with pytest.raises(config.ConfigError) as error:
        config.load(str(file), {"NPU_AGENT_B": "1", "NPU_AGENT_POLL_SECONDS": "x"})
    assert len(error.value.faults) == 4
    assert "environment variable NPU_AGENT_B" in str(error.value)


@pytest.mark.parametrize("end", ["", " # so that YAML reads it"])
@pytest.mark.parametrize(("line", "value"), [
    ("family: 310", "310"), ("family: 910", "910"), ("node_name: 1234", "1234"), ("node_name: 12.50", "12.50"),
    ("listen: 8083", ("127.0.0.1", 8083)), ("poll_seconds: 7", 7.0),
])
def test_a_word_that_reads_as_a_number(config, tmp_path, line, value, end):
    file = tmp_path / "config.yaml"
    key, _colon, text = line.partition(": ")
    for written in (f"{line}{end}\n", f'{{"{key}": {text}}}{end}\n'):
        file.write_text(written)
        assert vars(config.load(str(file), {}))[key] == value


@pytest.mark.parametrize(("line", "value"), [("node_name: 0012", "0012"), ("node_name: 0x1f", "0x1f"), ("node_name: 12_0", None)])
def test_a_word_is_what_stands_in_the_file(config, tmp_path, line, value):
    """YAML reads some of them as other numbers than they show."""
    file = tmp_path / "config.yaml"
    file.write_text(f"{line}\n")
    if value is None:
        with pytest.raises(config.ConfigError, match="node_name is '12_0'"):
            config.load(str(file), {})
    else:
        assert config.load(str(file), {}).node_name == value


def test_good_configuration(config, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("resource_name: huawei.com/Ascend910-share\nlisten: '[::1]:9'\npoll_seconds: 2\n")
    settings = config.load(str(file), {"NPU_AGENT_POLL_SECONDS": "3", "OTHER": "x"})
    assert settings.resource_name == "huawei.com/Ascend910-share" and settings.listen == ("::1", 9)
    assert settings.poll_seconds == 3.0 and settings.allocate_mode == "both"
    file.write_text("audit_file: null\n")
    assert config.load(str(file), {}).audit_file == ""
    assert config.load(None, {}).kubelet_dir == "/var/lib/kubelet/device-plugins"
    with pytest.raises(config.ConfigError, match="there is no such file"):
        config.load(str(tmp_path / "none"), {})


@pytest.mark.parametrize(("value", "found"), [
    ("127.0.0.1:9400", ("127.0.0.1", 9400)), ("9400", ("127.0.0.1", 9400)), (9400, ("127.0.0.1", 9400)), (":9400", ("", 9400)),
    ("0.0.0.0:9400", ("0.0.0.0", 9400)), ("[::]:9400", ("::", 9400)), ("localhost:9400", ("localhost", 9400)),
    ("node_7.example.:9400", ("node_7.example.", 9400)),
])
def test_forms_of_an_address(config, value, found):
    """Field case G16: those that people write for other exporters."""
    assert config.address(value) == found


# --- names of resources

@pytest.mark.parametrize(("name", "words"), [
    ("npu", "it has no domain in front of a '/'"),
    ("huawei.com/Ascend910/x", "it has more than one '/'"),
    ("/npu", "its domain is empty"),
    ("Rockchip.device/npu", "its domain has capitals"),
    ("rock_npu/x", "its domain has an underscore"),
    ("rock..npu/x", "its domain is none"),
    ("-rock.npu/x", "its domain is none"),
    ("rock.npu./x", "its domain is none"),
    ("rock npu/x", "its domain is none"),
    ("kubernetes.io/npu", "end with kubernetes.io belong to Kubernetes"),
    ("a.kubernetes.io/npu", "end with kubernetes.io belong to Kubernetes"),
    ("requests.huawei.com/npu", "'requests.' in front belongs to quotas"),
    ("x" * 245 + "/npu", "its domain has more than 244 characters"),
    ("huawei.com/", "there is nothing behind its '/'"),
    ("huawei.com/" + "x" * 64, "more than 63 characters"),
    ("huawei.com/npu!", "has more than letters, digits, '-', '_', '.'"),
    ("huawei.com/npü", "has more than letters, digits, '-', '_', '.'"),
    ("huawei.com/-npu", "must begin and end with a letter or a digit"),
    ("huawei.com/npu.", "must begin and end with a letter or a digit"),
    (3, "it has no domain"),
])
def test_a_name_is_refused_with_the_rule_that_it_breaks(config, name, words):
    with pytest.raises(ValueError, match="huawei.com/Ascend910; of this one") as error:
        config.resource_name(name)
    assert words in str(error.value)


@pytest.mark.parametrize("name", [
    "huawei.com/Ascend910", "huawei.com/Ascend910-share", "rocknpu.device/npu", "huawei.com/Ascend310P-4c.3cpu.ndvpp", "a/b", "a-1.b2/C_d",
    "x" * 244 + "/" + "y" * 63, "kubernetes.io.example.com/npu", "requestsx.com/npu",
])
def test_good_names(config, name):
    assert config.resource_name(name) == name


def test_mounts_that_no_answer_has_are_told(config):
    for mode, mounts, noted in (("env", "always", 1), ("both", "always", 0), ("env", "auto", 0)):
        given = {"NPU_AGENT_ALLOCATE_MODE": mode, "NPU_AGENT_ALLOCATE_MOUNTS": mounts}
        assert len(config.notes(config.load(None, given))) == noted


def test_a_name_leaves_room_for_kinds_of_slices(config, package, tmp_path):
    from npu_agent import units

    longest = max(len(kind) for kinds in units.KINDS.values() for kind in kinds.values())
    assert longest + 1 == config.KIND_LIMIT
    for length, noted in ((44, False), (45, True)):
        settings = config.load(None, {"NPU_AGENT_RESOURCE_NAME": "a.b/" + "x" * length})
        assert bool(config.notes(settings)) == noted
    assert "45 characters" in config.notes(settings)[0]
    environment = {**os.environ, "PYTHONPATH": str(package), "NPU_AGENT_RESOURCE_NAME": "a.b/" + "x" * 50}
    command = [sys.executable, "-m", "npu_agent", "check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("resource_name has 50 characters") and done.stdout.endswith("is good\n")


def test_names_are_judged_as_kubelet_does(config):
    """Against other code of the same rules, on names that are nearly right."""
    chance, seen = random.Random(5), {True: 0, False: 0}
    parts = ["a", "B", "0", "-", "_", ".", "/", "kubernetes.io", "requests.", "x" * 62, "é", " "]
    for _unused in range(20000):
        name = "".join(chance.choices(parts, weights=(9, 2, 5, 2, 1, 3, 6, 1, 1, 1, 0.2, 0.2), k=chance.randrange(1, 9)))
        try:
            good = bool(config.resource_name(name))
        except ValueError:
            good = False
        assert good == registration.valid_name(name), name
        seen[good] += 1
    assert min(seen.values()) > 500


# --- files without a YAML parser

def test_plain_lines_say_the_same_to_both_readers(config):
    chance, plain = random.Random(6), 0
    keys = [*list(config.SETTINGS)[:6], "nothing"]
    values = ['"a b"', '"a\\nb"', '"ü"', '"#"', '""', "'x'", "x", "1", "-1", "01", "1.0", "1.", ".5", "1e3", "1_0", "0x1", "12:30", "true",
              "True", "yes", "null", "~", "", "[1]", '"a" # b', "2026-01-01", '"\t"']
    for _unused in range(4000):
        lines = [chance.choice(["", "# x", "  ", "---"]) if chance.random() < 0.1 else f"{chance.choice(keys)}: {chance.choice(values)}"
                 for _line in range(chance.randrange(3))]
        text = "\n".join(lines) + chance.choice(["\n", "", "\r\n", "\n\n"])
        found = config.read_plain("f", text)
        if found is not None:
            plain += bool(found)
            given, faults = config.read_yaml("f", text)
            assert faults == [] and given == found, text
            assert {key: type(value[0]) for key, value in given.items()} == {key: type(value[0]) for key, value in found.items()}
    assert plain > 300


def test_what_the_role_writes_is_plain(config):
    text = "# Written by the role\n" + "".join(f"{key}: {json.dumps(default)}\n" for key, (default, *_rest) in config.SETTINGS.items())
    found = config.read_plain("f", text)
    assert {key: value for key, (value, _place) in found.items()} == {key: default for key, (default, *_rest) in config.SETTINGS.items()}


# --- a new configuration for a service that runs

def test_which_settings_change_in_place(config, reload):
    old = config.load(None, {})
    assert set(reload.LIVE) <= set(config.SETTINGS)
    for key in ("kubelet_dir", "resource_name", "shares", "listen", "cdi_folder", "allocate_by", "family", "state_dir", "dcmi_library"):
        assert key not in reload.LIVE
    same = SimpleNamespace(**vars(old))
    assert reload.changes(old, same) == {} and reload.in_place({})
    same.log_level, same.recovery_seconds = "debug", 1.0
    assert reload.changes(old, same) == {"log_level": ("info", "debug"), "recovery_seconds": (10.0, 1.0)}
    assert reload.in_place(reload.changes(old, same))
    same.shares = 2
    assert not reload.in_place(reload.changes(old, same))
