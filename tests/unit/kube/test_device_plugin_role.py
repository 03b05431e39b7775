# SPDX-License-Identifier: GPL-3.0-or-later
"""The role npu_device_plugin in a playbook: its RuntimeClass, and what it refuses. Nothing of the host is touched."""

import hashlib
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
import yaml
from ansible.plugins.filter.core import FilterModule
from kube_rig import environment

ROLE = Path(__file__).resolve().parents[3] / "roles/npu_device_plugin"
OURS = {"app.kubernetes.io/managed-by": "npu.fleet"}
CDI = [{"name": "containerd", "version": "2.1.3", "kubelet": True, "cdi": True}]


def playbook(tmp_path, plays, *words, hosts=("n-0", "n-1", "n-2")):
    """Run plays. The hosts are not there: a task that is not delegated would fail."""
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, **play} for play in plays]))
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts if isinstance(hosts, dict) else dict.fromkeys(hosts, {})}}))
    return subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "-e", "ansible_host=198.51.100.1", "-e", "ansible_ssh_timeout=1",
         "play.yml", *words],
        env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def only(file, kubeconfig, *, serial=None, **variables):
    """A play of the tasks of a file that speak with the cluster."""
    tasks = yaml.safe_load((ROLE / "tasks" / file).read_text())
    (first,) = [place for place, task in enumerate(tasks) if "npu.fleet.runtime_class" in task]
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    return {"tasks": tasks[first:], "vars": {**defaults, "npu_device_plugin_kubeconfig": kubeconfig, **variables},
            **({"serial": serial} if serial else {})}


def methods(api):
    return [method for method, _path in api.requests]


@pytest.mark.long
def test_the_class_is_made_once(api, kubeconfig, tmp_path):
    without = [only(file, kubeconfig, **none) for file in ("main.yml", "remove_class.yml")
               for none in ({"npu_device_plugin_kubeconfig": ""}, {"npu_device_plugin_runtime_class": ""})]
    done = playbook(tmp_path, [*without, only("main.yml", kubeconfig), only("main.yml", kubeconfig, serial=[1, 2])])
    assert done.returncode == 0, done.stdout + done.stderr
    made = api.runtime_classes.get("ascend")
    assert made["handler"] == "ascend" and made["metadata"]["labels"] == OURS and "scheduling" not in made
    assert methods(api) == ["GET", "POST", "GET", "GET"]  # once a play, or once a wave


def test_boards_alone_get_no_class_and_a_server_among_them_does(api, kubeconfig, tmp_path):
    board, server = ({"npu_preflight_observed": {"backend": backend}} for backend in ("rockchip", "ascend"))
    done = playbook(tmp_path, [only("main.yml", kubeconfig)], hosts={"n-0": board, "n-1": board})
    assert done.returncode == 0 and methods(api) == [], done.stdout + done.stderr
    done = playbook(tmp_path, [only("main.yml", kubeconfig)], hosts={"n-0": board, "n-1": server})
    assert done.returncode == 0 and methods(api) == ["GET", "POST"], done.stdout + done.stderr


@pytest.mark.long
def test_removal_waits_for_other_nodes(api, kubeconfig, tmp_path):
    api.runtime_classes.create({"metadata": {"name": "ascend", "labels": OURS}, "handler": "ascend"})
    api.add_node("other", labels={"npu.fleet/family": "a2"})
    done = playbook(tmp_path, [only("remove_class.yml", kubeconfig)])
    assert done.returncode == 0 and "serves other nodes" in done.stdout and set(methods(api)) == {"GET"}
    api.store.delete("other")
    done = playbook(tmp_path, [only("remove_class.yml", kubeconfig)] * 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [method for method in methods(api) if method != "GET"] == ["DELETE"] and not api.runtime_classes.has("ascend")


def text_of(name, settings):
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(ROLE / "templates"), trim_blocks=True,  # noqa: S701  no HTML
                                     keep_trailing_newline=True)
    environment.filters.update(FilterModule().filters())
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    return environment.get_template(name).render({**defaults, "__npu_device_plugin_settings": settings})


def node(engines, settings, **variables):
    """Variables of a node that has these settings already."""
    agent = {"config_sha256": hashlib.sha256(text_of("config.yaml.j2", settings).encode()).hexdigest(),
             "unit_sha256": hashlib.sha256(text_of("npu-agent.service.j2", settings).encode()).hexdigest(),
             "active": True, "enabled": True, "started_after_files": True}
    return {"npu_preflight_observed": {"agent": agent, "engines": engines},
            **{f"npu_device_plugin_{key}": value for key, value in variables.items()}}


PLAY = {"tasks": [{"ansible.builtin.import_role": {"name": "npu.fleet.npu_device_plugin"}}]}


def test_a_node_that_is_right_costs_no_call(tmp_path):
    done = playbook(tmp_path, [PLAY], "--check", hosts={
        "plain": node([], {}),
        "own": node([], {"log_level": "debug"}, allocate_by="nodes", config={"log_level": "debug"}),
        "folder": node([], {"cdi_folder": "/run/cdi"}, cdi_folder="/run/cdi"),
        "cdi": node(CDI, {"allocate_by": "cdi", "cdi_folder": "/etc/cdi"}, allocate_by="cdi"),
    })
    assert done.returncode == 0, done.stdout + done.stderr


def test_cdi_is_refused_in_words(tmp_path):
    words = {
        "none": "it is not known which container engine kubelet uses on this node (engines: none)",
        "old": "containerd 1.7.24, is not known to have CDI switched on",
        "other": "(engines: containerd)",
        "word": "value of npu_device_plugin_allocate_by must be one of: auto, nodes, cdi, got: env",
    }
    done = playbook(tmp_path, [PLAY], "--check", hosts={
        "none": node([], {}, allocate_by="cdi"),
        "old": node([{**CDI[0], "cdi": None, "version": "1.7.24"}], {}, allocate_by="cdi"),
        "other": node([{**CDI[0], "kubelet": None}], {}, allocate_by="cdi"),
        "word": node([], {}, allocate_by="env"),
    })
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0 and "UNREACHABLE" not in said and "npu_device_plugin_allocate_by: nodes" in said
    assert {host for host, text in words.items() if text not in said} == set()
    assert said.count("failed=1") == 4


def seen(**agent):
    """Variables of a node where something else serves its kubelet."""
    there = node([], {})
    there["npu_preflight_observed"]["agent"].update(agent)
    return there


def test_another_plugin_is_refused_in_words_and_so_is_a_mode_that_cannot_be(tmp_path):
    other = {"others": ["Ascend910.sock in /var/lib/kubelet/device-plugins, served by process 7 (device-plugin)"]}
    words = {
        "vendor": "Another device plugin for NPUs runs on vendor: Ascend910.sock in",
        "taken": "npu_device_plugin_take_over: true (needs npu_device_plugin_kubeconfig)",
        "pod": "kubectl label node pod npu.fleet/agent-",
        "cluster": "npu_device_plugin_mode is daemonset, and there is no npu_device_plugin_kubeconfig",
        "mode": "value of npu_device_plugin_mode must be one of: systemd, daemonset, got: pod",
    }
    done = playbook(tmp_path, [PLAY], "--check", hosts={
        "vendor": seen(**other),
        "taken": {**seen(**other), "npu_device_plugin_take_over": True},  # without a cluster nobody can keep it off
        "pod": seen(pod=True),
        "cluster": {**seen(), "npu_device_plugin_mode": "daemonset"},
        "mode": {**seen(), "npu_device_plugin_mode": "pod"},
    })
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0 and "UNREACHABLE" not in said
    assert {host for host, text in words.items() if text not in said} == set(), said
    assert said.count("failed=1") == 5
