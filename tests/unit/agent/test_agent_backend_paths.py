# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices by their paths: what is an id, what is well, what a container gets, and which declarations are refused."""

import os

import pytest
from backend_rig import LIVING, Bench, living

MLU = {"resource": "cambricon.com/mlu", "paths": ["/dev/cambricon_dev[0-9]*"]}


@pytest.fixture
def bench(package, tmp_path):
    def make(*entries, **settings):
        return Bench(tmp_path, backend="paths", devices=list(entries), **settings)

    (tmp_path / "dev").mkdir()
    return make


@pytest.fixture
def dev(tmp_path):
    return tmp_path / "dev"


def test_each_match_is_one_id_by_its_number(bench, dev):
    for number, name in enumerate(("cambricon_dev10", "cambricon_dev2", "cambricon_dev0")):
        living(dev / name, number)
    living(dev / "cambricon_ctl")
    (dev / "cambricon_dev_notes1").touch()
    found = bench(MLU).chips()
    assert list(found) == ["mlu-0", "mlu-2", "mlu-10"]
    assert {record["resource"] for record in found.values()} == {"cambricon.com/mlu"}


def test_several_resources_and_paths_without_a_number(bench, dev):
    for number, name in enumerate(("iluvatar3", "apex_0", "edge/tpu")):
        living(dev / name, number)
    found = bench({"resource": "iluvatar.com/gpu", "paths": ["/dev/iluvatar*"]},
                  {"resource": "google.com/tpu", "paths": ["/dev/apex_*", "/dev/edge/tpu"]}).look().chips
    assert [(record["resource"], record["natural"], record["prefix"]) for record in found] == [
        ("google.com/tpu", "tpu-0", "tpu-"), ("google.com/tpu", None, "tpu-"), ("iluvatar.com/gpu", "gpu-3", "gpu-")]


def test_names_stay_with_the_path(bench, dev, names):
    """Three paths without numbers: whoever is seen first has the lowest name, and keeps it."""
    entry = {"resource": "a.example/npu", "paths": ["/dev/x_*"]}
    living(dev / "x_b", 0)
    living(dev / "x_c", 1)
    one = bench(entry)

    def named(table, records):
        entries = table.assign(records, True)
        return {os.path.basename(record["device_node"]): entry.name for record, entry in zip(records, entries, strict=True)}

    table = names()
    table.backend = one.backend
    first = named(table, one.look().chips)
    assert first == {"x_b": "npu-0", "x_c": "npu-1"}
    table.save()
    table.file.writer.join(60)
    living(dev / "x_a", 2)
    later = names()
    later.backend = one.backend
    assert named(later, bench(entry).look().chips) == {**first, "x_a": "npu-2"}


def test_a_lost_node_stays_known_while_the_service_lives(bench, dev):
    living(dev / "cambricon_dev0")
    living(dev / "cambricon_dev1", 1)
    one = bench(MLU)
    assert list(one.chips()) == ["mlu-0", "mlu-1"]
    (dev / "cambricon_dev1").unlink()
    found = one.chips()
    assert one.verdict(found["mlu-0"]) == (True, "")
    assert one.verdict(found["mlu-1"]) == (False, f"its device node {dev}/cambricon_dev1 is missing")
    (dev / "cambricon_dev1").symlink_to("cambricon_dev0")
    healthy, reason = one.verdict(one.chips()["mlu-1"])
    assert healthy is False and "is no device node" in reason


def test_what_a_pattern_matches_beside_devices_is_left_out_and_told(bench, dev):
    living(dev / "cambricon_dev0")
    (dev / "cambricon_dev1").symlink_to("cambricon_dev0")
    (dev / "cambricon_dev2").mkdir()
    sight = bench(MLU).look()
    assert [record["natural"] for record in sight.chips] == ["mlu-0"] and sight.complete
    assert sight.problems == [f"{dev}/cambricon_dev{number} is left out: it is no device node, and a pattern of `devices` matches it"
                              for number in (1, 2)]


def test_a_path_that_is_written_out_is_a_device_whatever_stands_there(bench, dev):
    (dev / "npu").touch()
    one = bench({"resource": "a.example/npu", "paths": ["/dev/npu"]})
    healthy, reason = one.verdict(one.chips()["npu-0"])
    assert healthy is False and "is no device node" in reason


def test_a_path_that_is_written_out_is_a_device_that_is_missing(bench, dev):
    """Also for an agent that starts when it is lost already; what a pattern would match is not known then."""
    living(dev / "npu0")
    one = bench({"resource": "a.example/npu", "paths": ["/dev/npu0", "/dev/npu1", "/dev/x[0-9]"]})
    found = one.chips()
    assert [one.verdict(record) for record in found.values()] == [(True, ""), (False, f"its device node {dev}/npu1 is missing")]
    (dev / "npu0").unlink()
    sight = bench({"resource": "a.example/npu", "paths": ["/dev/npu0"]}).look()
    assert sight.present and [record["natural"] for record in sight.chips] == ["npu-0"]


def test_two_names_of_one_device_are_no_two_devices(bench, dev):
    living(dev / "cambricon_dev0")
    living(dev / "cambricon_dev1")
    one = bench(MLU)
    assert [one.verdict(record)[0] for record in one.look().chips] == [False, False]
    assert "is the same device as" in one.look().chips[0]["node_trouble"]


def test_nodes_beside_it(bench, dev):
    entry = {**MLU, "with": ["/dev/cambricon_ctl", "/dev/caps/cap{n}", "/dev/opt_*"], "envs": {"MODE": 1}, "env_ids": "MLU_IDS"}
    for number, name in enumerate(("cambricon_dev0", "cambricon_dev12", "cambricon_ctl", "caps/cap0", "caps/cap12")):
        living(dev / name, number)
    one = bench(entry)
    found = one.chips()
    given = one.give(found["mlu-12"], found["mlu-0"])
    assert [inside for _host, inside in given["devices"]] == [
        "/dev/cambricon_dev12", "/dev/cambricon_ctl", "/dev/caps/cap12", "/dev/cambricon_dev0", "/dev/caps/cap0"]
    assert given["envs"] == {"MODE": "1", "MLU_IDS": "0,12"}
    # What is written out has to be there, or no container could use the device.
    (dev / "caps/cap12").unlink()
    found = one.chips()
    assert one.verdict(found["mlu-0"])[0] is True
    assert one.verdict(found["mlu-12"]) == (False, f"there is no device node {dev}/caps/cap12, which `with` names")
    from npu_agent.backends.base import Refused

    with pytest.raises(Refused, match="mlu-12 cannot be given: there is no device node .*cap12"):
        one.give(found["mlu-12"])
    living(dev / "opt_7", 3)
    assert "/dev/opt_7" in [inside for _host, inside in one.give(found["mlu-0"])["devices"]]


@pytest.mark.parametrize("wanted", [True, False])
def test_opening_is_an_option(bench, dev, wanted):
    os.mknod(dev / "cambricon_dev0", 0o600 | 0o020000, os.makedev(250, 250))
    one = bench({**MLU, "open": wanted})
    healthy, reason = one.verdict(one.chips()["mlu-0"])
    assert healthy is not wanted and ("cannot be opened: No such device or address" in reason) == wanted


def test_numa_node_where_the_kernel_knows_it(bench, dev, tmp_path):
    for number in range(2):
        living(dev / f"cambricon_dev{number}", number)
        folder = tmp_path / "sys/dev/char" / "{}:{}".format(*LIVING[number]) / "device"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{1 - 2 * number}\n")
    assert [record["numa_node"] for record in bench(MLU).look().chips] == [1, None]


def test_no_match_is_a_node_without_devices(bench):
    sight = bench(MLU).look()
    assert (sight.present, sight.chips, sight.complete) == (False, [], True)


def test_which_names_make_a_look_due(bench, dev):
    one = bench({**MLU, "with": ["/dev/caps/cap{n}", "/dev/a*/b"]})
    places = dict(one.backend.places(one.settings))
    assert list(places) == [str(dev), f"{dev}/caps"]
    wanted = {name for name in ("cambricon_dev0", "caps", "apex", "tty0", "null") if places[str(dev)].match(name)}
    assert wanted == {"cambricon_dev0", "caps", "apex"} and places[f"{dev}/caps"].match("cap0")


# --- the rules

GOOD = {"resource": "a.example/npu", "paths": ["/dev/x[0-9]*"]}
BAD = [
    ([{**GOOD, "path": "/dev/x"}], "entry 1: there is no key 'path'; there are: resource, paths"),
    ([{"resource": "a.example/npu"}], "entry 1: paths is missing"),
    (["x"], "entry 1 must have keys"),
    ([{**GOOD, "paths": []}], "entry 1: paths must be a list of at least one path below /dev"),
    ([{**GOOD, "paths": "/dev/x"}], "entry 1: paths must be a list"),
    ([{**GOOD, "paths": ["/sys/x"]}], "entry 1: paths: '/sys/x' is no path below /dev"),
    ([{**GOOD, "paths": ["/dev/../etc/x"]}], "has an empty, '.' or '..' step"),
    ([{**GOOD, "paths": ["/dev/**/x"]}], "has '**'"),
    ([{**GOOD, "paths": ["/dev/x{n}"]}], "'/dev/x{n}' has '**', '{' or '}'"),
    ([{**GOOD, "with": ["/dev/x{m}"]}], "of which only {n} is known"),
    ([{**GOOD, "resource": "npu"}], "of this one it has no domain in front of a '/'"),
    ([{**GOOD, "resource": "A.example/npu"}], "of this one its domain has capitals"),
    ([{**GOOD, "resource": "kubernetes.io/npu"}], "belong to Kubernetes"),
    ([{**GOOD, "envs": {"A B": "x"}}], "'A B' is no name of a variable"),
    ([{**GOOD, "envs": {"A": ["x"]}}], "the value of A must be text or a number"),
    ([{**GOOD, "envs": {"A": "x"}, "env_ids": "A"}], "env_ids is also in envs"),
    ([{**GOOD, "open": "yes"}], "open must be true or false"),
    ([GOOD, {**GOOD, "resource": "b.example/npu"}], "a.example/npu and b.example/npu have the same name behind the '/'"),
    ([GOOD, {"resource": "a.example/mlu", "paths": ["/dev/x5"]}], "'/dev/x5' and '/dev/x[0-9]*' of entry 1 can match the same"),
    ([GOOD, {**GOOD, "paths": ["/dev/y"], "with": ["/dev/x{n}"]}], "entry 2: with '/dev/x{n}' can be a device of its own"),
    ([{**GOOD, "paths": ["/dev/xé[0-9]"]}], "'/dev/xé[0-9]' has letters beyond ASCII"),
    ([{**GOOD, "with": ["/dev/*a*a*a*a*a"]}], "has more than 4 '*'"),
    ([{**GOOD, "paths": [f"/dev/x{number}" for number in range(130)], "with": [f"/dev/y{number}" for number in range(127)]}],
     "it has 257 paths in all, and may have 256"),
    ([{**GOOD, "paths": [["/dev/x"] * 9]}], "(a list) is no path below /dev"),
    ([GOOD, {"resource": "a.example/mlu", "paths": ["/dev/[!]a]5"]}], "'/dev/[!]a]5' and '/dev/x[0-9]*' of entry 1 can match the same"),
    ('[{"resource": "a.example/npu", "resource": "a.example/mlu", "paths": ["/dev/x"]}]', "a key of an entry is there twice"),
    ("[" * 100000, "it is nested too deeply"),
    ('[{"resource": "a.example/npu", "paths": ["/dev/x"], "open": 1' + "0" * 5000 + "}]", "it is no JSON: a number in it is too long"),
    ("nonsense", "it is no JSON"),
    ('{"resource": "a.example/npu"}', "it must be a list"),
    ([GOOD] * 257, "more than 256 entries"),
]


@pytest.mark.parametrize(("value", "words"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_what_is_refused(bench, value, words):
    from npu_agent.config import ConfigError

    with pytest.raises(ConfigError) as refused:
        Bench(bench(MLU).folder, backend="paths", devices=value)
    assert words in str(refused.value) and "NPU_AGENT_DEVICES" in str(refused.value)


def test_all_faults_at_once_and_no_value_of_a_variable(bench):
    from npu_agent.config import ConfigError

    entries = [{**GOOD, "paths": ["/etc/x"], "envs": {"TOKEN": "s3cr3t\n"}}, {"resource": "x", "paths": ["/dev/y"]}]
    with pytest.raises(ConfigError) as refused:
        bench(*entries)
    text = str(refused.value)
    assert "'/etc/x' is no path" in text and "the value of TOKEN" in text and "entry 2: resource" in text and "s3cr3t" not in text


def test_settings_that_do_not_go_together(package, tmp_path):
    from npu_agent.config import ConfigError

    paths = {"backend": "paths", "devices": [MLU]}
    for settings, words in (
        ({"backend": "paths"}, "so `devices` must name"), ({"devices": [MLU]}, "so `backend: paths` must be set"),
        ({"backend": "remote"}, "so `endpoints` must name"), ({**paths, "resource_name": "a.b/c"}, "each entry has its own `resource`"),
        ({**paths, "allocate_by": "cdi", "cdi_folder": "/etc/cdi"}, "only the backend ascend"),
    ):
        with pytest.raises(ConfigError, match=words):
            Bench(tmp_path, **settings)


def test_lists_in_the_file_and_plain_files_without_them(package, tmp_path):
    """The role writes each setting as one line of JSON, which is YAML too."""
    from npu_agent import config

    path = tmp_path / "config.yaml"
    path.write_text('backend: "paths"\ndevices: [{"resource": "cambricon.com/mlu", "paths": ["/dev/cambricon_dev[0-9]*"]}]\n')
    (entry,) = config.load(path, {}).devices
    assert entry == {**MLU, "with": [], "envs": {}, "env_ids": "", "open": False}
    assert config.read_plain("x", path.read_text()) is None
    assert config.read_plain("x", "devices: []\nendpoints: []\n") == {"devices": ([], "x line 1"), "endpoints": ([], "x line 2")}
    path.write_text("backend: paths\ndevices:\n  - resource: bad\n    paths: [/dev/x]\n")
    with pytest.raises(config.ConfigError, match=r"config.yaml line 2: devices: entry 1: resource"):
        config.load(path, {})
