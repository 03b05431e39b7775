# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbooks do to Nodes beside their roles, by their own tasks against the API stand-in."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kube_rig import environment

ROOT = Path(__file__).resolve().parents[3]
PREFLIGHT = yaml.safe_load((ROOT / "roles/npu_preflight/tasks/main.yml").read_text())
SITE_TAINT = {"key": "npu.fleet/not-ready", "value": "site", "effect": "NoSchedule"}
READY = {"npu.fleet/family": "a2", "npu.fleet/ready": "true"}
NOTED = {"npu.fleet/labels": "npu.fleet/family=a2,npu.fleet/ready=true"}
INCLUDE = "ansible.builtin.include_role"


def tasks_of(name):
    return yaml.safe_load((ROOT / "playbooks" / name).read_text())[0]["tasks"]


def named(tasks, name):
    (found,) = [task for task in tasks if task.get("name") == name]
    return found


def every(tasks):
    for task in tasks:
        yield task
        for part in ("block", "rescue"):
            yield from every(task.get(part, []))


@pytest.fixture
def play(api, kubeconfig, tmp_path):
    def run(tasks, hosts, *words, variables=None, **keys):
        """{host: words of the recap}, and the output. The hosts cannot be reached: nothing of this needs them."""
        reach = {"ansible_host": "192.0.2.1", "npu_labels_kubeconfig": kubeconfig, "npu_device_plugin_kubeconfig": kubeconfig,
                 "npu_device_plugin_runtime_class": "ascend", "npu_device_plugin_context": "", **(variables or {})}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": reach}}))
        (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks, **keys}]))
        done = subprocess.run([sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "play.yml", *words], cwd=tmp_path,
                              env=environment(tmp_path), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert "PLAY RECAP" in done.stdout, done.stdout + done.stderr
        recap = re.findall(r"^(\S+) +: (ok=.*)$", done.stdout, re.MULTILINE)
        return {name: {word: int(number) for word, number in re.findall(r"(\w+)=(\d+)", line)} for name, line in recap}, done.stdout

    return run


@pytest.fixture
def ready(api):
    """Makes a Node that is labelled as ready, by us."""
    def make(name, **labels):
        api.add_node(name, labels={**READY, **labels})
        api.store.patch(name, "application/merge-patch+json", {"metadata": {"annotations": NOTED}})

    return make


def seen(api, name):
    node = api.store.get(name)
    return {key: value for key, value in node["metadata"]["labels"].items() if key.startswith("npu")}, node["spec"].get("taints", [])


REFUSED = {"npu_preflight_plan": {"changes": 0, "refused": [
    {"component": "driver", "reason": "Chips are in use.", "hint": "Drain the node.", "code": "chips_in_use"}]}}


def test_a_node_that_is_refused_gets_the_taint_before_it_is_told(api, play, ready):
    ready("n-0")
    task = named(PREFLIGHT, "Refuse what cannot be done safely")
    for words in (["--tags", "npu_driver"], ["--skip-tags", "npu_labels"]):
        recap, told = play([task], {"n-0": REFUSED}, *words, tags=["always"])
        assert recap["n-0"]["failed"] == 1 and "Chips are in use. Drain the node." in told and api.requests == []
    recap, told = play([task], {"n-0": REFUSED}, tags=["always"])
    assert recap["n-0"]["failed"] == 1 and "driver: Chips are in use. Drain the node." in told
    assert seen(api, "n-0") == ({**READY, "npu.fleet/ready": "false"}, [SITE_TAINT])


def test_a_node_without_npu_ends_green_only_where_the_cluster_knows_of_none(api, play, ready):
    ready("n-0", **{"npu.fleet/chips": "8"})  # which the record does not have
    api.add_node("n-1", labels={})
    task = named(PREFLIGHT, "Leave a node that has no NPU as it is")
    after = {"name": "After it", "ansible.builtin.debug": {"msg": "goes on"}}
    hosts = dict.fromkeys(("n-0", "n-1", "n-2"), {"npu_preflight_observed": {"present": False}})
    recap, told = play([task, after], hosts, tags=["always"])
    assert [recap[name]["failed"] for name in hosts] == [1, 0, 0] and "goes on" not in told
    assert "n-0 has lost all its NPUs" in told
    assert seen(api, "n-0") == ({"npu.fleet/ready": "false"}, [SITE_TAINT]) and seen(api, "n-1") == ({}, [])


def test_removal_deletes_the_runtime_class_with_the_last_label(api, play, ready):
    """In the playbook's own order, from Nodes that are labelled."""
    api.runtime_classes.create({"metadata": {"name": "ascend", "labels": {"app.kubernetes.io/managed-by": "npu.fleet"}},
                                "handler": "ascend"})
    ready("n-0")
    ready("n-1")
    parts = [task for task in tasks_of("remove.yml") if task.get(INCLUDE, {}).get("tasks_from") in ("remove.yml", "remove_class.yml")
             and (task[INCLUDE]["name"], task[INCLUDE]["tasks_from"]) in (
                 ("npu.fleet.npu_labels", "remove.yml"), ("npu.fleet.npu_device_plugin", "remove_class.yml"))]
    recap, told = play(parts, {"n-0": {}})
    assert recap["n-0"]["failed"] == 0 and api.runtime_classes.has("ascend") and "serves other nodes" in told
    recap, told = play(parts, {"n-0": {}, "n-1": {}})
    assert recap["n-1"]["failed"] == 0 and not api.runtime_classes.has("ascend"), told
    # What the device plugin's own part does is before both, and deletes no class.
    first = yaml.safe_load((ROOT / "roles/npu_device_plugin/tasks/remove.yml").read_text())
    assert not any("npu.fleet.runtime_class" in task for task in first)


def holder(device, container=None, unit=None):
    return {"pid": 7, "comm": "a-process", "device": device, "container": container, "unit": unit}


def test_who_keeps_a_removal_from_beginning(play):
    task = named(tasks_of("remove.yml"), "Refuse while chips are in use")
    free = {
        "nobody": [],
        "others": [holder("/dev/dri/card1"), holder("/dev/dri/card1", unit="display.service"),
                   holder("/dev/davinci0", unit="npu-agent.service")],
    }
    used = {
        "card": [holder("/dev/dri/card1", container="c0ffee")], "render": [holder("/dev/dri/renderD129")],
        "rknpu": [holder("/dev/rknpu")], "accel": [holder("/dev/accel/accel0")], "davinci": [holder("/dev/davinci3")],
    }
    hosts = {name: {"npu_preflight_observed": {"holders": holders, "preflight": {"containers": {}}},
                    "npu_preflight_agent_namespace": "npu-fleet"} for name, holders in {**free, **used}.items()}
    recap, told = play([task], hosts)
    assert {name for name in hosts if recap[name]["failed"]} == set(used)
    assert {name for name in hosts if f"Chips of {name} are in use by" in told} == set(used)


def test_every_playbook_that_labels_has_the_same_gates_before_and_labels_left_out_are_no_gates_left_out():
    gates = {"ansible.builtin.import_tasks": "tasks/gates.yml"}
    for name in ("site.yml", "rollback.yml"):
        flat = list(every(tasks_of(name)))
        places = [place for place, task in enumerate(flat) if gates.items() <= task.items()]
        labels = [place for place, task in enumerate(flat) if task.get("ansible.builtin.import_role") == {"name": "npu.fleet.npu_labels"}]
        assert len(places) == len(labels) == 1 and places < labels, name
        assert flat[places[0]].get("tags", ["npu_verify"]) == ["npu_verify"]


def test_an_api_that_is_away_for_a_moment_does_not_end_the_wait_for_the_agent(api, play, ready, monkeypatch):
    ready("n-0")
    real, away = api.store.get, [1]

    def get(name):
        if away:
            away.pop()
            raise ConnectionAbortedError  # the connection ends without an answer
        return real(name)

    monkeypatch.setattr(api.store, "get", get)
    roles = [{"ansible.builtin.import_role": {"name": "npu.fleet.npu_labels"}}]
    recap, told = play(roles, {"n-0": {}}, variables={"npu_labels_mode": "daemonset", "npu_labels_timeout": 30, "npu_labels_proved": True})
    assert recap["n-0"]["failed"] == 0 and not away, told
