# SPDX-License-Identifier: GPL-3.0-or-later
"""The backend ascend as the rest of the agent asks it. What it answers in full stands in the tests of allocate, look, cdi and mounts."""

from types import SimpleNamespace

import boards
import pytest
from agent_rig import make_node
from backend_rig import Bench
from node_rig import record

from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES


@pytest.fixture
def backend(package):
    from npu_agent import backends

    return backends.by_name("ascend")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_records_are_called_by_their_family(backend, family):
    one = record(3, family=family)
    assert backend.resource(one) == FAMILIES[family]["resource"]
    assert backend.natural(one) == f"{backend.prefix(one)}3" == FAMILIES[family]["device_prefix"] + "3"
    assert backend.ids(None).fullmatch(backend.natural(one)).groups() == (backend.prefix(one), None, "3", None)


def test_what_shares_need(backend):
    assert backend.sharing("310p") == backend.sharing("310b") == ""
    assert "npu-smi set -t device-share" in backend.sharing("a2")


def test_which_names_make_a_look_due(backend, tmp_path):
    ((folder, pattern),) = backend.places(SimpleNamespace(dev_root=str(tmp_path)))
    names = ("davinci0", "vdavinci100", "davinci_manager", "davinci_manager_docker", "davincix", "rknpu", "dri")
    assert folder == str(tmp_path) and [name for name in names if pattern.match(name)] == list(names[:4])
    assert backend.uevents.search(b"\0DEVNAME=davinci3\0") and not backend.uevents.search(b"\0DEVNAME=dri/card1\0")


def test_chips_come_in_the_order_of_their_numbers(backend, tmp_path):
    for name in ("davinci1", "davinci10", "davinci_manager"):
        make_node(tmp_path / name)
    settings = SimpleNamespace(dev_root=str(tmp_path), allocate_mode="both", allocate_by="nodes", allocate_mounts="never")
    given = backend.give([boards.chip(10), boards.chip(1)], settings)
    assert given["envs"] == {"ASCEND_VISIBLE_DEVICES": "1,10"}
    assert [inside for _host, inside in given["devices"]] == ["/dev/davinci1", "/dev/davinci10", "/dev/davinci_manager"]


@pytest.mark.parametrize(("names", "wanted", "found"), [
    ((), "auto", "ascend"), (("davinci0",), "auto", "ascend"), ((), "rockchip", "rockchip"), (("davinci0",), "rockchip", "rockchip"),
])
def test_which_backend(package, tmp_path, names, wanted, found):
    (tmp_path / "dev").mkdir()
    for name in names:
        make_node(tmp_path / "dev" / name)
    assert Bench(tmp_path, backend=wanted).backend.name == found


def test_each_backend_answers_the_whole_interface(package):
    from npu_agent import backends
    from npu_agent.backends.base import Backend

    for name in backends.NAMES:
        one = backends.by_name(name)
        assert one.name == name and isinstance(one, Backend)
        for method in ("looker", "places", "ids", "give"):
            assert getattr(type(one), method) is not getattr(Backend, method), f"{name} has no {method}"
