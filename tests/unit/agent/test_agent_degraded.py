# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes a chip come last in preferred allocation; it never changes whether the chip may take work."""


import pytest
from chip_life import LINK, SUB_HEALTH, ecc, event, hot, ill, well


@pytest.mark.parametrize(("readings", "degraded"), [
    ([84.9], False), ([85], True), ([85, 80], True), ([85, 79.9], False), ([80], False), ([85, None], True), ([None], False),
])
def test_heat(life, readings, degraded):
    chip = life()
    for now, degrees in enumerate(readings):
        told = chip.see(now, hot(degrees) if degrees is not None else well())
        assert told.healthy and told.review is None
    assert (told.rank, told.degraded) == ((1, ("its temperature has reached 85 °C",)) if degraded else (0, ()))


@pytest.mark.parametrize(("degrees", "limit", "setting", "degraded"), [
    (70, 75, 85, True), (69, 75, 85, False), (85, 105, 85, True), (80, 105, 85, False), (99, 105, 0, False),
    (84, 0, 85, False), (20, 3, 85, False),
])
def test_the_chips_own_limit(life, degrees, limit, setting, degraded):
    assert bool(life(degraded_temperature=setting).see(0, hot(degrees, limit)).rank) is degraded


def test_ecc_errors_degrade_for_a_while(life):
    chip = life()
    assert chip.see(0, ecc(double=4, isolated=1)).rank == 0  # of old
    assert chip.see(1, ecc(single=99, double=4, isolated=1)).rank == 0
    told = chip.see(10, ecc(double=5, isolated=1))
    assert (told.healthy, told.rank, told.degraded, told.review) == (True, 2, ("ECC double-bit errors",), 3610)
    told = chip.see(20, ecc(double=5, isolated=2))
    assert told.rank == 4 and told.degraded == ("ECC double-bit errors", "memory pages were isolated") and told.review == 3610
    assert chip.wait(3610).degraded == ("memory pages were isolated",)
    assert chip.wait(3620).rank == 0 and chip.told.review is None
    assert chip.see(3700, ecc(double=0, isolated=0)).rank == 0  # a new driver counts anew
    assert chip.see(3701, ecc(double=1, isolated=0)).rank == 2
    assert life(degraded_seconds=0).see(0, ecc(double=1)).rank == 0


def test_a_link_that_flaps_degrades(life):
    chip = life()
    chip.see(-1, well())
    chip.see(0, well(error_codes=[LINK]))
    assert chip.told.rank == 0
    chip.see(5, well())
    assert chip.see(3600, well(error_codes=[LINK])).degraded == ("its link went down several times",)
    assert chip.told.healthy and chip.see(3605, well()).review == 7200
    chip.see(3700, well())
    assert chip.wait(7200).rank == 0
    chip.see(12000, well(error_codes=[LINK]))
    assert chip.told.rank == 0


def test_sub_health_degrades_while_it_lasts(life):
    chip = life()
    told = chip.see(0, ill(SUB_HEALTH))
    assert told.healthy and told.rank == 2 and told.degraded == (f"fault code {SUB_HEALTH}: SubHealthFault",) and told.review is None
    assert chip.see(1, well()).rank == 0
    told = chip.see(2, well(), event(SUB_HEALTH, "once"))
    assert told.healthy and told.rank == 2 and told.review == 3602
    assert chip.wait(3602).rank == 0
    assert chip.see(5000, well(), event(SUB_HEALTH)).rank == 2
    assert chip.see(5001, well()).rank == 0


def test_memory_pressure_and_heat_weigh_less_than_a_chip_that_is_ill(life):
    short = ("NUMA node 0 is short of memory (limit 5 %)",)
    assert life().see(0, well(), pressure=short)[2:4] == (1, short)
    assert life().see(0, hot(90), pressure=short).rank == 2
    chip = life()
    assert chip.see(0, well(error_codes=[SUB_HEALTH], telemetry=hot(90)["telemetry"]), pressure=short).rank == 4
    assert chip.told.healthy


# --- NUMA nodes that are short of memory

def write_node(sysfs, number, **kilobytes):
    folder = sysfs / f"devices/system/node/node{number}"
    folder.mkdir(parents=True, exist_ok=True)
    values = {"MemTotal": 1000, "MemFree": 0, "Active(file)": 0, "Inactive(file)": 0, "SReclaimable": 0, **kilobytes}
    lines = [f"Node {number} {name}: {value:10} kB\n" for name, value in values.items()]
    (folder / "meminfo").write_text("".join(lines) + f"Node {number} HugePages_Total:     3\n")


@pytest.mark.parametrize(("values", "short"), [
    ({"MemFree": 50}, False), ({"MemFree": 49}, True), ({"MemFree": 20, "Inactive(file)": 30}, False), ({"Active(file)": 50}, False),
    ({"SReclaimable": 50}, False), ({"MemTotal": 0}, False), ({"Active": 900, "FilePages": 900}, True),
])
def test_memory_of_a_numa_node(agent, tmp_path, values, short):
    write_node(tmp_path, 0, MemFree=900)
    write_node(tmp_path, 12, **values)
    found = agent.degraded.memory_pressure(str(tmp_path), 5)
    assert found == ({12: "NUMA node 12 is short of memory (limit 5 %)"} if short else {})
    assert agent.degraded.memory_pressure(str(tmp_path), 0) == {}


@pytest.mark.parametrize(("percent", "free", "short"), [(5, 62, True), (5, 63, False), (90, 949, True), (90, 950, False)])
def test_memory_has_to_recover_for_good(agent, tmp_path, percent, free, short):
    write_node(tmp_path, 0, MemFree=free)
    assert (0 in agent.degraded.memory_pressure(str(tmp_path), percent, {0: "was short"})) is short
    assert agent.degraded.memory_pressure(str(tmp_path), percent) == {}


def test_memory_that_cannot_be_read_says_nothing(agent, tmp_path):
    assert agent.degraded.memory_pressure(str(tmp_path), 5) == {}
    (tmp_path / "devices/system/node/node0").mkdir(parents=True)
    (tmp_path / "devices/system/node/node1").mkdir()
    (tmp_path / "devices/system/node/node1/meminfo").write_text("Node 1 MemTotal: what\n")
    (tmp_path / "devices/system/node/nodes").write_text("")
    assert agent.degraded.memory_pressure(str(tmp_path), 5) == {}
    assert agent.degraded.memory_pressure("/sys", 0.001) == {}
