# SPDX-License-Identifier: GPL-3.0-or-later
"""The state file: parallel setters, refusals, power cycles, and the npu-sim command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import module_tools
import npu_sim
import pytest

CLI = Path(npu_sim.__file__)


def cli(state, *words):
    done = subprocess.run(
        [sys.executable, str(CLI), "--state", str(state), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def module_files(root, version, names=("drv_pcie_host", "ascend_xsmem")):
    folder = root / "lib/modules" / os.uname().release / "updates"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.ko").write_text(f"npu-sim module {name} {version}\nrest\n")
    (folder / "foreign.ko").write_bytes(b"\x7fELF\xff")


def test_factory_state_is_a_server_without_driver():
    content = npu_sim.initial()
    npu_sim.validate(content)
    assert [chip["pci_address"] for chip in content["chips"]] == [
        f"0000:{bus}:00.0" for bus in ("c1", "c2", "81", "82", "01", "02", "41", "42")
    ]
    assert [chip["numa_node"] for chip in content["chips"]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert not content["kernel"]["driver_loaded"]
    with pytest.raises(npu_sim.StateError, match="0 to 8 chips"):
        npu_sim.initial(chips=9)


def test_serials_differ_between_nodes_and_stay(state):
    one, two = npu_sim.initial(), npu_sim.initial()
    npu_sim.personalise(one, "node1")
    npu_sim.personalise(two, "node2")
    serials = [chip["serial"] for content in (one, two) for chip in content["chips"]]
    assert len(set(serials)) == 16
    npu_sim.personalise(one, "node2")
    assert [chip["serial"] for chip in one["chips"]] == serials[:8]
    assert all(len(chip["vdie"]) == len(chip["ndie"]) == 5 for chip in one["chips"])


def test_parallel_setters_lose_nothing(state):
    npu_sim.set_values({"counter": 0}, state)
    code = (
        f"import sys; sys.path.insert(0, {str(CLI.parent)!r}); import npu_sim\n"
        f"for _ in range(20): npu_sim.update(lambda s: s.update(counter=s['counter'] + 1), {str(state)!r})"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(5)]
    for number in range(10):
        cli(state, "set", f"chips.{number % 8}.temperature_c", str(50 + number))
    assert [process.wait(60) for process in processes] == [0] * 5
    content = npu_sim.load(state)
    assert content["counter"] == 100
    assert content["generation"] == 111
    assert [chip["temperature_c"] for chip in content["chips"]] == [58, 59, 52, 53, 54, 55, 56, 57]
    assert [name for name in os.listdir(state.parent) if name.startswith(".state")] == []


def test_get_and_set(state):
    assert cli(state, "get", "chips.3.pci_address") == (0, '"0000:82:00.0"\n', "")
    assert cli(state, "get", "-r", "chips.3.pci_address")[1] == "0000:82:00.0\n"
    assert cli(state, "set", "chips.3.health", "3", "behaviour.npu_smi", "hang", "chips.*.power_w", "80.5")[0] == 0
    assert json.loads(cli(state, "get", "chips.*.health")[1]) == [0, 0, 0, 3, 0, 0, 0, 0]
    assert cli(state, "get", "-r", "chips.*.power_w")[1].split() == ["80.5"] * 8
    assert json.loads(cli(state, "get")[1])["behaviour"]["npu_smi"] == "hang"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("set", "chips.3.health", "bad"), "chips.3.health must be a whole number"),
        (("set", "chips.9.health", "1"), "nothing at 'chips.9.health'"),
        (("set", "kernel.driver_loaded", "yes"), "kernel.driver_loaded must be true or false"),
        (("set", "behaviour.npu_smi", "sleepy"), "must be one of ok, fail, hang, garbage"),
        (("set", "behaviour.dcmi", "garbage"), "behaviour.dcmi must be"),
        (("set", "kernel.node_mode", "rw"), "kernel.node_mode"),
        (("set", "chips.0.health"), "pairs"),
        (("set", "chips.0.health", "{"), "neither JSON"),
        (("get", "chips.0.nothing"), "nothing at"),
        (("load-driver",), "no module file drv_pcie_host.ko"),
    ],
)
def test_refusals_say_why_and_change_nothing(state, words, message):
    before = state.read_bytes()
    rc, _, error = cli(state, *words)
    assert rc == 1
    assert message in error
    assert state.read_bytes() == before


def test_driver_and_firmware_verbs(state, monkeypatch):
    # Not what other simulated nodes on this machine hold at the moment.
    monkeypatch.setattr(npu_sim, "holders", list)
    assert npu_sim.main(["--state", str(state), "unload-driver"]) == 0
    assert npu_sim.load(state)["kernel"]["driver_loaded"] is False
    assert cli(state, "load-driver", "24.1.0") == (0, "24.1.0\n", "")
    npu_sim.set_values({"chips.7.present": False}, state)
    assert "7 chips" in cli(state, "flash-firmware", "7.8.0.5.216")[1]
    chips = npu_sim.load(state)["chips"]
    assert [chip["firmware_flash"] for chip in chips] == ["7.8.0.5.216"] * 7 + ["7.3.0.1.231"]
    assert {chip["firmware_running"] for chip in chips} == {"7.3.0.1.231"}


def test_unload_is_refused_while_a_node_is_held(state, monkeypatch):
    holder = {"pid": 4711, "comm": "python3", "device": "/dev/davinci0"}
    monkeypatch.setattr(npu_sim, "holders", lambda: [holder])
    with pytest.raises(npu_sim.StateError, match=r"in use by: python3\[4711\] /dev/davinci0"):
        npu_sim.unload_driver(state)
    assert npu_sim.load(state)["kernel"]["driver_loaded"] is True


def test_boot_runs_what_was_flashed_and_loads_what_is_on_disk(state, tmp_path):
    content = npu_sim.load(state)
    for chip in content["chips"]:
        chip.update(firmware_flash="7.8.0.5.216", processes=[{"pid": 1}])
    assert npu_sim.boot(content, "boot-1", tmp_path) is True
    assert content["kernel"]["driver_loaded"] is False
    assert content["kernel"]["driver_version"] is None
    assert {chip["firmware_running"] for chip in content["chips"]} == {"7.8.0.5.216"}
    assert content["chips"][0]["processes"] == []

    module_files(tmp_path, "25.5.0")
    assert npu_sim.boot(content, "boot-1", tmp_path) is False, "one boot counts once"
    assert content["kernel"]["driver_loaded"] is False
    assert npu_sim.boot(content, "boot-2", tmp_path) is True
    assert (content["kernel"]["driver_loaded"], content["kernel"]["driver_version"]) == (True, "25.5.0")
    assert npu_sim.loaded_modules(content) == ["drv_pcie_host", "ascend_xsmem"]


def test_module_file_of_another_name_does_not_count(tmp_path):
    module_files(tmp_path, "25.5.0", names=["ts_agent"])
    assert npu_sim.module_version("ts_agent", tmp_path) == "25.5.0"
    assert npu_sim.module_version("drv_pcie_host", tmp_path) is None
    assert npu_sim.module_version("foreign", tmp_path) is None


def test_init_keeps_the_generation_growing(state):
    generation = npu_sim.load(state)["generation"]
    assert cli(state, "init", "--chips", "2", "--node", "other")[0] == 0
    content = npu_sim.load(state)
    assert (len(content["chips"]), content["node"]) == (2, "other")
    assert content["generation"] > generation


def test_a_driver_dead_after_boot_works_until_then_and_a_good_one_mends_it(state, tmp_path, monkeypatch):
    npu_sim.set_values({"kernel.driver_loaded": True}, state)
    module_files(tmp_path, "26.0.rc1 dead-after-boot")
    assert npu_sim.module_version("drv_pcie_host", tmp_path) == "26.0.rc1" and npu_sim.module_is_dead(tmp_path)
    content = npu_sim.load(state)
    assert npu_sim.devices_answer(content)
    assert npu_sim.boot(content, "second", tmp_path)
    assert content["kernel"]["driver_loaded"] and content["kernel"]["driver_version"] == "26.0.rc1"
    assert not npu_sim.devices_answer(content)
    npu_sim.save(content, state)
    monkeypatch.setattr(module_tools.npu_sim, "update", lambda change: change(content))
    for dead in (True, False):
        content["kernel"]["driver_loaded"] = False
        monkeypatch.setattr(npu_sim, "module_is_dead", lambda dead=dead: dead)
        module_tools.load_modules(["drv_pcie_host"])
        assert npu_sim.devices_answer(content) != dead


def test_module_tools_change_the_state_once(state, monkeypatch):
    names = ["drv_pcie_host", "ascend_xsmem", "ts_agent"]
    updates = []
    real = npu_sim.update
    monkeypatch.setattr(module_tools.npu_sim, "update", lambda change: updates.append(real(change, state)))
    monkeypatch.setattr(module_tools, "loaded", lambda: npu_sim.loaded_modules(npu_sim.load(state)))
    monkeypatch.setattr(npu_sim, "module_version", lambda name, root="/": "25.5.2" if name in names else None)
    monkeypatch.setattr(npu_sim, "holders", list)
    assert module_tools.rmmod(module_tools.loaded()) == 0
    assert module_tools.loaded() == [] and len(updates) == 1
    assert module_tools.modprobe(["-a", *names, "no_such"]) == 1
    assert set(module_tools.loaded()) == set(names) and len(updates) == 2
    assert npu_sim.get(npu_sim.load(state), "kernel.driver_version") == "25.5.2"
    monkeypatch.setattr(npu_sim, "holders", lambda: [{"pid": 1}])
    with pytest.raises(npu_sim.StateError, match="in use"):
        module_tools.rmmod(["ts_agent", "drv_pcie_host", "ascend_xsmem"])
    # Half of the modules are gone, as with the real tool.
    assert set(module_tools.loaded()) == {"drv_pcie_host", "ascend_xsmem"} and len(updates) == 3


@pytest.mark.parametrize(("value", "good"), [("driver:40", True), (None, True), ("driver", False), (3, False)])
def test_pause_at(state, value, good):
    if good:
        npu_sim.set_values({"package.pause_at": value}, state)
        assert npu_sim.get(npu_sim.load(state), "package.pause_at") == value
    else:
        with pytest.raises(npu_sim.StateError, match="COMPONENT:STAGE"):
            npu_sim.set_values({"package.pause_at": value}, state)


def test_firmware_of_some_chips(state):
    assert npu_sim.flash_firmware("9.9", state, count=3) == 3
    assert [chip["firmware_flash"] == "9.9" for chip in npu_sim.load(state)["chips"]] == [True] * 3 + [False] * 5


# Card and chip of each logic id: slots of a server with 300I Duo cards and dies of an A3 server (public captures).
@pytest.mark.parametrize(("product", "places", "devices"), [
    ("a2", [(0, 0), (1, 0)], 8), ("a3", [(0, 0), (0, 1), (1, 0)], 16), ("310p", [(1, 0), (2, 0), (4, 0), (5, 0)], 4),
    ("310p-duo", [(1, 0), (1, 1), (2, 0), (2, 1), (4, 0)], 8), ("310b", [(0, 0)], 1),
])  # fmt: skip
def test_products(product, places, devices):
    content = npu_sim.initial(product)
    npu_sim.validate(content)
    npu_sim.personalise(content, "node1")
    chips = content["chips"]
    assert [(chip["card_id"], chip["device_id"]) for chip in chips][: len(places)] == places
    assert [chip["phy_id"] for chip in chips] == list(range(devices))
    per_card = {}
    for chip in chips:
        per_card.setdefault(chip["card_id"], set()).add(chip["serial"])
    assert all(len(serials) == 1 for serials in per_card.values()) and len(set.union(*per_card.values())) == len(per_card)


def test_impossible_hardware_is_refused():
    with pytest.raises(npu_sim.StateError, match="2 on each card"):
        npu_sim.initial("a3", 3)
    with pytest.raises(npu_sim.StateError, match="makes no such cards"):
        npu_sim.initial("a2", vendor="0x8086")
    assert npu_sim.initial("310p", vendor="0x20c6")["pci"]["vendor"] == "0x20c6"
