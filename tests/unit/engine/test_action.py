# SPDX-License-Identifier: GPL-3.0-or-later
"""The action from task arguments to result, against a node with a stand-in engine; the connection between them is replaced."""

import base64
import json
import os
from unittest import mock

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from conftest import RUNTIME

from ansible_collections.npu.fleet.plugins.action import oci_runtime
from ansible_collections.npu.fleet.plugins.module_utils import _engine_steps as steps
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.modules import oci_runtime as documentation
from ansible_collections.npu.fleet.plugins.modules import oci_runtime_node

CANARY = "canary-3c1e8a"
SECRETS = json.dumps(
    {
        "proxies": {"http-proxy": f"http://me:{CANARY}@192.0.2.1:3128", "no-proxy": "localhost"},
        "registry-mirrors": [f"https://{CANARY}@mirror.example"],
        "log-opts": {"splunk-token": CANARY, "splunk-url": f"https://s.example/?token={CANARY}", "env": f"PASSWORD={CANARY},x=1"},
        "debug": True,
    },
    indent=2,
)


class Controller:
    """Runs the action; counts what it executes on the node."""

    def __init__(self, node):
        self.node = node
        self.steps = []
        self.before_commit = lambda: None
        self.answer = None

    def execute(self, module_name, module_args, task_vars):
        assert module_name == "npu.fleet.oci_runtime_node"
        self.steps.append(module_args["step"])
        if self.answer is not None:
            return self.answer
        checked = ArgumentSpecValidator(oci_runtime_node.argument_spec()).validate(module_args)
        assert not checked.error_messages
        params = dict(checked.validated_parameters, root=str(self.node.root), timeout=2)
        if module_args["step"] == "commit":
            self.before_commit()
        try:
            answer = {"read": steps.read, "commit": steps.commit}[module_args["step"]](params, run)
        except FleetError as error:
            return {"failed": True, "msg": str(error), "error": error.as_dict(), "invocation": {"module_args": module_args}}
        return json.loads(json.dumps({"changed": False, **answer, "invocation": {"module_args": module_args}}))

    def __call__(self, check=False, **args):
        self.steps = []
        task = mock.MagicMock(args=args, check_mode=check, async_val=0, diff=True, action="npu.fleet.oci_runtime")
        connection = mock.MagicMock()
        action = oci_runtime.ActionModule(task, connection, mock.MagicMock(), None, None, None)
        with mock.patch.object(action, "_execute_module", self.execute):
            return action.run(task_vars={})


@pytest.fixture()
def act(node):
    return Controller(node)


def test_register_then_nothing(act, node):
    node.write('{\n  "debug": true\n}\n')
    first = act(path=RUNTIME)
    assert (first["changed"], first["actions"], act.steps) == (True, ["reload"], ["read", "commit"])
    assert first["diff"]["before"] == '{\n  "debug": true\n}\n'
    assert first["diff"]["after"] == node.config.read_text()
    assert first["effective"]["runtimes"]["ascend"]["path"] == RUNTIME
    assert (first["config_path"], first["previous_default"], first["engine"]) == ("/etc/docker/daemon.json", None, "docker")
    second = act(path=RUNTIME)
    assert (second["changed"], second["actions"], act.steps) == (False, [], ["read"])
    assert "diff" not in second


def test_a_connection_that_prints_what_comes_back_is_told_not_to():
    task = mock.MagicMock(args={"path": RUNTIME}, check_mode=False, async_val=0, action="npu.fleet.oci_runtime")
    context, own = mock.MagicMock(no_log=False), mock.MagicMock(no_log=False)
    action = oci_runtime.ActionModule(task, mock.MagicMock(_play_context=own), context, None, None, None)
    seen = []

    def execute(**_arguments):
        seen.append((context.no_log, own.no_log))
        return {"failed": True, "msg": "no such module"}

    with mock.patch.object(action, "_execute_module", execute):
        action.run(task_vars={})
    assert seen == [(True, True)]
    assert (context.no_log, own.no_log) == (False, False)


def test_check_mode_predicts_and_touches_nothing(act, node):
    before = node.tree()
    result = act(check=True, path=RUNTIME)
    assert (result["changed"], act.steps) == (True, ["read"])
    assert '"ascend"' in result["diff"]["after"]
    assert node.tree() == before
    assert not (node.root / "etc/docker").exists()
    act(path=RUNTIME)
    assert act(check=True, path=RUNTIME)["changed"] is False


def test_default_there_and_back(act, node):
    text = '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/n"}}}'
    node.write(text)
    assert act(path=RUNTIME)["previous_default"] is None
    assert node.state["loaded"]["default-runtime"] == "nvidia"
    result = act(path=RUNTIME, set_default=True)
    assert (result["changed"], result["previous_default"], result["effective"]["default_runtime"]) == (True, "nvidia", "ascend")
    assert act(path=RUNTIME, set_default=True)["changed"] is False
    assert act(path=RUNTIME)["changed"] is False
    result = act(state="absent")
    assert (result["changed"], result["previous_default"], result["effective"]["default_runtime"]) == (True, "nvidia", "nvidia")
    assert node.config.read_text() == text
    assert act(state="absent")["changed"] is False
    assert act.steps == ["read"]


def test_the_whole_way_on_a_bare_node_and_back(act, node):
    act(path=RUNTIME, set_default=True)
    assert node.state["loaded"]["default-runtime"] == "ascend"
    result = act(state="absent")
    assert list(result["effective"]["runtimes"]) == ["runc"]
    assert result["effective"]["default_runtime"] == "runc"
    assert not node.config.exists()
    assert "start" not in node.verbs()
    assert "restart" not in node.verbs()


def test_a_file_that_is_right_but_not_in_effect_is_reloaded(act, node):
    node.write(json.dumps({"runtimes": {"ascend": {"path": RUNTIME}}}), load=False)
    assert act(check=True, path=RUNTIME)["changed"] is True
    result = act(path=RUNTIME)
    assert (result["changed"], result["actions"], "diff" in result) == (True, ["reload"], False)
    assert act(path=RUNTIME)["changed"] is False


def test_never(act, node):
    result = act(path=RUNTIME, restart="never")
    assert (result["changed"], result["reload_required"], node.verbs()) == (True, True, [])
    again = act(path=RUNTIME, restart="never")
    assert (again["changed"], again["reload_required"], act.steps) == (False, True, ["read"])
    last = act(path=RUNTIME)
    assert (last["changed"], last["reload_required"], node.verbs()) == (True, False, ["reload"])
    assert act(path=RUNTIME, restart="never")["reload_required"] is False


def test_hosts_in_file_and_unit_is_named_before_anything_is_done(act, node):
    node.write('{"hosts": ["tcp://127.0.0.1:2375"]}')
    before = node.tree()
    for check in (True, False):
        result = act(check=check, path=RUNTIME)
        assert result["failed"]
        assert result["error"]["code"] == "config_conflict"
        assert '"hosts" stands in the file and on the command line' in result["msg"]
        assert act.steps == ["read"]
    assert node.tree() == before
    assert node.verbs() == []


def test_default_by_flag(act, node):
    node.set(command="/usr/sbin/dockerd --default-runtime=ascend")
    assert '"default-runtime" stands in the file and' in act(path=RUNTIME, set_default=True)["msg"]
    assert "started with --default-runtime=ascend" in act(state="absent")["msg"]
    assert act(path=RUNTIME)["changed"]


def test_a_runtime_that_is_not_installed(act, node):
    os.unlink(node.root / RUNTIME.lstrip("/"))
    result = act(path=RUNTIME)
    assert (result["error"]["code"], act.steps) == ("runtime_missing", ["read"])
    assert not node.config.exists()
    predicted = act(check=True, path=RUNTIME)
    assert predicted["changed"]
    assert "does not exist on this host" in predicted["warnings"][0]
    (node.root / RUNTIME.lstrip("/")).write_text("")
    assert "is not executable" in act(path=RUNTIME)["msg"]


@pytest.mark.parametrize(
    ("text", "place"), [('{\n  "a": 1\n  "b": 2\n}\n', "line 3, column 3"), ('{\n  "runtimes": []\n}', "line 2, column 15")]
)
def test_a_broken_file_is_untouched(act, node, text, place):
    node.write(text, load=False)
    result = act(path=RUNTIME)
    assert result["failed"]
    assert f"/etc/docker/daemon.json, {place}: " in result["msg"]
    assert (node.config.read_text(), act.steps, node.verbs()) == (text, ["read"], [])


def test_changed_in_between(act, node):
    node.write("{}")
    act.before_commit = lambda: node.config.write_text('{"debug": true}')
    result = act(path=RUNTIME)
    assert (result["error"]["code"], node.config.read_text(), node.verbs()) == ("file_changed", '{"debug": true}', [])


def test_warnings_for_removal(act, node):
    act(path=RUNTIME)
    node.set(containers={"trainer": "ascend"})
    (warning,) = act(check=True, state="absent")["warnings"]
    assert "trainer" in warning


def test_a_removal_does_not_start_a_dockerd_that_is_down(act, node):
    act(path=RUNTIME)
    node.set(active=False)
    result = act(state="absent")
    assert (result["changed"], result["reload_required"]) == (True, False)
    assert act(state="absent")["changed"] is False
    assert node.verbs() == ["reload"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"path": "relative"}, "path_invalid"),
        ({"path": RUNTIME, "name": "a b"}, "name_invalid"),
        ({"path": RUNTIME, "name": "runc"}, "name_reserved"),
        ({"path": RUNTIME, "engine": "isulad"}, "engine_missing"),
    ],
)
def test_arguments(act, args, code):
    assert act(**args)["error"]["code"] == code


def test_arguments_of_the_spec(act):
    with pytest.raises(AnsibleActionFail, match="path"):
        act()
    with pytest.raises(AnsibleActionFail, match="podman"):
        act(path=RUNTIME, engine="podman")


# --- secrets ---


def shown(result):
    """The result as any callback could print it."""
    return json.dumps(result)


def leaks(text, node):
    """What of the secrets is in ``text``, in clear or as base64 at any of the three alignments."""
    found = [CANARY] if CANARY in text else []
    for shift in range(3):
        core = base64.b64encode(b"x" * shift + CANARY.encode())[4:-4].decode()
        found += [core] if core in text else []
    return found


def test_no_secret_leaves_the_action(act, node):
    node.write(SECRETS, load=False)
    results = [act(check=True, path=RUNTIME), act(path=RUNTIME, args=[f"--token={CANARY}"]), act(path=RUNTIME), act(state="absent")]
    assert [result["changed"] for result in results] == [True, True, False, True]
    for result in results:
        assert not leaks(shown(result), node)
    assert CANARY in node.config.read_text()
    diff = results[0]["diff"]["after"]
    assert '"http-proxy": "http://********@192.0.2.1:3128"' in diff
    assert '"splunk-token": "********"' in diff
    assert '"env": "PASSWORD=********,x=1"' in diff
    assert '"no-proxy": "localhost"' in diff


def test_no_secret_in_failures(act, node):
    node.write(SECRETS, load=False)
    node.set(deaf=True, journal=[f"proxyconnect http://me:{CANARY}@192.0.2.1:3128"])
    rejected = act(path=RUNTIME)
    node.write(SECRETS[:-2], load=False)
    broken = act(path=RUNTIME)
    content = base64.b64encode(SECRETS.encode()).decode()
    act.answer = {"failed": True, "module_stdout": content, "module_stderr": CANARY, "exception": content, "msg": f"odd http://a:{CANARY}@h"}
    crashed = act(path=RUNTIME)
    for result in (rejected, broken, crashed):
        assert result["failed"]
        assert not leaks(shown(result), node)
    assert crashed == {"failed": True, "msg": "odd http://********@h"}


def test_the_node_module_keeps_bytes_out_of_logs():
    spec = oci_runtime_node.argument_spec()
    assert spec["content"]["no_log"] is True
    assert spec["bridge"]["no_log"] is True


# --- documentation ---


@pytest.mark.parametrize("module", [documentation, oci_runtime_node])
def test_documentation_says_what_the_specification_says(module):
    def compare(options, spec, where):
        assert sorted(options) == sorted(spec), where
        for name, option in spec.items():
            documented = options[name]
            assert documented["type"] == option["type"], name
            assert documented.get("default") == option.get("default"), name
            assert documented.get("choices") == option.get("choices"), name
            assert documented.get("elements") == option.get("elements"), name
            assert bool(documented.get("required")) == bool(option.get("required")), name
            compare(documented.get("suboptions", {}), option.get("options", {}), name)

    spec = oci_runtime.argument_spec() if module is documentation else module.argument_spec()
    compare(yaml.safe_load(module.DOCUMENTATION)["options"], spec, module.__name__)


def test_documented_results_are_the_results(act, node):
    node.write("{}")
    returned = yaml.safe_load(documentation.RETURN)
    result = act(path=RUNTIME)
    assert set(result) - {"changed", "diff", "warnings"} == set(returned) - {"error"}
    returned = yaml.safe_load(oci_runtime_node.RETURN)
    assert set(node.read()) | {"changed"} == {name for name in returned if returned[name]["returned"] != "step=commit"}
