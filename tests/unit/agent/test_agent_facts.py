# SPDX-License-Identifier: GPL-3.0-or-later
"""What /node tells."""

import json
from types import SimpleNamespace

import backend_rig
import pytest
from agent_rig import until
from labels_rig import FACTS


@pytest.fixture
def facts(package, monkeypatch):
    """node_facts() of a service that is made up: records of chips, and what else counts."""
    from npu_agent import facts, status

    def made(records, *, backend="ascend", board=None, version=None, **report):
        report = {"ready": True, "state": "serving", "healthy": len(records), "total": len(records), "reasons": [], **report}
        monkeypatch.setattr(status, "ready_report", lambda _service: report)
        node = SimpleNamespace(backend=SimpleNamespace(name=backend), present=bool(records), settings=None,
                               seen={str(number): SimpleNamespace(record=record) for number, record in enumerate(records)})
        looker = SimpleNamespace(driver=SimpleNamespace(version=version and {"driver_version": version}))
        found = {"family": None, "product": None, "unknown": [], **(board or {})}
        service = SimpleNamespace(node=node, eyes=SimpleNamespace(looker=looker))
        return facts.node_facts(service, SimpleNamespace(of=lambda _settings, _backend: found))

    return made


CHIP = {"family": "a2", "name": "910B3", "aicore_count": 20.0, "serial": "SERIALCANARY", "health_code": 0}


def test_keys_are_those_that_labels_are_made_of(facts):
    told = facts([CHIP] * 8, board={"product": "Atlas 800T A2"}, version="25.5.0")
    assert set(told) == set(FACTS) and "SERIALCANARY" not in json.dumps(told)
    assert told.items() >= {
        "families": ["a2"], "chips": 8, "chip_names": ["910B3"], "driver_version": "25.5.0", "aicores": 20, "link": "hccs",
        "products": ["Atlas 800T A2"], "ready": True, "present": True}.items()


def test_a_driver_that_answers_for_no_chip_has_no_version_but_the_cards_stay(facts):
    lost = {**CHIP, "health_code": None}
    told = facts([lost] * 8, version="25.5.0", healthy=0)
    assert told["driver_version"] is None and told["families"] == ["a2"] and told["present"] is True and told["ready"] is False
    assert told["reasons"] == ["none of its chips may take work"]
    assert facts([lost, CHIP], version="25.5.0")["driver_version"] == "25.5.0"


def test_without_a_chip_the_bus_tells_the_family(facts):
    told = facts([], board={"family": "310p", "product": "Atlas 300I Duo"}, ready=False)
    assert told["families"] == ["310p"] and told["products"] == ["Atlas 300I Duo"] and told["chips"] is None and told["chip_names"] == []


def test_what_only_some_chips_tell_is_not_known(facts):
    told = facts([CHIP, {**CHIP, "name": None, "serial": None, "aicore_count": 24.0}])
    assert told["chip_names"] == [] and told["serial_hash"] is None and told["aicores"] is None


def test_a_driver_that_is_not_bound_has_no_version(facts):
    chip = {"family": "rk3588", "name": "RK3588", "driver_version": "0.9.8", "driver_bound": True, "cores": 3, "stack": "rknpu-drm"}
    assert facts([chip], backend="rockchip")["driver_version"] == "0.9.8"
    assert facts([{**chip, "driver_bound": None}], backend="rockchip")["driver_version"] is None
    assert facts([chip], backend="rockchip")["stack"] == "rknpu-drm"
    assert facts([{**chip, "driver_bound": False}], backend="rockchip")["stack"] is None  # a guess


def test_what_the_driver_prints_as_the_product_counts_where_the_board_tells_none(facts):
    """As from the controller, and only what is one."""
    records = [{**CHIP, "product_name": "0x1234"}, {**CHIP, "product_name": "Atlas 800T A2"}]
    assert facts(records)["products"] == ["Atlas 800T A2"] and facts(records[:1])["products"] == []
    assert facts(records, board={"product": "Atlas 900 A2"})["products"] == ["Atlas 900 A2"]


def test_a_family_is_told_where_every_chip_has_one(facts):
    """The same rule as from the controller."""
    assert facts([CHIP, {**CHIP, "family": None}])["families"] == []
    assert facts([CHIP], board={"unknown": [{"address": "0000:01:00.0"}]})["families"] == []
    assert facts([CHIP, {**CHIP, "family": "310p"}])["families"] == [] and facts([CHIP, CHIP])["families"] == ["a2"]


def test_the_board_is_not_read_each_time(package, monkeypatch):
    from npu_agent import facts

    calls, now = [], [0.0]
    monkeypatch.setattr(facts, "detect", lambda *_roots: calls.append(1) or {"family": None, "product": None, "unknown": []})
    board = facts.BoardFacts(lambda: now[0])
    settings = SimpleNamespace(sysfs_root="/x", dev_root="/y")
    for second in range(0, 120, 5):
        now[0] = float(second)
        board.of(settings, "ascend")
    assert len(calls) == 2


LABELS = {
    "ascend": {"npu.fleet/backend": "ascend", "npu.fleet/family": "a2", "npu.fleet/chips": "2", "accelerator": "huawei-Ascend910"},
    "rockchip": {"npu.fleet/backend": "rockchip", "npu.fleet/family": "rk3588", "npu.fleet/soc": "rk3588", "npu.fleet/stack": "rknpu-drm",
                 "npu.fleet/cores": "3", "npu.fleet/driver-version": "0.9.8", "npu.fleet/chips": "1", "npu.fleet/link": "none"},
    "paths": {"npu.fleet/backend": "paths", "npu.fleet/chips": "2"},
    "remote": {"npu.fleet/backend": "remote"},
}


@pytest.mark.parametrize("kind", backend_rig.WORLDS)
def test_what_a_real_service_tells_of_each_kind_of_device(kind, tmp_path_factory, package, library):
    from npu_agent._hardware import _labels

    world = backend_rig.WORLDS[kind](tmp_path_factory.mktemp("node"), package, library)
    try:
        world.rig.kubelet()
        agent = world.rig.agent()
        agent.await_state("serving")
        told = until(lambda: (facts := json.loads(agent.get("/node")[1]))["ready"] and facts, what="a node that is ready")
        labels = _labels.labels_of(told)
        assert set(told) == set(FACTS) and labels.items() >= {"npu.fleet/ready": "true", **LABELS[kind]}.items()
        assert kind == "ascend" or not any(not key.startswith("npu.fleet/") for key in labels)
    finally:
        world.close()
