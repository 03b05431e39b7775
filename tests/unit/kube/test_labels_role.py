# SPDX-License-Identifier: GPL-3.0-or-later
"""The role npu_labels against the API stand-in: taint at first contact, labels after the gates, removal, and who writes in which mode."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kube_rig import TOKEN, ApiServer, environment

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _labels

OBSERVED = {
    "present": True, "backend": "ascend", "family": "a2", "product": "Atlas 800T A2", "arch": "aarch64",
    "chips": [{"name": "910B3", "serial": f"SERIALCANARY{number}"} for number in range(8)],
    "versions": {"driver": {"running": "25.5.0"}, "firmware": {"running": "7.8.0.5.216"}, "cann_toolkit": {"on_disk": "8.5.0"}},
}
PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
SITE = {"key": "npu.fleet/not-ready", "value": "site", "effect": "NoSchedule"}
AGENT = {**SITE, "value": "agent"}
OTHER = {"key": "other", "value": "x", "effect": "NoExecute"}


# What each node does in each of three runs: parts of the role in this order, and its variables.
PARTS = ("gone", "taint", "main", "remove", "remove")
DAEMONSET = {"npu_labels_mode": "daemonset", "npu_labels_timeout": 5}
DEAD = {"npu_labels_kubeconfig": "dead"}
LOST = {"npu_labels_observed": {"present": False, "chips": []}}
KEPT = {"npu_labels_keep": ["npu.fleet/product", "accelerator"]}
ADMIN = {"npu_labels_keep": ["npu.fleet/product"], "npu_labels_extra": {"npu.fleet/link": "other"}}
RUNS = {
    "fresh": [("taint", {"npu_labels_changes": 3}), ("taint main", {"npu_labels_changes": 0}), ("taint main", {"npu_labels_changes": 0})],
    "again": [("main", {}), ("taint gates", {"npu_preflight_plan": {"changes": 0, "reboot_expected": False}}), ("remove", {})],
    "absent": [("taint", {}), ("main", {}), ("main remove", {"npu_labels_missing": "ignore"})],
    "beside": [("taint", DAEMONSET), ("main", DAEMONSET), ("main", DAEMONSET)],
    "admins": [("main", ADMIN), ("remove", ADMIN), ("taint main remove", {"npu_labels_kubeconfig": ""})],
    "lost": [("main", {}), ("gone", LOST), ("gone", LOST)],
    "never": [("gone", LOST), ("taint", {**DAEMONSET, "npu_labels_extra": {"a": "b"}}), ("gone", {**LOST, "npu_labels_kubeconfig": ""})],
    "pods": [("gone", {**LOST, **DAEMONSET}), ("taint", {**DAEMONSET, "npu_labels_changes": 0}),
             ("taint", {**DAEMONSET, "npu_labels_changes": 1})],
    "down": [("gates", DEAD), ("main", {"npu_labels_proved": False}), ("taint", {"npu_labels_keep": ["npu.fleet/ready"]})],
    "keeps": [("main", {}), ("main", KEPT), ("taint", {"npu_preflight_plan": {"changes": 0, "reboot_expected": True}})],
}


class Play:
    """The runs, and how each Node was after each of them."""

    def __init__(self, api, folder):
        self.api, self.folder = api, folder
        self.kubeconfig = str(api.kubeconfig(folder / "kubeconfig", api.add_user("admin", token=TOKEN)))
        self.environment = environment(folder)
        self.output, self.seen, self.asked = [], [], []
        # What npu.fleet.site and npu.fleet.rollback do where a gate fails.
        (self.rescue,) = [task["rescue"] for task in yaml.safe_load((PLAYBOOKS / "tasks/gates.yml").read_text())]
        (folder / "dead").write_text(Path(self.kubeconfig).read_text().replace(api.url, "http://127.0.0.1:9"))

    def run(self, number):
        hosts = {}
        for name, runs in RUNS.items():
            parts, variables = runs[number]
            # Of a node that cannot be reached: nothing of this needs it.
            hosts[name] = {"ansible_host": "192.0.2.1", "ansible_become": True, "ansible_connection": "ssh", "parts": parts, **variables}
        given = {"npu_labels_kubeconfig": self.kubeconfig, "npu_labels_observed": OBSERVED, "npu_labels_proved": True}
        gates = {"block": [{"ansible.builtin.fail": {"msg": "L1 driver: it does not answer."}}], "rescue": self.rescue}
        tasks = [{"ansible.builtin.include_role": {"name": "npu.fleet.npu_labels", "tasks_from": part}} for part in PARTS]
        # A play for each part, for the hosts that have it: to skip a task takes Ansible a process for each host. Where all hosts of a play
        # fail, the plays after it are left out, so one host more looks on.
        plays = [{"hosts": ["onlooker", *(name for name in RUNS if part in hosts[name]["parts"].split())], "gather_facts": False,
                  "tasks": [{**task, "when": "inventory_hostname != 'onlooker'"}]}
                 for part, task in [*zip(PARTS, tasks, strict=True), ("gates", gates)]]
        hosts["onlooker"] = {}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": given}}))
        (self.folder / "play.yml").write_text(yaml.safe_dump([play for play in plays if len(play["hosts"]) > 1]))
        done = subprocess.run([sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "-f", "4", "play.yml"],
                              env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert "rescued=" in done.stdout, done.stdout + done.stderr
        self.output.append(done.stdout + done.stderr)
        self.seen.append({one["metadata"]["name"]: one for one in self.api.store.list()})
        self.asked.append({path for _method, path in self.api.requests})
        self.api.requests.clear()

    def node(self, name, run):
        """(labels without kubelet's, taints, annotations) after a run."""
        found = self.seen[run - 1][name]
        labels = {key: value for key, value in found["metadata"]["labels"].items() if not key.startswith("kubernetes.io/")}
        return labels, found["spec"].get("taints", []), found["metadata"].get("annotations", {})

    def recap(self, name, run):
        """{word: number} of the last lines."""
        (line,) = re.findall(rf"^{name} +: (.*)$", self.output[run - 1], re.MULTILINE)
        return {word: int(number) for word, number in re.findall(r"(\w+)=(\d+)", line)}

    def said(self, name, run):
        """Errors about a host."""
        told = re.findall(rf"^fatal: \[{name}[^\]]*\]: FAILED! => (.*?)^(?=\S|$)", self.output[run - 1] + "\n", re.MULTILINE | re.DOTALL)
        return " ".join(told)


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    with ApiServer() as api:
        for name in RUNS:
            if name != "absent":
                api.add_node(name, labels={"rack": "r7"})
        merge = functools.partial(api.store.patch, content_type="application/merge-patch+json")
        merge("fresh", patch={"spec": {"taints": [OTHER]}})
        merge("again", patch={"spec": {"taints": [AGENT, OTHER]}})
        merge("admins", patch={"metadata": {"labels": {"host-arch": "mine", "accelerator": "x"}}})
        merge("lost", patch={"spec": {"taints": [OTHER]}})
        merge("never", patch={"spec": {"taints": [SITE, OTHER]}})
        merge("pods", patch={"metadata": {"labels": {"npu.fleet/agent": "daemonset", "npu.fleet/ready": "false"}},
                             "spec": {"taints": [AGENT]}})
        made = Play(api, tmp_path_factory.mktemp("labels"))
        made.run(0)
        merge("pods", patch={"spec": {"taints": [AGENT]}})
        made.run(1)
        merge("beside", patch={"metadata": {"labels": {"npu.fleet/ready": "true"}}})
        made.run(2)
        yield made


def test_a_node_is_tainted_before_the_change_and_labelled_after_the_gates(play):
    assert play.node("fresh", 1) == ({"rack": "r7", "npu.fleet/ready": "false"}, [OTHER, SITE], {})
    labels, taints, _record = play.node("fresh", 2)
    assert taints == [OTHER] and labels.items() >= {"npu.fleet/ready": "true", "npu.fleet/link": "hccs", "host-arch": "huawei-arm"}.items()


def test_the_next_run_changes_nothing(play):
    assert play.recap("fresh", 2)["changed"] == 1 and play.recap("fresh", 3)["changed"] == 0
    assert play.seen[1]["fresh"] == play.seen[2]["fresh"]


def test_a_node_whose_gates_fail_is_tainted_again_though_nothing_changed(play):
    assert play.node("again", 1)[1] == [OTHER]  # nor has it the taint any more that an agent in a DaemonSet had left
    labels, taints, _record = play.node("again", 2)
    assert taints == [OTHER, SITE] and labels["npu.fleet/ready"] == "false" and play.recap("again", 2)["changed"] == 1
    assert labels["npu.fleet/driver-version"] == "25.5.0"  # what the former run has written stays meanwhile
    said = play.output[1].rpartition("Say which gate failed")[2]
    assert play.recap("again", 2)["failed"] == 1 and "L1 driver: it does not answer." in said


def test_removal_takes_labels_and_taint_and_a_second_one_nothing(play):
    assert play.node("again", 3) == ({"rack": "r7"}, [OTHER], {}) and play.recap("again", 3)["changed"] == 1


def test_a_node_that_has_not_joined(play):
    assert play.recap("absent", 1)["failed"] == 0 and "--register-with-taints=npu.fleet/not-ready=site:NoSchedule" in play.output[0]
    assert play.recap("absent", 2)["failed"] == 1 and "has no Node 'absent'" in play.output[1]
    assert play.recap("absent", 3)["failed"] == 0


def test_beside_an_agent_that_writes_the_play_has_its_own_taint_only(play):
    assert play.node("beside", 1) == play.node("beside", 2) == ({"rack": "r7"}, [SITE], {})
    assert play.recap("beside", 2)["failed"] == 1 and "has not called the Node beside ready within 5 s" in play.output[1]
    assert play.node("beside", 3) == ({"rack": "r7", "npu.fleet/ready": "true"}, [], {})


def test_an_admins_labels_and_wishes(play):
    labels, _taints, _record = play.node("admins", 1)
    assert labels["host-arch"] == "mine" and labels["accelerator"] == "huawei-Ascend910" and labels["npu.fleet/link"] == "other"
    assert "npu.fleet/product" not in labels
    assert play.node("admins", 2)[0] == {"rack": "r7", "host-arch": "mine"}


def test_a_node_that_has_lost_its_npus_is_not_ready_carries_none_of_their_labels_and_ends_red_each_time(play):
    assert play.node("lost", 1)[0]["npu.fleet/family"] == "a2"
    for run in (2, 3):
        labels, taints, record = play.node("lost", run)
        assert (labels, taints, record) == ({"rack": "r7", "npu.fleet/ready": "false"}, [OTHER, SITE], {})
        assert play.recap("lost", run)["failed"] == 1 and "lost has lost all its NPUs" in play.said("lost", run)
    assert play.recap("lost", 3)["changed"] == 0


def test_a_node_that_never_had_an_npu_is_freed_from_the_taint_it_registered_with(play):
    assert play.node("never", 1) == ({"rack": "r7"}, [OTHER], {})
    assert [play.recap("never", run)["failed"] for run in (1, 3)] == [0, 0]


def test_in_daemonset_mode_labels_are_the_agents_and_its_taint_is_taken_over_only_for_a_change(play):
    labels = {"rack": "r7", "npu.fleet/agent": "daemonset", "npu.fleet/ready": "false"}
    assert play.node("pods", 1) == (labels, [SITE], {}) and "has lost all its NPUs" in play.said("pods", 1)
    assert play.node("pods", 2) == (labels, [AGENT], {}) and play.recap("pods", 2)["changed"] == 0
    assert play.node("pods", 3) == (labels, [SITE], {})


def test_where_the_api_is_down_too_both_reasons_are_told(play):
    assert "L1 driver: it does not answer." in play.said("down", 1).rpartition("Nor could the Node down be tainted")[0]
    assert "Cannot reach the Kubernetes API" in play.said("down", 1).rpartition("Nor could the Node down be tainted")[2]


def test_a_node_that_nobody_has_judged_is_not_labelled(play):
    assert play.node("down", 2)[0] == {"rack": "r7"} and "were not judged in this run, or did not pass" in play.said("down", 2)


def test_wishes_that_cannot_be_kept_are_refused_before_anything_is_written(play):
    assert "must not have npu.fleet/ready" in play.said("down", 3) and play.node("down", 3)[1] == []
    assert "cannot be written in DaemonSet mode" in play.said("never", 2) and play.node("never", 2) == play.node("never", 1)


def test_labels_that_we_had_written_stay_where_they_are_to_be_left_alone(play):
    before, after = play.node("keeps", 1), play.node("keeps", 2)
    assert before[0] == after[0] and before[0]["accelerator"] == "huawei-Ascend910" and "npu.fleet/product" in before[0]
    noted = _labels.read_record(after[2]["npu.fleet/labels"])
    assert set(_labels.read_record(before[2]["npu.fleet/labels"])) - set(noted) == {"npu.fleet/product", "accelerator"}


def test_a_reboot_is_a_change(play):
    assert play.node("keeps", 2)[1] == [] and play.node("keeps", 2)[0]["npu.fleet/ready"] == "true"
    assert play.node("keeps", 3)[1] == [SITE] and play.node("keeps", 3)[0]["npu.fleet/ready"] == "false"


def test_without_a_kubeconfig_nothing_is_asked(play):
    assert play.recap("admins", 3)["failed"] == 0 and play.asked[2] and "/api/v1/nodes/admins" not in play.asked[2]


def test_no_secret_and_no_serial_number_is_shown(play):
    assert not any(TOKEN in text or "CANARY" in text for text in play.output) and "CANARY" not in str(play.seen)


def test_keys_that_are_shared_with_admins_stand_in_the_role_as_in_the_agent():
    root = os.path.dirname(__file__) + "/../../../roles/npu_labels/defaults/main.yml"
    with open(root, encoding="utf-8") as stream:
        assert tuple(yaml.safe_load(stream)["npu_labels_only_missing"]) == _labels.SHARED
