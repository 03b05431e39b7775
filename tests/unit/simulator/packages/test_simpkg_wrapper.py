# SPDX-License-Identifier: GPL-3.0-or-later
"""The OCI wrapper's change to a container: "Ascend Docker Runtime" fact sheet, sections 4-7."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from simpkg_support import load

wrapper = load("docker_runtime/ascend-docker-runtime")
helper = load("docker_runtime/ascend-docker-plugin-install-helper")
BASE = ["/usr/local/Ascend/driver/lib64", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/var/queue_schedule"]


class Host:
    def __init__(self, chips=8, managers=("davinci_manager", "devmm_svm", "hisi_hdc"), links=()):
        names = [f"davinci{number}" for number in range(chips)] + [f"vdavinci{number}" for number in (100,)] + list(managers)
        self.nodes = {f"/dev/{name}": (236, minor, 0o660, 1000, 1000) for minor, name in enumerate(names)}
        self.missing = ("/var/queue_schedule", "/usr/lib64")
        self.links, self.asked, self.logged = links, 0, []

    def node(self, path):
        return self.nodes.get(path)

    def exists(self, path):
        return path not in self.missing

    def is_link(self, path):
        return path in self.links

    def list_lines(self, name):
        return BASE if name == "base" else []

    def dcmi(self):
        self.asked += 1

    def log(self, level, text):
        self.logged.append(text)


def edit(*env, host=None):
    spec = {"process": {"env": ["PATH=/bin", *env]}, "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}}, "mounts": []}
    return wrapper.edit(spec, host or Host())


def paths(spec):
    return [device["path"] for device in spec["linux"].get("devices", [])]


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("", []),
        ("void", []),
        ("0", [0]),
        ("3,1,3", [1, 3]),
        ("0-2,7", [0, 1, 2, 7]),
        ("Ascend910-1,Ascend910-0", [0, 1]),
        ("Ascend310P-2", [2]),
        ("npu-4", [4]),
    ],
)
def test_devices_named(text, numbers):
    assert wrapper.parse_devices(text) == numbers


@pytest.mark.parametrize("text", ["all", "0,all", "none", "-1", "2-1", "0-128", "Ascend910-0,1", "Ascend910", "0,,1", "1.5"])
def test_devices_refused(text):
    with pytest.raises(wrapper.Refused):
        wrapper.parse_devices(text)


def test_all_is_an_invalid_single_device():
    with pytest.raises(wrapper.Refused, match="invalid single device"):
        wrapper.parse_devices("all")


def test_chip_and_manager_nodes_with_rules():
    spec = edit("ASCEND_VISIBLE_DEVICES=1,3")
    assert paths(spec) == ["/dev/davinci1", "/dev/davinci3", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert spec["linux"]["devices"][0] == {
        "path": "/dev/davinci1", "type": "c", "major": 236, "minor": 1, "fileMode": 0o660, "uid": 1000, "gid": 1000,
    }  # fmt: skip
    rules = spec["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert {"allow": True, "type": "c", "major": 236, "minor": 3, "access": "rwm"} in rules
    assert len(rules) == 6


def test_dvpp_cmdlist_comes_along_where_there_is_one():
    host = Host(managers=("davinci_manager", "devmm_svm", "hisi_hdc", "dvpp_cmdlist"))
    assert "/dev/dvpp_cmdlist" in paths(edit("ASCEND_VISIBLE_DEVICES=0", host=host))


def test_last_occurrence_wins():
    assert paths(edit("ASCEND_VISIBLE_DEVICES=1", "ASCEND_VISIBLE_DEVICES=2"))[0] == "/dev/davinci2"


def test_missing_chip_fails_the_creation():
    with pytest.raises(wrapper.Refused, match="failed .*/dev/davinci8"):
        edit("ASCEND_VISIBLE_DEVICES=8")


def test_a_missing_manager_node_is_a_warning():
    host = Host(managers=("davinci_manager",))
    assert "/dev/davinci0" in paths(edit("ASCEND_VISIBLE_DEVICES=0", host=host))
    assert any("devmm_svm" in text for text in host.logged)


def test_every_container_is_marked_and_gets_the_driver_libraries():
    host = Host()
    spec = edit("LD_LIBRARY_PATH=/app", host=host)
    env = spec["process"]["env"]
    assert "ASCEND_DOCKER_RUNTIME=True" in env
    assert env.count("LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64/common:"
                     "/usr/local/Ascend/driver/lib64/driver:/app") == 1  # fmt: skip
    assert not any(entry == "LD_LIBRARY_PATH=/app" for entry in env)
    assert paths(spec) == [] and spec["mounts"] == [] and host.asked == 0


def test_mounts_of_base_list_are_read_only_and_only_of_what_exists():
    host = Host()
    spec = edit("ASCEND_VISIBLE_DEVICES=0", host=host)
    assert [mount["destination"] for mount in spec["mounts"]] == BASE[:3]
    assert all({"ro", "nosuid"} <= set(mount["options"]) and mount["type"] == "bind" for mount in spec["mounts"])
    assert host.asked == 1


def test_nodrv_brings_no_mounts():
    assert edit("ASCEND_VISIBLE_DEVICES=0", "ASCEND_RUNTIME_OPTIONS=NODRV")["mounts"] == []


def test_links_need_a_permission():
    host = Host(links=("/usr/local/dcmi",))
    assert "/usr/local/dcmi" not in [mount["source"] for mount in edit("ASCEND_VISIBLE_DEVICES=0", host=host)["mounts"]]
    spec = edit("ASCEND_VISIBLE_DEVICES=0", "ASCEND_ALLOW_LINK=True", host=host)
    assert "/usr/local/dcmi" in [mount["source"] for mount in spec["mounts"]]


def test_virtual_devices_take_the_place_of_the_chip():
    spec = edit("ASCEND_VISIBLE_DEVICES=100", "ASCEND_RUNTIME_OPTIONS=VIRTUAL")
    assert paths(spec)[0] == "/dev/davinci100"
    assert spec["linux"]["devices"][0]["minor"] == 8


def test_options_in_another_order_are_refused():
    with pytest.raises(wrapper.Refused):
        edit("ASCEND_VISIBLE_DEVICES=0", "ASCEND_RUNTIME_OPTIONS=VIRTUAL,NODRV")


RUN = "import sys, simpkg_support\nmodule = simpkg_support.load('docker_runtime/ascend-docker-runtime')\n" + (
    "module.LOG = sys.argv.pop(1)\nsys.exit(module.main(sys.argv[1:]))"
)


def call(tmp_path, *words, path=None):
    """The whole program as a process of its own, with its log in tmp_path and a runc that prints its words."""
    (tmp_path / "bin").mkdir()
    runc = tmp_path / "bin" / "runc"
    runc.write_text('#!/bin/sh\necho "runc $*"\n')
    runc.chmod(0o755)
    environment = {"PATH": path or f"{tmp_path}/bin:/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", RUN, str(tmp_path / "log" / "runtime-run.log"), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)


def log(tmp_path):
    return (tmp_path / "log" / "runtime-run.log").read_text()


def test_other_verbs_go_straight_to_runc(tmp_path):
    assert call(tmp_path, "--root", "/x", "state", "abc").stdout == "runc --root /x state abc\n"
    assert not (tmp_path / "config.json").exists()


def test_create_edits_the_bundle_and_execs_runc(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"process": {"env": ["A=1"]}}))
    done = call(tmp_path, "--log", "l", "create", "--bundle", str(tmp_path), "abc")
    assert (done.returncode, done.stdout) == (0, f"runc --log l create --bundle {tmp_path} abc\n")
    assert "ASCEND_DOCKER_RUNTIME=True" in json.loads((tmp_path / "config.json").read_text())["process"]["env"]


@pytest.mark.parametrize("bundle", [["-b", "{}"], ["--bundle={}"], []])
def test_a_refused_create_does_not_reach_runc(tmp_path, bundle):
    before = json.dumps({"process": {"env": ["ASCEND_VISIBLE_DEVICES=all"]}})
    (tmp_path / "config.json").write_text(before)
    done = call(tmp_path, "create", *[word.format(tmp_path) for word in bundle])
    assert (done.returncode, done.stdout) == (1, "")
    assert (tmp_path / "config.json").read_text() == before
    assert "failed: invalid single device: all" in log(tmp_path)


def test_without_runc_in_path_it_fails(tmp_path):
    assert call(tmp_path, "state", "x", path="/nowhere").returncode == 1
    assert "neither docker-runc nor runc" in log(tmp_path)


def test_helper_writes_daemon_json_like_go():
    data = {"live-restore": True, "default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/n"}}, "labels": ["a<b"]}
    text = helper.docker_text(helper.change_docker(data, "add", "/opt/w"))
    assert text.startswith('{\n        "default-runtime": "ascend",\n        "labels": [\n                "a\\u003cb"')
    assert not text.endswith("\n")
    back = helper.change_docker(json.loads(text), "rm", None)
    assert back == {"labels": ["a<b"], "live-restore": True, "runtimes": {"nvidia": {"path": "/n"}}}


@pytest.mark.parametrize("data", [[], {"runtimes": []}, {"runtimes": "x"}])
def test_helper_refuses_what_is_no_object(data):
    with pytest.raises(ValueError, match="runtimes"):
        helper.change_docker(data, "add", "/opt/w")


@pytest.mark.parametrize(
    "version, table", [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime"), (None, "io.containerd.grpc.v1.cri")]
)
def test_helper_copies_runc_of_the_containerd_table(version, table):
    tomllib = pytest.importorskip("tomllib")
    runc = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": False}}
    data = {"plugins": {table: {"containerd": {"default_runtime_name": "nvidia", "runtimes": {"runc": runc}}}}}
    if version:
        data["version"] = version
    text = "\n".join(helper.toml_lines(helper.change_containerd(data, "add", "/opt/w")))
    engine = tomllib.loads(text)["plugins"][table]["containerd"]
    assert engine["default_runtime_name"] == "ascend"
    assert engine["runtimes"]["ascend"]["options"] == {"SystemdCgroup": False, "BinaryName": "/opt/w"}
    assert helper.change_containerd(data, "rm", None)["plugins"][table]["containerd"]["default_runtime_name"] == "runc"
