# SPDX-License-Identifier: GPL-3.0-or-later
"""From facts to labels, and from a Node to its patch: tables."""

import copy

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _labels
from ansible_collections.npu.fleet.plugins.module_utils._kube_node import _broken_key, _broken_value

A2 = {
    "backend": "ascend", "present": True, "ready": True, "families": ["a2"], "chips": 8, "healthy": 8, "chip_names": ["910B3"],
    "products": ["Atlas 800T A2"], "driver_version": "25.5.0", "firmware_version": "7.8.0.5.216", "cann_version": "8.5.0", "aicores": 20,
    "memory_mib": 65536, "link": "hccs", "serial_hash": "0123456789ab", "arch": "aarch64", "stack": None,
}
A2_LABELS = {
    "npu.fleet/backend": "ascend", "npu.fleet/family": "a2", "npu.fleet/product": "Atlas-800T-A2", "npu.fleet/chips": "8",
    "npu.fleet/driver-version": "25.5.0", "npu.fleet/firmware-version": "7.8.0.5.216", "npu.fleet/cann-version": "8.5.0",
    "npu.fleet/link": "hccs", "npu.fleet/serial-hash": "0123456789ab", "npu.fleet/ready": "true",
    "node.kubernetes.io/npu.chip.name": "910B3", "accelerator": "huawei-Ascend910", "huawei.com/driver.version": "25.5.0",
    "mind-cluster/npu-chip-memory": "64G", "servertype": "Ascend910B-20", "host-arch": "huawei-arm",
}
UNKNOWN = dict.fromkeys(A2, None)
RK3588 = {
    **UNKNOWN, "backend": "rockchip", "present": True, "ready": True, "families": ["rk3588"], "chips": 1, "aicores": 3,
    "products": ["Radxa ROCK 5B"], "driver_version": "0.9.8", "link": "none", "stack": "rknpu-drm", "arch": "aarch64",
}


def test_all_that_is_known_of_an_ascend_node():
    assert _labels.labels_of(A2) == A2_LABELS


def test_all_that_is_known_of_a_rockchip_board():
    assert _labels.labels_of(RK3588) == {
        "npu.fleet/backend": "rockchip", "npu.fleet/family": "rk3588", "npu.fleet/product": "Radxa-ROCK-5B", "npu.fleet/chips": "1",
        "npu.fleet/driver-version": "0.9.8", "npu.fleet/link": "none", "npu.fleet/soc": "rk3588", "npu.fleet/cores": "3",
        "npu.fleet/stack": "rknpu-drm", "npu.fleet/ready": "true",
    }


@pytest.mark.parametrize("key", sorted(A2))
def test_what_is_not_known_gives_no_label_and_takes_no_other_one(key):
    """Each fact alone, and its own labels only."""
    gone = {
        "families": {"npu.fleet/family", "accelerator", "servertype", "mind-cluster/npu-chip-memory", "host-arch"},
        "backend": {"npu.fleet/backend"}, "chips": {"npu.fleet/chips"}, "chip_names": {"node.kubernetes.io/npu.chip.name"},
        "products": {"npu.fleet/product"}, "driver_version": {"npu.fleet/driver-version", "huawei.com/driver.version"},
        "firmware_version": {"npu.fleet/firmware-version"}, "cann_version": {"npu.fleet/cann-version"}, "aicores": {"servertype"},
        "memory_mib": {"mind-cluster/npu-chip-memory"}, "link": {"npu.fleet/link"}, "serial_hash": {"npu.fleet/serial-hash"},
        "arch": {"host-arch"}, "ready": {"npu.fleet/ready"},
    }.get(key, set())
    assert _labels.labels_of({**A2, key: None}) == {name: value for name, value in A2_LABELS.items() if name not in gone}
    without = {name: value for name, value in A2.items() if name != key}
    assert _labels.labels_of(without) == _labels.labels_of({**A2, key: None})


@pytest.mark.parametrize("facts", [
    UNKNOWN, {}, {**A2, "present": False}, {**UNKNOWN, "families": [], "chip_names": [], "products": []}])
def test_nothing_known_or_nothing_there_gives_no_label(facts):
    assert _labels.labels_of(facts) == {}


@pytest.mark.parametrize(("change", "key", "value"), [
    ({"families": ["310"]}, "accelerator", "huawei-Ascend310"),
    ({"families": ["310p"]}, "accelerator", "huawei-Ascend310P"),
    ({"families": ["910"]}, "accelerator", "huawei-Ascend910"),
    ({"families": ["a3"]}, "accelerator", "huawei-Ascend910"),
    ({"families": ["a5"]}, "accelerator", "huawei-npu"),
    ({"families": ["310b"]}, "accelerator", None),
    ({"families": ["310b"]}, "npu.fleet/family", "310b"),
    ({"families": ["a2", "310p"]}, "accelerator", None),
    ({"families": ["a2", "310p"]}, "npu.fleet/family", None),
    ({"families": ["310p"], "aicores": 8}, "servertype", "Ascend310P-8"),
    ({"families": ["910"], "aicores": 32}, "servertype", "Ascend910-32"),
    ({"families": ["a3"]}, "servertype", None),
    ({"families": ["310b"], "aicores": 1}, "servertype", None),
    ({"families": ["310p"]}, "mind-cluster/npu-chip-memory", None),
    ({"memory_mib": 32768}, "mind-cluster/npu-chip-memory", "32G"),
    ({"products": ["Atlas 300I Duo"]}, "infer-card-type", "card-300i-duo"),
    ({"products": ["Atlas 300I Pro / 300V / 300V Pro"]}, "infer-card-type", None),
    ({"products": ["Atlas 300I Pro / 300V / 300V Pro"]}, "npu.fleet/product", "Atlas-300I-Pro-300V-300V-Pro"),
    ({"products": ["Atlas 300I A2"]}, "accelerator-type", "card-910b-infer"),
    ({"products": ["Atlas 800T A2"]}, "accelerator-type", None),
    ({"products": ["Atlas 300I Duo", "Atlas 300I A2"]}, "npu.fleet/product", None),
    ({"chip_names": ["910B3", "910B4"]}, "node.kubernetes.io/npu.chip.name", None),
    ({"arch": "x86_64"}, "host-arch", "huawei-x86"),
    ({"arch": "riscv64"}, "host-arch", None),
    ({"ready": False}, "npu.fleet/ready", "false"),
])
def test_values(change, key, value):
    assert _labels.labels_of({**A2, **change}).get(key) == value


@pytest.mark.parametrize(("text", "value"), [
    ("25.5.0", "25.5.0"), (8, "8"), ("a / b", "a-b"), (" (x) ", "x"), ("-._", None), ("", None), (None, None), ("名前", None),
    ("x" * 70, "x" * 63), ("x" * 62 + "-y", "x" * 62), ("24.1.rc1", "24.1.rc1"), ("a\nb", "a-b"), ("v1,x=2", "v1-x-2"),
])
def test_a_value_is_legal_and_fits_the_record(text, value):
    assert _labels.value_of(text) == value
    assert not _broken_value(value or "")
    assert _labels.read_record(_labels.write_record({"k": value or "y"})) == {"k": value or "y"}


def test_every_key_is_legal_and_stands_once():
    keys = [key for key, _value in _labels.LABELS]
    assert len(set(keys)) == len(keys) and not any(map(_broken_key, [*keys, _labels.RECORD, _labels.TAINT]))
    assert set(_labels.SHARED) <= set(keys) and set(_labels.OWN) <= set(keys)


@pytest.mark.parametrize("serials", [[], [None], ["1", None], ["1", ""], ["1", "N/A"], ["0000"], ["ffff"], [" To be filled by O.E.M. "]])
def test_serial_numbers_that_are_not_all_known_have_no_hash(serials):
    assert _labels.serial_hash(serials) is None


def test_the_hash_of_serial_numbers_shows_none_and_knows_no_order():
    made = _labels.serial_hash(["SERIALCANARY1", "SERIALCANARY2", "SERIALCANARY1"])
    assert made == _labels.serial_hash(["SERIALCANARY2", " SERIALCANARY1"]) != _labels.serial_hash(["SERIALCANARY1"])
    assert len(made) == 12 and "CANARY" not in made


@pytest.mark.parametrize(("families", "products", "chips", "link"), [
    (["a2"], ["Atlas 800T A2"], 8, "hccs"), (["a3"], ["Atlas 900 A3 Pod"], 16, "hccs"), (["a2"], ["Atlas 300T A2"], 8, "pcie"),
    (["310p"], [], 4, "pcie"), (["310b"], None, 1, "none"), (["a2"], [], 8, None), (["910"], ["Atlas 800 (Model 9000)"], 8, "hccs"),
    (["a2", "310p"], ["Atlas 800T A2"], 8, None), ([], [], 8, None), (["a2"], ["Atlas 800T A2"], 0, None),
    (["a2"], ["Atlas 800T A2", "Atlas 300I A2"], 8, None),
])
def test_links(families, products, chips, link):
    assert _labels.link_of(families, products, chips) == link


@pytest.mark.parametrize(("have", "record", "wanted", "result"), [
    ({}, {}, {"a": "1"}, ({"a": "1"}, {"a": "1"}, {})),
    ({"a": "1"}, {"a": "1"}, {"a": "1"}, ({}, {"a": "1"}, {})),
    # It was there before we came: not ours.
    ({"a": "1"}, {}, {"a": "1"}, ({}, {}, {})),
    # Nor is it where somebody else has made it right after us.
    ({"a": "1"}, {"a": "2"}, {"a": "1"}, ({}, {}, {})),
    ({"s": "1"}, {"s": "2"}, {"s": "1"}, ({}, {}, {})),
    # A wrong one is corrected, whoever wrote it.
    ({"a": "2"}, {}, {"a": "1"}, ({"a": "1"}, {"a": "1"}, {})),
    ({"a": "2"}, {"a": "1"}, {"a": "1"}, ({"a": "1"}, {"a": "1"}, {})),
    # What is not wanted any more goes while it has our value.
    ({"a": "1", "z": "1"}, {"a": "1"}, {}, ({"a": None}, {}, {})),
    ({"a": "2"}, {"a": "1"}, {}, ({}, {}, {})),
    ({}, {"a": "1"}, {}, ({}, {}, {})),
    # Shared ones: only where nobody else has set them.
    ({}, {}, {"s": "1"}, ({"s": "1"}, {"s": "1"}, {})),
    ({"s": "2"}, {}, {"s": "1"}, ({}, {}, {"s": "2"})),
    ({"s": "1"}, {"s": "1"}, {"s": "2"}, ({"s": "2"}, {"s": "2"}, {})),
    ({"s": "3"}, {"s": "1"}, {"s": "2"}, ({}, {}, {"s": "3"})),
    # Ours by name.
    ({"d": "x"}, {}, {}, ({"d": None}, {}, {})),
])
def test_decide(have, record, wanted, result):
    assert _labels.decide(have, record, wanted, shared=("s",), drop=("d",)) == result


FOREIGN = {"key": "other", "value": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
OURS = {"key": "npu.fleet/not-ready", "value": "agent", "effect": "NoSchedule"}
SITE = {**OURS, "value": "site"}
ELSE = {**OURS, "effect": "NoExecute"}


@pytest.mark.parametrize(("taints", "put", "result"), [
    ([], True, [OURS]), ([FOREIGN], True, [FOREIGN, OURS]), ([OURS, FOREIGN], True, None), ([SITE], True, None), ([], None, None),
    ([FOREIGN, OURS, ELSE], False, [FOREIGN, ELSE]), ([SITE, FOREIGN], False, None), ([], False, None), ([OURS], None, None),
    ([ELSE], True, [ELSE, OURS]), ([{"key": "npu.fleet/not-ready", "effect": "NoSchedule"}], False, None),
])
def test_taints(taints, put, result):
    before = copy.deepcopy(taints)
    assert _labels.decide_taint(taints, put) == result
    assert taints == before


def node(labels=None, annotations=None, taints=None):
    return {"metadata": {"resourceVersion": "7", "labels": labels, "annotations": annotations}, "spec": {"taints": taints}}


def applied(have, patch):
    """What the server makes of it."""
    made = copy.deepcopy(have)
    for what in ("labels", "annotations"):
        new = {**(made["metadata"][what] or {}), **patch.get("metadata", {}).get(what, {})}
        made["metadata"][what] = {key: value for key, value in new.items() if value is not None}
    made["spec"].update(patch.get("spec", {}))
    return made


def test_a_patch_is_a_function_of_the_state_and_the_second_one_is_none():
    have = node({"rack": "r7", "accelerator": "huawei-Ascend310", "accelerator-type": "module"}, {"a": "b"}, [FOREIGN])
    wanted = _labels.labels_of({**A2, "products": ["Atlas 300I A2"]})
    patch, others = _labels.patch_of(have, wanted, True)
    assert others == {"accelerator-type": "module"} and patch["metadata"]["resourceVersion"] == "7"
    after = applied(have, patch)
    assert after["metadata"]["labels"] == {**wanted, "rack": "r7", "accelerator-type": "module"}
    assert after["spec"]["taints"] == [FOREIGN, OURS]
    assert _labels.patch_of(after, wanted, True) == (None, others)
    patch, _others = _labels.patch_of(after, None, False, remove=True)
    assert applied(after, patch) == node({"rack": "r7", "accelerator-type": "module"}, {"a": "b"}, [FOREIGN])
    assert "resourceVersion" not in _labels.patch_of(have, wanted, None)[0]["metadata"]


def test_other_keys_and_what_is_noted_of_them_stay_where_only_some_are_looked_at():
    have = node({"a": "1", "servertype": "soc", "npu.fleet/family": "a2"}, {_labels.RECORD: "npu.fleet/family=a2,servertype=Ascend910B-20"})
    patch, _others = _labels.patch_of(have, {"npu.fleet/ready": "false"}, None, only=("npu.fleet/ready",))
    assert patch["metadata"]["labels"] == {"npu.fleet/ready": "false"}
    assert applied(have, patch)["metadata"]["annotations"] == {
        _labels.RECORD: "npu.fleet/family=a2,npu.fleet/ready=false,servertype=Ascend910B-20"}
    assert _labels.patch_of(applied(have, patch), {"npu.fleet/ready": "false"}, None, only=("npu.fleet/ready",))[0] is None


def test_keys_to_be_left_alone_are():
    have = node({"accelerator": "mine", "npu.fleet/link": "x"})
    patch, _others = _labels.patch_of(have, A2_LABELS, None, keep=("accelerator", "npu.fleet/link"))
    assert not {"accelerator", "npu.fleet/link"} & set(patch["metadata"]["labels"])
    assert _labels.patch_of(have, None, None, keep=("npu.fleet/link",), remove=True)[0] is None
