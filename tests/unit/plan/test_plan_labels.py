# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels from what npu_info tells."""

import json

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _labels
from ansible_collections.npu.fleet.plugins.plugin_utils import _plan_labels

from .observed import bare, converged

SERIALS = [f"SERIALCANARY{number}" for number in range(8)]


def seen(**changes):
    npu = converged()
    for chip, serial in zip(npu["chips"], SERIALS, strict=True):
        chip["serial"] = serial
    return {**npu, "product": "Atlas 800T A2", "arch": "aarch64", "backend": "ascend", **changes}


def test_a_node_that_has_passed():
    assert _plan_labels.node_labels_of(seen()) == {
        "npu.fleet/backend": "ascend", "npu.fleet/family": "a2", "npu.fleet/product": "Atlas-800T-A2", "npu.fleet/chips": "8",
        "npu.fleet/driver-version": "25.5.0", "npu.fleet/firmware-version": "7.8.0.5.216", "npu.fleet/cann-version": "8.5.0",
        "npu.fleet/link": "hccs", "npu.fleet/serial-hash": _labels.serial_hash(SERIALS), "npu.fleet/ready": "true",
        "node.kubernetes.io/npu.chip.name": "910B3", "accelerator": "huawei-Ascend910", "huawei.com/driver.version": "25.5.0",
        "host-arch": "huawei-arm",
    }


def test_no_serial_number_is_in_a_label():
    assert "CANARY" not in json.dumps(_plan_labels.node_labels_of(seen()))


def test_a_node_before_its_first_run_shows_what_is_sure():
    labels = _plan_labels.node_labels_of({**bare(), "arch": "x86_64"}, ready=False)
    assert labels["npu.fleet/ready"] == "false" and labels["npu.fleet/family"] == "a2"
    assert not {"npu.fleet/driver-version", "huawei.com/driver.version", "npu.fleet/firmware-version"} & set(labels)


@pytest.mark.parametrize(("change", "gone"), [
    ({"name": "910B4"}, "node.kubernetes.io/npu.chip.name"), ({"name": None}, "node.kubernetes.io/npu.chip.name"),
    ({"serial": None}, "npu.fleet/serial-hash"),
])
def test_chips_that_differ_or_do_not_tell(change, gone):
    npu = seen()
    npu["chips"][0].update(change)
    assert set(_plan_labels.node_labels_of(seen())) - set(_plan_labels.node_labels_of(npu)) == {gone}


def test_a_node_without_npu_has_none_and_without_an_observation_ours_are_named():
    assert _plan_labels.node_labels_of(seen(present=False, chips=[], family=None)) == {}
    assert _plan_labels.node_labels_of(None) == dict.fromkeys(_labels.OWN, "")


def test_a_rockchip_board():
    chip = {"name": "RK3588", "family": "rk3588", "serial": None, "stack": "rknpu-drm", "cores": 3, "evidence": {"driver": "RKNPU"}}
    versions = {"driver": {"on_disk": None, "running": "0.9.8"}, "firmware": {"on_disk": None, "running": None}}
    labels = _plan_labels.node_labels_of(seen(
        backend="rockchip", family="rk3588", product="Radxa ROCK 5B", chips=[chip], versions=versions))
    assert labels == {
        "npu.fleet/backend": "rockchip", "npu.fleet/family": "rk3588", "npu.fleet/product": "Radxa-ROCK-5B", "npu.fleet/chips": "1",
        "npu.fleet/driver-version": "0.9.8", "npu.fleet/link": "none", "npu.fleet/soc": "rk3588", "npu.fleet/cores": "3",
        "npu.fleet/stack": "rknpu-drm", "npu.fleet/ready": "true",
    }


@pytest.mark.parametrize(("change", "gone"), [
    ({"evidence": {"driver": None}}, {"npu.fleet/stack"}), ({"cores": None}, {"npu.fleet/cores"}),
])
def test_what_is_not_known_of_a_board_gives_no_label(change, gone):
    """Without a driver its stack is a guess; "unknown" is no SoC."""
    board = {"backend": "rockchip", "family": "rk3588", "product": "a board"}
    chip = {"name": "RK3588", "family": "rk3588", "serial": None, "stack": "rknpu-drm", "cores": 3, "evidence": {"driver": "RKNPU"}}
    whole = _plan_labels.node_labels_of(seen(**board, chips=[chip]))
    assert set(whole) - set(_plan_labels.node_labels_of(seen(**board, chips=[{**chip, **change}]))) == gone
    assert set(whole) - set(_plan_labels.node_labels_of(seen(**{**board, "family": "unknown"}, chips=[chip]))) == {
        "npu.fleet/family", "npu.fleet/soc"}
