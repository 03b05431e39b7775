# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts about container engines, from made hosts and from files as they are found in the field."""

import json
from collections import namedtuple

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _cri
from ansible_collections.npu.fleet.plugins.module_utils import _preflight_engine as facts
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

Result = namedtuple("Result", "argv rc stdout stderr timed_out seconds")


@pytest.mark.parametrize(("text", "flags", "found"), [
    ("", [], ([], None, [])),
    ('{"debug": true}', ["hosts"], ([], None, [])),
    ('{"hosts": ["tcp://127.0.0.1:2375"], "debug": true}', ["hosts", "containerd"], (["hosts"], None, [])),
    # runtimes may stand on both sides
    ('{"runtimes": {}}', ["runtimes"], ([], None, [])),
    ('{"ipv6": true}\n{"experimental": true}', [], ([], 2, [])),
    ('\n{"ipv6": true}\n\n  x', [], ([], 4, [])),
    ('{"ipv6": "true", "mtu": "1500", "data-root": "true", "debug": false}\n', [], ([], None, ["ipv6", "mtu"])),
    ("[1]", [], ([], None, [])),
    ('{"a":', [], ([], None, [])),
])
def test_daemon_json(text, flags, found):
    assert tuple(facts.daemon_json(text, flags)[key] for key in ("conflicts", "second", "quoted")) == found


@pytest.mark.parametrize(("text", "off"), [
    ("", False),
    ('disabled_plugins = ["cri"]\n', True),
    ('version = 2\ndisabled_plugins = [\n  "io.containerd.internal.v1.opt",\n  "io.containerd.grpc.v1.cri",\n]\n[plugins]\n', True),
    ("version = 3\ndisabled_plugins = ['io.containerd.cri.v1.runtime']\n", True),
    ('# disabled_plugins = ["cri"]\nversion = 2\n', False),
    ('disabled_plugins = []\n[plugins."io.containerd.grpc.v1.cri"]\n', False),
    ('disabled_plugins = ["io.containerd.snapshotter.v1.btrfs"]\n', False),
    ('version = 2\n[plugins."x"]\ndisabled_plugins = ["cri"]\n', False),
])
def test_is_the_cri_part_switched_off(text, off):
    assert facts.disabled_cri(text) is off


@pytest.mark.parametrize(("words", "texts", "found"), [
    (["kubelet", "--cgroup-driver=cgroupfs", "--config=/k.yaml"], {"/k.yaml": "cgroupDriver: systemd\n"},
     ("cgroupfs", "kubelet's command line")),
    (["kubelet", "--config=/k.yaml"], {"/k.yaml": "kind: KubeletConfiguration\ncgroupDriver: systemd\n"}, ("systemd", "/k.yaml")),
    (["kubelet", "--config=/k.yaml"], {"/k.yaml": "kind: KubeletConfiguration\n"}, (None, None)),
    (["kubelet"], {}, (None, None)),
])
def test_driver_of_kubelets_control_groups(words, texts, found):
    assert facts.kubelet_driver(words, lambda path: texts.get(path, "")) == found


@pytest.mark.parametrize(("config", "driver"), [
    ({"containerd": {"runtimes": {"runc": {"options": {"SystemdCgroup": True}}}}}, "systemd"),
    ({"containerd": {"runtimes": {"runc": {"options": {"SystemdCgroup": False, "BinaryName": ""}}}}}, "cgroupfs"),
    ({"containerd": {"runtimes": {"runc": {"options": None}}}}, None),
    ({"containerd": {"runtimes": {}}}, None),
    (None, None),
])
def test_driver_of_runcs_control_groups(config, driver):
    assert facts.runc_driver(config) == driver


def test_units_of_systemctl_show():
    text = "KillMode=process\nId=docker.service\nLoadState=loaded\nActiveState=active\n\n"
    text += "Id=k3s.service\nLoadState=masked\nActiveState=inactive\n"
    states = facts.parse_units(text)
    assert states["docker.service"] == {"name": "docker.service", "load": "loaded", "active": "active", "kill_mode": "process"}
    assert (states["k3s.service"]["load"], states["k3s.service"]["kill_mode"]) == ("masked", None)
    assert facts.parse_units("") == {}


def engine(name, **changes):
    return dict({"name": name, "active": True, "config_path": None, "kubelet": True}, **changes)


def runner(answers, calls=None):
    def run(argv, timeout, **_more):
        words = " ".join(argv)
        if calls is not None:
            calls.append(words)
        return Result(argv, 0, next((text for part, text in answers.items() if part in words), ""), "", False, 0.1)

    return run


def test_a_host_without_engines_has_an_answer(place):
    seen = facts.engine_facts({"engines": []}, str(place.root), runner({}))
    assert seen["engines"] == {}
    assert seen["kubelet"]["installed"] is False
    json.dumps(seen)


def test_docker(place):
    place.tool("systemctl", "docker", "dockerd")
    place.write("/etc/docker/daemon.json", '{"hosts": ["unix:///x"], "debug": "true"}')
    start = "{ path=/usr/bin/dockerd ; argv[]=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock ; ignore_errors=no ; }"
    unit = f"Id=docker.service\nLoadState=loaded\nActiveState=active\nKillMode=process\nMainPID=0\nExecStart={start}\n"
    calls = []
    npu = {"engines": [engine("docker", config_path="/etc/docker/daemon.json")]}
    seen = facts.engine_facts(npu, str(place.root), runner({"show": unit, "CgroupDriver": "cgroupfs\n"}, calls))["engines"]["docker"]
    assert seen["unit"]["kill_mode"] == "process"
    assert seen["file"] == {"conflicts": ["hosts"], "second": None, "quoted": ["debug"]}
    # Without a kubelet nobody minds the driver of control groups.
    assert seen["cgroup_driver"] is None
    place.tool("kubelet")
    seen = facts.engine_facts(npu, str(place.root), runner({"show": unit, "CgroupDriver": "cgroupfs\n"}))["engines"]["docker"]
    assert seen["cgroup_driver"] == "cgroupfs"


def says(answer):
    def status(socket, timeout):
        if isinstance(answer, Exception):
            raise answer
        return {"config": answer}

    return status


@pytest.mark.parametrize(("answer", "loaded", "driver"), [
    ({"containerd": {"runtimes": {"runc": {"options": {"SystemdCgroup": True}}}}}, True, "systemd"),
    (FleetError("There is no CRI.", "cri_missing"), False, None),
    (FleetError("It hangs.", "cri_timeout"), None, None),
    (OSError("no socket"), None, None),
])
def test_containerd(place, monkeypatch, answer, loaded, driver):
    monkeypatch.setattr(_cri, "status", says(answer))
    place.write("/etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n')
    npu = {"engines": [engine("containerd", config_path="/etc/containerd/config.toml")]}
    seen = facts.engine_facts(npu, str(place.root), runner({}))["engines"]["containerd"]
    assert (seen["cri"]["loaded"], seen["cri"]["disabled"], seen["cgroup_driver"]) == (loaded, True, driver)


def test_a_containerd_that_is_down_is_not_asked(place, monkeypatch):
    monkeypatch.setattr(_cri, "status", says(AssertionError("asked")))
    seen = facts.engine_facts({"engines": [engine("containerd", active=False)]}, str(place.root), runner({}))
    assert seen["engines"]["containerd"]["cri"] == {"loaded": None, "error": None, "disabled": False}


def test_a_containerd_without_cri_counts_as_down_and_is_asked_all_the_same(place, monkeypatch):
    monkeypatch.setattr(_cri, "status", says(FleetError("There is no CRI.", "cri_missing")))
    place.tool("systemctl")
    shown = "Id=containerd.service\nLoadState=loaded\nActiveState=active\nKillMode=process\n"
    seen = facts.engine_facts({"engines": [engine("containerd", active=False)]}, str(place.root), runner({"show": shown}))
    assert seen["engines"]["containerd"]["cri"]["loaded"] is False


def test_a_docker_that_is_down_is_not_asked_for_its_driver(place):
    place.tool("docker", "dockerd", "kubelet")
    calls = []
    facts.engine_facts({"engines": [engine("docker", active=False)]}, str(place.root), runner({}, calls))
    assert not [words for words in calls if "info" in words]


def test_of_two_units_the_one_that_runs_counts(place):
    place.tool("systemctl")
    shown = (
        "Id=k3s.service\nLoadState=not-found\nActiveState=inactive\nKillMode=control-group\n\n"
        "Id=k3s-agent.service\nLoadState=loaded\nActiveState=active\nKillMode=process\n"
    )
    npu = {"engines": [engine("k3s", active=False)]}
    seen = facts.engine_facts(npu, str(place.root), runner({"show k3s.service k3s-agent.service": shown}))
    assert seen["engines"]["k3s"]["unit"]["name"] == "k3s-agent.service"
