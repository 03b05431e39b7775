# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one detector: PCI functions, bound drivers, device nodes and the driver's own answers, joined by PCI address.

Roles, labels, device plugin and exporter all use it, so that they cannot disagree. Each chip shows its evidence; a source that
failed is an error with its cause, and what the others know stays in the list.
"""

import os
import re

from . import _npu_smi
from ._families import family_of_name
from ._pci import CLASS_BRIDGE, scan
from ._query import NpuSmi, QueryError, ask_dcmi

DAVINCI = re.compile(r"^davinci([0-9]+)$")
DRIVER_MODULES = ("drv_pcie_host", "asdrv_pcie_host")  # the second is the name in newer packages
SERVER_NAME = re.compile(r"^(Atlas|Ascend|A[0-9]{3}T)\b")


def device_nodes(dev_root="/dev"):
    """{physical id: path} of all /dev/davinciN."""
    try:
        names = os.listdir(dev_root)
    except OSError:
        return {}
    found = [(DAVINCI.match(name), os.path.join(dev_root, name)) for name in names]
    return {int(match.group(1)): path for match, path in found if match}


def driver_loaded(sysfs_root, functions):
    """Is the driver in the running kernel? By its module, or by a function bound to it (it may be built in)."""
    if any(function["driver"] for function in functions if function["driver"] not in (None, "vfio-pci", "pcieport")):
        return True
    return any(os.path.isdir(os.path.join(sysfs_root, "module", name)) for name in DRIVER_MODULES)


def blank(**values):
    """The record of a chip of which only these values are known."""
    chip = dict.fromkeys((
        "logic_id", "phy_id", "card_id", "device_id", "pci_address", "pci_device", "numa_node", "name", "family", "health", "error_codes",
        "device_node", "firmware_version", "serial", "vdie", "error", "stack", "cores",
    ))
    chip.update(device_nodes=[])
    chip.update(values)
    return chip


def _from_dcmi(answer):
    """(chips, errors): a card that does not even tell how many chips it has is an error, not a chip."""
    keys = ("logic_id", "phy_id", "card_id", "device_id", "pci_address", "name", "health", "error_codes", "serial", "vdie", "error")
    chips = [blank(**{key: chip[key] for key in keys}) for chip in answer["chips"] if chip["device_id"] is not None]
    errors = [
        QueryError("dcmi", "dcmi_failed", "card %d: %s" % (chip["card_id"], chip["error"]["message"]), card_id=chip["card_id"])
        for chip in answer["chips"] if chip["device_id"] is None
    ]
    return chips, errors


def _from_npu_smi(info, mapping):
    """Chips of `npu-smi info`; ids that the table does not print come from `npu-smi info -m`."""
    rows = {(row["npu_id"], row["chip_id"]): row for row in mapping}
    chips = []
    for chip in info["chips"]:
        row = rows.get((chip["npu_id"], chip["chip_id"]), {})
        phy_id = chip["device_id"] if chip["device_id"] is not None else row.get("phy_id")
        chips.append(blank(
            logic_id=row.get("logic_id"), phy_id=phy_id, card_id=chip["npu_id"], device_id=chip["chip_id"], pci_address=chip["bus_id"],
            name=chip["name"], health=chip["health"],
        ))
    return chips


def _merge(first, second):
    """Fill what `first` does not know from the same chip of `second`; a chip that only `second` knows is added."""
    def place(chip):
        return chip["card_id"], chip["device_id"] or 0  # the 950 prints no chip id

    known = {place(chip): chip for chip in first}
    for other in second:
        chip = known.get(place(other))
        if chip is None:
            first.append(other)
            continue
        for key, value in other.items():
            if chip[key] is None:
                chip[key] = value
    return first


def _join(chips, functions, nodes):
    """Give each chip its PCI function and device node; functions that no answer names become chips of their own."""
    by_address = {function["address"]: function for function in functions}
    named = {chip["pci_address"] for chip in chips}
    silent = [function for function in functions if function["kind"] == "chip" and function["address"] not in named]
    nameless = [chip for chip in chips if chip["pci_address"] is None]  # SoC boards, a failed bus query
    if len(silent) == len(nameless) == 1 and silent[0]["class"] != CLASS_BRIDGE:  # no other function is left for it
        nameless[0]["pci_address"] = silent[0]["address"]
        silent, nameless = [], []
    for chip in chips:
        function = by_address.get(chip["pci_address"])
        chip["evidence"] = {"pci": function is not None, "driver": None, "device_node": None}
        if function is not None:
            chip.update(pci_device=function["device"], numa_node=function["numa_node"], family=function["family"])
            chip["evidence"]["driver"] = function["driver"]
        chip["family"] = chip["family"] or family_of_name(chip["name"])
        if chip["phy_id"] is not None:
            chip["device_node"] = nodes.get(chip["phy_id"])
            chip["evidence"]["device_node"] = chip["device_node"] is not None
            chip["device_nodes"] = [chip["device_node"]] if chip["device_node"] else []
        if chip["health"] == "UNKNOWN":
            chip["health"] = None
    # Chips without an address are among the functions nobody named: count none twice.
    for function in silent[len(nameless):]:
        address = None if nameless else function["address"]
        chips.append(blank(
            pci_address=address, pci_device=function["device"], numa_node=None if nameless else function["numa_node"],
            family=function["family"], evidence={"pci": True, "driver": function["driver"], "device_node": None},
        ))
    return sorted(chips, key=_order)


def _order(chip):
    return chip["logic_id"] is None, chip["logic_id"] or 0, chip["pci_address"] or "", chip["card_id"] or 0


def _add_boards(smi, chips):
    """Firmware and serial number of each card, which only the board query prints. Returns (product name, first error)."""
    boards, error = smi.boards(sorted({chip["card_id"] for chip in chips if chip["card_id"] is not None}))
    names = set()
    for chip in chips:
        board = boards.get(chip["card_id"])
        if board is not None:
            chip["firmware_version"] = board["firmware_version"]
            chip["serial"] = chip["serial"] or board["serial_number"]
            names.add(board["product_name"])
    return (names.pop() if len(names) == 1 else None), error


def _product(sysfs_root, functions, printed):
    """The server's own name if it is the vendor's, else what the PCI ids tell for certain, else what the driver prints."""
    try:
        with open(os.path.join(sysfs_root, "class", "dmi", "id", "product_name")) as handle:
            server = handle.read().strip()
    except (OSError, ValueError):
        server = ""
    if SERVER_NAME.match(server):
        return server
    products = {function["product"] for function in functions if function["kind"] == "chip"}
    if len(products) == 1 and None not in products:
        return products.pop()
    return printed_product(printed)


def printed_product(names):
    """The first of what a driver prints that is the name of a product."""
    return next((name for name in names if name and SERVER_NAME.match(name)), None)


def only_family(of_chips, unknown=()):
    """The family of a node: None for several, where a chip has none, and beside what no table names."""
    found = set(of_chips)
    return found.pop() if len(found) == 1 and not unknown else None


def detect(run, sysfs_root="/sys", dev_root="/dev", *, dcmi=None, npu_smi=None, timeout=20.0, install_path="/usr/local/Ascend",
           boards=False, missing=()):
    """Chips of this machine, with evidence.

    run: callable(argv, timeout, env=None) with rc, stdout, stderr, timed_out; needed with npu_smi only
    dcmi: a DcmiClient, npu_smi: path of the tool; None leaves that source out
    boards: also ask npu-smi for each card's firmware (one more query per card)
    missing: QueryErrors of sources that the caller looked for and did not find
    Returns present, family, families, product, chips, unknown (accelerators no table names), virtual_functions, device_nodes,
    driver {"loaded", "version"}, tool_version, processes, query {"ok", "source", "error", "errors"}.
    """
    functions = scan(sysfs_root)
    nodes = device_nodes(dev_root)
    errors, sources, printed = list(missing), [], []
    chips, versions, tool_version, processes = [], [], None, []
    if dcmi is not None:
        try:
            answer = ask_dcmi(dcmi, timeout)
            chips, failed = _from_dcmi(answer)
            errors += failed
            versions.append(answer["version"]["driver_version"])
            printed += [chip["product_name"] for chip in answer["chips"]]
            sources.append("dcmi")
        except QueryError as error:
            errors.append(error)
    if npu_smi is not None:
        smi = NpuSmi(run, npu_smi, timeout, install_path)
        try:
            info = smi.ask(["info"], _npu_smi.parse_info)
            sources.append("npu-smi")
            versions.append(info["driver_version"])
            tool_version, processes = info["tool_version"], info["processes"]
            try:
                mapping = [] if chips else smi.ask(["info", "-m"], _npu_smi.parse_info_m)
            except QueryError as error:
                errors.append(error)
                mapping = []
            chips = _merge(chips, _from_npu_smi(info, mapping))
            if boards:
                name, failure = _add_boards(smi, chips)
                printed.append(name)
                errors += [failure] if failure else []
        except QueryError as error:
            errors.append(error)
    chips = _join(chips, functions, nodes)
    unknown = [function for function in functions if function["kind"] == "unknown"]
    present = bool(chips or unknown)
    if not present and not nodes:
        errors = [error for error in errors if not error.code.endswith("_missing")]  # nothing to ask about, so nobody to ask
    # What hangs or fails tells more than what is not there.
    errors.sort(key=lambda error: (error.code.endswith("_missing"), error.source != "npu-smi"))
    families = sorted({chip["family"] for chip in chips if chip["family"]})
    return {
        "present": present,
        "family": only_family([chip["family"] for chip in chips], unknown),
        "families": families,
        "product": _product(sysfs_root, functions, printed),
        "chips": chips,
        "unknown": unknown,
        "virtual_functions": sum(function["kind"] == "virtual" for function in functions),
        "device_nodes": [nodes[number] for number in sorted(nodes)],
        "driver": {"loaded": driver_loaded(sysfs_root, functions), "version": next((version for version in versions if version), None)},
        "tool_version": tool_version,
        "processes": processes,
        "query": {
            "ok": not errors,
            "source": ",".join(sources) or ("pci" if not errors else None),
            "error": errors[0].as_dict() if errors else None,
            "errors": [error.as_dict() for error in errors],
        },
    }
