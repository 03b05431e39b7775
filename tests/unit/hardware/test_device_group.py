# SPDX-License-Identifier: GPL-3.0-or-later
"""The udev rule that gives a Rockchip NPU's nodes to one group."""

from collections import namedtuple

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _device_group
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _clean

Result = namedtuple("Result", "rc stderr timed_out")
RULE = """\
# Written by npu.fleet: npu_driver_device_group.
SUBSYSTEM=="drm", KERNEL=="card[0-9]*|renderD[0-9]*", DRIVERS=="RKNPU", GROUP="990", MODE="0660"
SUBSYSTEM=="misc", KERNEL=="rknpu", GROUP="990", MODE="0660"
SUBSYSTEM=="accel", KERNEL=="accel[0-9]*", KERNELS=="rknn*|*.npu", GROUP="990", MODE="0660"
"""


class Udev:
    def __init__(self, rc=0, error=None):
        self.rc, self.error, self.asked, self.words = rc, error, [], []

    def __call__(self, argv, timeout):
        self.asked.append(argv[1])
        self.words += argv[2:]
        if self.error:
            raise self.error
        return Result(self.rc, "Failed to send reload request: No such file or directory" if self.rc else "", False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "etc/udev/rules.d/70-npu-fleet-rknpu.rules"


def bring(tmp_path, group, udev=None, **more):
    return _device_group.bring(group, str(tmp_path), udev or Udev(), **{"names": lambda: ["card1", "renderD129"], **more})


def test_it_comes_changes_and_goes_and_stays_when_it_is_right(tmp_path, path):
    udev = Udev()
    assert _device_group.group_of(str(tmp_path)) == 0
    assert bring(tmp_path, 990, udev) == (True, None, [])
    assert path.read_text() == RULE
    assert udev.asked == ["control", "trigger", "settle"]
    assert (path.stat().st_mode & 0o777, _device_group.group_of(str(tmp_path))) == (0o644, 990)
    assert bring(tmp_path, 990, udev)[0] is False and len(udev.asked) == 3
    assert bring(tmp_path, 991)[0] is True and _device_group.group_of(str(tmp_path)) == 991
    assert bring(tmp_path, 0)[0] is True and not path.exists()
    assert bring(tmp_path, 0)[0] is False


def test_check_mode_changes_nothing(tmp_path, path):
    udev = Udev()
    assert bring(tmp_path, 990, udev, check_mode=True)[0] is True
    assert not path.exists() and udev.asked == []


def test_a_rule_that_was_changed_by_hand_is_seen_and_made_right(tmp_path, path):
    bring(tmp_path, 990)
    path.write_text(RULE.replace("0660", "0666"))
    assert _device_group.group_of(str(tmp_path)) is None
    assert bring(tmp_path, 990)[0] is True
    assert path.read_text() == RULE


def test_a_rule_that_was_changed_by_hand_is_left_where_none_is_wanted(tmp_path, path):
    bring(tmp_path, 990)
    path.write_text(RULE + 'KERNEL=="rga", GROUP="990"\n')
    udev = Udev()
    changed, _before, [warning] = bring(tmp_path, 0, udev)
    assert not changed and udev.asked == [] and "was changed by hand, so it stays" in warning
    assert path.read_text().endswith('KERNEL=="rga", GROUP="990"\n')
    found = _clean.todo(str(tmp_path), None)
    assert _device_group.RULE not in found[0] and _device_group.RULE in _clean.stays(str(tmp_path))
    path.write_text(RULE)
    assert _device_group.RULE in _clean.todo(str(tmp_path), None)[0] and _device_group.RULE not in _clean.stays(str(tmp_path))


def test_udev_looks_at_the_nodes_of_the_npu_only(tmp_path):
    udev = Udev()
    bring(tmp_path, 990, udev)
    assert [word for word in udev.words if "sysname" in word] == ["--sysname-match=card1", "--sysname-match=renderD129"]
    assert [word for word in udev.words if "subsystem" in word] == [f"--subsystem-match={name}" for name in ("drm", "misc", "accel")]
    udev = Udev()
    bring(tmp_path, 991, udev, names=list)  # without a name it would be told of all
    assert udev.asked == ["control"]


def test_rules_of_others_stay(tmp_path, path):
    path.parent.mkdir(parents=True)
    (path.parent / "99-mine.rules").write_text('KERNEL=="rknpu", MODE="0666"\n')
    bring(tmp_path, 990)
    bring(tmp_path, 0)
    assert [one.name for one in path.parent.iterdir()] == ["99-mine.rules"]


@pytest.mark.parametrize("udev", [Udev(rc=1), Udev(error=FleetError("The command udevadm was not found.", "command_missing"))])
def test_without_a_udev_that_runs_the_rule_is_for_the_next_boot(tmp_path, path, udev):
    changed, _before, [warning] = bring(tmp_path, 990, udev)
    assert changed and path.read_text() == RULE
    assert "at the next boot" in warning and udev.asked == ["control"]


@pytest.mark.parametrize("group", [-1, 65535, 2**32 - 1, 2**40])
def test_what_is_no_number_of_a_group(tmp_path, path, group):
    with pytest.raises(FleetError, match="no number of a group"):
        bring(tmp_path, group)
    assert not path.exists()
