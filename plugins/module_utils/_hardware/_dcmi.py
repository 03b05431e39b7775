# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The child process that holds the vendor's DCMI library: JSON lines in on stdin, JSON lines out on stdout.

A driver call can hang for ever, and a crash inside the library takes the process with it. So the library lives here and the caller
(_dcmi_child.py) may kill this process at any time. The file runs by itself (`python3 _dcmi.py LIBRARY`) and from its code alone,
because an Ansible module has no file on the node; for the same reason it imports nothing but the standard library, and little of that:
on a node with an agent it stays in memory for ever.

    {"id": 7, "cmd": "health"}          -> {"id": 7, "result": [record, ...]} or {"id": 7, "error": {"code", "message", ...}}
      "skip": [[card_id, device_id]]       these are not asked; a device_id of null stands for the whole card
      "only": [[card_id, device_id]]       these are asked, and no list of chips before
      "progress": true                     {"id": 7, "at": [card_id, device_id]} before each chip, with a device_id of null before a card is
                                           asked for its chips, and "at": null before the list of cards: so who hangs is known.
                                           These and events have the "time" in monotonic seconds, one clock for all processes
    {"cmd": "subscribe"}                -> {"result": {"subscribed", "why"}}; from then on {"event": {...}} at any time
    {"cmd": "end"}                      ends this process, with {"ended": true}: at once, or when the call that is under way has come back
When the channel closes the process ends within GRACE_SECONDS.

Prototypes, struct layouts and codes: dcmi_interface_api.h of the vendor's open driver (gitcode.com/cann/driver, July 2026) and its
API manuals for 910B, 910_93 and 950; sizes checked by compiling that header on a 64-bit machine.
"""

import _thread
import ctypes
import json
import os
import sys
import time
from ctypes import POINTER, c_byte, c_char, c_float, c_int, c_ubyte, c_uint, c_ulong, c_ulonglong, c_ushort

MAX_CARDS = 64
MAX_DEVICES_IN_CARD = 4
MAX_ERROR_CODES = 128
GRACE_SECONDS = 2.0  # for answers under way when the caller has closed the channel
UNIT_NPU = 0
DIE_VIRTUAL = 1
SENSOR_THRESHOLDS = 9
ECC_DDR, ECC_HBM = 0, 2
SLICES, SLICE_TOTALS, SLICE_ONE = 52, 1, 0  # dcmi_get_device_info: virtual devices, all of a chip or one of them
MAX_SLICES = 32
ASSERTIONS = {0: "recover", 1: "occur", 2: "once"}
HEALTH_ABSENT = 0xFFFFFFFF
NOT_READY = -8012
NOT_SUPPORTED = -8255
FUNCTION_NOT_FOUND = -99998  # the vendor's own bindings use this number for a missing symbol

CODES = {
    -8001: "INVALID_PARAMETER", -8002: "OPER_NOT_PERMITTED", -8003: "MEM_OPERATE_FAIL", -8004: "SECURE_FUN_FAIL", -8005: "INNER_ERR",
    -8006: "TIME_OUT", -8007: "INVALID_DEVICE_ID", -8008: "DEVICE_NOT_EXIST", -8009: "IOCTL_FAIL", -8010: "SEND_MSG_FAIL",
    -8011: "RECV_MSG_FAIL", -8012: "NOT_READY", -8013: "NOT_SUPPORT_IN_CONTAINER", -8014: "FILE_OPERATE_FAIL", -8015: "RESET_FAIL",
    -8016: "ABORT_OPERATE", -8017: "IS_UPGRADING", -8020: "RESOURCE_OCCUPIED", -8022: "PARTITION_NOT_RIGHT",
    -8023: "CONFIG_INFO_NOT_EXIST", -8255: "NOT_SUPPORT", -99998: "FUNCTION_NOT_FOUND",
}
# What the number means for whoever reads the error: driver documentation and public reports, see docs of the codes above.
HINTS = {
    -8002: "root, or a member of the driver's group, is needed",
    -8005: "typical when the driver is not loaded, its firmware changed without a reboot, or this namespace has no device nodes",
    -8012: "the chip is not ready, or it has dropped off the bus",
    -8013: "not supported inside a container",
    -8017: "an upgrade is under way",
    -8020: "another container or process owns the device",
}
HEALTH = {0: "OK", 1: "Warning", 2: "Alarm", 3: "Critical", HEALTH_ABSENT: "UNKNOWN"}  # the words npu-smi prints


class ChipInfo(ctypes.Structure):
    _fields_ = [("chip_type", c_char * 32), ("chip_name", c_char * 32), ("chip_ver", c_char * 32), ("aicore_cnt", c_uint)]


class ChipInfoV2(ctypes.Structure):
    _fields_ = ChipInfo._fields_ + [("npu_name", c_char * 32)]


class PcieInfo(ctypes.Structure):
    _fields_ = [
        (name, c_uint)
        for name in ("deviceid", "venderid", "subvenderid", "subdeviceid", "bdf_deviceid", "bdf_busid", "bdf_funcid")
    ]


class PcieInfoAll(ctypes.Structure):
    _fields_ = (
        [(name, c_uint) for name in ("venderid", "subvenderid", "deviceid", "subdeviceid")]
        + [("domain", c_int)]
        + [(name, c_uint) for name in ("bdf_busid", "bdf_deviceid", "bdf_funcid")]
        + [("reserve", c_ubyte * 32)]
    )


class ElabelInfo(ctypes.Structure):
    _fields_ = [(name, c_char * 256) for name in ("product_name", "model", "manufacturer", "manufacturer_date", "serial_number")]


class DieId(ctypes.Structure):
    _fields_ = [("soc_die", c_uint * 5)]


class HbmInfo(ctypes.Structure):
    _fields_ = [
        ("memory_size", c_ulonglong), ("freq", c_uint), ("memory_usage", c_ulonglong), ("temp", c_int), ("bandwith_util_rate", c_uint),
    ]


class MemoryInfo(ctypes.Structure):
    _fields_ = [
        ("memory_size", c_ulonglong), ("memory_available", c_ulonglong), ("freq", c_uint), ("hugepagesize", c_ulong),
        ("hugepages_total", c_ulong), ("hugepages_free", c_ulong), ("utiliza", c_uint), ("reserve", c_ubyte * 60),
    ]


class EccInfo(ctypes.Structure):
    _fields_ = [("enable_flag", c_int)] + [
        (name, c_uint) for name in ("single", "double", "total_single", "total_double", "isolated_single", "isolated_double")
    ]


class SensorInfo(ctypes.Union):
    _fields_ = [("temp", c_byte * 2), ("data", c_uint * 16)]  # of the thresholds: where it throttles, where it resets


class SliceTotals(ctypes.Structure):
    _fields_ = [
        ("count", c_uint), ("ids", c_uint * MAX_SLICES), ("vfg_num", c_uint), ("vfg_bitmap", c_uint), ("base", c_ulonglong * 8),
        ("aic", c_float), ("rest", c_uint * 37),
    ]


class SliceOne(ctypes.Structure):
    _fields_ = [("vdev_id", c_uint), ("gap", c_uint), ("template", c_char * 16), ("rest", c_ulonglong * 30)]


class EventFilter(ctypes.Structure):
    _fields_ = [("flag", c_ulonglong), ("event_id", c_uint), ("severity", c_ubyte), ("node_type", c_ubyte), ("resv", c_ubyte * 32)]


class FaultEvent(ctypes.Structure):
    _fields_ = [
        ("event_id", c_uint), ("deviceid", c_ushort), ("node", c_ubyte * 4), ("severity", c_ubyte), ("assertion", c_ubyte),
        ("serial", c_int), ("notify_serial", c_int), ("raised", c_ulonglong), ("name", c_char * 256), ("rest", c_ubyte * 64),
    ]


class Event(ctypes.Structure):
    _fields_ = [("type", c_uint), ("gap", c_uint), ("fault", FaultEvent)]


HANDLER = ctypes.CFUNCTYPE(None, POINTER(Event))

# Arguments that follow the chip: (card_id, device_id) in the first API, (dev_id) in the second one, which Ascend 950 needs.
OF_CHIP: dict = {
    "get_device_type": [POINTER(c_uint)],
    "get_device_chip_info": [POINTER(ChipInfo)],
    "get_device_chip_info_v2": [POINTER(ChipInfoV2)],
    "get_device_pcie_info": [POINTER(PcieInfo)],
    "get_device_pcie_info_v2": [POINTER(PcieInfoAll)],
    "get_device_elabel_info": [POINTER(ElabelInfo)],
    "get_device_die_v2": [c_int, POINTER(DieId)],
    "get_device_health": [POINTER(c_uint)],
    "get_device_errorcode_v2": [POINTER(c_int), POINTER(c_uint), c_uint],
    "get_device_power_info": [POINTER(c_int)],
    "get_device_temperature": [POINTER(c_int)],
    "get_device_utilization_rate": [c_int, POINTER(c_uint)],
    "get_device_hbm_info": [POINTER(HbmInfo)],
    "get_device_memory_info_v3": [POINTER(MemoryInfo)],
    "get_device_ecc_info": [c_int, POINTER(EccInfo)],
    "get_device_sensor_info": [c_int, POINTER(SensorInfo)],
    "get_device_info": [c_int, c_uint, ctypes.c_void_p, POINTER(c_uint)],
}
OTHER = {
    "dcmi_init": [],
    "dcmiv2_init": [],
    "dcmi_get_card_list": [POINTER(c_int), POINTER(c_int), c_int],
    "dcmi_get_card_num_list": [POINTER(c_int), POINTER(c_int), c_int],
    "dcmi_get_device_num_in_card": [c_int, POINTER(c_int)],
    "dcmi_get_device_logic_id": [POINTER(c_int), c_int, c_int],  # result first: not the order of its neighbours
    "dcmi_get_device_phyid_from_logicid": [c_uint, POINTER(c_uint)],
    "dcmi_get_card_elabel_v2": [c_int, POINTER(ElabelInfo)],
    "dcmi_mcu_get_power_info": [c_int, POINTER(c_int)],
    "dcmi_subscribe_fault_event": [c_int, c_int, EventFilter, HANDLER],
    "dcmiv2_subscribe_fault_event": [c_int, EventFilter, HANDLER],
    "dcmi_get_dcmi_version": [ctypes.c_char_p, c_uint],
    "dcmi_get_driver_version": [ctypes.c_char_p, c_uint],
    "dcmiv2_get_dcmi_version": [ctypes.c_char_p, c_uint],
    "dcmiv2_get_driver_version": [ctypes.c_char_p, c_uint],
    "dcmiv2_get_device_list": [POINTER(c_int), POINTER(c_int), c_int],  # list first, then count
    "dcmiv2_get_chip_phy_id_by_dev_id": [c_int, POINTER(c_uint)],
}
# Names of the second API that are not the first one's with another prefix. The vendor's two headers disagree: both are probed.
SECOND_API = {
    "get_device_chip_info_v2": ["get_device_chip_info"],
    "get_device_pcie_info_v2": ["get_device_pcie_info"],
    "get_device_pcie_info": [],  # the old struct does not exist there
    "get_device_chip_info": [],
    "get_device_die_v2": ["get_device_die_id", "get_device_die"],
    "get_device_errorcode_v2": ["get_device_error_code_list", "get_device_errorcode"],
    "get_device_memory_info_v3": [],
}


class DcmiFailed(Exception):
    """A DCMI function answered with a negative code."""

    def __init__(self, function, value):
        self.function, self.value = function, value
        self.name = CODES.get(value, "CODE_%d" % value)
        text = "%s answered %d (%s)" % (function, value, self.name)
        Exception.__init__(self, text + (": " + HINTS[value] if value in HINTS else ""))

    def as_dict(self):
        return {"code": "dcmi_failed", "function": self.function, "return": self.value, "name": self.name, "message": str(self)}


def absent(error):
    """The function or the value does not exist on this chip: no fault, the value is just not there."""
    return error.value in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)


def text(raw):
    """What a C string holds; blanks and the vendor's word NA count as nothing."""
    value = raw.decode("utf-8", "replace").strip()
    return None if value in ("", "NA", "N/A") else value


class Chip:
    """Where a chip is: ids that need no further query."""

    def __init__(self, card_id, device_id, where):
        self.card_id, self.device_id, self.where = card_id, device_id, where


class Library:
    """The loaded library; every symbol is looked up by itself, since versions lack some."""

    def __init__(self, path):
        self.path, self.second = path, False
        self.shape, self.known = None, {}  # cards with the number of their chips, and what stays while that is so
        self.handler = None
        # Its dependencies look for symbols of each other, so they must be global.
        self.handle = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

    def has(self, name):
        return hasattr(self.handle, name)

    def call(self, name, *arguments):
        self._call(name, OTHER[name], arguments)

    def of_chip(self, chip, name, *arguments):
        if not self.second:
            self._call("dcmi_" + name, [c_int, c_int] + OF_CHIP[name], chip.where + arguments)
            return
        names = ["dcmiv2_" + other for other in SECOND_API.get(name, [name])]
        found = [other for other in names if self.has(other)]
        if not found:
            raise DcmiFailed((names + ["dcmiv2_" + name])[0], FUNCTION_NOT_FOUND)
        self._call(found[0], [c_int] + OF_CHIP[name], chip.where + arguments)

    def _call(self, name, argument_types, arguments):
        try:
            function = getattr(self.handle, name)
        except AttributeError:
            raise DcmiFailed(name, FUNCTION_NOT_FOUND) from None
        function.argtypes, function.restype = argument_types, c_int
        value = function(*arguments)
        if value != 0:
            raise DcmiFailed(name, value)

    def init(self):
        """Start the first API; on Ascend 950 it refuses and the second one answers."""
        try:
            self.call("dcmi_init")
        except DcmiFailed as first:
            try:
                self.call("dcmiv2_init")
            except DcmiFailed as second:
                raise (second if absent(first) and not absent(second) else first) from None
            self.second = True

    def version(self):
        prefix = "dcmiv2_" if self.second else "dcmi_"
        answer = {"api": "v2" if self.second else "v1", "library": self.path, "dcmi_version": None, "driver_version": None}
        for key in ("dcmi_version", "driver_version"):
            raw = ctypes.create_string_buffer(256)
            try:
                self.call(prefix + "get_" + key, raw, 256)
                answer[key] = text(raw.value)
            except DcmiFailed as error:
                if not absent(error):
                    raise
        return answer

    def places(self, tour):
        """Yield (Chip, None), or (Chip, error) for a card that does not tell how many chips it has."""
        if tour.only:
            candidates = [(place, None) for place in tour.only]
        else:
            candidates = self.listed(tour)
            shape = [place for place, _error in candidates]
            if shape != self.shape:
                self.shape = shape
                self.known.clear()
        for (card_id, device_id), error in candidates:
            if tour.passes(card_id, device_id):
                continue
            chip = Chip(card_id, device_id, (card_id,) if self.second else (card_id, device_id or 0))
            if error is None:
                tour.at(card_id, device_id)
                if not self.is_npu(chip):
                    continue
            yield chip, error

    def listed(self, tour):
        """[((card_id, device_id), None)], and ((card_id, None), error) for a card that does not answer."""
        count, found = c_int(0), (c_int * MAX_CARDS)()
        tour.at()
        if self.second:
            self.call("dcmiv2_get_device_list", found, ctypes.byref(count), MAX_CARDS)
            return [((number, 0), None) for number in found[: min(count.value, MAX_CARDS)]]
        name = "dcmi_get_card_list" if self.has("dcmi_get_card_list") else "dcmi_get_card_num_list"
        self.call(name, ctypes.byref(count), found, MAX_CARDS)
        candidates: list = []
        for card_id in found[: min(count.value, MAX_CARDS)]:
            if tour.passes(card_id, None):
                continue
            tour.at(card_id)
            devices = c_int(0)
            try:
                self.call("dcmi_get_device_num_in_card", card_id, ctypes.byref(devices))
                candidates += [((card_id, number), None) for number in range(min(devices.value, MAX_DEVICES_IN_CARD))]
            except DcmiFailed as error:
                candidates.append(((card_id, None), error))
        return candidates

    def is_npu(self, chip):
        """Controllers (MCU, CPU) on the card have a device id of their own; a chip that does not answer stays in the list."""
        if ("npu", chip.where) not in self.known:
            kind = c_uint(UNIT_NPU)
            try:
                self.of_chip(chip, "get_device_type", ctypes.byref(kind))
            except DcmiFailed:
                return True
            self.known["npu", chip.where] = kind.value == UNIT_NPU
        return self.known["npu", chip.where]

    def ids(self, chip):
        """(logic id, physical id)"""
        if ("ids", chip.where) not in self.known:
            logic, physical = c_int(chip.card_id), c_uint(0)
            if self.second:
                self.call("dcmiv2_get_chip_phy_id_by_dev_id", chip.card_id, ctypes.byref(physical))
            else:
                self.call("dcmi_get_device_logic_id", ctypes.byref(logic), chip.card_id, chip.device_id)
                self.call("dcmi_get_device_phyid_from_logicid", logic.value, ctypes.byref(physical))
            self.known["ids", chip.where] = logic.value, physical.value
        return self.known["ids", chip.where]

    def subscribe(self, tell):
        """Have tell(event) called, in a thread of the driver's, for each fault event of all chips. Once in a process: the driver's rule."""
        def heard(found):
            fault = found.contents.fault
            if found.contents.type == 0 and fault.assertion in ASSERTIONS:
                # The vendor's device plugin reads deviceid as a logic id, and takes no time from the event: that of a recovery is wrong.
                tell({"code": "%08X" % fault.event_id, "logic_id": fault.deviceid, "severity": fault.severity,
                      "assertion": ASSERTIONS[fault.assertion], "serial": fault.serial})

        if self.handler is None:
            self.handler = HANDLER(heard)  # lives as long as the library may call it
            try:
                if self.second:
                    self.call("dcmiv2_subscribe_fault_event", -1, EventFilter(), self.handler)
                else:
                    self.call("dcmi_subscribe_fault_event", -1, -1, EventFilter(), self.handler)
            except DcmiFailed as error:
                return {"subscribed": False, "why": str(error)}
        return {"subscribed": True, "why": None}


class Ended(Exception):
    """The caller wants this process to end."""


class Tour:
    """Which chips a request is about, and where its answer has come to."""

    def __init__(self, request, server):
        self.id, self.server, self.progress = request.get("id"), server, request.get("progress")
        self.only = [tuple(place) for place in request.get("only") or ()]
        self.skip = {tuple(place) for place in request.get("skip") or ()}

    def passes(self, card_id, device_id):
        return (card_id, device_id) in self.skip

    def at(self, *place):
        if self.server.ending:
            raise Ended
        if self.progress:
            self.server.say({"id": self.id, "at": (place + (None,))[:2] if place else None, "time": time.monotonic()})


class Reader:
    """Fills one chip's record; an error is kept beside the values that could be read. absent: the call before is one that this chip or
    library does not have, so another one may be made instead. One that failed says nothing: what stands in for it may tell other values."""

    def __init__(self, library, chip, record):
        self.library, self.chip, self.record, self.absent = library, chip, record, False

    def keep(self, error):
        if self.record["error"] is None and not absent(error):
            self.record["error"] = error.as_dict()

    def read(self, name, target, *before):
        """target after a good call, else None."""
        self.absent = False
        try:
            self.library.of_chip(self.chip, name, *(before + (ctypes.byref(target),)))
        except DcmiFailed as error:
            self.absent = absent(error)
            self.keep(error)
            return None
        return target


def each_chip(library, tour, fill=None, **empty):
    """One record for each chip, whatever its neighbours do."""
    records = []
    for chip, error in library.places(tour):
        record = {"logic_id": None, "phy_id": None, "card_id": chip.card_id, "device_id": chip.device_id, "error": None}
        record.update(empty)
        records.append(record)
        reader = Reader(library, chip, record)
        if error is not None:
            reader.keep(error)
            continue
        try:
            record["logic_id"], record["phy_id"] = library.ids(chip)
        except DcmiFailed as failed:
            record["error"] = failed.as_dict()
        if fill is not None:
            fill(reader, record)
    return records


def fill_identity(reader, record):
    info = reader.read("get_device_chip_info_v2", ChipInfoV2())
    if reader.absent:
        info = reader.read("get_device_chip_info", ChipInfo())
    if info is not None:
        record["name"] = text(info.chip_name)
        record["npu_name"] = text(info.npu_name) if isinstance(info, ChipInfoV2) else None
        record["aicore_count"] = info.aicore_cnt
    bus = reader.read("get_device_pcie_info_v2", PcieInfoAll())
    if reader.absent:
        bus = reader.read("get_device_pcie_info", PcieInfo())
    if bus is not None:
        domain = bus.domain if isinstance(bus, PcieInfoAll) else 0
        record["pci_address"] = "%04x:%02x:%02x.%x" % (domain, bus.bdf_busid, bus.bdf_deviceid, bus.bdf_funcid)
        for key in ("vendor", "device", "sub_vendor", "sub_device"):
            field = key.replace("_", "").replace("vendor", "vender") + "id"  # the header's own spelling
            record["pci_" + key] = "%04x" % getattr(bus, field)
    die = reader.read("get_device_die_v2", DieId(), DIE_VIRTUAL)
    if die is not None and any(die.soc_die):  # nothing but zeros: it was never set
        record["vdie"] = "-".join("%08X" % word for word in die.soc_die)
    label = reader.read("get_device_elabel_info", ElabelInfo())
    if (reader.absent if label is None else text(label.serial_number) is None) and not reader.library.second:
        label = ElabelInfo()
        try:
            reader.library.call("dcmi_get_card_elabel_v2", reader.chip.card_id, ctypes.byref(label))
        except DcmiFailed as error:
            reader.keep(error)
    if label is not None:
        record["serial"], record["product_name"] = text(label.serial_number), text(label.product_name)


def fill_health(reader, record):
    state = c_uint(0)
    try:
        reader.library.of_chip(reader.chip, "get_device_health", ctypes.byref(state))
        record["health_code"], record["health"] = state.value, HEALTH.get(state.value, "UNKNOWN")
    except DcmiFailed as error:
        reader.keep(error)
        # The vendor's device plugin reads this answer as a dropped card, with the made-up fault 40F84E00.
        record["dropped"] = error.value == NOT_READY
    if state.value == HEALTH_ABSENT:
        record["dropped"] = True
    count, found = c_int(0), (c_uint * MAX_ERROR_CODES)()
    try:
        reader.library.of_chip(reader.chip, "get_device_errorcode_v2", ctypes.byref(count), found, MAX_ERROR_CODES)
        record["error_codes"] = ["%08X" % code for code in found[: max(0, min(count.value, MAX_ERROR_CODES))]]
    except DcmiFailed as error:
        reader.keep(error)


def fill_telemetry(reader, record):
    degrees = reader.read("get_device_temperature", c_int(0))
    record["temperature_c"] = None if degrees is None else degrees.value
    power = reader.read("get_device_power_info", c_int(0))
    if power is None and not reader.library.second:
        # 310P has no power figure of the chip, only the board's, with two values that mean "could not be read".
        power = c_int(0)
        try:
            reader.library.call("dcmi_mcu_get_power_info", reader.chip.card_id, ctypes.byref(power))
            power = None if power.value in (0x7FFD, 0x7FFF) else power
        except DcmiFailed as error:
            reader.keep(error)
            power = None
    record["power_w"] = None if power is None else power.value / 10.0
    for key, kind in (("aicore_percent", 2), ("hbm_bandwidth_percent", 10), ("vector_percent", 12), ("npu_percent", 13)):
        rate = reader.read("get_device_utilization_rate", c_uint(0), kind)
        record[key] = None if rate is None else rate.value
    hbm = reader.read("get_device_hbm_info", HbmInfo())
    if hbm is not None:
        record["hbm_used_mib"], record["hbm_total_mib"], record["hbm_temperature_c"] = hbm.memory_usage, hbm.memory_size, hbm.temp
    memory = reader.read("get_device_memory_info_v3", MemoryInfo())
    if memory is not None and memory.memory_size:
        record["memory_total_mib"] = memory.memory_size
        record["memory_used_mib"] = max(0, memory.memory_size - memory.memory_available)


def fill_condition(reader, record):
    degrees = reader.read("get_device_temperature", c_int(0))
    record["temperature_c"] = None if degrees is None else degrees.value
    limits = reader.read("get_device_sensor_info", SensorInfo(), SENSOR_THRESHOLDS)
    if limits is not None and limits.temp[0] > 0:
        record["temperature_limit_c"] = limits.temp[0]
    # The 910 families count for their HBM only; chips without HBM have DDR.
    ecc = reader.read("get_device_ecc_info", EccInfo(), ECC_HBM) or reader.read("get_device_ecc_info", EccInfo(), ECC_DDR)
    if ecc is not None:
        record["ecc"] = {"single": ecc.single, "double": ecc.double, "isolated": ecc.isolated_double}


def fill_slices(reader, record):
    """Static virtual devices of a chip, and its AI cores: a float, 1.0 on a 310B1."""
    def ask(which, answer):
        size = c_uint(ctypes.sizeof(answer))
        reader.library.of_chip(reader.chip, "get_device_info", SLICES, which, ctypes.byref(answer), ctypes.byref(size))
        return answer

    try:
        totals = ask(SLICE_TOTALS, SliceTotals())
        record["aicore_count"] = round(totals.aic, 2) if totals.aic > 0 else None
        found = [ask(SLICE_ONE, SliceOne(vdev_id=number)) for number in totals.ids[: min(totals.count, MAX_SLICES)]]
        record["slices"] = [{"vdev_id": one.vdev_id, "template": text(one.template)} for one in found]
    except DcmiFailed as error:
        record["slices"] = [] if absent(error) else None
        reader.keep(error)


def identities(library, tour):
    library.known.clear()  # a driver that was loaded anew may number its chips in another way
    return each_chip(
        library, tour, fill_identity, name=None, npu_name=None, aicore_count=None, pci_address=None, pci_vendor=None, pci_device=None,
        pci_sub_vendor=None, pci_sub_device=None, vdie=None, serial=None, product_name=None,
    )


COMMANDS = {
    "version": lambda library, tour: library.version(),
    "open": lambda library, tour: library.version(),
    "subscribe": lambda library, tour: library.subscribe(tour.server.tell),
    "list": each_chip,
    "chips": identities,
    "health": lambda library, tour: each_chip(
        library, tour, fill_health, health=None, health_code=None, error_codes=None, dropped=False),
    "condition": lambda library, tour: each_chip(
        library, tour, fill_condition, temperature_c=None, temperature_limit_c=None, ecc=None),
    "slices": lambda library, tour: each_chip(library, tour, fill_slices, aicore_count=None, slices=None),
    "telemetry": lambda library, tour: each_chip(
        library, tour, fill_telemetry, temperature_c=None, power_w=None, aicore_percent=None, vector_percent=None, npu_percent=None,
        hbm_bandwidth_percent=None, hbm_used_mib=None, hbm_total_mib=None, hbm_temperature_c=None, memory_used_mib=None,
        memory_total_mib=None),
}


class Server:
    """Answers one request after the other; the library is opened by the first one that needs it."""

    def __init__(self, path, channel):
        self.path, self.channel, self.library = path, channel, None
        self.ending = False
        self.lock = _thread.allocate_lock()  # events come in a thread of the driver's

    def say(self, message):
        data = (json.dumps(message) + "\n").encode("ascii")
        with self.lock:
            while data:
                data = data[os.write(self.channel, data):]

    def tell(self, event):
        self.say({"event": event, "time": time.monotonic()})

    def answer(self, request):
        command = request.get("cmd")
        try:
            if self.library is None:
                library = Library(self.path)
                library.init()
                self.library = library
            if command not in COMMANDS:
                return {"error": {"code": "dcmi_command", "message": "there is no command %r" % (command,)}}
            return {"result": COMMANDS[command](self.library, Tour(request, self))}
        except DcmiFailed as error:
            return {"error": error.as_dict()}
        except OSError as error:
            return {"error": {"code": "dcmi_library_unusable", "message": "%s cannot be loaded: %s" % (self.path, error)}}


def main(path):
    # The library prints messages of its own on stdout (such as "DrvMngGetConsoleLogLevel failed"): keep the channel clear of them.
    channel_in, channel_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    requests, some = [], _thread.allocate_lock()  # `some` is free when there may be requests
    some.acquire()
    server = Server(path, channel_out)

    def put(request):
        requests.append(request)
        if some.locked():
            some.release()

    def listen():
        with os.fdopen(channel_in, "rb") as lines:
            for line in lines:
                try:
                    request = json.loads(line.decode("utf-8"))
                    server.ending = server.ending or request.get("cmd") == "end"
                except (ValueError, AttributeError) as error:
                    request = error
                put(request)
        put(None)
        time.sleep(GRACE_SECONDS)
        os._exit(1)  # nobody listens any more, and the other thread hangs in the driver

    server.say({"ready": os.getpid()})
    _thread.start_new_thread(listen, ())
    while True:
        while not requests:
            some.acquire()
        request = requests.pop(0)
        if request is None:
            os._exit(0)  # no orderly end: threads of the driver's may be about
        reply: dict = {"id": None}
        if isinstance(request, Exception):
            reply["error"] = {"code": "dcmi_request", "message": "the request is not one JSON object: %s" % request}
        elif not server.ending:
            try:
                reply = server.answer(request)
                reply["id"] = request.get("id")
            except Ended:
                pass
        if server.ending:
            server.say({"ended": True})
            os._exit(0)
        server.say(reply)


if __name__ == "__main__":
    main(sys.argv[-1])
