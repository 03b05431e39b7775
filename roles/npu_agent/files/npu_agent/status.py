# SPDX-License-Identifier: GPL-3.0-or-later
"""/healthz, /readyz and /metrics: what operators and roles may ask the running service."""

import asyncio
import json

from . import __version__
from .session import DRIVER, KUBELET, NO_NPU, REGISTERING, SERVING, STANDBY, STARTING

LIMIT = 8192
CONNECTIONS = 32  # at once; the descriptors are also those of kubelet's calls
BACKLOG = 32  # asyncio takes so many before it looks at the first
SECONDS = 5.0  # for a request to come, and for the answer to go
# Of several resources the state to tell is the first of these that one of them is in.
WORST = (STARTING, REGISTERING, STANDBY, KUBELET, SERVING)


def no_chips(node):
    return "; ".join(node.problems) or "the driver names no chip"


def state_of(service):
    """(state, causes) of the whole."""
    if service.sessions:
        causes = list(dict.fromkeys(session.cause for session in service.sessions.values() if session.cause))
        return min((session.state for session in service.sessions.values()), key=WORST.index), causes
    if service.node.present is False:
        return NO_NPU, ["this node has no NPU"]
    return (DRIVER, [no_chips(service.node)]) if service.node.present else (STARTING, [])


def whole_chips(boards):
    """{chip: whether it may take work}; slices count as the chip that they are of."""
    found = {}
    for board in boards:
        for chip in board.chips.values():
            key = chip.id if chip.slice is None else chip.phy_id
            found[key] = found.get(key, True) and chip.healthy
    return found


def reasons_of(chips):
    return [f"{chip.id}: {chip.reason}" for chip in chips if not chip.healthy]


def ready_report(service):
    """`healthy` and `total` are chips; those of `resources` are the ids that kubelet counts."""
    node, sessions = service.node, list(service.sessions.values())
    state, reasons = state_of(service)
    reasons += [problem for problem in [*node.problems, *filter(None, [node.silent])] if not any(problem in reason for reason in reasons)]
    resources = []
    for session in sessions:
        healthy, total = session.board.count()
        unfit = reasons_of(session.board.chips.values())
        reasons += unfit
        resources.append({
            "resource": session.board.resource, "ready": session.ready, "state": session.state, "registered": session.registered,
            "stream_open": session.stream_open, "healthy": healthy, "total": total,
            "reasons": ([session.cause] if session.cause else []) + unfit,
        })
    if service.folder.trouble:
        reasons.append(service.folder.trouble)
    reasons += [f"the new configuration is refused: {fault}" for fault in service.faults]
    chips = whole_chips(node.boards.values())
    return {
        "ready": bool(sessions) and all(session.ready for session in sessions), "state": state, "version": __version__,
        "resource": ", ".join(session.board.resource for session in sessions) or None,
        "registered": bool(sessions) and all(session.registered for session in sessions),
        "stream_open": bool(sessions) and all(session.stream_open for session in sessions),
        "healthy": sum(chips.values()), "total": len(chips), "reasons": reasons, "resources": resources,
    }


def label(text):
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


COUNTERS = (
    ("registrations", "Registrations that kubelet accepted."), ("lists_sent", "Device lists sent to kubelet."),
    ("streams_replaced", "ListAndWatch calls that came while another one was open."),
    ("allocations", "Containers that got chips."), ("allocations_refused", "Allocate calls that were refused."),
    ("calls_refused", "Calls of kubelet that were refused, for whatever reason."),
    ("preferred", "Containers for which kubelet asked what fits best."),
    ("looks_failed", "Looks at the chips at which the driver did not tell of all."), ("fault_events", "Fault events of the driver."),
    ("reloads", "Times the configuration was read again."), ("reloads_refused", "Times it was faulty, so that the old one stayed."),
)


def metrics(service, now):
    """The text format of Prometheus. A chip's state is what kubelet was told, so what is not known is not Healthy there either."""
    lines, node, sessions = [], service.node, service.sessions

    def add(name, kind, text, rows):
        lines.append(f"# HELP npu_agent_{name} {text}")
        lines.append(f"# TYPE npu_agent_{name} {kind}")
        for labels, value in rows:
            inside = ",".join(f'{key}="{label(item)}"' for key, item in labels.items())
            lines.append(f"npu_agent_{name}{{{inside}}} {value}" if inside else f"npu_agent_{name} {value}")

    def by_resource(value):
        return [({"resource": name}, int(value(session))) for name, session in sessions.items()]

    chips = [({"chip": chip.id, "pci_address": chip.pci_address or "", "resource": name}, chip)
             for name, board in node.boards.items() for chip in board.chips.values()]
    add("info", "gauge", "Version of the agent.", [({"version": __version__}, 1)])
    add("state", "gauge", "1 for the state the agent is in.", [({"state": state_of(service)[0]}, 1)])
    add("registered", "gauge", "1 while kubelet knows the resource and listens.", by_resource(lambda session: session.ready))
    add("streams", "gauge", "Open ListAndWatch calls.", by_resource(lambda session: session.stream_open))
    add("units", "gauge", "Ids that kubelet counts.", by_resource(lambda session: session.board.count()[1]))
    add("units_healthy", "gauge", "Ids that kubelet may give out.", by_resource(lambda session: session.board.count()[0]))
    add("chip_healthy", "gauge", "1 for a chip that may take work.", [(labels, int(chip.healthy)) for labels, chip in chips])
    add("chip_rank", "gauge", "0 for the chips that preferred allocation takes first.", [(labels, chip.rank) for labels, chip in chips])
    add("chip_degraded", "gauge", "1 for each reason why a chip comes last.", [
        ({**labels, "reason": reason}, 1) for labels, chip in chips for reason in chip.degraded
    ])
    hung = sum(seen.record.get("hung") is not None for seen in node.seen.values())
    add("chips_hung", "gauge", "Chips for which the driver does not come back from a query.", [({}, hung)])
    add("inotify", "gauge", "0 while kubelet's folder has to be polled, for want of inotify instances.", [
        ({}, int(not service.folder.trouble))
    ])
    if service.looked_at is not None:
        add("look_age_seconds", "gauge", "Time since the driver last told of all chips.", [({}, round(now - service.looked_at, 3))])
    for name, text in COUNTERS:
        add(f"{name}_total", "counter", text, [({}, service.counters[name])])
    return "\n".join(lines) + "\n"


class Endpoint:
    """As little HTTP as a probe and a scraper need: GET, one answer, connection closed."""

    def __init__(self, service):
        self.service, self.server, self.open = service, None, 0

    async def start(self):
        host, port = self.service.settings.listen
        try:
            self.server = await asyncio.start_server(self.handle, host, port, limit=LIMIT, backlog=BACKLOG)
        except OSError as error:
            # Serving devices is worth more than this address.
            self.service.log("no status address", "error", listen=f"{host}:{port}", cause=str(error),
                             hint="set `listen` in the configuration to a free port (`ss -ltnp` shows who has this one)")

    def close(self):
        if self.server is not None:
            self.server.close()

    def answer(self, target):
        if target == "/healthz":
            silent = self.service.node.silent
            return 503 if silent else 200, "text/plain; charset=utf-8", f"{silent or 'ok'}\n"
        if target == "/readyz":
            report = ready_report(self.service)
            return 200 if report["ready"] else 503, "application/json", json.dumps(report) + "\n"
        if target == "/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", metrics(self.service, asyncio.get_running_loop().time())
        if target == "/node":
            from .facts import node_facts  # noqa: PLC0415  few ask for it

            return 200, "application/json", json.dumps(node_facts(self.service)) + "\n"
        return 404, "text/plain; charset=utf-8", "there are /healthz, /readyz, /node and /metrics\n"

    async def handle(self, reader, writer):
        if self.open >= CONNECTIONS:
            writer.transport.abort()
            return
        self.open += 1
        writer.transport.set_write_buffer_limits(0)  # so that drain() waits for all of the answer
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
            words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            if len(words) == 3 and words[0] in ("GET", "HEAD"):
                status, kind, body = self.answer(words[1].split("?", 1)[0])
            else:
                status, kind, body = 405, "text/plain; charset=utf-8", "only GET\n"
            reason = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}[status]
            data = body.encode()
            head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + (b"" if words[0] == "HEAD" else data))
            await asyncio.wait_for(writer.drain(), SECONDS)
            writer.close()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            pass
        finally:
            self.open -= 1
            if not writer.is_closing():
                writer.transport.abort()
