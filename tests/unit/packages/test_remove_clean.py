# SPDX-License-Identifier: GPL-3.0-or-later
"""The last step of a removal: our folders, and users that are known to be made by us."""

from collections import namedtuple

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _device_group
from ansible_collections.npu.fleet.plugins.module_utils._packages import _clean, _journal

Result = namedtuple("Result", "rc stderr")


class Accounts:
    """Users with homes below a folder; the group goes with its user, as userdel(8) does it for a private group."""

    def __init__(self, folder, *names):
        self.homes = {name: str(folder / name) for name in names}
        self.groups = set(names)
        self.calls = []

    def home(self, name):
        return self.homes.get(name)

    def group(self, name):
        return name if name in self.groups else None

    def run(self, words, _seconds):
        self.calls.append(words)
        if words[0] == "userdel":
            self.homes.pop(words[-1])
        self.groups.discard(words[-1])
        return Result(0, "")


@pytest.fixture
def node(tmp_path):
    root = tmp_path / "root"
    for path in ("/var/lib/npu-fleet", "/var/cache/npu-fleet/x", "/var/log/npu-fleet", "/usr/local/Ascend/nnal/atb", "/etc/npu-fleet"):
        (root / path[1:]).mkdir(parents=True)
    (root / "etc/hccn.conf").write_text("address_0=10.0.0.1\n")
    return root


def note_created(node, *created):
    _journal.note(str(node / "var/lib/npu-fleet"), "launched", component="driver", created=list(created))


def test_our_folders_and_empty_ones_go_and_logs_and_settings_stay(node, tmp_path):
    accounts = Accounts(tmp_path)
    (node / "usr/local/Ascend/tool").write_text("the admin's\n")
    found = _clean.todo(str(node), accounts)
    assert "/usr/local/Ascend" not in found[0]
    assert "/usr/local/Ascend/nnal" in found[0]
    assert _clean.remove(str(node), found, accounts, accounts.run) == []
    assert not (node / "var/lib/npu-fleet").exists()
    assert not (node / "var/cache/npu-fleet").exists()
    assert not (node / "usr/local/Ascend/nnal").exists()
    assert (node / "usr/local/Ascend/tool").exists()
    assert _clean.stays(str(node)) == ["/var/log/npu-fleet", "/etc/hccn.conf"]
    assert _clean.todo(str(node), accounts) == ([], [], [])


def test_a_user_goes_only_when_it_was_made_here(node, tmp_path):
    accounts = Accounts(tmp_path, "HwHiAiUser")
    (tmp_path / "HwHiAiUser").mkdir()
    assert _clean.todo(str(node), accounts)[1:] == ([], [])
    note_created(node, "group HwHiAiUser", "user HwHiAiUser")
    found = _clean.todo(str(node), accounts)
    assert found[1:] == (["HwHiAiUser"], ["HwHiAiUser"])
    assert _clean.remove(str(node), found, accounts, accounts.run) == []
    assert accounts.calls == [["userdel", "--remove", "HwHiAiUser"]]


def test_a_home_with_files_of_somebody_stays(node, tmp_path):
    accounts = Accounts(tmp_path, "HwHiAiUser")
    (tmp_path / "HwHiAiUser").mkdir()
    (tmp_path / "HwHiAiUser/models").write_text("x")
    note_created(node, "user HwHiAiUser")
    left = _clean.remove(str(node), _clean.todo(str(node), accounts), accounts, accounts.run)
    assert accounts.calls == [["userdel", "HwHiAiUser"]]
    assert left == [f"{tmp_path}/HwHiAiUser: there are files of somebody in it"]


def test_a_group_that_was_made_for_an_existing_user_goes_alone(node, tmp_path):
    accounts = Accounts(tmp_path, "svc")
    accounts.groups.add("npu")
    note_created(node, "group npu")
    _clean.remove(str(node), _clean.todo(str(node), accounts), accounts, accounts.run)
    assert accounts.calls == [["groupdel", "npu"]]
    assert accounts.home("svc")


def test_what_can_not_be_removed_is_told(node, tmp_path):
    accounts = Accounts(tmp_path, "HwHiAiUser")
    note_created(node, "user HwHiAiUser")
    left = _clean.remove(str(node), _clean.todo(str(node), accounts), accounts, lambda words, seconds: Result(8, "user is logged in"))
    assert left == ["user HwHiAiUser: user is logged in"]


def test_our_rule_of_device_nodes_goes_and_those_of_others_stay(node, tmp_path):
    rules = node / "etc/udev/rules.d"
    rules.mkdir(parents=True)
    (rules / "70-npu-fleet-rknpu.rules").write_text(_device_group.rule(990))
    (rules / "99-mine.rules").write_text("x\n")
    accounts = Accounts(tmp_path)
    found = _clean.todo(str(node), accounts)
    assert "/etc/udev/rules.d/70-npu-fleet-rknpu.rules" in found[0]
    assert _clean.remove(str(node), found, accounts, accounts.run) == []
    assert [path.name for path in rules.iterdir()] == ["99-mine.rules"]
