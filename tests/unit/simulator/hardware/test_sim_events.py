# SPDX-License-Identifier: GPL-3.0-or-later
"""libdcmi.so through ctypes: fault events, virtual devices, the second API, and a library that crashes."""

from __future__ import annotations

import ctypes
import json
import select
import signal
import subprocess
import sys
from ctypes import byref, c_int, c_ubyte, c_uint, c_ulonglong, c_ushort
from pathlib import Path

import npu_sim
import pytest
from dcmi_binding import ChipInfoV2, Dcmi, structure, words

EventFilter = structure(
    "EventFilter", ("flag", c_ulonglong), ("event", c_uint), ("severity", c_ubyte), ("node", c_ubyte), ("r", c_ubyte * 32)
)
Event = structure(
    "Event", *words("type", "gap", "event_id"), ("device", c_ushort), ("node", c_ubyte * 4), ("severity", c_ubyte), ("assertion", c_ubyte),
    ("serial", c_int), ("notify", c_int), ("gap2", c_uint), ("raised", c_ulonglong), ("name", ctypes.c_char * 256), ("rest", c_ubyte * 64),
)  # fmt: skip
Totals = structure(
    "Totals", ("number", c_uint), ("ids", c_uint * 32), ("before", c_ubyte * 76), ("aic", ctypes.c_float), ("r", c_uint * 37)
)
One = structure("One", *words("vdev_id", "gap"), ("name", ctypes.c_char * 16), ("rest", c_ubyte * 240))
UNSUPPORTED, INNER, INVALID = -8255, -8005, -8001

# A process of its own: the library's thread and what it calls live as long as the process.
SUBSCRIBER = """
import json, sys
sys.path[:0] = sys.argv[2:4]
import ctypes
from dcmi_binding import Dcmi
from test_sim_events import Event, EventFilter
dcmi = Dcmi(sys.argv[1])
def told(event):
    event = event.contents
    print(json.dumps([event.device, "%08X" % event.event_id, event.assertion, event.severity]), flush=True)
handler = ctypes.CFUNCTYPE(None, ctypes.POINTER(Event))(told)
subscribe = dcmi.lib.dcmi_subscribe_fault_event
subscribe.argtypes = [ctypes.c_int, ctypes.c_int, EventFilter, type(handler)]
print(json.dumps([dcmi.call("init"), subscribe(-1, -1, EventFilter(), handler), subscribe(-1, -1, EventFilter(), handler)]), flush=True)
sys.stdin.read()
"""


def restate(state, product):
    content = npu_sim.initial(product)
    content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
    npu_sim.save(content, state)


@pytest.mark.parametrize(("kind", "size"), [(EventFilter, 48), (Event, 360), (Totals, 360), (One, 264)])
def test_binding_has_the_published_sizes(kind, size):
    assert ctypes.sizeof(kind) == size


@pytest.fixture
def subscriber(library, state):
    """next(seconds): what the library told, None when nothing came."""
    folders = [str(Path(__file__).parent), str(Path(npu_sim.__file__).parent)]
    child = subprocess.Popen(
        [sys.executable, "-c", SUBSCRIBER, str(library), *folders], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )

    def told(seconds=20.0):
        return json.loads(child.stdout.readline()) if select.select([child.stdout], [], [], seconds)[0] else None

    yield told
    child.stdin.close()
    child.wait(20)
    child.stdout.close()


def test_events_come_and_go_with_the_codes(subscriber, state):
    npu_sim.set_values({"chips.1.error_codes": ["80E01801"]}, state)  # perhaps before the subscription: then it is history
    assert subscriber() == [0, 0, INNER]  # once in a process
    npu_sim.set_values({"chips.1.error_codes": []}, state)
    npu_sim.set_values({"chips.3.health": 3, "chips.3.error_codes": ["80E3A203"]}, state)
    while (first := subscriber())[0] == 1:
        pass
    assert first == [3, "80E3A203", 1, 3]
    npu_sim.set_values({"chips.3.error_codes": ["80E3A203", 0x81078603]}, state)
    assert subscriber() == [3, "81078603", 1, 3]
    npu_sim.set_values({"chips.3.health": 0, "chips.3.error_codes": ["81078603"]}, state)
    assert subscriber() == [3, "80E3A203", 0, 0]
    npu_sim.set_values({"chips.5.once": [{"serial": 1, "code": "80E18005", "severity": 2}]}, state)
    assert subscriber() == [5, "80E18005", 2, 2]
    npu_sim.set_values({"chips.5.temperature_c": 50}, state)
    assert subscriber(0.3) is None  # nothing new, and no one-off event twice


def test_310_has_no_events_and_no_virtual_devices(library, state):
    restate(state, "310")
    dcmi = Dcmi(library)
    assert dcmi.call("init") == 0
    assert dcmi.cards() == (0, [0]) and dcmi.one("get_device_num_in_card", c_int, 0) == (0, 4)
    handler = ctypes.CFUNCTYPE(None, ctypes.POINTER(Event))(lambda event: None)
    subscribe = dcmi.lib.dcmi_subscribe_fault_event
    subscribe.argtypes = [c_int, c_int, EventFilter, type(handler)]
    assert subscribe(-1, -1, EventFilter(), handler) == UNSUPPORTED
    totals, size = Totals(), c_uint(360)
    assert dcmi.call("get_device_info", 0, 0, 52, 1, byref(totals), byref(size)) == UNSUPPORTED


def test_virtual_devices_and_ai_cores(library, state):
    dcmi = Dcmi(library)
    assert dcmi.call("init") == 0
    slices = [{"vdev_id": 100, "template": "vir10_3c_16g_nm"}, {"vdev_id": 103, "template": "vir05_1c_8g"}]
    npu_sim.set_values({"chips.2.slices": slices, "chips.2.aicore_total": 24.5}, state)
    totals, size = Totals(), c_uint(360)
    assert dcmi.call("get_device_info", 2, 0, 52, 1, byref(totals), byref(size)) == 0
    assert (totals.number, list(totals.ids[:2]), totals.aic, size.value) == (2, [100, 103], 24.5, 360)
    one, size = One(vdev_id=103), c_uint(264)
    assert dcmi.call("get_device_info", 2, 0, 52, 0, byref(one), byref(size)) == 0
    assert (one.vdev_id, one.name) == (103, b"vir05_1c_8g")
    assert dcmi.call("get_device_info", 2, 0, 52, 0, byref(One(vdev_id=7)), byref(size)) == INVALID
    assert dcmi.call("get_device_info", 2, 0, 52, 1, byref(totals), byref(c_uint(100))) == INVALID
    assert dcmi.call("get_device_info", 2, 0, 8, 9, byref(totals), byref(size)) == UNSUPPORTED


def test_thresholds(library, state):
    dcmi = Dcmi(library)
    assert dcmi.call("init") == 0
    npu_sim.set_values({"chips.0.temperature_limit_c": 95}, state)
    code, words = dcmi.one("get_device_sensor_info", c_uint * 16, 0, 0, 9)
    assert (code, bytes(words)[:2]) == (0, bytes([95, 115]))
    assert dcmi.one("get_device_sensor_info", c_uint * 16, 0, 0, 2)[0] == UNSUPPORTED


def test_rings_of_a_910(library, state):
    restate(state, "910")
    dcmi = Dcmi(library)
    assert dcmi.call("init") == 0
    assert [dcmi.one("get_topo_info_by_device_id", c_int, 1, 0, card, 0)[1] for card in range(8)] == [3, 0, 3, 3, 1, 1, 1, 1]


def test_the_second_api_serves_a_950_alone(library, state):
    restate(state, "a5")
    dcmi = Dcmi(library)
    assert dcmi.call("init") == UNSUPPORTED
    assert dcmi.cards()[0] == INNER
    second = dcmi.lib
    assert second.dcmiv2_init() == 0
    npu_sim.set_values({"chips.1.present": False, "chips.2.phy_id": 6, "chips.2.dcmi": {"get_device_health": -8006}}, state)
    count, numbers, info, physical, health = c_int(), (c_int * 64)(), ChipInfoV2(), c_uint(), c_uint()
    assert second.dcmiv2_get_device_list(numbers, byref(count), 64) == 0
    assert list(numbers[: count.value]) == [0, 2, 3]
    assert second.dcmiv2_get_chip_phy_id_by_dev_id(2, byref(physical)) == 0 and physical.value == 6
    assert second.dcmiv2_get_device_chip_info(3, byref(info)) == 0
    assert bytes(info.name).rstrip(b"\0") == b"Ascend950PR"
    assert second.dcmiv2_get_device_health(1, byref(health)) == 0 and health.value == 0xFFFFFFFF
    assert second.dcmiv2_get_device_health(2, byref(health)) == -8006
    assert second.dcmiv2_get_device_health(9, byref(health)) == -8007


def test_only_a_950_has_the_second_api(library, state):
    assert Dcmi(library).lib.dcmiv2_init() == UNSUPPORTED


def test_a_crash_takes_the_process(library, state):
    npu_sim.set_values({"chips.1.dcmi": {"get_device_health": "crash"}}, state)
    script = """
import ctypes, sys
dcmi, health = ctypes.CDLL(sys.argv[1]), ctypes.c_uint()
for call in (dcmi.dcmi_init, *(lambda card=card: dcmi.dcmi_get_device_health(card, 0, ctypes.byref(health)) for card in (0, 1))):
    print(call(), flush=True)
"""
    run = subprocess.run([sys.executable, "-c", script, str(library)], stdout=subprocess.PIPE, text=True, check=False)
    assert (run.stdout.split(), run.returncode) == (["0", "0"], -signal.SIGABRT)


@pytest.mark.parametrize("where", ["slices", "once"])
def test_nonsense_is_refused(state, where):
    with pytest.raises(npu_sim.StateError, match=where):
        npu_sim.set_values({f"chips.0.{where}": [{"vdev_id": "x"}]}, state)
