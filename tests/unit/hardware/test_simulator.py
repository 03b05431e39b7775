# SPDX-License-Identifier: GPL-3.0-or-later
"""The detector against the simulator's libdcmi.so and npu-smi, which were written by others from the same facts."""

import select
import subprocess
import sys
import time

import pytest
from hardware_samples import TESTS

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._hardware._dcmi_child import Child
from ansible_collections.npu.fleet.plugins.module_utils._hardware._dcmi_client import DcmiClient
from ansible_collections.npu.fleet.plugins.module_utils._hardware._detect import detect

SIMULATOR = TESTS / "simulator"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulator")
    subprocess.run([sys.executable, str(SIMULATOR / "build.py"), "--out", str(folder)], check=True, capture_output=True, timeout=300)
    return folder / "payload" / "driver"


class Node:
    """A simulated machine with a loaded driver; its PCI tree is made by hand."""

    def __init__(self, built, tree, state, npu_sim):
        self.built, self.tree, self.state, self.npu_sim = built, tree, state, npu_sim

    def boot(self, product="a2", vendor=None, version="25.5.0"):
        data = self.npu_sim.initial(product, vendor=vendor)
        self.npu_sim.save(data, str(self.state))
        self.set(**{"kernel.driver_loaded": True, "kernel.driver_version": version})
        self.addresses = sorted({chip["pci_address"] for chip in data["chips"]})
        ids = {key: value.removeprefix("0x") for key, value in data["pci"].items()}
        sub = (ids["subsystem_vendor"], ids["subsystem_device"])
        for address in self.addresses:
            self.tree.function(address, ids["device"], sub, vendor=ids["vendor"], numa="0", driver="devdrv_device_driver")
        for chip in data["chips"]:
            self.tree.node(chip["phy_id"])
        return self

    def set(self, **pairs):
        self.npu_sim.set_values(pairs, str(self.state))

    def look(self, timeout=20, npu_smi=True, dcmi=True):
        with DcmiClient(str(self.built / "libdcmi.so"), timeout) as client:
            return detect(
                run, str(self.tree.sysfs), str(self.tree.dev), dcmi=client if dcmi else None,
                npu_smi=str(self.built / "npu-smi") if npu_smi else None, timeout=timeout, boards=True,
            )


@pytest.fixture
def machine(built, tree, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SIMULATOR / "hardware"))
    import npu_sim

    state = tmp_path / "state.json"
    monkeypatch.setenv("NPU_SIM_STATE", str(state))
    monkeypatch.setenv("NPU_SIM_INSTALL_INFO", str(tmp_path / "no-record"))
    return Node(built, tree, state, npu_sim)


@pytest.fixture
def node(machine):
    return machine.boot()


# Chips and functions: places of the chips in public captures (tests/simulator/hardware/sim_products.py names them).
@pytest.mark.parametrize(("hardware", "version", "family", "chips", "functions"), [
    (("a3", None), "25.5.0", "a3", 16, 16), (("a3", None), "26.0.rc1", "a3", 16, 16), (("310p", None), "25.5.0", "310p", 4, 4),
    (("310p-duo", None), "25.5.0", "310p", 8, 4), (("310b", None), "25.0.rc1.1", "310b", 1, 1), (("a2", None), "26.0.rc1", "a2", 8, 8),
    (("a2", "0x20c6"), "25.5.0", "a2", 8, 8), (("310p", "0x203f"), "25.5.0", "310p", 4, 4), (("310", None), "23.0.3", "310", 4, 4),
    (("910", None), "23.0.3", "910", 8, 8),
])
def test_each_product(machine, hardware, version, family, chips, functions):  # noqa: PLR0917
    node = machine.boot(*hardware, version)
    both, dcmi, smi = node.look(), node.look(npu_smi=False), node.look(dcmi=False)
    for found in (both, dcmi, smi):
        assert (found["query"]["ok"], found["family"], found["driver"]["version"]) == (True, family, version)
    assert len(node.addresses) == functions
    keys = ("logic_id", "phy_id", "card_id", "device_id", "pci_address", "name", "health", "device_node")
    tables = [[tuple(chip[key] for key in keys) for chip in found["chips"]] for found in (both, dcmi)]
    assert tables[0] == tables[1] and [row[0] for row in tables[0]] == list(range(chips)) and all(row[-1] for row in tables[0])
    assert [(chip["card_id"], chip["device_id"], chip["pci_address"]) for chip in smi["chips"]] == [row[2:5] for row in tables[0]]
    assert {chip["firmware_version"] for chip in both["chips"]} == {"7.3.0.1.231"}


def test_both_sources_agree(node):
    both, dcmi, smi = node.look(), node.look(npu_smi=False), node.look(dcmi=False)
    assert both["query"] == {"ok": True, "source": "dcmi,npu-smi", "error": None, "errors": []}
    assert (both["family"], both["driver"]) == ("a2", {"loaded": True, "version": "25.5.0"})
    keys = ("logic_id", "card_id", "device_id", "pci_address", "numa_node", "name", "health")
    tables = [[tuple(chip[key] for key in keys) for chip in found["chips"]] for found in (both, dcmi, smi)]
    assert tables[0] == tables[1] == tables[2]
    assert [chip[0] for chip in tables[0]] == list(range(8))
    assert sorted(chip["pci_address"] for chip in both["chips"]) == node.addresses
    assert all(chip["evidence"] == {"pci": True, "driver": "devdrv_device_driver", "device_node": True} for chip in both["chips"])
    assert {chip["firmware_version"] for chip in both["chips"]} == {"7.3.0.1.231"}


def test_a_fault_shows_in_health_and_codes(node):
    node.set(**{"chips.3.health": 3, "chips.3.error_codes": ["80E3A203"]})
    chip = node.look()["chips"][3]
    assert (chip["health"], chip["error_codes"]) == ("Critical", ["80E3A203"])
    assert node.look(dcmi=False)["chips"][3]["health"] == "Critical"


@pytest.mark.parametrize(("behaviour", "code"), [
    ("fail", "npu_smi_failed"), ("garbage", "npu_smi_unreadable"), ("hang", "npu_smi_timeout"),
])
def test_npu_smi_that_misbehaves(node, behaviour, code):
    node.set(**{"behaviour.npu_smi": behaviour})
    before = time.monotonic()
    found = node.look(timeout=5)
    assert time.monotonic() - before < 25
    assert (found["query"]["ok"], found["query"]["error"]["code"]) == (False, code)
    assert [chip["health"] for chip in found["chips"]] == ["OK"] * 8  # DCMI still answers


@pytest.mark.parametrize(("behaviour", "code"), [
    ("fail", "dcmi_failed"), ("hang", "dcmi_timeout"), ({"get_device_logic_id": "hang"}, "dcmi_timeout"),
    ({"get_card_list": -8005}, "dcmi_failed"),
])
def test_dcmi_that_misbehaves(node, behaviour, code):
    node.set(**{"behaviour.dcmi": behaviour})
    before = time.monotonic()
    found = node.look(timeout=3, npu_smi=False)
    assert time.monotonic() - before < 15
    assert (found["query"]["ok"], found["query"]["error"]["code"]) == (False, code)
    assert sorted(chip["pci_address"] for chip in found["chips"]) == node.addresses


def test_one_failing_function_costs_one_value(node):
    node.set(**{"behaviour.dcmi": {"get_device_health": -8006}})
    chips = node.look(npu_smi=False)["chips"]
    assert [chip["health"] for chip in chips] == [None] * 8
    assert {chip["error"]["name"] for chip in chips} == {"TIME_OUT"}
    assert [chip["logic_id"] for chip in chips] == list(range(8))


def test_a_card_off_the_bus_stays_in_the_list_while_its_function_is_there(node):
    lost = node.npu_sim.load(str(node.state))["chips"][5]["pci_address"]
    node.set(**{"chips.5.present": False})
    found = node.look()
    assert (len(found["chips"]), found["chips"][-1]["pci_address"], found["chips"][-1]["logic_id"]) == (8, lost, None)


def test_telemetry(node):
    node.set(**{"chips.2.power_w": 301.5, "chips.2.temperature_c": 77, "chips.2.aicore_percent": 98, "chips.2.hbm_used_mib": 60405})
    with DcmiClient(str(node.built / "libdcmi.so")) as client:
        chip = client.call("telemetry")[2]
    assert (chip["power_w"], chip["temperature_c"], chip["aicore_percent"], chip["hbm_used_mib"], chip["hbm_total_mib"]) == (
        301.5, 77, 98, 60405, 65536,
    )


def test_condition_and_slices(machine):
    node = machine.boot("310b")
    ecc = {"single": 3, "double": 1, "isolated_double": 1}
    node.set(**{"chips.0.aicore_total": 1.0, "chips.0.temperature_limit_c": 95, "chips.0.ecc": ecc})
    with DcmiClient(str(node.built / "libdcmi.so")) as client:
        (condition,), (slices,) = client.call("condition"), client.call("slices")
        assert (condition["temperature_c"], condition["temperature_limit_c"], condition["error"]) == (34, 95, None)
        assert condition["ecc"] == {"single": 3, "double": 1, "isolated": 1}
        assert (slices["aicore_count"], slices["slices"]) == (1.0, [])
        node.set(**{"chips.0.slices": [{"vdev_id": 100, "template": "vir01"}], "chips.0.dcmi": {"get_device_sensor_info": -8255}})
        assert client.call("slices")[0]["slices"] == [{"vdev_id": 100, "template": "vir01"}]
        assert (client.call("condition")[0]["temperature_limit_c"], client.call("condition")[0]["error"]) == (None, None)
        node.set(**{"chips.0.dcmi": {"get_device_info": -8006}})
        assert (client.call("slices")[0]["slices"], client.call("slices")[0]["error"]["name"]) == (None, "TIME_OUT")


@pytest.mark.parametrize("product", ["a2", "a5"])
def test_events_reach_the_caller_while_it_waits_for_an_answer(machine, product):
    node = machine.boot(product)
    child = Child(str(node.built / "libdcmi.so"))

    def next_line():
        while (line := child.line("test")) is None:
            assert not child.ended and select.select([child.output], [], [], 20)[0]
            child.read()  # its last words may come together with its end
        return line

    try:
        child.send({"id": 1, "cmd": "subscribe"})
        assert "ready" in next_line() and next_line() == {"id": 1, "result": {"subscribed": True, "why": None}}
        node.set(**{f"chips.{number}.dcmi": {"get_device_health": "hang"} for number in (1, 2)})
        child.send({"id": 2, "cmd": "health"})
        node.set(**{"chips.3.health": 2, "chips.3.error_codes": ["80E18005"]})
        event = next_line()["event"]
        assert event.pop("serial") > 0
        assert event == {"code": "80E18005", "logic_id": 3, "severity": 2, "assertion": "occur"}
        child.send({"cmd": "end"})  # and when the call comes back, it ends: the chips after it are not asked
        node.set(**{"chips.1.dcmi": {}})
        assert next_line() == {"ended": True} and child.reap(20)
    finally:
        child.kill()
        child.reap(20)
        child.close()
