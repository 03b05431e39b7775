# SPDX-License-Identifier: GPL-3.0-or-later
"""Structures of DCMI for ctypes, typed from the interface description and not from the simulator's header."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int, c_ubyte, c_uint, c_ulong, c_ulonglong


def structure(name: str, *fields: tuple) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def words(*names: str) -> list[tuple]:
    return [(name, c_uint) for name in names]


ChipInfo = structure("ChipInfo", ("type", c_ubyte * 32), ("name", c_ubyte * 32), ("ver", c_ubyte * 32), ("aicore_cnt", c_uint))
ChipInfoV2 = structure("ChipInfoV2", *ChipInfo._fields_, ("npu_name", c_ubyte * 32))
BoardInfo = structure("BoardInfo", *words("board_id", "pcb_id", "bom_id", "slot_id"))
PcieInfo = structure("PcieInfo", *words("device", "vendor", "sub_vendor", "sub_device", "bdf_device", "bdf_bus", "bdf_function"))
PcieInfoAll = structure(
    "PcieInfoAll",
    *words("vendor", "sub_vendor", "device", "sub_device"),
    ("domain", c_int),
    *words("bdf_bus", "bdf_device", "bdf_function"),
    ("reserve", c_ubyte * 32),
)
Elabel = structure("Elabel", *[(name, c_char * 256) for name in ("product", "model", "manufacturer", "date", "serial")])
DieId = structure("DieId", ("soc_die", c_uint * 5))
HbmInfo = structure("HbmInfo", ("size", c_ulonglong), ("freq", c_uint), ("usage", c_ulonglong), ("temp", c_int), ("bandwidth", c_uint))
MemoryInfo = structure(
    "MemoryInfo",
    ("size", c_ulonglong),
    ("available", c_ulonglong),
    ("freq", c_uint),
    ("hugepagesize", c_ulong),
    ("hugepages_total", c_ulong),
    ("hugepages_free", c_ulong),
    ("utiliza", c_uint),
    ("reserve", c_ubyte * 60),
)
EccInfo = structure("EccInfo", ("enable", c_int), *words("single", "double", "total_single", "total_double", "iso_single", "iso_double"))
ProcMem = structure("ProcMem", ("pid", c_int), ("usage", c_ulong))
IpAddr = structure("IpAddr", ("addr", c_ubyte * 16), ("type", c_uint))


class Dcmi:
    """Calls with the out parameters last made short: `one(function, type, *inputs)` gives (code, value)."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)

    def call(self, name, *arguments):
        return getattr(self.lib, f"dcmi_{name}")(*arguments)

    def one(self, name, kind, *inputs):
        out = kind()
        code = self.call(name, *inputs, ctypes.byref(out))
        return code, getattr(out, "value", out)

    def text(self, name, *inputs, size=64):
        buffer = ctypes.create_string_buffer(size)
        return self.call(name, *inputs, buffer, size), buffer.value.decode()

    def cards(self):
        count, numbers = c_int(), (c_int * 64)()
        code = self.call("get_card_list", ctypes.byref(count), numbers, 64)
        return code, list(numbers[: count.value])
