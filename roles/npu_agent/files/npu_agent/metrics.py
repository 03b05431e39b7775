# SPDX-License-Identifier: GPL-3.0-or-later
"""The service's own metrics, in the text format of Prometheus by its client library.

A scrape reads what the service knows already: nothing is asked, nothing waits. No label has an unbounded number of values, so no pods.
"""

import importlib
import sys
import types
from contextlib import contextmanager

from . import __version__

# What the library's HTTP servers and its push client are made of. It imports them whether they are used or not, and here they are not:
# status.py answers. They would take 7 MB of memory and 60 ms at the first scrape (measured).
SERVERS = ("ssl", "http.server", "urllib.request", "wsgiref", "wsgiref.simple_server")

COUNTERS = (
    ("registrations", "Registrations that kubelet accepted."), ("lists_sent", "Device lists sent to kubelet."),
    ("streams_replaced", "ListAndWatch calls that came while another one was open."),
    ("allocations", "Containers that got chips."), ("allocations_refused", "Allocate calls that were refused."),
    ("calls_refused", "Calls of kubelet that were refused, for whatever reason."),
    ("preferred", "Containers for which kubelet asked what fits best."),
    ("looks_failed", "Looks at the chips at which the driver did not tell of all."), ("fault_events", "Fault events of the driver."),
    ("reloads", "Times the configuration was read again."), ("reloads_refused", "Times it was faulty, so that the old one stayed."),
)
AUDIT_COUNTERS = (
    (("written",), "audit_lines", "Lines of the audit."),
    (("without_pod",), "audit_lines_without_pod", "Allocations whose line names no pod; the line says why."),
    (("lost", "dropped"), "audit_lines_lost", "Lines of the audit that could not be written."),
)


class Placeholder(types.ModuleType):
    """Stands in for a module while something is imported that only names what is in it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def without_servers():
    before = {name: sys.modules[name] for name in SERVERS if name in sys.modules}
    absent = [name for name in SERVERS if before.get(name) is None]
    sys.modules.update((name, Placeholder(name)) for name in absent)
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def library():
    """(prometheus_client.exposition, prometheus_client.core), loaded at the first scrape: many nodes are never scraped."""
    if "prometheus_client" not in sys.modules:
        with without_servers():
            importlib.import_module("prometheus_client")
    return tuple(importlib.import_module(f"prometheus_client.{name}") for name in ("exposition", "core"))


def text(service, now, state):
    """(content type, bytes). state: as status.py tells it."""
    exposition, core = library()
    registry = core.CollectorRegistry()
    registry.register(Collector(core, service, now, state))
    return exposition.CONTENT_TYPE_PLAIN_0_0_4, exposition.generate_latest(registry)


def safe(value):
    """A label's value. What a driver or a file name gave may have bytes that are no UTF-8; the library takes all else."""
    return str(value).encode("utf-8", "replace").decode()


class Collector:
    """A chip's state is what kubelet was told, so what is not known is not Healthy there either."""

    def __init__(self, core, service, now, state):
        self.core, self.service, self.now, self.state = core, service, now, state

    def describe(self):
        return []

    def collect(self):
        yield from self.agent()
        yield from self.resources()
        yield from self.chips()
        yield from self.telemetry()
        yield from self.audit()
        for name, words in COUNTERS:
            yield self.counter(name, words, self.service.counters[name])

    def gauge(self, name, words, rows):
        """rows: [({label: value}, number)], each with the same labels."""
        names = list(rows[0][0]) if rows else []
        family = self.core.GaugeMetricFamily(f"npu_agent_{name}", words, labels=names)
        for labels, value in rows:
            family.add_metric([safe(labels[key]) for key in names], value)
        return family

    def counter(self, name, words, value):
        return self.core.CounterMetricFamily(f"npu_agent_{name}", words, value=value)

    def agent(self):
        service = self.service
        yield self.gauge("info", "Version of the agent.", [({"version": __version__}, 1)])
        yield self.gauge("build_info", "What the agent runs on.", [({"version": __version__, "python": sys.version.split()[0]}, 1)])
        yield self.core.GaugeMetricFamily("process_start_time_seconds", "When the service began, since the epoch.", value=service.began)
        yield self.gauge("state", "1 for the state the agent is in.", [({"state": self.state}, 1)])
        yield self.gauge("inotify", "0 while kubelet's folder has to be polled, for want of inotify instances.", [
            ({}, int(not service.folder.trouble))])
        if service.looked_at is not None:
            age = round(self.now - service.looked_at, 3)
            yield self.gauge("look_age_seconds", "Time since the driver last told of all chips.", [({}, age)])
        yield self.gauge("config_last_reload_successful", "0 while the configuration file is faulty, so that an older one is in force.", [
            ({}, int(not service.faults))])
        yield self.gauge("config_last_reload_success_timestamp_seconds", "When the configuration in force was read.", [
            ({}, service.configured)])

    def resources(self):
        sessions = self.service.sessions

        def each(value):
            return [({"resource": name}, int(value(session))) for name, session in sessions.items()]

        yield self.gauge("registered", "1 while kubelet knows the resource and listens.", each(lambda session: session.ready))
        yield self.gauge("streams", "Open ListAndWatch calls.", each(lambda session: session.stream_open))
        yield self.gauge("units", "Ids that kubelet counts.", each(lambda session: session.board.count()[1]))
        yield self.gauge("units_healthy", "Ids that kubelet may give out.", each(lambda session: session.board.count()[0]))

    def chips(self):
        node = self.service.node
        chips = [({"chip": chip.id, "pci_address": chip.pci_address or "", "resource": name}, chip)
                 for name, board in node.boards.items() for chip in board.chips.values()]
        yield self.gauge("chip_healthy", "1 for a chip that may take work.", [(labels, int(chip.healthy)) for labels, chip in chips])
        yield self.gauge("chip_rank", "0 for the chips that preferred allocation takes first.", [
            (labels, chip.rank) for labels, chip in chips])
        yield self.gauge("chip_degraded", "1 for each reason why a chip comes last.", [
            ({**labels, "reason": reason}, 1) for labels, chip in chips for reason in dict.fromkeys(chip.degraded)])
        hung = sum(seen.record.get("hung") is not None for seen in node.seen.values())
        yield self.gauge("chips_hung", "Chips for which the driver does not come back from a query.", [({}, hung)])

    def telemetry(self):
        """What was read at the last look; a chip of which it is not known has no sample. Not by resource: slices have none of their own."""
        told = [(name, seen.record.get("telemetry") or {}) for name, seen in self.service.node.seen.items() if not seen.gone]
        yield self.gauge("chip_temperature_celsius", "Temperature of a chip.", [
            ({"chip": name}, one["temperature_c"]) for name, one in told if one.get("temperature_c") is not None])
        yield self.gauge("core_load_ratio", "Part of the time that a core works, 0 to 1.", [
            ({"chip": name, "core": core}, load / 100) for name, one in told for core, load in enumerate(one.get("load") or ())])

    def audit(self):
        audit, up = self.service.audit, self.service.holders.up
        buckets = audit.durations.buckets()
        yield self.core.HistogramMetricFamily(
            "npu_agent_allocation_duration_seconds", "Time that the answer to an Allocate call took.", buckets=buckets,
            sum_value=audit.durations.total)
        for keys, name, words in AUDIT_COUNTERS:
            yield self.counter(name, words, sum(audit.counts[key] for key in keys))
        yield self.gauge("audit_pending", "Allocations whose line waits for the name of the pod.", [({}, len(audit.pending))])
        if up is not None:
            yield self.gauge("pod_resources_up", "1 when kubelet answered the last question which pods have chips.", [({}, int(up))])
