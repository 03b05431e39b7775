# SPDX-License-Identifier: GPL-3.0-or-later
"""The action with engines other than docker: what it sends to the node, what it shows, and that no credential is in either."""

import base64
import json
from unittest import mock

import engine_corpus as corpus
import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from engine_corpus import CANARY, RUNTIME, STOCK

from ansible_collections.npu.fleet.plugins.action import oci_runtime
from ansible_collections.npu.fleet.plugins.modules import oci_runtime_node

CRI = 'plugins."io.containerd.grpc.v1.cri"'
DONE = {
    "changed": True, "actions": ["restart"], "backup_file": "/b", "validation": "by containerd config dump", "not_checked": None,
    "reload_required": False, "killed": ["default/pod"],
    "effective": {
        "runtimes": {"ascend": {"path": RUNTIME, "args": [], "type": "io.containerd.runc.v2"}}, "default_runtime": "runc",
        "handlers": ["ascend"],
    },
}  # fmt: skip


class Act:
    """The action over canned answers of a node; keeps what was sent."""

    def __init__(self, found):
        self.found, self.sent, self.done = found, [], dict(DONE)

    def execute(self, module_name, module_args, task_vars):
        checked = ArgumentSpecValidator(oci_runtime_node.argument_spec()).validate(module_args)
        assert not checked.error_messages
        self.sent.append(module_args)
        answer = self.found if module_args["step"] == "read" else self.done
        return json.loads(json.dumps({"changed": False, **answer, "invocation": {"module_args": module_args}}))

    def __call__(self, check=False, **args):
        self.sent = []
        task = mock.MagicMock(args=args, check_mode=check, async_val=0, diff=True, action="npu.fleet.oci_runtime")
        action = oci_runtime.ActionModule(task, mock.MagicMock(), mock.MagicMock(), None, None, None)
        with mock.patch.object(action, "_execute_module", self.execute):
            return action.run(task_vars={})


def secrets(**more):
    data = (corpus.CORPUS / "containerd/v2-secrets/config.toml").read_bytes()
    said = STOCK.format(2, CRI) + f'[{CRI}.registry.configs."r".auth]\npassword = "{CANARY}"\n'
    files = [("/etc/containerd/config.toml", "main", data)]
    return corpus.read_answer("containerd", files, binary_version="1.6.20", effective_text=said, **more)


def k3s(case, tmp_path):
    tree, _home = corpus.k3s_tree(case, tmp_path)
    return tree.found()


def leaks(value):
    """What of the canary is in a result, in clear or as base64 at any alignment."""
    text = json.dumps(value)
    cores = [base64.b64encode(b"x" * shift + CANARY.encode())[4:-4].decode() for shift in range(3)]
    return [one for one in [CANARY, *cores] if one in text]


def test_what_is_sent_and_what_is_shown():
    act = Act(secrets(kubelet=True))
    result = act(path=RUNTIME, disruption="allow")
    read, commit = act.sent
    assert [read["step"], commit["step"]] == ["read", "commit"]
    assert (commit["file"], commit["disruption"]) == ("/etc/containerd/config.toml", "allow")
    assert commit["expected"] == {"/etc/containerd/config.toml": act.found["files"][0]["sha256"]}
    assert CANARY in base64.b64decode(commit["content"]).decode()
    assert (result["changed"], result["killed"], result["kubelet"]) == (True, ["default/pod"], True)
    assert result["effective"]["handlers"] == ["ascend"]
    assert not leaks(result)
    assert "********" in result["diff"]["after"]
    assert RUNTIME in result["diff"]["after"]


def test_nothing_to_do_is_one_call():
    act = Act(secrets())
    act(path=RUNTIME)
    content = base64.b64decode(act.sent[1]["content"])
    act.found["files"] = [corpus.entry("/etc/containerd/config.toml", "main", content)]
    act.found["effective"]["runtimes"]["ascend"] = {"path": RUNTIME, "args": [], "type": None}
    result = act(path=RUNTIME)
    assert (result["changed"], len(act.sent), "diff" in result) == (False, 1, False)


def test_right_in_the_file_and_not_in_effect_is_taken_over():
    act = Act(secrets())
    act(path=RUNTIME)
    act.found["files"] = [corpus.entry("/etc/containerd/config.toml", "main", base64.b64decode(act.sent[1]["content"]))]
    act(path=RUNTIME)
    assert (act.sent[1].get("content"), act.sent[1]["remove"]) == (None, False)


@pytest.mark.parametrize(("restart", "disruption", "warned"), [("auto", "refuse", 1), ("auto", "allow", 0), ("never", "refuse", 0)])
def test_what_a_restart_would_end_is_named_before(restart, disruption, warned):
    result = Act(secrets(restart_kills=["default/web"]))(check=True, path=RUNTIME, restart=restart, disruption=disruption)
    assert sum("would end what runs in containerd: default/web" in text for text in result.get("warnings", [])) == warned
    assert result["takes_over_by"] == "restart"


def test_no_canary_in_any_failure(tmp_path):
    broken = secrets()
    text = (corpus.CORPUS / "containerd/broken/bare-text.toml").read_bytes()
    broken["files"] = [corpus.entry("/etc/containerd/config.toml", "main", text)]
    unknown = secrets(effective_error=f"cannot use registry password={CANARY}")
    unknown["effective_text"] = None
    act = Act(secrets())
    content = base64.b64encode(f'password = "{CANARY}"'.encode()).decode()
    act.done = {"failed": True, "msg": f'(3, 1): password = "{CANARY}"', "module_stdout": content, "exception": content}
    template = k3s("v2-old-whole-template", tmp_path)
    results = [
        Act(broken)(path=RUNTIME), Act(unknown)(path=RUNTIME), act(path=RUNTIME), Act(secrets())(path=RUNTIME, args=[f"--token={CANARY}"]),
        Act(template)(path=RUNTIME, set_default=True), Act(template)(check=True, path=RUNTIME),
    ]  # fmt: skip
    assert [bool(result.get("failed")) for result in results] == [True] * 5 + [False]
    for result in results:
        assert not leaks(result)
    assert "config.toml, line 3" in results[0]["msg"]


@pytest.mark.parametrize("case", ["v2", "v3-drop-in", "rke2-v2"])
def test_k3s_is_committed_in_its_own_file(tmp_path, case):
    found = k3s(case, tmp_path)
    act = Act(found)
    result = act(path=RUNTIME, engine=found["engine"])
    told = corpus.told("k3s", case)["edits"]
    assert act.sent[1]["file"].endswith(told)
    assert act.sent[1]["expected"][act.sent[1]["file"]] == ""
    assert act.sent[1]["check"]
    assert result["config_path"].endswith(told)
