# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What npu-smi prints, as data. Each parser returns values, or raises NpuSmiError that names the line it does not understand.

Tables are read by the words of their header, never by widths: those differ between versions and shift with long numbers. Shapes
known (vendor's open driver, npu_info_print.c, and public output of versions 20.2 to 26.0): "Chip Device" (310, 310P, 310B), "Chip"
(910, 910B), "Chip Phy-ID" (A3, two dies a card), "NPU ID | Name" (950, one die line without ids), with or without a hugepages
column, with or without "Process id in container".
Not read, because nothing here asks for it: topo, usages, memory, common, proc-mem, current-fault-event.
"""

import re

from ._dcmi import CODES, HINTS

NOTHING = ("", "NA", "N/A", "-", "--")
BORDER = re.compile(r"^\+[-=+]*\+?$")
VERSIONS = re.compile(r"^npu-smi\s+(\S+)\s+Version:\s*(\S+)$")
NO_PROCESS = re.compile(r"^No running processes found in NPU\s+[0-9]+$")
COLUMN_WITH_UNIT = re.compile(r"[^()\s][^()]*\([^()]*\)")
BUS_ID = re.compile(r"^(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$")
WORD = re.compile(r"^[A-Za-z]+$")
INTEGER = re.compile(r"^[0-9]{1,18}$")
SIGNED = re.compile(r"^-?[0-9]{1,6}$")
DECIMAL = re.compile(r"^-?[0-9]{1,12}(\.[0-9]{1,6})?$")
KEY_VALUE = re.compile(r"^([A-Za-z][^:]{0,60}?)\s*:\s*(.*)$")
# Printed beside the answer when the install record has no completion mark; the answer is as good as any.
WARNING = re.compile(r"^\[WARNING\]")

# Messages instead of an answer: npu-smi of the vendor's open driver and public reports; the number, where one is printed, says why.
VENDOR_ERRORS = [
    re.compile(pattern)
    for pattern in (
        r"dcmi mod(ule|el) initiali[sz]ed? failed.*",
        r"npu get board type failed.*",
        r"There is no NPU card on this server.*",
        r"Invalid (card|chip|npu) id.*",
        r"This device does not support .*",
        r"DrvMngGetConsoleLogLevel failed.*",
    )
]
RETURN_CODE = re.compile(r"ret(?: is |\s*=\s*)(-[0-9]{4,5})")


class NpuSmiError(ValueError):
    """Text of npu-smi that is no answer. `code` is npu_smi_failed (it says why) or npu_smi_unreadable (nobody knows this text)."""

    def __init__(self, message, code="npu_smi_unreadable", line=None, cause=None, ret=None):
        ValueError.__init__(self, message)
        self.message, self.code, self.line, self.cause, self.ret = message, code, line, cause, ret

    def as_dict(self):
        return {"code": self.code, "message": self.message, "line": self.line, "cause": self.cause, "return": self.ret}


def vendor_error(text):
    """The NpuSmiError for a message of the vendor in this text, else None. A message with a number tells most."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for pattern in VENDOR_ERRORS:
            match = pattern.search(line)
            if match:
                found.append((number, match.group(0).strip()))
                break
    if not found:
        return None
    number, cause = ([pair for pair in found if RETURN_CODE.search(pair[1])] or found)[0]
    match = RETURN_CODE.search(cause)
    ret = int(match.group(1)) if match else None
    why = "" if ret not in CODES else " (%s%s)" % (CODES[ret], ": " + HINTS[ret] if ret in HINTS else "")
    return NpuSmiError("npu-smi says: %s%s" % (cause, why), "npu_smi_failed", number, cause, ret)


def _unreadable(number, line, why):
    return NpuSmiError("npu-smi, line %d: %s: %r" % (number, why, line[:200]), line=number)


def normal_bus_id(text):
    """0000:c1:00.0 for every way a PCI address is printed; None when it is none."""
    match = BUS_ID.match(text.strip())
    if not match:
        return None
    domain, bus, device, function = match.groups()
    return "%04x:%s:%s.%s" % (int(domain or "0", 16), bus.lower(), device.lower(), function)


def _lines(text):
    """(number, line) of all lines that carry something. Comments are for test files and pasted reports."""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#") and not WARNING.match(stripped):
            yield number, stripped


def _value(text, pattern, kind):
    """The number in this cell, None for NA; ValueError for anything else."""
    if text in NOTHING:
        return None
    if not pattern.match(text):
        raise ValueError("%r is no number" % text)
    return kind(text)


def _integer(text):
    return _value(text, INTEGER, int)


def _pair(text):
    """Used and total, printed as `used / total`."""
    if text in NOTHING:
        return None, None
    used, slash, total = text.partition("/")
    if not slash:
        raise ValueError("%r is no pair used/total" % text)
    return _integer(used), _integer(total)


def _words(cell):
    """Words of a cell; the slash of a pair may stand with or without blanks around it (`61825/ 65536`)."""
    return re.sub(r"\s*/\s*", "/", cell).split()


class _Chips:
    """Reads the chip table: two header rows, then two rows for each chip."""

    def __init__(self, first_header):
        self.first, self.second = [self.columns(cell) for cell in first_header], None
        self.chips, self.half = [], None

    @staticmethod
    def columns(cell):
        """Column names inside one header cell: `NPU   Name` -> two, `NPU Util(%) Memory-Usage(MB)` -> two."""
        if "(" in cell:
            return COLUMN_WITH_UNIT.findall(cell)
        return [cell] if cell in ("NPU ID", "") else cell.split()

    def add(self, cells):
        if self.second is None:
            self.second = [self.columns(cell) for cell in cells]
            names = sum(self.second, [])
            if "Bus-Id" not in names or "Memory-Usage(MB)" not in names:
                raise ValueError("the second row of the header has no Bus-Id and Memory-Usage(MB)")
        elif self.half is None:
            self.half = self._upper(self._read(self.first, cells))
        else:
            lower = self._lower(self._read(self.second, cells))
            chip, self.half = self.half, None
            chip.update(lower)
            self.chips.append(chip)

    @staticmethod
    def _read(header, cells):
        if len(cells) != len(header):
            raise ValueError("%d cells where the header has %d" % (len(cells), len(header)))
        row = {}
        for names, cell in zip(header, cells):
            words = _words(cell)
            if names[-1:] == ["Name"] and len(words) > len(names):
                words[len(names) - 1:] = [" ".join(words[len(names) - 1:])]
            if names == [""] and not words:
                continue
            if len(words) != len(names):
                raise ValueError("%d values where the header has %d (%s)" % (len(words), len(names), ", ".join(names)))
            row.update(zip(names, words))
        return row

    @staticmethod
    def _upper(row):
        npu_id = _integer(row.get("NPU") or row.get("NPU ID") or "")
        if npu_id is None:
            raise ValueError("the row has no NPU id")
        health = row["Health"]
        if health not in NOTHING and not WORD.match(health):
            raise ValueError("%r is no health word" % health)
        _pair(row.get("Hugepages-Usage(page)", "NA"))
        return {
            "npu_id": npu_id,
            "name": None if row["Name"] in NOTHING else row["Name"],
            "health": None if health in NOTHING else health,
            "power_w": _value(row["Power(W)"], DECIMAL, float),
            "temperature_c": _value(row["Temp(C)"], SIGNED, int),
        }

    @staticmethod
    def _lower(row):
        bus = row["Bus-Id"]
        if bus not in NOTHING and normal_bus_id(bus) is None:
            raise ValueError("%r is no PCI address" % bus)
        memory, hbm = _pair(row["Memory-Usage(MB)"]), _pair(row.get("HBM-Usage(MB)", "NA"))
        return {
            "chip_id": _integer(row.get("Chip", "NA")),
            "device_id": _integer(row.get("Phy-ID") or row.get("Device") or "NA"),
            "bus_id": normal_bus_id(bus),
            # The 950 prints the load of the whole NPU, not of its AI cores: another quantity.
            "aicore_percent": _integer(row.get("AICore(%)", "NA")),
            "memory_used_mib": memory[0],
            "memory_total_mib": memory[1],
            "hbm_used_mib": hbm[0],
            "hbm_total_mib": hbm[1],
        }


def _process(header, cells):
    """One row of the process table; a `|` in a process name makes too many cells."""
    extra = len(cells) - len(header)
    if extra < 0:
        raise ValueError("%d cells where the header has %d" % (len(cells), len(header)))
    at = header.index("Process name")
    row = dict(zip(header, cells[:at] + ["|".join(cells[at: at + extra + 1])] + cells[at + extra + 1:]))
    place = _words(cells[0])
    if len(place) != len(_words(header[0].replace("NPU ID", "NPU"))):
        raise ValueError("%r is no place under the header %r" % (cells[0], header[0]))
    numbers = [_integer(word) for word in place]
    pid = _integer(row["Process id"])
    if numbers[0] is None or pid is None:
        raise ValueError("the row has no NPU id or no process id")
    return {
        "npu_id": numbers[0],
        "chip_id": numbers[1] if len(numbers) > 1 else None,
        "pid": pid,
        "name": row["Process name"],
        "memory_mib": _integer(row.get("Process memory(MB)", "NA")),
    }


class _Info:
    """One pass over the lines of `npu-smi info`."""

    def __init__(self):
        self.versions, self.table, self.process_header, self.processes = None, None, None, []

    def take(self, line):
        """Read one line; ValueError says what is wrong with it."""
        if BORDER.match(line):
            if self.table is not None and self.table.half is not None:
                raise ValueError("the table goes on although the second row of a chip is missing")
        elif line == "...":
            return  # vendor documents cut long tables with three dots
        elif not (line.startswith("|") and line.endswith("|") and len(line) > 1):
            raise ValueError("this is no row of the table")
        else:
            self.row([cell.strip() for cell in line[1:-1].split("|")])

    def row(self, cells):
        if self.versions is None:
            match = VERSIONS.match(cells[0]) if len(cells) == 1 else None
            if not match:
                raise ValueError("the table does not begin with the versions of tool and driver")
            self.versions = match.groups()
        elif self.table is None:
            names = sum((_Chips.columns(cell) for cell in cells), [])
            if names[0] not in ("NPU", "NPU ID") or not {"Name", "Health", "Power(W)", "Temp(C)"}.issubset(names):
                raise ValueError("the header names no NPU, Name, Health, Power(W) and Temp(C)")
            self.table = _Chips(cells)
        elif len(cells) == 1 and NO_PROCESS.match(cells[0]):
            return
        elif "Process id" in cells and "Process name" in cells:
            self.process_header = cells
        elif self.process_header is not None:
            self.processes.append(_process(self.process_header, cells))
        else:
            self.table.add(cells)


def parse_info(text):
    """`npu-smi info`: versions of tool and driver, chips, processes. Raises NpuSmiError; a table without chips is no answer."""
    info, number = _Info(), 1
    for number, line in _lines(text):
        try:
            info.take(line)
        except ValueError as error:
            raise vendor_error(text) or _unreadable(number, line, str(error)) from None
    if info.versions is None:
        raise vendor_error(text) or NpuSmiError("npu-smi printed no table", line=number)
    if info.table is None or info.table.half is not None or not info.table.chips:
        raise _unreadable(number, text.splitlines()[-1], "the table ends before a chip is complete")
    return {
        "tool_version": info.versions[0],
        "driver_version": info.versions[1],
        "chips": info.table.chips,
        "processes": info.processes,
    }


def parse_info_m(text):
    """`npu-smi info -m`: one dict for each chip and each controller (name "Mcu", no logic id)."""
    keys = {
        "NPU ID": "npu_id", "Chip ID": "chip_id", "Chip Logic ID": "logic_id", "Chip Phy-ID": "phy_id", "Slot ID": "slot_id",
        "Chip Name": "name",
    }
    header, rows = None, []
    for number, line in _lines(text):
        cells = re.split(r"\s{2,}|\t", line)
        try:
            if header is None:
                if cells[0] != "NPU ID" or cells[-1] != "Chip Name" or any(cell not in keys for cell in cells):
                    raise ValueError("this is no header of `npu-smi info -m`")
                header = [keys[cell] for cell in cells]
                continue
            if len(cells) != len(header):
                raise ValueError("%d values where the header has %d" % (len(cells), len(header)))
            row = dict.fromkeys(("npu_id", "chip_id", "logic_id", "phy_id"))
            row.update((key, cell if key == "name" else _integer(cell)) for key, cell in zip(header, cells))
            rows.append(row)
        except ValueError as error:
            raise vendor_error(text) or _unreadable(number, line, str(error)) from None
    if not rows:
        raise NpuSmiError("npu-smi info -m printed no chip", line=1)
    return rows


def _pairs(text, continues=()):
    """(number, key, value) of `Key : value` lines; a line without a colon continues the value of a key in `continues`."""
    pairs = []
    for number, line in _lines(text):
        match = KEY_VALUE.match(line)
        if match and not (pairs and pairs[-1][1] in continues and "=" in line):
            pairs.append((number, match.group(1), match.group(2).strip()))
        elif pairs and pairs[-1][1] in continues:
            pairs[-1] = pairs[-1][:2] + (pairs[-1][2] + " " + line,)
        else:
            raise vendor_error(text) or _unreadable(number, line, "this is no line `Key : value`")
    if not pairs:
        raise NpuSmiError("npu-smi printed nothing", line=1)
    return pairs


def _counted(number, key, value):
    try:
        return _integer(value)
    except ValueError as error:
        raise _unreadable(number, "%s : %s" % (key, value), str(error)) from None


def parse_info_l(text):
    """`npu-smi info -l`: {"total_count", "npus": [{"npu_id", "chip_count", "product_name", "serial_number"}]}."""
    answer: dict = {"total_count": None, "npus": []}
    for number, key, value in _pairs(text):
        if key in ("Card Count", "Total Count"):
            answer["total_count"] = _counted(number, key, value)
        elif key == "NPU ID":
            npu_id = _counted(number, key, value)
            answer["npus"].append({"npu_id": npu_id, "chip_count": None, "product_name": None, "serial_number": None})
        elif not answer["npus"]:
            raise _unreadable(number, "%s : %s" % (key, value), "this stands before the first NPU ID")
        elif key == "Chip Count":
            answer["npus"][-1]["chip_count"] = _counted(number, key, value)
        elif key in ("Product Name", "Serial Number"):
            answer["npus"][-1][key.lower().replace(" ", "_")] = None if value in NOTHING else value
    if answer["total_count"] is None:
        raise NpuSmiError("npu-smi info -l printed no count", line=1)
    return answer


BOARD_TEXTS = (
    "Product Name", "NPU Name", "Chip Name", "Chip Version", "Model", "Manufacturer", "Serial Number", "Software Version",
    "Firmware Version", "Compatibility", "Board ID", "Main Board ID", "PCB ID", "BOM ID", "Slot ID", "PCI Vendor ID", "PCI Device ID",
    "Subsystem Vendor ID", "Subsystem Device ID", "DDie ID",
)


def parse_info_board(text):
    """`npu-smi info -t board -i N`: keys in lower case with underscores; ids of PCI as 4 hex digits; keys nobody needs are left out."""
    answer = dict.fromkeys(key.lower().replace(" ", "_") for key in BOARD_TEXTS)
    answer.update(npu_id=None, bus_id=None, chip_count=None, faulty_chip_count=None)
    for number, key, value in _pairs(text):
        name = key.lower().replace(" ", "_")
        if name in ("npu_id", "chip_count", "faulty_chip_count"):
            answer[name] = _counted(number, key, value)
        elif key == "PCIe Bus Info":
            answer["bus_id"] = normal_bus_id(value)
        elif key in BOARD_TEXTS and value not in NOTHING:
            is_pci = key.startswith(("PCI ", "Subsystem "))
            answer[name] = value.lower()[2:] if is_pci and value.lower().startswith("0x") else value
    if answer["npu_id"] is None or answer["board_id"] is None:
        raise NpuSmiError("npu-smi info -t board printed no NPU ID and Board ID", line=1)
    return answer


def parse_info_health(text):
    """`npu-smi info -t health -i N [-c C]`: {"npu_id", "health", "error_codes", "error_information"}."""
    answer = {"npu_id": None, "health": None, "error_codes": [], "error_information": None}
    known = False
    for number, key, value in _pairs(text, continues=("Error Information",)):
        if key == "NPU ID":
            answer["npu_id"] = _counted(number, key, value)
        elif key in ("Health", "Health Status"):
            known, answer["health"] = True, None if value in NOTHING else value
        elif key == "Error Code":
            answer["error_codes"] = [] if value in NOTHING else [code for code in re.split(r"[\s,]+", value) if code]
        elif key == "Error Information":
            answer["error_information"] = None if value in NOTHING else value
    if not known:
        raise NpuSmiError("npu-smi info -t health printed no health", line=1)
    return answer


def parse_info_product(text):
    """`npu-smi info -t product -i N`: {"npu_id", "chip_count", "chips": [{"chip_id", "product_type"}]}."""
    answer: dict = {"npu_id": None, "chip_count": None, "chips": []}
    for number, key, value in _pairs(text):
        if key in ("NPU ID", "Chip Count"):
            answer[key.lower().replace(" ", "_")] = _counted(number, key, value)
        elif key == "Chip ID":
            answer["chips"].append({"chip_id": _counted(number, key, value), "product_type": None})
        elif key == "Product Type" and answer["chips"]:
            answer["chips"][-1]["product_type"] = None if value in NOTHING else value
    if answer["npu_id"] is None or not answer["chips"]:
        raise NpuSmiError("npu-smi info -t product printed no NPU ID and Chip ID", line=1)
    return answer
