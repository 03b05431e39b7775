# SPDX-License-Identifier: GPL-3.0-or-later
"""What /node tells of this node, for whoever labels it. What nobody knows is None; no serial number leaves this process."""

import os
import time

from . import status
from ._hardware import _labels
from ._hardware._detect import detect, only_family, printed_product

BOARD_SECONDS = 60.0  # the board's name and what lies on the bus hardly change, and are read from many small files


class BoardFacts:
    """{"family", "product", "unknown"} that the detector sees without asking a driver. Devices that only the operator names have none.

    unknown: accelerators that no table names.
    """

    def __init__(self, clock=time.monotonic):
        self.clock, self.when, self.found = clock, None, None

    def of(self, settings, backend):
        now = self.clock()
        if self.when is None or now - self.when >= BOARD_SECONDS:
            self.when, self.found = now, look(settings, backend)
        return self.found


def look(settings, backend):
    if backend == "ascend":
        return detect(None, settings.sysfs_root, settings.dev_root)
    if backend == "rockchip":
        from ._hardware import _rockchip  # noqa: PLC0415  nobody else has such a board

        return {"family": None, "product": _rockchip.board_text("model", settings.sysfs_root, settings.proc_root), "unknown": []}
    return {"family": None, "product": None, "unknown": []}


BOARD = BoardFacts()


def known(values):
    """The values there are, each once; empty unless every chip has told one."""
    values = list(values)
    return sorted(set(values)) if all(value is not None for value in values) else []


def same(values):
    found = known(values)
    return found[0] if len(found) == 1 else None


def whole(number):
    return int(number) if number is not None and number == int(number) else None


def driver_version(service, records):
    """Only while a driver is bound and answers: of one that is lost, the last version is no answer."""
    told = same(record.get("driver_version") if record.get("driver_bound") else None for record in records)
    looker = service.eyes.looker
    answers = any(record.get("health_code") is not None for record in records)
    driver = getattr(looker, "driver", None) if answers else None  # only the backend that asks a driver's library has one
    return told or ((driver.version or {}).get("driver_version") if driver is not None else None)


def node_facts(service, board=BOARD):
    """The answer to /node, see _labels.py for what becomes of it. ready: the node may take work now; reasons: why it may not."""
    node, report = service.node, status.ready_report(service)
    backend = node.backend.name
    records = [seen.record for seen in node.seen.values()]
    found = board.of(node.settings, backend)
    # Without a chip, what is on the bus counts: a driver that does not answer changes nothing about the cards.
    family = only_family([record.get("family") for record in records], found["unknown"]) if records else found["family"]
    families = [family] if family else []
    product = found["product"] or printed_product(record.get("product_name") for record in records)
    products = [product] if product else []
    ready = report["ready"] and report["healthy"] > 0
    reasons = list(report["reasons"])
    if report["ready"] and not ready:
        reasons = reasons or ["none of its chips may take work"]
    return {
        "backend": backend, "present": True if records else node.present, "ready": ready, "state": report["state"], "reasons": reasons,
        "families": families, "chips": report["total"] or None, "healthy": report["healthy"],
        "chip_names": known(record.get("name") for record in records), "products": products,
        "driver_version": driver_version(service, records), "firmware_version": None, "cann_version": None,
        "aicores": whole(same(record.get("cores") or record.get("aicore_count") for record in records)), "memory_mib": None,
        "link": _labels.link_of(families, products, report["total"]),
        "serial_hash": _labels.serial_hash([record.get("serial") for record in records]),
        "arch": os.uname().machine, "stack": same(record.get("stack") if record.get("driver_bound") else None for record in records),
    }
