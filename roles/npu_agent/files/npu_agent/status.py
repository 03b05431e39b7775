# SPDX-License-Identifier: GPL-3.0-or-later
"""/healthz, /readyz and /metrics: what operators and roles may ask the running service."""

import asyncio
import json

from . import __version__
from .session import SERVING

LIMIT = 8192


def ready_report(session, board):
    healthy, total = board.count()
    reasons = [session.cause] if session.cause else []
    reasons += [problem for problem in board.problems if problem not in session.cause]
    reasons += [f"{chip.id}: {chip.reason}" for chip in board.chips.values() if not chip.healthy]
    return {
        "ready": session.state == SERVING and session.stream_open, "state": session.state, "version": __version__,
        "resource": board.resource, "registered": session.registered, "stream_open": session.stream_open,
        "healthy": healthy, "total": total, "reasons": reasons,
    }


def label(text):
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def metrics(session, board, counters):
    """The text format of Prometheus. A chip's state is what kubelet was told, so what is not known is not Healthy there either."""
    lines = []

    def add(name, kind, text, rows):
        lines.append(f"# HELP npu_agent_{name} {text}")
        lines.append(f"# TYPE npu_agent_{name} {kind}")
        for labels, value in rows:
            inside = ",".join(f'{key}="{label(item)}"' for key, item in labels.items())
            lines.append(f"npu_agent_{name}{{{inside}}} {value}" if inside else f"npu_agent_{name} {value}")

    add("info", "gauge", "Version and resource of the agent.", [({"version": __version__, "resource": board.resource or ""}, 1)])
    add("registered", "gauge", "1 while kubelet knows the resource and listens.", [({}, int(session.registered and session.stream_open))])
    add("state", "gauge", "1 for the state the agent is in.", [({"state": session.state}, 1)])
    add("chip_healthy", "gauge", "1 for a chip that may take work.", [
        ({"chip": chip.id, "pci_address": chip.pci_address or ""}, int(chip.healthy))
        for chip in board.chips.values()
    ])
    for name, text in (
        ("registrations", "Registrations that kubelet accepted."), ("lists_sent", "Device lists sent to kubelet."),
        ("allocations", "Containers that got chips."), ("allocations_refused", "Allocate calls that were refused."),
        ("looks_failed", "Looks at the chips that DCMI did not answer."),
    ):
        add(f"{name}_total", "counter", text, [({}, counters[name])])
    return "\n".join(lines) + "\n"


class Endpoint:
    """As little HTTP as a probe and a scraper need: GET, one answer, connection closed."""

    def __init__(self, settings, session, board, counters, log):
        self.settings, self.session, self.board, self.counters, self.log = settings, session, board, counters, log
        self.server = None

    async def start(self):
        host, port = self.settings.listen
        try:
            self.server = await asyncio.start_server(self.handle, host, port, limit=LIMIT)
        except OSError as error:
            # Serving devices is worth more than this address.
            self.log("no status address", "error", listen=f"{host}:{port}", cause=str(error),
                     hint="set `listen` in the configuration to a free port (`ss -ltnp` shows who has this one)")

    def close(self):
        if self.server is not None:
            self.server.close()

    def answer(self, target):
        if target == "/healthz":
            return 200, "text/plain; charset=utf-8", "ok\n"
        if target == "/readyz":
            report = ready_report(self.session, self.board)
            return 200 if report["ready"] else 503, "application/json", json.dumps(report) + "\n"
        if target == "/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", metrics(self.session, self.board, self.counters)
        return 404, "text/plain; charset=utf-8", "there are /healthz, /readyz and /metrics\n"

    async def handle(self, reader, writer):
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            if len(words) == 3 and words[0] in ("GET", "HEAD"):
                status, kind, body = self.answer(words[1].split("?", 1)[0])
            else:
                status, kind, body = 405, "text/plain; charset=utf-8", "only GET\n"
            reason = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}[status]
            data = body.encode()
            head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + (b"" if words[0] == "HEAD" else data))
            await asyncio.wait_for(writer.drain(), 5)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            pass
        finally:
            writer.close()
