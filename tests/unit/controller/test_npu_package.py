# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of npu_package: what it asks the node, in which order, and what it makes of the answers."""

from unittest import mock

import pytest
from ansible.errors import AnsibleConnectionFailure

from ansible_collections.npu.fleet.plugins.action import npu_package

NAME = "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"
ARGS = {"component": "driver", "version": "25.5.0", "src": "/srv/" + NAME, "sha256": "a" * 64}
LOG = {"path": "/var/log/npu-fleet/driver-1.log", "lines": []}
BEFORE = {"state": "present", "version": "25.3.rc1"}
AFTER = {"state": "present", "version": "25.5.0"}
INSTALL = {"action": "upgrade"}
RUNNING = {"changed": True, "running": True, "log": LOG, "before": BEFORE, "after": BEFORE, "step": INSTALL, "attached": False,
           "created": ["user x"], "progress": [{"percent": 10, "seconds": 2}]}  # fmt: skip
ATTACHED = dict(RUNNING, before={"state": "half_installed"}, step={"action": "attach"}, attached=True, created=[],
                progress=[{"percent": 10, "seconds": 2}, {"percent": 40, "seconds": 60}])  # fmt: skip
DONE = dict(ATTACHED, running=False, after=AFTER, progress=[*ATTACHED["progress"], {"percent": 100, "seconds": 90}])
NOTHING = {"changed": False, "running": False, "before": AFTER, "after": AFTER, "step": {"action": "none"}, "created": []}
NEEDED = dict(NOTHING, file_needed=True, before=BEFORE, after=BEFORE, step=INSTALL)
LOCKED = {"failed": True, "msg": "busy", "error": {"code": "busy", "object": "/var/lib/npu-fleet/packages.lock"}}
BROKEN = AnsibleConnectionFailure("Connection reset by peer")


class Node:
    """Gives the answers in their order; an exception is raised."""

    def __init__(self, *answers):
        self.answers, self.calls, self.shown, self.sent = list(answers), [], [], []

    def execute(self, module_name, module_args, task_vars):
        assert module_name == "npu.fleet.npu_package"
        self.calls.append(dict(module_args))
        pass_by(5)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, check=False, **args):
        task = mock.MagicMock(args=dict(ARGS, **args), check_mode=check, async_val=0, action="npu.fleet.npu_package")
        loader = mock.MagicMock()
        loader.path_dwim = lambda path: path
        self.connection = mock.MagicMock()
        action = npu_package.ActionModule(task, self.connection, mock.MagicMock(), loader, None, None)
        with (
            mock.patch.object(action, "_execute_module", self.execute),
            mock.patch.object(action, "_transfer_file", lambda path, target: self.sent.append(path) or target),
            mock.patch.object(npu_package.display, "display", self.shown.append),
        ):
            return action.run(task_vars={"inventory_hostname": "n1"})


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A call of the node takes five seconds, and sleeping takes no time of ours."""
    monkeypatch.setattr(npu_package.time, "monotonic", lambda: NOW[0])
    monkeypatch.setattr(npu_package.time, "sleep", pass_by)


NOW = [1000.0]


def pass_by(seconds):
    NOW[0] += seconds


def test_nothing_to_do_is_one_call():
    node = Node(NOTHING)
    assert node.run()["changed"] is False
    assert len(node.calls) == 1
    assert "attach" not in node.calls[0] and "staged" not in node.calls[0]


def test_a_long_run_is_asked_for_until_it_has_ended():
    node = Node(RUNNING, ATTACHED, DONE)
    result = node.run(timeout=600)
    assert [call.get("attach") for call in node.calls] == [None, LOG["path"], LOG["path"]]
    assert node.calls[0]["timeout"] > node.calls[1]["timeout"] > node.calls[2]["timeout"]
    assert (result["before"], result["after"], result["step"], result["running"]) == (BEFORE, AFTER, INSTALL, False)
    assert (result["changed"], result["created"], result["attached"]) == (True, ["user x"], False)
    assert node.shown == [
        "n1: driver 25.5.0: 10 % after 2 s", "n1: driver 25.5.0: 40 % after 60 s", "n1: driver 25.5.0: 100 % after 90 s",
    ]  # fmt: skip


def test_a_short_run_is_not_commented():
    node = Node(dict(DONE, attached=False))
    node.run()
    assert node.shown == []


@pytest.mark.parametrize("answers", [(RUNNING, BROKEN, BROKEN, DONE), (BROKEN, RUNNING, DONE), (RUNNING, ATTACHED, BROKEN, DONE)])
def test_a_connection_that_breaks_is_made_anew(answers):
    node = Node(*answers)
    assert node.run(timeout=600)["after"] == AFTER
    assert node.connection.reset.called
    assert len(node.calls) == len(answers)


def test_the_end_came_while_the_connection_was_broken():
    """The module of the broken call has seen the end and taken the unit away; the next one finds the version there."""
    node = Node(RUNNING, BROKEN, dict(NOTHING, log=None))
    result = node.run(timeout=600)
    assert (result["changed"], result["before"], result["after"], result["log"]) == (True, BEFORE, AFTER, LOG)


def test_a_node_that_never_answers_is_unreachable_soon():
    node = Node(*[BROKEN] * 100)
    with pytest.raises(AnsibleConnectionFailure):
        node.run(timeout=3600)
    assert 3 < len(node.calls) < 10


def test_a_node_that_stays_away_in_the_middle_is_waited_for_until_the_time_is_up():
    node = Node(RUNNING, *[BROKEN] * 1000)
    with pytest.raises(AnsibleConnectionFailure):
        node.run(timeout=300)
    assert 25 < len(node.calls) < 35


def test_when_the_time_is_up_the_module_ends_it():
    ended = {"failed": True, "msg": "did not end in time", "error": {"code": "deadline"}, "changed": True}
    node = Node(*[RUNNING] * 100)
    assert node.run(timeout=20)["running"]
    assert [call["timeout"] for call in node.calls] == [20, 15, 10, 5, 1]
    node = Node(RUNNING, ended)
    assert node.run(timeout=3)["error"]["code"] == "deadline"


def test_a_failure_in_the_middle_is_the_result():
    failed = {"failed": True, "msg": "x", "error": {"code": "package_failed"}, "changed": True, "attached": True, "before": BEFORE}
    result = Node(RUNNING, failed).run(timeout=600)
    assert (result["failed"], result["error"]["code"]) == (True, "package_failed")


def test_another_run_is_waited_for_and_another_component_is_not():
    node = Node(LOCKED, LOCKED, NOTHING)
    assert not node.run(timeout=600).get("failed")
    assert len(node.calls) == 3
    other = dict(LOCKED, error={"code": "busy", "object": "npu-fleet-firmware"})
    node = Node(other)
    assert node.run(timeout=600)["failed"]
    assert Node(*[LOCKED] * 50).run(timeout=20)["failed"]


def test_no_poll_is_one_call():
    node = Node(RUNNING)
    assert node.run(poll=0)["running"]
    assert node.calls[0]["poll"] == 0


@pytest.fixture
def package(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(b"x")
    return str(path)


def test_a_file_of_the_controller_goes_only_where_it_is_needed(package):
    node = Node(NOTHING)
    node.run(src=package, remote_src=False)
    assert (len(node.calls), node.sent) == (1, [])
    node = Node(NEEDED, LOCKED, RUNNING, DONE)
    result = node.run(src=package, remote_src=False)
    assert node.sent == [package]
    staged = [call.get("staged") for call in node.calls]
    assert staged[0] is None and staged[1] == staged[2] is not None and staged[3] is None
    assert staged[1].startswith("/var/tmp/npu-fleet-")
    assert (result["before"], result["after"], result["step"]) == (BEFORE, AFTER, INSTALL)
    assert not result.get("file_needed")


def test_the_state_before_is_known_although_the_call_that_began_was_lost(package):
    node = Node(NEEDED, BROKEN, dict(DONE, step={"action": "none"}))
    assert (node.run(src=package, remote_src=False)["before"], node.sent) == (BEFORE, [package])


def test_check_mode_sends_nothing(package):
    node = Node(dict(NEEDED, changed=True))
    assert node.run(check=True, src=package, remote_src=False)["changed"]
    assert node.sent == []


@pytest.mark.parametrize(("src", "code"), [("/nonexistent/" + NAME, "package_missing"), ("https://h/" + NAME, "src_invalid")])
def test_no_such_file_on_the_controller(src, code):
    result = Node(NEEDED).run(src=src, remote_src=False)
    assert (result["failed"], result["error"]["code"]) == (True, code)
