# SPDX-License-Identifier: GPL-3.0-or-later
"""/healthz, /readyz and /metrics: what operators and roles may ask the running service."""

import asyncio
import concurrent.futures
import errno
import json
import socket
import threading

from . import __version__
from .log import Once
from .session import DRIVER, KUBELET, NO_NPU, REGISTERING, SERVING, STANDBY, STARTING

ALL = "0.0.0.0"  # noqa: S104  where the configuration says so
REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error", 503: "Service Unavailable"}
LIMIT = 8192
CONNECTIONS = 32  # at once; the descriptors are also those of kubelet's calls
BACKLOG = 32  # asyncio takes so many before it looks at the first
SECONDS = 5.0  # for a request to come, and for the answer to go
RETRY_SECONDS = 3.0  # between two tries to get the address
ELSEWHERE = "this node does not have that address, or not yet: `ip address` shows those that it has; `listen: :PORT` takes all"
HINTS = {
    errno.EADDRNOTAVAIL: ELSEWHERE, errno.EAFNOSUPPORT: ELSEWHERE, None: ELSEWHERE,  # None: as asyncio of Python 3.13 says it
    errno.EADDRINUSE: "set `listen` in the configuration to a free port (`ss -ltnp` shows who has this one)",
    errno.EACCES: "set `listen` in the configuration to a port from 1024 on: those below need a right that this service does not have",
}
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
    return (DRIVER, [no_chips(service.node)]) if service.node.sight is not None else (STARTING, [])


def whole_chips(boards):
    """{chip: whether it may take work}; slices count as the chip that they are of."""
    found = {}
    for board in boards:
        for chip in board.chips.values():
            key = chip.id if chip.slice is None else chip.phy_id
            found[key] = found.get(key, True) and chip.healthy
    return found


def devices_of(chips):
    """Which chip has which id: ids stay with the hardware, its number may change. Of one that is gone the number may be another one's."""
    return [{"id": chip.id, "phy_id": None if chip.gone else chip.phy_id, "pci_address": None if chip.gone else chip.pci_address,
             "healthy": chip.healthy} for chip in chips]


def reasons_of(chips):
    return [f"{chip.id}: {chip.reason}" for chip in chips if not chip.healthy]


def ready_report(service):
    """`healthy` and `total` are chips; those of `resources` are the ids that kubelet counts; `devices` are chips and slices, no shares."""
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
            "reasons": ([session.cause] if session.cause else []) + unfit, "devices": devices_of(session.board.chips.values()),
        })
    if service.audit.file.trouble:
        reasons.append(service.audit.file.trouble)
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


def hint(error):
    """What mends it where no address could be got."""
    if isinstance(error, (socket.gaierror, ValueError)):
        return "set `listen` in the configuration to an IP address, or to a name that this node can look up (`getent hosts NAME`)"
    return HINTS.get(error.errno, "see the cause; `npu-agent check --settings` tells what `listen` may be")


async def looked_up(name):
    """[address] of a name. In a thread that nobody waits for at the end: looking it up may take long."""
    if any(is_address(name, family) for family in (socket.AF_INET, socket.AF_INET6)):
        return [name]
    found: concurrent.futures.Future = concurrent.futures.Future()
    found.set_running_or_notify_cancel()  # an answer that nobody waits for any more is none too many

    def ask():
        try:
            found.set_result(list(dict.fromkeys(entry[4][0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))))
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=ask, name="lookup", daemon=True).start()
    return await asyncio.wrap_future(found)


def is_address(name, family):
    try:
        return bool(socket.inet_pton(family, name))
    except OSError:
        return False


class Endpoint:
    """As little HTTP as a probe and a scraper need: GET, one answer, connection closed."""

    def __init__(self, service):
        self.service, self.server, self.open = service, None, 0
        self.say_fault = Once(service.log)

    async def start(self):
        """Serving devices is worth more than this address. It may come later, as that of a node whose network is not up yet."""
        host, port = self.service.settings.listen
        # Linux takes IPv4 at [::] as well, asyncio does not.
        hosts = [ALL, "::"] if host in ("", "::") else [host]
        listen, say = f"{host or '*'}:{port}", Once(self.service.log)
        while self.server is None:
            try:
                self.server = await self.bind([address for name in hosts for address in await looked_up(name)], port)
            except (OSError, ValueError) as error:  # ValueError: of what is no name at all
                say("no status address", "error", listen=listen, cause=str(error),
                    hint=f"{hint(error)}; it is tried again every {RETRY_SECONDS:g} s")
                await asyncio.sleep(RETRY_SECONDS)
        if say.last is not None:
            self.service.log("the status address is there", listen=listen)

    async def bind(self, hosts, port):
        try:
            return await asyncio.start_server(self.handle, hosts, port, limit=LIMIT, backlog=BACKLOG)
        except OSError as error:
            if len(hosts) > 1 and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6
                return await asyncio.start_server(self.handle, hosts[0], port, limit=LIMIT, backlog=BACKLOG)
            raise

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
            from . import metrics  # noqa: PLC0415  many nodes are never scraped, and a start is to be quick

            return 200, *metrics.text(self.service, asyncio.get_running_loop().time(), state_of(self.service)[0])
        if target == "/node":
            from .facts import node_facts  # noqa: PLC0415  few ask for it

            return 200, "application/json", json.dumps(node_facts(self.service)) + "\n"
        return 404, "text/plain; charset=utf-8", "there are /healthz, /readyz, /node and /metrics\n"

    def answered(self, target):
        """Whoever asks hears of a fault of ours, too."""
        try:
            return self.answer(target)
        except Exception as error:
            self.say_fault("a fault of npu-agent", "error", cause=f"{target}: {error!r}")
            return 500, "text/plain; charset=utf-8", f"a fault of npu-agent: {error!r}\n"

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
                status, kind, body = self.answered(words[1].split("?", 1)[0])
            else:
                status, kind, body = 405, "text/plain; charset=utf-8", "only GET\n"
            reason = REASONS[status]
            data = body if isinstance(body, bytes) else body.encode()
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
